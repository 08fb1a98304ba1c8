//! Requests.

use crate::abi;
use crate::extensions::Extensions;
use crate::session::InitRequest;
use crate::values::{SetTime, Time};
use zerocopy::FromBytes;

/// Header of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Header {
    /// Identifier of the request, which the reply repeats.
    pub unique: u64,
    /// Node of the file that the request is about. For an operation on a name, its directory.
    pub node: u64,
    /// User of the caller, or [`abi::FUSE_INVALID_UIDGID`].
    pub uid: u32,
    /// Group of the caller, or [`abi::FUSE_INVALID_UIDGID`].
    pub gid: u32,
    /// Thread of the caller; 0 if unknown.
    pub pid: u32,
    /// Operation, as in [`abi`].
    pub opcode: u32,
}

impl Header {
    /// Returns whether the kernel sends the request again, after `FUSE_NOTIFY_RESEND`.
    pub fn is_resent(&self) -> bool {
        self.unique & abi::FUSE_UNIQUE_RESEND != 0
    }
}

/// Message of the kernel that the server executes.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Identity of the request, its file and its caller.
    pub header: Header,
    /// Operation with its arguments.
    pub operation: Operation<'a>,
}

/// Operation of a request, with its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation<'a> {
    /// Start of the session: see [`negotiate`](crate::negotiate).
    Init(InitRequest),
    /// End of the session.
    Destroy,
    /// Node of a name.
    Lookup { name: &'a [u8] },
    /// The kernel drops `lookups` references to the node. Not answered.
    Forget { lookups: u64 },
    /// The kernel drops references to several nodes. Not answered.
    BatchForget(Forgets<'a>),
    /// Attributes of a file, which may be open.
    GetAttr { handle: Option<u64> },
    /// Change of attributes.
    SetAttr(SetAttr),
    /// Target of a symbolic link.
    ReadLink,
    /// New symbolic link `name` to `target`.
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
        extensions: Extensions<'a>,
    },
    /// New file of any type but directory and symbolic link.
    MkNod {
        name: &'a [u8],
        mode: u32,
        rdev: u32,
        umask: u32,
        extensions: Extensions<'a>,
    },
    /// New directory.
    MkDir {
        name: &'a [u8],
        mode: u32,
        umask: u32,
        extensions: Extensions<'a>,
    },
    /// Removal of a name that is not a directory's.
    Unlink { name: &'a [u8] },
    /// Removal of a directory.
    RmDir { name: &'a [u8] },
    /// New name of a file; `flags` are those of `renameat2`.
    Rename {
        name: &'a [u8],
        new_parent: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    /// Further name of the file `node`, in the directory of the header.
    Link { node: u64, new_name: &'a [u8] },
    /// Opening of a file; `flags` are those of `open`, `open_flags` are `FUSE_OPEN_` flags.
    Open { flags: u32, open_flags: u32 },
    /// New file that is opened at the same time.
    Create(Create<'a>),
    /// New file without a name that is opened at the same time. [`Create::name`] is without use.
    TmpFile(Create<'a>),
    /// Data of a file.
    Read(Read),
    /// New data of a file.
    Write(Write<'a>),
    /// A descriptor of the file is closed.
    Flush { handle: u64, lock_owner: u64 },
    /// The last descriptor of an open file is closed. `release_flags` are `FUSE_RELEASE_` flags.
    Release {
        handle: u64,
        flags: u32,
        release_flags: u32,
        lock_owner: u64,
    },
    /// Commit of a file to stable storage.
    FSync { handle: u64, data_only: bool },
    /// Opening of a directory.
    OpenDir { flags: u32 },
    /// Entries of a directory from the cookie `offset` on, in at most `size` bytes.
    ReadDir { handle: u64, offset: u64, size: u32 },
    /// The same with the nodes and attributes of the files.
    ReadDirPlus { handle: u64, offset: u64, size: u32 },
    /// The last descriptor of an open directory is closed.
    ReleaseDir { handle: u64, flags: u32 },
    /// Commit of a directory to stable storage.
    FSyncDir { handle: u64, data_only: bool },
    /// Capacity of the file system.
    StatFs,
    /// Commit of the file system to stable storage.
    SyncFs,
    /// New value of an extended attribute; `flags` are those of `setxattr`, `setxattr_flags` are
    /// `FUSE_SETXATTR_` flags.
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
        setxattr_flags: u32,
    },
    /// Value of an extended attribute, or its size if `size` is 0.
    GetXattr { name: &'a [u8], size: u32 },
    /// Names of the extended attributes, or their size if `size` is 0.
    ListXattr { size: u32 },
    /// Removal of an extended attribute.
    RemoveXattr { name: &'a [u8] },
    /// Check of permissions; `mask` is that of `access`.
    Access { mask: u32 },
    /// A signal interrupts the caller of the request `unique`.
    Interrupt { unique: u64 },
    /// Device-specific operation.
    Ioctl(Ioctl<'a>),
    /// State of a file for `poll`; `wakeup` identifies it in [`notify::poll`](crate::notify::poll).
    Poll {
        handle: u64,
        wakeup: u64,
        flags: u32,
        events: u32,
    },
    /// Change of the allocation of a file; `mode` is that of `fallocate`.
    FAllocate {
        handle: u64,
        offset: u64,
        length: u64,
        mode: u32,
    },
    /// Next data or hole of a file.
    LSeek {
        handle: u64,
        offset: u64,
        whence: u32,
    },
    /// Copy of a range from the file of the header to another.
    CopyFileRange(CopyFileRange),
    /// Attributes of a file for `statx`, with its `flags` and `mask`.
    Statx {
        handle: Option<u64>,
        flags: u32,
        mask: u32,
    },
    /// Lock that conflicts with the given one.
    GetLock(Lock),
    /// Acquisition or release of a lock; with `wait`, the request waits for conflicting locks.
    SetLock { lock: Lock, wait: bool },
    /// Block of the device that stores the given block of a file.
    BMap { block: u64, block_bytes: u32 },
    /// Data of a file in the kernel's cache, as requested by
    /// [`notify::retrieve`](crate::notify::retrieve). Not answered.
    NotifyReply { offset: u64, data: &'a [u8] },
    /// Operation that this crate does not know. The answer is `ENOSYS`.
    Unknown,
}

impl Operation<'_> {
    /// Returns whether the kernel waits for a reply. It accepts none for the others; a reply to
    /// [`Operation::Interrupt`] is optional.
    pub fn is_answered(&self) -> bool {
        !matches!(
            self,
            Operation::Forget { .. } | Operation::BatchForget(_) | Operation::NotifyReply { .. }
        )
    }
}

/// Nodes whose references the kernel drops: an iterator of node and number of references.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forgets<'a> {
    pub(crate) bytes: &'a [u8],
}

impl Iterator for Forgets<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        let (one, rest) = abi::fuse_forget_one::read_from_prefix(self.bytes).ok()?;
        self.bytes = rest;
        Some((one.nodeid, one.nlookup))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = self.bytes.len() / size_of::<abi::fuse_forget_one>();
        (count, Some(count))
    }
}

impl ExactSizeIterator for Forgets<'_> {}

/// Change of attributes; absent values stay as they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Open file through which the attributes change.
    pub handle: Option<u64>,
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Time of the last access.
    pub atime: Option<SetTime>,
    /// Time of the last change of the data.
    pub mtime: Option<SetTime>,
    /// Time of the last change of the attributes.
    pub ctime: Option<Time>,
    /// Owner of the locks of the open file.
    pub lock_owner: Option<u64>,
    /// The server removes the set-user-ID and set-group-ID bits.
    pub kill_suidgid: bool,
}

/// Creation of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Create<'a> {
    /// Name in the directory of the header.
    pub name: &'a [u8],
    /// Type and permissions.
    pub mode: u32,
    /// File mode creation mask of the caller.
    pub umask: u32,
    /// Flags of `open`.
    pub flags: u32,
    /// `FUSE_OPEN_` flags.
    pub open_flags: u32,
    /// Security contexts and group of the new file.
    pub extensions: Extensions<'a>,
}

/// Read from an open file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Read {
    /// Open file.
    pub handle: u64,
    /// Position of the first byte.
    pub offset: u64,
    /// Most bytes of the answer.
    pub size: u32,
    /// Flags of `open`, as they are now.
    pub flags: u32,
    /// `FUSE_READ_` flags.
    pub read_flags: u32,
    /// Owner of locks on whose behalf the kernel reads.
    pub lock_owner: Option<u64>,
}

/// Write to an open file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Write<'a> {
    /// Open file.
    pub handle: u64,
    /// Position of the first byte.
    pub offset: u64,
    /// The bytes.
    pub data: &'a [u8],
    /// Flags of `open`, as they are now.
    pub flags: u32,
    /// `FUSE_WRITE_` flags.
    pub write_flags: u32,
    /// Owner of locks on whose behalf the kernel writes.
    pub lock_owner: Option<u64>,
}

/// Device-specific operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ioctl<'a> {
    /// Open file.
    pub handle: u64,
    /// `FUSE_IOCTL_` flags.
    pub flags: u32,
    /// Number of the operation, as defined for the kind of file.
    pub command: u32,
    /// Argument of the caller: a number, or an address in its memory.
    pub argument: u64,
    /// Input of the command.
    pub input: &'a [u8],
    /// Most bytes of output.
    pub out_size: u32,
}

/// Copy of a range between two open files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CopyFileRange {
    /// Open file to read.
    pub handle: u64,
    /// Position of the first byte to read.
    pub offset: u64,
    /// Node of the file to write.
    pub to_node: u64,
    /// Open file to write.
    pub to_handle: u64,
    /// Position of the first byte to write.
    pub to_offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Flags of `copy_file_range`.
    pub flags: u64,
    /// The reply can state 4 GiB and more (`FUSE_COPY_FILE_RANGE_64`).
    pub is_64: bool,
}

/// A lock on a range of a file, or on all of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lock {
    /// Open file.
    pub handle: u64,
    /// Owner of the lock.
    pub owner: u64,
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: u32,
    /// Process that holds or requests the lock.
    pub pid: u32,
    /// Lock of `flock`, not of `fcntl`.
    pub is_flock: bool,
}
