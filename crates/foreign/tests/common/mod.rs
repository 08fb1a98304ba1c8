//! Trees of files made by programs of the system, and their comparison.
#![allow(dead_code, reason = "each of the tests uses a part")]

pub mod fat;

use block::{BlockDevice, Blocking, Stats, StatsHandle};
use block_testing::Mem;
use cache::{Cache, Config};
use foreign::{Attr, Files, Lane, ROOT};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// What programs see of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    pub ino: u64,
    pub mode: u32,
    pub links: u64,
    pub owner: (u32, u32),
    pub device: u64,
    pub size: u64,
    pub blocks: u64,
    pub accessed: (i64, i64),
    pub modified: (i64, i64),
    pub changed: (i64, i64),
    pub target: Vec<u8>,
    pub content: u64,
    pub attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

pub type Tree = BTreeMap<PathBuf, Facts>;

/// Runs a program, which must succeed.
#[track_caller]
pub fn run<S: AsRef<OsStr>>(name: &str, args: &[S]) {
    let program = test_support::installed(name);
    let ran = Command::new(program).args(args).output().expect("it runs");
    assert!(
        ran.status.success(),
        "{name}: {}{}",
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr)
    );
}

/// Bytes that do not compress, the same ones every time.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Creates a tree with every kind of file that an ordinary user can create.
pub fn grow(dir: &Path) {
    let file = |name: &str, bytes: &[u8]| {
        std::fs::write(dir.join(name), bytes).expect("written");
    };
    file("empty", b"");
    file("one", b"1");
    file("small", &noise(1, 60));
    file("block", &noise(2, 4096));
    file("odd", &noise(3, 100_001));
    file("large", &noise(4, 3 << 20));
    file("text", "the same line\n".repeat(30_000).as_bytes());
    file("a name with spaces, umlauts äöü and 字", b"named");
    file(&"n".repeat(255), b"long");
    let sparse = std::fs::File::create(dir.join("sparse")).expect("created");
    sparse.write_all_at(&noise(5, 5000), 0).expect("written");
    sparse
        .write_all_at(&noise(6, 5000), 2_000_001)
        .expect("written");
    sparse.write_all_at(b"the end", 5 << 20).expect("written");
    std::fs::create_dir_all(dir.join("a/b/c/d")).expect("created");
    file("a/b/c/d/deep", b"deep");
    std::fs::create_dir(dir.join("many")).expect("created");
    for n in 0..700 {
        file(
            &format!("many/file number {n} of a large directory"),
            &noise(n, 17),
        );
    }
    std::fs::create_dir(dir.join("none")).expect("created");
    symlink("one", dir.join("link")).expect("linked");
    symlink("t".repeat(59), dir.join("link59")).expect("linked");
    symlink("t".repeat(60), dir.join("link60")).expect("linked");
    symlink("t".repeat(900), dir.join("link900")).expect("linked");
    std::fs::hard_link(dir.join("odd"), dir.join("a/odd too")).expect("linked");
    run("mkfifo", &[dir.join("fifo")]);
    for (name, mode) in [
        ("one", 0o600),
        ("small", 0o4755),
        ("none", 0o1777),
        ("block", 0o400),
    ] {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(dir.join(name), mode).expect("changed");
    }
    for (name, seconds) in [
        ("one", 1),
        ("odd", 1 << 30),
        ("small", 3_000_000_000),
        ("a", 86_400),
    ] {
        let time = SystemTime::UNIX_EPOCH + Duration::new(seconds, 123_456_789);
        let times = std::fs::FileTimes::new()
            .set_accessed(time)
            .set_modified(time);
        let file = std::fs::File::open(dir.join(name)).expect("opened");
        file.set_times(times).expect("changed");
    }
}

/// Sets extended attributes, which the file system of the directory must support.
pub fn add_attributes(dir: &Path) {
    let set = |name: &str, attribute: &str, value: &[u8]| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(dir.join(name), attribute, value, flags).expect("attributes");
    };
    set("odd", "user.short", b"value");
    set("odd", "user.empty", b"");
    set("odd", "user.long", &noise(7, 700));
    set("a", "user.of a directory", b"x");
    set("small", "user.binary", &[0, 1, 2, 255]);
}

fn attributes_of(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 65_536];
    let len = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    let names = names[..len]
        .split(|b| *b == 0)
        .filter(|name| !name.is_empty());
    let read = |name: &[u8]| {
        let mut value = vec![0; 65_536];
        let len = rustix::fs::lgetxattr(path, name, &mut value[..]).expect("an attribute");
        value[..len].to_vec()
    };
    names.map(|name| (name.to_vec(), read(name))).collect()
}

