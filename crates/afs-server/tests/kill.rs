//! The server is killed under load, again and again: 6 times, or `EVFS_KILLS` times.
//!
//! Goal: after each time it serves again without repair; every store that was answered is there; what
//! is there and was not answered has a newer version; names are where they were put; clients go on where
//! they were by themselves; and who kept data from before never takes it for what is there now.
//!
//! Prints how long it took from the start of the new server to its first answer.

mod common;

use afs_client::{Client, Error, Net, Options};
use afs_proto::AfsFid;
use block::Random;
use common::process::{Disk, Process, free_port, serve_if_told};
use common::{PATIENCE, seed};
use rx::Timeouts;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WRITERS: usize = 4;
const READERS: usize = 2;
const RENAMERS: usize = 2;
/// Bytes of each store: several pages, and part of one.
const BYTES: usize = 50_001;

/// Serves the file that the environment names, until it is killed.
#[test]
fn serves_when_it_is_told_to() {
    serve_if_told();
}

/// A file that one client writes, and what is known of it.
struct Written {
    fid: AfsFid,
    /// Number of the last store that was begun, of the last that was answered, and the version it gave.
    begun: AtomicU64,
    answered: AtomicU64,
    version: AtomicU64,
}

fn content(number: u64) -> Vec<u8> {
    let mut all = number.to_be_bytes().repeat(BYTES / 8 + 1);
    all.truncate(BYTES);
    all
}

/// The least and the greatest of the numbers in a content.
fn numbers(data: &[u8]) -> (u64, u64) {
    let numbers = data.as_chunks().0.iter().map(|w| u64::from_be_bytes(*w));
    numbers.fold((u64::MAX, 0), |(least, most), n| {
        (least.min(n), most.max(n))
    })
}

impl Written {
    /// Stores once: over what is there, or at first cut to nothing and then at the end.
    fn store(&self, client: &Client) -> Result<(), Error> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        let data = content(number);
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

    /// Nobody stores now, and the last store was answered, before the server was killed or after.
    fn check(&self, client: &Client) -> (Vec<u8>, u64) {
        let (data, status, _) = client.fetch_data(self.fid, 0, 1 << 20).expect("served");
        let answered = self.answered.load(Ordering::Acquire);
        assert!(answered == 0 || data.len() == BYTES, "{} bytes", data.len());
        assert!(data.is_empty() || numbers(&data) == (answered, answered));
        let version = self.version.load(Ordering::Relaxed);
        assert!(status.data_version >= version, "a version came back");
        (data, status.data_version)
    }

    /// A reader, while others store: nothing older than what was answered before it asked.
    fn look(&self, client: &Client, root: AfsFid) -> Result<(), Error> {
        let answered = self.answered.load(Ordering::Acquire);
        // Until it calls, a client cannot know that the server which promised to tell it is gone.
        client.fetch_status(root)?;
        let data = client.read(self.fid, 0, 1 << 20)?;
        let (least, most) = numbers(&data);
        // What is cut at the moment is empty, or zeros.
        assert!(
            data.is_empty() || least == 0 || least >= answered,
            "{least} < {answered}"
        );
        assert!(most <= self.begun.load(Ordering::Relaxed), "never stored");
        Ok(())
    }
}

/// A file that one client renames, and the number in its name.
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

    /// Renames once. A call that broke was done or not.
    fn rename(&mut self, client: &Client) -> Result<(), Error> {
        let (old, new) = (self.name(self.number), self.name(self.number + 1));
        let renamed = client.rename((self.directory, &old), (self.directory, &new));
        let done = match renamed {
            Ok(_) => true,
            // Tried again by the protocol itself: done before, by the server that went.
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

fn client(net: &Net, server: SocketAddr) -> Client {
    let options = Options {
        timeouts: Timeouts {
            dead: Duration::from_secs(5),
            ..Timeouts::default()
        },
        patience: PATIENCE,
        ..Options::default()
    };
    let made = net.client(Ipv4Addr::LOCALHOST, server, options);
    made.expect("a port")
}

/// Waits until the server answers.
fn wait_for(net: &Net, server: SocketAddr, root: AfsFid) {
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

/// All that works on the server.
struct Load {
    root: AfsFid,
    written: Vec<Written>,
    renamed: Vec<Renamed>,
    writers: Vec<Client>,
    readers: Vec<Client>,
    renamers: Vec<Client>,
}

impl Load {
    fn new(net: &Net, server: SocketAddr, root: AfsFid) -> Load {
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

    /// Works until it is told to stop, across the death of the server that `kill` brings about.
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

    /// Everything is as it was answered, and who has it from before has it as it is.
    fn check(&self, net: &Net, server: SocketAddr) {
        let fresh = client(net, server);
        for reader in &self.readers {
            // Whoever calls first is told that promises are over.
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
    let net = Net::new();
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
