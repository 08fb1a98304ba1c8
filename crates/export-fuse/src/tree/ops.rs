//! The kernel's requests, except those for the content of files, which are in `content.rs`.

use super::handles::{How, syncs};
use super::privileges::{is_loss, without_set_ids};
use super::{Tree, convert, errno, give, or_removed, snapshots, xattrs};
use fs::{Attr, FileType, InodeFlags, Kind, New, Rename, SetAttr, SetXattr};
use fuse_mount::fuse_proto::abi;
use fuse_mount::fuse_proto::reply::{Directory, DirectoryPlus};
use fuse_mount::fuse_proto::{
    self, Create, Entry, Header, Opened, Operation, Request, Session, StatFs, Statx, Wanted,
};
use fuse_mount::{Errno, PIECE_BYTES, Reply, Serve, never_wait_for_write_back};
use layer_cpu::{Layer, home};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

/// Number of background requests (read-ahead, write-back of mappings) that the kernel may queue.
const BACKGROUND: u16 = 64;

thread_local! {
    /// Memory for the entries of a directory.
    static LISTING: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Tree {
    pub(super) fn entry_of(&self, attr: &Attr) -> Entry {
        Entry {
            node: attr.ino,
            generation: attr.inode.generation.into(),
            entry_ttl: self.ttl,
            attr_ttl: self.ttl,
            attr: convert::attr(attr),
        }
    }

    fn enter(&self, reply: Reply<'_>, result: fs::Result<Attr>) {
        match result {
            Ok(attr) => reply.entry(&self.entry_of(&attr)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn change(&self, header: &Header, ino: u64, mut set: SetAttr) -> Result<Attr, Errno> {
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
            if set.permissions.is_none() && (owner || header.uid != 0) {
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
        header: &Header,
        name: &[u8],
        (mode, umask, rdev): (u32, u32, u32),
    ) -> fs::Result<Attr> {
        let new = new(header, (mode, umask, rdev))?;
        self.files.create(header.node, name, &new)
    }

    fn lookup(&self, dir: u64, name: &[u8], reply: Reply<'_>) {
        let found = match name {
            // Sent for a file handle of an inode that the kernel has forgotten, of any type.
            b"." => self
                .files
                .attr(dir)
                .and_then(|attr| match attr.inode.links {
                    0 => Err(Kind::Stale.into()),
                    _ => Ok(attr),
                }),
            name => self.files.lookup(dir, name),
        };
        match found {
            Err(error) if error.kind() == Kind::NotFound => {
                if let Some(reply) = self.lookup_snapshots(dir, name, reply) {
                    reply.negative_entry(self.ttl);
                }
            }
            found => self.enter(reply, found),
        }
    }

    fn set_attr(&self, header: &Header, set: &fuse_proto::SetAttr, reply: Reply<'_>) {
        let change = SetAttr {
            permissions: set.mode,
            uid: set.uid,
            gid: set.gid,
            size: set.size,
            has_version: false,
            accessed: set.atime.map(convert::set_time),
            modified: set.mtime.map(convert::set_time),
            changed: set.ctime.map(convert::exact_time),
        };
        match self.change(header, header.node, change) {
            Ok(attr) => reply.attr(&convert::attr(&attr), self.ttl),
            // The kernel does so after the last name is removed. It would report an error as one of
            // write-back, to the process that calls syncfs(2) next.
            Err(Errno::STALE) if self.exclusive && sets_times_of_kernel(set) => {
                reply.attr(&convert::removed_file(header.node), Duration::ZERO);
            }
            Err(e) => reply.error(e),
        }
    }

    pub(super) fn rename(
        &self,
        header: &Header,
        [from, to]: [(u64, &[u8]); 2],
        flags: u32,
    ) -> Result<(), Errno> {
        const NO_REPLACE: u32 = libc::RENAME_NOREPLACE;
        let how = match flags {
            0 => Rename::Replace,
            NO_REPLACE => Rename::NoReplace,
            libc::RENAME_EXCHANGE => Rename::Exchange,
            _ if flags & !NO_REPLACE == libc::RENAME_WHITEOUT => Rename::Whiteout {
                uid: header.uid,
                gid: header.gid,
                replaces: flags & NO_REPLACE == 0,
            },
            _ => return Err(Errno::INVAL),
        };
        let renamed = self.removing(to, || self.files.rename(from, to, how));
        renamed.map(drop)
    }

    /// Creates a file and opens it. Without a name (O_TMPFILE), it has none until it is linked.
    fn create(&self, header: &Header, create: &Create<'_>, name: Option<&[u8]>, reply: Reply<'_>) {
        let mode = create.mode & 0o7777 | libc::S_IFREG;
        let made = new(header, (mode, create.umask, 0)).and_then(|new| match name {
            Some(name) => self.files.create_open(header.node, name, &new),
            None => self.files.create_unnamed(header.node, &new),
        });
        match made {
            Ok((attr, handle)) => {
                let how = How {
                    writes: true,
                    syncs: syncs(create.flags),
                    // A new file has none.
                    had_capabilities: false,
                    uncached: self.uncached,
                };
                match self.opened(handle, how) {
                    Ok(opened) => reply.created(&self.entry_of(&attr), &opened),
                    Err(error) => reply.error(error),
                }
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn read_dir(&self, ino: u64, (offset, size): (u64, u32), reply: Reply<'_>) {
        let mut entries = Directory::new(LISTING.take(), size);
        let listed = self.files.read_dir(ino, offset, |entry| {
            Ok(entries.add(entry.ino, entry.cookie, entry.kind.mode_bits(), entry.name))
        });
        // Failing to record the access time is no reason to fail the listing.
        let _ = self.files.note_read(ino);
        match or_removed(listed) {
            Ok(()) => LISTING.set(reply.directory(entries)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn read_dir_plus(&self, ino: u64, (offset, size): (u64, u32), reply: Reply<'_>) {
        let mut entries = DirectoryPlus::new(LISTING.take(), size);
        let listed = self.files.read_dir_attrs(ino, offset, |entry, attr| {
            Ok(entries.add(&self.entry_of(&attr), entry.cookie, entry.name))
        });
        // Failing to record the access time is no reason to fail the listing.
        let _ = self.files.note_read(ino);
        match or_removed(listed) {
            Ok(()) => LISTING.set(reply.directory_plus(entries)),
            Err(error) => reply.error(errno(error)),
        }
    }

    pub(super) fn statfs(&self, reply: Reply<'_>) {
        match self.files.statfs() {
            Ok(stat) => reply.statfs(&StatFs {
                blocks: stat.blocks,
                free: stat.free,
                available: stat.available,
                files: stat.inodes,
                free_files: stat.free_inodes,
                block_bytes: fs::BLOCK_BYTES as u32,
                fragment_bytes: fs::BLOCK_BYTES as u32,
                name_bytes_max: fs::NAME_MAX as u32,
            }),
            Err(error) => reply.error(errno(error)),
        }
    }
}

impl Serve for Tree {
    fn wanted(&self) -> Wanted {
        // Each of these is optional: it improves speed or accuracy if the kernel supports it.
        let mut flags = abi::FUSE_ASYNC_READ
            | abi::FUSE_BIG_WRITES
            | abi::FUSE_ASYNC_DIO
            | abi::FUSE_MAX_PAGES
            | abi::FUSE_PARALLEL_DIROPS
            | abi::FUSE_DONT_MASK
            | abi::FUSE_POSIX_ACL
            | abi::FUSE_DO_READDIRPLUS
            | abi::FUSE_READDIRPLUS_AUTO
            | abi::FUSE_CACHE_SYMLINKS
            | abi::FUSE_HANDLE_KILLPRIV_V2
            | abi::FUSE_EXPORT_SUPPORT;
        flags |= if self.strict_atime {
            // Every read and every listing reaches the server.
            abi::FUSE_DIRECT_IO_ALLOW_MMAP
        } else {
            abi::FUSE_NO_OPENDIR_SUPPORT
        };
        if self.exclusive {
            flags |= abi::FUSE_WRITEBACK_CACHE;
        }
        Wanted {
            flags: flags & !self.without,
            max_write: PIECE_BYTES as u32,
            max_readahead: PIECE_BYTES as u32,
            max_background: BACKGROUND,
            congestion_threshold: BACKGROUND / 4 * 3,
            ..Wanted::default()
        }
    }

    fn agreed(&mut self, session: &Session) {
        // Without support the kernel sends every write immediately, as for any other mount.
        self.exclusive = session.has(abi::FUSE_WRITEBACK_CACHE);
        self.no_opendir = session.has(abi::FUSE_NO_OPENDIR_SUPPORT);
        // Without support, a file that is not cached could not be mapped.
        self.uncached = self.strict_atime && session.has(abi::FUSE_DIRECT_IO_ALLOW_MMAP);
    }

    fn serve(&self, request: &Request<'_>, reply: Reply<'_>) {
        home(Layer::Protocol);
        match &self.succession {
            Some(succession) => self.serve_noted(succession, request, reply),
            None => self.serve_once(request, reply),
        }
    }

    fn ended(&self) {
        self.all_forgotten();
        self.ended.wake();
    }
}

impl Tree {
    /// Serves a request as its first.
    pub(super) fn serve_once(&self, request: &Request<'_>, reply: Reply<'_>) {
        let (header, node) = (&request.header, request.header.node);
        if let Operation::CopyFileRange(copy) = &request.operation {
            return self.copy_range(header, copy, reply);
        }
        if snapshots::is_in(node) && request.operation.is_answered() {
            return self.serve_snapshot(request, reply);
        }
        if let Err(error) = self.check_outside_snapshots(node, &request.operation) {
            return reply.error(error);
        }
        match &request.operation {
            Operation::Lookup { name } => self.lookup(node, name, reply),
            Operation::Forget { .. } => self.release_forgotten(node),
            Operation::BatchForget(nodes) => {
                nodes.for_each(|(node, _)| self.release_forgotten(node));
            }
            Operation::GetAttr { .. } => match self.files.attr(node) {
                Ok(attr) => reply.attr(&convert::attr(&attr), self.ttl),
                Err(error) => reply.error(errno(error)),
            },
            // Sent for a program that asks for the time of creation.
            Operation::Statx { .. } => match self.files.attr(node) {
                Ok(attr) => {
                    let statx = Statx {
                        attributes: attr.inode.flags.only(InodeFlags::IN_STATX).0.into(),
                        attributes_mask: InodeFlags::IN_STATX.0.into(),
                        attr: convert::attr(&attr),
                    };
                    reply.statx(&statx, self.ttl);
                }
                Err(error) => reply.error(errno(error)),
            },
            Operation::SetAttr(set) => self.set_attr(header, set, reply),
            Operation::ReadLink => match self.files.read_link(node) {
                Ok(target) => reply.data(&target),
                Err(error) => reply.error(errno(error)),
            },
            Operation::MkNod {
                name,
                mode,
                rdev,
                umask,
                ..
            } => {
                // mknod(2) without a type creates a regular file.
                let mode = match mode & libc::S_IFMT {
                    0 => mode | libc::S_IFREG,
                    _ => *mode,
                };
                self.enter(reply, self.make(header, name, (mode, *umask, *rdev)));
            }
            Operation::MkDir {
                name, mode, umask, ..
            } => {
                let mode = mode & 0o7777 | libc::S_IFDIR;
                self.enter(reply, self.make(header, name, (mode, *umask, 0)));
            }
            Operation::Unlink { name } => {
                let result = self.files.unlink(node, name);
                reply.result(result.map(drop).map_err(errno));
            }
            Operation::RmDir { name } => {
                let removed = self.removing((node, name), || self.files.rmdir(node, name));
                reply.result(removed.map(drop));
            }
            Operation::Symlink { name, target, .. } => {
                let (uid, gid) = (header.uid, header.gid);
                self.enter(reply, self.files.symlink(node, name, target, uid, gid));
            }
            Operation::Rename {
                name,
                new_parent,
                new_name,
                flags,
            } => {
                let names = [(node, *name), (*new_parent, *new_name)];
                reply.result(self.rename(header, names, *flags));
            }
            Operation::Link {
                node: file,
                new_name,
            } => self.enter(reply, self.files.link(*file, node, new_name)),
            Operation::Open { flags, .. } => match self.open_file(node, *flags) {
                Ok(opened) => reply.opened(&opened),
                Err(e) => reply.error(e),
            },
            Operation::Create(create) => self.create(header, create, Some(create.name), reply),
            Operation::TmpFile(create) => self.create(header, create, None, reply),
            Operation::Read(read) => self.read(read, reply),
            Operation::Write(write) => self.write(write, reply),
            // Closing guarantees nothing. ENOSYS keeps the kernel from sending FLUSH again.
            Operation::Flush { .. } => reply.error(Errno::NOSYS),
            Operation::Release { handle, .. } => {
                self.handles.remove(*handle);
                reply.empty();
            }
            Operation::FSync { handle, .. } => reply.result(self.fsync(*handle)),
            // The kernel sends no further one after this answer, nor RELEASEDIR.
            Operation::OpenDir { .. } if self.no_opendir => reply.error(Errno::NOSYS),
            Operation::OpenDir { .. } => match self.files.pin(node) {
                Ok(_) => reply.opened(&Opened::default()),
                Err(error) => reply.error(errno(error)),
            },
            Operation::ReadDir { offset, size, .. } => {
                self.read_dir(node, (*offset, *size), reply);
            }
            Operation::ReadDirPlus { offset, size, .. } => {
                self.read_dir_plus(node, (*offset, *size), reply);
            }
            Operation::ReleaseDir { .. } => reply.result(self.files.unpin(node).map_err(errno)),
            Operation::SyncFs => {
                let files = Arc::downgrade(&self.files);
                self.syncs.request(reply, move || {
                    never_wait_for_write_back();
                    // Otherwise the mount has ended.
                    let files = files.upgrade().ok_or(Errno::IO)?;
                    files.sync().map_err(errno)
                });
            }
            Operation::FSyncDir { .. } => reply.result(self.files.sync_names().map_err(errno)),
            Operation::StatFs => self.statfs(reply),
            Operation::SetXattr {
                name, value, flags, ..
            } => {
                let how = match *flags as i32 {
                    libc::XATTR_CREATE => SetXattr::Create,
                    libc::XATTR_REPLACE => SetXattr::Replace,
                    _ => SetXattr::Any,
                };
                reply.result(self.set_xattr(header, name, (value, how)));
            }
            Operation::GetXattr { name, size } => match self.files.xattr(node, name) {
                Ok(value) => give(reply, &value, *size),
                Err(error) => reply.error(xattrs::unread(name, error)),
            },
            Operation::ListXattr { size } => match xattrs::list(self.files.fileset(), node, header)
            {
                Ok(names) => give(reply, &names, *size),
                Err(e) => reply.error(e),
            },
            Operation::RemoveXattr { name } => {
                let removed = self.files.remove_xattr(node, name);
                reply.result(removed.map_err(|error| xattrs::missing(name, error)));
            }
            Operation::Ioctl(ioctl) => self.ioctl(header, ioctl, reply),
            Operation::FAllocate {
                handle,
                offset,
                length,
                mode,
            } => {
                let bytes = *offset..offset.saturating_add(*length);
                reply.result(self.allocate(header, *handle, bytes, *mode as i32));
            }
            Operation::LSeek { offset, whence, .. } => self.seek(node, *offset, *whence, reply),
            _ => reply.error(Errno::NOSYS),
        }
    }
}

/// Reports whether a change consists of the times that the kernel keeps of a regular file while it
/// holds back writes (`fuse_flush_times` of Linux).
fn sets_times_of_kernel(set: &fuse_proto::SetAttr) -> bool {
    let others = (set.mode, set.uid, set.gid, set.size, set.atime);
    set.mtime.is_some() && set.ctime.is_some() && others == (None, None, None, None, None)
}

/// Describes a file to be created.
fn new(header: &Header, (mode, umask, rdev): (u32, u32, u32)) -> fs::Result<New> {
    Ok(New {
        kind: FileType::of_mode(mode).ok_or(Kind::Invalid)?,
        permissions: mode & 0o7777,
        umask,
        uid: header.uid,
        gid: header.gid,
        rdev,
    })
}
