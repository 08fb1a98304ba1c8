//! Directory pages as clients see them.
//!
//! The file system orders names by hash; a client expects pages, and updates its own copy after
//! each of its calls. The pages of a directory are therefore built on first access and then updated
//! with it, name by name, by the clients' algorithm ([`afs_proto::dir::Image`]). Evicted pages are
//! rebuilt from the names, and then have another layout if they had been updated.
//!
//! **Invariant:** a data version has one set of pages. Before pages are updated, a mark is set on
//! their directory; where the mark is found, rebuilt pages may differ from those that clients have
//! seen, and get a version of their own. Neither pages nor a version leave the server before they
//! are durable ([`Directories::make_durable`]), so a crash reverts only state that no client has
//! seen.

use crate::error::{CallResult, Fault};
use crate::fid;
use afs_proto::dir::{Entry, Image, Plan};
use afs_proto::{Abort, Fid};
use fs::{Attr, FileType, Files, Ino, Kind, SetXattr};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};

/// Attribute that marks a directory whose pages differ from a rebuild from its names.
const CHANGED: &[u8] = b"trusted.afs.changed";

/// Error: the directory has more names than its pages can hold.
const FULL: Fault = Fault::Errno(libc::EFBIG);

/// Attempts to read a directory that is concurrently changed by other means than this server.
const TRIES: usize = 10;

/// Cached directories of a volume.
pub(crate) struct Directories {
    by_ino: Mutex<HashMap<Ino, Arc<Directory>>>,
    /// Size of all cached pages.
    bytes: Arc<AtomicUsize>,
    bytes_max: usize,
    uses: AtomicU64,
    /// Number of the last change to any directory, and of the last one known to be durable.
    changes: Arc<AtomicU64>,
    durable: AtomicU64,
}

/// Directory, to be locked for reading and changing its pages.
pub(crate) struct Directory {
    ino: Ino,
    pages: Mutex<Pages>,
    last_use: AtomicU64,
}

/// Pages of a directory; access requires the directory's lock.
pub(crate) struct Pages {
    ino: Ino,
    image: Option<Image>,
    /// Data version of the image.
    version: u64,
    /// The mark is set on the directory.
    marked: bool,
    /// The file system is read-only, and the pages may differ from those that clients have seen:
    /// they are reported with the next version, which no other pages get, as the mark stays.
    ahead: bool,
    /// Number of the change that produced the version. A change with unknown outcome leaves another
    /// version and the mark, so the pages are rebuilt, which counts as a change.
    change: u64,
    changes: Arc<AtomicU64>,
    all_bytes: Arc<AtomicUsize>,
}

impl Directories {
    pub(crate) fn new(bytes_max: usize) -> Directories {
        Directories {
            by_ino: Mutex::default(),
            bytes: Arc::default(),
            bytes_max,
            uses: AtomicU64::new(0),
            changes: Arc::default(),
            durable: AtomicU64::new(0),
        }
    }

    /// Makes all changes so far durable.
    pub(crate) fn sync(&self, files: &Files) -> fs::Result<()> {
        let changes = self.changes.load(SeqCst);
        files.sync_names()?;
        self.durable.fetch_max(changes, SeqCst);
        Ok(())
    }

    /// Makes the change `change` durable. Must be called after a directory was read and before the
    /// result leaves the server; `change` is the one that the read observed.
    pub(crate) fn make_durable(&self, files: &Files, change: u64) -> fs::Result<()> {
        if change <= self.durable.load(SeqCst) {
            Ok(())
        } else {
            self.sync(files)
        }
    }

