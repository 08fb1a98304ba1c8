//! The server of a volume with `--survive` is killed again and again while clients use it over NBD, as
//! a file and through a loop device: connections go on, no request fails, and each acknowledged byte
//! is there, flushed or not.
//!
//! | variable | effect |
//! |---|---|
//! | `EVFS_TEST_KILLS=200` | number of kills in each test (default: 12) |
//! | `EVFS_SEED=N` | repeats the same requests, as far as timing permits |

use nbd_client::Client;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};
use tests::kept::{self, kill_the_server};
use tests::{Random, Sandbox, signal, wait_until};

/// Bytes of the device that one client uses.
const REGION: usize = 12 << 20;
const BLOCK: usize = 4096;
/// Requests that a client sends without waiting for replies.
const DEPTH: usize = 24;
/// Time without a reply that does not occur unless the server is killed.
const PAUSE: Duration = Duration::from_millis(40);

const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const WRITE_ZEROES: u16 = 6;
const FUA: u16 = 1;

/// Request without a reply: its command, its range in the region, and the data of a write.
struct Open {
    command: u16,
    range: Range<usize>,
    data: Vec<u8>,
}

/// What both threads of a client know.
struct Shared {
    content: Vec<u8>,
    open: BTreeMap<u64, Open>,
    replies: u64,
    last_reply: Instant,
    pauses: Vec<Duration>,
    is_over: bool,
}

/// A client that pipelines requests on one connection, and knows what the device has to hold.
struct Flood {
    socket: File,
    first_byte: u64,
    seed: u64,
    shared: Mutex<Shared>,
    changed: Condvar,
}

/// Ends the work of a client, one of whose threads has failed.
struct EndOnPanic<'a>(&'a Flood, &'a AtomicBool);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.1.store(true, Relaxed);
            let both = rustix::net::Shutdown::Both;
            let _ = rustix::net::shutdown(&self.0.socket, both);
        }
    }
}

/// Reads exactly `N` bytes.
fn take<const N: usize>(mut from: &File) -> [u8; N] {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes).expect("the connection goes on");
    bytes
}

impl Flood {
    /// Negotiates the export `v` on a new connection. The device holds `content` from `first_byte` on.
    fn new(
        socket: impl Into<OwnedFd>,
        structured: bool,
        (first_byte, content): (u64, Vec<u8>),
        seed: u64,
    ) -> Flood {
        let socket = File::from(socket.into());
        let mut to = &socket;
        let greeting: [u8; 18] = take(&socket);
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        // Fixed newstyle, no zeroes.
        to.write_all(&3u32.to_be_bytes()).unwrap();
        if structured {
            to.write_all(b"IHAVEOPT\0\0\0\x08\0\0\0\0").unwrap();
            let reply: [u8; 20] = take(&socket);
            assert_eq!(reply[12..16], 1u32.to_be_bytes(), "acknowledged");
        }
        to.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\x01v").unwrap();
        let _size_and_flags: [u8; 10] = take(&socket);
        Flood {
            socket,
            first_byte,
            seed,
            shared: Mutex::new(Shared {
                content,
                open: BTreeMap::new(),
                replies: 0,
                last_reply: Instant::now(),
                pauses: Vec::new(),
                is_over: false,
            }),
            changed: Condvar::new(),
        }
    }

