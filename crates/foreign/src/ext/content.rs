//! Content of inodes: the blocks of a file by its extents or its tables of blocks.

use super::Ext;
use super::checksum::crc;
use super::inode::Inode;
use crate::bytes::{le16, le32, part};
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::tree::{Piece, Place, add};
use std::ops::Range;

const EXTENT_MAGIC: u16 = 0xf30a;
/// Deepest tree of extents.
const DEPTH_MAX: u16 = 5;
/// Length of an extent from which on it is allocated but not written.
const UNWRITTEN: u32 = 32_768;

/// Blocks of a file from some block on.
struct Run {
    /// First block on the device; `None` for a hole.
    first: Option<u64>,
    /// Number of blocks, at least 1.
    count: u64,
}

impl Ext {
    /// Finds the storage of a range of bytes, which is not empty.
    pub(super) fn pieces(
        &self,
        disk: &mut Disk,
        inode: &Inode,
        range: Range<u64>,
    ) -> Result<Vec<Piece>> {
        let unit = self.superblock.block_bytes;
        let mut pieces = Vec::new();
        if inode.is_inline() {
            let place = Place::Computed;
            let len = range.end - range.start;
            pieces.push(Piece { len, place });
            return Ok(pieces);
        }
        let mut at = range.start;
        while at < range.end {
            let run = self.run(disk, inode, at / unit)?;
            let within = at % unit;
            let len = run.count.saturating_mul(unit).saturating_sub(within);
            let len = len.min(range.end - at);
            let place = match run.first {
                None => Place::Zeros,
                Some(first) => {
                    self.superblock
                        .check_run(first, (within + len).div_ceil(unit))?;
                    Place::Device(first * unit + within)
                }
            };
            add(&mut pieces, Piece { len, place });
            at += len;
        }
        Ok(pieces)
    }

    /// Reads a block of a directory or a long link.
    pub(super) fn block(&self, disk: &mut Disk, inode: &Inode, block: u64) -> Result<Vec<u8>> {
        let first = self.run(disk, inode, block)?.first;
        let first = first.ok_or_else(|| inode.corrupt("a hole in a directory or a link"))?;
        let at = self.superblock.offset(first)?;
        disk.bytes(at, self.superblock.block_bytes as usize)
    }

    fn run(&self, disk: &mut Disk, inode: &Inode, block: u64) -> Result<Run> {
        if block >= 1 << 32 {
            return Err(inode.corrupt("it is too long"));
        }
        if inode.has_extents() {
            self.run_by_extents(disk, inode, block)
        } else {
            self.run_by_tables(disk, inode, block)
        }
    }

    fn run_by_extents(&self, disk: &mut Disk, inode: &Inode, block: u64) -> Result<Run> {
        let mut node = inode.map()?.to_vec();
        let mut depth_before = None;
        // First block that is certainly not in the subtree.
        let mut limit = 1 << 32;
        loop {
            let (count, most) = (le16(&node, 2)?, le16(&node, 4)?);
            let depth = le16(&node, 6)?;
            let good = le16(&node, 0)? == EXTENT_MAGIC
                && count <= most
                && 12 + usize::from(most) * 12 <= node.len()
                && depth_before.map_or(depth <= DEPTH_MAX, |before: u16| depth + 1 == before);
            if !good {
                return Err(inode.corrupt("a node of its extents is damaged"));
            }
            if let (Some(seed), Some(_)) = (inode.seed, depth_before) {
                let end = 12 + usize::from(most) * 12;
                if crc(seed, part(&node, 0, end)?) != le32(&node, end)? {
                    return Err(inode.corrupt("the checksum of its extents is wrong"));
                }
            }
            let entries = part(&node, 12, usize::from(count) * 12)?;
            let (entries, _) = entries.as_chunks::<12>();
            let after = entries.partition_point(|e| first_of(e) <= block);
            if let Some(next) = entries.get(after) {
                limit = limit.min(first_of(next));
            }
            let found = after.checked_sub(1).and_then(|at| entries.get(at));
            let hole = || Run {
                first: None,
                count: limit.saturating_sub(block).max(1),
            };
            let Some(entry) = found else {
                return Ok(hole());
            };
            if depth == 0 {
                let within = block - first_of(entry);
                let raw = u32::from(le16(entry, 4)?);
                let (len, written) = match raw {
                    0 => return Err(inode.corrupt("an extent is empty")),
                    raw if raw > UNWRITTEN => (u64::from(raw - UNWRITTEN), false),
                    raw => (u64::from(raw), true),
                };
                if within >= len {
                    return Ok(hole());
                }
                let start = u64::from(le16(entry, 6)?) << 32 | u64::from(le32(entry, 8)?);
                self.superblock.check_run(start, len)?;
                return Ok(Run {
                    first: written.then_some(start + within),
                    count: len - within,
                });
            }
            let below = u64::from(le16(entry, 8)?) << 32 | u64::from(le32(entry, 4)?);
            let at = self.superblock.offset(below)?;
            node = disk.bytes(at, self.superblock.block_bytes as usize)?;
            depth_before = Some(depth);
        }
    }

