//! The pages of directories, as clients are shown them.
//!
//! The file system has names in the order of a hash; a client wants pages, and changes its own copy
//! after each of its calls. So the pages of a directory are made when somebody first looks, and then
//! changed with it, name by name, as clients do ([`afs_proto::dir::Image`]). Pages that are forgotten are
//! made anew from the names, and then lie otherwise if they had been changed.
//!
//! **Invariant:** a data version has one set of pages. Pages that were changed leave a mark on their
//! directory first; where the mark is found, the pages are not those that clients may have seen, and
//! get a version of their own. Nobody has pages or a version before they are durable
//! ([`Directories::settle`]), so a crash takes back only what was not seen.

use crate::error::{Fault, Outcome};
use crate::fid::Fid;
use afs_proto::Abort;
use afs_proto::dir::{Entry, Image, Plan};
use fs::{Attr, FileType, Files, Ino, Kind, SetXattr};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};

/// The attribute of a directory whose pages are not those that its names give.
const CHANGED: &[u8] = b"trusted.afs.changed";

/// The directory has more names than its pages can have.
const FULL: Fault = Fault::Errno(libc::EFBIG);

/// Tries to read a directory that others change at the same time, other than through here.
const TRIES: usize = 10;

/// The directories of a volume whose pages are kept.
pub(crate) struct Directories {
    by_ino: Mutex<HashMap<Ino, Arc<Directory>>>,
    /// Of all of them.
    bytes: Arc<AtomicUsize>,
    bytes_max: usize,
    uses: AtomicU64,
    /// Number of the last change of any of them, and of the last that is certainly durable.
    changes: Arc<AtomicU64>,
    durable: AtomicU64,
}

/// A directory, to be locked for looking and for changing.
pub(crate) struct Directory {
    ino: Ino,
    pages: Mutex<Pages>,
    last_use: AtomicU64,
}

/// The pages of a directory, locked.
pub(crate) struct Pages {
    ino: Ino,
    image: Option<Image>,
    /// The version that the image is of.
    version: u64,
    /// The mark is on the directory.
    marked: bool,
    /// Nothing can be changed, and the pages are not those that clients may have seen: they are shown with
    /// the next version, which no other pages get, as the mark stays.
    ahead: bool,
    /// Number of the change that the version is of. One whose end is not known leaves another version, and
    /// the mark; so the pages are made anew, which is a change.
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

    /// Makes all changes durable that there were.
    pub(crate) fn sync(&self, files: &Files) -> fs::Result<()> {
        let changes = self.changes.load(SeqCst);
        files.sync_names()?;
        self.durable.fetch_max(changes, SeqCst);
        Ok(())
    }

    /// To be called after a directory was looked at, before anybody has what was seen: sees to it that the
    /// change is durable that it was seen with.
    pub(crate) fn settle(&self, files: &Files, change: u64) -> fs::Result<()> {
        match change <= self.durable.load(SeqCst) {
            true => Ok(()),
            false => self.sync(files),
        }
    }

    fn by_ino(&self) -> MutexGuard<'_, HashMap<Ino, Arc<Directory>>> {
        self.by_ino.lock().expect("no panic under this lock")
    }

    /// A directory. Several are locked in the order of their numbers.
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

    /// The directory is gone.
    pub(crate) fn forget(&self, ino: Ino) {
        self.by_ino().remove(&ino);
    }

    /// Forgets the half that was not used for longest, of those that nobody uses now.
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
            // What broke off may have left them between two states: they are made anew.
            self.pages.clear_poison();
            let mut pages = poisoned.into_inner();
            drop(pages.take());
            pages.count_change();
            pages
        })
    }
}

impl Pages {
    /// The directory as it is now, with the bytes of its pages.
    pub(crate) fn look(&mut self, files: &Files) -> Outcome<(Attr, &[u8])> {
        let attr = self.make(files)?;
        let image = self.image.as_ref();
        Ok((attr, image.map(Image::bytes).unwrap_or_default()))
    }

    /// Number of the change that was looked at, for [`Directories::settle`].
    pub(crate) fn change_seen(&self) -> u64 {
        self.change
    }

    /// Gives a change its number: it is in the file system now.
    fn count_change(&mut self) {
        self.change = self.changes.fetch_add(1, SeqCst) + 1;
    }