    fn by_ino(&self) -> MutexGuard<'_, HashMap<Ino, Arc<Directory>>> {
        self.by_ino.lock().expect("no panic under this lock")
    }

    /// Looks up a directory. Locks of several directories are taken in the order of inode numbers.
    pub(crate) fn of(&self, ino: Ino) -> Arc<Directory> {
        let mut by_ino = self.by_ino();
        if self.bytes.load(Relaxed) > self.bytes_max {
            self.trim(&mut by_ino);
        }
        let directory = by_ino.entry(ino).or_insert_with(|| {
            Arc::new(Directory {
                ino,
                pages: Mutex::new(Pages {
                    ino,
                    image: None,
                    version: 0,
                    marked: false,
                    ahead: false,
                    change: 0,
                    changes: Arc::clone(&self.changes),
                    all_bytes: Arc::clone(&self.bytes),
                }),
                last_use: AtomicU64::new(0),
            })
        });
        let now = self.uses.fetch_add(1, Relaxed);
        directory.last_use.store(now, Relaxed);
        Arc::clone(directory)
    }

    /// Drops a removed directory.
    pub(crate) fn forget(&self, ino: Ino) {
        self.by_ino().remove(&ino);
    }

    /// Evicts the least recently used half of the directories that no thread uses.
    fn trim(&self, by_ino: &mut HashMap<Ino, Arc<Directory>>) {
        let unused = |directory: &&Arc<Directory>| Arc::strong_count(directory) == 1;
        let mut uses: Vec<u64> = by_ino
            .values()
            .filter(unused)
            .map(|directory| directory.last_use.load(Relaxed))
            .collect();
        let middle = uses.len() / 2;
        if uses.is_empty() {
            return;
        }
        let (_, limit, _) = uses.select_nth_unstable(middle);
        let limit = *limit;
        by_ino.retain(|_, directory| {
            Arc::strong_count(directory) > 1 || directory.last_use.load(Relaxed) > limit
        });
    }
}

impl Directory {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Pages> {
        debug_assert_ne!(self.ino, 0);
        self.pages.lock().unwrap_or_else(|poisoned| {
            // A panic may have left the pages between two states: rebuild them.
            self.pages.clear_poison();
            let mut pages = poisoned.into_inner();
            drop(pages.take());
            pages.count_change();
            pages
        })
    }
}

impl Pages {
    /// Reads the current directory and its pages, which are rebuilt if necessary.
    pub(crate) fn read(&mut self, files: &Files) -> CallResult<(Attr, &[u8])> {
        let attr = self.make(files)?;
        let image = self.image.as_ref();
        Ok((attr, image.map(Image::bytes).unwrap_or_default()))
    }

    /// Returns the number of the change that was read, for [`Directories::make_durable`].
    pub(crate) fn change_seen(&self) -> u64 {
        self.change
    }

    /// Assigns a number to a change that is now in the file system.
    fn count_change(&mut self) {
        self.change = self.changes.fetch_add(1, SeqCst) + 1;
    }

