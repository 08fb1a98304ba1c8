//! Replies. Each is an array of bytes with the header first. Data that follows is not copied: the
//! caller writes it after the array, in the same `writev`.

use crate::abi::*;
use crate::operation::Lock;
use crate::session::InitReply;
use crate::values::{Attr, Entry, IoctlReply, Opened, StatFs, Statx};
use std::time::Duration;
use zerocopy::{Immutable, IntoBytes};

/// Size of the header of a reply, in bytes.
pub const HEADER_BYTES: usize = size_of::<fuse_out_header>();

/// Error for an error number that a reply cannot carry (`EIO`).
const EIO: i32 = 5;

/// First error number that the kernel refuses in a reply.
const ERRNO_END: i32 = 512;

/// Size of a reply with the given structure, in bytes.
const fn with<T>() -> usize {
    HEADER_BYTES + size_of::<T>()
}

/// Builds a message: the header, then `body`, then `more` bytes that the caller writes.
pub(crate) fn message<T: IntoBytes + Immutable, const N: usize>(
    (unique, error): (u64, i32),
    body: &T,
    more: usize,
) -> [u8; N] {
    const { assert!(N == with::<T>()) };
    let header = fuse_out_header {
        // A longer message is refused by the kernel, as any with a wrong length.
        len: u32::try_from(N.saturating_add(more)).unwrap_or(u32::MAX),
        error,
        unique,
    };
    let mut out = [0; N];
    // Both fit, as the assertion says.
    let _ = header.write_to_prefix(&mut out);
    let _ = body.write_to_suffix(&mut out);
    out
}

fn reply<T: IntoBytes + Immutable, const N: usize>(unique: u64, body: &T) -> [u8; N] {
    message((unique, 0), body, 0)
}

/// Failure with a positive error number. A number that is none becomes `EIO`.
pub fn error(unique: u64, errno: i32) -> [u8; HEADER_BYTES] {
    let errno = match errno {
        1..ERRNO_END => errno,
        _ => EIO,
    };
    message((unique, -errno), &[0; 0], 0)
}

/// Success of an operation without a result.
pub fn empty(unique: u64) -> [u8; HEADER_BYTES] {
    data_header(unique, 0)
}

/// Header of a reply with `len` bytes of data, which follow it: a read, the target of a link, a
/// list of attributes.
pub fn data_header(unique: u64, len: usize) -> [u8; HEADER_BYTES] {
    message((unique, 0), &[0; 0], len)
}

/// Answer to INIT, also to one with another major version.
pub fn init(unique: u64, answer: &InitReply) -> [u8; with::<fuse_init_out>()] {
    let [flags, flags2] = halves(answer.flags);
    let out = fuse_init_out {
        major: answer.major,
        minor: answer.minor,
        max_readahead: answer.max_readahead,
        flags,
        max_background: answer.max_background,
        congestion_threshold: answer.congestion_threshold,
        max_write: answer.max_write,
        time_gran: answer.time_gran,
        max_pages: answer.max_pages,
        map_alignment: 0,
        flags2,
        max_stack_depth: answer.max_stack_depth,
        request_timeout: answer.request_timeout,
        unused: [0; 11],
    };
    reply(unique, &out)
}

/// Splits a number into its lower and its upper half.
fn halves(value: u64) -> [u32; 2] {
    let low = value & u64::from(u32::MAX);
    [low, value >> 32].map(|half| u32::try_from(half).unwrap_or(u32::MAX))
}

/// A name and its file.
pub fn entry(unique: u64, entry: &Entry) -> [u8; with::<fuse_entry_out>()] {
    reply(unique, &fuse_entry_out::from(*entry))
}

/// A name that does not exist, which the kernel may cache for the given time. Without caching, the
/// answer is the error `ENOENT`.
pub fn negative_entry(unique: u64, ttl: Duration) -> [u8; with::<fuse_entry_out>()] {
    let nothing = Entry {
        entry_ttl: ttl,
        ..Entry::default()
    };
    entry(unique, &nothing)
}

