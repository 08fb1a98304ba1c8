//! Constants and structures of `<linux/fuse.h>`, under their names there.
//!
//! The structures are laid out as in C. A test compares sizes, offsets and values with the header
//! of the machine, as far as that header knows them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major version of the protocol.
pub const FUSE_KERNEL_VERSION: u32 = 7;
/// Highest minor version that this crate knows.
pub const FUSE_KERNEL_MINOR_VERSION: u32 = 45;
/// Node of the root directory.
pub const FUSE_ROOT_ID: u64 = 1;
/// Bit of [`Header::unique`](crate::Header::unique): the kernel sends the request again.
pub const FUSE_UNIQUE_RESEND: u64 = 1 << 63;
/// User or group of a caller that has none in the mount's user namespace.
pub const FUSE_INVALID_UIDGID: u32 = u32::MAX;
/// Smallest buffer that the kernel accepts for reading a request, in bytes.
pub const FUSE_MIN_READ_BUFFER: usize = 8192;
/// Highest number of ranges of memory in a retry of an ioctl.
pub const FUSE_IOCTL_MAX_IOV: usize = 256;
/// Size of the area for the header in [`fuse_uring_req_header`].
pub const FUSE_URING_IN_OUT_HEADER_SZ: usize = 128;
/// Size of the area for the fixed arguments in [`fuse_uring_req_header`].
pub const FUSE_URING_OP_IN_OUT_SZ: usize = 128;
/// Size of `fuse_setxattr_in` unless `FUSE_SETXATTR_EXT` was agreed on.
pub const FUSE_COMPAT_SETXATTR_IN_SIZE: usize = 8;

