//! Content of a file in a mount under every kind of access that the kernel passes to the server:
//! through the page cache, past it, by mappings, and asynchronously; and the content after each
//! change compared with a model.
//!
//! | variable | effect |
//! |---|---|
//! | `EVFS_CONTENT_OPS=N` | number of operations on each mount (default: 4000) |
//! | `EVFS_SEED=N` | repeats the same operations |

use io_uring::{IoUring, opcode, types};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tests::mounts::{Disk, On};
use tests::{Random, Sandbox};

/// Longest file in bytes.
const SIZE_MAX: u64 = 1 << 20;
/// Largest operation in bytes.
const LEN_MAX: u64 = 96 << 10;
/// Unit of operations past the page cache, in most cases.
const BLOCK: u64 = 4096;

/// Direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Read,
    Write,
}

/// How a transfer is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// pread(2) and pwrite(2).
    Call,
    /// io_submit(2).
    Aio,
    /// io_uring(7).
    Ring,
}

/// Memory that begins at a page, or the mapping of a file.
struct Memory(*mut u8, usize);

impl Memory {
    fn anonymous(len: usize) -> Memory {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let none = std::ptr::null_mut();
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { rustix::mm::mmap_anonymous(none, len, access, MapFlags::PRIVATE) };
        Memory(at.expect("memory").cast(), len)
    }

    fn of(file: &File, offset: u64, len: usize) -> Memory {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let none = std::ptr::null_mut();
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { rustix::mm::mmap(none, len, access, MapFlags::SHARED, file, offset) };
        Memory(at.expect("it can be mapped").cast(), len)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has this length, and is accessed only through this value.
        unsafe { std::slice::from_raw_parts_mut(self.0, self.1) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and no reference to it is left.
        let _ = unsafe { rustix::mm::munmap(self.0.cast(), self.1) };
    }
}

/// `struct iocb` of <linux/aio_abi.h>, little-endian.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key: u32,
    flags_of_call: u32,
    opcode: u16,
    priority: i16,
    descriptor: u32,
    memory: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

/// `struct io_event` of <linux/aio_abi.h>.
#[repr(C)]
#[derive(Default)]
struct Event {
    data: u64,
    request: u64,
    result: i64,
    result2: i64,
}

/// Context of io_submit(2).
struct Aio(u64);

impl Aio {
    fn new() -> Aio {
        let mut context = 0u64;
        // SAFETY: the kernel stores the number of the context.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, 1, &raw mut context) };
        assert_eq!(made, 0, "{}", io::Error::last_os_error());
        Aio(context)
    }

    fn transfer(&self, way: Way, file: &File, memory: &mut [u8], offset: u64) -> i64 {
        let mut request = Iocb {
            // IOCB_CMD_PREAD and IOCB_CMD_PWRITE.
            opcode: u16::from(way == Way::Write),
            descriptor: file.as_raw_fd() as u32,
            memory: memory.as_mut_ptr() as u64,
            bytes: memory.len() as u64,
            offset: offset as i64,
            ..Iocb::default()
        };
        let mut list = [&raw mut request];
        // SAFETY: one request, whose memory lives until it is done.
        let sent = unsafe { libc::syscall(libc::SYS_io_submit, self.0, 1, list.as_mut_ptr()) };
        assert_eq!(sent, 1, "{}", io::Error::last_os_error());
        let mut event = Event::default();
        let none = std::ptr::null::<libc::timespec>();
        let done = again(|| {
            // SAFETY: room for one event.
            let done = unsafe {
                libc::syscall(libc::SYS_io_getevents, self.0, 1, 1, &raw mut event, none)
            };
            if done < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(done)
        });
        assert_eq!(done.expect("it is done"), 1);
        event.result
    }
}

/// Repeats a system call that a signal interrupts, also one that stops and continues the process.
fn again<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: the context of this value, without requests.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

/// A file, and the bytes that it must have.
struct Subject {
    path: PathBuf,
    expected: Vec<u8>,
    cached: File,
    direct: File,
    memory: Memory,
    aio: Aio,
    ring: IoUring,
    /// Whether the kernel may hold back a new length, so that a read past its cache ends at the
    /// length that the server knows.
    holds_back: bool,
    random: Random,
    /// The last operations.
    log: Vec<String>,
}

fn open(path: &Path, flags: OFlags) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let file = options.custom_flags(flags.bits() as i32).open(path);
    file.expect("it opens")
}

impl Subject {
    fn new(path: PathBuf, holds_back: bool, random: Random) -> Subject {
        Subject {
            expected: Vec::new(),
            cached: open(&path, OFlags::empty()),
            direct: open(&path, OFlags::DIRECT),
            memory: Memory::anonymous(LEN_MAX as usize),
            aio: Aio::new(),
            ring: IoUring::new(2).expect("a ring"),
            holds_back,
            random,
            log: Vec::new(),
            path,
        }
    }

