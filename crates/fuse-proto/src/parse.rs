//! From messages to requests.

use crate::abi::*;
use crate::extensions::Extensions;
use crate::operation::{
    CopyFileRange, Create, Forgets, Header, Ioctl, Lock, Operation, Read, Request, SetAttr, Write,
};
use crate::read::{Arguments, Malformed, Wrong};
use crate::session::{InitRequest, Session};
use crate::values::{SetTime, Time};
use zerocopy::FromBytes;

/// Parses one message read from `/dev/fuse`, with the agreement of INIT.
///
/// # Errors
/// The message is no request. If it has a number, the caller answers `EINVAL`.
pub fn parse<'a>(message: &'a [u8], session: &Session) -> Result<Request<'a>, Malformed> {
    let (raw, header, rest) = header(message)?;
    let malformed = |reason| refuse(&header, reason);
    if usize::try_from(raw.len) != Ok(message.len()) {
        return Err(malformed("its length differs from that in its header"));
    }
    let arguments = Arguments { first: None, rest };
    operation(&header, raw.total_extlen, arguments, session)
        .map(|operation| Request { header, operation })
        .map_err(malformed)
}

/// Parses one request of FUSE over io_uring: the areas `in_out` and `op_in` of
/// [`fuse_uring_req_header`], and `payload_sz` bytes of the payload.
///
/// # Errors
/// As of [`parse`]. The caller takes the payload's length from the kernel and checks it.
pub fn parse_ring<'a>(
    in_out: &[u8],
    op_in: &'a [u8],
    payload: &'a [u8],
    session: &Session,
) -> Result<Request<'a>, Malformed> {
    let (raw, header, _) = header(in_out)?;
    let arguments = Arguments {
        first: Some(op_in),
        rest: payload,
    };
    operation(&header, raw.total_extlen, arguments, session)
        .map(|operation| Request { header, operation })
        .map_err(|reason| refuse(&header, reason))
}

fn header(message: &[u8]) -> Result<(fuse_in_header, Header, &[u8]), Malformed> {
    let Ok((raw, rest)) = fuse_in_header::read_from_prefix(message) else {
        return Err(Malformed {
            unique: None,
            opcode: None,
            reason: "it is shorter than its header",
        });
    };
    let header = Header {
        unique: raw.unique,
        node: raw.nodeid,
        uid: raw.uid,
        gid: raw.gid,
        pid: raw.pid,
        opcode: raw.opcode,
    };
    Ok((raw, header, rest))
}

fn refuse(header: &Header, reason: Wrong) -> Malformed {
    Malformed {
        unique: Some(header.unique),
        opcode: Some(header.opcode),
        reason,
    }
}