/// Defines the constants of one group, and for tests a table of their names and values.
macro_rules! constants {
    ($(#[$doc:meta])* $table:ident: $kind:ty { $($name:ident = $value:expr, since $since:expr;)* }) => {
        $(#[allow(missing_docs)] pub const $name: $kind = $value;)*
        $(#[$doc])*
        pub const $table: &[(&str, u64, u32)] = &[$((stringify!($name), $name as u64, $since)),*];
    };
}

constants! {
    /// Operations: name, value, and the first minor version (31 for all before it).
    OPCODES: u32 {
        FUSE_LOOKUP = 1, since 31;
        FUSE_FORGET = 2, since 31;
        FUSE_GETATTR = 3, since 31;
        FUSE_SETATTR = 4, since 31;
        FUSE_READLINK = 5, since 31;
        FUSE_SYMLINK = 6, since 31;
        FUSE_MKNOD = 8, since 31;
        FUSE_MKDIR = 9, since 31;
        FUSE_UNLINK = 10, since 31;
        FUSE_RMDIR = 11, since 31;
        FUSE_RENAME = 12, since 31;
        FUSE_LINK = 13, since 31;
        FUSE_OPEN = 14, since 31;
        FUSE_READ = 15, since 31;
        FUSE_WRITE = 16, since 31;
        FUSE_STATFS = 17, since 31;
        FUSE_RELEASE = 18, since 31;
        FUSE_FSYNC = 20, since 31;
        FUSE_SETXATTR = 21, since 31;
        FUSE_GETXATTR = 22, since 31;
        FUSE_LISTXATTR = 23, since 31;
        FUSE_REMOVEXATTR = 24, since 31;
        FUSE_FLUSH = 25, since 31;
        FUSE_INIT = 26, since 31;
        FUSE_OPENDIR = 27, since 31;
        FUSE_READDIR = 28, since 31;
        FUSE_RELEASEDIR = 29, since 31;
        FUSE_FSYNCDIR = 30, since 31;
        FUSE_GETLK = 31, since 31;
        FUSE_SETLK = 32, since 31;
        FUSE_SETLKW = 33, since 31;
        FUSE_ACCESS = 34, since 31;
        FUSE_CREATE = 35, since 31;
        FUSE_INTERRUPT = 36, since 31;
        FUSE_BMAP = 37, since 31;
        FUSE_DESTROY = 38, since 31;
        FUSE_IOCTL = 39, since 31;
        FUSE_POLL = 40, since 31;
        FUSE_NOTIFY_REPLY = 41, since 31;
        FUSE_BATCH_FORGET = 42, since 31;
        FUSE_FALLOCATE = 43, since 31;
        FUSE_READDIRPLUS = 44, since 31;
        FUSE_RENAME2 = 45, since 31;
        FUSE_LSEEK = 46, since 31;
        FUSE_COPY_FILE_RANGE = 47, since 31;
        FUSE_SETUPMAPPING = 48, since 31;
        FUSE_REMOVEMAPPING = 49, since 31;
        FUSE_SYNCFS = 50, since 34;
        FUSE_TMPFILE = 51, since 37;
        FUSE_STATX = 52, since 39;
        FUSE_COPY_FILE_RANGE_64 = 53, since 45;
        CUSE_INIT = 4096, since 31;
    }
}

constants! {
    /// Notifications: name, value, and the first minor version.
    NOTIFICATIONS: i32 {
        FUSE_NOTIFY_POLL = 1, since 31;
        FUSE_NOTIFY_INVAL_INODE = 2, since 31;
        FUSE_NOTIFY_INVAL_ENTRY = 3, since 31;
        FUSE_NOTIFY_STORE = 4, since 31;
        FUSE_NOTIFY_RETRIEVE = 5, since 31;
        FUSE_NOTIFY_DELETE = 6, since 31;
        FUSE_NOTIFY_RESEND = 7, since 40;
        FUSE_NOTIFY_INC_EPOCH = 8, since 44;
        FUSE_NOTIFY_PRUNE = 9, since 45;
    }
}

constants! {
    /// Flags of INIT: name, value, and the first minor version.
    INIT_FLAGS: u64 {
        FUSE_ASYNC_READ = 1 << 0, since 31;
        FUSE_POSIX_LOCKS = 1 << 1, since 31;
        FUSE_FILE_OPS = 1 << 2, since 31;
        FUSE_ATOMIC_O_TRUNC = 1 << 3, since 31;
        FUSE_EXPORT_SUPPORT = 1 << 4, since 31;
        FUSE_BIG_WRITES = 1 << 5, since 31;
        FUSE_DONT_MASK = 1 << 6, since 31;
        FUSE_SPLICE_WRITE = 1 << 7, since 31;
        FUSE_SPLICE_MOVE = 1 << 8, since 31;
        FUSE_SPLICE_READ = 1 << 9, since 31;
        FUSE_FLOCK_LOCKS = 1 << 10, since 31;
        FUSE_HAS_IOCTL_DIR = 1 << 11, since 31;
        FUSE_AUTO_INVAL_DATA = 1 << 12, since 31;
        FUSE_DO_READDIRPLUS = 1 << 13, since 31;
        FUSE_READDIRPLUS_AUTO = 1 << 14, since 31;
        FUSE_ASYNC_DIO = 1 << 15, since 31;
        FUSE_WRITEBACK_CACHE = 1 << 16, since 31;
        FUSE_NO_OPEN_SUPPORT = 1 << 17, since 31;
        FUSE_PARALLEL_DIROPS = 1 << 18, since 31;
        FUSE_HANDLE_KILLPRIV = 1 << 19, since 31;
        FUSE_POSIX_ACL = 1 << 20, since 31;
        FUSE_ABORT_ERROR = 1 << 21, since 31;
        FUSE_MAX_PAGES = 1 << 22, since 31;
        FUSE_CACHE_SYMLINKS = 1 << 23, since 31;
        FUSE_NO_OPENDIR_SUPPORT = 1 << 24, since 31;
        FUSE_EXPLICIT_INVAL_DATA = 1 << 25, since 31;
        FUSE_MAP_ALIGNMENT = 1 << 26, since 31;
        FUSE_SUBMOUNTS = 1 << 27, since 32;
        FUSE_HANDLE_KILLPRIV_V2 = 1 << 28, since 33;
        FUSE_SETXATTR_EXT = 1 << 29, since 33;
        FUSE_INIT_EXT = 1 << 30, since 36;
        FUSE_SECURITY_CTX = 1 << 32, since 36;
        FUSE_HAS_INODE_DAX = 1 << 33, since 36;
        FUSE_CREATE_SUPP_GROUP = 1 << 34, since 39;
        FUSE_HAS_EXPIRE_ONLY = 1 << 35, since 38;
        FUSE_DIRECT_IO_ALLOW_MMAP = 1 << 36, since 40;
        FUSE_PASSTHROUGH = 1 << 37, since 40;
        FUSE_NO_EXPORT_SUPPORT = 1 << 38, since 40;
        FUSE_HAS_RESEND = 1 << 39, since 40;
        FUSE_ALLOW_IDMAP = 1 << 40, since 41;
        FUSE_OVER_IO_URING = 1 << 41, since 42;
        FUSE_REQUEST_TIMEOUT = 1 << 42, since 43;
    }
}

constants! {
    /// Other flags of requests and replies: name, value, and the first minor version.
    FLAGS: u32 {
        FATTR_MODE = 1 << 0, since 31;
        FATTR_UID = 1 << 1, since 31;
        FATTR_GID = 1 << 2, since 31;
        FATTR_SIZE = 1 << 3, since 31;
        FATTR_ATIME = 1 << 4, since 31;
        FATTR_MTIME = 1 << 5, since 31;
        FATTR_FH = 1 << 6, since 31;
        FATTR_ATIME_NOW = 1 << 7, since 31;
        FATTR_MTIME_NOW = 1 << 8, since 31;
        FATTR_LOCKOWNER = 1 << 9, since 31;
        FATTR_CTIME = 1 << 10, since 31;
        FATTR_KILL_SUIDGID = 1 << 11, since 33;
        FOPEN_DIRECT_IO = 1 << 0, since 31;
        FOPEN_KEEP_CACHE = 1 << 1, since 31;
        FOPEN_NONSEEKABLE = 1 << 2, since 31;
        FOPEN_CACHE_DIR = 1 << 3, since 31;
        FOPEN_STREAM = 1 << 4, since 31;
        FOPEN_NOFLUSH = 1 << 5, since 35;
        FOPEN_PARALLEL_DIRECT_WRITES = 1 << 6, since 38;
        FOPEN_PASSTHROUGH = 1 << 7, since 40;
        FUSE_RELEASE_FLUSH = 1 << 0, since 31;
        FUSE_RELEASE_FLOCK_UNLOCK = 1 << 1, since 31;
        FUSE_GETATTR_FH = 1 << 0, since 31;
        FUSE_LK_FLOCK = 1 << 0, since 31;
        FUSE_WRITE_CACHE = 1 << 0, since 31;
        FUSE_WRITE_LOCKOWNER = 1 << 1, since 31;
        FUSE_WRITE_KILL_SUIDGID = 1 << 2, since 33;
        FUSE_READ_LOCKOWNER = 1 << 1, since 31;
        FUSE_IOCTL_COMPAT = 1 << 0, since 31;
        FUSE_IOCTL_UNRESTRICTED = 1 << 1, since 31;
        FUSE_IOCTL_RETRY = 1 << 2, since 31;
        FUSE_IOCTL_32BIT = 1 << 3, since 31;
        FUSE_IOCTL_DIR = 1 << 4, since 31;
        FUSE_IOCTL_COMPAT_X32 = 1 << 5, since 31;
        FUSE_POLL_SCHEDULE_NOTIFY = 1 << 0, since 31;
        FUSE_FSYNC_FDATASYNC = 1 << 0, since 31;
        FUSE_ATTR_SUBMOUNT = 1 << 0, since 32;
        FUSE_ATTR_DAX = 1 << 1, since 36;
        FUSE_OPEN_KILL_SUIDGID = 1 << 0, since 33;
        FUSE_SETXATTR_ACL_KILL_SGID = 1 << 0, since 33;
        FUSE_EXPIRE_ONLY = 1 << 0, since 38;
        FUSE_MAX_NR_SECCTX = 31, since 38;
        FUSE_EXT_GROUPS = 32, since 39;
        FUSE_IO_URING_CMD_INVALID = 0, since 42;
        FUSE_IO_URING_CMD_REGISTER = 1, since 42;
        FUSE_IO_URING_CMD_COMMIT_AND_FETCH = 2, since 42;
    }
}

constants! {
    /// Ioctls of `/dev/fuse`: name, value, and the first minor version.
    DEVICE_IOCTLS: u32 {
        FUSE_DEV_IOC_CLONE = device_ioctl(READ, 0, 4), since 31;
        FUSE_DEV_IOC_BACKING_OPEN = device_ioctl(WRITE, 1, 16), since 40;
        FUSE_DEV_IOC_BACKING_CLOSE = device_ioctl(WRITE, 2, 4), since 40;
        FUSE_DEV_IOC_SYNC_INIT = device_ioctl(NONE, 3, 0), since 45;
    }
}

/// Directions of an ioctl's argument.
const NONE: u32 = 0;
const WRITE: u32 = 1 << 30;
const READ: u32 = 2 << 30;

const fn device_ioctl(direction: u32, number: u32, argument_bytes: u32) -> u32 {
    direction | argument_bytes << 16 | 229 << 8 | number
}

/// Defines structures as in C, and a table of their layout for tests.
macro_rules! structures {
    ($($name:ident, since $since:expr; { $($field:ident: $kind:ty),* $(,)? })*) => {
        $(
            #[doc = concat!("`struct ", stringify!($name), "`.")]
            #[allow(non_camel_case_types, missing_docs)]
            #[derive(
                Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
            )]
            #[repr(C)]
            pub struct $name { $(pub $field: $kind),* }
        )*
        /// Layout of the structures: name, first minor version, size, and the offsets of the fields.
        pub const STRUCTURES: &[Structure] = &[$(Structure {
            name: stringify!($name),
            since: $since,
            size: size_of::<$name>(),
            fields: &[$((stringify!($field), core::mem::offset_of!($name, $field))),*],
        }),*];
    };
}

/// Layout of a structure.
#[derive(Debug, Clone, Copy)]
pub struct Structure {
    /// Name in the kernel's header.
    pub name: &'static str,
    /// First minor version that has this layout.
    pub since: u32,
    /// Size in bytes.
    pub size: usize,
    /// Names and offsets of the fields.
    pub fields: &'static [(&'static str, usize)],
}

