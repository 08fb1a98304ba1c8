//! Shared test support: a cell in memory or in a separate process, and its clients.
#![allow(dead_code)] // Each test uses only a part.

pub mod calls;
pub mod numbered;
pub mod process;
pub mod relay;

use afs_client::{Error, PortSet};
use afs_proto::cb;
use afs_proto::fs::{Reply, Request};
use afs_proto::{Abort, AfsFid, Reader, to_bytes};
use afs_server::{Config, Kind, Server};
use block::BlockDevice;
use block_testing::Mem;
use cache::Cache;
use fs::{Fs, Options};
use rx::Timeouts;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Longest wait for an event that must happen, on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Name of the volume used by the tests.
pub const VOLUME: &str = "root.cell";

/// Size of a server's cache in bytes.
pub const CACHE_BYTES: u64 = 32 << 20;

/// Formats a file system that contains the volume.
pub fn format(device: &Arc<dyn BlockDevice>) {
    Fs::format(Arc::clone(device), "cell").expect("formatted");
    let fs = Fs::open(Arc::clone(device), Options::default()).expect("open");
    fs.create_fileset(VOLUME).expect("a fileset");
    fs.close().expect("closed");
}

/// Server on a device.
pub struct Cell {
    pub server: Server,
    pub fs: Arc<Fs>,
}

/// Returns a configuration that permits anonymous writes.
pub fn config() -> Config {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    Config {
        file_service: vec![any],
        location_service: vec![any],
        anonymous_write: true,
        workers: 16,
        // Disables repeated breaks, so that tests can predict the notifications of a client.
        tell_again: Duration::from_secs(3600),
        ..Config::default()
    }
}

impl Cell {
    /// Creates a cell in memory.
    pub fn new() -> Cell {
        Cell::with(config())
    }

    pub fn with(config: Config) -> Cell {
        let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(256 << 20, 4096));
        format(&device);
        Cell::on(&device, config)
    }

    /// Starts a cell on a formatted device.
    pub fn on(device: &Arc<dyn BlockDevice>, config: Config) -> Cell {
        Cell::try_on(device, config).expect("a server")
    }

    /// Like [`Cell::on`], but returns an error, for example if the address is in use.
    pub fn try_on(
        device: &Arc<dyn BlockDevice>,
        config: Config,
    ) -> Result<Cell, afs_server::StartError> {
        let fs = Fs::open(Arc::clone(device), Options::default()).expect("open");
        let fs = Arc::new(fs);
        let cache = Cache::new(cache::Config::new(CACHE_BYTES)).expect("a cache");
        let server = Server::start(config, Arc::clone(&fs), cache)?;
        Ok(Cell { server, fs })
    }

    /// Returns the number of the volume, its replica or its backup.
    pub fn volume(&self, kind: Kind) -> u32 {
        let name = format!("{VOLUME}{}", kind.suffix());
        let found = self.server.volumes().find(name.as_bytes());
        found.expect("the volume").id
    }

    pub fn root(&self) -> AfsFid {
        AfsFid {
            volume: self.volume(Kind::ReadWrite),
            vnode: 1,
            unique: 1,
        }
    }

    /// Creates a client that answers callbacks.
    pub fn client(&self) -> Client {
        Client::at(self, [127, 0, 0, 1].into())
    }
}

/// Notifications received by a client.
#[derive(Default)]
pub struct Told {
    /// Files whose promises were broken.
    pub broken: Vec<AfsFid>,
    /// Number of times that all promises ended.
    pub ended: usize,
    /// Number of identity queries.
    pub asked: usize,
}

/// Callback service of a client.
#[derive(Default)]
pub struct Ears {
    pub told: Mutex<Told>,
    changed: Condvar,
    /// Answer nothing: calls are received and block the port.
    pub deaf: AtomicBool,
    /// Calls that are currently blocked.
    held: AtomicUsize,
}

