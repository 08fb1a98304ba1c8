//! The directory `.snapshots` in the root of a mounted fileset, with the files of its snapshots.
//!
//! ```text
//!   node   0                              a file of the fileset: its inode number
//!   node   1 << 62 | id << 40 | inode     a file of the snapshot `id`
//!   node   1 << 62 | 1                    the directory `.snapshots`
//! ```
//!
//! So `(st_dev, st_ino)` stays unique, and the number of a file in a snapshot is the same for each
//! mount. A separate `st_dev` per snapshot would need submounts, which Linux has for virtiofs only.
//!
//! **Invariant:** a snapshot can be read and never changed. Names of snapshots are looked up each
//! time, so a lookup finds a new snapshot, and no removed one, at once; a listing that the kernel
//! has cached follows when it is notified. A snapshot with an open file
//! is not removed; other uses of a removed one, such as a working directory, get ESTALE.
//! A directory of this name that the fileset contains itself is not hidden.

use super::handles::How;
use super::{OwnLane, Tree, convert, errno, give, ioctl, or_removed, xattrs};
use fs::{Attr, DirEntry, FileType, Handle, Ino, InodeFlags, Kind, ROOT, Snapshots, TreeId};
use fuse_mount::fuse_proto::reply::{Directory, DirectoryPlus};
use fuse_mount::fuse_proto::{self, Entry, Opened, Operation, Read, Request, Statx, abi};
use fuse_mount::{Errno, Reply};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

/// Name of the directory in the root.
pub(super) const NAME: &[u8] = b".snapshots";

/// Bit of the nodes of this module.
const BIT: u64 = 1 << 62;

/// Bits of an inode number within a node.
const INO_BITS: u32 = 40;

/// Node of the directory of all snapshots.
pub(super) const LIST: u64 = BIT | ROOT;

/// Position of `..` in the directory of all snapshots; a snapshot follows at its id.
const DOT_DOT: u64 = 2;

thread_local! {
    /// The lane that this thread used last for a snapshot.
    static LANE: RefCell<Option<OwnLane>> = const { RefCell::new(None) };
}

/// Reports whether a node belongs to this module.
pub(super) fn is_in(node: u64) -> bool {
    node & BIT != 0
}

/// Composes a node.
///
/// # Errors
/// [`Errno::OVERFLOW`]: one of the numbers is too large, after 4 million snapshots or 500 billion
/// files.
fn node_of(id: TreeId, ino: Ino) -> Result<u64, Errno> {
    let id = u64::from(id);
    if ino >> INO_BITS == 0 && id << INO_BITS < BIT {
        Ok(BIT | id << INO_BITS | ino)
    } else {
        Err(Errno::OVERFLOW)
    }
}

/// Decomposes a node.
fn parts_of(node: u64) -> (TreeId, Ino) {
    let id = (node & !BIT) >> INO_BITS;
    (id as TreeId, node & ((1 << INO_BITS) - 1))
}

/// Node and attributes of a file of a snapshot.
struct Found {
    node: u64,
    generation: u64,
    attr: fuse_proto::Attr,
}

impl Found {
    fn new(id: TreeId, attr: &Attr) -> Result<Found, Errno> {
        let node = node_of(id, attr.ino)?;
        let generation = attr.inode.generation.into();
        let mut attr = convert::attr(attr);
        attr.ino = node;
        Ok(Found {
            node,
            generation,
            attr,
        })
    }

    fn entry(&self, entry_ttl: Duration, attr_ttl: Duration) -> Entry {
        Entry {
            node: self.node,
            generation: self.generation,
            entry_ttl,
            attr_ttl,
            attr: self.attr,
        }
    }
}

/// Converts an error; a snapshot that no longer exists is like a removed file.
fn stale(error: fs::Error) -> Errno {
    match error.kind() {
        Kind::Stale => Errno::STALE,
        _ => errno(error),
    }
}

