//! An open file system: its tree, its pages in the cache, and access for a thread.

mod changing;

use crate::changes::Changes;
use crate::disk::{Blocks, Disk};
use crate::error::{Error, Kind, Result};
use crate::formats::Opened;
use crate::guard::guarded;
use crate::pager::TreePager;
use crate::tree::{Attr, Entry, Node, Tree};
use block::{Access, BlockDevice};
use cache::{Cache, FileId, OpenFile, Session, Volume};
use layer_cpu::{Layer, within};
use std::sync::Arc;

/// Number of most recently read files that a lane keeps open.
const RECENT: usize = 8;

/// Longest file, in bytes: offsets of the kernel are signed.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// An open file system.
pub struct Files {
    tree: Arc<dyn Tree>,
    changes: Option<Arc<dyn Changes>>,
    device: Arc<dyn BlockDevice>,
    blocks: Arc<Blocks>,
    volume: Arc<Volume>,
}

/// Access to the files for one thread.
pub struct Lane {
    files: Arc<Files>,
    session: Session,
    disk: Disk,
    /// Recently read files with their sizes, the last one first.
    recent: Vec<(Node, OpenFile)>,
}

impl Files {
    /// Recognizes the file system on a device and opens it to read.
    ///
    /// # Errors
    /// [`Kind::NotFound`]: none of the formats. [`Kind::Unsupported`]: EVFS cannot read it safely;
    /// the error has the reason. [`Kind::Corrupt`]: it is damaged.
    pub fn open(device: Arc<dyn BlockDevice>, cache: &Cache) -> Result<Arc<Files>> {
        Files::open_with(device, cache, Access::ReadOnly)
    }

    /// Opens a file system as [`Files::open`], to write if the device and the format can; see
    /// [`Files::is_writable`].
    ///
    /// # Errors
    /// As [`Files::open`].
    pub fn open_with(
        device: Arc<dyn BlockDevice>,
        cache: &Cache,
        access: Access,
    ) -> Result<Arc<Files>> {
        let blocks = Arc::default();
        let mut disk = Disk::open(&*device, &blocks)?;
        let Some(format) = crate::formats::find(&mut disk)? else {
            return Err(Kind::NotFound.into());
        };
        let access = if device.info().read_only {
            Access::ReadOnly
        } else {
            access
        };
        let opened = guarded(|| (format.open)(&mut disk, access))?;
        Files::of(opened, device, blocks, cache)
    }

    /// Opens a file system with a tree of the caller.
    ///
    /// # Errors
    /// The cache cannot create a volume.
    pub fn with_tree(
        tree: Arc<dyn Tree>,
        device: Arc<dyn BlockDevice>,
        cache: &Cache,
    ) -> Result<Arc<Files>> {
        let opened = Opened {
            tree,
            changes: None,
        };
        Files::of(opened, device, Arc::default(), cache)
    }

    fn of(
        Opened { tree, changes }: Opened,
        device: Arc<dyn BlockDevice>,
        blocks: Arc<Blocks>,
        cache: &Cache,
    ) -> Result<Arc<Files>> {
        let pager = TreePager::new(&tree, changes.as_ref(), &device, &blocks);
        let volume = cache.volume(Arc::new(pager))?;
        Ok(Arc::new(Files {
            tree,
            changes,
            device,
            blocks,
            volume,
        }))
    }

    /// Returns the tree, for its format, label, identifier and capacity.
    pub fn tree(&self) -> &dyn Tree {
        &*self.tree
    }

    /// Returns the volume in the cache, for its statistics.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Opens access for the calling thread.
    ///
    /// # Errors
    /// The device or the cache cannot open a queue.
    pub fn lane(self: &Arc<Files>) -> Result<Lane> {
        Ok(Lane {
            session: self.volume.session()?,
            disk: Disk::open(&*self.device, &self.blocks)?,
            files: Arc::clone(self),
            recent: Vec::new(),
        })
    }

