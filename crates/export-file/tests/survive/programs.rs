//! Programs that know what they have written.

use block_testing::Random;
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A program whose steps may not fail.
pub trait Program: Send {
    fn step(&mut self);

    /// Compares everything; `at` is the file, or the directory in which the file system is mounted.
    fn verify(&self, at: &Path);

    /// Closes what is open.
    fn close(&mut self);
}

/// Bytes of a part of the file.
const PART: u64 = 4 << 20;

/// Bytes of it that are mapped.
const MAPPED: usize = 256 << 10;

/// A program that changes a part of a file, whose ends are in blocks that it shares with its
/// neighbors, and maps another part.
pub struct OnFile {
    open: Option<Open>,
    path: PathBuf,
    random: Random,
    start: u64,
    part: Vec<u8>,
    map_start: u64,
    mapped: Vec<u8>,
}

struct Open {
    file: File,
    durable: File,
    map: Map,
}

struct Map(*mut u8);

// SAFETY: the mapping belongs to one program.
unsafe impl Send for Map {}

impl Map {
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has this length, and nothing else refers to it.
        unsafe { std::slice::from_raw_parts_mut(self.0, MAPPED) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length.
        unsafe { munmap(self.0.cast(), MAPPED) }.expect("unmapped");
    }
}

impl Open {
    fn new(path: &Path, map_start: u64) -> Open {
        let open = |flags| {
            let mut open = OpenOptions::new();
            open.read(true).write(true).custom_flags(flags);
            open.open(path).expect("it opens")
        };
        let (file, durable) = (open(0), open(libc::O_DSYNC));
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping, at an address that the system chooses.
        let map = unsafe { mmap(null, MAPPED, access, MapFlags::SHARED, &file, map_start) };
        let map = Map(map.expect("a mapping").cast());
        Open { file, durable, map }
    }
}

impl OnFile {
    pub fn new(path: &Path, number: u64, seed: u64) -> OnFile {
        let map_start = (32 << 20) + number * MAPPED as u64;
        OnFile {
            open: Some(Open::new(path, map_start)),
            path: path.to_owned(),
            random: Random::new(seed),
            start: 1000 + number * PART,
            part: vec![0; PART as usize],
            map_start,
            mapped: vec![0; MAPPED],
        }
    }

    /// Chooses a range of the part.
    fn range(&mut self) -> (usize, usize) {
        let most = match self.random.below(8) {
            0 => 3 << 20,
            1..4 => 100_000,
            _ => 9000,
        };
        let (mut at, mut len) = (self.random.below(PART), self.random.below(most) + 1);
        if self.random.below(2) == 0 {
            // Whole blocks.
            let before = self.start % 4096;
            (at, len) = (
                (at - at % 4096 + 4096 - before) % PART,
                len - len % 4096 + 4096,
            );
        }
        (at as usize, len.min(PART - at) as usize)
    }

    fn write(&mut self) {
        let (at, len) = self.range();
        let mut bytes = vec![0; len];
        self.random.fill(&mut bytes);
        let open = self.open.as_ref().expect("open");
        let file = [&open.file, &open.durable][self.random.below(2) as usize];
        let written = file.write_all_at(&bytes, self.start + at as u64);
        written.expect("written");
        self.part[at..at + len].copy_from_slice(&bytes);
    }

    fn read(&mut self) {
        let (at, len) = self.range();
        let mut bytes = vec![0; len];
        let file = &self.open.as_ref().expect("open").file;
        let read = file.read_exact_at(&mut bytes, self.start + at as u64);
        read.expect("read");
        same(&bytes, &self.part[at..at + len], "a part");
    }

    fn zero(&mut self) {
        let (at, len) = self.range();
        let file = &self.open.as_ref().expect("open").file;
        let (start, len64) = (self.start + at as u64, len as u64);
        let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        fallocate(file, flags, start, len64).expect("zeroed");
        self.part[at..at + len].fill(0);
        // A hole would be noise.
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punched = fallocate(file, flags, start, len64);
        assert_eq!(punched, Err(rustix::io::Errno::OPNOTSUPP));
        fallocate(file, FallocateFlags::empty(), start, len64).expect("allocated");
    }

    fn map(&mut self) {
        let open = self.open.as_mut().expect("open");
        let (at, mut bytes) = (self.random.below(MAPPED as u64 - 5000) as usize, [0; 5000]);
        self.random.fill(&mut bytes);
        let map = open.map.bytes();
        map[at..at + 5000].copy_from_slice(&bytes);
        self.mapped[at..at + 5000].copy_from_slice(&bytes);
        same(map, &self.mapped, "the mapping");
        if self.random.below(3) == 0 {
            // SAFETY: the mapping has this length.
            let synced = unsafe { msync(map.as_mut_ptr().cast(), MAPPED, MsyncFlags::SYNC) };
            synced.expect("synced");
            let mut read = vec![0; MAPPED];
            let file = &open.file;
            file.read_exact_at(&mut read, self.map_start).expect("read");
            same(&read, &self.mapped, "the mapped part");
        }
    }
}