structures! {
    fuse_in_header, since 38; { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16 }
    fuse_out_header, since 31; { len: u32, error: i32, unique: u64 }
    fuse_attr, since 32; { ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32 }
    fuse_sx_time, since 39; { tv_sec: i64, tv_nsec: u32, __reserved: i32 }
    fuse_statx, since 39; { mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, __spare0: [u16; 1], ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: fuse_sx_time, btime: fuse_sx_time, ctime: fuse_sx_time, mtime: fuse_sx_time, rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, __spare2: [u64; 14] }
    fuse_kstatfs, since 31; { blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32, padding: u32, spare: [u32; 6] }
    fuse_file_lock, since 31; { start: u64, end: u64, r#type: u32, pid: u32 }
    fuse_entry_out, since 31; { nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32, attr: fuse_attr }
    fuse_forget_in, since 31; { nlookup: u64 }
    fuse_forget_one, since 31; { nodeid: u64, nlookup: u64 }
    fuse_batch_forget_in, since 31; { count: u32, dummy: u32 }
    fuse_getattr_in, since 31; { getattr_flags: u32, dummy: u32, fh: u64 }
    fuse_attr_out, since 31; { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: fuse_attr }
    fuse_statx_in, since 39; { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    fuse_statx_out, since 39; { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: fuse_statx }
    fuse_mknod_in, since 31; { mode: u32, rdev: u32, umask: u32, padding: u32 }
    fuse_mkdir_in, since 31; { mode: u32, umask: u32 }
    fuse_rename_in, since 31; { newdir: u64 }
    fuse_rename2_in, since 31; { newdir: u64, flags: u32, padding: u32 }
    fuse_link_in, since 31; { oldnodeid: u64 }
    fuse_setattr_in, since 31; { valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32 }
    fuse_open_in, since 33; { flags: u32, open_flags: u32 }
    fuse_create_in, since 33; { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    fuse_open_out, since 40; { fh: u64, open_flags: u32, backing_id: i32 }
    fuse_release_in, since 31; { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    fuse_flush_in, since 31; { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    fuse_read_in, since 31; { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    fuse_write_in, since 31; { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    fuse_write_out, since 31; { size: u32, padding: u32 }
    fuse_statfs_out, since 31; { st: fuse_kstatfs }
    fuse_fsync_in, since 31; { fh: u64, fsync_flags: u32, padding: u32 }
    fuse_setxattr_in, since 33; { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    fuse_getxattr_in, since 31; { size: u32, padding: u32 }
    fuse_getxattr_out, since 31; { size: u32, padding: u32 }
    fuse_lk_in, since 31; { fh: u64, owner: u64, lk: fuse_file_lock, lk_flags: u32, padding: u32 }
    fuse_lk_out, since 31; { lk: fuse_file_lock }
    fuse_access_in, since 31; { mask: u32, padding: u32 }
    fuse_init_in, since 36; { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11] }
    fuse_init_out, since 43; { major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16, unused: [u16; 11] }
    fuse_interrupt_in, since 31; { unique: u64 }
    fuse_bmap_in, since 31; { block: u64, blocksize: u32, padding: u32 }
    fuse_bmap_out, since 31; { block: u64 }
    fuse_ioctl_in, since 31; { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    fuse_ioctl_iovec, since 31; { base: u64, len: u64 }
    fuse_ioctl_out, since 31; { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    fuse_poll_in, since 31; { fh: u64, kh: u64, flags: u32, events: u32 }
    fuse_poll_out, since 31; { revents: u32, padding: u32 }
    fuse_notify_poll_wakeup_out, since 31; { kh: u64 }
    fuse_fallocate_in, since 31; { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    fuse_dirent, since 31; { ino: u64, off: u64, namelen: u32, r#type: u32 }
    fuse_direntplus, since 31; { entry_out: fuse_entry_out, dirent: fuse_dirent }
    fuse_notify_inval_inode_out, since 31; { ino: u64, off: i64, len: i64 }
    fuse_notify_inval_entry_out, since 38; { parent: u64, namelen: u32, flags: u32 }
    fuse_notify_delete_out, since 31; { parent: u64, child: u64, namelen: u32, padding: u32 }
    fuse_notify_store_out, since 31; { nodeid: u64, offset: u64, size: u32, padding: u32 }
    fuse_notify_retrieve_out, since 31; { notify_unique: u64, nodeid: u64, offset: u64, size: u32, padding: u32 }
    fuse_notify_retrieve_in, since 31; { dummy1: u64, offset: u64, size: u32, dummy2: u32, dummy3: u64, dummy4: u64 }
    fuse_notify_prune_out, since 45; { count: u32, padding: u32, spare: u64 }
    fuse_backing_map, since 40; { fd: i32, flags: u32, padding: u64 }
    fuse_lseek_in, since 31; { fh: u64, offset: u64, whence: u32, padding: u32 }
    fuse_lseek_out, since 31; { offset: u64 }
    fuse_copy_file_range_in, since 31; { fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64 }
    fuse_copy_file_range_out, since 45; { bytes_copied: u64 }
    fuse_syncfs_in, since 34; { padding: u64 }
    fuse_secctx, since 36; { size: u32, padding: u32 }
    fuse_secctx_header, since 36; { size: u32, nr_secctx: u32 }
    fuse_ext_header, since 38; { size: u32, r#type: u32 }
    fuse_supp_groups, since 39; { nr_groups: u32 }
    fuse_uring_ent_in_out, since 42; { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64 }
    fuse_uring_req_header, since 42; { in_out: [u8; FUSE_URING_IN_OUT_HEADER_SZ], op_in: [u8; FUSE_URING_OP_IN_OUT_SZ], ring_ent_in_out: fuse_uring_ent_in_out }
    fuse_uring_cmd_req, since 42; { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6] }
}
