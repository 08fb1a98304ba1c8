//! Directories. An index is verified, but not used: its blocks look like those of an empty
//! directory.

use super::checksum::crc;
use super::inode::Inode;
use super::{Ext, node_of};
use crate::bytes::{le8, le16, le32, part};
use crate::disk::Disk;
use crate::error::Result;
use crate::tree::{Entry, is_name};

/// Longest directory that is read, in bytes.
const LONGEST: u64 = 4 << 30;

/// Bytes of the checksum at the end of a block, which looks like an unused entry.
const TAIL_BYTES: usize = 12;
const TAIL_TYPE: u8 = 0xde;

/// Bytes of an entry of an index.
const INDEX_ENTRY_BYTES: usize = 8;

/// Bytes of the parent's number at the start of an inline directory.
const INLINE_PARENT_BYTES: usize = 4;

/// Types of files, by the number in an entry.
const TYPES: [u32; 8] = [
    0,
    libc::S_IFREG,
    libc::S_IFDIR,
    libc::S_IFCHR,
    libc::S_IFBLK,
    libc::S_IFIFO,
    libc::S_IFSOCK,
    libc::S_IFLNK,
];

impl Ext {
    /// See [`crate::Tree::read_dir`]. A position is an offset in the directory.
    pub(super) fn entries(
        &self,
        disk: &mut Disk,
        dir: &Inode,
        from: u64,
        count: usize,
    ) -> Result<Vec<Entry>> {
        dir.check_readable()?;
        let mut entries = Vec::new();
        if dir.is_inline() {
            self.inline_entries(disk, dir, from, &mut entries)?;
            entries.truncate(count);
            return Ok(entries);
        }
        let unit = self.superblock.block_bytes;
        let size = dir.attr.size;
        let most = LONGEST.min(self.superblock.blocks * unit);
        if size > most || !size.is_multiple_of(unit) {
            return Err(dir.corrupt("the length of a directory"));
        }
        for block in from / unit..size / unit {
            let bytes = self.block(disk, dir, block)?;
            check(&bytes, dir, block)?;
            self.parse(&bytes, dir, block * unit, from, &mut entries)?;
            if entries.len() >= count {
                break;
            }
        }
        entries.truncate(count);
        Ok(entries)
    }

    /// Adds the entries of a block, which begins at `start`, from the position `from` on.
    fn parse(
        &self,
        bytes: &[u8],
        dir: &Inode,
        start: u64,
        from: u64,
        to: &mut Vec<Entry>,
    ) -> Result<()> {
        let mut at = 0;
        while at < bytes.len() {
            let (ino, len) = (le32(bytes, at)?, usize::from(le16(bytes, at + 4)?));
            // In blocks of 64 KiB, the lower bits of the length are its upper ones.
            let len = match len {
                0 | 65_535 if bytes.len() >= 65_536 => 65_536,
                len if bytes.len() >= 65_536 => len & 65_532 | (len & 3) << 16,
                len => len,
            };
            let name_len = if self.superblock.has_types_in_names() {
                usize::from(le8(bytes, at + 6)?)
            } else {
                usize::from(le16(bytes, at + 6)?)
            };
            let good = len >= 12
                && len.is_multiple_of(4)
                && len <= bytes.len() - at
                && (ino == 0 || name_len + 8 <= len);
            if !good {
                return Err(dir.corrupt("an entry of a directory is damaged"));
            }
            if ino != 0 && start + at as u64 >= from {
                let name = part(bytes, at + 8, name_len)?;
                let kind = if self.superblock.has_types_in_names() {
                    TYPES.get(usize::from(le8(bytes, at + 7)?))
                } else {
                    None
                };
                let next = start + (at + len) as u64;
                to.push(entry(dir, name, ino, kind.copied().unwrap_or(0), next)?);
            }
            at += len;
        }
        Ok(())
    }

    /// Adds the entries of an inline directory. The parent's number precedes the entries; these
    /// fill the rest of the place for the map of blocks, and then an extended attribute.
    fn inline_entries(
        &self,
        disk: &mut Disk,
        dir: &Inode,
        from: u64,
        to: &mut Vec<Entry>,
    ) -> Result<()> {
        let map = dir.map()?;
        let parent = le32(map, 0)?;
        for (position, name, ino) in [(0, &b"."[..], dir.ino), (1, b"..", parent)] {
            if from <= position {
                to.push(entry(dir, name, ino, libc::S_IFDIR, position + 1)?);
            }
        }
        let start = INLINE_PARENT_BYTES;
        let first = part(map, start, map.len() - start)?;
        let from = from.max(start as u64);
        self.parse(first, dir, start as u64, from, to)?;
        if let Some(rest) = self.inline_rest(disk, dir)? {
            self.parse(&rest, dir, map.len() as u64, from, to)?;
        }
        Ok(())
    }
}

fn entry(dir: &Inode, name: &[u8], ino: u32, kind: u32, next: u64) -> Result<Entry> {
    if !is_name(name) {
        return Err(dir.corrupt("a name is not valid"));
    }
    let dots = name == b"." || name == b"..";
    Ok(Entry {
        name: name.to_vec(),
        node: if dots { 0 } else { node_of(dir, ino)? },
        ino: u64::from(ino),
        kind,
        next,
    })
}

/// Verifies the checksum of a block of entries, or of the index.
fn check(bytes: &[u8], dir: &Inode, number: u64) -> Result<()> {
    let Some(seed) = dir.seed else { return Ok(()) };
    let good = match index_at(bytes, dir, number)? {
        Some(at) => {
            // The numbers of possible and of used entries precede the entries, as the first one.
            let (limit, used) = (
                usize::from(le16(bytes, at)?),
                usize::from(le16(bytes, at + 2)?),
            );
            let tail = at + limit * INDEX_ENTRY_BYTES;
            let mut found = crc(seed, part(bytes, 0, at + used * INDEX_ENTRY_BYTES)?);
            found = crc(found, part(bytes, tail, 4)?);
            crc(found, &[0; 4]) == le32(bytes, tail + 4)?
        }
        None => {
            let tail = bytes.len() - TAIL_BYTES;
            le32(bytes, tail)? == 0
                && usize::from(le16(bytes, tail + 4)?) == TAIL_BYTES
                && le8(bytes, tail + 6)? == 0
                && le8(bytes, tail + 7)? == TAIL_TYPE
                && crc(seed, part(bytes, 0, tail)?) == le32(bytes, tail + 8)?
        }
    };
    if good {
        Ok(())
    } else {
        Err(dir.corrupt("the checksum of a directory is wrong"))
    }
}

/// Returns the place of the index in a block of a directory; `None` for a block of names.
fn index_at(bytes: &[u8], dir: &Inode, number: u64) -> Result<Option<usize>> {
    if !dir.is_indexed() {
        return Ok(None);
    }
    if number == 0 {
        // It follows `.`, `..` and a header.
        return Ok(Some(32));
    }
    let len = usize::from(le16(bytes, 4)?);
    let is_whole = len == bytes.len() || bytes.len() == 65_536 && matches!(len, 0 | 65_535);
    Ok((le32(bytes, 0)? == 0 && is_whole).then_some(8))
}
