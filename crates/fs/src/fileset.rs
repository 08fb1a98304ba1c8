//! The handle to a fileset or a snapshot.
//!
//! All operations on files are methods of [`Fileset`]: those on names and attributes are in
//! `names/`, those on content in `data/`.

use crate::error::{Error, Kind, Result};
use crate::format::key::{Ino, TreeId};
use crate::format::record::{BLOCK_BYTES, Inode, blocks_for};
use crate::format::superblock::check_label;
use crate::format::tree_record::TreeRecord;
use crate::metadata::shared::FsShared;
use std::ops::Range;
use std::sync::Arc;

/// Handle to a fileset, or to a snapshot of one. Cheap to clone; may be used by any thread.
#[derive(Clone)]
pub struct Fileset {
    pub(crate) fs: Arc<FsShared>,
    pub(crate) id: TreeId,
}

/// Inode and its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Attributes. The block count includes blocks promised to dirty pages.
    pub inode: Inode,
}

/// Space usage of a fileset for statfs(2), in blocks of 4096 bytes. A quota counts as the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    /// Total number of blocks.
    pub blocks: u64,
    /// Blocks not in use.
    pub free: u64,
    /// Blocks that a file could still allocate.
    pub available: u64,
    /// Total number of inodes possible.
    pub inodes: u64,
    /// Number of further inodes possible.
    pub free_inodes: u64,
}

/// Estimate of how many new inodes fit into a block: a record, an entry and an extent take about a
/// tenth of a block, and a file with content takes one more.
const INODES_PER_BLOCK: u64 = 4;

impl Fileset {
    /// Returns the id of the fileset or snapshot.
    pub fn id(&self) -> TreeId {
        self.id
    }

    /// Checks whether this is a snapshot, which never changes.
    pub fn is_snapshot(&self) -> Result<bool> {
        Ok(self.fs.read().tree(self.id)?.record.origin != 0)
    }

    /// Returns a copy of the record.
    pub fn record(&self) -> Result<TreeRecord> {
        Ok(self.fs.read().tree(self.id)?.record.clone())
    }

    /// Reads the attributes of an inode.
    ///
    /// # Errors
    /// [`crate::Kind::Stale`]: there is no inode with this number.
    pub fn attr(&self, ino: Ino) -> Result<Attr> {
        let inode = self.fs.read().inode_shown(self.id, ino)?;
        Ok(Attr { ino, inode })
    }

    /// Returns the space usage.
    pub fn statfs(&self) -> Result<StatFs> {
        let state = self.fs.read();
        let tree = state.tree(self.id)?;
        let record = &tree.record;
        let device = self.fs.space.usage();
        let device_blocks = self.fs.superblock.lock().device_blocks;
        let (mut blocks, mut free, mut available) = (device_blocks, device.free, device.available);
        if record.quota_blocks != 0 {
            let left = record.quota_blocks.saturating_sub(tree.charged_blocks());
            blocks = record.quota_blocks.min(device_blocks);
            (free, available) = (free.min(left), available.min(left));
        }
        let mut free_inodes = device.available * INODES_PER_BLOCK;
        if record.quota_inodes != 0 {
            let left = record.quota_inodes.saturating_sub(tree.charged_inodes());
            free_inodes = free_inodes.min(left);
        }
        Ok(StatFs {
            blocks,
            free,
            available,
            inodes: record.used_inodes + free_inodes,
            free_inodes,
        })
    }

    /// Returns the label of the file system.
    pub fn label(&self) -> String {
        self.fs.superblock.lock().label.clone()
    }

    /// Sets the label of the file system; it is durable when this returns.
    ///
    /// # Errors
    /// [`Kind::Invalid`]: longer than 64 bytes, or with control characters. [`Kind::ReadOnly`];
    /// errors of the device.
    pub fn set_label(&self, label: &str) -> Result<()> {
        check_label(label)?;
        self.fs.check_writable()?;
        let mut superblock = self.fs.superblock.lock();
        let before = std::mem::replace(&mut superblock.label, label.to_owned());
        drop(superblock);
        self.fs.superblock.write().map_err(|error| {
            self.fs.superblock.lock().label = before;
            error.into()
        })
    }

    /// Passes the free space in a range of the device, given in bytes, to the device as unused
    /// ([`block::Op::Discard`]), except runs of less than `min` bytes. Returns the number of bytes.
    /// While it works, other callers can allocate a part of the free space less.
    ///
    /// # Errors
    /// [`Kind::Unsupported`]: the device accepts no discards. [`Kind::ReadOnly`]; errors of the
    /// device.
    pub fn trim(&self, bytes: Range<u64>, min: u64) -> Result<u64> {
        self.fs.check_writable()?;
        if !self.fs.io.info().discard {
            return Err(Error::new(
                Kind::Unsupported,
                "the device accepts no discards; mount with `--allow-discards`",
            ));
        }
        let min = blocks_for(min).max(1);
        let (mut at, end) = (blocks_for(bytes.start), bytes.end / BLOCK_BYTES);
        let mut done = 0;
        while let Some((run, next)) = self.fs.space.take_unused(at..end, min) {
            at = next;
            let discarded = self.fs.io.discard(run);
            self.fs.space.give_back(run);
            discarded?;
            done += run.blocks * BLOCK_BYTES;
        }
        Ok(done)
    }

    /// Makes all changes to the metadata so far durable. The caller has already had the cache write
    /// back the pages of the file.
    pub fn sync(&self) -> Result<()> {
        self.fs.sync()
    }
}