/// Attributes, which the kernel may cache for the given time.
pub fn attr(unique: u64, attr: &Attr, ttl: Duration) -> [u8; with::<fuse_attr_out>()] {
    let out = fuse_attr_out {
        attr_valid: ttl.as_secs(),
        attr_valid_nsec: ttl.subsec_nanos(),
        dummy: 0,
        attr: (*attr).into(),
    };
    reply(unique, &out)
}

/// Attributes for `statx`, which the kernel may cache for the given time.
pub fn statx(unique: u64, statx: &Statx, ttl: Duration) -> [u8; with::<fuse_statx_out>()] {
    let out = fuse_statx_out {
        attr_valid: ttl.as_secs(),
        attr_valid_nsec: ttl.subsec_nanos(),
        flags: 0,
        spare: [0; 2],
        stat: (*statx).into(),
    };
    reply(unique, &out)
}

/// An opened file or directory.
pub fn open(unique: u64, opened: &Opened) -> [u8; with::<fuse_open_out>()] {
    reply(unique, &fuse_open_out::from(*opened))
}

/// Answer to CREATE and TMPFILE.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Created {
    entry: fuse_entry_out,
    open: fuse_open_out,
}

/// A created and opened file.
pub fn create(unique: u64, entry: &Entry, opened: &Opened) -> [u8; with::<Created>()] {
    let created = Created {
        entry: (*entry).into(),
        open: (*opened).into(),
    };
    reply(unique, &created)
}

/// Number of bytes that a write has written.
pub fn write(unique: u64, size: u32) -> [u8; with::<fuse_write_out>()] {
    reply(unique, &fuse_write_out { size, padding: 0 })
}

/// Number of bytes that a copy has copied; `is_64` is that of the request. Without it, a copy of
/// 4 GiB or more is reported as shorter.
pub fn copied(unique: u64, bytes: u64, is_64: bool) -> [u8; with::<fuse_copy_file_range_out>()] {
    if is_64 {
        return reply(
            unique,
            &fuse_copy_file_range_out {
                bytes_copied: bytes,
            },
        );
    }
    write(unique, u32::try_from(bytes).unwrap_or(u32::MAX))
}

/// Capacity of the file system.
pub fn statfs(unique: u64, statfs: &StatFs) -> [u8; with::<fuse_statfs_out>()] {
    reply(
        unique,
        &fuse_statfs_out {
            st: (*statfs).into(),
        },
    )
}

/// Size of an attribute's value or of the list of names, for a request of size 0.
pub fn xattr_size(unique: u64, size: u32) -> [u8; with::<fuse_getxattr_out>()] {
    reply(unique, &fuse_getxattr_out { size, padding: 0 })
}

/// Position of data or of a hole.
pub fn lseek(unique: u64, offset: u64) -> [u8; with::<fuse_lseek_out>()] {
    reply(unique, &fuse_lseek_out { offset })
}

/// Lock that conflicts with that of the request. A lock of type `F_UNLCK` says that there is none.
pub fn lock(unique: u64, lock: &Lock) -> [u8; with::<fuse_lk_out>()] {
    let lk = fuse_file_lock {
        start: lock.start,
        end: lock.end,
        r#type: lock.kind,
        pid: lock.pid,
    };
    reply(unique, &fuse_lk_out { lk })
}

/// Block of the device.
pub fn bmap(unique: u64, block: u64) -> [u8; with::<fuse_bmap_out>()] {
    reply(unique, &fuse_bmap_out { block })
}

/// State of a file for `poll`.
pub fn poll(unique: u64, events: u32) -> [u8; with::<fuse_poll_out>()] {
    reply(
        unique,
        &fuse_poll_out {
            revents: events,
            padding: 0,
        },
    )
}

