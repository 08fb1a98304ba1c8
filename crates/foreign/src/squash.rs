//! SquashFS 4.0, read-only by its nature.
//!
//! A node is the reference to an inode plus 2, so that none is 0, and the root has the node 1.
//! Structures are in compressed blocks, of which recently decoded ones are kept; decoded data is in
//! the pages of the cache. Deliberately absent: compression by lzo and lzma, versions before 4.0.

mod decode;
mod inode;
mod reader;

use crate::bytes::{le16, le32, le64};
use crate::disk::Disk;
use crate::error::{Error, Kind as ErrorKind, Result};
use crate::kept::Kept;
use crate::tree::{Attr, Entry, Node, Piece, Place, ROOT, Space, Tree, add, is_name};
use inode::{Inode, Kind, type_of};
use reader::{AttributeSet, Position, Reader, is_plain, stored_bytes};
use std::ops::Range;

/// Difference between a node and the reference to its inode.
const FIRST_NODE: u64 = 2;

/// Most attributes of a file.
const ATTRIBUTES_MAX: u32 = 4096;
/// Longest value of an attribute.
const VALUE_BYTES_MAX: u32 = 65_536;
/// Type of an attribute whose value is elsewhere.
const ELSEWHERE: u16 = 0x100;

const PREFIXES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// Number of lengths of blocks that are read at once.
const LENGTHS: u64 = 2048;

/// An open file system.
pub(crate) struct Squash {
    reader: Reader,
    /// States of unfinished listings, by directory and position.
    scans: Kept<(Node, u64), Scan>,
}

/// Number of unfinished listings of a generation.
const SCANS: usize = 64;

/// State of a listing.
#[derive(Clone, Copy)]
struct Scan {
    at: Position,
    /// Number of bytes before it.
    done: u64,
    /// Number of entries that the last header is still about.
    left: u32,
    /// Block of the inodes of these, and the number from which theirs count.
    start: u32,
    first: u32,
}

/// Reports whether the device has a superblock of SquashFS.
pub(crate) fn is_there(disk: &mut Disk) -> Result<bool> {
    if disk.size() < reader::SUPERBLOCK_BYTES as u64 {
        return Ok(false);
    }
    Ok(le32(&disk.bytes(0, 4)?, 0)? == reader::MAGIC)
}

/// Extended attribute with its full name.
type Attribute = (Vec<u8>, Vec<u8>);

/// Blocks of a file, and the number of a fragment with the offset in it.
type Content = (Vec<Block>, Option<(u32, u32)>);

/// Block of a file: its offset on the device and its length as stored there, 0 for a hole.
struct Block {
    at: u64,
    len: u32,
}

impl Squash {
    /// Opens a file system.
    ///
    /// # Errors
    /// It is damaged, or has an unknown version or compression.
    pub(crate) fn open(disk: &mut Disk) -> Result<Squash> {
        let squash = Squash {
            reader: Reader::open(disk)?,
            scans: Kept::new(SCANS),
        };
        if squash.inode(disk, ROOT)?.attr.is_dir() {
            Ok(squash)
        } else {
            Err(Error::corrupt("the root is not a directory"))
        }
    }

    fn inode(&self, disk: &mut Disk, node: Node) -> Result<Inode> {
        let reference = match node {
            ROOT => self.reader.root,
            node => node.saturating_sub(FIRST_NODE),
        };
        Inode::read(disk, &self.reader, reference)
    }

    fn node_of(&self, reference: u64) -> Node {
        if reference == self.reader.root {
            ROOT
        } else {
            reference + FIRST_NODE
        }
    }

    /// Reads the next entry of a directory; `None` after a header.
    fn next(&self, disk: &mut Disk, scan: &mut Scan) -> Result<Option<Entry>> {
        if scan.left == 0 {
            let head = self.reader.take(disk, &mut scan.at, 12)?;
            let more = le32(&head, 0)?;
            if more >= 256 {
                return Err(Error::corrupt("a directory is damaged"));
            }
            scan.left = more + 1;
            (scan.start, scan.first) = (le32(&head, 4)?, le32(&head, 8)?);
            scan.done += 12;
            return Ok(None);
        }
        let b = self.reader.take(disk, &mut scan.at, 8)?;
        let name_len = usize::from(le16(&b, 6)?) + 1;
        let name = self.reader.take(disk, &mut scan.at, name_len)?;
        scan.done += 8 + name_len as u64;
        scan.left -= 1;
        if !is_name(&name) || name == b"." || name == b".." {
            return Err(Error::corrupt("a name is not valid"));
        }
        let ino = i64::from(scan.first) + i64::from(le16(&b, 2)?.cast_signed());
        let reference = u64::from(scan.start) << 16 | u64::from(le16(&b, 0)?);
        Ok(Some(Entry {
            name,
            node: self.node_of(reference),
            ino: u64::try_from(ino).unwrap_or(0),
            kind: type_of(le16(&b, 4)?).unwrap_or(0),
            next: scan.done + 2,
        }))
    }