/// Reads a tree from a directory. The attributes are read before the content, which changes the
/// time of access.
pub fn of_directory(dir: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(path) = todo.pop() {
        let full = dir.join(&path);
        let meta = std::fs::symlink_metadata(&full).expect("attributes");
        let (mut target, mut content) = (Vec::new(), 0);
        if meta.is_symlink() {
            let read = std::fs::read_link(&full).expect("a link");
            target = read.into_os_string().into_vec();
        } else if meta.is_file() {
            content = hash(&std::fs::read(&full).expect("content"));
        } else if meta.is_dir() {
            for entry in std::fs::read_dir(&full).expect("entries") {
                todo.push(path.join(entry.expect("an entry").file_name()));
            }
        }
        let facts = Facts {
            ino: meta.ino(),
            mode: meta.mode(),
            links: meta.nlink(),
            owner: (meta.uid(), meta.gid()),
            device: meta.rdev(),
            size: meta.size(),
            blocks: meta.blocks(),
            accessed: (meta.atime(), meta.atime_nsec()),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
            target,
            content,
            attributes: attributes_of(&full),
        };
        tree.insert(path, facts);
    }
    tree
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

fn facts_of(lane: &mut Lane, node: u64, attr: &Attr) -> foreign::Result<Facts> {
    let (mut target, mut content) = (Vec::new(), 0);
    match attr.kind() {
        libc::S_IFLNK => target = lane.read_link(node)?,
        libc::S_IFREG => {
            let mut bytes = vec![0; attr.size as usize];
            let mut at = 0;
            while at < bytes.len() {
                let end = bytes.len().min(at + (1 << 17));
                let len = lane.read(node, at as u64, &mut bytes[at..end])?;
                assert_eq!(len, end - at, "a short read");
                at = end;
            }
            content = hash(&bytes);
        }
        _ => {}
    }
    let mut attributes = BTreeMap::new();
    for name in lane.xattrs(node)? {
        let value = lane.xattr(node, &name)?;
        attributes.insert(name, value);
    }
    let pair = |time: foreign::Time| (time.seconds, i64::from(time.nanos));
    Ok(Facts {
        ino: attr.ino,
        mode: attr.mode,
        links: u64::from(attr.links),
        owner: (attr.uid, attr.gid),
        device: libc::makedev(attr.device.0, attr.device.1),
        size: attr.size,
        blocks: attr.blocks,
        accessed: pair(attr.accessed),
        modified: pair(attr.modified),
        changed: pair(attr.changed),
        target,
        content,
        attributes,
    })
}

/// Reads a tree through EVFS.
pub fn of_files(files: &Arc<Files>) -> foreign::Result<Tree> {
    let lane = &mut files.lane()?;
    let mut tree = Tree::new();
    let mut todo = vec![(PathBuf::new(), ROOT)];
    while let Some((path, node)) = todo.pop() {
        let attr = lane.attr(node)?;
        if attr.is_dir() {
            for (n, entry) in list(lane, node)?.into_iter().enumerate() {
                let dots = [&b"."[..], b".."]
                    .get(n)
                    .is_some_and(|dot| entry.name == *dot);
                assert_eq!(entry.node == 0, dots, "{:?}", entry.name);
                if !dots {
                    let (found, of_name) = lane.lookup(node, &entry.name)?;
                    assert_eq!(found, entry.node);
                    assert_eq!(of_name.ino, entry.ino);
                    assert!(entry.kind == 0 || entry.kind == of_name.kind());
                    todo.push((path.join(OsStr::from_bytes(&entry.name)), entry.node));
                }
            }
        }
        let facts = facts_of(lane, node, &attr)?;
        tree.insert(path, facts);
    }
    Ok(tree)
}

/// Lists a directory in small parts.
fn list(lane: &mut Lane, dir: u64) -> foreign::Result<Vec<foreign::Entry>> {
    let mut all: Vec<foreign::Entry> = Vec::new();
    loop {
        let from = all.last().map_or(0, |last| last.next);
        let part = lane.read_dir(dir, from, 7)?;
        assert!(part.len() <= 7);
        if part.is_empty() {
            return Ok(all);
        }
        all.extend(part);
    }
}

/// Uses everything in a damaged file system, as far as it can be reached with a bounded number of
/// operations, and returns the texts of the errors.
pub fn use_all(files: &Arc<Files>) -> Vec<String> {
    let mut errors = Vec::new();
    let mut note = |e: foreign::Error| errors.push(e.to_string());
    let mut lane = match files.lane() {
        Ok(lane) => lane,
        Err(e) => {
            note(e);
            return errors;
        }
    };
    let mut todo = vec![ROOT];
    let mut buf = vec![0; 1 << 16];
    let mut steps = 0;
    while let Some(node) = todo.pop() {
        steps += 1;
        if steps > 3000 {
            break;
        }
        let attr = match lane.attr(node) {
            Ok(attr) => attr,
            Err(e) => {
                note(e);
                continue;
            }
        };
        if let Err(e) = lane.read_link(node) {
            note(e);
        }
        match lane.xattrs(node) {
            Ok(names) => {
                for name in names {
                    let _ = lane.xattr(node, &name).map_err(&mut note);
                }
            }
            Err(e) => note(e),
        }
        if attr.is_file() {
            let ends = [0, attr.size / 2, attr.size.saturating_sub(5000)];
            for at in ends {
                let _ = lane.read(node, at, &mut buf).map_err(&mut note);
            }
        }
        if attr.is_dir() {
            let mut from = 0;
            for _ in 0..50 {
                match lane.read_dir(node, from, 64) {
                    Ok(entries) => {
                        let Some(last) = entries.last() else { break };
                        from = last.next;
                        todo.extend(entries.iter().map(|e| e.node).filter(|node| *node != 0));
                    }
                    Err(e) => {
                        note(e);
                        break;
                    }
                }
            }
            let _ = lane.lookup(node, b"no such name").map_err(&mut note);
        }
    }
    errors
}

/// Creates a cache.
pub fn cache() -> Arc<Cache> {
    Cache::new(Config::new(32 << 20)).expect("a cache")
}

/// Returns the bytes as a device, with blocks of this size.
pub fn device_of(bytes: &[u8], block: u32) -> Arc<dyn BlockDevice> {
    let size = (bytes.len() as u64).next_multiple_of(4096);
    let device = Mem::new(size, block);
    let mut padded = bytes.to_vec();
    padded.resize(size as usize, 0);
    Blocking::open(&device)
        .expect("a queue")
        .write_at(0, &padded)
        .expect("written");
    Arc::new(device)
}

/// Counts the requests to a device.
pub fn counted(device: Arc<dyn BlockDevice>) -> (Arc<dyn BlockDevice>, StatsHandle) {
    let (device, stats) = Stats::new(device);
    (Arc::new(device), stats)
}

/// Compares two trees in some respects, and names the first difference.
#[track_caller]
pub fn same(one: &Tree, other: &Tree, respect: impl Fn(&Path, Facts) -> Facts) {
    let names = |tree: &Tree| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(one), names(other));
    for ((path, a), b) in one.iter().zip(other.values()) {
        let (a, b) = (respect(path, a.clone()), respect(path, b.clone()));
        assert_eq!(a, b, "{}", path.display());
    }
}

