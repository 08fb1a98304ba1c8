//! The server is killed under load repeatedly: 6 times, or `EVFS_KILLS` times.
//!
//! Goal: after each restart it serves without repair; every acknowledged store is present; present
//! data that was not acknowledged has a newer version; names are where they were put; clients
//! resume on their own; and no client mistakes data cached before the kill for the current data.
//!
//! Prints the time from the start of the new server to its first reply.

mod common;

use afs_client::{Client, Error, Options, PortSet};
use afs_proto::AfsFid;
use block_testing::Random;
use common::numbered::{content, numbers};
use common::process::{Disk, Process, free_port};
use common::{PATIENCE, seed};
use rx::Timeouts;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WRITERS: usize = 4;
const READERS: usize = 2;
const RENAMERS: usize = 2;
/// Size of each store in bytes: several pages and a partial one.
const BYTES: usize = 50_001;

/// File written by one client, with its expected state.
struct Written {
    fid: AfsFid,
    /// Number of the last store begun, of the last one acknowledged, and the version of the latter.
    begun: AtomicU64,
    answered: AtomicU64,
    version: AtomicU64,
}

impl Written {
    /// Stores once: overwrites the content, or truncates the file first.
    fn store(&self, client: &Client) -> Result<(), Error> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        let data = content(number, BYTES);
        let status = match number % 3 {
            0 => {
                client.store_data(self.fid, 0, &[], 0)?;
                client.store_data(self.fid, 0, &data, data.len() as u64)?
            }
            _ => client.store_data(self.fid, 0, &data, data.len() as u64)?,
        };
        self.version.store(status.data_version, Ordering::Relaxed);
        self.answered.store(number, Ordering::Release);
        Ok(())
    }

    /// Checks the file while no store is in progress. The last store was acknowledged, before the
    /// server was killed or after.
    fn check(&self, client: &Client) -> (Vec<u8>, u64) {
        let (data, status, _) = client.fetch_data(self.fid, 0, 1 << 20).expect("served");
        let answered = self.answered.load(Ordering::Acquire);
        assert!(answered == 0 || data.len() == BYTES, "{} bytes", data.len());
        assert!(data.is_empty() || numbers(&data) == (answered, answered));
        let version = self.version.load(Ordering::Relaxed);
        assert!(status.data_version >= version, "a version came back");
        (data, status.data_version)
    }

    /// Reads during stores: the data must not be older than the last store acknowledged before.
    fn look(&self, client: &Client, root: AfsFid) -> Result<(), Error> {
        let answered = self.answered.load(Ordering::Acquire);
        // A client learns only on a call that the server which made its promises was restarted.
        client.fetch_status(root)?;
        let data = client.read(self.fid, 0, 1 << 20)?;
        let (least, most) = numbers(&data);
        // While the file is truncated, it is empty or contains zeros.
        assert!(
            data.is_empty() || least == 0 || least >= answered,
            "{least} < {answered}"
        );
        assert!(most <= self.begun.load(Ordering::Relaxed), "never stored");
        Ok(())
    }
}

/// File renamed by one client, with the number in its name.
struct Renamed {
    directory: AfsFid,
    of: usize,
    number: u64,
}

impl Renamed {
    fn name(&self, number: u64) -> String {
        format!("r{}-{number}", self.of)
    }

