//! Inodes.

use super::checksum::crc;
use super::superblock::Superblock;
use crate::bytes::{join, le16, le32, part};
use crate::disk::Disk;
use crate::error::{Error, Kind, Result};
use crate::tree::{Attr, Time};

const ENCRYPTED: u32 = 0x800;
const INDEXED: u32 = 0x1000;
const HUGE: u32 = 0x4_0000;
const EXTENTS: u32 = 0x8_0000;
const INLINE: u32 = 0x1000_0000;

/// Place of the map of blocks in an inode.
pub(super) const MAP_AT: usize = 0x28;
pub(super) const MAP_BYTES: usize = 60;

/// Bytes of an inode of ext2, which the additional fields follow.
const OLD_BYTES: usize = 128;

/// An inode as it is on the device, checked.
pub(super) struct Inode {
    pub ino: u32,
    pub attr: Attr,
    flags: u32,
    /// Seed of the checksums of this inode's blocks.
    pub seed: Option<u32>,
    /// Block with extended attributes; 0 for none.
    pub attribute_block: u64,
    raw: Vec<u8>,
    /// End of the fields; extended attributes follow.
    fields_end: usize,
}

impl Inode {
    pub fn read(disk: &mut Disk, superblock: &Superblock, ino: u32) -> Result<Inode> {
        let at = superblock.inode_offset(disk, ino)?;
        let raw = disk.bytes(at, superblock.inode_bytes as usize)?;
        let b = &raw[..];
        let mut fields_end = OLD_BYTES;
        if raw.len() > OLD_BYTES {
            fields_end += usize::from(le16(b, 0x80)?);
            if fields_end > raw.len() || !fields_end.is_multiple_of(4) {
                return Err(Error::corrupt(format!("inode {ino} has wrong lengths")));
            }
        }
        let has = |end: usize| fields_end >= end;
        let generation = le32(b, 0x64)?;
        let seed = superblock
            .seed
            .map(|seed| crc(crc(seed, &ino.to_le_bytes()), &generation.to_le_bytes()));
        if let Some(seed) = seed {
            check(b, seed, has(0x84), ino)?;
        }
        let flags = le32(b, 0x20)?;
        let mode = u32::from(le16(b, 0)?);
        let kind = mode & libc::S_IFMT;
        let known = matches!(
            kind,
            libc::S_IFREG
                | libc::S_IFDIR
                | libc::S_IFLNK
                | libc::S_IFCHR
                | libc::S_IFBLK
                | libc::S_IFIFO
                | libc::S_IFSOCK
        );
        let links = u32::from(le16(b, 0x1a)?);
        if !known || links == 0 {
            return Err(Error::corrupt(format!("inode {ino} is not that of a file")));
        }
        let wide = kind == libc::S_IFREG || superblock.has_large_directories();
        let size = join(if wide { le32(b, 0x6c)? } else { 0 }, le32(b, 0x4)?);
        if size > superblock.block_bytes << 32 {
            return Err(Error::corrupt(format!("inode {ino} is too long")));
        }
        let mut blocks = u64::from(le32(b, 0x1c)?);
        if superblock.has_huge_files() {
            blocks |= u64::from(le16(b, 0x74)?) << 32;
            if flags & HUGE != 0 {
                blocks = blocks.saturating_mul(superblock.block_bytes / 512);
            }
        }
        if flags & INLINE != 0 && kind == libc::S_IFREG {
            // As the kernel reports it, so that programs do not take the file for a hole.
            blocks = blocks.saturating_add(size.div_ceil(512));
        }
        let time = |at: usize, extra: usize| -> Result<Time> {
            let extra = if has(extra + 4) { le32(b, extra)? } else { 0 };
            Ok(time(le32(b, at)?, extra))
        };
        let created = if has(0x94) {
            Some(time(0x90, 0x94)?)
        } else {
            None
        };
        let attr = Attr {
            ino: u64::from(ino),
            mode,
            links,
            uid: u32::from(le16(b, 0x2)?) | u32::from(le16(b, 0x78)?) << 16,
            gid: u32::from(le16(b, 0x18)?) | u32::from(le16(b, 0x7a)?) << 16,
            device: match kind {
                libc::S_IFCHR | libc::S_IFBLK => device(le32(b, MAP_AT)?, le32(b, MAP_AT + 4)?),
                _ => (0, 0),
            },
            size,
            blocks,
            accessed: time(0x8, 0x8c)?,
            modified: time(0x10, 0x88)?,
            changed: time(0xc, 0x84)?,
            created,
        };
        let attribute_block = u64::from(le32(b, 0x68)?) | u64::from(le16(b, 0x76)?) << 32;
        Ok(Inode {
            ino,
            attr,
            flags,
            seed,
            attribute_block,
            fields_end,
            raw,
        })
    }