/// Reports whether a request would change something.
fn is_change(operation: &Operation<'_>) -> bool {
    match operation {
        Operation::Open { flags, .. } => *flags as i32 & libc::O_ACCMODE != libc::O_RDONLY,
        Operation::SetAttr(_)
        | Operation::MkNod { .. }
        | Operation::MkDir { .. }
        | Operation::Symlink { .. }
        | Operation::Unlink { .. }
        | Operation::RmDir { .. }
        | Operation::Rename { .. }
        | Operation::Link { .. }
        | Operation::Create(_)
        | Operation::TmpFile(_)
        | Operation::Write(_)
        | Operation::FAllocate { .. }
        | Operation::SetXattr { .. }
        | Operation::RemoveXattr { .. } => true,
        _ => false,
    }
}

impl Tree {
    /// Answers a lookup of the directory of all snapshots, which the fileset itself does not
    /// contain. Returns the reply if the name is another one, or the directory is disabled.
    pub(super) fn lookup_snapshots<'a>(
        &self,
        dir: Ino,
        name: &[u8],
        reply: Reply<'a>,
    ) -> Option<Reply<'a>> {
        let Some(snapshots) = self.snapshots.as_ref().filter(|_| is_list(dir, name)) else {
            return Some(reply);
        };
        match self.list_found(snapshots) {
            // Not kept: an entry of this name may be created through another client.
            Ok(found) => reply.entry(&found.entry(Duration::ZERO, Duration::ZERO)),
            Err(error) => reply.error(error),
        }
        None
    }

    /// Checks a request for files of the fileset.
    ///
    /// # Errors
    /// It would replace the directory of all snapshots, or reach into it.
    pub(super) fn check_outside_snapshots(
        &self,
        node: u64,
        operation: &Operation<'_>,
    ) -> Result<(), Errno> {
        if self.snapshots.is_none() {
            return Ok(());
        }
        let is_name = |dir: u64, name: &[u8]| {
            is_list(dir, name)
                && matches!(self.files.lookup(ROOT, NAME), Err(e) if e.kind() == Kind::NotFound)
        };
        match *operation {
            Operation::MkNod { name, .. }
            | Operation::MkDir { name, .. }
            | Operation::Symlink { name, .. }
                if is_name(node, name) =>
            {
                Err(Errno::EXIST)
            }
            Operation::Create(create) if is_name(node, create.name) => Err(Errno::ISDIR),
            Operation::Link { node: from, .. } if is_in(from) => Err(Errno::XDEV),
            Operation::Link { new_name, .. } if is_name(node, new_name) => Err(Errno::EXIST),
            Operation::Unlink { name } | Operation::RmDir { name } if is_name(node, name) => {
                Err(Errno::ROFS)
            }
            Operation::Rename { new_parent, .. } if is_in(new_parent) => Err(Errno::XDEV),
            Operation::Rename {
                name,
                new_parent,
                new_name,
                ..
            } if is_name(node, name) || is_name(new_parent, new_name) => Err(Errno::ROFS),
            _ => Ok(()),
        }
    }

    /// Serves a request for a node of this module.
    pub(super) fn serve_snapshot(&self, request: &Request<'_>, reply: Reply<'_>) {
        let Some(snapshots) = &self.snapshots else {
            return reply.error(Errno::STALE);
        };
        if is_change(&request.operation) {
            return reply.error(Errno::ROFS);
        }
        match request.header.node {
            LIST => self.serve_list(snapshots, request, reply),
            node => self.serve_file(snapshots, parts_of(node), request, reply),
        }
    }

    /// Attributes of the directory of all snapshots.
    fn list_found(&self, snapshots: &Snapshots) -> Result<Found, Errno> {
        let root = self.files.attr(ROOT).map_err(stale)?;
        let all = snapshots.list().map_err(stale)?;
        let mut found = Found::new(0, &root)?;
        let latest = all.iter().map(|one| one.created).max();
        let changed = latest.map_or(root.inode.created, |time| time.max(root.inode.created));
        let time = fuse_proto::Time {
            seconds: changed.seconds,
            nanos: changed.nanos,
        };
        found.generation = 0;
        (found.attr.mtime, found.attr.ctime, found.attr.atime) = (time, time, time);
        found.attr.mode = libc::S_IFDIR | 0o555;
        found.attr.nlink = 2 + all.len() as u32;
        found.attr.size = 0;
        Ok(found)
    }

    fn serve_list(&self, snapshots: &Snapshots, request: &Request<'_>, reply: Reply<'_>) {
        let found = || self.list_found(snapshots);
        match request.operation {
            Operation::Lookup { name: b"." } => match found() {
                Ok(found) => reply.entry(&found.entry(Duration::ZERO, Duration::ZERO)),
                Err(error) => reply.error(error),
            },
            Operation::Lookup { name: b".." } => match self.files.attr(ROOT) {
                Ok(attr) => reply.entry(&self.entry_of(&attr)),
                Err(error) => reply.error(errno(error)),
            },
            Operation::Lookup { name } => match self.snapshot_named(snapshots, name) {
                Ok(Some(found)) => reply.entry(&found.entry(Duration::ZERO, self.ttl)),
                Ok(None) => reply.error(Errno::NOENT),
                Err(error) => reply.error(error),
            },
            Operation::GetAttr { .. } => match found() {
                Ok(found) => reply.attr(&found.attr, Duration::ZERO),
                Err(error) => reply.error(error),
            },
            Operation::Statx { .. } => match found() {
                Ok(found) => reply.statx(
                    &Statx {
                        attr: found.attr,
                        ..Statx::default()
                    },
                    Duration::ZERO,
                ),
                Err(error) => reply.error(error),
            },
            Operation::ReadDir { offset, size, .. }
            | Operation::ReadDirPlus { offset, size, .. } => {
                let plus = matches!(request.operation, Operation::ReadDirPlus { .. });
                match self.listing(snapshots, offset, size, plus) {
                    Ok(Listing::Names(entries)) => drop(reply.directory(entries)),
                    Ok(Listing::WithAttributes(entries)) => drop(reply.directory_plus(entries)),
                    Err(error) => reply.error(error),
                }
            }
            Operation::OpenDir { .. } if self.no_opendir => reply.error(Errno::NOSYS),
            Operation::OpenDir { .. } => reply.opened(&Opened::default()),
            Operation::ReleaseDir { .. } | Operation::FSyncDir { .. } => reply.empty(),
            Operation::StatFs => self.statfs(reply),
            Operation::GetXattr { .. } => reply.error(Errno::NODATA),
            Operation::ListXattr { size } => give(reply, &[], size),
            Operation::Ioctl(_) => reply.error(Errno::NOTTY),
            _ => reply.error(Errno::NOSYS),
        }
    }

    /// Finds the root directory of a snapshot.
    fn snapshot_named(&self, snapshots: &Snapshots, name: &[u8]) -> Result<Option<Found>, Errno> {
        let all = snapshots.list().map_err(stale)?;
        let Some(one) = all.iter().find(|one| one.name.as_bytes() == name) else {
            return Ok(None);
        };
        let root = snapshots.fileset(one.id).and_then(|own| own.attr(ROOT));
        let root = root.map_err(stale)?;
        Found::new(one.id, &root).map(Some)
    }

    fn listing(
        &self,
        snapshots: &Snapshots,
        offset: u64,
        size: u32,
        plus: bool,
    ) -> Result<Listing, Errno> {
        let mut listing = if plus {
            Listing::WithAttributes(DirectoryPlus::new(Vec::new(), size))
        } else {
            Listing::Names(Directory::new(Vec::new(), size))
        };
        let all = snapshots.list().map_err(stale)?;
        let dots = [(1, b"." as &[u8]), (DOT_DOT, b"..")];
        for (cookie, name) in dots.into_iter().filter(|(cookie, _)| *cookie > offset) {
            let mut found = self.list_found(snapshots)?;
            if cookie == DOT_DOT {
                found.attr.ino = ROOT;
            }
            // Node 0: the kernel has these two already.
            found.node = 0;
            if !listing.add(&found, cookie, name, Duration::ZERO) {
                return Ok(listing);
            }
        }
        for one in all {
            let cookie = DOT_DOT + u64::from(one.id);
            if cookie <= offset {
                continue;
            }
            // One that is being removed, or that has no node, is not listed.
            let root = snapshots.fileset(one.id).and_then(|own| own.attr(ROOT));
            let Some(found) = root.ok().and_then(|root| Found::new(one.id, &root).ok()) else {
                continue;
            };
            if !listing.add(&found, cookie, one.name.as_bytes(), self.ttl) {
                break;
            }
        }
        Ok(listing)
    }

    fn serve_file(
        &self,
        snapshots: &Snapshots,
        (id, ino): (TreeId, Ino),
        request: &Request<'_>,
        reply: Reply<'_>,
    ) {
        if let Operation::Release { handle, .. } = request.operation {
            self.snapshot_handles.remove(handle);
            return reply.empty();
        }
        let fileset = match snapshots.fileset(id) {
            Ok(fileset) => fileset,
            Err(error) => return reply.error(stale(error)),
        };
        match request.operation {
            Operation::Lookup { name: b".." } if ino == ROOT => match self.list_found(snapshots) {
                Ok(found) => reply.entry(&found.entry(Duration::ZERO, Duration::ZERO)),
                Err(error) => reply.error(error),
            },
            // Sent for a file handle of an inode that the kernel has forgotten, of any type.
            Operation::Lookup { name: b"." } => {
                let found = fileset.attr(ino).map_err(stale);
                match found.and_then(|attr| Found::new(id, &attr)) {
                    Ok(found) => reply.entry(&found.entry(self.ttl, self.ttl)),
                    Err(error) => reply.error(error),
                }
            }
            Operation::Lookup { name } => match fileset.lookup(ino, name) {
                Ok(attr) => match Found::new(id, &attr) {
                    Ok(found) => reply.entry(&found.entry(self.ttl, self.ttl)),
                    Err(error) => reply.error(error),
                },
                Err(error) if error.kind() == Kind::NotFound => reply.negative_entry(self.ttl),
                Err(error) => reply.error(stale(error)),
            },
            Operation::GetAttr { .. } | Operation::Statx { .. } => {
                let shown = fileset.attr(ino).map_err(stale).and_then(|attr| {
                    Ok(Statx {
                        attributes: attr.inode.flags.only(InodeFlags::IN_STATX).0.into(),
                        attributes_mask: InodeFlags::IN_STATX.0.into(),
                        attr: Found::new(id, &attr)?.attr,
                    })
                });
                match (shown, &request.operation) {
                    (Ok(shown), Operation::GetAttr { .. }) => reply.attr(&shown.attr, self.ttl),
                    (Ok(shown), _) => reply.statx(&shown, self.ttl),
                    (Err(error), _) => reply.error(error),
                }
            }
            Operation::ReadLink => match fileset.read_link(ino) {
                Ok(target) => reply.data(&target),
                Err(error) => reply.error(stale(error)),
            },
            Operation::Open { .. } => {
                let opened = snapshots.files(id).and_then(|files| files.open(ino));
                let inserted = opened
                    .map_err(stale)
                    .and_then(|handle| self.snapshot_handles.insert(handle, How::default()));
                match inserted {
                    Ok(handle) => reply.opened(&Opened {
                        handle,
                        // The content never changes.
                        flags: abi::FOPEN_KEEP_CACHE,
                        ..Opened::default()
                    }),
                    Err(error) => reply.error(error),
                }
            }
            Operation::Read(read) => match self.snapshot_handles.get(read.handle) {
                Some(open) => self.read_snapshot(&open.handle, &read, reply),
                // A predecessor of this server has opened it.
                None => match snapshots.files(id).and_then(|files| files.open(ino)) {
                    Ok(handle) => self.read_snapshot(&handle, &read, reply),
                    Err(error) => reply.error(stale(error)),
                },
            },
            Operation::ReadDir { offset, size, .. } => {
                let mut entries = Directory::new(Vec::new(), size);
                let listed = fileset.read_dir(ino, offset, |entry| {
                    let node = shown_in(id, ino, &entry)?;
                    Ok(entries.add(node, entry.cookie, entry.kind.mode_bits(), entry.name))
                });
                match or_removed(listed) {
                    Ok(()) => drop(reply.directory(entries)),
                    Err(error) => reply.error(stale(error)),
                }
            }
            Operation::ReadDirPlus { offset, size, .. } => {
                let mut entries = DirectoryPlus::new(Vec::new(), size);
                let listed = fileset.read_dir_attrs(ino, offset, |entry, attr| {
                    let found = Found::new(id, &attr).map_err(|_| Kind::Invalid)?;
                    let mut out = found.entry(self.ttl, self.ttl);
                    if matches!(entry.name, b"." | b"..") {
                        out.node = 0;
                        out.attr.ino = shown_in(id, ino, &entry)?;
                    }
                    Ok(entries.add(&out, entry.cookie, entry.name))
                });
                match or_removed(listed) {
                    Ok(()) => drop(reply.directory_plus(entries)),
                    Err(error) => reply.error(stale(error)),
                }
            }
            Operation::OpenDir { .. } if self.no_opendir => reply.error(Errno::NOSYS),
            Operation::OpenDir { .. } => match fileset.attr(ino) {
                Ok(_) => reply.opened(&Opened::default()),
                Err(error) => reply.error(stale(error)),
            },
            Operation::ReleaseDir { .. }
            | Operation::FSync { .. }
            | Operation::FSyncDir { .. }
            | Operation::SyncFs => reply.empty(),
            Operation::StatFs => self.statfs(reply),
            Operation::GetXattr { name, size } => match fileset.xattr(ino, name) {
                Ok(value) => give(reply, &value, size),
                Err(error) => reply.error(xattrs::unread(name, error)),
            },
            Operation::ListXattr { size } => match xattrs::list(&fileset, ino, &request.header) {
                Ok(names) => give(reply, &names, size),
                Err(error) => reply.error(error),
            },
            Operation::LSeek { offset, whence, .. } => {
                match super::content::seek_in(&fileset, ino, offset, whence) {
                    Ok(at) => reply.offset(at),
                    Err(error) => reply.error(error),
                }
            }
            Operation::Ioctl(ioctl) => ioctl::read(&fileset, ino, &ioctl, reply),
            _ => reply.error(Errno::NOSYS),
        }
    }

    fn read_snapshot(&self, handle: &Handle, read: &Read, reply: Reply<'_>) {
        let files = handle.files();
        LANE.with_borrow_mut(|lane| {
            let own = match lane
                .take()
                .filter(|own| Arc::ptr_eq(own.lane.files(), files))
            {
                Some(own) => Ok(own),
                None => OwnLane::open(files),
            };
            let own = match own {
                Ok(own) => lane.insert(own),
                Err(error) => return reply.error(errno(error)),
            };
            let size = (read.size as usize).min(own.buf.len());
            match own.lane.read(handle, read.offset, &mut own.buf[..size]) {
                Ok(len) => reply.data(&own.buf[..len]),
                Err(error) => reply.error(errno(error)),
            }
        });
    }
}

