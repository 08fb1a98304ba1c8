//! Values that occur in requests and replies.

use crate::abi;
use std::time::Duration;

/// A point in time: seconds since 1970, which may be negative, and nanoseconds after them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Whole seconds, rounded down.
    pub seconds: i64,
    /// Nanoseconds after `seconds`, less than one billion.
    pub nanos: u32,
}

/// Time to which a request sets a file's access or modification time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// Time at which the server executes the request.
    Now,
    /// The given time.
    At(Time),
}

/// Attributes of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attr {
    /// Inode number that programs see.
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Allocated space, in units of 512 bytes.
    pub blocks: u64,
    /// Time of the last access.
    pub atime: Time,
    /// Time of the last change of the data.
    pub mtime: Time,
    /// Time of the last change of the attributes.
    pub ctime: Time,
    /// Time of creation. Only [`reply::statx`](crate::reply::statx) can carry it.
    pub btime: Option<Time>,
    /// Type (`S_IFMT`) and permissions.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, in the encoding of [`Attr::device`].
    pub rdev: u32,
    /// Size of a block, in bytes, that is efficient for I/O.
    pub blksize: u32,
    /// `FUSE_ATTR_` flags.
    pub flags: u32,
}

impl Attr {
    /// Encodes a device number as the kernel does in this protocol.
    pub const fn device(major: u32, minor: u32) -> u32 {
        minor & 0xff | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
    }

    /// Decodes a device number: major, minor.
    pub const fn device_numbers(rdev: u32) -> (u32, u32) {
        (rdev >> 8 & 0xfff, rdev & 0xff | rdev >> 12 & 0xf_ff00)
    }
}

/// A name that the kernel may cache, with the attributes of its file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Entry {
    /// Node by which requests name the file. Each reply with this entry counts as one lookup, which
    /// [`Operation::Forget`](crate::Operation::Forget) returns. In a directory, 0 passes neither
    /// the node nor the attributes on.
    pub node: u64,
    /// Distinguishes files that have the same node at different times.
    pub generation: u64,
    /// Time for which the kernel may cache the name.
    pub entry_ttl: Duration,
    /// Time for which the kernel may cache the attributes.
    pub attr_ttl: Duration,
    /// Attributes of the file.
    pub attr: Attr,
}

/// An opened file or directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Opened {
    /// Handle by which requests name the open file.
    pub handle: u64,
    /// `FOPEN_` flags.
    pub flags: u32,
    /// Identifier of a backing file with `FOPEN_PASSTHROUGH`, otherwise 0.
    pub backing: i32,
}

/// Capacity of a file system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Number of blocks of `fragment_bytes`.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Blocks that unprivileged users may allocate.
    pub available: u64,
    /// Number of inodes.
    pub files: u64,
    /// Free inodes.
    pub free_files: u64,
    /// Size of a block that is efficient for I/O, in bytes.
    pub block_bytes: u32,
    /// Unit of the block counts, in bytes.
    pub fragment_bytes: u32,
    /// Longest name, in bytes.
    pub name_bytes_max: u32,
}

/// Attributes of a file for `statx`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statx {
    /// The basic attributes, and the time of creation.
    pub attr: Attr,
    /// `STATX_ATTR_` flags that are set.
    pub attributes: u64,
    /// `STATX_ATTR_` flags that the file system supports.
    pub attributes_mask: u64,
}

/// Result of an ioctl. Data for the caller follows the reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IoctlReply {
    /// Value that `ioctl` returns.
    pub result: i32,
    /// `FUSE_IOCTL_RETRY`, or 0.
    pub flags: u32,
    /// Number of [`fuse_ioctl_iovec`](abi::fuse_ioctl_iovec) of input that follow, for a retry.
    pub inputs: u32,
    /// Number of those for output, which follow the ones for input.
    pub outputs: u32,
}

impl From<Attr> for abi::fuse_attr {
    fn from(attr: Attr) -> abi::fuse_attr {
        abi::fuse_attr {
            ino: attr.ino,
            size: attr.size,
            blocks: attr.blocks,
            atime: attr.atime.seconds.cast_unsigned(),
            mtime: attr.mtime.seconds.cast_unsigned(),
            ctime: attr.ctime.seconds.cast_unsigned(),
            atimensec: attr.atime.nanos,
            mtimensec: attr.mtime.nanos,
            ctimensec: attr.ctime.nanos,
            mode: attr.mode,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            blksize: attr.blksize,
            flags: attr.flags,
        }
    }
}

impl From<Entry> for abi::fuse_entry_out {
    fn from(entry: Entry) -> abi::fuse_entry_out {
        abi::fuse_entry_out {
            nodeid: entry.node,
            generation: entry.generation,
            entry_valid: entry.entry_ttl.as_secs(),
            attr_valid: entry.attr_ttl.as_secs(),
            entry_valid_nsec: entry.entry_ttl.subsec_nanos(),
            attr_valid_nsec: entry.attr_ttl.subsec_nanos(),
            attr: entry.attr.into(),
        }
    }
}

impl From<Opened> for abi::fuse_open_out {
    fn from(opened: Opened) -> abi::fuse_open_out {
        abi::fuse_open_out {
            fh: opened.handle,
            open_flags: opened.flags,
            backing_id: opened.backing,
        }
    }
}

impl From<StatFs> for abi::fuse_kstatfs {
    fn from(st: StatFs) -> abi::fuse_kstatfs {
        abi::fuse_kstatfs {
            blocks: st.blocks,
            bfree: st.free,
            bavail: st.available,
            files: st.files,
            ffree: st.free_files,
            bsize: st.block_bytes,
            namelen: st.name_bytes_max,
            frsize: st.fragment_bytes,
            padding: 0,
            spare: [0; 6],
        }
    }
}

/// `STATX_BASIC_STATS` of the kernel.
const STATX_BASIC_STATS: u32 = 0x7ff;
/// `STATX_BTIME` of the kernel.
const STATX_BTIME: u32 = 0x800;

impl From<Statx> for abi::fuse_statx {
    fn from(statx: Statx) -> abi::fuse_statx {
        let time = |time: Time| abi::fuse_sx_time {
            tv_sec: time.seconds,
            tv_nsec: time.nanos,
            __reserved: 0,
        };
        let attr = statx.attr;
        let (rdev_major, rdev_minor) = Attr::device_numbers(attr.rdev);
        abi::fuse_statx {
            mask: STATX_BASIC_STATS | attr.btime.map_or(0, |_| STATX_BTIME),
            blksize: attr.blksize,
            attributes: statx.attributes,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            mode: (attr.mode & 0xffff) as u16,
            __spare0: [0],
            ino: attr.ino,
            size: attr.size,
            blocks: attr.blocks,
            attributes_mask: statx.attributes_mask,
            atime: time(attr.atime),
            btime: time(attr.btime.unwrap_or_default()),
            ctime: time(attr.ctime),
            mtime: time(attr.mtime),
            rdev_major,
            rdev_minor,
            dev_major: 0,
            dev_minor: 0,
            __spare2: [0; 14],
        }
    }
}
