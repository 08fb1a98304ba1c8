//! Servers that die between any two steps that a successor can see, and tables that are damaged.
//!
//! | variable | effect |
//! |---|---|
//! | `EVFS_DEATHS=1000` | cases in which three servers in a row die at random steps (default: 30) |
//! | `EVFS_FLIPS=10000` | cases with a damaged table (default: 60) |

use super::Keep;
use crate::{Config, Export, Listen, Server};
use keeper::{Begin, Kept, Link, Side};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Directory of the files of a case; set in the servers.
const DIR: &str = "EVFS_DEATHS_DIR";
/// Steps after which servers die, in their order: `12,7`.
const STEPS: &str = "EVFS_DEATHS_STEPS";
/// Seed of the bits that are flipped in what the first server leaves; 0 for none.
const FLIP: &str = "EVFS_DEATHS_FLIP";

/// State of a keeper.
struct Left {
    link: Link,
    kept: Mutex<Kept>,
    generation: u32,
}

impl Keep for Left {
    fn keep(&self, name: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.link.replace(name, descriptors)
    }

    fn close(&self, name: &str) -> io::Result<()> {
        self.link.close(name)
    }

    fn take(&self, name: &str) -> Vec<OwnedFd> {
        let left = self.kept.lock().unwrap().take(name);
        let seed: u64 = std::env::var(FLIP).unwrap().parse().unwrap();
        if self.generation == 1 && seed != 0 {
            let table = match name {
                "nbd-table" => left.first(),
                "nbd-worker-0" => left.last(),
                _ => None,
            };
            if let Some(table) = table {
                flip(table.try_clone().unwrap(), seed);
            }
        }
        left
    }

    fn is_successor(&self) -> bool {
        self.generation > 0
    }
}

/// Flips a bit in one to three of the words that are in use.
fn flip(table: OwnedFd, seed: u64) {
    let memory = survival::Memory::adopt(table).unwrap();
    let words = memory.words().iter();
    let used: Vec<_> = words.filter(|word| word.load(SeqCst) != 0).collect();
    let mut random = Random(seed);
    let times = if used.is_empty() {
        0
    } else {
        random.below(3) + 1
    };
    for _ in 0..times {
        let word = used[random.below(used.len() as u64) as usize];
        word.fetch_xor(1 << random.below(64), SeqCst);
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        let factor = 6_364_136_223_846_793_005;
        self.0 = self
            .0
            .wrapping_mul(factor)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Serves the file `disk` until a signal ends the process.
fn serve(dir: &Path, begin: Begin) -> ! {
    let steps = std::env::var(STEPS).unwrap();
    let mine = steps.split(',').nth(begin.generation as usize);
    if let Some(mine) = mine.filter(|mine| !mine.is_empty()) {
        let died = dir.join(format!("died-{}", begin.generation));
        crate::step::deaths::die_after(mine.parse().unwrap(), died);
    }
    let options = path_file::Options {
        lock: path_file::Lock::None,
        ..path_file::Options::default()
    };
    let device = path_file::FileDevice::open(&dir.join("disk"), &options).unwrap();
    let port: u16 = std::fs::read_to_string(dir.join("port"))
        .unwrap()
        .parse()
        .unwrap();
    let config = Config {
        listen: vec![
            Listen::Unix(dir.join("socket")),
            Listen::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        ],
        ..Config::default()
    };
    let export = Export {
        name: "v".into(),
        description: String::new(),
        device,
        read_only: false,
    };
    let left = Arc::new(Left {
        link: begin.link,
        kept: Mutex::new(begin.kept),
        generation: begin.generation,
    });
    let keep = Arc::clone(&left) as Arc<dyn Keep>;
    let _server = Server::start_kept(config, vec![export], Some(keep)).unwrap();
    left.link.serving().unwrap();
    File::create(dir.join("serves")).unwrap();
    loop {
        std::thread::park();
    }
}

/// A keeper with its servers.
struct Case {
    dir: tempfile::TempDir,
    keeper: std::process::Child,
    steps: String,
    /// Seed of the damage; 0 for none.
    flip: u64,
}

/// The server has closed the connection, which it may do with a damaged table.
struct Closed;

impl Drop for Case {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.keeper),
            rustix::process::Signal::TERM,
        );
        let _ = self.keeper.wait();
    }
}