/// Damages copies of an image with the given seeds, uses all of each, and fails if a parser panics
/// or does not end.
pub fn damage(image: &[u8], structures: &[std::ops::Range<usize>]) {
    damage_fewer(image, structures, 1);
}

/// Does the same with a part of the seeds, for large images.
pub fn damage_fewer(image: &[u8], structures: &[std::ops::Range<usize>], divisor: u64) {
    damage_with(
        image,
        structures,
        divisor,
        |bytes, cache| match Files::open(device_of(bytes, 512), cache) {
            Ok(files) => use_all(&files),
            Err(error) => vec![error.to_string()],
        },
    );
}

/// Most memory of a process that uses damaged images, in KiB, with the images, the caches, and other
/// tests of the process.
const MEMORY_KIB: u64 = 768 << 10;

/// Passes damaged copies of an image to `work`, which returns the texts of errors. Fails if a parser
/// panics, does not end in time, or takes too much memory.
pub fn damage_with(
    image: &[u8],
    structures: &[std::ops::Range<usize>],
    divisor: u64,
    work: impl Fn(&[u8], &Cache) -> Vec<String> + Send + 'static,
) {
    let count = std::env::var("EVFS_TEST_DAMAGES").ok();
    let count = count.map_or(300, |text| text.parse::<u64>().expect("a number of images"));
    let count = count / divisor;
    let (sender, receiver) = std::sync::mpsc::channel();
    let (image, structures) = (image.to_vec(), structures.to_vec());
    std::thread::spawn(move || {
        let cache = cache();
        for seed in 0..count {
            let mut bytes = image.clone();
            let random = noise(seed ^ 0x5eed_0000, 8 * 64);
            let mut numbers = random
                .as_chunks::<8>()
                .0
                .iter()
                .map(|n| u64::from_le_bytes(*n));
            let mut below = |bound: usize| {
                (numbers.next().expect("enough numbers") % bound.max(1) as u64) as usize
            };
            for _ in 0..1 + below(12) {
                let part = structures[below(structures.len())].clone();
                let at = part.start + below(part.len());
                match below(4) {
                    0 => bytes[at] ^= 1 << below(8),
                    1 => bytes[at] = below(256) as u8,
                    2 => bytes[at] = 0xff,
                    _ => {
                        let end = (at + 4).min(bytes.len());
                        bytes[at..end].fill(below(3) as u8 * 0x7f);
                    }
                }
            }
            let errors = work(&bytes, &cache);
            let panicked = errors.into_iter().find(|e| e.contains("has failed"));
            if sender.send((seed, panicked)).is_err() {
                return;
            }
        }
    });
    for seed in 0..count {
        let (done, panicked) = receiver
            .recv_timeout(Duration::from_secs(120))
            .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!(done, seed);
        assert_eq!(panicked, None, "seed {seed}");
    }
    let status = std::fs::read_to_string("/proc/self/status").expect("the status");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|text| text.trim().strip_suffix(" kB"));
    let peak: u64 = peak.expect("a peak").trim().parse().expect("a number");
    assert!(peak < MEMORY_KIB, "{peak} KiB of memory");
    println!("{count} damaged images, {peak} KiB of memory at most");
}