impl Ears {
    fn hear(&self, request: &cb::Request) {
        if self.deaf.load(Ordering::Relaxed) {
            // Calls received while deaf are not recorded.
            self.held.fetch_add(1, Ordering::Relaxed);
            while self.deaf.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
            self.held.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let mut told = self.told.lock().expect("told");
        match request {
            cb::Request::CallBack { fids, .. } => told.broken.extend(fids.iter().copied()),
            cb::Request::TellMeAboutYourself {} => told.asked += 1,
            cb::Request::InitCallBackState3 { .. } => told.ended += 1,
            other => panic!("a client was asked {other:?}"),
        }
        drop(told);
        self.changed.notify_all();
    }

    /// Returns the number of calls that are received and not answered.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Waits for notifications that satisfy `what`.
    pub fn wait(&self, what: impl Fn(&Told) -> bool) {
        let until = Instant::now() + PATIENCE;
        let mut told = self.told.lock().expect("told");
        while !what(&told) {
            let left = until.checked_duration_since(Instant::now());
            let left = left.expect("it was not told in time");
            told = self.changed.wait_timeout(told, left).expect("told").0;
        }
    }

    /// Takes the files whose promises were broken.
    pub fn take(&self) -> Vec<AfsFid> {
        std::mem::take(&mut self.told.lock().expect("told").broken)
    }
}

/// Client of the file service.
pub struct Client {
    pub own: afs_client::Client,
    pub ears: Arc<Ears>,
    pub root: AfsFid,
}

impl Client {
    /// Creates a client at a local address.
    pub fn at(cell: &Cell, address: Ipv4Addr) -> Client {
        let server = cell.server.file_service();
        Client::new(address, server, cell.root(), Timeouts::default())
    }

    /// Creates a client, with short timeouts, of a server in another process.
    pub fn of(server: SocketAddr, volume: u32) -> Client {
        let root = AfsFid {
            volume,
            vnode: 1,
            unique: 1,
        };
        let timeouts = Timeouts {
            dead: Duration::from_secs(2),
            ..Timeouts::default()
        };
        Client::new(Ipv4Addr::LOCALHOST, server, root, timeouts)
    }

    fn new(address: Ipv4Addr, server: SocketAddr, root: AfsFid, timeouts: Timeouts) -> Client {
        let ears = Arc::new(Ears::default());
        let hears = Arc::clone(&ears);
        let options = afs_client::Options {
            timeouts,
            observer: Some(Box::new(move |request| hears.hear(request))),
            ..Default::default()
        };
        // Each client has its own port, because a deaf client blocks the threads of its port.
        let own = PortSet::new().client(address, server, options);
        Client {
            own: own.expect("a port"),
            ears,
            root,
        }
    }

    /// Makes a call without file data.
    pub fn ask(&self, request: &Request<'_>) -> Result<Answer, Abort> {
        let bytes = self.exchange(to_bytes(request), &[], 64 << 10)?;
        let opcode = request.opcode();
        Ok(Answer { opcode, bytes })
    }

    /// Makes a call: sends arguments and data, returns the complete reply.
    pub fn exchange(&self, head: Vec<u8>, data: &[u8], most: usize) -> Result<Vec<u8>, Abort> {
        plain(self.own.exchange(head, data, most))
    }
}

/// Unwraps the result of a call to a server that keeps running.
pub fn plain<T>(outcome: afs_client::Result<T>) -> Result<T, Abort> {
    outcome.map_err(|error| match error {
        Error::Abort(code) => code,
        error => panic!("a call broke: {error}"),
    })
}

impl Drop for Client {
    /// Dropping the port waits for the handlers of its calls.
    fn drop(&mut self) {
        self.ears.deaf.store(false, Ordering::Relaxed);
    }
}

/// Reply to a call.
pub struct Answer {
    opcode: u32,
    bytes: Vec<u8>,
}

impl Answer {
    pub fn reply(&self) -> Reply<'_> {
        let mut from = Reader::new(&self.bytes);
        let reply = afs_proto::fs::read_reply(self.opcode, &mut from).expect("a reply");
        assert!(from.rest().is_empty(), "more than the reply");
        reply
    }
}

/// Returns the seed of a random test: `EVFS_SEED`, or `default`.
pub fn seed(default: u64) -> u64 {
    let seed = std::env::var("EVFS_SEED").ok().and_then(|s| s.parse().ok());
    let seed = seed.unwrap_or(default);
    println!("EVFS_SEED={seed}");
    seed
}