    fn all_attributes(&self, disk: &mut Disk, node: Node) -> Result<Vec<Attribute>> {
        let Some(index) = self.inode(disk, node)?.attributes else {
            return Ok(Vec::new());
        };
        let AttributeSet {
            first: mut at,
            count,
            table,
            ..
        } = self.reader.attributes(disk, index)?;
        if count > ATTRIBUTES_MAX {
            return Err(Error::corrupt("a file has too many attributes"));
        }
        let mut all = Vec::new();
        for _ in 0..count {
            let head = self.reader.take(disk, &mut at, 4)?;
            let (kind, name_len) = (le16(&head, 0)?, le16(&head, 2)?);
            let name = self.reader.take(disk, &mut at, usize::from(name_len))?;
            let len = le32(&self.reader.take(disk, &mut at, 4)?, 0)?;
            let value = if kind & ELSEWHERE == 0 {
                self.value(disk, &mut at, len)?
            } else {
                let reference = le64(&self.reader.take(disk, &mut at, 8)?, 0)?;
                let place = &mut self.reader.value_at(table, reference)?;
                let len = le32(&self.reader.take(disk, place, 4)?, 0)?;
                self.value(disk, place, len)?
            };
            let prefix = PREFIXES.get(usize::from(kind & !ELSEWHERE));
            let prefix = prefix.ok_or_else(|| Error::corrupt("the type of an attribute"))?;
            if name.contains(&0) {
                return Err(Error::corrupt("the name of an attribute"));
            }
            all.push(([prefix, &name[..]].concat(), value));
        }
        Ok(all)
    }

    fn value(&self, disk: &mut Disk, at: &mut Position, len: u32) -> Result<Vec<u8>> {
        if len > VALUE_BYTES_MAX {
            return Err(Error::corrupt("the value of an attribute is too long"));
        }
        self.reader.take(disk, at, len as usize)
    }

    /// Passes the blocks of a file with the numbers `wanted` to `take`, which is then in its
    /// fragment if it has no more blocks.
    fn blocks(
        &self,
        disk: &mut Disk,
        (start, lengths): (u64, Position),
        wanted: Range<u64>,
        mut take: impl FnMut(Block),
    ) -> Result<()> {
        let (mut at, mut lengths) = (start, lengths);
        let mut number = 0;
        while number < wanted.end {
            let count = (wanted.end - number).min(LENGTHS);
            let part = self.reader.take(disk, &mut lengths, count as usize * 4)?;
            for len in part.as_chunks::<4>().0 {
                let len = u32::from_le_bytes(*len);
                if stored_bytes(len) > self.reader.block_bytes {
                    return Err(Error::corrupt("a block of data is too long"));
                }
                if wanted.contains(&number) {
                    take(Block { at, len });
                }
                at = at.saturating_add(stored_bytes(len));
                number += 1;
            }
        }
        Ok(())
    }

    /// Reads where a range of a file is: its blocks, and the fragment in which the rest of it is.
    fn file(&self, disk: &mut Disk, node: Node, range: Range<u64>) -> Result<Content> {
        let inode = self.inode(disk, node)?;
        let Kind::File {
            start,
            fragment,
            lengths,
        } = inode.kind
        else {
            return Err(ErrorKind::Invalid.into());
        };
        let unit = self.reader.block_bytes;
        let count = self.block_count(inode.attr.size, fragment.is_some());
        let wanted = range.start / unit..range.end.div_ceil(unit).min(count);
        let mut blocks = Vec::new();
        if wanted.start < wanted.end {
            self.blocks(disk, (start, lengths), wanted, |block| blocks.push(block))?;
        }
        Ok((blocks, fragment))
    }

    /// Returns the number of blocks of a file, without its fragment.
    fn block_count(&self, size: u64, has_fragment: bool) -> u64 {
        if has_fragment {
            size / self.reader.block_bytes
        } else {
            size.div_ceil(self.reader.block_bytes)
        }
    }
}