impl Case {
    fn new(steps: &str, flip: u64) -> Case {
        let dir = tempfile::tempdir().unwrap();
        File::create(dir.path().join("disk"))
            .unwrap()
            .set_len(4 << 20)
            .unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        std::fs::write(dir.path().join("port"), port.to_string()).unwrap();
        let log = File::create(dir.path().join("log")).unwrap();
        let keeper = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST, "--nocapture"])
            .env(DIR, dir.path())
            .env(STEPS, steps)
            .env(FLIP, flip.to_string())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let case = Case {
            dir,
            keeper,
            steps: steps.to_owned(),
            flip,
        };
        let began = Instant::now();
        while !case.dir.path().join("serves").exists() {
            assert!(began.elapsed() < Duration::from_secs(30), "{}", case.log());
            std::thread::sleep(Duration::from_millis(1));
        }
        case
    }

    fn log(&self) -> String {
        let log = std::fs::read_to_string(self.dir.path().join("log"));
        let (steps, flip) = (&self.steps, self.flip);
        format!("steps {steps}, flip {flip}: {}", log.unwrap_or_default())
    }

    fn died(&self, generation: u32) -> bool {
        self.dir.path().join(format!("died-{generation}")).exists()
    }

    /// Connects and negotiates. A server that dies before it has left the connection closes it.
    fn connect(&self, unix: bool) -> File {
        for _ in 0..20 {
            let socket: OwnedFd = if unix {
                let connected = UnixStream::connect(self.dir.path().join("socket"));
                let connected = connected.unwrap_or_else(|e| panic!("{e}: {}", self.log()));
                connected.set_read_timeout(Some(PATIENCE)).unwrap();
                connected.into()
            } else {
                let port = std::fs::read_to_string(self.dir.path().join("port")).unwrap();
                let connected = TcpStream::connect(format!("127.0.0.1:{port}"));
                let connected = connected.unwrap_or_else(|e| panic!("{e}: {}", self.log()));
                connected.set_read_timeout(Some(PATIENCE)).unwrap();
                connected.into()
            };
            let mut socket = File::from(socket);
            let mut first = [0; 1];
            match socket.read(&mut first) {
                Ok(1) => {}
                Ok(_) => continue,
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => continue,
                Err(e) => panic!("{e}: {}", self.log()),
            }
            assert_eq!(self.take::<17>(&socket)[..15], b"BDMAGICIHAVEOPT"[..]);
            return socket;
        }
        panic!("never connected: {}", self.log())
    }

    fn take<const N: usize>(&self, socket: &File) -> [u8; N] {
        let mut bytes = [0; N];
        self.fill(socket, &mut bytes);
        bytes
    }

    fn fill(&self, mut socket: &File, bytes: &mut [u8]) {
        if let Err(e) = socket.read_exact(bytes) {
            self.ended(&e);
        }
    }

    /// Ends the use of a connection that was closed.
    fn ended(&self, error: &io::Error) -> ! {
        use io::ErrorKind as K;
        let closed = matches!(
            error.kind(),
            K::UnexpectedEof | K::ConnectionReset | K::BrokenPipe
        );
        if closed && self.flip != 0 {
            std::panic::resume_unwind(Box::new(Closed));
        }
        panic!("{error}: {}", self.log())
    }

    /// Uses the volume on one connection; with a damaged table, it may be closed.
    fn try_to_use_it(&self, unix: bool) {
        let used = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.use_it(unix)));
        if let Err(other) = used
            && !other.is::<Closed>()
        {
            std::panic::resume_unwind(other);
        }
        self.verify_disk();
    }

    /// Checks that the disk has nothing but what clients have written, and where.
    fn verify_disk(&self) {
        let disk = std::fs::read(self.dir.path().join("disk")).unwrap();
        let mut expected = vec![0; disk.len()];
        for (fill, at, len) in WRITES {
            expected[at..at + len].copy_from_slice(&data(fill, len));
        }
        for (at, (found, written)) in disk.chunks(512).zip(expected.chunks(512)).enumerate() {
            let is_right = found == written || found.iter().all(|byte| *byte == 0);
            assert!(is_right, "block {at}: {}", self.log());
        }
    }

    /// Uses the volume on one connection; every reply must be the right one.
    fn use_it(&self, unix: bool) {
        let socket = self.connect(unix);
        let say = |bytes: &[u8]| {
            if let Err(e) = (&socket).write_all(bytes) {
                self.ended(&e);
            }
        };
        say(&3u32.to_be_bytes());
        if !unix {
            say(b"IHAVEOPT\0\0\0\x08\0\0\0\0");
            self.take::<20>(&socket);
        }
        say(b"IHAVEOPT\0\0\0\x01\0\0\0\x01v");
        assert_eq!(self.take::<10>(&socket)[..8], (4u64 << 20).to_be_bytes());
        let request = |kind: u16, cookie: u64, offset: u64, len: u32| {
            nbd_proto::client::request(kind, 0, cookie, offset, len).to_vec()
        };
        let [one, two, three] = WRITES.map(|(fill, _, len)| data(fill, len));
        let (len, far) = (two.len() as u32, 5u64 << 20);
        let mut writes = request(1, 1, 0, 4096);
        writes.extend(&one);
        writes.extend(request(1, 2, 8192, len));
        writes.extend(&two);
        writes.extend(request(1, 3, 1 << 20, 8192));
        writes.extend(&three);
        writes.extend(request(1, 4, far, 4096));
        writes.extend(&one);
        // The socket takes only a part while the server is dead.
        std::thread::scope(|scope| {
            scope.spawn(|| drop((&socket).write_all(&writes)));
            let mut open = [1, 2, 3, 4].to_vec();
            while !open.is_empty() {
                let (cookie, error) = self.head(&socket, unix, |_| None);
                let at = open.iter().position(|other| *other == cookie);
                open.swap_remove(at.unwrap_or_else(|| panic!("{cookie} twice: {}", self.log())));
                assert_eq!(error != 0, cookie == 4);
            }
        });
        let mut reads = request(0, 5, 8192, len);
        reads.extend(request(0, 6, 0, 4096));
        reads.extend(request(3, 7, 0, 0));
        reads.extend(request(6, 8, 2 << 20, 65536));
        reads.extend(request(0, 9, 1 << 20, 8192));
        say(&reads);
        let expected = [
            (5, Some(&two)),
            (6, Some(&one)),
            (7, None),
            (8, None),
            (9, Some(&three)),
        ];
        let mut open: std::collections::BTreeMap<u64, _> = expected.into_iter().collect();
        while !open.is_empty() {
            let len = |cookie: u64| open.get(&cookie).and_then(|data| data.map(Vec::len));
            let (cookie, error) = self.head(&socket, unix, len);
            assert_eq!(error, 0);
            if let Some(data) = open.remove(&cookie).expect("answered once") {
                let mut found = vec![0; data.len()];
                self.fill(&socket, &mut found);
                assert!(found == *data, "{cookie}");
            }
        }
        // No further reply may come.
        say(&request(2, 10, 0, 0));
        let end = (&socket).read(&mut [0; 1]);
        let end = end.unwrap_or_else(|e| self.ended(&e));
        assert_eq!(end, 0, "{}", self.log());
    }

    /// Receives the head of a reply: its cookie and error.
    fn head(&self, socket: &File, simple: bool, data: impl Fn(u64) -> Option<usize>) -> (u64, u32) {
        let magic = u32::from_be_bytes(self.take(socket));
        if simple {
            assert_eq!(magic, 0x6744_6698, "{}", self.log());
            let error = u32::from_be_bytes(self.take(socket));
            return (u64::from_be_bytes(self.take(socket)), error);
        }
        assert_eq!(magic, 0x668e_33ef, "{}", self.log());
        let [_, _, high, low] = self.take(socket);
        let cookie = u64::from_be_bytes(self.take(socket));
        let len = u32::from_be_bytes(self.take(socket)) as usize;
        match u16::from_be_bytes([high, low]) {
            0 => assert_eq!(len, 0),
            1 => {
                assert_eq!(
                    Some(len),
                    data(cookie).map(|len| len + 8),
                    "{cookie}: {}",
                    self.log()
                );
                self.take::<8>(socket);
            }
            _ => {
                assert_eq!(len, 6);
                let [a, b, c, d, _, _] = self.take(socket);
                return (cookie, u32::from_be_bytes([a, b, c, d]));
            }
        }
        (cookie, 0)
    }
}