    fn run(&self, is_over: &AtomicBool) {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _end = EndOnPanic(self, is_over);
                self.receive();
            });
            let _end = EndOnPanic(self, is_over);
            self.send(is_over);
        });
    }

    fn send(&self, is_over: &AtomicBool) {
        let mut random = Random::new(self.seed);
        let mut cookie = self.seed << 32;
        while !is_over.load(Relaxed) {
            let Some(open) = self.next(&mut random, is_over) else {
                break;
            };
            cookie += 1;
            let mut message = 0x2560_9513u32.to_be_bytes().to_vec();
            let can_fua = matches!(open.command, WRITE | WRITE_ZEROES);
            let fua = if can_fua && random.below(40) == 0 {
                FUA
            } else {
                0
            };
            message.extend(fua.to_be_bytes());
            message.extend(open.command.to_be_bytes());
            message.extend(cookie.to_be_bytes());
            let offset = match open.command {
                FLUSH => 0,
                _ => self.first_byte + open.range.start as u64,
            };
            message.extend(offset.to_be_bytes());
            message.extend((open.range.len() as u32).to_be_bytes());
            message.extend(&open.data);
            let mut shared = self.shared.lock().unwrap();
            if shared.open.is_empty() {
                shared.last_reply = Instant::now();
            }
            shared.open.insert(cookie, open);
            drop(shared);
            (&self.socket)
                .write_all(&message)
                .expect("the connection goes on");
        }
        self.shared.lock().unwrap().is_over = true;
    }

    /// Chooses a request that touches no byte of another one; waits while there are many.
    fn next(&self, random: &mut Random, is_over: &AtomicBool) -> Option<Open> {
        let mut shared = self.shared.lock().unwrap();
        while shared.open.len() >= DEPTH {
            let short = Duration::from_millis(100);
            shared = self.changed.wait_timeout(shared, short).unwrap().0;
            if is_over.load(Relaxed) {
                return None;
            }
        }
        loop {
            let command = match random.below(20) {
                0..=8 => WRITE,
                9..=16 => READ,
                17 | 18 => WRITE_ZEROES,
                _ => FLUSH,
            };
            let most = if random.below(12) == 0 {
                1 << 20
            } else {
                32 << 10
            };
            let len = match command {
                FLUSH => 0,
                _ => (random.below(most) as usize + 1).next_multiple_of(BLOCK),
            };
            let start = random.below(((REGION - len) / BLOCK) as u64 + 1) as usize * BLOCK;
            let range = start..start + len;
            let overlaps =
                |other: &Open| range.start < other.range.end && other.range.start < range.end;
            if shared.open.values().any(overlaps) {
                continue;
            }
            let data = if command == WRITE {
                random.bytes(len)
            } else {
                Vec::new()
            };
            return Some(Open {
                command,
                range,
                data,
            });
        }
    }

    fn receive(&self) {
        loop {
            let shared = self.shared.lock().unwrap();
            if !shared.open.is_empty() {
                drop(shared);
                self.receive_one();
            } else if shared.is_over {
                return;
            } else {
                drop(shared);
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }

    fn receive_one(&self) {
        let magic = u32::from_be_bytes(take(&self.socket));
        let (cookie, has_data) = match magic {
            0x6744_6698 => {
                let error = u32::from_be_bytes(take(&self.socket));
                assert_eq!(error, 0, "no request fails");
                let cookie = u64::from_be_bytes(take(&self.socket));
                (cookie, self.command_of(cookie) == READ)
            }
            0x668e_33ef => {
                let _flags: [u8; 2] = take(&self.socket);
                let kind = u16::from_be_bytes(take(&self.socket));
                let cookie = u64::from_be_bytes(take(&self.socket));
                let len = u32::from_be_bytes(take(&self.socket)) as usize;
                assert!(kind <= 1, "no request fails: {kind:#x}");
                if kind == 1 {
                    let _offset: [u8; 8] = take(&self.socket);
                    let open = self.shared.lock().unwrap().open[&cookie].range.len();
                    assert_eq!(len - 8, open);
                }
                (cookie, kind == 1)
            }
            other => panic!("{other:#x} is no reply"),
        };
        let mut data = Vec::new();
        if has_data {
            let len = self.shared.lock().unwrap().open[&cookie].range.len();
            data.resize(len, 0);
            (&self.socket)
                .read_exact(&mut data)
                .expect("the connection goes on");
        }
        let mut shared = self.shared.lock().unwrap();
        let open = shared
            .open
            .remove(&cookie)
            .expect("a request for the reply");
        match open.command {
            READ => {
                let expected = &shared.content[open.range.clone()];
                let differs = data.iter().zip(expected).position(|(a, b)| a != b);
                assert!(differs.is_none(), "{:?} differs at {differs:?}", open.range);
            }
            WRITE => shared.content[open.range].copy_from_slice(&open.data),
            WRITE_ZEROES => shared.content[open.range].fill(0),
            _ => {}
        }
        let took = shared.last_reply.elapsed();
        if took > PAUSE {
            shared.pauses.push(took);
        }
        shared.last_reply = Instant::now();
        shared.replies += 1;
        self.changed.notify_all();
    }

    fn command_of(&self, cookie: u64) -> u16 {
        let shared = self.shared.lock().unwrap();
        let open = shared.open.get(&cookie);
        open.unwrap_or_else(|| panic!("{cookie:#x} was answered twice"))
            .command
    }

    /// Compares the device with what this client has written.
    fn verify(&self, client: &mut Client) {
        let shared = self.shared.lock().unwrap();
        let mut found = vec![0; REGION];
        client.read_at(self.first_byte, &mut found).unwrap();
        let differs = found.iter().zip(&shared.content).position(|(a, b)| a != b);
        assert!(differs.is_none(), "it differs at {differs:?}");
    }
}

/// A volume `v` whose server may be killed.
struct Kept {
    keeper: Child,
    log: std::path::PathBuf,
}

impl Kept {
    fn attach(s: &Sandbox, options: &[&str]) -> Kept {
        Kept::attach_device(s, "v.img", options)
    }

    fn attach_device(s: &Sandbox, device: &str, options: &[&str]) -> Kept {
        let log = s.path("log");
        let args = ["attach", device, "--name", "v", "--survive"];
        let said = File::create(&log).unwrap();
        let child = s
            .evfs()
            .args([&args[..], options].concat())
            .stdout(said.try_clone().unwrap())
            .stderr(said)
            .spawn()
            .unwrap();
        let kept = Kept { keeper: child, log };
        wait_until("the volume is attached", || kept.said().contains("v: "));
        kept
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn kill(&self, after: Duration) {
        kill_the_server(self.keeper.id(), after);
    }

    /// Ends it in order.
    fn detach(mut self, s: &Sandbox) {
        s.detach("v");
        let ended = self.keeper.wait().unwrap();
        assert!(ended.success(), "{ended}: {}", self.said());
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        kept::end(&mut self.keeper);
    }
}

fn kills() -> u64 {
    std::env::var("EVFS_TEST_KILLS").map_or(12, |n| n.parse().expect("a number"))
}

fn tcp_address(kept: &Kept) -> String {
    let said = kept.said();
    let at = said.find("nbd://").expect("a TCP address") + "nbd://".len();
    let rest = &said[at..];
    rest[..rest.find('/').unwrap()].to_owned()
}

/// Kills the server `kills()` times, or lets other builds of the program take over as often.
fn survives(options: &[&str], restarts: bool) {
    let s = Sandbox::new();
    if restarts {
        s.install_program();
    }
    s.volume("v.img", "64M", &[]);
    let options = [options, &["--nbd-unix", "v.sock", "--nbd", "127.0.0.1:0"]].concat();
    let kept = Kept::attach(&s, &options);
    let mut random = Random::from_environment();
    let (path, address) = (s.path("v.sock"), tcp_address(&kept));
    let unix = || UnixStream::connect(&path).unwrap();
    let tcp = || TcpStream::connect(&address).unwrap();
    let mut at = 0;
    let mut client = Client::connect(&path, "v").unwrap();
    let mut place = || {
        let (first, mut content) = (at, vec![0; REGION]);
        at += REGION as u64;
        client.read_at(first, &mut content).unwrap();
        (first, content)
    };
    let all = [
        Flood::new(unix(), false, place(), random.below(1 << 20)),
        Flood::new(unix(), true, place(), random.below(1 << 20)),
        Flood::new(tcp(), false, place(), random.below(1 << 20)),
        Flood::new(tcp(), true, place(), random.below(1 << 20)),
    ];
    let is_over = AtomicBool::new(false);
    let kills = kills();
    let work = || {
        std::thread::scope(|scope| {
            let threads: Vec<_> = all
                .iter()
                .map(|flood| scope.spawn(|| flood.run(&is_over)))
                .collect();
            for _ in 0..kills {
                let after = Duration::from_millis(random.below(500));
                if restarts {
                    std::thread::sleep(after);
                    s.install_program();
                    s.run(&["restart", "v"]).ok();
                } else {
                    kept.kill(after);
                }
                if threads.iter().any(|thread| thread.is_finished()) {
                    break;
                }
            }
            std::thread::sleep(Duration::from_millis(500));
            is_over.store(true, Relaxed);
        });
    };
    let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    assert!(worked.is_ok(), "{}", kept.said());
    let mut pauses = Vec::new();
    let mut replies = 0;
    for flood in &all {
        let shared = flood.shared.lock().unwrap();
        pauses.extend(shared.pauses.clone());
        replies += shared.replies;
    }
    pauses.sort();
    let part = |percent: usize| pauses.get(pauses.len() * percent / 100);
    eprintln!(
        "{kills} kills, {replies} replies; pauses: median {:?}, 99 % {:?}, longest {:?}",
        part(50),
        part(99),
        pauses.last()
    );
    let mut client = Client::connect(&path, "v").unwrap();
    all.iter().for_each(|flood| flood.verify(&mut client));
    drop(client);
    kept.detach(&s);
    s.attach(&["v.img", "--name", "v", "--nbd-unix", "w.sock"]);
    let mut client = Client::connect(&s.path("w.sock"), "v").unwrap();
    all.iter().for_each(|flood| flood.verify(&mut client));
    s.detach("v");
}

#[test]
fn clients_of_a_cached_volume_do_not_notice_that_the_server_is_killed() {
    survives(&["--threads", "2"], false);
}

#[test]
fn clients_do_not_notice_that_other_builds_take_over() {
    survives(&["--threads", "2"], true);
}

#[test]
fn clients_do_not_notice_a_kill_without_the_cache() {
    survives(&["--threads", "2", "--direct"], false);
}

/// `evfs up`, as a service manager with a watchdog starts it.
#[test]
fn a_table_survives_in_a_process_of_its_own_and_reports_to_the_service_manager() {
    let s = Sandbox::new();
    s.volume("v.img", "32M", &[]);
    s.volume("w.img", "32M", &[]);
    let table = |name: &str| {
        format!(
            "[volume.{name}]\ndevice = \"{name}.img\"\nkey = \"owner\"\nnbd-unix = \"{name}.sock\"\n"
        )
    };
    let config = format!("{}survive = true\n{}", table("v"), table("w"));
    fs::write(s.path("evfs.toml"), config).unwrap();
    let refused = s.run(&["up", "evfs.toml"]).code(2).stderr;
    assert!(refused.contains("evfs up --only v"), "{refused}");
    let manager = std::os::unix::net::UnixDatagram::bind(s.path("notify")).unwrap();
    manager
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let log = s.path("log");
    let mut command = Command::new("sh");
    s.environment(&mut command);
    let child = command
        .args(["-c", "WATCHDOG_PID=$$ exec \"$0\" up evfs.toml --only v"])
        .arg(tests::program())
        .env("NOTIFY_SOCKET", s.path("notify"))
        .env("WATCHDOG_USEC", "400000")
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let mut kept = Kept { keeper: child, log };
    let told = |what: &str| {
        let mut message = [0; 4096];
        loop {
            let len = manager.recv(&mut message).expect("a report");
            if String::from_utf8_lossy(&message[..len]).contains(what) {
                return;
            }
        }
    };
    told("READY=1");
    let mut client = Client::connect(&s.path("v.sock"), "v").unwrap();
    for round in 0..3 {
        client.write_at(0, &[round; 8192]).unwrap();
        kept.kill(Duration::ZERO);
        let mut found = [0; 8192];
        client.read_at(0, &mut found).unwrap();
        assert_eq!(found, [round; 8192]);
        told("WATCHDOG=1");
        told("WATCHDOG=1");
    }
    s.run(&["restart", "v"]).ok();
    told("READY=1");
    let mut found = [0; 8192];
    client.read_at(0, &mut found).unwrap();
    assert_eq!(found, [2; 8192]);
    told("WATCHDOG=1");
    drop(client);
    // As `systemctl stop`: to the main process alone.
    signal(kept.keeper.id() as i32, libc::SIGTERM);
    let ended = kept.keeper.wait().unwrap();
    assert_eq!(ended.code(), Some(143), "{}", kept.said());
}

mod needs_root {
    use super::*;
    use block::{ErrorKind, OpKind};
    use block_testing::{ErrorDevice, Failure, Mem};
    use export_file::{Config, Export, Mount};
    use std::os::unix::fs::FileExt;
    use std::path::Path;
    use std::sync::Arc;
    use tests::needs_root;

    /// Writes, reads and makes durable ranges of a file that no other program writes.
    fn use_file(path: &Path, seed: u64, is_over: &AtomicBool) {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let mut random = Random::new(seed);
        let mut content = vec![0; 4 << 20];
        file.read_exact_at(&mut content, 0).unwrap();
        while !is_over.load(Relaxed) {
            let len = random.below(200_000) as usize + 1;
            let at = random.below((content.len() - len) as u64) as usize;
            match random.below(8) {
                0..=3 => {
                    let bytes = random.bytes(len);
                    file.write_all_at(&bytes, at as u64).unwrap();
                    content[at..at + len].copy_from_slice(&bytes);
                }
                4 => file.sync_all().unwrap(),
                _ => {
                    let mut found = vec![0; len];
                    file.read_exact_at(&mut found, at as u64).unwrap();
                    assert!(found == content[at..at + len], "{len} bytes at {at}");
                }
            }
        }
        let mut found = vec![0; content.len()];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found == content, "at the end");
    }

    fn kill_while(kept: &Kept, work: impl Fn(&AtomicBool) + Sync) {
        let is_over = AtomicBool::new(false);
        let mut random = Random::from_environment();
        let all = || {
            std::thread::scope(|scope| {
                let worker = scope.spawn(|| work(&is_over));
                for _ in 0..kills() {
                    kept.kill(Duration::from_millis(random.below(500)));
                    if worker.is_finished() {
                        break;
                    }
                }
                std::thread::sleep(Duration::from_millis(300));
                is_over.store(true, Relaxed);
            });
        };
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(all));
        assert!(worked.is_ok(), "{}", kept.said());
    }

    #[test]
    fn a_program_with_the_volume_as_a_file_does_not_notice_kills() {
        needs_root("a mount");
        let s = Sandbox::new();
        s.volume("v.img", "64M", &[]);
        fs::create_dir(s.path("mnt")).unwrap();
        for how in ["--cached", "--direct"] {
            let kept = Kept::attach(&s, &["--fuse", "mnt", how]);
            let file = s.path("mnt/v");
            kill_while(&kept, |is_over| use_file(&file, 7, is_over));
            kept.detach(&s);
        }
    }

    /// ext4 on the loop device, with a file that is written and files that come and go.
    #[test]
    fn a_file_system_on_the_loop_device_does_not_notice_kills() {
        needs_root("a loop device");
        let s = Sandbox::new();
        s.volume("v.img", "96M", &[]);
        let kept = Kept::attach(&s, &["--loop"]);
        let said = kept.said();
        let at = said.find("/dev/loop").expect("a loop device");
        let device = said[at..].split_whitespace().next().unwrap().to_owned();
        tests::peer("mkfs.ext4", &["-q", &device]);
        fs::create_dir(s.path("ext4")).unwrap();
        let dir = s.path("ext4");
        tests::peer("mount", &[device.as_str(), dir.to_str().unwrap()]);
        let big = dir.join("big");
        fs::write(&big, vec![0; 4 << 20]).unwrap();
        kill_while(&kept, |is_over| {
            std::thread::scope(|scope| {
                scope.spawn(|| use_file(&big, 8, is_over));
                let mut number = 0;
                while !is_over.load(Relaxed) {
                    let name = dir.join(format!("file{}", number % 20));
                    let old = dir.join(format!("file{}", (number + 7) % 20));
                    let bytes = Random::new(number).bytes(10_000);
                    fs::write(&name, &bytes).unwrap();
                    assert!(fs::read(&name).unwrap() == bytes);
                    if old.exists() {
                        fs::remove_file(&old).unwrap();
                    }
                    if number % 10 == 0 {
                        File::open(&dir).unwrap().sync_all().unwrap();
                    }
                    number += 1;
                }
            });
        });
        tests::peer("umount", &[&dir]);
        tests::peer("e2fsck", &["-fn", &device]);
        kept.detach(&s);
    }

    /// The disk is a file that this process serves. One of its flushes fails; all others succeed.
    #[test]
    fn a_flush_that_has_failed_stays_failed_after_a_kill() {
        needs_root("a mount");
        for how in ["--cached", "--direct"] {
            let s = Sandbox::new();
            let image = fs::read(s.volume("v.img", "32M", &[])).unwrap();
            let (disk, errors) = ErrorDevice::new(Arc::new(Mem::holding(&image, 512)));
            fs::create_dir(s.path("disk")).unwrap();
            let disk = Export {
                name: "v.img".into(),
                device: Arc::new(disk),
                read_only: false,
            };
            let _disk = Mount::start(Config::new(s.path("disk")), vec![disk]).unwrap();
            let options = [how, "--nbd-unix", "v.sock"];
            let mut kept = Kept::attach_device(&s, "disk/v.img", &options);
            let connect = || Client::connect(&s.path("v.sock"), "v").unwrap();
            let mut client = connect();
            client.write_at(0, &[b'A'; 4096]).unwrap();
            kept.kill(Duration::ZERO);
            client.flush().expect("a flush after a kill alone");
            client.write_at(0, &[b'B'; 4096]).unwrap();
            errors.set(Some(Failure::nth(1, ErrorKind::Media).of(OpKind::Flush)));
            assert!(client.flush().is_err(), "{how}");
            for _ in 0..2 {
                kept.kill(Duration::ZERO);
                assert!(client.flush().is_err(), "{how}: on the connection");
                assert!(connect().flush().is_err(), "{how}: on a new connection");
            }
            assert_eq!(errors.failed(), 1, "{how}: flushes that the disk failed");
            drop(client);
            s.run(&["detach", "v", "--force"]).code(30);
            kept.keeper.wait().unwrap();
        }
    }
}