fn operation<'a>(
    header: &Header,
    extension_words: u16,
    mut arguments: Arguments<'a>,
    session: &Session,
) -> Result<Operation<'a>, Wrong> {
    let extensions = take_extensions(&mut arguments, extension_words)?;
    let mut args = arguments;
    let a = &mut args;
    let operation = match header.opcode {
        FUSE_INIT => return init(a),
        FUSE_DESTROY => Operation::Destroy,
        FUSE_LOOKUP => Operation::Lookup {
            name: only_name(a)?,
        },
        FUSE_FORGET => Operation::Forget {
            lookups: a.fixed::<fuse_forget_in>()?.nlookup,
        },
        FUSE_BATCH_FORGET => {
            let count = a.fixed::<fuse_batch_forget_in>()?.count;
            let bytes = size_of::<fuse_forget_one>().checked_mul(count as usize);
            let bytes = bytes.ok_or("a count is too high")?;
            Operation::BatchForget(Forgets {
                bytes: a.data(bytes)?,
            })
        }
        FUSE_GETATTR => {
            let get: fuse_getattr_in = a.fixed()?;
            Operation::GetAttr {
                handle: flagged(get.getattr_flags, FUSE_GETATTR_FH, get.fh),
            }
        }
        FUSE_SETATTR => Operation::SetAttr(set_attr(&a.fixed()?)),
        FUSE_READLINK => Operation::ReadLink,
        FUSE_SYMLINK => {
            no_structure(a);
            let (name, target) = (a.name()?, a.string()?);
            let extensions = extensions.read(a, session)?;
            Operation::Symlink {
                name,
                target,
                extensions,
            }
        }
        FUSE_MKNOD => {
            let node: fuse_mknod_in = a.fixed()?;
            let (mode, rdev, umask) = (node.mode, node.rdev, node.umask);
            let name = a.name()?;
            let extensions = extensions.read(a, session)?;
            Operation::MkNod {
                name,
                mode,
                rdev,
                umask,
                extensions,
            }
        }
        FUSE_MKDIR => {
            let fuse_mkdir_in { mode, umask } = a.fixed()?;
            let name = a.name()?;
            let extensions = extensions.read(a, session)?;
            Operation::MkDir {
                name,
                mode,
                umask,
                extensions,
            }
        }
        FUSE_UNLINK => Operation::Unlink {
            name: only_name(a)?,
        },
        FUSE_RMDIR => Operation::RmDir {
            name: only_name(a)?,
        },
        FUSE_RENAME => {
            let new_parent = a.fixed::<fuse_rename_in>()?.newdir;
            let (name, new_name) = (a.name()?, a.name()?);
            Operation::Rename {
                name,
                new_parent,
                new_name,
                flags: 0,
            }
        }
        FUSE_RENAME2 => {
            let fuse_rename2_in {
                newdir: new_parent,
                flags,
                ..
            } = a.fixed()?;
            let (name, new_name) = (a.name()?, a.name()?);
            Operation::Rename {
                name,
                new_parent,
                new_name,
                flags,
            }
        }
        FUSE_LINK => {
            let node = a.fixed::<fuse_link_in>()?.oldnodeid;
            Operation::Link {
                node,
                new_name: a.name()?,
            }
        }
        FUSE_OPEN => {
            let fuse_open_in { flags, open_flags } = a.fixed()?;
            Operation::Open { flags, open_flags }
        }
        FUSE_CREATE => {
            let create: fuse_create_in = a.fixed()?;
            let name = a.name()?;
            Operation::Create(new_file(create, name, extensions.read(a, session)?))
        }
        FUSE_TMPFILE => {
            let create: fuse_create_in = a.fixed()?;
            // The kernel sends the name of an anonymous entry, which is a slash.
            let name = a.string()?;
            Operation::TmpFile(new_file(create, name, extensions.read(a, session)?))
        }
        FUSE_READ => {
            let read: fuse_read_in = a.fixed()?;
            Operation::Read(Read {
                handle: read.fh,
                offset: read.offset,
                size: read.size,
                flags: read.flags,
                read_flags: read.read_flags,
                lock_owner: flagged(read.read_flags, FUSE_READ_LOCKOWNER, read.lock_owner),
            })
        }
        FUSE_WRITE => {
            let write: fuse_write_in = a.fixed()?;
            Operation::Write(Write {
                handle: write.fh,
                offset: write.offset,
                data: data(a, write.size)?,
                flags: write.flags,
                write_flags: write.write_flags,
                lock_owner: flagged(write.write_flags, FUSE_WRITE_LOCKOWNER, write.lock_owner),
            })
        }
        FUSE_FLUSH => {
            let fuse_flush_in {
                fh: handle,
                lock_owner,
                ..
            } = a.fixed()?;
            Operation::Flush { handle, lock_owner }
        }
        FUSE_RELEASE => {
            let fuse_release_in {
                fh: handle,
                flags,
                release_flags,
                lock_owner,
            } = a.fixed()?;
            Operation::Release {
                handle,
                flags,
                release_flags,
                lock_owner,
            }
        }
        FUSE_FSYNC => {
            let (handle, data_only) = fsync(&a.fixed()?);
            Operation::FSync { handle, data_only }
        }
        FUSE_OPENDIR => Operation::OpenDir {
            flags: a.fixed::<fuse_open_in>()?.flags,
        },
        FUSE_READDIR => {
            let fuse_read_in {
                fh: handle,
                offset,
                size,
                ..
            } = a.fixed()?;
            Operation::ReadDir {
                handle,
                offset,
                size,
            }
        }
        FUSE_READDIRPLUS => {
            let fuse_read_in {
                fh: handle,
                offset,
                size,
                ..
            } = a.fixed()?;
            Operation::ReadDirPlus {
                handle,
                offset,
                size,
            }
        }
        FUSE_RELEASEDIR => {
            let fuse_release_in {
                fh: handle, flags, ..
            } = a.fixed()?;
            Operation::ReleaseDir { handle, flags }
        }
        FUSE_FSYNCDIR => {
            let (handle, data_only) = fsync(&a.fixed()?);
            Operation::FSyncDir { handle, data_only }
        }
        FUSE_STATFS => Operation::StatFs,
        FUSE_SYNCFS => {
            a.fixed::<fuse_syncfs_in>()?;
            Operation::SyncFs
        }
        FUSE_SETXATTR => set_xattr(a, session)?,
        FUSE_GETXATTR => {
            let size = a.fixed::<fuse_getxattr_in>()?.size;
            Operation::GetXattr {
                name: a.string()?,
                size,
            }
        }
        FUSE_LISTXATTR => Operation::ListXattr {
            size: a.fixed::<fuse_getxattr_in>()?.size,
        },
        FUSE_REMOVEXATTR => {
            no_structure(a);
            Operation::RemoveXattr { name: a.string()? }
        }
        FUSE_ACCESS => Operation::Access {
            mask: a.fixed::<fuse_access_in>()?.mask,
        },
        FUSE_INTERRUPT => Operation::Interrupt {
            unique: a.fixed::<fuse_interrupt_in>()?.unique,
        },
        FUSE_IOCTL => {
            let ioctl: fuse_ioctl_in = a.fixed()?;
            Operation::Ioctl(Ioctl {
                handle: ioctl.fh,
                flags: ioctl.flags,
                command: ioctl.cmd,
                argument: ioctl.arg,
                input: data(a, ioctl.in_size)?,
                out_size: ioctl.out_size,
            })
        }
        FUSE_POLL => {
            let fuse_poll_in {
                fh: handle,
                kh: wakeup,
                flags,
                events,
            } = a.fixed()?;
            Operation::Poll {
                handle,
                wakeup,
                flags,
                events,
            }
        }
        FUSE_FALLOCATE => {
            let fuse_fallocate_in {
                fh: handle,
                offset,
                length,
                mode,
                ..
            } = a.fixed()?;
            Operation::FAllocate {
                handle,
                offset,
                length,
                mode,
            }
        }
        FUSE_LSEEK => {
            let fuse_lseek_in {
                fh: handle,
                offset,
                whence,
                ..
            } = a.fixed()?;
            Operation::LSeek {
                handle,
                offset,
                whence,
            }
        }
        FUSE_COPY_FILE_RANGE | FUSE_COPY_FILE_RANGE_64 => {
            let copy: fuse_copy_file_range_in = a.fixed()?;
            Operation::CopyFileRange(CopyFileRange {
                handle: copy.fh_in,
                offset: copy.off_in,
                to_node: copy.nodeid_out,
                to_handle: copy.fh_out,
                to_offset: copy.off_out,
                length: copy.len,
                flags: copy.flags,
                is_64: header.opcode == FUSE_COPY_FILE_RANGE_64,
            })
        }
        FUSE_STATX => {
            let statx: fuse_statx_in = a.fixed()?;
            Operation::Statx {
                handle: flagged(statx.getattr_flags, FUSE_GETATTR_FH, statx.fh),
                flags: statx.sx_flags,
                mask: statx.sx_mask,
            }
        }
        FUSE_GETLK => Operation::GetLock(lock(&a.fixed()?)),
        FUSE_SETLK => Operation::SetLock {
            lock: lock(&a.fixed()?),
            wait: false,
        },
        FUSE_SETLKW => Operation::SetLock {
            lock: lock(&a.fixed()?),
            wait: true,
        },
        FUSE_BMAP => {
            let fuse_bmap_in {
                block,
                blocksize: block_bytes,
                ..
            } = a.fixed()?;
            Operation::BMap { block, block_bytes }
        }
        FUSE_NOTIFY_REPLY => {
            let retrieved: fuse_notify_retrieve_in = a.fixed()?;
            let offset = retrieved.offset;
            Operation::NotifyReply {
                offset,
                data: data(a, retrieved.size)?,
            }
        }
        _ => return Ok(Operation::Unknown),
    };
    match a.rest {
        [] => Ok(operation),
        _ => Err("bytes follow its last argument"),
    }
}

