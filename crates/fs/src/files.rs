//! The files of a fileset with their pages in a cache: the interface for a mount and a file server.
//!
//! ```text
//!   Files     names, attributes, space               any thread
//!     Handle  an open file                           any thread
//!     Lane    the content: read, write, cut, fsync   one thread
//! ```
//!
//! **Invariant:** changes to the content of a file are serialized, so that an append is at the end
//! and no write goes into a range that is being truncated. The metadata is updated before the
//! cache; late write-back beyond an end that has moved is discarded. No lock except the file's own
//! is held during device I/O.
//!
//! A mount and a file server of the same files are two clients, and each is notified of the changes
//! of the other: see [`Watcher`]. Deliberately absent: access control.

mod adopt;
mod idle;
mod lane;
mod snapshots;
mod watch;

pub use adopt::Adopted;
pub use lane::{Lane, REST, WritePosition};
pub use snapshots::{SnapshotName, Snapshots};
pub use watch::{Change, Watch, Watcher};

use crate::data::content::Seek;
use crate::data::pager::FsPager;
use crate::error::{Error, Kind, Result};
use crate::fileset::{Attr, Fileset, StatFs};
use crate::format::flags::InodeFlags;
use crate::format::key::Ino;
use crate::names::attributes::SetXattr;
use crate::names::directory::{DirEntry, New};
use crate::names::rename::Rename;
use cache::{Cache, FileId, OpenFile, Vnode, Volume};
use foldhash::HashMap;
use idle::Idle;
use lane::Unfinished;
use layer_cpu::{Layer, within};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use watch::Watchers;

/// When a read updates the access time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Atime {
    /// Once after each change, and once a day (`relatime` of mount(8)).
    #[default]
    Relatime,
    /// Never (`noatime`).
    None,
    /// At each read (`strictatime`).
    Strict,
}

/// View of one client on the files. See the module.
pub struct Files {
    shared: Arc<Shared>,
    atime: Atime,
    /// Number of the client, to attribute changes made through this view.
    client: u64,
}

/// State shared by all clients.
struct Shared {
    /// Registration as a user of the fileset; `None` once the files are closed, although threads
    /// may keep a [`Lane`].
    attached: Mutex<Option<Attachment>>,
    fileset: Fileset,
    volume: Arc<Volume>,
    nodes: Mutex<Nodes>,
    watchers: Watchers,
    /// Idle writer; `None` if the files are read-only.
    idle: Mutex<Option<Idle>>,
}

/// State shared by all users of one file's content.
struct Node {
    ino: Ino,
    vnode: Arc<Vnode>,
    /// Lock that serializes changes of the content, with an append still in progress.
    change: Mutex<Option<Unfinished>>,
    /// Signaled when the append in `change` is complete or abandoned.
    finished: Condvar,
}

#[derive(Default)]
struct Nodes {
    by_ino: HashMap<Ino, Weak<Node>>,
    /// Number of nodes left after the last removal of dead ones.
    kept: usize,
}

/// Number of nodes below which dead ones are not removed.
const NODES_MIN: usize = 1024;

/// Open file: it exists, even without a name, until the handle is dropped.
pub struct Handle {
    files: Arc<Files>,
    node: Arc<Node>,
    /// Error cursor: the write-back errors that have been reported through this handle.
    reported: Mutex<OpenFile>,
}

impl Files {
    /// Attaches a fileset or a snapshot to a cache.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; [`Kind::Busy`]: the fileset is receiving a snapshot. The cache cannot
    /// create a volume.
    pub fn new(fileset: &Fileset, cache: &Cache) -> Result<Arc<Files>> {
        let attached = Attachment::new(fileset);
        fileset.fs.read().refuse_receiving(fileset.id)?;
        Files::attach(attached, fileset, cache)
    }

    /// Attaches a fileset that is receiving a snapshot, which no other client may use.
    ///
    /// # Errors
    /// [`Kind::Busy`]; as [`Files::new`].
    pub(crate) fn incomplete(fileset: &Fileset, cache: &Cache) -> Result<Arc<Files>> {
        if !fileset.fs.attached.add_first(fileset.id) {
            let text = "another process is applying a stream to the fileset";
            return Err(Error::new(Kind::Busy, text));
        }
        Files::attach(Attachment(fileset.clone()), fileset, cache)
    }