mod needs_peer {
    use super::*;
    use std::process::Stdio;

    /// Starts another NBD server that is a client of the volume, and returns its socket.
    fn proxy(s: &Sandbox, program: &str, uri: &str) -> (tests::Killed, std::path::PathBuf) {
        let socket = s.path(&format!("{program}.sock"));
        let at = socket.to_str().unwrap();
        let mut command = Command::new(program);
        match program {
            "nbdkit" => command.args(["-f", "-U", at, "nbd", &format!("uri={uri}")]),
            _ => command.args(["-f", "raw", "-k", at, "-t", "-e", "4", "-x", "", uri]),
        };
        let child = command.spawn().expect("the peer is installed");
        wait_until("the peer listens", || socket.exists());
        (tests::Killed(child), socket)
    }

    fn fio(s: &Sandbox, name: &str, uri: &str, offset: &str) -> Child {
        Command::new("fio")
            .args([
                "--ioengine=nbd",
                "--rw=randrw",
                "--bsrange=4k-128k",
                "--iodepth=16",
            ])
            .args([
                "--verify=crc32c",
                "--verify_fatal=1",
                "--size=12M",
                "--fsync=64",
            ])
            .args(["--time_based", "--runtime=12", "--bs_unaligned=0"])
            .arg(format!("--offset={offset}"))
            .arg(format!("--name={name}"))
            .arg(format!("--uri={uri}"))
            .current_dir(s.path(""))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("fio is installed")
    }

