//! Requests that change a file system of another program, with the errors of the kernel's `vfat` for
//! those that its format does not have.

use super::ForeignTree;
use foreign::{Lane, New, SetAttr};
use fs::{Change, Watcher};
use fuse_mount::fuse_proto::{self, Opened, Operation, Request, SetTime, abi};
use fuse_mount::{Errno, Reply};

/// Bits of a mode that FAT can have: type and permissions.
const MODE_BITS: u32 = libc::S_IFMT | 0o777;

/// Permissions of a file that is not read-only.
const PERMISSIONS: u32 = 0o755;

impl ForeignTree {
    /// Serves a request that changes files, or returns the reply for others.
    pub(super) fn change<'a>(&self, request: &Request<'_>, reply: Reply<'a>) -> Option<Reply<'a>> {
        if !self.writable {
            return Some(reply);
        }
        let node = request.header.node;
        match &request.operation {
            Operation::Forget { lookups } => self.forget(node, *lookups),
            Operation::BatchForget(forgets) => {
                forgets.for_each(|(node, lookups)| self.forget(node, lookups));
            }
            Operation::SetAttr(set) => match self.set_attr(node, set) {
                Ok(attr) => reply.attr(&attr, self.ttl),
                Err(e) => reply.error(e),
            },
            Operation::MkNod { name, mode, .. } => match mode & libc::S_IFMT {
                0 | libc::S_IFREG => self.enter(reply, |lane| lane.create(node, name, New::File)),
                _ => reply.error(Errno::PERM),
            },
            Operation::MkDir { name, .. } => {
                self.enter(reply, |lane| lane.create(node, name, New::Directory));
            }
            Operation::Create(create) => {
                match self.make(|lane| lane.create(node, create.name, New::File)) {
                    Ok(entry) => reply.created(&entry, &opened()),
                    Err(e) => reply.error(e),
                }
            }
            Operation::Unlink { name } => reply.result(self.remove(node, name, New::File)),
            Operation::RmDir { name } => reply.result(self.remove(node, name, New::Directory)),
            Operation::Rename {
                name,
                new_parent,
                new_name,
                flags,
            } => {
                let flags = rustix::fs::RenameFlags::from_bits_retain(*flags);
                reply.result(self.rename((node, name), (*new_parent, new_name), flags));
            }
            Operation::Write(write) => {
                let syncs = write.flags as i32 & (libc::O_SYNC | libc::O_DSYNC) != 0;
                let written = self.with_own(|own| {
                    let len = own.lane.write(node, write.offset, write.data)?;
                    if syncs {
                        own.lane.sync(node)?;
                    }
                    Ok(len)
                });
                match written {
                    Ok(len) => reply.written(len as u32),
                    Err(e) => reply.error(e),
                }
            }
            Operation::FSync { .. } => reply.result(self.with_own(|own| own.lane.sync(node))),
            Operation::FSyncDir { .. } | Operation::SyncFs => {
                reply.result(self.with_own(|own| own.lane.sync_all()));
            }
            Operation::Symlink { .. } | Operation::Link { .. } => reply.error(Errno::PERM),
            Operation::SetXattr { .. }
            | Operation::RemoveXattr { .. }
            | Operation::TmpFile(_)
            | Operation::FAllocate { .. } => reply.error(Errno::OPNOTSUPP),
            _ => return Some(reply),
        }
        None
    }

    /// Reports whether a name is written as it is stored.
    pub(super) fn is_exact(&self, dir: u64, name: &[u8]) -> bool {
        let stored = self.with_own(|own| own.lane.stored_name(dir, name));
        stored.is_ok_and(|stored| stored == name)
    }

    /// Creates or finds a file for the kernel, which uses its node from then on.
    fn make(
        &self,
        work: impl FnOnce(&mut Lane) -> foreign::Result<u64>,
    ) -> Result<fuse_proto::Entry, Errno> {
        self.with_own(|own| {
            let node = work(&mut own.lane)?;
            let entry = self.entry_of(node, &own.lane.attr(node)?);
            self.files.remember(node);
            Ok(entry)
        })
    }