    /// Returns a range that ends at `end` at the latest.
    fn range(&mut self, end: u64, unit: u64) -> (u64, usize) {
        let offset = self.random.below(end.max(1)) / unit * unit;
        let len = (1 + self.random.below(LEN_MAX))
            .next_multiple_of(unit)
            .min(LEN_MAX);
        (offset, len.min(end.saturating_sub(offset)) as usize)
    }

    /// Transfers the first bytes of the memory by one request; returns the number of bytes.
    fn transfer(&mut self, way: Way, by: By, past_cache: bool, offset: u64, len: usize) -> usize {
        let file = if past_cache {
            &self.direct
        } else {
            &self.cached
        };
        let memory = &mut self.memory.bytes()[..len];
        let done = match by {
            By::Call => {
                let (at, to) = (memory.as_mut_ptr().cast(), offset as i64);
                // SAFETY: memory of this length.
                let done = unsafe {
                    match way {
                        Way::Read => libc::pread(file.as_raw_fd(), at, len, to),
                        Way::Write => libc::pwrite(file.as_raw_fd(), at, len, to),
                    }
                };
                assert!(done >= 0, "{}", io::Error::last_os_error());
                done as i64
            }
            By::Aio => self.aio.transfer(way, file, memory, offset),
            By::Ring => {
                let fd = types::Fd(file.as_raw_fd());
                let (at, len) = (memory.as_mut_ptr(), len as u32);
                let entry = match way {
                    Way::Read => opcode::Read::new(fd, at, len).offset(offset).build(),
                    Way::Write => opcode::Write::new(fd, at, len).offset(offset).build(),
                };
                // SAFETY: the memory lives until the request is done.
                unsafe { self.ring.submission().push(&entry) }.expect("room in the ring");
                again(|| self.ring.submit_and_wait(1)).expect("it is done");
                self.ring
                    .completion()
                    .next()
                    .expect("it is done")
                    .result()
                    .into()
            }
        };
        assert!(done >= 0, "{}", io::Error::from_raw_os_error(-done as i32));
        done as usize
    }

    /// Chooses how a transfer is requested, and whether past the cache.
    fn manner(&mut self) -> (By, bool, u64) {
        let by = [By::Call, By::Aio, By::Ring][self.random.below(3) as usize];
        let past_cache = self.random.below(2) == 0;
        let is_odd = !past_cache || self.random.below(8) == 0;
        (by, past_cache, if is_odd { 1 } else { BLOCK })
    }

    fn read(&mut self) {
        let (by, past_cache, unit) = self.manner();
        let (offset, len) = self.range(SIZE_MAX, unit);
        self.log
            .push(format!("read {by:?} {past_cache} {offset} {len}"));
        if past_cache && self.holds_back {
            self.cached.sync_all().expect("it is synced");
        }
        let done = self.transfer(Way::Read, by, past_cache, offset, len);
        let size = self.expected.len();
        let from = size.min(offset as usize);
        let to = size.min(offset as usize + len);
        self.same(done == to - from, "length");
        let found = self.memory.bytes()[..done].to_vec();
        self.compare(from, &found);
    }

    fn write(&mut self) {
        let (by, past_cache, unit) = self.manner();
        let (offset, len) = self.range(SIZE_MAX, unit);
        self.log
            .push(format!("write {by:?} {past_cache} {offset} {len}"));
        let data = self.random.bytes(len);
        self.memory.bytes()[..len].copy_from_slice(&data);
        let done = self.transfer(Way::Write, by, past_cache, offset, len);
        self.same(done == len, "length");
        self.grow(offset as usize + len);
        self.expected[offset as usize..][..len].copy_from_slice(&data);
    }

    /// Reads or writes through a mapping.
    fn map(&mut self, way: Way) {
        let size = self.expected.len() as u64;
        let (offset, len) = self.range(size, 1);
        self.log.push(format!("mapped {way:?} {offset} {len}"));
        if len == 0 {
            return;
        }
        let skip = (offset % BLOCK) as usize;
        let mut mapped = Memory::of(&self.cached, offset - skip as u64, skip + len);
        let range = offset as usize..offset as usize + len;
        match way {
            Way::Read => {
                let found = mapped.bytes()[skip..].to_vec();
                self.compare(range.start, &found);
            }
            Way::Write => {
                let data = self.random.bytes(len);
                mapped.bytes()[skip..].copy_from_slice(&data);
                self.expected[range].copy_from_slice(&data);
                if self.random.below(2) == 0 {
                    // SAFETY: the range is that of the mapping.
                    let synced =
                        unsafe { rustix::mm::msync(mapped.0.cast(), mapped.1, MsyncFlags::SYNC) };
                    synced.expect("it is synced");
                }
            }
        }
    }