/// Reports whether a name is that of the directory of all snapshots.
fn is_list(dir: Ino, name: &[u8]) -> bool {
    dir == ROOT && name == NAME
}

/// Inode number that a listing of the directory `dir` shows for an entry.
fn shown_in(id: TreeId, dir: Ino, entry: &DirEntry<'_>) -> fs::Result<u64> {
    match entry.name {
        b".." if dir == ROOT => Ok(LIST),
        _ => node_of(id, entry.ino).map_err(|_| Kind::Invalid.into()),
    }
}

/// Reply to a listing of the snapshots.
enum Listing {
    Names(Directory),
    WithAttributes(DirectoryPlus),
}

impl Listing {
    fn add(&mut self, found: &Found, cookie: u64, name: &[u8], attr_ttl: Duration) -> bool {
        match self {
            Listing::Names(entries) => {
                let kind = FileType::Directory.mode_bits();
                entries.add(found.attr.ino, cookie, kind, name)
            }
            Listing::WithAttributes(entries) => {
                entries.add(&found.entry(Duration::ZERO, attr_ttl), cookie, name)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_its_parts_back_and_none_is_the_directory_of_all() {
        for (id, ino) in [(1, ROOT), (7, 1 << 39), ((1 << 22) - 1, (1 << 40) - 1)] {
            let node = node_of(id, ino).expect("a node");
            assert!(is_in(node) && node != LIST && node >> 63 == 0);
            assert_eq!(parts_of(node), (id, ino));
        }
        assert_eq!(node_of(1 << 22, ROOT), Err(Errno::OVERFLOW));
        assert_eq!(node_of(1, 1 << 40), Err(Errno::OVERFLOW));
        assert!(!is_in(ROOT) && !is_in((1 << 56) - 1));
    }
}