impl Tree for Squash {
    fn format(&self) -> &'static str {
        "SquashFS"
    }

    fn space(&self) -> Space {
        let block = self.reader.block_bytes;
        Space {
            block_bytes: block as u32,
            blocks: self.reader.bytes_used.div_ceil(block),
            files: u64::from(self.reader.inodes),
            ..Space::default()
        }
    }

    fn attr(&self, disk: &mut Disk, node: Node) -> Result<Attr> {
        Ok(self.inode(disk, node)?.attr)
    }

    /// A position is 1 after `.`, 2 after `..`, and then 2 more than the offset in the entries. It
    /// may be between two entries only.
    fn read_dir(&self, disk: &mut Disk, dir: Node, from: u64, count: usize) -> Result<Vec<Entry>> {
        let inode = self.inode(disk, dir)?;
        let Kind::Directory {
            block,
            within,
            bytes,
            parent,
        } = inode.kind
        else {
            return Err(ErrorKind::NotDirectory.into());
        };
        let mut entries = Vec::new();
        for (position, name, ino) in [
            (0, &b"."[..], inode.attr.ino),
            (
                1,
                b"..",
                if dir == ROOT {
                    inode.attr.ino
                } else {
                    u64::from(parent)
                },
            ),
        ] {
            if from <= position {
                entries.push(Entry {
                    name: name.to_vec(),
                    node: 0,
                    ino,
                    kind: libc::S_IFDIR,
                    next: position + 1,
                });
            }
        }
        let bytes = u64::from(bytes);
        let mut scan = match self.scans.get((dir, from)) {
            Some(scan) => scan,
            None => Scan {
                at: self.reader.directory_at(block, within)?,
                done: 0,
                left: 0,
                start: 0,
                first: 0,
            },
        };
        while scan.done < bytes && entries.len() < count {
            let position = scan.done + 2;
            if let Some(entry) = self.next(disk, &mut scan)?
                && position >= from
            {
                entries.push(entry);
            }
        }
        if let Some(last) = entries.last() {
            self.scans.insert((dir, last.next), scan);
        }
        entries.truncate(count);
        Ok(entries)
    }

    fn read_link(&self, disk: &mut Disk, node: Node) -> Result<Vec<u8>> {
        match self.inode(disk, node)?.kind {
            Kind::Link(target) => Ok(target),
            _ => Err(ErrorKind::Invalid.into()),
        }
    }

    fn xattrs(&self, disk: &mut Disk, node: Node) -> Result<Vec<Vec<u8>>> {
        let all = self.all_attributes(disk, node)?;
        Ok(all.into_iter().map(|(name, _)| name).collect())
    }

    fn xattr(&self, disk: &mut Disk, node: Node, name: &[u8]) -> Result<Vec<u8>> {
        let all = self.all_attributes(disk, node)?;
        let found = all.into_iter().find(|(full, _)| full == name);
        found
            .map(|(_, value)| value)
            .ok_or_else(|| ErrorKind::NoAttribute.into())
    }

    fn map(&self, disk: &mut Disk, node: Node, range: Range<u64>) -> Result<Vec<Piece>> {
        let unit = self.reader.block_bytes;
        let (mut pieces, mut at) = (Vec::new(), range.start);
        for block in self.file(disk, node, range.clone())?.0 {
            let within = at % unit;
            let len = (unit - within).min(range.end - at);
            let place = match block.len {
                0 => Place::Zeros,
                stored if is_plain(stored) && stored_bytes(stored) >= within + len => {
                    Place::Device(block.at.saturating_add(within))
                }
                _ => Place::Computed,
            };
            add(&mut pieces, Piece { len, place });
            at += len;
        }
        if at < range.end {
            let (len, place) = (range.end - at, Place::Computed);
            add(&mut pieces, Piece { len, place });
        }
        Ok(pieces)
    }

    fn compute(&self, disk: &mut Disk, node: Node, offset: u64, out: &mut [u8]) -> Result<()> {
        let unit = self.reader.block_bytes;
        let end = offset.saturating_add(out.len() as u64);
        let (found, fragment) = self.file(disk, node, offset..end)?;
        let short = || Error::corrupt("a block of data is too short");
        let (mut at, mut out) = (offset, out);
        let mut found = found.into_iter();
        while !out.is_empty() {
            let within = (at % unit) as usize;
            let len = (unit as usize - within).min(out.len());
            let (now, rest) = out.split_at_mut(len);
            match (found.next(), fragment) {
                (Some(block), _) => {
                    if block.len == 0 {
                        now.fill(0);
                    } else {
                        let data = self.reader.data(disk, block.at, block.len)?;
                        now.copy_from_slice(data.get(within..within + len).ok_or_else(short)?);
                    }
                }
                (None, Some((index, place))) => {
                    let data = self.reader.fragments(disk, index)?;
                    let from = place as usize + within;
                    now.copy_from_slice(data.get(from..from + len).ok_or_else(short)?);
                }
                (None, None) => return Err(short()),
            }
            (at, out) = (at + len as u64, rest);
        }
        Ok(())
    }
}