    fn cut_or_grow(&mut self) {
        let size = self.random.below(SIZE_MAX);
        self.log.push(format!("size {size}"));
        self.cached.set_len(size).expect("it gets this size");
        self.expected.resize(size as usize, 0);
    }

    fn allocate(&mut self) {
        let modes = [
            FallocateFlags::empty(),
            FallocateFlags::KEEP_SIZE,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            FallocateFlags::ZERO_RANGE,
            FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        ];
        let mode = modes[self.random.below(modes.len() as u64) as usize];
        let unit = [1, BLOCK][self.random.below(2) as usize];
        let (offset, len) = self.range(SIZE_MAX, unit);
        self.log.push(format!("allocate {mode:?} {offset} {len}"));
        let done = rustix::fs::fallocate(&self.cached, mode, offset, len as u64);
        done.expect("it is allocated");
        if !mode.contains(FallocateFlags::KEEP_SIZE) {
            self.grow(offset as usize + len);
        }
        let clears = FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE;
        if mode.intersects(clears) {
            let size = self.expected.len();
            let range = size.min(offset as usize)..size.min(offset as usize + len);
            self.expected[range].fill(0);
        }
    }

    /// Copies a range of the file to another place in it.
    fn copy(&mut self) {
        let size = self.expected.len() as u64;
        let (from, len) = self.range(size, 1);
        let to = self.random.below(SIZE_MAX - len as u64);
        let overlaps = from < to + len as u64 && to < from + len as u64;
        if overlaps || len == 0 {
            return;
        }
        self.log.push(format!("copy {from} {to} {len}"));
        let (mut from_now, mut to_now) = (from, to);
        while from_now < from + len as u64 {
            let left = (from + len as u64 - from_now) as usize;
            let (of, into) = (&self.cached, &self.cached);
            let (at, at_too) = (Some(&mut from_now), Some(&mut to_now));
            let done = rustix::fs::copy_file_range(of, at, into, at_too, left);
            assert!(done.expect("it is copied") > 0, "the source has bytes");
        }
        self.grow(to as usize + len);
        let range = from as usize..from as usize + len;
        self.expected.copy_within(range, to as usize);
    }

    fn reopen(&mut self) {
        self.log.push("reopen".into());
        self.cached = open(&self.path, OFlags::empty());
        self.direct = open(&self.path, OFlags::DIRECT);
    }

    fn sync(&mut self) {
        self.log.push("sync".into());
        let file = [&self.cached, &self.direct][self.random.below(2) as usize];
        file.sync_all().expect("it is synced");
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..22 => self.read(),
            22..50 => self.write(),
            50..60 => self.map(Way::Read),
            60..72 => self.map(Way::Write),
            72..78 => self.cut_or_grow(),
            78..88 => self.allocate(),
            88..94 => self.copy(),
            94..97 => self.reopen(),
            _ => self.sync(),
        }
        let size = self.cached.metadata().expect("attributes").len();
        self.same(size == self.expected.len() as u64, "size");
    }

    fn grow(&mut self, to: usize) {
        if self.expected.len() < to {
            self.expected.resize(to, 0);
        }
    }

    #[track_caller]
    fn compare(&self, at: usize, found: &[u8]) {
        let differs = self.expected[at..]
            .iter()
            .zip(found)
            .position(|(a, b)| a != b);
        if let Some(first) = differs {
            self.same(false, &format!("byte {}", at + first));
        }
    }

    #[track_caller]
    fn same(&self, is_so: bool, what: &str) {
        let last = self.log.len().saturating_sub(40);
        assert!(is_so, "another {what} after {:#?}", &self.log[last..]);
    }

    /// Compares the whole file.
    fn end(self) {
        let found = std::fs::read(&self.path).expect("readable");
        self.same(found.len() == self.expected.len(), "size");
        self.compare(0, &found);
        std::fs::remove_file(&self.path).expect("removed");
    }
}

fn every_access(options: &'static [&'static str]) {
    /// Operations on one file.
    const OPS: u64 = 2000;
    let ops = std::env::var("EVFS_CONTENT_OPS");
    let ops: u64 = ops.map_or(4000, |text| text.parse().expect("a number"));
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Clear, "256M").with(options);
    let mounted = disk.mount(&[]);
    let mut random = Random::from_environment();
    for file in 0..ops.div_ceil(OPS) {
        let seed = random.below(1 << 32);
        let path = mounted.path(&file.to_string());
        let mut subject = Subject::new(path, !options.is_empty(), Random::new(seed));
        (0..OPS).for_each(|_| subject.step());
        subject.end();
    }
    mounted.unmount(&s);
    disk.check();
}

#[test]
fn every_kind_of_access_sees_what_the_others_wrote() {
    every_access(&[]);
}

#[test]
fn every_kind_of_access_sees_what_the_others_wrote_through_the_cache_of_the_kernel() {
    every_access(&["--exclusive"]);
}
