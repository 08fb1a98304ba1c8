//! Servers and clients of the tests, and a relay that drops, duplicates and reorders datagrams.
#![allow(dead_code)]

pub use block_testing::Random;
use rx::{Abort, Call, Connection, Error, Port, Service, Settings, Timeouts};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

pub const SERVICE: u16 = 40;

/// Longest wait for an event that must happen, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a port with `handler` and the given number of sockets.
pub fn serve(
    sockets: usize,
    handler: impl Fn(&mut Call) -> Result<(), Abort> + Send + Sync + 'static,
) -> Port {
    let settings = Settings {
        sockets,
        ..Settings::default()
    };
    serve_with(&settings, handler)
}

pub fn serve_with(
    settings: &Settings,
    handler: impl Fn(&mut Call) -> Result<(), Abort> + Send + Sync + 'static,
) -> Port {
    let service = Service {
        id: SERVICE,
        handler: Arc::new(handler),
    };
    Port::open(settings, vec![service]).unwrap()
}

pub fn client() -> Port {
    Port::open(&Settings::default(), Vec::new()).unwrap()
}

pub fn connect(client: &Port, server: &Port) -> Connection {
    client.connect(server.address(), SERVICE, Timeouts::default())
}

/// Echoes the request.
pub fn echo(call: &mut Call) -> Result<(), Abort> {
    let mut all = Vec::new();
    while let Some(piece) = call.read()? {
        all.push(piece);
    }
    for piece in all {
        call.write(piece)?;
    }
    Ok(())
}

/// Returns pseudo-random bytes that depend on a tag.
pub fn bytes(tag: u64, len: usize) -> Vec<u8> {
    let mut all = vec![0; len];
    Random::new(tag).fill(&mut all);
    all
}

/// Makes a call whose reply must equal its request.
pub fn check_echo(connection: &Connection, tag: u64, len: usize) -> Result<(), Error> {
    let request = bytes(tag, len);
    let reply = connection.request(request.clone(), len)?;
    assert!(
        reply == request,
        "call {tag} of {len} bytes came back changed"
    );
    Ok(())
}

/// Returns the seed of this run: `EVFS_SEED`, or one that is printed with a failure.
pub fn seed() -> u64 {
    let given = std::env::var("EVFS_SEED").ok().and_then(|s| s.parse().ok());
    let seed = given.unwrap_or_else(|| u64::from(std::process::id()) << 20 | 1);
    println!("EVFS_SEED={seed}");
    seed
}

/// A relay in front of a server, for one client: drops, duplicates and reorders the given number of
/// each 1000 datagrams.
pub struct Relay {
    pub address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    pub fn new(server: SocketAddr, per_mille: u64, seed: u64) -> Relay {
        let front = UdpSocket::bind("127.0.0.1:0").unwrap();
        let back = UdpSocket::bind("127.0.0.1:0").unwrap();
        back.connect(server).unwrap();
        for socket in [&front, &back] {
            socket.set_nonblocking(true).unwrap();
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (address, stopped) = (front.local_addr().unwrap(), Arc::clone(&stop));
        let mut random = Random::new(seed);
        let run = move || {
            let (mut client, mut buffer) = (None, vec![0; 65_536]);
            let mut held: [Option<Vec<u8>>; 2] = [None, None];
            while !stopped.load(Ordering::Relaxed) {
                let mut any = false;
                if let Ok((len, from)) = front.recv_from(&mut buffer) {
                    (any, client) = (true, Some(from));
                    let sent = pass(&mut random, per_mille, &buffer[..len], &mut held[0]);
                    sent.iter().for_each(|d| drop(back.send(d)));
                }
                if let (Ok(len), Some(client)) = (back.recv(&mut buffer), client) {
                    any = true;
                    let sent = pass(&mut random, per_mille, &buffer[..len], &mut held[1]);
                    sent.iter().for_each(|d| drop(front.send_to(d, client)));
                }
                if !any {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        };
        Relay {
            address,
            stop,
            thread: Some(std::thread::spawn(run)),
        }
    }
}

/// Returns the datagrams to forward when one arrives: none, it, two copies, or it before the one
/// that was held back.
fn pass(
    random: &mut Random,
    per_mille: u64,
    datagram: &[u8],
    held: &mut Option<Vec<u8>>,
) -> Vec<Vec<u8>> {
    let mut happens = || random.below(1000) < per_mille;
    let (lost, twice, late) = (happens(), happens(), happens());
    let mut out = Vec::new();
    if late && held.is_none() {
        *held = Some(datagram.to_vec());
        return out;
    }
    if !lost {
        out.push(datagram.to_vec());
    }
    if twice {
        out.push(datagram.to_vec());
    }
    out.extend(held.take());
    out
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