    /// Prepares a change that may add `name`. Returns the version before it.
    pub(crate) fn prepare(&mut self, files: &Files, name: Option<&[u8]>) -> CallResult<u64> {
        self.make(files)?;
        if name.is_some_and(|name| self.image.as_ref().is_none_or(|image| !image.fits(name))) {
            return Err(FULL);
        }
        if !self.marked {
            match files.set_xattr(self.ino, CHANGED, b"", SetXattr::Any) {
                Ok(()) => self.marked = true,
                // There is no room for the mark, but a removal must still be possible: the pages
                // are rebuilt after the change, with a version of their own.
                Err(error) if name.is_none() && is_full(&error) => drop(self.take()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.version)
    }

    /// Applies the insertion of a name.
    pub(crate) fn insert(&mut self, name: &[u8], fid: Fid) {
        self.change(|image| image.insert(Entry { name, fid }).is_ok());
    }

    /// Applies the removal of a name.
    pub(crate) fn remove(&mut self, name: &[u8]) {
        self.change(|image| image.remove(name));
    }

    /// Applies a move of this directory into another one.
    pub(crate) fn moved(&mut self, parent: Fid) {
        self.change(|image| image.replace(b"..", parent));
    }

    fn change(&mut self, change: impl FnOnce(&mut Image) -> bool) {
        let Some(mut image) = self.take() else {
            return;
        };
        // Pages to which the change cannot be applied are rebuilt.
        if change(&mut image) {
            self.put(image);
        }
    }

    /// Completes a change: returns the current directory and the length of its pages. The pages
    /// stay valid if the version has advanced by exactly 1.
    pub(crate) fn finish_change(&mut self, files: &Files) -> CallResult<(Attr, u64)> {
        let version = files.attr(self.ino)?.inode.data_version;
        if version == self.version + 1 {
            self.version = version;
        }
        if !self.marked {
            files.raise_version(self.ino)?;
        }
        self.count_change();
        let attr = self.make(files)?;
        let length = self.image.as_ref().map_or(0, |image| image.bytes().len());
        Ok((attr, length as u64))
    }

    /// Ensures that the pages are those of the directory's current version.
    fn make(&mut self, files: &Files) -> CallResult<Attr> {
        for _ in 0..TRIES {
            let attr = files.attr(self.ino)?;
            if !attr.inode.is_dir() {
                return Err(Fault::Errno(libc::ENOTDIR));
            }
            if self.image.is_some() && self.version == attr.inode.data_version {
                return Ok(self.shown(attr));
            }
            drop(self.take());
            let image = build(files, &attr)?;
            let attr = self.unmark(files, attr)?;
            let now = files.attr(self.ino)?;
            if now.inode.data_version == attr.inode.data_version {
                self.version = attr.inode.data_version;
                self.put(image);
                return Ok(self.shown(now));
            }
        }
        Err(Fault::Code(Abort::VBUSY))
    }

    fn shown(&self, mut attr: Attr) -> Attr {
        attr.inode.data_version += u64::from(self.ahead);
        attr
    }

    /// Assigns a new version to rebuilt pages if clients may have seen different ones.
    fn unmark(&mut self, files: &Files, attr: Attr) -> CallResult<Attr> {
        (self.marked, self.ahead) = (false, false);
        match files.xattr(self.ino, CHANGED) {
            Ok(_) => {}
            Err(error) if error.kind() == Kind::NoAttribute => return Ok(attr),
            Err(error) => return Err(error.into()),
        }
        if files.fileset().is_snapshot()? {
            // Its pages are never updated, so each rebuild produced the same pages.
            return Ok(attr);
        }
        let raised = match files.raise_version(self.ino) {
            Ok(raised) => raised,
            Err(error) if error.kind() == Kind::ReadOnly => {
                self.ahead = true;
                return Ok(attr);
            }
            Err(error) => return Err(error.into()),
        };
        files.remove_xattr(self.ino, CHANGED)?;
        self.count_change();
        let next = attr.inode.data_version + 1;
        if raised.inode.data_version == next {
            Ok(raised)
        } else {
            // A concurrent change came between: the names that were read are older.
            Ok(attr)
        }
    }

    fn put(&mut self, image: Image) {
        self.all_bytes.fetch_add(image.bytes().len(), Relaxed);
        self.image = Some(image);
    }

    fn take(&mut self) -> Option<Image> {
        let image = self.image.take()?;
        self.all_bytes.fetch_sub(image.bytes().len(), Relaxed);
        Some(image)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// Checks whether the device or the quota is full.
fn is_full(error: &fs::Error) -> bool {
    matches!(error.kind(), Kind::NoSpace | Kind::Quota)
}

/// Builds the pages from the names.
fn build(files: &Files, directory: &Attr) -> CallResult<Image> {
    let own = fid::of(directory).ok_or(FULL)?;
    let parent = files.attr(directory.inode.parent)?;
    let parent = fid::of(&parent).ok_or(FULL)?;
    let mut plan = Plan::new(own, parent);
    let mut entries = Vec::new();
    let mut full = false;
    files.read_dir_attrs(directory.ino, DOTS, |entry, attr| {
        if !is_shown(entry.kind) {
            return Ok(true);
        }
        let Some(fid) = fid::of(&attr).filter(|_| plan.push(entry.name).is_ok()) else {
            full = true;
            return Ok(false);
        };
        entries.push((entry.name.to_vec(), fid));
        Ok(true)
    })?;
    if full {
        return Err(FULL);
    }
    let layout = plan.finish();
    let mut bytes = Vec::with_capacity(layout.length());
    let mut pages = layout.pages(0..layout.length());
    for (name, fid) in &entries {
        let entry = Entry { name, fid: *fid };
        pages.push(entry, &mut bytes).map_err(|_| FULL)?;
    }
    pages.finish(&mut bytes).map_err(|_| FULL)?;
    Image::from_pages(bytes).map_err(|error| {
        tracing::error!(name: "EVFS-0702", "inode {}: {error}", directory.ino);
        Fault::Errno(libc::EIO)
    })
}

/// Cookie of `..`, which precedes all names.
const DOTS: u64 = 2;

/// Checks whether AFS can represent this kind of file. Other files are hidden from clients.
pub(crate) fn is_shown(kind: FileType) -> bool {
    matches!(
        kind,
        FileType::File | FileType::Directory | FileType::Symlink
    )
}
