//! Records: the changes that lead from one snapshot to the next.

use crate::fields::In;
use crate::{Error, Result};

/// Most bytes of content in one record.
pub const DATA_BYTES_MAX: usize = 256 << 10;
/// Longest payload of a record: content with its fields.
const PAYLOAD_MAX: usize = DATA_BYTES_MAX + 64;

/// Point in time: seconds since 1970, and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stamp {
    /// Seconds since 1970; negative before.
    pub seconds: i64,
    /// Nanoseconds within the second.
    pub nanos: u32,
}

/// Attributes of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes {
    /// The lower twelve bits of `st_mode`.
    pub permissions: u32,
    /// Owner's user id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Flags, as those of chattr(1).
    pub flags: u32,
    /// Time of the last read.
    pub accessed: Stamp,
    /// Time of the last change of the content.
    pub modified: Stamp,
    /// Time of the last change of anything.
    pub changed: Stamp,
    /// Time of creation.
    pub created: Stamp,
}

/// Position in a stream: everything before it has been sent. Positions have no meaning for a
/// receiver, except that of the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Part of the stream.
    pub phase: u8,
    /// Inode in it.
    pub object: u64,
    /// Item of the inode.
    pub step: u64,
}

impl Position {
    /// Start of a stream.
    pub const START: Position = Position {
        phase: 0,
        object: 0,
        step: 0,
    };
    /// End of a stream.
    pub const END: Position = Position {
        phase: u8::MAX,
        object: 0,
        step: 0,
    };

    /// Reports whether this is the end.
    pub fn is_end(&self) -> bool {
        *self == Position::END
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.phase);
        out.extend(self.object.to_le_bytes());
        out.extend(self.step.to_le_bytes());
    }

    pub(crate) fn decode(fields: &mut In<'_>) -> Result<Position> {
        Ok(Position {
            phase: fields.u8()?,
            object: fields.u64()?,
            step: fields.u64()?,
        })
    }
}

