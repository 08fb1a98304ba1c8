//! A writer of files that tracks the guarantees of the file system, and so the permitted states
//! after a crash.
//!
//! ```text
//!   names    each change adds a snapshot of all names; fsync drops all but the last
//!   content  for each file the guaranteed bytes; later bytes may be present, or be zeros
//! ```
//!
//! **Invariant:** its checks follow from the guarantees of a file system: fsync(2) of any file
//! makes the content of that file and all names so far durable; after a crash the names are those
//! of a single moment since then, never a mixture; no byte of another file appears.

use crate::Random;
use crate::mounts::Mounted;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Errors of calls on a mount whose process has died: the kernel had not sent the request yet, or
/// it had. Both describe a mount without a server.
pub const GONE: [i32; 2] = [libc::ENOTCONN, libc::ECONNABORTED];

/// Error of a request that the kernel was copying to or from the memory of the process when that
/// died (`fuse_dev_do_read` and `fuse_dev_do_write` of the kernel). A living server may also answer
/// with it, so it is right only for a call that was in progress at the kill.
const TORN: i32 = libc::EIO;

/// Bytes with a generation of their own, in a file that is overwritten in place.
const BLOCK: usize = 4096;
/// Blocks of a file that is overwritten in place.
const BLOCKS: u64 = 64;
/// Maximum number of names.
const NAMES_MAX: usize = 40;
/// Maximum bytes of a file that grows.
const SIZE_MAX: u64 = 400_000;
/// Maximum number of name changes before the writer syncs.
const STATES_MAX: usize = 60;
/// Placeholder for an inode whose creation a crash may have interrupted.
const UNKNOWN: u64 = 0;

/// Names under the writer's directory, and their inodes.
type Names = BTreeMap<String, u64>;

/// Content of a file.
#[derive(Debug, Clone)]
enum Content {
    Folder,
    /// The beginning of an endless stream of bytes.
    Stream {
        tag: u64,
        size: u64,
        /// Bytes that are guaranteed and not truncated since.
        sure: u64,
        /// Maximum size since then.
        most: u64,
    },
    /// Blocks that contain their generation; 0 is a block that was never written.
    Blocks {
        tag: u64,
        promised: Vec<u64>,
        last: Vec<u64>,
    },
}

impl Content {
    /// Records that it was synced.
    fn synced(&mut self) {
        match self {
            Content::Stream {
                size, sure, most, ..
            } => (*sure, *most) = (*size, *size),
            Content::Blocks { promised, last, .. } => promised.clone_from(last),
            Content::Folder => {}
        }
    }
}

/// A writer with its own directory; see the module.
pub struct Writer {
    name: String,
    random: Random,
    next_tag: u64,
    /// Generation of the block written last.
    generation: u64,
    /// Permitted states of the names, from the last guaranteed one to the current one.
    states: Vec<Names>,
    contents: BTreeMap<u64, Content>,
    /// Files without a name.
    open: Vec<File>,
    /// Call that makes everything in a file system durable, if the writer is to use one.
    pub sync_all: Option<fn(&Path) -> io::Result<()>>,
    /// Number of syncs that completed.
    pub promises: u64,
}

impl Writer {
    /// Creates a writer with its own directory, which does not exist yet.
    pub fn new(name: &str, seed: u64) -> Writer {
        Writer {
            name: name.into(),
            random: Random::new(seed),
            next_tag: seed << 24,
            generation: 0,
            states: vec![Names::new()],
            contents: BTreeMap::new(),
            open: Vec::new(),
            sync_all: None,
            promises: 0,
        }
    }