/// Extensions at the end of a message.
#[derive(Clone, Copy)]
enum Tail<'a> {
    /// Bytes whose number is in the header (7.38).
    Known(&'a [u8]),
    /// Bytes after the last argument, if any.
    AfterArguments,
}

fn take_extensions<'a>(arguments: &mut Arguments<'a>, words: u16) -> Result<Tail<'a>, Wrong> {
    if words == 0 {
        return Ok(Tail::AfterArguments);
    }
    let bytes = usize::from(words) * 8;
    let at = arguments.rest.len().checked_sub(bytes);
    let at = at.ok_or("its extensions are longer than it")?;
    let (rest, tail) = arguments.rest.split_at(at);
    arguments.rest = rest;
    Ok(Tail::Known(tail))
}

impl<'a> Tail<'a> {
    /// Reads the extensions of a request whose other arguments have been read.
    fn read(
        self,
        arguments: &mut Arguments<'a>,
        session: &Session,
    ) -> Result<Extensions<'a>, Wrong> {
        match self {
            Tail::Known(bytes) => Extensions::parse(bytes),
            // Linux 5.17 to 6.2 do not state the length.
            Tail::AfterArguments if session.has(FUSE_SECURITY_CTX) => {
                Extensions::parse(std::mem::take(&mut arguments.rest))
            }
            Tail::AfterArguments => Ok(Extensions::default()),
        }
    }
}

