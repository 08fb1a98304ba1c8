//! Measures calls with the protocol of OpenAFS's `rxperf` (`src/tools/rxperf/rxperf.c`), so that
//! each side can run against the other implementation.
//!
//! ```text
//!   rxperf server [--listen 127.0.0.1:7009] [--sockets N] [--workers N]
//!   rxperf recv|send|rpc [--to 127.0.0.1:7009] [--bytes N] [--times N] [--threads N] [--ports N]
//! ```
//!
//! `recv` requests `bytes` bytes, `send` sends them, `rpc` does both; each of `threads` threads
//! does so `times` times. Four threads share a connection, and the threads are spread over `ports`
//! ports, each of which is a separate client. A client prints a line of JSON: seconds, MB (10^6)
//! per second, calls per second, and its CPU time.

use rx::{Abort, Bytes, Call, Connection, Error, Port, Service, Settings, Timeouts};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SERVICE: u16 = 147;
const VERSION: u32 = 3;
const COOKIE: u32 = 0x4711;
/// Number of bytes written at once.
const PIECE: usize = 65_536;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Command {
    Send = 0,
    Recv = 1,
    Rpc = 3,
}

struct Options {
    address: SocketAddr,
    sockets: usize,
    workers: usize,
    bytes: u32,
    times: u32,
    threads: usize,
    ports: usize,
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let mode = args.next().unwrap_or_default();
    let mut options = Options {
        address: SocketAddr::from(([127, 0, 0, 1], 7009)),
        sockets: 1,
        workers: 64,
        bytes: 1 << 20,
        times: 10,
        threads: 1,
        ports: 1,
    };
    while let (Some(name), Some(value)) = (args.next(), args.next()) {
        if let Err(e) = options.set(&name, &value) {
            eprintln!("{name} {value}: {e}");
            return ExitCode::FAILURE;
        }
    }
    let done = match mode.as_str() {
        "server" => serve(&options),
        "send" => measure(&options, Command::Send),
        "recv" => measure(&options, Command::Recv),
        "rpc" => measure(&options, Command::Rpc),
        _ => Err("the first word is server, recv, send or rpc".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

impl Options {
    fn set(&mut self, name: &str, value: &str) -> Outcome<()> {
        match name {
            "--to" | "--listen" => self.address = value.parse()?,
            "--sockets" => self.sockets = value.parse()?,
            "--workers" => self.workers = value.parse()?,
            "--bytes" => self.bytes = value.parse()?,
            "--times" => self.times = value.parse()?,
            "--threads" => self.threads = value.parse()?,
            "--ports" => self.ports = value.parse()?,
            _ => return Err("unknown option".into()),
        }
        Ok(())
    }
}

fn serve(options: &Options) -> Outcome<()> {
    let filling = Bytes::from(vec![7; PIECE]);
    let settings = Settings {
        listen: options.address,
        sockets: options.sockets,
        workers: options.workers,
        ..Settings::default()
    };
    let service = Service {
        id: SERVICE,
        handler: Arc::new(move |call: &mut Call| answer(call, &filling)),
    };
    let port = Port::open(&settings, vec![service])?;
    println!("listening on {}", port.address());
    loop {
        std::thread::park();
    }
}

fn word(call: &mut Call) -> Result<u32, Error> {
    let mut bytes = [0; 4];
    call.read_exact(&mut bytes)?;
    Ok(u32::from_be_bytes(bytes))
}

fn answer(call: &mut Call, filling: &Bytes) -> Result<(), Abort> {
    let mut head = [0; 4];
    for word_of_head in &mut head {
        *word_of_head = word(call)?;
    }
    let [version, command, _, _] = head;
    let bytes = word(call)?;
    let (takes, gives) = match (version, command) {
        (VERSION, c) if c == Command::Send as u32 => (bytes, 0),
        (VERSION, c) if c == Command::Recv as u32 => (0, bytes),
        (VERSION, c) if c == Command::Rpc as u32 => (bytes, word(call)?),
        _ => return Err(Abort(rx::code::INVALID_OPERATION)),
    };
    take(call, takes as usize)?;
    give(call, gives as usize, filling)?;
    call.write(COOKIE.to_be_bytes().to_vec())?;
    Ok(())
}

fn give(call: &mut Call, mut bytes: usize, filling: &Bytes) -> Result<(), Error> {
    while bytes > 0 {
        let piece = bytes.min(filling.len());
        call.write(filling.slice(0..piece))?;
        bytes -= piece;
    }
    Ok(())
}

fn take(call: &mut Call, mut bytes: usize) -> Result<(), Error> {
    while bytes > 0 {
        bytes -= call.read_up_to(bytes)?.ok_or(Error::Short)?.len();
    }
    Ok(())
}

fn measure(options: &Options, command: Command) -> Outcome<()> {
    let filling = Bytes::from(vec![7; PIECE]);
    let settings = Settings {
        listen: match options.address {
            SocketAddr::V4(_) => "0.0.0.0:0".parse()?,
            SocketAddr::V6(_) => "[::]:0".parse()?,
        },
        ..Settings::default()
    };
    let open = |_| Port::open(&settings, Vec::new());
    let ports = (0..options.ports.max(1))
        .map(open)
        .collect::<Result<Vec<_>, _>>()?;
    let connections: Vec<Connection> = (0..options.threads.div_ceil(4).max(ports.len()))
        .map(|n| ports[n % ports.len()].connect(options.address, SERVICE, Timeouts::default()))
        .collect();
    let (start, before) = (Instant::now(), processor_time());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.threads)
            .map(|n| {
                let connection = &connections[n % connections.len()];
                let filling = &filling;
                scope.spawn(move || repeat(connection, options, command, filling))
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("a thread that measures"))
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let spent = (processor_time() - before).as_secs_f64();
    let calls = options.threads as f64 * f64::from(options.times);
    let both = if command == Command::Rpc { 2.0 } else { 1.0 };
    let bytes = calls * f64::from(options.bytes) * both;
    let stats: Vec<_> = ports.iter().map(Port::stats).collect();
    let dropped: u64 = stats.iter().map(|stats| stats.dropped).sum();
    let resent: u64 = stats
        .iter()
        .flat_map(|s| &s.sockets)
        .map(|s| s.resent)
        .sum();
    println!(
        "{{\"seconds\":{seconds:.3},\"mb_s\":{:.1},\"calls_s\":{:.0},\"cpu_s\":{spent:.3},\"dropped\":{dropped},\"resent\":{resent}}}",
        bytes / seconds / 1e6,
        calls / seconds
    );
    Ok(())
}

fn repeat(
    connection: &Connection,
    options: &Options,
    command: Command,
    filling: &Bytes,
) -> Outcome<()> {
    for _ in 0..options.times {
        let mut call = connection.call()?;
        let mut head = vec![
            VERSION,
            command as u32,
            PIECE as u32,
            PIECE as u32,
            options.bytes,
        ];
        if command == Command::Rpc {
            head.push(options.bytes);
        }
        let head: Vec<u8> = head.into_iter().flat_map(u32::to_be_bytes).collect();
        call.write(head)?;
        if command != Command::Recv {
            give(&mut call, options.bytes as usize, filling)?;
        }
        call.finish()?;
        if command != Command::Send {
            take(&mut call, options.bytes as usize)?;
        }
        if word(&mut call)? != COOKIE || call.read()?.is_some() {
            return Err("the server's reply does not end as it should".into());
        }
    }
    Ok(())
}

/// Returns the CPU time of this process.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