    /// Creates the directory and makes it durable.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn begin(&mut self, root: &Path) -> io::Result<()> {
        let dir = root.join(&self.name);
        for dir in [&dir, &dir.join("a"), &dir.join("b")] {
            std::fs::create_dir(dir)?;
        }
        for name in ["a", "b"] {
            let ino = std::fs::metadata(dir.join(name))?.ino();
            self.states[0].insert(name.into(), ino);
            self.contents.insert(ino, Content::Folder);
        }
        File::open(&dir)?.sync_all()
    }

    /// Makes changes until one fails, and returns its error.
    pub fn work(&mut self, root: &Path) -> io::Error {
        loop {
            if let Err(error) = self.step(root) {
                self.open.clear();
                return error;
            }
        }
    }

    /// Makes one change.
    ///
    /// # Errors
    /// The change failed, but may still have happened.
    pub fn step(&mut self, root: &Path) -> io::Result<()> {
        let dir = root.join(&self.name);
        if self.states.len() > STATES_MAX {
            return self.sync_names(&dir);
        }
        match self.random.below(100) {
            0..15 => self.create(&dir),
            15..35 => self.append(&dir),
            35..42 => self.cut(&dir),
            42..54 => self.sync_file(&dir),
            54..60 => self.sync_names(&dir),
            60..68 => self.replace(&dir),
            68..76 => self.rename(&dir),
            76..80 => self.link(&dir),
            80..88 => self.unlink(&dir),
            88..91 => self.folder(&dir),
            91..94 if self.sync_all.is_some() => self.sync_everything(&dir),
            _ => self.overwrite(&dir),
        }
    }

    fn now(&self) -> &Names {
        self.states.last().expect("there is always one")
    }

    /// Records a change of names before it is made.
    fn will(&mut self, change: impl FnOnce(&mut Names)) {
        let mut names = self.now().clone();
        change(&mut names);
        self.states.push(names);
    }

    fn promised(&mut self) {
        self.promises += 1;
        self.states.drain(..self.states.len() - 1);
        let named: Vec<u64> = self.now().values().copied().collect();
        self.contents.retain(|ino, _| named.contains(ino));
    }

    /// Returns a name that may or may not exist, in an existing directory.
    fn any_name(&mut self) -> String {
        let folder = ["a", "b"][self.random.below(2) as usize];
        format!("{folder}/{}", self.random.below(NAMES_MAX as u64))
    }

    /// Chooses a file with the wanted kind of content.
    fn some_file(&mut self, wanted: fn(&Content) -> bool) -> Option<(String, u64)> {
        let of_kind = |(_, ino): &(&String, &u64)| wanted(&self.contents[*ino]);
        let all: Vec<_> = self.now().iter().filter(of_kind).collect();
        let all: Vec<_> = all.into_iter().map(|(n, i)| (n.clone(), *i)).collect();
        let len = all.len() as u64;
        let index = self.random.below(len.max(1)) as usize;
        all.into_iter().nth(index)
    }

    fn a_file(&mut self) -> Option<(String, u64)> {
        self.some_file(|content| !matches!(content, Content::Folder))
    }

    fn create(&mut self, dir: &Path) -> io::Result<()> {
        let name = self.any_name();
        if self.now().contains_key(&name) {
            return Ok(());
        }
        let in_place = self.random.below(5) == 0;
        let (file, ino) = self.create_named(dir, &name, in_place)?;
        if in_place {
            Ok(())
        } else {
            self.grow(&file, ino)
        }
    }

    fn create_named(&mut self, dir: &Path, name: &str, in_place: bool) -> io::Result<(File, u64)> {
        self.will(|names| {
            names.insert(name.into(), UNKNOWN);
        });
        let file = File::create_new(dir.join(name))?;
        let ino = file.metadata()?.ino();
        let now = self.states.last_mut().expect("just made");
        now.insert(name.into(), ino);
        self.next_tag += 1;
        let tag = self.next_tag;
        let content = if in_place {
            Content::Blocks {
                tag,
                promised: vec![0; BLOCKS as usize],
                last: vec![0; BLOCKS as usize],
            }
        } else {
            Content::Stream {
                tag,
                size: 0,
                sure: 0,
                most: 0,
            }
        };
        self.contents.insert(ino, content);
        Ok((file, ino))
    }

    /// Appends to a stream.
    fn grow(&mut self, file: &File, ino: u64) -> io::Result<()> {
        let len = 1 + self.random.below(30_000);
        let Some(Content::Stream {
            tag, size, most, ..
        }) = self.contents.get_mut(&ino)
        else {
            return Ok(());
        };
        if *size + len > SIZE_MAX {
            return Ok(());
        }
        let bytes = stream(*tag, *size, len as usize);
        *most = (*most).max(*size + len);
        file.write_all_at(&bytes, *size)?;
        *size += len;
        Ok(())
    }

    fn append(&mut self, dir: &Path) -> io::Result<()> {
        let stream = |content: &Content| matches!(content, Content::Stream { .. });
        let Some((name, ino)) = self.some_file(stream) else {
            return Ok(());
        };
        let file = OpenOptions::new().write(true).open(dir.join(name))?;
        self.grow(&file, ino)
    }

    fn cut(&mut self, dir: &Path) -> io::Result<()> {
        let stream = |content: &Content| matches!(content, Content::Stream { .. });
        let Some((name, ino)) = self.some_file(stream) else {
            return Ok(());
        };
        let part = self.random.below(8);
        let Some(Content::Stream { size, sure, .. }) = self.contents.get_mut(&ino) else {
            return Ok(());
        };
        let to = *size * part / 8;
        *sure = (*sure).min(to);
        let file = OpenOptions::new().write(true).open(dir.join(name))?;
        file.set_len(to)?;
        *size = to;
        Ok(())
    }

    fn overwrite(&mut self, dir: &Path) -> io::Result<()> {
        let blocks = |content: &Content| matches!(content, Content::Blocks { .. });
        let Some((name, ino)) = self.some_file(blocks) else {
            return Ok(());
        };
        let first = self.random.below(BLOCKS);
        let count = (1 + self.random.below(4)).min(BLOCKS - first);
        let Some(Content::Blocks { tag, last, .. }) = self.contents.get_mut(&ino) else {
            return Ok(());
        };
        let file = OpenOptions::new().write(true).open(dir.join(name))?;
        for n in first..first + count {
            self.generation += 1;
            last[n as usize] = self.generation;
            let bytes = block(*tag, n, self.generation);
            file.write_all_at(&bytes, n * BLOCK as u64)?;
        }
        Ok(())
    }

    fn sync_file(&mut self, dir: &Path) -> io::Result<()> {
        let Some((name, ino)) = self.a_file() else {
            return Ok(());
        };
        File::open(dir.join(name))?.sync_all()?;
        self.synced(ino);
        Ok(())
    }

    fn sync_everything(&mut self, dir: &Path) -> io::Result<()> {
        if let Some(sync) = self.sync_all {
            sync(dir)?;
            self.contents.values_mut().for_each(Content::synced);
            self.promised();
        }
        Ok(())
    }

    fn sync_names(&mut self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()?;
        self.promised();
        Ok(())
    }

    /// Records that a file, and with it all names, was synced.
    fn synced(&mut self, ino: u64) {
        if let Some(content) = self.contents.get_mut(&ino) {
            content.synced();
        }
        self.promised();
    }

    /// Replaces a file by a new one, as editors and `rsync` do.
    fn replace(&mut self, dir: &Path) -> io::Result<()> {
        if self.now().contains_key("a/new") {
            self.will(|names| {
                names.remove("a/new");
            });
            std::fs::remove_file(dir.join("a/new"))?;
        }
        let (file, ino) = self.create_named(dir, "a/new", false)?;
        self.grow(&file, ino)?;
        file.sync_all()?;
        self.synced(ino);
        let to = self.any_name();
        self.move_to(dir, "a/new", &to)
    }

    fn rename(&mut self, dir: &Path) -> io::Result<()> {
        let Some((name, _)) = self.a_file() else {
            return Ok(());
        };
        let to = self.any_name();
        self.move_to(dir, &name, &to)
    }

    fn move_to(&mut self, dir: &Path, from: &str, to: &str) -> io::Result<()> {
        let same = self.now().get(from) == self.now().get(to);
        self.will(|names| {
            // A rename between two names of the same file changes nothing.
            if let (false, Some(ino)) = (same, names.get(from).copied()) {
                names.remove(from);
                names.insert(to.into(), ino);
            }
        });
        std::fs::rename(dir.join(from), dir.join(to))
    }

    fn link(&mut self, dir: &Path) -> io::Result<()> {
        let (Some((name, ino)), to) = (self.a_file(), self.any_name()) else {
            return Ok(());
        };
        if self.now().contains_key(&to) {
            return Ok(());
        }
        self.will(|names| {
            names.insert(to.clone(), ino);
        });
        std::fs::hard_link(dir.join(name), dir.join(to))
    }

    fn unlink(&mut self, dir: &Path) -> io::Result<()> {
        let Some((name, _)) = self.a_file() else {
            return Ok(());
        };
        if self.random.below(4) == 0 {
            self.open.truncate(3);
            self.open.push(File::open(dir.join(&name))?);
        }
        self.will(|names| {
            names.remove(&name);
        });
        std::fs::remove_file(dir.join(name))
    }

    /// Creates a directory, or removes it.
    fn folder(&mut self, dir: &Path) -> io::Result<()> {
        let name = format!("b/folder{}", self.random.below(3));
        if self.now().contains_key(&name) {
            self.will(|names| {
                names.remove(&name);
            });
            return std::fs::remove_dir(dir.join(name));
        }
        self.will(|names| {
            names.insert(name.clone(), UNKNOWN);
        });
        std::fs::create_dir(dir.join(&name))?;
        let ino = std::fs::metadata(dir.join(&name))?.ino();
        self.contents.insert(ino, Content::Folder);
        let now = self.states.last_mut().expect("just made");
        now.insert(name, ino);
        Ok(())
    }

    /// Checks all files after a crash, and continues from the state found.
    pub fn verify(&mut self, root: &Path) {
        let dir = root.join(&self.name);
        let found = walk(&dir);
        let is_it = |state: &&Names| {
            state.len() == found.len()
                && state
                    .iter()
                    .zip(&found)
                    .all(|(one, other)| one.0 == other.0 && (*one.1 == UNKNOWN || one.1 == other.1))
        };
        // The number of an inode tells a file from another one of its name, if it is known.
        let exact = self.states.iter().rev().find(|state| **state == found);
        let state = exact.or_else(|| self.states.iter().rev().find(is_it));
        let Some(state) = state.cloned() else {
            let nearest = self.states.iter().map(|state| {
                let differ = |(name, ino): &(&String, &u64)| found.get(*name) != Some(*ino);
                let missing: Vec<_> = state.iter().filter(differ).collect();
                let differ = |(name, ino): &(&String, &u64)| state.get(*name) != Some(*ino);
                let other: Vec<_> = found.iter().filter(differ).collect();
                format!("  expected {missing:?}, found {other:?}")
            });
            let nearest: Vec<_> = nearest.collect();
            panic!(
                "{}: names as they never were since the last fsync; from there on:\n{}",
                self.name,
                nearest.join("\n")
            );
        };
        let mut contents = BTreeMap::new();
        for (name, ino) in &found {
            let path = dir.join(name);
            if state[name] == UNKNOWN {
                let made = std::fs::metadata(&path).expect("it is there");
                assert!(made.is_dir() || made.len() == 0, "{path:?} was just made");
                let kept = if made.is_dir() {
                    Content::Folder
                } else {
                    self.next_tag += 1;
                    Content::Stream {
                        tag: self.next_tag,
                        size: 0,
                        sure: 0,
                        most: 0,
                    }
                };
                contents.insert(*ino, kept);
            } else if !contents.contains_key(ino) {
                contents.insert(*ino, verified(&path, self.contents[ino].clone()));
            }
        }
        self.contents = contents;
        self.states = vec![found];
    }
}

