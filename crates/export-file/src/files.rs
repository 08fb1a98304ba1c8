//! A directory with one file for each volume, as served to the kernel.

use crate::holes::{DISCARDED, Holes, TRIED};
use crate::io::{Bytes, Durability};
use block::BlockDevice;
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Time for which the kernel may cache names and sizes. They never change.
const TTL: Duration = Duration::from_secs(3600);
/// Inode number of the first file; 1 is the directory.
const FIRST_FILE: u64 = 2;
/// Number of background requests (asynchronous direct I/O, loop devices) that the kernel may queue.
const BACKGROUND: u16 = 256;

/// File handle of this process's own loop device; all others have 0.
const OF_LOOP_DEVICE: FileHandle = FileHandle(1);

/// A device and the name of its file.
#[derive(Clone)]
pub struct Export {
    /// Name of the file.
    pub name: String,
    /// Content of the file.
    pub device: Arc<dyn BlockDevice>,
    /// Refuse writes even if the device accepts them.
    pub read_only: bool,
}

/// The directory.
pub(crate) struct Files {
    files: Vec<File>,
    mounted: SystemTime,
    uid: u32,
    gid: u32,
}

struct File {
    name: String,
    bytes: Bytes,
    read_only: bool,
    holes: Arc<Holes>,
}

impl Files {
    pub(crate) fn new(exports: Vec<Export>) -> Files {
        let file = |export: Export| {
            let read_only = export.read_only || export.device.info().read_only;
            File {
                name: export.name,
                bytes: Bytes::new(export.device),
                read_only,
                holes: Arc::default(),
            }
        };
        Files {
            files: exports.into_iter().map(file).collect(),
            mounted: SystemTime::now(),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }

    /// Returns the meaning of holes in the only file; `None` if there are several files.
    pub(crate) fn holes(&self) -> Option<Arc<Holes>> {
        match self.files.as_slice() {
            [file] => Some(Arc::clone(&file.holes)),
            _ => None,
        }
    }

    fn file(&self, ino: INodeNo) -> Option<&File> {
        self.files
            .get(usize::try_from(ino.0.checked_sub(FIRST_FILE)?).ok()?)
    }

    fn attr(&self, ino: INodeNo) -> Option<FileAttr> {
        let (kind, perm, size, blksize) = if ino == INodeNo::ROOT {
            (FileType::Directory, 0o500, 0, 4096)
        } else {
            let file = self.file(ino)?;
            let perm = if file.read_only { 0o400 } else { 0o600 };
            let blksize = file.bytes.device().info().optimal_io_size;
            (FileType::RegularFile, perm, file.bytes.size(), blksize)
        };
        Some(FileAttr {
            ino,
            size,
            blocks: size.div_ceil(512),
            atime: self.mounted,
            mtime: self.mounted,
            ctime: self.mounted,
            crtime: self.mounted,
            kind,
            perm,
            nlink: 1 + u32::from(kind == FileType::Directory),
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            flags: 0,
            blksize,
        })
    }

    fn to_write(&self, ino: INodeNo) -> Result<&File, Errno> {
        match self.file(ino) {
            Some(file) if file.read_only => Err(Errno::EROFS),
            Some(file) => Ok(file),
            None => Err(Errno::EISDIR),
        }
    }
}

fn errno(error: &block::Error) -> Errno {
    tracing::warn!(name: "EVFS-0601", "{error}");
    Errno::from_i32(error.errno())
}

fn answer(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(e),
    }
}

