//! A file system of another program as served to the kernel, without state of its own: a node is all
//! that a tree needs to find a file.

mod changing;

use crate::config::MountConfig;
use crate::tree::{InvalidationQueue, caller};
use block::Waker;
use foreign::{Attr, Entry, Files, Kind, Lane};
use fuse_mount::fuse_proto::reply::{Directory, DirectoryPlus};
use fuse_mount::fuse_proto::{
    self, Header, Opened, Operation, Read, Request, Session, StatFs, Statx, Time, Wanted, abi,
};
use fuse_mount::{Errno, PIECE_BYTES, Reply, Serve};
use layer_cpu::{Layer, home};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of background requests (read-ahead) that the kernel may queue.
const BACKGROUND: u16 = 64;

/// Prefix of attributes that only administrators see.
const TRUSTED: &[u8] = b"trusted.";

/// Bytes of an entry in a reply to READDIRPLUS, at least.
const ENTRY_BYTES: usize = 160;

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The lanes of this thread, by the id of their tree.
    static LANES: RefCell<HashMap<u64, OwnLane>> = RefCell::new(HashMap::new());
}

/// State of a thread for one mount.
struct OwnLane {
    lane: Lane,
    /// Buffer for data sent to the kernel.
    buf: Vec<u8>,
    /// Memory for the entries of a directory.
    listing: Vec<u8>,
}

/// The mounted file system.
pub(crate) struct ForeignTree {
    id: u64,
    files: Arc<Files>,
    ttl: Duration,
    block_bytes: u32,
    /// Flags that are not used.
    without: u64,
    /// Whether the kernel opens directories without a request, and caches their entries.
    no_opendir: bool,
    /// Whether files can be changed. The kernel then finds each name that is not written as it is
    /// stored by a request, because a change through another spelling concerns it.
    writable: bool,
    /// Names that the kernel has to forget.
    recall: Arc<InvalidationQueue>,
    /// Eventfd signaled when the last request is done.
    ended: Arc<Waker>,
}

impl ForeignTree {
    pub(crate) fn new(
        files: Arc<Files>,
        config: &MountConfig,
        recall: Arc<InvalidationQueue>,
        ended: Arc<Waker>,
    ) -> ForeignTree {
        ForeignTree {
            writable: files.is_writable() && !config.read_only,
            recall,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            block_bytes: files.tree().space().block_bytes.max(512),
            files,
            ttl: config.ttl,
            without: config.without,
            no_opendir: false,
            ended,
        }
    }

    /// Calls `work` with this thread's lane.
    fn with_own<T>(
        &self,
        work: impl FnOnce(&mut OwnLane) -> foreign::Result<T>,
    ) -> Result<T, Errno> {
        LANES.with_borrow_mut(|lanes| {
            let own = match lanes.entry(self.id) {
                std::collections::hash_map::Entry::Occupied(own) => own.into_mut(),
                std::collections::hash_map::Entry::Vacant(place) => place.insert(OwnLane {
                    lane: self.files.lane().map_err(|e| errno(&e))?,
                    buf: vec![0; PIECE_BYTES],
                    listing: Vec::new(),
                }),
            };
            work(own).map_err(|e| errno(&e))
        })
    }

    fn entry_of(&self, node: u64, attr: &Attr) -> fuse_proto::Entry {
        fuse_proto::Entry {
            node,
            generation: 0,
            entry_ttl: self.ttl,
            attr_ttl: self.ttl,
            attr: self.attr_of(attr),
        }
    }

    fn attr_of(&self, attr: &Attr) -> fuse_proto::Attr {
        let (major, minor) = attr.device;
        fuse_proto::Attr {
            ino: attr.ino,
            size: attr.size,
            blocks: attr.blocks,
            atime: time(attr.accessed),
            mtime: time(attr.modified),
            ctime: time(attr.changed),
            btime: attr.created.map(time),
            mode: attr.mode,
            nlink: attr.links,
            uid: attr.uid,
            gid: attr.gid,
            rdev: fuse_proto::Attr::device(major, minor),
            blksize: self.block_bytes,
            flags: 0,
        }
    }

    fn lookup(&self, dir: u64, name: &[u8], reply: Reply<'_>) {
        match self.with_own(|own| own.lane.lookup(dir, name)) {
            Ok((node, attr)) => {
                let entry = self.entry_of(node, &attr);
                let exact = !self.writable || self.is_exact(dir, name);
                let entry_ttl = if exact {
                    entry.entry_ttl
                } else {
                    Duration::ZERO
                };
                self.files.remember(node);
                reply.entry(&fuse_proto::Entry { entry_ttl, ..entry });
            }
            Err(Errno::NOENT) if !self.writable => reply.negative_entry(self.ttl),
            Err(e) => reply.error(e),
        }
    }