    /// Counts the NBD connections in this network namespace: at a TCP address, and at Unix sockets,
    /// which the server has bound through a descriptor.
    fn connections(tcp: &str) -> usize {
        let port: u16 = tcp.rsplit(':').next().unwrap().parse().unwrap();
        let tcp = format!(":{port:04X}");
        let count = |file: &str, is_one: &dyn Fn(&[&str]) -> bool| {
            let all = fs::read_to_string(file).unwrap();
            let fields = |line: &&str| is_one(&line.split_whitespace().collect::<Vec<_>>());
            all.lines().skip(1).filter(fields).count()
        };
        // The states: connected, established.
        let unix = count("/proc/net/unix", &|fields| {
            fields[5] == "03"
                && fields
                    .get(7)
                    .is_some_and(|path| path.starts_with("/proc/self/fd/"))
        });
        let tcp = count("/proc/net/tcp", &|fields| {
            fields[1].ends_with(&tcp) && fields[3] == "01"
        });
        unix + tcp
    }

    /// fio verifies what it wrote, over libnbd, and through the clients of nbdkit and qemu.
    #[test]
    fn libnbd_nbdkit_and_qemu_do_not_notice_kills() {
        let s = Sandbox::new();
        s.volume("v.img", "64M", &[]);
        let listen = [
            "--nbd-unix",
            "v.sock",
            "--nbd",
            "127.0.0.1:0",
            "--threads",
            "2",
        ];
        let kept = Kept::attach(&s, &listen);
        let unix = format!("nbd+unix:///v?socket={}", s.path("v.sock").display());
        let tcp = format!("nbd://{}/v", tcp_address(&kept));
        let (_nbdkit, kit) = proxy(&s, "nbdkit", &unix);
        let (_qemu, qemu) = proxy(&s, "qemu-nbd", &tcp);
        let through =
            |socket: &std::path::Path| format!("nbd+unix:///?socket={}", socket.display());
        let all = [
            fio(&s, "libnbd", &unix, "0"),
            fio(&s, "tcp", &tcp, "12M"),
            fio(&s, "nbdkit", &through(&kit), "24M"),
            fio(&s, "qemu", &through(&qemu), "36M"),
        ];
        // A connection that is accepted when the server dies is closed. fio connects twice, first for
        // the size.
        let mut since = Instant::now();
        wait_until("each fio uses its connection", || {
            if connections(&tcp_address(&kept)) != all.len() {
                since = Instant::now();
            }
            since.elapsed() > Duration::from_millis(700)
        });
        let mut random = Random::from_environment();
        let until = Instant::now() + Duration::from_secs(8);
        let mut killed = 0;
        while Instant::now() < until {
            kept.kill(Duration::from_millis(300 + random.below(700)));
            killed += 1;
        }
        eprintln!("{killed} kills");
        for child in all {
            let ended = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&ended.stderr);
            assert!(ended.status.success(), "{said}{}", kept.said());
        }
        kept.detach(&s);
    }
}
