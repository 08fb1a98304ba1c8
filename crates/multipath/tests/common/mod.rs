//! Shared test support: real servers that can be killed and restarted, and a load that verifies
//! every block.
#![allow(dead_code)]

pub mod alone;
pub mod target;

use block::{BlockDevice, Blocking, Buf, Completion, Op, Queue, Request, Wait};
use block_testing::Random;
use lunpath::Lunpath;
use multipath::{Attributes, Config, Lun, PathSpec, PathState, Proof};
use path_nbd::{NbdPath, NbdUri, Options};
use pathsim::{Address, Pathsim};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Timeout of every wait in the tests.
pub const WITHIN: Duration = Duration::from_secs(30);
/// Size of an image in bytes.
pub const SIZE: u64 = 16 << 20;
/// World-wide ID that is not generic, so that a comparison of blocks suffices.
pub const WWID: &str = "naa.5000c500a1b2c3d4";
/// Size of a stamped block in bytes.
pub const BLOCK: usize = 4096;

/// Server program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    QemuNbd,
    Nbdkit,
    /// `nbdkit` with shell scripts as its plugin, without FLUSH and FUA.
    Flushless,
}

/// An NBD server on a file. It can be killed and restarted.
pub struct Server {
    pub program: Program,
    pub image: PathBuf,
    pub socket: PathBuf,
    pub wwid: String,
    /// Extra arguments; for `nbdkit`, those after a `--` are appended to the end.
    pub extra: Vec<String>,
    child: Option<Child>,
}

impl Server {
    pub fn new(dir: &Path, image: &str, port: usize, wwid: &str) -> Server {
        Server::with(Program::QemuNbd, dir, image, port, wwid, &[])
    }

    pub fn nbdkit(dir: &Path, image: &str, port: usize, extra: &[&str]) -> Server {
        Server::with(Program::Nbdkit, dir, image, port, WWID, extra)
    }

    pub fn with(
        program: Program,
        dir: &Path,
        image: &str,
        port: usize,
        wwid: &str,
        extra: &[&str],
    ) -> Server {
        let image = dir.join(image);
        if !image.exists() {
            let file = std::fs::File::create(&image).unwrap();
            file.set_len(SIZE).unwrap();
        }
        let socket = PathBuf::from(format!("{}.{port}", image.display()));
        let mut server = Server {
            program,
            image,
            socket,
            wwid: wwid.into(),
            extra: extra.iter().map(|e| (*e).to_owned()).collect(),
            child: None,
        };
        server.start();
        server
    }

    pub fn start(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
        let mut command = match self.program {
            Program::QemuNbd => self.qemu_nbd(),
            Program::Nbdkit => self.nbdkit_command(),
            Program::Flushless => self.flushless_command(),
        };
        // A preloaded library is meant for this process only.
        command.env_remove("LD_PRELOAD");
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.unwrap_or_else(|e| panic!("a server is needed (cargo xtask setup): {e}"));
        self.child = Some(child);
        until("the server answers", || {
            self.path().identify(Duration::from_secs(1)).is_ok()
        });
    }

    fn qemu_nbd(&self) -> Command {
        let image = self.image.display();
        let mut command = Command::new(test_support::installed("qemu-nbd"));
        command
            .args(["-x", "e", "--shared=0", "-t", "--discard=unmap", "-D"])
            .arg(format!("wwid={}", self.wwid))
            .args(&self.extra)
            .arg("-k")
            .arg(&self.socket)
            .arg("--image-opts")
            .arg(format!(
                "driver=raw,file.driver=file,file.locking=off,file.filename={image}"
            ));
        command
    }

    fn nbdkit_command(&self) -> Command {
        let mut parts = self.extra.splitn(2, |e| e == "--");
        let mut command = Command::new(test_support::installed("nbdkit"));
        command
            .args(["-f", "-U"])
            .arg(&self.socket)
            .args(parts.next().unwrap_or_default())
            .args(["--filter=exportname", "file"])
            .arg(&self.image)
            .arg(format!("exportdesc=fixed:wwid={}", self.wwid))
            .args(parts.next().unwrap_or_default());
        command
    }