/// Skips the area of the structure, of a request that has none.
fn no_structure(arguments: &mut Arguments) {
    arguments.first = None;
}

fn only_name<'a>(arguments: &mut Arguments<'a>) -> Result<&'a [u8], Wrong> {
    no_structure(arguments);
    arguments.name()
}

fn data<'a>(arguments: &mut Arguments<'a>, size: u32) -> Result<&'a [u8], Wrong> {
    arguments.data(usize::try_from(size).map_err(|_| "its data is too long")?)
}

fn flagged<T>(flags: u32, flag: u32, value: T) -> Option<T> {
    (flags & flag != 0).then_some(value)
}

fn init<'a>(arguments: &mut Arguments) -> Result<Operation<'a>, Wrong> {
    // Earlier kernels end here, and later ones may add more.
    let [major, minor, max_readahead, flags]: [u32; 4] = arguments.fixed()?;
    let mut flags = u64::from(flags);
    if flags & FUSE_INIT_EXT != 0 {
        let [high]: [u32; 1] = arguments.fixed()?;
        flags |= u64::from(high) << 32;
    }
    Ok(Operation::Init(InitRequest {
        major,
        minor,
        max_readahead,
        flags,
    }))
}

fn set_attr(set: &fuse_setattr_in) -> SetAttr {
    let time = |seconds: u64, nanos| Time {
        seconds: seconds.cast_signed(),
        nanos,
    };
    let set_time = |now, flag, at: Time| match set.valid {
        valid if valid & now != 0 => Some(SetTime::Now),
        valid => flagged(valid, flag, SetTime::At(at)),
    };
    SetAttr {
        handle: flagged(set.valid, FATTR_FH, set.fh),
        mode: flagged(set.valid, FATTR_MODE, set.mode),
        uid: flagged(set.valid, FATTR_UID, set.uid),
        gid: flagged(set.valid, FATTR_GID, set.gid),
        size: flagged(set.valid, FATTR_SIZE, set.size),
        atime: set_time(FATTR_ATIME_NOW, FATTR_ATIME, time(set.atime, set.atimensec)),
        mtime: set_time(FATTR_MTIME_NOW, FATTR_MTIME, time(set.mtime, set.mtimensec)),
        ctime: flagged(set.valid, FATTR_CTIME, time(set.ctime, set.ctimensec)),
        lock_owner: flagged(set.valid, FATTR_LOCKOWNER, set.lock_owner),
        kill_suidgid: set.valid & FATTR_KILL_SUIDGID != 0,
    }
}

fn new_file<'a>(create: fuse_create_in, name: &'a [u8], extensions: Extensions<'a>) -> Create<'a> {
    Create {
        name,
        mode: create.mode,
        umask: create.umask,
        flags: create.flags,
        open_flags: create.open_flags,
        extensions,
    }
}

fn fsync(fsync: &fuse_fsync_in) -> (u64, bool) {
    (fsync.fh, fsync.fsync_flags & FUSE_FSYNC_FDATASYNC != 0)
}

fn set_xattr<'a>(arguments: &mut Arguments<'a>, session: &Session) -> Result<Operation<'a>, Wrong> {
    let (size, flags, setxattr_flags) = if session.has(FUSE_SETXATTR_EXT) {
        let set: fuse_setxattr_in = arguments.fixed()?;
        (set.size, set.flags, set.setxattr_flags)
    } else {
        let [size, flags]: [u32; FUSE_COMPAT_SETXATTR_IN_SIZE / 4] = arguments.fixed()?;
        (size, flags, 0)
    };
    let name = arguments.string()?;
    Ok(Operation::SetXattr {
        name,
        value: data(arguments, size)?,
        flags,
        setxattr_flags,
    })
}

fn lock(lock: &fuse_lk_in) -> Lock {
    Lock {
        handle: lock.fh,
        owner: lock.owner,
        start: lock.lk.start,
        end: lock.lk.end,
        kind: lock.lk.r#type,
        pid: lock.lk.pid,
        is_flock: lock.lk_flags & FUSE_LK_FLOCK != 0,
    }
}