    fn enter(&self, reply: Reply<'_>, work: impl FnOnce(&mut Lane) -> foreign::Result<u64>) {
        match self.make(work) {
            Ok(entry) => reply.entry(&entry),
            Err(e) => reply.error(e),
        }
    }

    /// Lets the kernel look up a name again that has, or had, another spelling.
    fn recall(&self, dir: u64, name: &[u8], stored: Option<&[u8]>) {
        if let Some(stored) = stored.filter(|stored| *stored != name) {
            self.recall.changed(&Change::Entry(dir, name));
            self.recall.changed(&Change::Entry(dir, stored));
        }
    }

    fn remove(&self, dir: u64, name: &[u8], kind: New) -> Result<(), Errno> {
        let stored = self.with_own(|own| {
            let stored = own.lane.stored_name(dir, name)?;
            own.lane.remove(dir, name, kind).map(|()| stored)
        })?;
        self.recall(dir, name, Some(&stored));
        Ok(())
    }

    fn rename(
        &self,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: rustix::fs::RenameFlags,
    ) -> Result<(), Errno> {
        let keeps = flags == rustix::fs::RenameFlags::NOREPLACE;
        if !keeps && !flags.is_empty() {
            return Err(Errno::INVAL);
        }
        let (source, target) = self.with_own(|own| {
            let source = own.lane.stored_name(from.0, from.1)?;
            own.lane.rename(from, to, !keeps)?;
            Ok((source, own.lane.stored_name(to.0, to.1).ok()))
        })?;
        self.recall(from.0, from.1, Some(&source));
        self.recall(to.0, to.1, target.as_deref());
        Ok(())
    }

    fn set_attr(&self, node: u64, set: &fuse_proto::SetAttr) -> Result<fuse_proto::Attr, Errno> {
        self.with_own(|own| {
            let attr = own.lane.attr(node)?;
            let other = |new: Option<u32>, old: u32| new.is_some_and(|new| new != old);
            let mode = set.mode.is_some_and(|mode| mode & !MODE_BITS != 0);
            if other(set.uid, attr.uid) || other(set.gid, attr.gid) || mode {
                return Ok(Err(Errno::PERM));
            }
            if let Some(size) = set.size {
                own.lane.set_size(node, size)?;
            }
            // As `vfat`: permissions that the format does not have are ignored.
            let read_only = set.mode.filter(|_| attr.is_file()).and_then(|mode| {
                let mode = mode & PERMISSIONS;
                match mode & 0o222 {
                    _ if mode & 0o555 != PERMISSIONS & 0o555 => None,
                    0 => Some(true),
                    _ => Some(false),
                }
            });
            let change = SetAttr {
                read_only,
                modified: set.mtime.map(exact),
                accessed: set.atime.map(exact),
            };
            if change != SetAttr::default() {
                own.lane.set_attr(node, &change)?;
            }
            Ok(Ok(own.lane.attr(node)?))
        })?
        .map(|attr| self.attr_of(&attr))
    }

    fn forget(&self, node: u64, lookups: u64) {
        // The next save, or the unmount, frees the space after an error.
        if let Err(e) = self.with_own(|own| own.lane.forget(node, lookups)) {
            tracing::debug!("cannot free a removed file: {e}");
        }
    }
}

fn opened() -> Opened {
    Opened {
        flags: abi::FOPEN_KEEP_CACHE,
        ..Opened::default()
    }
}

fn exact(set: SetTime) -> foreign::Time {
    match set {
        SetTime::At(at) => foreign::Time {
            seconds: at.seconds,
            nanos: at.nanos,
        },
        SetTime::Now => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            let now = now.unwrap_or_default();
            foreign::Time {
                seconds: now.as_secs() as i64,
                nanos: now.subsec_nanos(),
            }
        }
    }
}