    /// Reports whether files can be changed.
    pub fn is_writable(&self) -> bool {
        self.changes.is_some()
    }

    /// Writes all changes, marks the file system as unmounted, drops all pages and wipes them. No
    /// lane may be in use.
    ///
    /// # Errors
    /// Changes could not be written; nothing was dropped.
    pub fn close(self: &Arc<Files>) -> Result<()> {
        if self.is_writable() {
            self.lane()?.finish()?;
        }
        Ok(self.volume.close()?)
    }
}

impl Lane {
    /// Returns the files that this lane accesses.
    pub fn files(&self) -> &Arc<Files> {
        &self.files
    }

    /// Calls the tree.
    fn ask<T>(&mut self, work: impl FnOnce(&dyn Tree, &mut Disk) -> Result<T>) -> Result<T> {
        let _here = within(Layer::Fs);
        let (tree, disk) = (&*self.files.tree, &mut self.disk);
        guarded(|| work(tree, disk))
    }

    /// As [`Tree::attr`].
    ///
    /// # Errors
    /// As there.
    pub fn attr(&mut self, node: Node) -> Result<Attr> {
        let attr = self.ask(|tree, disk| tree.attr(disk, node))?;
        if attr.size > FILE_BYTES_MAX {
            return Err(Error::corrupt("a file is longer than 8 EiB"));
        }
        Ok(attr)
    }

    /// Finds a name in a directory, with its attributes.
    ///
    /// # Errors
    /// As [`Tree::lookup`].
    pub fn lookup(&mut self, dir: Node, name: &[u8]) -> Result<(Node, Attr)> {
        let node = self.ask(|tree, disk| tree.lookup(disk, dir, name))?;
        Ok((node, self.attr(node)?))
    }

    /// As [`Tree::read_dir`].
    ///
    /// # Errors
    /// As there.
    pub fn read_dir(&mut self, dir: Node, from: u64, count: usize) -> Result<Vec<Entry>> {
        self.ask(|tree, disk| tree.read_dir(disk, dir, from, count))
    }

    /// As [`Tree::read_link`].
    ///
    /// # Errors
    /// As there.
    pub fn read_link(&mut self, node: Node) -> Result<Vec<u8>> {
        self.ask(|tree, disk| tree.read_link(disk, node))
    }

    /// As [`Tree::xattrs`].
    ///
    /// # Errors
    /// As there.
    pub fn xattrs(&mut self, node: Node) -> Result<Vec<Vec<u8>>> {
        self.ask(|tree, disk| tree.xattrs(disk, node))
    }

    /// As [`Tree::xattr`].
    ///
    /// # Errors
    /// As there.
    pub fn xattr(&mut self, node: Node, name: &[u8]) -> Result<Vec<u8>> {
        self.ask(|tree, disk| tree.xattr(disk, node, name))
    }

    /// Reads from `offset` on, through the cache. Returns the number of bytes before the end of the
    /// file.
    ///
    /// # Errors
    /// The node is no regular file; a page could not be loaded.
    pub fn read(&mut self, node: Node, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.open(node)?;
        let (_, open) = &mut self.recent[0];
        let _here = within(Layer::Fs);
        Ok(self.session.read(open, offset, out)?)
    }

    /// Makes a regular file the first of the recently used ones.
    fn open(&mut self, node: Node) -> Result<()> {
        let at = match self.recent.iter().position(|(known, _)| *known == node) {
            Some(at) => at,
            None => {
                let attr = self.attr(node)?;
                if !attr.is_file() {
                    return Err(Kind::Invalid.into());
                }
                let volume = &self.files.volume;
                let open = volume.open(&volume.vnode(FileId(node), attr.size));
                self.recent.truncate(RECENT - 1);
                self.recent.insert(0, (node, open));
                0
            }
        };
        self.recent[..=at].rotate_right(1);
        Ok(())
    }
}