/// Writes of the clients: the pattern, the offset and the length.
const WRITES: [(u8, usize, usize); 3] = [(1, 0, 4096), (2, 8192, 696_320), (3, 1 << 20, 8192)];

/// Returns a pattern that is zero nowhere and different in each block.
fn data(fill: u8, len: usize) -> Vec<u8> {
    let block = |at: usize| fill << 5 | (at / 512 % 31 + 1) as u8;
    (0..len).map(block).collect()
}

fn cases(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |n| n.parse().unwrap())
}

const PATIENCE: Duration = Duration::from_secs(10);
const TEST: &str = "kept::deaths::a_death_between_any_two_steps_is_not_noticed";

/// The first server dies after step 1, 2, 3 and so on, until it survives all of its work, and many of
/// the second servers die soon after. Then three servers in a row die.
#[test]
fn a_death_between_any_two_steps_is_not_noticed() {
    if let Some(dir) = std::env::var_os(DIR) {
        // This process is a keeper of one of these tests.
        match keeper::keep(|| {}).unwrap() {
            Side::Server(begin) => serve(Path::new(&dir), begin),
            Side::Keeper(code) => std::process::exit(code.into()),
        }
    }
    let mut steps = 0;
    let mut random = Random(1);
    for step in 1.. {
        let case = Case::new(&format!("{step},{}", random.below(80) + 1), 0);
        case.use_it(step % 2 == 0);
        case.use_it(step % 2 == 1);
        if !case.died(0) {
            steps = step;
            break;
        }
    }
    assert!(steps > 100, "{steps} steps are too few");
    for _ in 0..cases("EVFS_DEATHS", 30) {
        let mut step = || random.below(steps) + 1;
        let case = Case::new(&format!("{},{},{}", step(), step(), step()), 0);
        let first = step() % 2 == 0;
        case.use_it(first);
        case.use_it(!first);
    }
}

/// A connection is continued as it was, or closed.
#[test]
fn a_damaged_table_never_leads_to_a_wrong_byte() {
    let mut random = Random(7);
    for number in 1..=cases("EVFS_FLIPS", 60) {
        let case = Case::new(&(random.below(400) + 1).to_string(), number);
        case.try_to_use_it(number % 2 == 0);
        case.try_to_use_it(number % 2 == 1);
    }
}