impl Filesystem for Files {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let capabilities = [
            InitFlags::FUSE_ASYNC_READ,
            InitFlags::FUSE_BIG_WRITES,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_MAX_PAGES,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ];
        fuse_mount::configure(config, BACKGROUND, &capabilities);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let index = self
            .files
            .iter()
            .position(|f| parent == INodeNo::ROOT && name == f.name.as_str());
        match index.and_then(|i| self.attr(INodeNo(i as u64 + FIRST_FILE))) {
            Some(attr) => reply.entry(&TTL, &attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.attr(ino) {
            Some(attr) => reply.attr(&TTL, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    /// Accepts and ignores times and an unchanged size; refuses anything else. A program that opens
    /// with O_TRUNC must not destroy the volume, so size 0 is accepted and ignored as well.
    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let Some(attr) = self.attr(ino) else {
            return reply.error(Errno::ENOENT);
        };
        let resized = size.is_some_and(|size| size != 0 && size != attr.size);
        if mode.is_some() || uid.is_some() || gid.is_some() || resized {
            return reply.error(Errno::EPERM);
        }
        reply.attr(&TTL, &attr);
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.file(ino) {
            None => reply.error(Errno::EISDIR),
            Some(file) if file.read_only && flags.0 & libc::O_ACCMODE != libc::O_RDONLY => {
                reply.error(Errno::EROFS);
            }
            Some(_) => {
                let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
                // The request names the thread; the only opens by this process are for its own
                // loop devices.
                let thread = format!("/proc/self/task/{}", req.pid());
                let handle = if std::path::Path::new(&thread).exists() {
                    OF_LOOP_DEVICE
                } else {
                    FileHandle(0)
                };
                reply.opened(handle, flags);
            }
        }
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(file) = self.file(ino) else {
            return reply.error(Errno::EISDIR);
        };
        let mut reply = Some(reply);
        let given = file.bytes.read(offset, size as usize, |data| {
            if let Some(reply) = reply.take() {
                reply.data(data);
            }
        });
        if let (Err(e), Some(reply)) = (given, reply) {
            reply.error(errno(&e));
        }
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let durability = if flags.0 & (libc::O_SYNC | libc::O_DSYNC) != 0 {
            Durability::Durable
        } else {
            Durability::Volatile
        };
        let written = self.to_write(ino).and_then(|file| {
            if fh == OF_LOOP_DEVICE && file.holes.is(TRIED) {
                return Err(Errno::EIO);
            }
            file.bytes
                .write(offset, data, durability)
                .map_err(|e| errno(&e))
        });
        match written {
            Ok(()) => reply.written(data.len() as u32),
            Err(e) => reply.error(e),
        }
    }

    fn flush(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Closing a file guarantees nothing; fsync does. A read-only open file needs no flush.
        match self.file(ino) {
            Some(_) => reply.ok(),
            None => reply.error(Errno::EISDIR),
        }
    }

    fn fsync(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        let file = self.file(ino).ok_or(Errno::EISDIR);
        answer(
            reply,
            file.and_then(|f| f.bytes.flush().map_err(|e| errno(&e))),
        );
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if ino != INodeNo::ROOT {
            return reply.error(Errno::ENOTDIR);
        }
        let dots = [".", ".."]
            .into_iter()
            .map(|name| (INodeNo::ROOT, FileType::Directory, name));
        let files = self.files.iter().enumerate().map(|(index, file)| {
            (
                INodeNo(index as u64 + FIRST_FILE),
                FileType::RegularFile,
                file.name.as_str(),
            )
        });
        for (index, (ino, kind, name)) in dots.chain(files).enumerate().skip(offset as usize) {
            if reply.add(ino, index as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let blocks = self.files.iter().map(|f| f.bytes.size() / 4096).sum();
        reply.statfs(blocks, 0, 0, self.files.len() as u64, 0, 4096, 255, 4096);
    }

    /// Zeroes ranges by writing. A hole also promises zeros, which a discard of an encrypted volume
    /// does not provide, so only this process's own loop device can punch one; see [`Holes`].
    fn fallocate(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let result = self.to_write(ino).and_then(|file| {
            let end = offset.saturating_add(length);
            let by_loop = |state| fh == OF_LOOP_DEVICE && file.holes.is(state);
            match mode & !libc::FALLOC_FL_KEEP_SIZE {
                libc::FALLOC_FL_ZERO_RANGE if by_loop(TRIED) => Err(Errno::EOPNOTSUPP),
                libc::FALLOC_FL_ZERO_RANGE => {
                    if by_loop(DISCARDED) {
                        // Another program has reconfigured the device: holes may be zeroings again.
                        file.holes.disable_zeroing(|| ());
                    }
                    file.bytes.zero(offset, length).map_err(|e| errno(&e))
                }
                libc::FALLOC_FL_PUNCH_HOLE if by_loop(DISCARDED) => {
                    file.bytes.discard(offset, length).map_err(|e| errno(&e))
                }
                0 if end <= file.bytes.size() => Ok(()),
                0 => Err(Errno::ENOSPC),
                _ => Err(Errno::EOPNOTSUPP),
            }
        });
        answer(reply, result);
    }
}
