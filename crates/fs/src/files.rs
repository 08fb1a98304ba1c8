//! The files of a fileset with their pages in a cache: what a mount and a file server work with.
//!
//! ```text
//!   Files     names, attributes, space               any thread
//!     Handle  a file that is open                    any thread
//!     Lane    the content: read, write, cut, fsync   one thread
//! ```
//!
//! **Invariant:** changes of one file's content happen one after the other, so that an append is at
//! the end and nobody writes into what is being cut off. The metadata learns of a change first, then
//! the cache; what the cache writes out late, behind an end that has moved, is not wanted any more.
//! No lock but the file's own is held while somebody waits for the device.
//!
//! Deliberately absent: who may do what, and who else has to be told of a change.

mod lane;

pub use lane::{At, Lane};

use crate::error::{Kind, Result};
use crate::file::Seek;
use crate::fileset::{Attr, Fileset, SetXattr, StatFs};
use crate::fs_pager::FsPager;
use crate::key::Ino;
use crate::namespace::{DirEntry, New, Rename};
use crate::record::FILE_SIZE_MAX;
use cache::{Cache, FileId, OpenFile, Vnode, Volume};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

/// See the module.
pub struct Files {
    fileset: Fileset,
    volume: Arc<Volume>,
    nodes: Mutex<Nodes>,
}

/// What everybody shares who works with one file's content.
struct Node {
    ino: Ino,
    vnode: Arc<Vnode>,
    /// Held by whoever changes the content.
    change: Mutex<()>,
}

#[derive(Default)]
struct Nodes {
    by_ino: HashMap<Ino, Weak<Node>>,
    /// How many there were after the last look for those that are gone.
    kept: usize,
}

/// Nodes that may be there before it is worth looking for those that are gone.
const NODES_MIN: usize = 1024;

/// A file that is open: it stays, even without a name, until the handle is dropped.
pub struct Handle {
    files: Arc<Files>,
    node: Arc<Node>,
    /// How far whoever opened the file was told of errors of write-behind.
    told: Mutex<OpenFile>,
}

impl Files {
    /// Puts the files of a fileset or a snapshot into a cache.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; the cache gives no volume.
    pub fn new(fileset: &Fileset, cache: &Cache) -> Result<Arc<Files>> {
        let pager = Arc::new(FsPager::new(fileset)?);
        Ok(Arc::new(Files {
            fileset: fileset.clone(),
            volume: cache.volume(pager)?,
            nodes: Mutex::default(),
        }))
    }

    /// The fileset, for its id and record, and for reading. Names and content change through this
    /// type only.
    pub fn fileset(&self) -> &Fileset {
        &self.fileset
    }

    /// The volume in the cache, for its numbers.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Opens the calling thread's way to the content.
    ///
    /// # Errors
    /// The device gives no queue, or the system no descriptor.
    pub fn lane(self: &Arc<Files>) -> Result<Lane> {
        Lane::open(self)
    }

    /// Opens a regular file.
    ///
    /// # Errors
    /// [`Kind::Stale`].
    pub fn open(self: &Arc<Files>, ino: Ino) -> Result<Handle> {
        let attr = self.fileset.open(ino)?;
        let node = self.node(&attr);
        Ok(Handle {
            files: Arc::clone(self),
            told: Mutex::new(self.volume.open(&node.vnode)),
            node,
        })
    }

    /// Keeps an inode that is no regular file, a directory that is being listed for example, until
    /// [`Files::unpin`].
    ///
    /// # Errors
    /// [`Kind::Stale`].
    pub fn pin(&self, ino: Ino) -> Result<Attr> {
        self.fileset.open(ino)
    }

    /// Ends one [`Files::pin`].
    ///
    /// # Errors
    /// As [`Fileset::release`].
    pub fn unpin(&self, ino: Ino) -> Result<()> {
        if self.fileset.release(ino)? {
            self.volume.forget(FileId(ino));
        }
        Ok(())
    }

    /// All about an inode. See [`Fileset::attr`].
    pub fn attr(&self, ino: Ino) -> Result<Attr> {
        self.fileset.attr(ino)
    }