    fn flushless_command(&self) -> Command {
        let image = self.image.display();
        let mut command = Command::new(test_support::installed("nbdkit"));
        command
            .args(["-f", "-U"])
            .arg(&self.socket)
            .args(["--filter=exportname", "eval"])
            .arg(format!("get_size=stat -Lc %s {image}"))
            .arg(format!(
                "pread=dd if={image} skip=$4 count=$3 iflag=count_bytes,skip_bytes"
            ))
            .arg(format!(
                "pwrite=dd of={image} seek=$4 conv=notrunc oflag=seek_bytes"
            ))
            .arg(format!("exportdesc=fixed:wwid={}", self.wwid));
        command
    }

    /// Restarts the server if it has exited. Returns whether it had.
    pub fn revive(&mut self) -> bool {
        let ended = |c: &mut Child| c.try_wait().unwrap().is_some();
        let gone = self.child.as_mut().is_none_or(ended);
        if gone {
            self.kill();
            self.start();
        }
        gone
    }

    /// Returns a block of the disk image, bypassing the paths.
    pub fn on_disk(&self, block: u64) -> Vec<u8> {
        on_disk(&self.image, block)
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub fn signal(&self, name: &str) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        let kill = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(kill.unwrap().success());
    }

    pub fn path(&self) -> NbdPath {
        let uri = format!("nbd+unix:///e?socket={}", self.socket.display());
        path(&uri)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

pub fn path(uri: &str) -> NbdPath {
    NbdPath::new(NbdUri::parse(uri).unwrap(), Options::default())
}

/// Makes the LUN tolerate silence, for tests without silent paths: a server that a loaded machine
/// does not schedule is not their subject.
pub fn patient(attributes: &mut Attributes) {
    attributes.silence_ms = 10_000;
}

pub fn config(paths: Vec<Arc<dyn Lunpath>>) -> Config {
    let paths = paths.into_iter().enumerate().map(|(n, path)| PathSpec {
        path,
        legacy: format!("c{n}t0d0"),
        enabled: true,
    });
    Config {
        name: "disk1".into(),
        attributes: Attributes::default(),
        paths: paths.collect(),
        identity: None,
        proof: Proof::Compare,
        connect_within: Duration::from_secs(5),
        topology: Default::default(),
    }
}

pub fn lun(servers: &[&Server], change: impl Fn(&mut Attributes)) -> Lun {
    let paths = servers.iter().map(|s| Arc::new(s.path()) as _).collect();
    let mut config = config(paths);
    change(&mut config.attributes);
    Lun::open(config).unwrap()
}

/// Opens a LUN over the given paths.
pub fn open(paths: Vec<Arc<dyn Lunpath>>, change: impl Fn(&mut Attributes)) -> Lun {
    let mut config = config(paths);
    change(&mut config.attributes);
    Lun::open(config).unwrap()
}

/// Returns a block of an image.
pub fn on_disk(image: &Path, block: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    let file = std::fs::File::open(image).unwrap();
    file.read_exact_at(&mut bytes, block * BLOCK as u64)
        .unwrap();
    bytes
}

/// Starts a proxy in front of a server.
pub fn proxy(server: &Server) -> Pathsim {
    let upstream = Address::Unix(server.socket.clone());
    Pathsim::start(&Address::Tcp("127.0.0.1:0".into()), upstream).unwrap()
}

/// Returns the address at which clients connect to a proxy.
pub fn port_of(sim: &Pathsim) -> &str {
    match sim.address() {
        Address::Tcp(at) => at,
        Address::Unix(_) => panic!("it listens on TCP"),
    }
}

/// Returns the path through a proxy.
pub fn through(sim: &Pathsim) -> Arc<dyn Lunpath> {
    Arc::new(path(&format!("nbd://{}/e", port_of(sim))))
}

/// Returns a write request, for a queue that a test drives itself.
pub fn write(tag: u64, block: u64, bytes: &[u8]) -> Request {
    let op = Op::Write {
        offset: block * BLOCK as u64,
        bufs: Buf::copy_of(bytes).into(),
        fua: false,
    };
    Request { tag, op }
}

pub fn read(tag: u64, block: u64) -> Request {
    let op = Op::Read {
        offset: block * BLOCK as u64,
        bufs: Buf::zeroed(BLOCK).into(),
    };
    Request { tag, op }
}

/// Reaps until a completion arrives or `time` has passed.
pub fn reap(queue: &mut dyn Queue, time: Duration) -> Vec<Completion> {
    let mut done = Vec::new();
    queue.kick().unwrap();
    queue.reap(Wait::AtMost(time), &mut done).unwrap();
    done
}

/// Returns the next completion, which must arrive.
pub fn answer(queue: &mut dyn Queue) -> Completion {
    let mut done = reap(queue, WITHIN);
    assert_eq!(done.len(), 1, "one answer");
    done.remove(0)
}

pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + WITHIN;
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn states(lun: &Lun) -> Vec<PathState> {
    lun.status().paths.iter().map(|p| p.state).collect()
}

/// Writes and reads self-describing blocks until stopped. A block holds its number, its writer and
/// the generation that was acknowledged last; any other content fails the test.
pub struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<u64>>,
}

pub fn stamp(block: u64, generation: u64, writer: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    Random::new(writer << 48 ^ block << 32 ^ generation).fill(&mut bytes);
    bytes[..8].copy_from_slice(&block.to_le_bytes());
    bytes[8..16].copy_from_slice(&generation.to_le_bytes());
    bytes[16..24].copy_from_slice(&writer.to_le_bytes());
    bytes
}

/// Returns the description that a block contains.
pub fn named(bytes: &[u8]) -> String {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    format!(
        "block {} generation {} writer {}",
        word(0),
        word(8),
        word(16)
    )
}

impl Load {
    pub fn start(device: Arc<dyn BlockDevice>, blocks: u64, seed: u64) -> Load {
        Load::on(device, 0..blocks, seed)
    }

