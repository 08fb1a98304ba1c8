//! The superblock, and the streams of structures in compressed blocks.

use super::decode::{self, BLOCK_BYTES, HEADER_BYTES, Method};
use crate::bytes::{le16, le32, le64};
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::kept::Kept;
use std::sync::Arc;

pub(super) const MAGIC: u32 = 0x7371_7368;
pub(super) const SUPERBLOCK_BYTES: usize = 96;

/// Number of decoded blocks of structures of a generation: 4 MiB in all.
const STRUCTURES: usize = 256;
/// Bytes of decoded data of a generation.
const DATA_BYTES: usize = 4 << 20;

/// Offset of a table that does not exist.
const ABSENT: u64 = u64::MAX;

/// Bit of the length of data that is not compressed.
const PLAIN: u32 = 1 << 24;

/// Values of the superblock, checked, and recently decoded blocks.
pub(super) struct Reader {
    pub block_bytes: u64,
    pub method: Method,
    pub root: u64,
    pub bytes_used: u64,
    pub inodes: u32,
    fragments: u32,
    ids: u16,
    id_table: u64,
    xattr_table: u64,
    inode_table: u64,
    directory_table: u64,
    fragment_table: u64,
    /// Decoded blocks of structures by their offset, with the offset of the next one.
    structures: Kept<u64, (Arc<[u8]>, u64)>,
    /// Decoded blocks of data by their offset.
    data: Kept<u64, Arc<[u8]>>,
}

/// Position in a stream of structures: the offset of a block on the device, and one in its content.
#[derive(Debug, Clone, Copy)]
pub(super) struct Position {
    pub block: u64,
    pub within: usize,
}

/// Set of extended attributes.
pub(super) struct AttributeSet {
    pub first: Position,
    pub count: u32,
    /// Bytes of all of them.
    pub bytes: u32,
    /// Start of the table that references among them count from.
    pub table: u64,
}

impl Reader {
    pub fn open(disk: &mut Disk) -> Result<Reader> {
        let bytes = disk.bytes(0, SUPERBLOCK_BYTES)?;
        let b = &bytes[..];
        let version = (le16(b, 28)?, le16(b, 30)?);
        if version != (4, 0) {
            return Err(Error::unsupported(format!(
                "it has the version {}.{}, and EVFS knows 4.0; use mount(8)",
                version.0, version.1
            )));
        }
        let (block_bytes, log) = (le32(b, 12)?, le16(b, 22)?);
        let good = (12..=20).contains(&log) && block_bytes == 1 << log;
        let bytes_used = le64(b, 40)?;
        if !good || bytes_used > disk.size() {
            return Err(Error::corrupt(
                "the superblock contradicts itself, or the device is too short",
            ));
        }
        Ok(Reader {
            block_bytes: u64::from(block_bytes),
            method: Method::of(le16(b, 20)?)?,
            root: le64(b, 32)?,
            bytes_used,
            inodes: le32(b, 4)?,
            fragments: le32(b, 16)?,
            ids: le16(b, 26)?,
            id_table: le64(b, 48)?,
            xattr_table: le64(b, 56)?,
            inode_table: le64(b, 64)?,
            directory_table: le64(b, 72)?,
            fragment_table: le64(b, 80)?,
            structures: Kept::new(STRUCTURES),
            data: Kept::new(DATA_BYTES / block_bytes as usize),
        })
    }

    /// Reads bytes from a stream, and moves the position behind them.
    pub fn take(&self, disk: &mut Disk, from: &mut Position, len: usize) -> Result<Vec<u8>> {
        if len > crate::disk::LONGEST {
            return Err(Error::corrupt("a structure is too long"));
        }
        let mut out = Vec::with_capacity(len.min(BLOCK_BYTES));
        while out.len() < len {
            let (block, next) = self.structures_at(disk, from.block)?;
            let rest = block.get(from.within..).unwrap_or_default();
            let part = rest.len().min(len - out.len());
            out.extend_from_slice(&rest[..part]);
            from.within += part;
            if out.len() < len {
                // Only the last block of a stream is short.
                if block.len() < BLOCK_BYTES || from.within > BLOCK_BYTES {
                    return Err(Error::corrupt("a structure ends early"));
                }
                *from = Position {
                    block: next,
                    within: 0,
                };
            }
        }
        Ok(out)
    }

    /// Decodes the block of structures at an offset. Returns also the offset of the next one.
    fn structures_at(&self, disk: &mut Disk, at: u64) -> Result<(Arc<[u8]>, u64)> {
        if let Some(kept) = self.structures.get(at) {
            return Ok(kept);
        }
        if at >= self.bytes_used {
            return Err(Error::corrupt("a structure lies behind the end"));
        }
        let mut head = [0; HEADER_BYTES as usize];
        disk.read(at, &mut head)?;
        let (len, compressed) = decode::header(&head)?;
        let start = at + HEADER_BYTES;
        let raw = disk.bytes(start, len)?;
        let content = if compressed {
            self.method.decode(&raw, BLOCK_BYTES)?
        } else {
            raw
        };
        let decoded: (Arc<[u8]>, u64) = (content.into(), start + len as u64);
        self.structures.insert(at, decoded.clone());
        Ok(decoded)
    }