    /// See [`Fileset::lookup`].
    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.fileset.lookup(dir, name)
    }

    /// See [`Fileset::create`].
    pub fn create(&self, dir: Ino, name: &[u8], new: &New) -> Result<Attr> {
        self.fileset.create(dir, name, new)
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
        self.fileset.symlink(dir, name, target, uid, gid)
    }

    /// See [`Fileset::read_link`].
    pub fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        self.fileset.read_link(ino)
    }

    /// See [`Fileset::link`].
    pub fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.fileset.link(ino, dir, name)
    }

    /// See [`Fileset::unlink`].
    pub fn unlink(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        let attr = self.fileset.unlink(dir, name)?;
        self.forget_if_gone(&attr);
        Ok(attr)
    }

    /// See [`Fileset::rmdir`].
    pub fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.fileset.rmdir(dir, name)
    }

    /// See [`Fileset::rename`].
    pub fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        how: Rename,
    ) -> Result<Option<Attr>> {
        let replaced = self.fileset.rename(from, to, how)?;
        if let Some(attr) = &replaced {
            self.forget_if_gone(attr);
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
        self.fileset.read_dir(dir, after, take)
    }

    /// See [`Fileset::read_dir_attrs`].
    pub fn read_dir_attrs(
        &self,
        dir: Ino,
        after: u64,
        take: impl FnMut(DirEntry, Attr) -> Result<bool>,
    ) -> Result<()> {
        self.fileset.read_dir_attrs(dir, after, take)
    }

    /// See [`Fileset::note_read`].
    pub fn note_read(&self, ino: Ino) -> Result<()> {
        self.fileset.note_read(ino)
    }

    /// See [`Fileset::xattr`].
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.fileset.xattr(ino, name)
    }

    /// See [`Fileset::xattrs`].
    pub fn xattrs(&self, ino: Ino, take: impl FnMut(&[u8])) -> Result<()> {
        self.fileset.xattrs(ino, take)
    }

    /// See [`Fileset::set_xattr`].
    pub fn set_xattr(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        self.fileset.set_xattr(ino, name, value, how)
    }

    /// See [`Fileset::remove_xattr`].
    pub fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.fileset.remove_xattr(ino, name)
    }

    /// See [`Fileset::raise_version`].
    pub fn raise_version(&self, ino: Ino) -> Result<Attr> {
        self.fileset.raise_version(ino)
    }

    /// See [`Fileset::seek`]. Pages that wait to be written count as data.
    pub fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        self.fileset.seek(ino, offset, what)
    }

    /// See [`Fileset::statfs`].
    pub fn statfs(&self) -> Result<StatFs> {
        self.fileset.statfs()
    }

    /// Makes the names and attributes of everything durable that has happened so far; of content, what
    /// has been written out. Many callers at once share the work.
    pub fn sync_names(&self) -> Result<()> {
        self.fileset.sync()
    }

    /// Writes everything out, and makes it and all that has happened durable.
    ///
    /// # Errors
    /// The first file that could not be written; the others were tried all the same.
    pub fn sync(&self) -> Result<()> {
        let mut session = self.volume.session()?;
        let mut first = Ok(());
        for stats in self
            .volume
            .files()
            .into_iter()
            .filter(|stats| stats.dirty_bytes > 0)
        {
            let mut open = self.volume.open(&self.volume.vnode(stats.file, stats.size));
            let written = session.write_out(&mut open, 0..FILE_SIZE_MAX);
            first = first.and(written);
        }
        first?;
        self.fileset.sync()
    }

    /// Writes everything out and takes the pages out of the cache. Nobody uses the files any more.
    ///
    /// # Errors
    /// Something could not be written; it is in the cache still.
    pub fn close(&self) -> Result<()> {
        self.sync()?;
        // Everything is below; the volume need not flush each file on its own.
        for stats in self.volume.files() {
            self.volume.forget(stats.file);
        }
        Ok(self.volume.close()?)
    }

    /// The node of a file, made if nobody has one.
    fn node(&self, attr: &Attr) -> Arc<Node> {
        let mut nodes = self.nodes.lock().expect("no panic under this lock");
        if let Some(node) = nodes.by_ino.get(&attr.ino).and_then(Weak::upgrade) {
            return node;
        }
        if nodes.by_ino.len() >= NODES_MIN.max(2 * nodes.kept) {
            nodes.by_ino.retain(|_, node| node.strong_count() > 0);
            nodes.kept = nodes.by_ino.len();
        }
        let node = Arc::new(Node {
            ino: attr.ino,
            vnode: self.volume.vnode(FileId(attr.ino), attr.inode.size),
            change: Mutex::new(()),
        });
        nodes.by_ino.insert(attr.ino, Arc::downgrade(&node));
        node
    }

    /// Drops the pages of a file that has just lost a name, if it was the last and nobody has the file
    /// open.
    fn forget_if_gone(&self, attr: &Attr) {
        let gone = |e: crate::Error| e.kind() == Kind::Stale;
        if attr.inode.links == 0 && self.fileset.attr(attr.ino).is_err_and(gone) {
            self.volume.forget(FileId(attr.ino));
        }
    }
}

impl Handle {
    /// The number of the file.
    pub fn ino(&self) -> Ino {
        self.node.ino
    }

    /// All about it.
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
            // It stands among the orphans, and goes when the file system is next opened.
            tracing::warn!("inode {ino} could not be removed: {error}");
        }
    }
}