    fn read(&self, node: u64, read: &Read, reply: Reply<'_>) {
        let mut reply = Some(reply);
        let done = self.with_own(|own| {
            let size = (read.size as usize).min(own.buf.len());
            let len = own.lane.read(node, read.offset, &mut own.buf[..size])?;
            if let Some(reply) = reply.take() {
                reply.data(&own.buf[..len]);
            }
            Ok(())
        });
        if let (Err(e), Some(reply)) = (done, reply) {
            reply.error(e);
        }
    }

    /// Passes the entries of a directory to `add` until it returns false. Damage behind the first
    /// entry is reported by the next request.
    fn list(
        &self,
        (dir, offset, size): (u64, u64, u32),
        mut add: impl FnMut(&mut Lane, &Entry) -> bool,
    ) -> Result<(), Errno> {
        let count = (size as usize / ENTRY_BYTES).clamp(2, 1024);
        self.with_own(|own| {
            let (mut from, mut some) = (offset, false);
            loop {
                let entries = match own.lane.read_dir(dir, from, count) {
                    Err(_) if some => return Ok(()),
                    entries => entries?,
                };
                for entry in &entries {
                    if entry.next <= from {
                        return Err(Kind::Corrupt.into());
                    }
                    if !add(&mut own.lane, entry) {
                        return Ok(());
                    }
                    (from, some) = (entry.next, true);
                }
                if entries.is_empty() {
                    return Ok(());
                }
            }
        })
    }

    fn read_dir(&self, place: (u64, u64, u32), reply: Reply<'_>) {
        let mut entries = Directory::new(self.take_listing(), place.2);
        let listed = self.list(place, |_, entry| {
            entries.add(entry.ino, entry.next, entry.kind, &entry.name)
        });
        match listed {
            Ok(()) => self.keep_listing(reply.directory(entries)),
            Err(e) => reply.error(e),
        }
    }

    fn read_dir_plus(&self, place: (u64, u64, u32), reply: Reply<'_>) {
        let mut entries = DirectoryPlus::new(self.take_listing(), place.2);
        let listed = self.list(place, |lane, entry| {
            let attr = match entry.node {
                0 => None,
                // A damaged inode is an error only for a program that uses it.
                node => lane.attr(node).ok(),
            };
            let full = match attr {
                Some(attr) => self.entry_of(entry.node, &attr),
                None => {
                    let attr = Attr {
                        ino: entry.ino,
                        mode: entry.kind,
                        ..Attr::default()
                    };
                    self.entry_of(0, &attr)
                }
            };
            let fits = entries.add(&full, entry.next, &entry.name);
            if fits && full.node != 0 {
                self.files.remember(full.node);
            }
            fits
        });
        match listed {
            Ok(()) => self.keep_listing(reply.directory_plus(entries)),
            Err(e) => reply.error(e),
        }
    }

    fn take_listing(&self) -> Vec<u8> {
        let taken = self.with_own(|own| Ok(std::mem::take(&mut own.listing)));
        taken.unwrap_or_default()
    }

    fn keep_listing(&self, memory: Vec<u8>) {
        // If this thread has no lane, it has no use for the memory either.
        let _ = self.with_own(|own| {
            own.listing = memory;
            Ok(())
        });
    }

    /// Lists the names of attributes, each followed by a zero byte.
    fn list_xattrs(&self, header: &Header) -> Result<Vec<u8>, Errno> {
        let mut names = self.with_own(|own| own.lane.xattrs(header.node))?;
        let trusted = |name: &Vec<u8>| name.starts_with(TRUSTED);
        if names.iter().any(trusted) && !caller::has(header, caller::CAP_SYS_ADMIN) {
            names.retain(|name| !trusted(name));
        }
        Ok(names
            .iter()
            .flat_map(|name| [name, &b"\0"[..]].concat())
            .collect())
    }

    fn statfs(&self, reply: Reply<'_>) {
        let space = self.files.tree().space();
        reply.statfs(&StatFs {
            blocks: space.blocks,
            free: space.free,
            available: space.available,
            files: space.files,
            free_files: space.free_files,
            block_bytes: self.block_bytes,
            fragment_bytes: self.block_bytes,
            name_bytes_max: 255,
        });
    }
}