/// Header of the result of an ioctl with `len` bytes of output, which follow it.
pub fn ioctl(unique: u64, result: &IoctlReply, len: usize) -> [u8; with::<fuse_ioctl_out>()] {
    let out = fuse_ioctl_out {
        result: result.result,
        flags: result.flags,
        in_iovs: result.inputs,
        out_iovs: result.outputs,
    };
    message((unique, 0), &out, len)
}

/// Entries of a directory, in a reply that has room for them.
#[derive(Debug)]
struct Listing {
    buffer: Vec<u8>,
    limit: usize,
}

impl Listing {
    fn new(mut buffer: Vec<u8>, size: u32) -> Listing {
        buffer.clear();
        buffer.extend([0; HEADER_BYTES]);
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let limit = HEADER_BYTES.saturating_add(size);
        Listing { buffer, limit }
    }

    /// Adds an entry if it fits.
    fn add(&mut self, before: &[u8], mut entry: fuse_dirent, name: &[u8]) -> bool {
        let Ok(namelen) = u32::try_from(name.len()) else {
            return false;
        };
        entry.namelen = namelen;
        let bytes = (before.len() + size_of_val(&entry) + name.len()).next_multiple_of(8);
        let end = self.buffer.len() + bytes;
        if end > self.limit {
            return false;
        }
        self.buffer.extend_from_slice(before);
        self.buffer.extend_from_slice(entry.as_bytes());
        self.buffer.extend_from_slice(name);
        self.buffer.resize(end, 0);
        true
    }

    fn finish(mut self, unique: u64) -> Vec<u8> {
        let header = data_header(unique, self.buffer.len() - HEADER_BYTES);
        let _ = header.write_to_prefix(&mut self.buffer);
        self.buffer
    }
}

/// Builder of the reply to READDIR.
///
/// Names must have 1 to 1024 bytes without slashes; the kernel refuses the reply otherwise.
#[derive(Debug)]
pub struct Directory(Listing);

impl Directory {
    /// Starts a reply of at most `size` bytes of entries, as the request states, in the memory of
    /// `buffer`.
    pub fn new(buffer: Vec<u8>, size: u32) -> Directory {
        Directory(Listing::new(buffer, size))
    }

    /// Adds an entry. Returns whether it fits; if not, the reply is complete without it.
    ///
    /// `next` is the cookie at which the next READDIR continues after this entry, `kind` the type
    /// in `mode` (`S_IFMT`).
    pub fn add(&mut self, ino: u64, next: u64, mode: u32, name: &[u8]) -> bool {
        self.0.add(&[], dirent(ino, next, mode), name)
    }

    /// Completes the reply.
    pub fn finish(self, unique: u64) -> Vec<u8> {
        self.0.finish(unique)
    }
}

/// Builder of the reply to READDIRPLUS. See [`Directory`].
#[derive(Debug)]
pub struct DirectoryPlus(Listing);

impl DirectoryPlus {
    /// Starts a reply. See [`Directory::new`].
    pub fn new(buffer: Vec<u8>, size: u32) -> DirectoryPlus {
        DirectoryPlus(Listing::new(buffer, size))
    }

    /// Adds an entry. Returns whether it fits; only then, and if its node is not 0, it counts as a
    /// lookup.
    pub fn add(&mut self, entry: &Entry, next: u64, name: &[u8]) -> bool {
        let out = fuse_entry_out::from(*entry);
        let dirent = dirent(entry.attr.ino, next, entry.attr.mode);
        self.0.add(out.as_bytes(), dirent, name)
    }

    /// Completes the reply.
    pub fn finish(self, unique: u64) -> Vec<u8> {
        self.0.finish(unique)
    }
}

fn dirent(ino: u64, off: u64, mode: u32) -> fuse_dirent {
    fuse_dirent {
        ino,
        off,
        namelen: 0,
        // `DT_` types are `S_IFMT` types, shifted.
        r#type: mode >> 12 & 0xf,
    }
}