/// Change of the receiving fileset. Inodes have the numbers that they have at the sender. A record
/// sets a state and can be applied twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record<'a> {
    /// Creates an inode without a name, or gives an existing one this size, and clears its flags.
    Inode {
        /// Inode number.
        ino: u64,
        /// Type bits of `st_mode`.
        kind: u32,
        /// Device number of a device node.
        rdev: u32,
        /// Size of a file in bytes.
        size: u64,
        /// Target of a symbolic link.
        target: &'a [u8],
    },
    /// Sets the attributes of an inode.
    Attributes {
        /// Inode number.
        ino: u64,
        /// The attributes.
        set: Attributes,
    },
    /// Removes all extended attributes of an inode.
    ClearXattrs {
        /// Inode number.
        ino: u64,
    },
    /// Sets an extended attribute; access control lists are such.
    Xattr {
        /// Inode number.
        ino: u64,
        /// Name with its prefix.
        name: &'a [u8],
        /// Content of the attribute, of any form.
        value: &'a [u8],
    },
    /// Sets bytes of a file.
    Data {
        /// Inode number.
        ino: u64,
        /// Offset in bytes.
        offset: u64,
        /// Content from there on.
        bytes: &'a [u8],
    },
    /// Makes a range of a file a hole.
    Hole {
        /// Inode number.
        ino: u64,
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// Makes a range of a file allocated space that reads as zeros.
    Unwritten {
        /// Inode number.
        ino: u64,
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// Removes a name from a directory, if it exists.
    Unlink {
        /// Inode number of the directory.
        dir: u64,
        /// Entry to remove.
        name: &'a [u8],
    },
    /// Adds a name to a directory.
    Link {
        /// Inode number of the directory.
        dir: u64,
        /// Inode that gets the name.
        ino: u64,
        /// Entry to add.
        name: &'a [u8],
    },
    /// The position after the segment; its last record.
    Position(Position),
}

const INODE: u8 = 1;
const ATTRIBUTES: u8 = 2;
const CLEAR_XATTRS: u8 = 3;
const XATTR: u8 = 4;
const DATA: u8 = 5;
const HOLE: u8 = 6;
const UNWRITTEN: u8 = 7;
const UNLINK: u8 = 8;
const LINK: u8 = 9;
const POSITION: u8 = 10;

impl<'a> Record<'a> {
    /// Appends the encoded record.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend([0; 4]);
        let kind = self.payload(out);
        let len = out.len() - start - 4;
        debug_assert!(len <= PAYLOAD_MAX);
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let head = u32::from(kind) | len << 8;
        let place = out.get_mut(start..start + 4);
        place
            .into_iter()
            .for_each(|place| place.copy_from_slice(&head.to_le_bytes()));
    }

    fn payload(&self, out: &mut Vec<u8>) -> u8 {
        let number = |out: &mut Vec<u8>, number: u64| out.extend(number.to_le_bytes());
        let word = |out: &mut Vec<u8>, number: u32| out.extend(number.to_le_bytes());
        match *self {
            Record::Inode {
                ino,
                kind,
                rdev,
                size,
                target,
            } => {
                number(out, ino);
                word(out, kind);
                word(out, rdev);
                number(out, size);
                out.extend(target);
                INODE
            }
            Record::Attributes { ino, set } => {
                number(out, ino);
                [set.permissions, set.uid, set.gid, set.flags]
                    .into_iter()
                    .for_each(|field| word(out, field));
                for time in [set.accessed, set.modified, set.changed, set.created] {
                    out.extend(time.seconds.to_le_bytes());
                    word(out, time.nanos);
                }
                ATTRIBUTES
            }
            Record::ClearXattrs { ino } => {
                number(out, ino);
                CLEAR_XATTRS
            }
            Record::Xattr { ino, name, value } => {
                number(out, ino);
                out.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
                out.extend(name);
                out.extend(value);
                XATTR
            }
            Record::Data { ino, offset, bytes } => {
                number(out, ino);
                number(out, offset);
                out.extend(bytes);
                DATA
            }
            Record::Hole {
                ino,
                offset,
                length,
            }
            | Record::Unwritten {
                ino,
                offset,
                length,
            } => {
                number(out, ino);
                number(out, offset);
                number(out, length);
                match self {
                    Record::Hole { .. } => HOLE,
                    _ => UNWRITTEN,
                }
            }
            Record::Unlink { dir, name } => {
                number(out, dir);
                out.extend(name);
                UNLINK
            }
            Record::Link { dir, ino, name } => {
                number(out, dir);
                number(out, ino);
                out.extend(name);
                LINK
            }
            Record::Position(position) => {
                position.encode(out);
                POSITION
            }
        }
    }

    /// Decodes the record at the start of `bytes`, and returns it and the bytes after it.
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<(Record<'a>, &'a [u8])> {
        let mut fields = In(bytes);
        let head = fields.u32()?;
        let [kind, ..] = head.to_le_bytes();
        let len = usize::try_from(head >> 8).unwrap_or(usize::MAX);
        if len > PAYLOAD_MAX {
            return Err(Error::Damaged("a record is too long"));
        }
        let payload = fields.bytes(len)?;
        Ok((Record::of_payload(kind, payload)?, fields.rest()))
    }

    fn of_payload(kind: u8, payload: &'a [u8]) -> Result<Record<'a>> {
        let mut fields = In(payload);
        let record = match kind {
            INODE => Record::Inode {
                ino: fields.u64()?,
                kind: fields.u32()?,
                rdev: fields.u32()?,
                size: fields.u64()?,
                target: fields.rest(),
            },
            ATTRIBUTES => {
                let ino = fields.u64()?;
                let [permissions, uid, gid, flags] =
                    [fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?];
                let mut time = || -> Result<Stamp> {
                    let (seconds, nanos) = (fields.i64()?, fields.u32()?);
                    if nanos >= 1_000_000_000 {
                        return Err(Error::Damaged("invalid time"));
                    }
                    Ok(Stamp { seconds, nanos })
                };
                let [accessed, modified, changed, created] = [time()?, time()?, time()?, time()?];
                let set = Attributes {
                    permissions,
                    uid,
                    gid,
                    flags,
                    accessed,
                    modified,
                    changed,
                    created,
                };
                Record::Attributes { ino, set }
            }
            CLEAR_XATTRS => Record::ClearXattrs { ino: fields.u64()? },
            XATTR => {
                let (ino, len) = (fields.u64()?, fields.u8()?);
                Record::Xattr {
                    ino,
                    name: fields.bytes(len.into())?,
                    value: fields.rest(),
                }
            }
            DATA => Record::Data {
                ino: fields.u64()?,
                offset: fields.u64()?,
                bytes: fields.rest(),
            },
            HOLE | UNWRITTEN => {
                let [ino, offset, length] = [fields.u64()?, fields.u64()?, fields.u64()?];
                if kind == HOLE {
                    Record::Hole {
                        ino,
                        offset,
                        length,
                    }
                } else {
                    Record::Unwritten {
                        ino,
                        offset,
                        length,
                    }
                }
            }
            UNLINK => Record::Unlink {
                dir: fields.u64()?,
                name: fields.rest(),
            },
            LINK => Record::Link {
                dir: fields.u64()?,
                ino: fields.u64()?,
                name: fields.rest(),
            },
            POSITION => Record::Position(Position::decode(&mut fields)?),
            other => return Err(Error::UnknownRecord(other)),
        };
        fields.end()?;
        match record {
            Record::Data { bytes, .. } if bytes.len() > DATA_BYTES_MAX => {
                Err(Error::Damaged("a record is too long"))
            }
            record => Ok(record),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block_testing::Random;

    #[test]
    fn records_read_back() {
        let time = |seconds| Stamp { seconds, nanos: 9 };
        let set = Attributes {
            permissions: 0o7755,
            uid: 1,
            gid: 2,
            flags: 0x10,
            accessed: time(-1),
            modified: time(2),
            changed: time(3),
            created: time(4),
        };
        let all = [
            Record::Inode {
                ino: 7,
                kind: 0o120_000,
                rdev: 1,
                size: 6,
                target: b"target",
            },
            Record::Attributes { ino: 7, set },
            Record::ClearXattrs { ino: 7 },
            Record::Xattr {
                ino: 7,
                name: b"user.a",
                value: b"",
            },
            Record::Data {
                ino: 7,
                offset: 4096,
                bytes: &[1; DATA_BYTES_MAX],
            },
            Record::Hole {
                ino: 7,
                offset: 1,
                length: 2,
            },
            Record::Unwritten {
                ino: 7,
                offset: 1,
                length: 2,
            },
            Record::Unlink { dir: 1, name: b"a" },
            Record::Link {
                dir: 1,
                ino: 7,
                name: b"b",
            },
            Record::Position(Position::END),
        ];
        let mut bytes = Vec::new();
        all.iter().for_each(|record| record.encode(&mut bytes));
        let mut rest = &bytes[..];
        for record in &all {
            let (read, after) = Record::decode(rest).unwrap();
            assert_eq!(read, *record);
            rest = after;
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn any_bytes_are_a_record_or_refused() {
        let mut random = Random::new(3);
        for _ in 0..20_000 {
            let len = random.below(80) as usize;
            let mut bytes: Vec<u8> = (0..len).map(|_| random.next_u64() as u8).collect();
            if let Some(first) = bytes.first_mut() {
                *first %= 12;
            }
            if bytes.len() > 4 {
                let len = bytes.len() as u32 - 4;
                bytes[1..4].copy_from_slice(&len.to_le_bytes()[..3]);
            }
            if let Ok((record, rest)) = Record::decode(&bytes) {
                let mut again = Vec::new();
                record.encode(&mut again);
                again.extend(rest);
                assert_eq!(again, bytes);
            }
        }
    }
}
