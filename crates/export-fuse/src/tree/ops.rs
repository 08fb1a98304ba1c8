//! The kernel's requests, one method each.

use super::handles::Open;
use super::privileges::{is_loss, without_set_ids};
use super::{Tree, convert, errno, xattrs};
use fs::{
    Allocate, Attr, Change, FileType, Kind, New, Rename, Seek, SetAttr, SetXattr, Watcher,
    WritePosition,
};
use fuse_mount::PIECE_BYTES;
use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use layer_cpu::{Layer, home};
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

/// Number of background requests (read-ahead, write-back of mappings) that the kernel may queue.
const BACKGROUND: u16 = 64;

/// Replies with the result of a request.
fn finish(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(e),
    }
}

/// Checks whether a write(2) may continue after this request. The kernel ends a request with a page
/// that it does not have in full, so one that begins inside a page ends with it
/// (`fuse_fill_write_pages` of Linux, since 5.15), or at the maximum length.
fn may_go_on(offset: u64, len: usize) -> bool {
    let page = rustix::param::page_size() as u64;
    let ends_it = (offset + len as u64).is_multiple_of(page);
    (ends_it && !offset.is_multiple_of(page)) || len == PIECE_BYTES
}

impl Tree {
    fn enter(&self, reply: ReplyEntry, result: fs::Result<Attr>) {
        match result {
            Ok(attr) => reply.entry(&self.ttl, &convert::attr(&attr), convert::generation(&attr)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn open_file(&self, ino: u64, flags: i32) -> Result<(FileHandle, FopenFlags), Errno> {
        let handle = self.files.open(ino).map_err(errno)?;
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
        let had_capabilities = writes && self.has_capabilities(ino);
        let number = self.handles.insert(handle, had_capabilities);
        // The kernel's cached pages are still valid: it was notified of every change.
        Ok((number, FopenFlags::FOPEN_KEEP_CACHE))
    }

    /// Writes data. Returns the range that the kernel must invalidate before the reply.
    fn write_to(
        &self,
        open: &Open,
        offset: u64,
        data: &[u8],
        (flags, how): (i32, WriteFlags),
    ) -> Result<Option<Range<u64>>, Errno> {
        let ino = open.handle.ino();
        if how.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            self.drop_set_ids(ino)?;
        }
        if open.had_capabilities || self.capabilities.were_given(ino) {
            self.drop_capabilities(ino)?;
        }
        let pages = how.contains(WriteFlags::FUSE_WRITE_CACHE);
        if pages && self.exclusive {
            // The kernel sets the times itself, and may have done so while this request was queued.
            return self.with_lane(|lane, _| {
                let written = lane.write_late(&open.handle, offset, data);
                written.map(|()| None).map_err(errno)
            });
        }
        // A write-back of the kernel's own pages does not carry the flags of an open file.
        let flags = if pages { 0 } else { flags };
        let at = match flags & libc::O_APPEND != 0 {
            true if flags & libc::O_DIRECT == 0 && may_go_on(offset, data.len()) => {
                WritePosition::EndOfMore
            }
            true => WritePosition::End,
            false => WritePosition::Offset(offset),
        };
        let direct = flags & libc::O_DIRECT != 0;
        if !direct {
            open.note_pages();
        }
        self.with_lane(|lane, _| {
            let written = if direct {
                lane.write_direct(&open.handle, at, data)
            } else {
                lane.write(&open.handle, at, data)
            }
            .map_err(errno)?;
            if written != offset {
                // Another client has appended or truncated, and the kernel has cached the data of
                // this write at the offset it assumed to be the end.
                let wrong = Change::Content(ino, offset.min(written)..u64::MAX);
                self.recall.changed(&wrong);
            }
            if flags & (libc::O_SYNC | libc::O_DSYNC) != 0 {
                lane.sync(&open.handle).map_err(errno)?;
            }
            // The kernel drops its pages before a direct write, but if the write is asynchronous,
            // readers may cache the old content again before it is done.
            let stale = direct && open.has_pages();
            Ok(stale.then(|| written..written + data.len() as u64))
        })
    }

    fn change(&self, req: &Request, ino: u64, mut set: SetAttr) -> Result<Attr, Errno> {
        if is_loss(&set) {
            let attr = self.files.attr(ino).map_err(errno)?;
            return match without_set_ids(&attr) {
                same if same == attr.inode.permissions => Ok(attr),
                permissions => self.set_permissions(ino, permissions),
            };
        }
        let owner = set.uid.is_some() || set.gid.is_some();
        let cut = set.size.is_some();
        if owner || cut {
            let attr = self.files.attr(ino).map_err(errno)?;
            // A change of owner always removes privileges; a truncation, unless root does it.
            if set.permissions.is_none() && (owner || req.uid() != 0) {
                set.permissions = Some(without_set_ids(&attr));
            }
            if attr.inode.kind == FileType::File {
                self.drop_capabilities(ino)?;
            }
        }
        self.with_lane(|lane, _| lane.set_attr(ino, &set).map_err(errno))
    }

    fn make(
        &self,
        req: &Request,
        (parent, name): (INodeNo, &OsStr),
        (mode, umask, rdev): (u32, u32, u32),
    ) -> fs::Result<Attr> {
        let new = New {
            kind: FileType::of_mode(mode).ok_or(Kind::Invalid)?,
            permissions: mode & 0o7777,
            umask,
            uid: req.uid(),
            gid: req.gid(),
            rdev,
        };
        self.files.create(parent.0, name.as_bytes(), &new)
    }
}

impl Filesystem for Tree {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let capabilities = [
            InitFlags::FUSE_ASYNC_READ,
            InitFlags::FUSE_BIG_WRITES,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_MAX_PAGES,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DONT_MASK,
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ];
        fuse_mount::configure(config, BACKGROUND, &capabilities);
        if self.exclusive {
            // Without support the kernel sends every write immediately, as for any other mount.
            let held_back = config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE);
            self.exclusive = held_back.is_ok();
        }
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        home(Layer::Protocol);
        match self.files.lookup(parent.0, name.as_bytes()) {
            Err(error) if error.kind() == Kind::NotFound => {
                reply.entry(&self.ttl, &convert::nothing(), fuser::Generation(0));
            }
            found => self.enter(reply, found),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, _nlookup: u64) {
        self.release_forgotten(ino.0);
    }

    fn destroy(&mut self) {
        self.all_forgotten();
        self.ended.wake();
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        home(Layer::Protocol);
        match self.files.attr(ino.0) {
            Ok(attr) => reply.attr(&self.ttl, &convert::attr(&attr)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = SetAttr {
            permissions: mode,
            uid,
            gid,
            size,
            has_version: false,
            accessed: atime.map(convert::set_time),
            modified: mtime.map(convert::set_time),
            changed: ctime.map(|time| convert::set_time(TimeOrNow::SpecificTime(time))),
        };
        match self.change(req, ino.0, set) {
            Ok(attr) => reply.attr(&self.ttl, &convert::attr(&attr)),
            Err(e) => reply.error(e),
        }
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        match self.files.read_link(ino.0) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        // mknod(2) without a type creates a regular file.
        let mode = if mode & libc::S_IFMT == 0 {
            mode | libc::S_IFREG
        } else {
            mode
        };
        self.enter(reply, self.make(req, (parent, name), (mode, umask, rdev)));
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let mode = mode & 0o7777 | libc::S_IFDIR;
        self.enter(reply, self.make(req, (parent, name), (mode, umask, 0)));
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let result = self.files.unlink(parent.0, name.as_bytes());
        finish(reply, result.map(drop).map_err(errno));
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (parent, name) = (parent.0, name.as_bytes());
        let removed = self.removing((parent, name), || self.files.rmdir(parent, name));
        finish(reply, removed.map(drop));
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (name, target) = (name.as_bytes(), target.as_os_str().as_bytes());
        let made = self
            .files
            .symlink(parent.0, name, target, req.uid(), req.gid());
        self.enter(reply, made);
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let how = match flags {
            f if f.is_empty() => Rename::Replace,
            RenameFlags::RENAME_NOREPLACE => Rename::NoReplace,
            RenameFlags::RENAME_EXCHANGE => Rename::Exchange,
            _ => return reply.error(Errno::EINVAL),
        };
        let (from, to) = (
            (parent.0, name.as_bytes()),
            (newparent.0, newname.as_bytes()),
        );
        let renamed = self.removing(to, || self.files.rename(from, to, how));
        finish(reply, renamed.map(drop));
    }

    fn link(
        &self,
        _req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        self.enter(
            reply,
            self.files.link(ino.0, newparent.0, newname.as_bytes()),
        );
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.open_file(ino.0, flags.0) {
            Ok((number, keep)) => reply.opened(number, keep),
            Err(e) => reply.error(e),
        }
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let mode = mode & 0o7777 | libc::S_IFREG;
        let made = self
            .make(req, (parent, name), (mode, umask, 0))
            .map_err(errno);
        let opened = made.and_then(|attr| Ok((self.open_file(attr.ino, flags)?, attr)));
        match opened {
            Ok(((number, keep), attr)) => {
                let generation = convert::generation(&attr);
                reply.created(&self.ttl, &convert::attr(&attr), generation, number, keep);
            }
            Err(e) => reply.error(e),
        }
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(open) = self.handles.get(fh) else {
            return reply.error(Errno::EBADF);
        };
        if flags.0 & libc::O_DIRECT == 0 {
            open.note_pages();
        }
        let mut reply = Some(reply);
        let read = self.with_lane(|lane, buf| {
            let size = (size as usize).min(buf.len());
            let out = &mut buf[..size];
            let len = if flags.0 & libc::O_DIRECT != 0 {
                lane.read_direct(&open.handle, offset, out)
            } else {
                lane.read(&open.handle, offset, out)
            }
            .map_err(errno)?;
            if let Some(reply) = reply.take() {
                reply.data(&buf[..len]);
            }
            Ok(())
        });
        if let (Err(e), Some(reply)) = (read, reply) {
            reply.error(e);
        }
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let Some(open) = self.handles.get(fh) else {
            return reply.error(Errno::EBADF);
        };
        match self.write_to(&open, offset, data, (flags.0, write_flags)) {
            Ok(None) => reply.written(data.len() as u32),
            Ok(Some(stale)) => self.recall.reply_after(open.handle.ino(), stale, reply),
            Err(e) => reply.error(e),
        }
    }

    /// Refuses: closing guarantees nothing. ENOSYS keeps the kernel from sending FLUSH again.
    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.handles.remove(fh);
        reply.ok();
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        let open = self.handles.get(fh).ok_or(Errno::EBADF);
        let sync = |open: std::sync::Arc<Open>| {
            self.with_lane(|lane, _| lane.sync(&open.handle).map_err(errno))
        };
        finish(reply, open.and_then(sync));
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.files.pin(ino.0) {
            Ok(_) => reply.opened(FileHandle(0), FopenFlags::empty()),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.files.read_dir(ino.0, offset, |entry| {
            let (kind, name) = (convert::kind(entry.kind), OsStr::from_bytes(entry.name));
            Ok(!reply.add(INodeNo(entry.ino), entry.cookie, kind, name))
        });
        // Failing to record the access time is no reason to fail the listing.
        let _ = self.files.note_read(ino.0);
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed = self.files.read_dir_attrs(ino.0, offset, |entry, attr| {
            let (name, generation) = (OsStr::from_bytes(entry.name), convert::generation(&attr));
            let attr = convert::attr(&attr);
            Ok(!reply.add(
                INodeNo(entry.ino),
                entry.cookie,
                name,
                &self.ttl,
                &attr,
                generation,
            ))
        });
        // Failing to record the access time is no reason to fail the listing.
        let _ = self.files.note_read(ino.0);
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn releasedir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        finish(reply, self.files.unpin(ino.0).map_err(errno));
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        finish(reply, self.files.sync_names().map_err(errno));
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        match self.files.statfs() {
            Ok(stat) => {
                let (block, name) = (fs::BLOCK_BYTES as u32, fs::NAME_MAX as u32);
                let inodes = (stat.inodes, stat.free_inodes);
                reply.statfs(
                    stat.blocks,
                    stat.free,
                    stat.available,
                    inodes.0,
                    inodes.1,
                    block,
                    name,
                    block,
                );
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let how = match flags {
            libc::XATTR_CREATE => SetXattr::Create,
            libc::XATTR_REPLACE => SetXattr::Replace,
            _ => SetXattr::Any,
        };
        finish(
            reply,
            self.set_xattr(req, ino.0, name.as_bytes(), (value, how)),
        );
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        match self.files.xattr(ino.0, name.as_bytes()) {
            Ok(value) => give(reply, &value, size),
            Err(error) => reply.error(xattrs::missing(name.as_bytes(), error)),
        }
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        match self.list_xattrs(req, ino.0) {
            Ok(names) => give(reply, &names, size),
            Err(e) => reply.error(e),
        }
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes();
        let removed = self.files.remove_xattr(ino.0, name);
        finish(reply, removed.map_err(|error| xattrs::missing(name, error)));
    }

    fn ioctl(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    fn fallocate(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        let how = match mode {
            0 => Allocate::Grow,
            KEEP => Allocate::KeepSize,
            m if m == libc::FALLOC_FL_PUNCH_HOLE | KEEP => Allocate::Punch,
            libc::FALLOC_FL_ZERO_RANGE => Allocate::Zero,
            m if m == libc::FALLOC_FL_ZERO_RANGE | KEEP => Allocate::ZeroKeepSize,
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        let Some(open) = self.handles.get(fh) else {
            return reply.error(Errno::EBADF);
        };
        // Kernels before 6.1 do not announce beforehand that the file loses its privileges.
        if req.uid() != 0
            && let Err(e) = self.drop_set_ids(open.handle.ino())
        {
            return reply.error(e);
        }
        let bytes = offset..offset.saturating_add(length);
        let done = self.with_lane(|lane, _| lane.allocate(&open.handle, bytes, how).map_err(errno));
        finish(reply, done.map(drop));
    }

    fn lseek(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        if self.exclusive {
            // The kernel does not write back its dirty pages before this request; without support
            // it treats everything as data.
            return reply.error(Errno::ENOSYS);
        }
        let what = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else {
            return reply.error(Errno::ENXIO);
        };
        match self.files.seek(ino.0, offset, what) {
            Ok(at) => reply.offset(at as i64),
            Err(error) => reply.error(errno(error)),
        }
    }
}

/// Replies with a value to a caller with a buffer of `size` bytes, or with its length for size 0.
fn give(reply: ReplyXattr, value: &[u8], size: u32) {
    match size as usize {
        0 => reply.size(value.len() as u32),
        size if size < value.len() => reply.error(Errno::ERANGE),
        _ => reply.data(value),
    }
}