    fn is_there(&self, client: &Client, number: u64) -> Result<bool, Error> {
        match client.lookup(self.directory, &self.name(number)) {
            Ok(_) => Ok(true),
            Err(Error::Abort(code)) if code.errno() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Renames once. A broken call may or may not have taken effect.
    fn rename(&mut self, client: &Client) -> Result<(), Error> {
        let (old, new) = (self.name(self.number), self.name(self.number + 1));
        let renamed = client.rename((self.directory, &old), (self.directory, &new));
        let done = match renamed {
            Ok(_) => true,
            // Retried by the protocol itself: the killed server had already done it.
            Err(Error::Broken(_) | Error::Abort(_)) => self.is_there(client, self.number + 1)?,
            Err(error) => return Err(error),
        };
        self.number += u64::from(done);
        assert!(
            self.is_there(client, self.number)?,
            "{} of {old}",
            self.number
        );
        Ok(())
    }
}

fn client(net: &PortSet, server: SocketAddr) -> Client {
    let options = Options {
        timeouts: Timeouts {
            dead: Duration::from_secs(5),
            ..Timeouts::default()
        },
        retry_time: PATIENCE,
        ..Options::default()
    };
    let made = net.client(Ipv4Addr::LOCALHOST, server, options);
    made.expect("a port")
}

/// Waits until the server answers.
fn wait_for(net: &PortSet, server: SocketAddr, root: AfsFid) {
    let until = Instant::now() + PATIENCE;
    let time = Duration::from_millis(200);
    loop {
        let options = Options {
            timeouts: Timeouts {
                dead: time,
                idle: Some(time),
                hard: Some(time),
                refused: None,
            },
            ..Options::default()
        };
        let probe = net.client(Ipv4Addr::LOCALHOST, server, options);
        if probe.expect("a port").fetch_status(root).is_ok() {
            return;
        }
        assert!(Instant::now() < until, "it does not serve");
    }
}

/// All clients and files of the load.
struct Load {
    root: AfsFid,
    written: Vec<Written>,
    renamed: Vec<Renamed>,
    writers: Vec<Client>,
    readers: Vec<Client>,
    renamers: Vec<Client>,
}

impl Load {
    fn new(net: &PortSet, server: SocketAddr, root: AfsFid) -> Load {
        let clients = |n| (0..n).map(|_| client(net, server)).collect::<Vec<_>>();
        let writers = clients(WRITERS);
        let written = writers.iter().enumerate().map(|(n, client)| Written {
            fid: client.create(root, &format!("f{n}")).expect("made").0,
            begun: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            version: AtomicU64::new(0),
        });
        let renamers = clients(RENAMERS);
        let renamed = renamers.iter().enumerate().map(|(of, client)| {
            let (directory, number) = (root, 0);
            let renamed = Renamed {
                directory,
                of,
                number,
            };
            client.create(root, &renamed.name(0)).expect("made");
            renamed
        });
        Load {
            root,
            written: written.collect(),
            renamed: renamed.collect(),
            readers: clients(READERS),
            writers,
            renamers,
        }
    }

    /// Works until stopped, across the death of the server caused by `kill`.
    fn work(&mut self, kill: impl FnOnce()) {
        let stop = AtomicBool::new(false);
        let ready = Barrier::new(WRITERS + READERS + RENAMERS + 1);
        let on = |act: &mut dyn FnMut() -> Result<(), Error>| {
            ready.wait();
            while !stop.load(Ordering::Relaxed) {
                act().expect("it goes on");
            }
        };
        let on = &on;
        std::thread::scope(|scope| {
            for (file, client) in self.written.iter().zip(&self.writers) {
                scope.spawn(move || on(&mut || file.store(client)));
            }
            let (root, written) = (self.root, &self.written);
            for client in &self.readers {
                scope.spawn(move || {
                    on(&mut || {
                        client.directory(root)?;
                        written.iter().try_for_each(|file| file.look(client, root))
                    })
                });
            }
            for (file, client) in self.renamed.iter_mut().zip(&self.renamers) {
                scope.spawn(move || on(&mut || file.rename(client)));
            }
            ready.wait();
            kill();
            stop.store(true, Ordering::Relaxed);
        });
    }

    /// Checks that the acknowledged state is present, and that cached copies match it.
    fn check(&self, net: &PortSet, server: SocketAddr) {
        let fresh = client(net, server);
        for reader in &self.readers {
            // The first call of a client ends its old promises.
            reader.fetch_status(self.root).expect("served");
            let pages = fresh.fetch_data(self.root, 0, 1 << 22).expect("served").0;
            let kept = reader.directory(self.root).expect("served");
            assert!(*kept == pages, "a directory from before");
        }
        for file in &self.written {
            let (data, version) = file.check(&fresh);
            for reader in &self.readers {
                let kept = reader.read(file.fid, 0, 1 << 20).expect("served");
                assert!(kept == data, "data from before, of version {version}");
            }
        }
        for file in &self.renamed {
            let there = |number| file.is_there(&fresh, number).expect("served");
            assert!(there(file.number) && !there(file.number + 1));
            assert!(file.number == 0 || !there(file.number - 1));
        }
    }
}

#[test]
fn a_server_that_is_killed_has_everything_it_answered() {
    let rounds = std::env::var("EVFS_KILLS")
        .ok()
        .and_then(|n| n.parse().ok());
    let rounds: usize = rounds.unwrap_or(6);
    let disk = Disk::new("kill", 256 << 20);
    let mut random = Random::new(seed(1));
    let port = free_port();
    let mut process = Some(Process::start(&disk.0, port));
    let (server, root) = process
        .as_ref()
        .map(|p| (p.address, p.root()))
        .expect("one");
    let net = PortSet::new();
    let mut load = Load::new(&net, server, root);
    let mut times = Vec::new();
    for round in 0..rounds {
        load.work(|| {
            std::thread::sleep(Duration::from_millis(30 + random.below(200)));
            process.take().expect("one").kill();
            if round % 10 == 9 {
                disk.check();
            }
            let begun = Instant::now();
            process = Some(Process::start(&disk.0, port));
            wait_for(&net, server, root);
            times.push(begun.elapsed());
            std::thread::sleep(Duration::from_millis(random.below(100)));
        });
        load.check(&net, server);
    }
    process.take().expect("one").kill();
    disk.check();
    let stores: u64 = load
        .written
        .iter()
        .map(|f| f.answered.load(Ordering::Relaxed))
        .sum();
    let renames: u64 = load.renamed.iter().map(|f| f.number).sum();
    assert!(stores > 0 && renames > 0, "nothing was tried");
    times.sort_unstable();
    let at = |part: usize| times[(times.len() - 1) * part / 100];
    println!(
        "{rounds} times; served again after {:?} (median), {:?} (90 %), {:?} (worst); {stores} stores, {renames} renames",
        at(50),
        at(90),
        at(100)
    );
}