    fn attach(attached: Attachment, fileset: &Fileset, cache: &Cache) -> Result<Arc<Files>> {
        let pager = Arc::new(FsPager::new(fileset)?);
        let shared = Shared {
            attached: Mutex::new(Some(attached)),
            fileset: fileset.clone(),
            volume: cache.volume(pager)?,
            nodes: Mutex::default(),
            watchers: Watchers::default(),
            idle: Mutex::default(),
        };
        let shared = Arc::new(shared);
        if !fileset.fs.options.read_only && !fileset.is_snapshot()? {
            let idle = Idle::start(&shared);
            let failed = |e| block::Error::from_io(&fileset.fs.name, e);
            *shared.idle() = Some(idle.map_err(failed)?);
        }
        Ok(Arc::new(Files {
            shared,
            atime: Atime::default(),
            client: 0,
        }))
    }

    /// Returns the fileset, for its id and record, and for reading. Names and content must be
    /// changed through this type only.
    pub fn fileset(&self) -> &Fileset {
        &self.shared.fileset
    }

    /// Returns the volume in the cache, for its statistics.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.shared.volume
    }

    /// Opens a lane to the content for the calling thread.
    ///
    /// # Errors
    /// The device cannot create a queue, or the system a descriptor.
    pub fn lane(self: &Arc<Files>) -> Result<Lane> {
        Lane::open(self)
    }

    /// Opens a regular file.
    ///
    /// # Errors
    /// [`Kind::Stale`].
    pub fn open(self: &Arc<Files>, ino: Ino) -> Result<Handle> {
        let _here = within(Layer::Fs);
        Ok(self.handle(&self.shared.fileset.open(ino)?))
    }

    /// Keeps an inode that is not a regular file, for example a directory being listed, until
    /// [`Files::unpin`].
    ///
    /// # Errors
    /// [`Kind::Stale`].
    pub fn pin(&self, ino: Ino) -> Result<Attr> {
        let _here = within(Layer::Fs);
        self.shared.fileset.open(ino)
    }

    /// Ends one [`Files::pin`].
    ///
    /// # Errors
    /// As [`Fileset::release`].
    pub fn unpin(&self, ino: Ino) -> Result<()> {
        let _here = within(Layer::Fs);
        if self.shared.fileset.release(ino)? {
            self.shared.volume.forget(FileId(ino));
        }
        Ok(())
    }

    /// Reads the attributes of an inode. See [`Fileset::attr`].
    pub fn attr(&self, ino: Ino) -> Result<Attr> {
        let _here = within(Layer::Fs);
        self.shared.fileset.attr(ino)
    }

    /// See [`Fileset::lookup`].
    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        let _here = within(Layer::Fs);
        self.shared.fileset.lookup(dir, name)
    }

    /// See [`Fileset::create`].
    pub fn create(&self, dir: Ino, name: &[u8], new: &New) -> Result<Attr> {
        let _here = within(Layer::Fs);
        let attr = self.shared.fileset.create(dir, name, new)?;
        self.notify_others(&[Change::Entry(dir, name)]);
        Ok(attr)
    }

    /// See [`Fileset::create_open`].
    pub fn create_open(
        self: &Arc<Files>,
        dir: Ino,
        name: &[u8],
        new: &New,
    ) -> Result<(Attr, Handle)> {
        let _here = within(Layer::Fs);
        let attr = self.shared.fileset.create_open(dir, name, new)?;
        self.notify_others(&[Change::Entry(dir, name)]);
        let handle = self.handle(&attr);
        Ok((attr, handle))
    }

    /// See [`Fileset::create_unnamed`]. The file is removed with the handle unless it was linked.
    pub fn create_unnamed(self: &Arc<Files>, dir: Ino, new: &New) -> Result<(Attr, Handle)> {
        let _here = within(Layer::Fs);
        let attr = self.shared.fileset.create_unnamed(dir, new)?;
        let handle = self.handle(&attr);
        Ok((attr, handle))
    }

    /// See [`Fileset::symlink`].
    pub fn symlink(
        &self,
        dir: Ino,
        name: &[u8],
        target: &[u8],
        uid: u32,
        gid: u32,
    ) -> Result<Attr> {
        let _here = within(Layer::Fs);
        let attr = self.shared.fileset.symlink(dir, name, target, uid, gid)?;
        self.notify_others(&[Change::Entry(dir, name)]);
        Ok(attr)
    }

    /// See [`Fileset::read_link`].
    pub fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        let _here = within(Layer::Fs);
        self.shared.fileset.read_link(ino)
    }

    /// See [`Fileset::link`].
    pub fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        let _here = within(Layer::Fs);
        let attr = self.shared.fileset.link(ino, dir, name)?;
        self.notify_others(&[Change::Entry(dir, name), Change::Attributes(ino)]);
        Ok(attr)
    }

    /// See [`Fileset::unlink`].
    pub fn unlink(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        let _here = within(Layer::Fs);
        let (attr, gone) = self.shared.fileset.unlink_now(dir, name)?;
        if gone {
            self.shared.volume.forget(FileId(attr.ino));
        }
        self.notify_others(&[Change::Entry(dir, name), Change::Attributes(attr.ino)]);
        Ok(attr)
    }

    /// See [`Fileset::rmdir`].
    pub fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        let _here = within(Layer::Fs);
        let attr = self.shared.fileset.rmdir(dir, name)?;
        self.notify_others(&[Change::Entry(dir, name), Change::Attributes(attr.ino)]);
        Ok(attr)
    }

    /// See [`Fileset::rename`].
    pub fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        how: Rename,
    ) -> Result<Option<Attr>> {
        let _here = within(Layer::Fs);
        let replaced = self.shared.fileset.rename(from, to, how)?;
        if let Some(attr) = &replaced {
            self.forget_if_gone(attr);
        }
        if self.is_watched() {
            self.notify_others(&[Change::Entry(from.0, from.1), Change::Entry(to.0, to.1)]);
            let moved = [to, from].map(|(dir, name)| self.lookup(dir, name).ok());
            for attr in moved.into_iter().flatten().chain(replaced.clone()) {
                self.notify_others(&[Change::Attributes(attr.ino)]);
            }
        }
        Ok(replaced)
    }

    /// See [`Fileset::read_dir`].
    pub fn read_dir(
        &self,
        dir: Ino,
        after: u64,
        take: impl FnMut(DirEntry) -> Result<bool>,
    ) -> Result<()> {
        let _here = within(Layer::Fs);
        self.shared.fileset.read_dir(dir, after, take)
    }

    /// See [`Fileset::read_dir_attrs`].
    pub fn read_dir_attrs(
        &self,
        dir: Ino,
        after: u64,
        take: impl FnMut(DirEntry, Attr) -> Result<bool>,
    ) -> Result<()> {
        let _here = within(Layer::Fs);
        self.shared.fileset.read_dir_attrs(dir, after, take)
    }

    /// See [`Fileset::note_read`]; does nothing for a client with [`Atime::None`].
    pub fn note_read(&self, ino: Ino) -> Result<()> {
        let _here = within(Layer::Fs);
        match self.atime {
            Atime::Relatime => self.shared.fileset.note_read(ino, false),
            Atime::None => Ok(()),
            Atime::Strict => self.shared.fileset.note_read(ino, true),
        }
    }

    /// See [`Fileset::xattr`].
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let _here = within(Layer::Fs);
        self.shared.fileset.xattr(ino, name)
    }

    /// See [`Fileset::xattrs`].
    pub fn xattrs(&self, ino: Ino, take: impl FnMut(&[u8])) -> Result<()> {
        let _here = within(Layer::Fs);
        self.shared.fileset.xattrs(ino, take)
    }

    /// See [`Fileset::set_xattr`].
    pub fn set_xattr(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        let _here = within(Layer::Fs);
        self.shared.fileset.set_xattr(ino, name, value, how)?;
        self.notify_others(&[Change::Attributes(ino)]);
        Ok(())
    }

    /// See [`Fileset::remove_xattr`].
    pub fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        let _here = within(Layer::Fs);
        self.shared.fileset.remove_xattr(ino, name)?;
        self.notify_others(&[Change::Attributes(ino)]);
        Ok(())
    }

    /// See [`Fileset::set_flags`].
    pub fn set_flags(&self, ino: Ino, flags: InodeFlags) -> Result<Attr> {
        let _here = within(Layer::Fs);
        let attr = self.shared.fileset.set_flags(ino, flags)?;
        self.notify_others(&[Change::Attributes(ino)]);
        Ok(attr)
    }

    /// See [`Fileset::raise_version`].
    pub fn raise_version(&self, ino: Ino) -> Result<Attr> {
        self.shared.fileset.raise_version(ino)
    }

    /// See [`Fileset::seek`]. Dirty pages count as data.
    pub fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        let _here = within(Layer::Fs);
        self.shared.fileset.seek(ino, offset, what)
    }

    /// See [`Fileset::statfs`].
    pub fn statfs(&self) -> Result<StatFs> {
        let _here = within(Layer::Fs);
        self.shared.fileset.statfs()
    }

    /// See [`Fileset::trim`].
    pub fn trim(&self, bytes: Range<u64>, min: u64) -> Result<u64> {
        let _here = within(Layer::Fs);
        self.shared.fileset.trim(bytes, min)
    }

    /// Makes all changes of names and attributes so far durable, and content as far as it has been
    /// written back. Concurrent callers share the work.
    pub fn sync_names(&self) -> Result<()> {
        let _here = within(Layer::Fs);
        self.shared.fileset.sync()
    }

    /// Writes back all dirty pages, and makes them and all earlier changes durable.
    ///
    /// # Errors
    /// The first file that could not be written; the others were written all the same.
    pub fn sync(&self) -> Result<()> {
        let _here = within(Layer::Fs);
        self.shared.volume.write_out()?;
        self.shared.fileset.sync()
    }

    /// Writes back all dirty pages and removes them from the cache. The files must not be in use.
    ///
    /// # Errors
    /// Some pages could not be written; they stay in the cache.
    pub fn close(&self) -> Result<()> {
        let _here = within(Layer::Fs);
        drop(self.shared.idle().take());
        self.sync()?;
        self.shared.volume.close()?;
        let mut attached = self.shared.attached.lock();
        attached.as_mut().expect("no panic under this lock").take();
        Ok(())
    }

    /// Creates a handle to a file that the caller has opened in the fileset.
    fn handle(self: &Arc<Files>, attr: &Attr) -> Handle {
        let node = self.node(attr);
        Handle {
            files: Arc::clone(self),
            reported: Mutex::new(self.shared.volume.open(&node.vnode)),
            node,
        }
    }

    /// Finds the node of a file, creating it if there is none.
    fn node(&self, attr: &Attr) -> Arc<Node> {
        let mut nodes = self.shared.nodes.lock().expect("no panic under this lock");
        if let Some(node) = nodes.by_ino.get(&attr.ino).and_then(Weak::upgrade) {
            return node;
        }
        if nodes.by_ino.len() >= NODES_MIN.max(2 * nodes.kept) {
            nodes.by_ino.retain(|_, node| node.strong_count() > 0);
            nodes.kept = nodes.by_ino.len();
        }
        // No other user has the file now, but one may have changed it since the caller read `attr`.
        let now = self.shared.fileset.attr(attr.ino);
        let size = now.map_or(attr.inode.size, |now| now.inode.size);
        let node = Arc::new(Node {
            ino: attr.ino,
            vnode: self.shared.volume.vnode(FileId(attr.ino), size),
            change: Mutex::default(),
            finished: Condvar::new(),
        });
        nodes.by_ino.insert(attr.ino, Arc::downgrade(&node));
        node
    }

    /// Drops the pages of a file that has just lost a name, if it was the last one and the file is
    /// not open.
    fn forget_if_gone(&self, attr: &Attr) {
        let gone = |e: crate::Error| e.kind() == Kind::Stale;
        if attr.inode.links == 0 && self.shared.fileset.attr(attr.ino).is_err_and(gone) {
            self.shared.volume.forget(FileId(attr.ino));
        }
    }
}

/// Registration as a user of a fileset or a snapshot, for as long as it lives.
struct Attachment(Fileset);

impl Attachment {
    fn new(fileset: &Fileset) -> Attachment {
        fileset.fs.attached.add(fileset.id);
        Attachment(fileset.clone())
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.0.fs.attached.remove(self.0.id);
    }
}

impl Shared {
    fn idle(&self) -> MutexGuard<'_, Option<Idle>> {
        self.idle.lock().expect("no panic under this lock")
    }
}

impl Handle {
    /// Returns the inode number of the file.
    pub fn ino(&self) -> Ino {
        self.node.ino
    }

    /// Returns the files to which this one belongs.
    pub fn files(&self) -> &Arc<Files> {
        &self.files
    }

    /// Reads the attributes of the file.
    ///
    /// # Errors
    /// The metadata could not be read.
    pub fn attr(&self) -> Result<Attr> {
        self.files.attr(self.node.ino)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let ino = self.node.ino;
        if let Err(error) = self.files.unpin(ino) {
            // The inode is listed as an orphan, and is removed when the file system is next opened.
            tracing::warn!(name: "EVFS-0206", "cannot remove inode {ino}: {error}");
        }
    }
}