fn time(time: foreign::Time) -> Time {
    Time {
        seconds: time.seconds,
        nanos: time.nanos,
    }
}

/// Converts an error to its errno; logs it if the cause is the disk.
fn errno(error: &foreign::Error) -> Errno {
    if matches!(error.kind(), Kind::Io | Kind::Corrupt) {
        tracing::warn!(name: "EVFS-0601", "{error}");
    }
    Errno::from_raw_os_error(error.errno())
}

impl Serve for ForeignTree {
    fn wanted(&self) -> Wanted {
        let flags = abi::FUSE_ASYNC_READ
            | abi::FUSE_MAX_PAGES
            | abi::FUSE_PARALLEL_DIROPS
            | abi::FUSE_POSIX_ACL
            | abi::FUSE_DO_READDIRPLUS
            | abi::FUSE_READDIRPLUS_AUTO
            | abi::FUSE_CACHE_SYMLINKS
            | abi::FUSE_NO_OPENDIR_SUPPORT;
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
        self.no_opendir = session.has(abi::FUSE_NO_OPENDIR_SUPPORT);
    }

    fn serve(&self, request: &Request<'_>, reply: Reply<'_>) {
        home(Layer::Protocol);
        let Some(reply) = self.change(request, reply) else {
            return;
        };
        let (header, node) = (&request.header, request.header.node);
        match &request.operation {
            Operation::Lookup { name } => self.lookup(node, name, reply),
            Operation::Forget { .. } | Operation::BatchForget(_) => {}
            Operation::GetAttr { .. } => match self.with_own(|own| own.lane.attr(node)) {
                Ok(attr) => reply.attr(&self.attr_of(&attr), self.ttl),
                Err(e) => reply.error(e),
            },
            Operation::Statx { .. } => match self.with_own(|own| own.lane.attr(node)) {
                Ok(attr) => {
                    let attr = self.attr_of(&attr);
                    let statx = Statx {
                        attr,
                        ..Statx::default()
                    };
                    reply.statx(&statx, self.ttl);
                }
                Err(e) => reply.error(e),
            },
            Operation::ReadLink => match self.with_own(|own| own.lane.read_link(node)) {
                Ok(target) => reply.data(&target),
                Err(e) => reply.error(e),
            },
            Operation::Open { .. } => reply.opened(&Opened {
                flags: abi::FOPEN_KEEP_CACHE,
                ..Opened::default()
            }),
            Operation::Read(read) => self.read(node, read, reply),
            Operation::Release { .. } | Operation::ReleaseDir { .. } => reply.empty(),
            Operation::FSync { .. } | Operation::FSyncDir { .. } | Operation::SyncFs => {
                reply.empty();
            }
            Operation::OpenDir { .. } if self.no_opendir => reply.error(Errno::NOSYS),
            Operation::OpenDir { .. } => reply.opened(&Opened::default()),
            Operation::ReadDir { offset, size, .. } => {
                self.read_dir((node, *offset, *size), reply);
            }
            Operation::ReadDirPlus { offset, size, .. } => {
                self.read_dir_plus((node, *offset, *size), reply);
            }
            Operation::StatFs => self.statfs(reply),
            Operation::GetXattr { name, size } => {
                match self.with_own(|own| own.lane.xattr(node, name)) {
                    Ok(value) => crate::tree::give(reply, &value, *size),
                    Err(e) => reply.error(e),
                }
            }
            Operation::ListXattr { size } => match self.list_xattrs(header) {
                Ok(names) => crate::tree::give(reply, &names, *size),
                Err(e) => reply.error(e),
            },
            Operation::Ioctl(_) => reply.error(Errno::NOTTY),
            Operation::SetAttr(_)
            | Operation::MkNod { .. }
            | Operation::MkDir { .. }
            | Operation::Unlink { .. }
            | Operation::RmDir { .. }
            | Operation::Symlink { .. }
            | Operation::Rename { .. }
            | Operation::Link { .. }
            | Operation::Create(_)
            | Operation::TmpFile(_)
            | Operation::Write(_)
            | Operation::SetXattr { .. }
            | Operation::RemoveXattr { .. }
            | Operation::FAllocate { .. } => reply.error(Errno::ROFS),
            _ => reply.error(Errno::NOSYS),
        }
    }

    fn ended(&self) {
        self.ended.wake();
    }
}
