//! A server with a keeper is killed under load repeatedly: 12 times, or `EVFS_KILLS` times.
//!
//! Goal: no call of a client fails, none is carried out twice, and none is carried out with another
//! result: a name that was made is not there before, and a name that is removed is there. Every
//! acknowledged store is present at once, and no client uses data that is older than the last
//! acknowledged store, although it makes no call before it uses its cache.
//!
//! Clients retry only after codes on which clients of AFS retry by themselves. Prints how long calls
//! took that met a kill.

mod common;

use afs_client::{Client, Error, Options, PortSet};
use afs_proto::dir::Directory;
use afs_proto::{Abort, AfsFid};
use block_testing::Random;
use common::numbered::{content, numbers};
use common::process::{Disk, free_port};
use common::{PATIENCE, seed};
use rx::Timeouts;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const WRITERS: usize = 3;
const READERS: usize = 2;
const NAMERS: usize = 3;
/// Size of each store in bytes: several windows, and a partial page.
const BYTES: usize = 300_001;

/// Keeper of a server; both end with it.
struct Survivor {
    keeper: Child,
    _stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// The server: its address, its volume, and its process.
    address: SocketAddr,
    volume: u32,
    server: u32,
}

impl Survivor {
    fn start(disk: &Disk, port: u16) -> Survivor {
        let mut keeper = Command::new(test_support::example("survivor"))
            .arg(&disk.0)
            .arg(port.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut survivor = Survivor {
            _stdin: keeper.stdin.take().expect("piped"),
            stdout: BufReader::new(keeper.stdout.take().expect("piped")),
            keeper,
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            volume: 0,
            server: 0,
        };
        survivor.read();
        survivor
    }

    /// Waits until a server serves.
    fn read(&mut self) {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a line");
        let words: Vec<&str> = line.split_whitespace().collect();
        let [address, volume, server] = words[..] else {
            panic!("no server any more: {line:?}");
        };
        self.address = address.parse().expect("an address");
        self.volume = volume.parse().expect("a volume");
        self.server = server.parse().expect("a process");
    }

    fn kill(&self) {
        let pid = rustix::process::Pid::from_raw(self.server as i32).expect("a process");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    }

    fn root(&self) -> AfsFid {
        AfsFid {
            volume: self.volume,
            vnode: 1,
            unique: 1,
        }
    }
}

impl Drop for Survivor {
    fn drop(&mut self) {
        // The keeper first, so that it starts no other server.
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
        if let Some(pid) = rustix::process::Pid::from_raw(self.server as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

fn client(net: &PortSet, server: SocketAddr) -> Client {
    let options = Options {
        timeouts: Timeouts {
            dead: PATIENCE,
            ..Timeouts::default()
        },
        ..Options::default()
    };
    let made = net.client(Ipv4Addr::LOCALHOST, server, options);
    made.expect("a port")
}

/// What all threads share.
struct Load {
    root: AfsFid,
    stop: AtomicBool,
    /// Longest time that each call took which took longer than usual.
    slow: Mutex<Vec<Duration>>,
    calls: AtomicU64,
}

impl Load {
    /// Makes calls until the load ends.
    fn run(&self, mut act: impl FnMut()) {
        while !self.stop.load(SeqCst) {
            let begun = Instant::now();
            act();
            self.calls.fetch_add(1, SeqCst);
            let took = begun.elapsed();
            if took > Duration::from_millis(150) {
                self.slow.lock().expect("no panic").push(took);
            }
        }
    }
}

/// Number of calls that were made again because their code asks clients for it.
static AGAIN: AtomicU64 = AtomicU64::new(0);

/// Makes a call, again after the codes on which clients of AFS wait and retry by themselves.
#[track_caller]
fn made<T>(mut call: impl FnMut() -> Result<T, Error>) -> T {
    loop {
        match call() {
            Err(Error::Abort(Abort::VBUSY | Abort::VRESTARTING)) => {
                AGAIN.fetch_add(1, SeqCst);
                std::thread::sleep(Duration::from_millis(50));
            }
            result => return result.expect("a result as without kills"),
        }
    }
}

/// A file with one writer.
struct Written {
    fid: AfsFid,
    begun: AtomicU64,
    answered: AtomicU64,
}

impl Written {
    fn store(&self, client: &Client) {
        let number = self.begun.fetch_add(1, SeqCst) + 1;
        let data = content(number, BYTES);
        // Some stores are a single packet.
        let (at, part) = match number % 3 {
            0 => (0, &data[..1000]),
            _ => (0, &data[..]),
        };
        made(|| client.store_data(self.fid, at, part, data.len() as u64));
        self.answered.store(number, SeqCst);
    }

    /// Reads from the cache of a client, if it is valid.
    fn look(&self, client: &Client) {
        let answered = self.answered.load(SeqCst);
        let data = made(|| client.read(self.fid, 0, 1 << 20));
        let (_, most) = numbers(&data);
        let first = numbers(&data[..data.len().min(1000)]);
        assert!(
            first.0 >= answered,
            "{first:?}, but {answered} was acknowledged"
        );
        assert!(most <= self.begun.load(SeqCst), "never stored");
    }
}

/// Makes, moves and removes names. Each call must have the result that it has without kills.
fn use_names(client: &Client, root: AfsFid, of: usize, number: u64) {
    let name = |what: &str| format!("{what}-{of}-{number}");
    let (file, _) = made(|| client.create(root, &name("file")));
    let (directory, _) = made(|| client.make_dir(root, &name("directory")));
    made(|| client.symlink(root, &name("symlink"), "to", 0o777));
    made(|| client.link(root, &name("link"), file));
    made(|| client.rename((root, &name("file")), (root, &name("moved"))));
    made(|| client.rename((root, &name("symlink")), (directory, "inside")));
    assert_eq!(made(|| client.lookup(root, &name("moved"))), file);
    assert_eq!(made(|| client.lookup(root, &name("link"))), file);
    let gone = client.lookup(root, &name("file"));
    let gone = gone.expect_err("renamed").code();
    assert!(gone == Some(Abort::VBUSY) || gone.and_then(|c| c.errno()) == Some(libc::ENOENT));
    made(|| client.remove(root, &name("link")));
    made(|| client.remove(root, &name("moved")));
    made(|| client.remove(directory, "inside"));
    made(|| client.remove_dir(root, &name("directory")));
    let (again, _) = made(|| client.create(root, &name("file")));
    assert_ne!(again, file);
    made(|| client.remove(root, &name("file")));
}

#[test]
fn clients_of_a_server_with_a_keeper_see_a_pause_and_no_more() {
    let kills = std::env::var("EVFS_KILLS").ok();
    let kills: usize = kills.and_then(|n| n.parse().ok()).unwrap_or(12);
    let disk = Disk::new("survive", 256 << 20);
    let mut random = Random::new(seed(1));
    let mut survivor = Survivor::start(&disk, free_port());
    let (server, root) = (survivor.address, survivor.root());
    let net: Arc<PortSet> = PortSet::new();
    let load = Load {
        root,
        stop: AtomicBool::new(false),
        slow: Mutex::default(),
        calls: AtomicU64::new(0),
    };
    // All clients stay: one that goes away with promises delays changes.
    let maker = client(&net, server);
    let written: Vec<Written> = (0..WRITERS)
        .map(|n| {
            let fid = made(|| maker.create(root, &format!("f{n}"))).0;
            made(|| maker.store_data(fid, 0, &content(0, BYTES), BYTES as u64));
            Written {
                fid,
                begun: AtomicU64::new(0),
                answered: AtomicU64::new(0),
            }
        })
        .collect();
    let clients = |n| (0..n).map(|_| client(&net, server)).collect::<Vec<_>>();
    let (writers, readers) = (clients(WRITERS), clients(READERS));
    let namers = clients(NAMERS);
    let served = std::thread::scope(|scope| {
        let (load, written) = (&load, &written);
        for (file, client) in written.iter().zip(&writers) {
            scope.spawn(move || load.run(|| file.store(client)));
        }
        for client in &readers {
            let look = move || written.iter().for_each(|file| file.look(client));
            scope.spawn(move || load.run(look));
        }
        for (of, client) in namers.iter().enumerate() {
            let mut number = 0;
            let act = move || {
                number += 1;
                use_names(client, load.root, of, number);
            };
            scope.spawn(move || load.run(act));
        }
        // Also if this thread fails, the others end.
        let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut served = Vec::new();
            for _ in 0..kills {
                std::thread::sleep(Duration::from_millis(50 + random.below(400)));
                let begun = Instant::now();
                survivor.kill();
                survivor.read();
                served.push(begun.elapsed());
            }
            std::thread::sleep(Duration::from_millis(300));
            served
        }));
        load.stop.store(true, SeqCst);
        killed
    });
    let mut served = served.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let fresh = maker;
    for file in &written {
        let (data, ..) = fresh.fetch_data(file.fid, 0, 1 << 20).expect("served");
        let last = file.answered.load(SeqCst);
        assert_eq!(file.begun.load(SeqCst), last);
        assert_eq!(numbers(&data[..1000]), (last, last));
        assert_eq!(data.len(), BYTES);
    }
    let pages = fresh.directory(root).expect("served");
    let pages = Directory::verify(&pages).expect("a directory");
    let mut names: Vec<&[u8]> = pages.entries().map(|entry| entry.name).collect();
    names.sort_unstable();
    let wanted: [&[u8]; 2 + WRITERS] = [b".", b"..", b"f0", b"f1", b"f2"];
    assert_eq!(names, wanted, "each name once");
    drop((survivor, fresh));
    disk.check();
    let mut slow = load.slow.into_inner().expect("no panic");
    slow.sort_unstable();
    served.sort_unstable();
    let at =
        |of: &[Duration], part: usize| of.get(of.len().saturating_sub(1) * part / 100).copied();
    println!(
        "{kills} kills; served again after {:?} (median), {:?} (worst); {} calls or groups, {} made \
         again, {} of more than 150 ms: {:?} (median), {:?} (90 %), {:?} (worst)",
        at(&served, 50),
        at(&served, 100),
        load.calls.load(SeqCst),
        AGAIN.load(SeqCst),
        slow.len(),
        at(&slow, 50),
        at(&slow, 90),
        at(&slow, 100)
    );
}