/// Kills the process of a mount, `pause` after each writer has checked its files and begun to change
/// them. `others` run on threads of their own from the beginning; they must end with the mount.
///
/// # Panics
/// A writer has found an error, or met one that does not follow from the kill.
pub fn kill_at_work<F: FnOnce() + Send>(
    mounted: Mounted,
    writers: &mut [Writer],
    pause: Duration,
    others: impl IntoIterator<Item = F>,
) {
    let dir = mounted.dir().to_owned();
    let (verified, killed) = (Barrier::new(writers.len() + 1), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for writer in writers {
            let (dir, verified, killed) = (&dir, &verified, &killed);
            scope.spawn(move || {
                // A writer that finds an error must still reach the barrier.
                let look = std::panic::AssertUnwindSafe(|| writer.verify(dir));
                let looked = std::panic::catch_unwind(look);
                verified.wait();
                looked.unwrap_or_else(|fault| std::panic::resume_unwind(fault));
                let error = writer.work(dir);
                let follows = error.raw_os_error().is_some_and(|code| {
                    GONE.contains(&code) || code == TORN && killed.load(Ordering::SeqCst)
                });
                assert!(follows, "{}, killed: {killed:?}: {error}", writer.name);
            });
        }
        for other in others {
            scope.spawn(other);
        }
        verified.wait();
        std::thread::sleep(pause);
        killed.store(true, Ordering::SeqCst);
        mounted.kill();
    });
}

