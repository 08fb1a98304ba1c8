//! Duration of the I/O stall when a path is lost: reads of 4 KiB with a queue depth of eight over
//! two paths to the same export. In each round one path falls silent or is reset. Prints one JSON
//! object per round.
//!
//! ```text
//!   cargo run --release -p evfs-multipath --example stall -- --rounds 50 SOCKET SOCKET
//! ```

use block::{BlockDevice, Buf, Completion, Op, Request, Wait};
use block_testing::Random;
use clap::Parser;
use lunpath::Lunpath;
use multipath::{Attributes, Config, Lun, PathSpec, Proof};
use path_nbd::{NbdPath, NbdUri, Options};
use pathsim::{Address, Pathsim};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

const DEPTH: u64 = 8;
const BYTES: usize = 4096;
const WITHIN: Duration = Duration::from_secs(5);
/// Warm-up time, long enough for the queue to learn the latency of its paths.
const WARM: Duration = Duration::from_millis(1200);
/// Pause after the resubmitted I/O has completed.
const REST: Duration = Duration::from_millis(100);

#[derive(Parser)]
struct Arguments {
    /// Unix sockets of two NBD servers that export the same data
    #[arg(required = true, num_args = 2)]
    sockets: Vec<PathBuf>,
    /// Number of rounds for each type of fault
    #[arg(long, default_value_t = 50)]
    rounds: usize,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let proxy = |n: usize, socket: &Path| {
        let at = socket.with_extension(format!("proxy{n}"));
        Pathsim::start(&Address::Unix(at), Address::Unix(socket.to_owned()))
    };
    let sockets = arguments.sockets.iter().enumerate();
    let proxies = sockets.map(|(n, socket)| proxy(n, socket));
    let proxies = proxies.collect::<Result<Vec<_>, _>>()?;
    for number in 0..arguments.rounds {
        for fault in ["hole", "rst"] {
            round(&proxies, number, fault)?;
        }
    }
    Ok(())
}

fn open(proxies: &[Pathsim]) -> Result<Lun, Failure> {
    let mut paths = Vec::new();
    for (n, proxy) in proxies.iter().enumerate() {
        let Address::Unix(at) = proxy.address() else {
            return Err("a proxy listens elsewhere".into());
        };
        let uri = NbdUri::parse(&format!("nbd+unix:///?socket={}", at.display()))?;
        paths.push(PathSpec {
            path: Arc::new(NbdPath::new(uri, Options::default())) as Arc<dyn Lunpath>,
            legacy: format!("c{n}t0d0"),
            enabled: true,
        });
    }
    Ok(Lun::open(Config {
        name: "disk1".into(),
        attributes: Attributes::default(),
        paths,
        identity: None,
        proof: Proof::Compare,
        connect_within: WITHIN,
        topology: Default::default(),
    })?)
}

fn round(proxies: &[Pathsim], number: usize, fault: &str) -> Result<(), Failure> {
    let lun = open(proxies)?;
    let (stop, worst) = (AtomicBool::new(false), AtomicU64::new(0));
    let victim = number % proxies.len();
    let outcome = std::thread::scope(|scope| {
        let load = scope.spawn(|| load(&lun, &stop, &worst));
        std::thread::sleep(WARM);
        let quiet = worst.swap(0, Acquire);
        let before = lun.status().log.last().map_or(0, |e| e.id);
        let began = Instant::now();
        let told = proxies[victim].run(fault);
        let failed_over = || {
            lun.status()
                .log
                .into_iter()
                .filter(|e| e.id > before && e.moved > 0)
        };
        while began.elapsed() < WITHIN {
            std::thread::sleep(Duration::from_millis(2));
            if failed_over().any(|e| e.stall_us > 0) {
                break;
            }
        }
        let noticed = began.elapsed();
        std::thread::sleep(REST);
        let events: Vec<_> = failed_over().collect();
        stop.store(true, Release);
        proxies[victim].run("pass").ok();
        let count = load.join().map_err(|_| "the load panicked");
        told.map(|_| (quiet, noticed, events, count))
    });
    let (quiet, noticed, events, count) = outcome?;
    let moved: u64 = events.iter().map(|e| e.moved).sum();
    let stall = events.iter().map(|e| e.stall_us).max();
    let line = json!({
        "label": fault,
        "round": number,
        "stall_us": stall,
        "moved": moved,
        "noticed_ms": noticed.as_millis() as u64,
        "worst_before_us": quiet,
        "worst_after_us": worst.load(Acquire),
        "ios": count??,
    });
    println!("{line}");
    Ok(())
}

/// Reads until `stop` is set. `worst` receives the longest latency in microseconds.
fn load(lun: &Lun, stop: &AtomicBool, worst: &AtomicU64) -> Result<u64, Failure> {
    let mut queue = lun.queue()?;
    let blocks = queue.info().size / BYTES as u64;
    let mut random = Random::new(1);
    let mut sent = [Instant::now(); DEPTH as usize];
    let mut free: Vec<_> = (0..DEPTH)
        .map(|tag| (tag, Buf::zeroed(BYTES).into()))
        .collect();
    let (mut done, mut count) = (Vec::new(), 0);
    while !stop.load(Acquire) || queue.in_flight() > 0 {
        while let Some((tag, bufs)) = free.pop().filter(|_| !stop.load(Acquire)) {
            let offset = random.below(blocks) * BYTES as u64;
            sent[tag as usize] = Instant::now();
            let op = Op::Read { offset, bufs };
            let taken = queue.submit(Request { tag, op });
            taken.map_err(|_| "the queue is full")?;
        }
        queue.reap(Wait::AtMost(Duration::from_millis(50)), &mut done)?;
        for Completion { tag, op, result } in done.drain(..) {
            result?;
            count += 1;
            let took = sent[tag as usize].elapsed().as_micros() as u64;
            worst.fetch_max(took, Release);
            if let Op::Read { bufs, .. } = op {
                free.push((tag, bufs));
            }
        }
    }
    Ok(count)
}