impl Program for OnFile {
    fn step(&mut self) {
        let file = || &self.open.as_ref().expect("open").file;
        match self.random.below(20) {
            0..7 => self.write(),
            7..12 => self.read(),
            12 => self.zero(),
            13 => file().sync_all().expect("synced"),
            14 => file().sync_data().expect("synced"),
            15 => self.open = Some(Open::new(&self.path, self.map_start)),
            16 => {
                let listed = fs::read_dir(self.path.parent().expect("a directory"));
                let listed = listed
                    .expect("listed")
                    .map(|entry| entry.expect("an entry").path());
                assert!(listed.eq([self.path.as_path()]));
                let found = rustix::fs::statfs(&self.path).expect("a size");
                assert_eq!(found.f_blocks * 4096, crate::SIZE);
            }
            _ => self.map(),
        }
    }

    fn verify(&self, at: &Path) {
        let file = File::open(at).expect("it opens");
        let mut read = vec![0; PART as usize];
        file.read_exact_at(&mut read, self.start).expect("read");
        same(&read, &self.part, "a part");
        if self.open.is_none() {
            let mut read = vec![0; MAPPED];
            file.read_exact_at(&mut read, self.map_start).expect("read");
            same(&read, &self.mapped, "the mapped part");
        }
    }

    fn close(&mut self) {
        self.open = None;
    }
}

/// Most bytes of a file.
const LEN_MAX: u64 = 200_000;

/// Most files of a program.
const FILES_MAX: usize = 25;

/// A program that changes files in a directory of its own.
pub struct Ext4 {
    dir: PathBuf,
    random: Random,
    files: BTreeMap<String, Vec<u8>>,
    next: u64,
}

impl Ext4 {
    pub fn new(dir: PathBuf, seed: u64) -> Ext4 {
        fs::create_dir(&dir).expect("a directory");
        Ext4 {
            dir,
            random: Random::new(seed),
            files: BTreeMap::new(),
            next: 0,
        }
    }

    fn any(&mut self) -> Option<String> {
        let at = self.random.below(self.files.len().max(1) as u64) as usize;
        self.files.keys().nth(at).cloned()
    }

    fn new_name(&mut self) -> String {
        self.next += 1;
        format!("file{}", self.next)
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        let mut bytes = vec![0; self.random.below(most) as usize + 1];
        self.random.fill(&mut bytes);
        bytes
    }

    fn create(&mut self) {
        let (name, bytes) = (self.new_name(), self.bytes(LEN_MAX));
        fs::write(self.dir.join(&name), &bytes).expect("written");
        self.files.insert(name, bytes);
    }

    fn write(&mut self, name: &str) {
        let bytes = self.bytes(20_000);
        let content = self.files.get_mut(name).expect("its content");
        let at = self.random.below(content.len() as u64) as usize;
        content.resize(content.len().max(at + bytes.len()), 0);
        content[at..at + bytes.len()].copy_from_slice(&bytes);
        let file = OpenOptions::new().write(true).open(self.dir.join(name));
        let file = file.expect("it opens");
        file.write_all_at(&bytes, at as u64).expect("written");
        if self.random.below(2) == 0 {
            file.sync_all().expect("synced");
        }
    }

    /// Reads a file from the device.
    fn read(&mut self, name: &str) {
        let path = self.dir.join(name);
        let file = File::open(&path).expect("it opens");
        file.sync_all().expect("synced");
        fadvise(&file, 0, None, Advice::DontNeed).expect("dropped");
        same(&fs::read(path).expect("read"), &self.files[name], name);
    }
}

impl Program for Ext4 {
    fn step(&mut self) {
        let kind = self.random.below(12);
        let Some(name) = self
            .any()
            .filter(|_| kind > 2 || self.files.len() >= FILES_MAX)
        else {
            return self.create();
        };
        let path = self.dir.join(&name);
        match kind {
            0..6 => self.write(&name),
            6..9 => self.read(&name),
            9 => {
                let to = self.new_name();
                fs::rename(path, self.dir.join(&to)).expect("renamed");
                let bytes = self.files.remove(&name).expect("its content");
                self.files.insert(to, bytes);
            }
            10 => {
                let dir = File::open(&self.dir).expect("it opens");
                rustix::fs::syncfs(dir).expect("synced");
            }
            _ => {
                fs::remove_file(path).expect("removed");
                self.files.remove(&name);
            }
        }
    }

    fn verify(&self, at: &Path) {
        let dir = at.join(self.dir.file_name().expect("a name"));
        let listed = fs::read_dir(&dir).expect("listed");
        assert_eq!(listed.count(), self.files.len());
        for (name, bytes) in &self.files {
            same(&fs::read(dir.join(name)).expect("read"), bytes, name);
        }
    }

    fn close(&mut self) {}
}

#[track_caller]
fn same(found: &[u8], expected: &[u8], what: &str) {
    assert_eq!(found.len(), expected.len(), "length of {what}");
    let differs = found.iter().zip(expected).position(|(a, b)| a != b);
    assert!(differs.is_none(), "{what} differs at byte {differs:?}");
}