    /// Returns the map of blocks, or the content of an inode that has it inline.
    pub fn map(&self) -> Result<&[u8]> {
        part(&self.raw, MAP_AT, MAP_BYTES)
    }

    /// Returns the space for extended attributes in the inode.
    pub fn attributes(&self) -> &[u8] {
        self.raw.get(self.fields_end..).unwrap_or_default()
    }

    pub fn has_extents(&self) -> bool {
        self.flags & EXTENTS != 0
    }

    pub fn is_inline(&self) -> bool {
        self.flags & INLINE != 0
    }

    /// Reports whether the directory has an index, whose blocks look like empty ones.
    pub fn is_indexed(&self) -> bool {
        self.flags & INDEXED != 0
    }

    /// Fails if the content is encrypted by the file system.
    pub fn check_readable(&self) -> Result<()> {
        match self.flags & ENCRYPTED {
            0 => Ok(()),
            _ => Err(Kind::Encrypted.into()),
        }
    }

    /// Creates the error for damage of this inode.
    pub fn corrupt(&self, what: &str) -> Error {
        Error::corrupt(format!("inode {}: {what}", self.ino))
    }
}

/// Verifies the checksum of an inode, both of whose halves count as zeros.
fn check(bytes: &[u8], seed: u32, has_high: bool, ino: u32) -> Result<()> {
    let mut found = crc(seed, part(bytes, 0, 0x7c)?);
    found = crc(found, &[0; 2]);
    found = crc(found, part(bytes, 0x7e, 2)?);
    let mut wanted = u32::from(le16(bytes, 0x7c)?);
    if bytes.len() > OLD_BYTES {
        found = crc(found, part(bytes, 0x80, 2)?);
        let rest = if has_high {
            found = crc(found, &[0; 2]);
            wanted |= u32::from(le16(bytes, 0x82)?) << 16;
            0x84
        } else {
            0x82
        };
        found = crc(found, bytes.get(rest..).unwrap_or_default());
    }
    if !has_high {
        found &= 0xffff;
    }
    if found == wanted {
        Ok(())
    } else {
        Err(Error::corrupt(format!(
            "the checksum of inode {ino} is wrong"
        )))
    }
}

/// Decodes a time: the extra field has two more bits of the seconds, and the nanoseconds.
fn time(seconds: u32, extra: u32) -> Time {
    let nanos = extra >> 2;
    Time {
        seconds: i64::from(seconds.cast_signed()) + (i64::from(extra & 3) << 32),
        nanos: if nanos < 1_000_000_000 { nanos } else { 0 },
    }
}

/// Decodes the number of a device: the older encoding, or the newer one if that is 0.
fn device(old: u32, new: u32) -> (u32, u32) {
    match old {
        0 => (new >> 8 & 0xfff, new & 0xff | new >> 12 & 0xf_ff00),
        old => (old >> 8 & 0xff, old & 0xff),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_and_after_2038_are_decoded() {
        assert_eq!(time(0xffff_ffff, 0).seconds, -1);
        assert_eq!(time(0x8000_0000, 1).seconds, 1 << 31);
        assert_eq!(time(0, 1 | 999_999_999 << 2).nanos, 999_999_999);
    }

    #[test]
    fn both_encodings_of_devices_are_decoded() {
        assert_eq!(device(0x0801, 0), (8, 1));
        assert_eq!(device(0, 0x1230_0fab), (0xf, 0x123ab));
    }
}