    fn run_by_tables(&self, disk: &mut Disk, inode: &Inode, block: u64) -> Result<Run> {
        let map = inode.map()?;
        let in_table = self.superblock.block_bytes / 4;
        let (mut pointer, mut index, mut span) = (0, block, 1);
        if block < 12 {
            pointer = le32(map, block as usize * 4)?;
            index = 0;
        } else {
            index -= 12;
            for level in 12..15 {
                span *= in_table;
                if index < span {
                    pointer = le32(map, level * 4)?;
                    break;
                }
                index -= span;
                if level == 14 {
                    return Err(inode.corrupt("it is too long"));
                }
            }
        }
        while span > 1 {
            if pointer == 0 {
                let count = span - index;
                return Ok(Run { first: None, count });
            }
            span /= in_table;
            let at = self.superblock.offset(u64::from(pointer))? + index / span * 4;
            let mut entry = [0; 4];
            disk.read(at, &mut entry)?;
            pointer = u32::from_le_bytes(entry);
            index %= span;
        }
        let first = (pointer != 0).then_some(u64::from(pointer));
        if let Some(first) = first {
            self.superblock.offset(first)?;
        }
        Ok(Run { first, count: 1 })
    }

    /// Reads the content of an inode that has it inline: in the place of the map of blocks, and
    /// then in an extended attribute.
    pub(super) fn inline(&self, disk: &mut Disk, inode: &Inode) -> Result<Vec<u8>> {
        let mut content = inode.map()?.to_vec();
        if let Some(rest) = self.inline_rest(disk, inode)? {
            content.extend(rest);
        }
        if inode.attr.size > content.len() as u64 {
            return Err(inode.corrupt("its content is longer than the inode"));
        }
        content.truncate(inode.attr.size as usize);
        Ok(content)
    }

    /// Reads the target of a symbolic link.
    pub(super) fn link_target(&self, disk: &mut Disk, inode: &Inode) -> Result<Vec<u8>> {
        inode.check_readable()?;
        let size = inode.attr.size;
        if size == 0 || size >= self.superblock.block_bytes.max(4096) {
            return Err(inode.corrupt("the length of a link"));
        }
        let bytes = if inode.is_inline() {
            self.inline(disk, inode)?
        } else if size < super::inode::MAP_BYTES as u64 && !inode.has_extents() {
            inode.map()?.to_vec()
        } else {
            let mut bytes = Vec::new();
            for block in 0..size.div_ceil(self.superblock.block_bytes) {
                bytes.extend(self.block(disk, inode, block)?);
            }
            bytes
        };
        let target = part(&bytes, 0, size as usize)?;
        if target.contains(&0) {
            return Err(Error::corrupt("a link has a zero byte"));
        }
        Ok(target.to_vec())
    }
}

/// First block of the file that an entry of a node of extents is about.
fn first_of(entry: &[u8; 12]) -> u64 {
    let [a, b, c, d, ..] = *entry;
    u64::from(u32::from_le_bytes([a, b, c, d]))
}
