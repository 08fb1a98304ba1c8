//! Inodes.

use super::reader::{Position, Reader};
use crate::bytes::{le16, le32, le64};
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::tree::{Attr, Time};

/// Index of the attributes of an inode without any.
const NONE: u32 = u32::MAX;

/// Longest target of a symbolic link.
const TARGET_BYTES_MAX: u32 = 4096;

/// A file or directory as it is stored.
pub(super) struct Inode {
    pub attr: Attr,
    pub kind: Kind,
    /// Index of its attributes.
    pub attributes: Option<u32>,
}

pub(super) enum Kind {
    Directory {
        block: u32,
        within: u16,
        /// Bytes of its entries.
        bytes: u32,
        parent: u32,
    },
    File {
        start: u64,
        /// Index of the block with its last bytes, and their offset in it.
        fragment: Option<(u32, u32)>,
        /// Position of the lengths of its blocks.
        lengths: Position,
    },
    Link(Vec<u8>),
    Other,
}

/// Types of basic inodes by their numbers; those of extended ones are 7 more.
const TYPES: [u32; 8] = [
    0,
    libc::S_IFDIR,
    libc::S_IFREG,
    libc::S_IFLNK,
    libc::S_IFBLK,
    libc::S_IFCHR,
    libc::S_IFIFO,
    libc::S_IFSOCK,
];

/// Returns the type of the number in an inode, or in an entry of a directory.
pub(super) fn type_of(number: u16) -> Option<u32> {
    let basic = if number > 7 { number - 7 } else { number };
    let kind = TYPES.get(usize::from(basic)).copied()?;
    (kind != 0).then_some(kind)
}

impl Inode {
    pub fn read(disk: &mut Disk, reader: &Reader, reference: u64) -> Result<Inode> {
        let at = &mut reader.inode_at(reference)?;
        let head = reader.take(disk, at, 16)?;
        let number = le16(&head, 0)?;
        let kind = type_of(number).ok_or_else(|| Error::corrupt("the type of an inode"))?;
        let extended = number > 7;
        let time = Time {
            seconds: i64::from(le32(&head, 8)?),
            nanos: 0,
        };
        let mut attr = Attr {
            ino: u64::from(le32(&head, 12)?),
            mode: kind | u32::from(le16(&head, 2)?) & 0o7777,
            links: 1,
            uid: reader.id(disk, le16(&head, 4)?)?,
            gid: reader.id(disk, le16(&head, 6)?)?,
            accessed: time,
            modified: time,
            changed: time,
            ..Attr::default()
        };
        let mut attributes = NONE;
        let kind = match (kind, extended) {
            (libc::S_IFDIR, false) => {
                let b = reader.take(disk, at, 16)?;
                attr.links = le32(&b, 4)?;
                attr.size = u64::from(le16(&b, 8)?);
                Kind::Directory {
                    block: le32(&b, 0)?,
                    within: le16(&b, 10)?,
                    bytes: u32::from(le16(&b, 8)?).saturating_sub(3),
                    parent: le32(&b, 12)?,
                }
            }
            (libc::S_IFDIR, true) => {
                let b = reader.take(disk, at, 24)?;
                attr.links = le32(&b, 0)?;
                attr.size = u64::from(le32(&b, 4)?);
                attributes = le32(&b, 20)?;
                Kind::Directory {
                    block: le32(&b, 8)?,
                    within: le16(&b, 18)?,
                    bytes: le32(&b, 4)?.saturating_sub(3),
                    parent: le32(&b, 12)?,
                }
            }
            (libc::S_IFREG, false) => {
                let b = reader.take(disk, at, 16)?;
                attr.size = u64::from(le32(&b, 12)?);
                file(u64::from(le32(&b, 0)?), (le32(&b, 4)?, le32(&b, 8)?), *at)
            }
            (libc::S_IFREG, true) => {
                let b = reader.take(disk, at, 40)?;
                attr.size = le64(&b, 8)?;
                attr.links = le32(&b, 24)?;
                attributes = le32(&b, 36)?;
                attr.blocks = attr.size.saturating_sub(le64(&b, 16)?).div_ceil(512);
                file(le64(&b, 0)?, (le32(&b, 28)?, le32(&b, 32)?), *at)
            }
            (libc::S_IFLNK, extended) => {
                let b = reader.take(disk, at, 8)?;
                attr.links = le32(&b, 0)?;
                let len = le32(&b, 4)?;
                if len == 0 || len > TARGET_BYTES_MAX {
                    return Err(Error::corrupt("the length of a link"));
                }
                attr.size = u64::from(len);
                let target = reader.take(disk, at, len as usize)?;
                if target.contains(&0) {
                    return Err(Error::corrupt("a link has a zero byte"));
                }
                if extended {
                    attributes = le32(&reader.take(disk, at, 4)?, 0)?;
                }
                Kind::Link(target)
            }
            (kind, extended) => {
                attr.links = le32(&reader.take(disk, at, 4)?, 0)?;
                if matches!(kind, libc::S_IFBLK | libc::S_IFCHR) {
                    let device = le32(&reader.take(disk, at, 4)?, 0)?;
                    attr.device = (device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xf_ff00);
                }
                if extended {
                    attributes = le32(&reader.take(disk, at, 4)?, 0)?;
                }
                Kind::Other
            }
        };
        if attr.is_file() && !extended {
            attr.blocks = attr.size.div_ceil(512);
        }
        let attributes = (attributes != NONE).then_some(attributes);
        if let Some(index) = attributes
            && let Ok(set) = reader.attributes(disk, index)
        {
            // As the kernel counts them.
            attr.blocks = attr
                .blocks
                .saturating_add(u64::from(set.bytes).div_ceil(512));
        }
        Ok(Inode {
            attr,
            kind,
            attributes,
        })
    }
}

fn file(start: u64, (fragment, offset): (u32, u32), lengths: Position) -> Kind {
    Kind::File {
        start,
        fragment: (fragment != NONE).then_some((fragment, offset)),
        lengths,
    }
}