    /// Makes ready for a change, in which a name comes, or none. Gives the version before it.
    pub(crate) fn prepare(&mut self, files: &Files, name: Option<&[u8]>) -> Outcome<u64> {
        self.make(files)?;
        if name.is_some_and(|name| self.image.as_ref().is_none_or(|image| !image.fits(name))) {
            return Err(FULL);
        }
        if !self.marked {
            match files.set_xattr(self.ino, CHANGED, b"", SetXattr::Any) {
                Ok(()) => self.marked = true,
                // There is no room for the mark, and what makes room must not need it: the pages are made
                // anew after the change, with a version of their own.
                Err(error) if name.is_none() && is_full(&error) => drop(self.take()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.version)
    }

    /// A name has come.
    pub(crate) fn insert(&mut self, name: &[u8], fid: Fid) {
        let Fid { vnode, unique } = fid;
        let entry = Entry {
            name,
            vnode,
            unique,
        };
        self.change(|image| image.insert(entry).is_ok());
    }

    /// A name has gone.
    pub(crate) fn remove(&mut self, name: &[u8]) {
        self.change(|image| image.remove(name));
    }

    /// The directory is in another one.
    pub(crate) fn moved(&mut self, parent: Fid) {
        self.change(|image| image.replace(b"..", (parent.vnode, parent.unique)));
    }

    fn change(&mut self, change: impl FnOnce(&mut Image) -> bool) {
        let Some(mut image) = self.take() else {
            return;
        };
        // Pages that are not as they should be are made anew.
        if change(&mut image) {
            self.put(image);
        }
    }

    /// After a change: the directory as it is now, and the length of its pages. If its version is the
    /// next one, the pages go with it.
    pub(crate) fn settle(&mut self, files: &Files) -> Outcome<(Attr, u64)> {
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

    /// Sees to it that the pages are those of the directory.
    fn make(&mut self, files: &Files) -> Outcome<Attr> {
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

    /// Gives pages that are made anew a version of their own, if clients may have seen others.
    fn unmark(&mut self, files: &Files, attr: Attr) -> Outcome<Attr> {
        (self.marked, self.ahead) = (false, false);
        match files.xattr(self.ino, CHANGED) {
            Ok(_) => {}
            Err(error) if error.kind() == Kind::NoAttribute => return Ok(attr),
            Err(error) => return Err(error.into()),
        }
        if files.fileset().is_snapshot()? {
            // Its pages are never changed, and were so made each time.
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
        match raised.inode.data_version == next {
            true => Ok(raised),
            // Somebody else's change came between: what was read is older.
            false => Ok(attr),
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

/// Whether there is no room, on the device or in the quota.
fn is_full(error: &fs::Error) -> bool {
    matches!(error.kind(), Kind::NoSpace | Kind::Quota)
}

/// Makes the pages from the names.
fn build(files: &Files, directory: &Attr) -> Outcome<Image> {
    let own = Fid::of(directory).ok_or(FULL)?;
    let parent = files.attr(directory.inode.parent)?;
    let parent = Fid::of(&parent).ok_or(FULL)?;
    let mut plan = Plan::new((own.vnode, own.unique), (parent.vnode, parent.unique));
    let mut entries = Vec::new();
    let mut full = false;
    files.read_dir_attrs(directory.ino, DOTS, |entry, attr| {
        if !is_shown(entry.kind) {
            return Ok(true);
        }
        let Some(fid) = Fid::of(&attr).filter(|_| plan.push(entry.name).is_ok()) else {
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
    for (name, Fid { vnode, unique }) in &entries {
        let (vnode, unique) = (*vnode, *unique);
        let entry = Entry {
            name,
            vnode,
            unique,
        };
        pages.push(entry, &mut bytes).map_err(|_| FULL)?;
    }
    pages.finish(&mut bytes).map_err(|_| FULL)?;
    Image::from_pages(bytes).map_err(|error| {
        tracing::error!("inode {}: {error}", directory.ino);
        Fault::Errno(libc::EIO)
    })
}

/// The cookie of `..`: what follows it are names.
const DOTS: u64 = 2;

/// Whether AFS has that kind of file. Others are not there for its clients.
pub(crate) fn is_shown(kind: FileType) -> bool {
    matches!(
        kind,
        FileType::File | FileType::Directory | FileType::Symlink
    )
}