/// Lists all names under a directory.
fn walk(dir: &Path) -> Names {
    let mut found = Names::new();
    let mut folders: Vec<(PathBuf, String)> = vec![(dir.into(), String::new())];
    while let Some((folder, prefix)) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("it can be listed") {
            let entry = entry.expect("it can be listed");
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            let about = entry.metadata().expect("what is listed is there");
            if about.is_dir() {
                folders.push((entry.path(), format!("{name}/")));
            }
            found.insert(name, about.ino());
        }
    }
    found
}

/// Compares a file with its permitted contents, and returns the content found. Truncates bytes that
/// are not guaranteed.
fn verified(path: &Path, content: Content) -> Content {
    match content {
        Content::Folder => Content::Folder,
        Content::Stream {
            tag, sure, most, ..
        } => {
            let found = read(path);
            let len = found.len() as u64;
            assert!(
                (sure..=most).contains(&len),
                "{path:?} has {len} bytes; {sure} were promised, {most} written"
            );
            for (at, (found, wrote)) in found.iter().zip(stream(tag, 0, found.len())).enumerate() {
                let promised = (at as u64) < sure;
                assert!(
                    *found == wrote || !promised && *found == 0,
                    "{path:?}: byte {at} is {found}, {wrote} was written; {sure} were promised, {most} written"
                );
            }
            if len > sure {
                let file = OpenOptions::new().write(true).open(path);
                let cut = file.and_then(|f| f.set_len(sure).and_then(|()| f.sync_all()));
                cut.expect("it can be cut");
            }
            Content::Stream {
                tag,
                size: sure,
                sure,
                most: sure,
            }
        }
        Content::Blocks {
            tag,
            mut promised,
            last,
        } => {
            let found = read(path);
            let end = |all: &[u64]| all.iter().rposition(|g| *g > 0).map_or(0, |n| n + 1) * BLOCK;
            assert!(
                (end(&promised)..=end(&last)).contains(&found.len()),
                "{path:?} has {} bytes",
                found.len()
            );
            for n in 0..BLOCKS as usize {
                let is = found.get(n * BLOCK..(n + 1) * BLOCK).unwrap_or(&[]);
                let says = is.first_chunk().map_or(0, |g| u64::from_le_bytes(*g));
                assert!(
                    (promised[n]..=last[n]).contains(&says),
                    "{path:?}: block {n} is of generation {says}, of {} promised and {} written",
                    promised[n],
                    last[n]
                );
                let whole = match says {
                    0 => is.iter().all(|byte| *byte == 0),
                    _ => is == block(tag, n as u64, says),
                };
                assert!(whole, "{path:?}: block {n} of generation {says} is torn");
                promised[n] = says;
            }
            Content::Blocks {
                tag,
                last: promised.clone(),
                promised,
            }
        }
    }
}

fn read(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
    read.unwrap_or_else(|e| panic!("{path:?}: {e}"));
    bytes
}

/// Returns the bytes `from..from + len` of an endless stream.
fn stream(tag: u64, from: u64, len: usize) -> Vec<u8> {
    let first = from / BLOCK as u64;
    let skip = (from % BLOCK as u64) as usize;
    let count = (skip + len).div_ceil(BLOCK) as u64;
    let all = (first..first + count).flat_map(|n| Random::new(tag << 20 | n).bytes(BLOCK));
    all.skip(skip).take(len).collect()
}

/// Returns a block that contains its generation.
fn block(tag: u64, number: u64, generation: u64) -> Vec<u8> {
    let mut bytes = Random::new(tag << 32 | number << 24 | generation).bytes(BLOCK);
    bytes[..8].copy_from_slice(&generation.to_le_bytes());
    bytes
}
