//! What the tests share: real servers that are killed and started again, and a load that knows which
//! bytes may be where.
#![allow(dead_code)]

use block::{BlockDevice, Blocking, Buf, Lunpath, Op, Random, Request, Wait};
use multipath::{Attributes, Config, Lun, PathSpec, PathState, Proof};
use path_nbd::{NbdPath, NbdUri, Options};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long anything may take before a test fails.
pub const WITHIN: Duration = Duration::from_secs(20);
/// Bytes of an image.
pub const SIZE: u64 = 16 << 20;
/// An ID that is one disk's own.
pub const WWID: &str = "naa.5000c500a1b2c3d4";
/// Bytes of a stamped block.
pub const BLOCK: usize = 4096;

/// A `qemu-nbd` on a file, that can be killed and started again.
pub struct Server {
    pub image: PathBuf,
    pub socket: PathBuf,
    pub wwid: String,
    pub extra: Vec<String>,
    child: Option<Child>,
}

impl Server {
    pub fn new(dir: &Path, image: &str, port: usize, wwid: &str) -> Server {
        let image = dir.join(image);
        if !image.exists() {
            let file = std::fs::File::create(&image).unwrap();
            file.set_len(SIZE).unwrap();
        }
        let socket = PathBuf::from(format!("{}.{port}", image.display()));
        let mut server = Server {
            image,
            socket,
            wwid: wwid.into(),
            extra: Vec::new(),
            child: None,
        };
        server.start();
        server
    }

    pub fn start(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
        let image = self.image.display();
        let child = Command::new("qemu-nbd")
            .args(["-x", "e", "--shared=0", "-t", "--discard=unmap", "-D"])
            .arg(format!("wwid={}", self.wwid))
            .args(&self.extra)
            .arg("-k")
            .arg(&self.socket)
            .arg("--image-opts")
            .arg(format!(
                "driver=raw,file.driver=file,file.locking=off,file.filename={image}"
            ))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = child.unwrap_or_else(|e| panic!("qemu-nbd is needed (cargo xtask setup): {e}"));
        self.child = Some(child);
        until("qemu-nbd answers", || {
            self.path().identify(Duration::from_secs(1)).is_ok()
        });
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
        own_cell: None,
    }
}

pub fn lun(servers: &[&Server], change: impl Fn(&mut Attributes)) -> Lun {
    let paths = servers.iter().map(|s| Arc::new(s.path()) as _).collect();
    let mut config = config(paths);
    change(&mut config.attributes);
    Lun::open(config).unwrap()
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

/// Writes and reads blocks that say what they are, until told to stop. A block holds its number and
/// the generation that was acknowledged last; anything else fails the test.
pub struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<u64>>,
}

pub fn stamp(block: u64, generation: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    Random::new(block << 32 ^ generation).fill(&mut bytes);
    bytes[..8].copy_from_slice(&block.to_le_bytes());
    bytes[8..16].copy_from_slice(&generation.to_le_bytes());
    bytes
}

impl Load {
    pub fn start(device: Arc<dyn BlockDevice>, blocks: u64, seed: u64) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || work(&*device, blocks, seed, &told));
        Load {
            stop,
            thread: Some(thread),
        }
    }

    /// Ends it, reads everything back, and says how many requests there were.
    pub fn end(mut self) -> u64 {
        self.stop.store(true, Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

fn work(device: &dyn BlockDevice, blocks: u64, seed: u64, stop: &AtomicBool) -> u64 {
    let mut queue = device.queue().unwrap();
    let mut random = Random::new(seed);
    let mut generations = vec![0u64; blocks as usize];
    let mut busy = vec![false; blocks as usize];
    let (mut done, mut count) = (Vec::new(), 0);
    while !stop.load(Relaxed) || queue.in_flight() > 0 {
        while !stop.load(Relaxed) && queue.in_flight() < 16 {
            let block = random.below(blocks);
            let at = block as usize;
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
            let at = completion.tag as usize;
            busy[at] = false;
            count += 1;
            if let Op::Read { bufs, .. } = completion.op {
                let wanted = stamp(completion.tag, generations[at]);
                assert!(bufs.as_slice()[0][..] == wanted[..], "block {at}");
            }
        }
    }
    let mut all = Blocking::over(queue);
    all.flush().unwrap();
    for block in 0..blocks {
        let mut bytes = vec![0; BLOCK];
        all.read_at(block * BLOCK as u64, &mut bytes).unwrap();
        let generation = generations[block as usize];
        if generation > 0 {
            assert!(
                bytes == stamp(block, generation),
                "block {block} at the end"
            );
        }
    }
    count
}
