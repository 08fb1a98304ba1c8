//! Extended attributes: in the inode, in a block of their own, and in inodes of their own.

use super::Ext;
use super::checksum::crc;
use super::inode::Inode;
use crate::bytes::{le8, le16, le32, part};
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::tree::Place;

const MAGIC: u32 = 0xea02_0000;
/// Header of a block of attributes.
const HEADER_BYTES: usize = 32;
/// Fields of an entry, before its name.
const ENTRY_BYTES: usize = 16;
/// Longest value, in bytes; the kernel's own limit.
const VALUE_BYTES_MAX: usize = 65_536;

/// Prefixes of names by their number. A prefix without a dot at its end is the whole name.
const PREFIXES: [&[u8]; 9] = [
    b"",
    b"user.",
    b"system.posix_acl_access",
    b"system.posix_acl_default",
    b"trusted.",
    b"",
    b"security.",
    b"system.",
    b"system.richacl",
];
const ACL_ACCESS: u8 = 2;
const ACL_DEFAULT: u8 = 3;
const SYSTEM: u8 = 7;

/// Name of the attribute with the rest of an inline content.
const INLINE_REST: &[u8] = b"data";

/// An attribute, whose value is not read yet.
struct Attribute {
    prefix: u8,
    name: Vec<u8>,
    value: Value,
}

enum Value {
    Here(Vec<u8>),
    /// In another inode, with this length.
    Inode(u32, usize),
}

impl Attribute {
    fn is_inline_rest(&self) -> bool {
        self.prefix == SYSTEM && self.name == INLINE_REST
    }

    /// Returns the name as programs know it; `None` for an attribute that they do not see.
    fn full_name(&self) -> Option<Vec<u8>> {
        if self.is_inline_rest() {
            return None;
        }
        let prefix = PREFIXES
            .get(usize::from(self.prefix))
            .filter(|p| !p.is_empty())?;
        Some([prefix, &self.name[..]].concat())
    }
}

impl Ext {
    /// Lists the names of the attributes of an inode.
    pub(super) fn attribute_names(&self, disk: &mut Disk, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        let all = self.attributes(disk, inode)?;
        Ok(all.iter().filter_map(Attribute::full_name).collect())
    }

    /// Reads an attribute of an inode.
    pub(super) fn attribute(
        &self,
        disk: &mut Disk,
        inode: &Inode,
        name: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        let all = self.attributes(disk, inode)?;
        let is_it = |a: &Attribute| a.full_name().is_some_and(|full| full == name);
        let Some(found) = all.into_iter().find(is_it) else {
            return Ok(None);
        };
        let prefix = found.prefix;
        let value = self.value(disk, found.value)?;
        match prefix {
            ACL_ACCESS | ACL_DEFAULT => access_list(&value).map(Some),
            _ => Ok(Some(value)),
        }
    }

    /// Reads the rest of an inline content.
    pub(super) fn inline_rest(&self, disk: &mut Disk, inode: &Inode) -> Result<Option<Vec<u8>>> {
        let all = self.attributes(disk, inode)?;
        let found = all.into_iter().find(Attribute::is_inline_rest);
        found.map(|found| self.value(disk, found.value)).transpose()
    }

    fn attributes(&self, disk: &mut Disk, inode: &Inode) -> Result<Vec<Attribute>> {
        let mut all = Vec::new();
        let inside = inode.attributes();
        if inside.len() >= 4 && le32(inside, 0)? == MAGIC {
            let entries = part(inside, 4, inside.len() - 4)?;
            parse(entries, 0, inode, &mut all)?;
        }
        if inode.attribute_block != 0 {
            let at = self.superblock.offset(inode.attribute_block)?;
            let bytes = disk.bytes(at, self.superblock.block_bytes as usize)?;
            if le32(&bytes, 0)? != MAGIC {
                return Err(inode.corrupt("its block of attributes is damaged"));
            }
            if let Some(seed) = self.superblock.seed {
                let mut found = crc(seed, &inode.attribute_block.to_le_bytes());
                found = crc(found, part(&bytes, 0, 16)?);
                found = crc(found, &[0; 4]);
                found = crc(found, part(&bytes, 20, bytes.len() - 20)?);
                if found != le32(&bytes, 16)? {
                    return Err(inode.corrupt("the checksum of its attributes is wrong"));
                }
            }
            parse(&bytes, HEADER_BYTES, inode, &mut all)?;
        }
        Ok(all)
    }

    fn value(&self, disk: &mut Disk, value: Value) -> Result<Vec<u8>> {
        let (ino, len) = match value {
            Value::Here(value) => return Ok(value),
            Value::Inode(ino, len) => (ino, len),
        };
        let inode = Inode::read(disk, &self.superblock, ino)?;
        if inode.attr.size != len as u64 || inode.is_inline() {
            return Err(inode.corrupt("it is not the value of an attribute"));
        }
        let mut bytes = Vec::with_capacity(len);
        if len == 0 {
            return Ok(bytes);
        }
        for piece in self.pieces(disk, &inode, 0..len as u64)? {
            let part = piece.len as usize;
            match piece.place {
                Place::Device(at) => bytes.extend(disk.bytes(at, part)?),
                Place::Zeros | Place::Computed => bytes.resize(bytes.len() + part, 0),
            }
        }
        Ok(bytes)
    }
}

/// Parses entries, which begin at `at`. Offsets of values count from the start of `bytes`.
fn parse(bytes: &[u8], mut at: usize, inode: &Inode, to: &mut Vec<Attribute>) -> Result<()> {
    // Four zero bytes end the list, or the space does.
    while at + 4 <= bytes.len() && le32(bytes, at)? != 0 {
        let (name_len, prefix) = (usize::from(le8(bytes, at)?), le8(bytes, at + 1)?);
        let (offset, ino) = (usize::from(le16(bytes, at + 2)?), le32(bytes, at + 4)?);
        let len = le32(bytes, at + 8)? as usize;
        if len > VALUE_BYTES_MAX {
            return Err(inode.corrupt("the value of an attribute is too long"));
        }
        let name = part(bytes, at + ENTRY_BYTES, name_len)?.to_vec();
        if name.contains(&0) {
            return Err(inode.corrupt("the name of an attribute"));
        }
        let value = match ino {
            0 => Value::Here(part(bytes, offset, len)?.to_vec()),
            ino => Value::Inode(ino, len),
        };
        to.push(Attribute {
            prefix,
            name,
            value,
        });
        at += (ENTRY_BYTES + name_len).next_multiple_of(4);
    }
    Ok(())
}

/// Converts an access list to the form of getxattr(2): in the file system, entries without an
/// identifier are short.
fn access_list(value: &[u8]) -> Result<Vec<u8>> {
    const ON_DISK: u32 = 1;
    const OF_PROGRAMS: u32 = 2;
    const UNDEFINED: u32 = u32::MAX;
    const USER: u16 = 2;
    const GROUP: u16 = 8;
    if le32(value, 0)? != ON_DISK {
        return Err(Error::corrupt("an access list has an unknown version"));
    }
    let mut list = OF_PROGRAMS.to_le_bytes().to_vec();
    let mut at = 4;
    while at < value.len() {
        let (tag, permissions) = (le16(value, at)?, le16(value, at + 2)?);
        at += 4;
        let id = match tag {
            USER | GROUP => {
                at += 4;
                le32(value, at - 4)?
            }
            _ => UNDEFINED,
        };
        list.extend(tag.to_le_bytes());
        list.extend(permissions.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    Ok(list)
}
