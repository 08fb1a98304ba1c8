//! ext2, ext3 and ext4, read-only.
//!
//! A node is an inode number, except that the root has the node 1 and the inode 2. Where the file
//! system has checksums, each structure is verified when it is read. **Invariant:** only a file
//! system that was unmounted in order is opened, so no structure changes or waits in a journal.
//! Deliberately absent: journal replay, the index of directories, decryption, case folding.

mod checksum;
mod content;
mod directory;
mod inode;
mod superblock;
mod xattr;

use crate::disk::Disk;
use crate::error::{Error, Kind, Result};
use crate::tree::{Attr, Entry, Node, Piece, ROOT, Space, Tree};
use inode::Inode;
use std::ops::Range;
use superblock::Superblock;

/// Inode of the root directory.
const ROOT_INODE: u32 = 2;

/// An open file system.
pub(crate) struct Ext {
    superblock: Superblock,
}

/// Reports whether the device has a superblock of ext2, ext3 or ext4.
pub(crate) fn is_there(disk: &mut Disk) -> Result<bool> {
    if disk.size() < superblock::AT + superblock::BYTES as u64 {
        return Ok(false);
    }
    let mut magic = [0; 2];
    disk.read(superblock::MAGIC_AT, &mut magic)?;
    Ok(u16::from_le_bytes(magic) == superblock::MAGIC)
}

impl Ext {
    /// Opens a file system.
    ///
    /// # Errors
    /// It is damaged, or reading it is not safe.
    pub(crate) fn open(disk: &mut Disk) -> Result<Ext> {
        let superblock = Superblock::read(disk)?;
        let ext = Ext { superblock };
        if ext.inode(disk, ROOT)?.attr.is_dir() {
            Ok(ext)
        } else {
            Err(Error::corrupt("the root is not a directory"))
        }
    }

    fn inode(&self, disk: &mut Disk, node: Node) -> Result<Inode> {
        let ino = match node {
            ROOT => ROOT_INODE,
            node => u32::try_from(node).map_err(|_| Error::corrupt("a node is not valid"))?,
        };
        Inode::read(disk, &self.superblock, ino)
    }

    fn dir(&self, disk: &mut Disk, node: Node) -> Result<Inode> {
        let inode = self.inode(disk, node)?;
        if inode.attr.is_dir() {
            Ok(inode)
        } else {
            Err(Kind::NotDirectory.into())
        }
    }
}

/// Returns the node of an inode that a directory names.
fn node_of(dir: &Inode, ino: u32) -> Result<Node> {
    match ino {
        ROOT_INODE => Ok(ROOT),
        // That of bad blocks, which has no name.
        1 => Err(dir.corrupt("it names an inode of the file system itself")),
        ino => Ok(u64::from(ino)),
    }
}

impl Tree for Ext {
    fn format(&self) -> &'static str {
        self.superblock.format()
    }

    fn label(&self) -> String {
        self.superblock.label.clone()
    }

    fn uuid(&self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let u = &self.superblock.uuid;
        let parts = [&u[..4], &u[4..6], &u[6..8], &u[8..10], &u[10..]];
        parts.map(hex).join("-")
    }

    fn space(&self) -> Space {
        let s = &self.superblock;
        Space {
            block_bytes: s.block_bytes as u32,
            blocks: s.blocks.saturating_sub(s.overhead),
            free: s.free_blocks,
            available: s.free_blocks.saturating_sub(s.reserved_blocks),
            files: u64::from(s.inodes),
            free_files: u64::from(s.free_inodes),
        }
    }

    fn attr(&self, disk: &mut Disk, node: Node) -> Result<Attr> {
        Ok(self.inode(disk, node)?.attr)
    }

    fn read_dir(&self, disk: &mut Disk, dir: Node, from: u64, count: usize) -> Result<Vec<Entry>> {
        let dir = self.dir(disk, dir)?;
        self.entries(disk, &dir, from, count)
    }

    fn read_link(&self, disk: &mut Disk, node: Node) -> Result<Vec<u8>> {
        let inode = self.inode(disk, node)?;
        match inode.attr.kind() {
            libc::S_IFLNK => self.link_target(disk, &inode),
            _ => Err(Kind::Invalid.into()),
        }
    }

    fn xattrs(&self, disk: &mut Disk, node: Node) -> Result<Vec<Vec<u8>>> {
        let inode = self.inode(disk, node)?;
        self.attribute_names(disk, &inode)
    }

    fn xattr(&self, disk: &mut Disk, node: Node, name: &[u8]) -> Result<Vec<u8>> {
        let inode = self.inode(disk, node)?;
        let found = self.attribute(disk, &inode, name)?;
        found.ok_or_else(|| Kind::NoAttribute.into())
    }

    fn map(&self, disk: &mut Disk, node: Node, range: Range<u64>) -> Result<Vec<Piece>> {
        let inode = self.inode(disk, node)?;
        inode.check_readable()?;
        self.pieces(disk, &inode, range)
    }

    fn compute(&self, disk: &mut Disk, node: Node, offset: u64, out: &mut [u8]) -> Result<()> {
        let inode = self.inode(disk, node)?;
        let content = self.inline(disk, &inode)?;
        let from = usize::try_from(offset)
            .ok()
            .and_then(|at| content.get(at..));
        match from.and_then(|from| from.get(..out.len())) {
            Some(bytes) => {
                out.copy_from_slice(bytes);
                Ok(())
            }
            None => Err(inode.corrupt("its content ends early")),
        }
    }
}