    /// Returns the position of an inode by its reference.
    pub fn inode_at(&self, reference: u64) -> Result<Position> {
        self.referenced(self.inode_table, reference)
    }

    /// Returns the position of the entries of a directory.
    pub fn directory_at(&self, block: u32, within: u16) -> Result<Position> {
        let reference = u64::from(block) << 16 | u64::from(within);
        self.referenced(self.directory_table, reference)
    }

    fn referenced(&self, table: u64, reference: u64) -> Result<Position> {
        let block = table.checked_add(reference >> 16);
        let within = (reference & 0xffff) as usize;
        match block {
            Some(block) if block < self.bytes_used && within < BLOCK_BYTES => {
                Ok(Position { block, within })
            }
            _ => Err(Error::corrupt("a reference leads nowhere")),
        }
    }

    /// Reads an entry of a table that has a list of the offsets of its blocks.
    fn entry(&self, disk: &mut Disk, list: u64, index: u64, bytes: usize) -> Result<Vec<u8>> {
        if list == ABSENT {
            return Err(Error::corrupt("a table does not exist"));
        }
        let in_block = (BLOCK_BYTES / bytes) as u64;
        let place = (index / in_block)
            .checked_mul(8)
            .and_then(|at| list.checked_add(at));
        let place = place.ok_or_else(|| Error::corrupt("a table is too long"))?;
        let block = le64(&disk.bytes(place, 8)?, 0)?;
        let within = (index % in_block) as usize * bytes;
        self.take(disk, &mut Position { block, within }, bytes)
    }

    /// Reads a user or group by its index.
    pub fn id(&self, disk: &mut Disk, index: u16) -> Result<u32> {
        if index >= self.ids {
            return Err(Error::corrupt("an owner does not exist"));
        }
        le32(&self.entry(disk, self.id_table, u64::from(index), 4)?, 0)
    }

    /// Reads the place of a fragment: its offset and length.
    fn fragment(&self, disk: &mut Disk, index: u32) -> Result<(u64, u32)> {
        if index >= self.fragments {
            return Err(Error::corrupt("a fragment does not exist"));
        }
        let entry = self.entry(disk, self.fragment_table, u64::from(index), 16)?;
        Ok((le64(&entry, 0)?, le32(&entry, 8)?))
    }

    /// Finds a set of attributes.
    pub fn attributes(&self, disk: &mut Disk, index: u32) -> Result<AttributeSet> {
        if self.xattr_table == ABSENT {
            return Err(Error::corrupt("attributes do not exist"));
        }
        let head = disk.bytes(self.xattr_table, 16)?;
        let (table, count) = (le64(&head, 0)?, le32(&head, 8)?);
        if index >= count {
            return Err(Error::corrupt("attributes do not exist"));
        }
        let list = self.xattr_table + 16;
        let entry = self.entry(disk, list, u64::from(index), 16)?;
        Ok(AttributeSet {
            first: self.referenced(table, le64(&entry, 0)?)?,
            count: le32(&entry, 8)?,
            bytes: le32(&entry, 12)?,
            table,
        })
    }

    /// Returns the position that a reference in the table of attributes leads to.
    pub fn value_at(&self, table: u64, reference: u64) -> Result<Position> {
        self.referenced(table, reference)
    }

    /// Decodes a block of data, whose length is as in the list of blocks.
    pub fn data(&self, disk: &mut Disk, at: u64, len: u32) -> Result<Arc<[u8]>> {
        if let Some(kept) = self.data.get(at) {
            return Ok(kept);
        }
        let stored = stored_bytes(len);
        if stored > self.block_bytes {
            return Err(Error::corrupt("a block of data is too long"));
        }
        let raw = disk.bytes_once(at, stored as usize)?;
        let content: Arc<[u8]> = if is_plain(len) {
            raw.into()
        } else {
            self.method.decode(&raw, self.block_bytes as usize)?.into()
        };
        self.data.insert(at, Arc::clone(&content));
        Ok(content)
    }

    /// Decodes a block of fragments.
    pub fn fragments(&self, disk: &mut Disk, index: u32) -> Result<Arc<[u8]>> {
        let (at, len) = self.fragment(disk, index)?;
        self.data(disk, at, len)
    }
}

/// Returns the number of bytes on the device of a block of data.
pub(super) fn stored_bytes(len: u32) -> u64 {
    u64::from(len & !PLAIN)
}

/// Reports whether a block of data is not compressed.
pub(super) fn is_plain(len: u32) -> bool {
    len & PLAIN != 0
}