    /// Starts a load on its own range of blocks.
    pub fn on(device: Arc<dyn BlockDevice>, blocks: Range<u64>, seed: u64) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || work(&*device, blocks, seed, &told));
        Load {
            stop,
            thread: Some(thread),
        }
    }

    /// Stops the load, reads all blocks back, and returns the number of requests.
    pub fn end(mut self) -> u64 {
        self.stop.store(true, Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

fn work(device: &dyn BlockDevice, range: Range<u64>, seed: u64, stop: &AtomicBool) -> u64 {
    let (first, blocks) = (range.start, range.end - range.start);
    let stamp = |block, generation| stamp(block, generation, seed);
    let mut queue = device.queue().unwrap();
    let mut random = Random::new(seed);
    let mut generations = vec![0u64; blocks as usize];
    let mut busy = vec![false; blocks as usize];
    let (mut done, mut count) = (Vec::new(), 0);
    while !stop.load(Relaxed) || queue.in_flight() > 0 {
        while !stop.load(Relaxed) && queue.in_flight() < 16 {
            let at = random.below(blocks) as usize;
            let block = first + at as u64;
            if busy[at] {
                continue;
            }
            busy[at] = true;
            let offset = block * BLOCK as u64;
            let op = if generations[at] == 0 || random.below(2) == 0 {
                generations[at] += 1;
                let bufs = Buf::copy_of(&stamp(block, generations[at])).into();
                let fua = random.below(16) == 0;
                Op::Write { offset, bufs, fua }
            } else {
                let bufs = Buf::zeroed(BLOCK).into();
                Op::Read { offset, bufs }
            };
            queue.submit(Request { tag: block, op }).unwrap();
        }
        let wait = Wait::AtMost(Duration::from_millis(50));
        queue.reap(wait, &mut done).unwrap();
        for completion in done.drain(..) {
            completion.result.unwrap();
            let at = (completion.tag - first) as usize;
            busy[at] = false;
            count += 1;
            if let Op::Read { bufs, .. } = completion.op {
                let wanted = stamp(completion.tag, generations[at]);
                let found = &bufs.as_slice()[0][..];
                assert!(
                    found == wanted,
                    "block {}: {}",
                    completion.tag,
                    named(found)
                );
            }
        }
    }
    let mut all = Blocking::over(queue);
    all.flush().unwrap();
    for block in range {
        let mut bytes = vec![0; BLOCK];
        all.read_at(block * BLOCK as u64, &mut bytes).unwrap();
        let generation = generations[(block - first) as usize];
        if generation > 0 {
            assert!(
                bytes == stamp(block, generation),
                "block {block} at the end, generation {generation}: {}",
                named(&bytes)
            );
        }
    }
    count
}
