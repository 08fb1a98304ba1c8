//! The header of a stream.

use crate::fields::In;
use crate::record::{Position, Stamp};
use crate::segment::Digest;
use crate::{Error, Result};
use sha2::{Digest as _, Sha256};

/// Version of the format. Smaller changes use the feature flags.
pub const VERSION: u16 = 1;
/// Feature: each segment has an authentication code of a key that sender and receiver share.
pub const FEATURE_CODES: u64 = 1;
/// Features that this code knows.
const KNOWN: u64 = FEATURE_CODES;
/// Longest header in bytes.
pub const HEADER_BYTES_MAX: usize = 1024;

const MAGIC: [u8; 8] = *b"EVFSsend";
/// Bytes before the names.
const FIXED_BYTES: usize = 192;
/// Range of the fields that identify the stream, besides those before the length.
const IDENTITY: std::ops::Range<usize> = 16..120;
/// Longest name in bytes.
const NAME_MAX: usize = 255;

/// Identity of a fileset or a snapshot: the same on every machine that has received it. Zero stands
/// for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Id(pub [u8; 16]);

impl Id {
    /// Derives the identity of a tree of a file system.
    pub fn of_tree(file_system: &[u8; 16], tree: u32, created: Stamp) -> Id {
        let mut hash = Sha256::new();
        hash.update(b"EVFS tree identity 1");
        hash.update(file_system);
        hash.update(tree.to_le_bytes());
        hash.update(created.seconds.to_le_bytes());
        hash.update(created.nanos.to_le_bytes());
        let mut id = [0; 16];
        for (to, from) in id.iter_mut().zip(hash.finalize()) {
            *to = from;
        }
        Id(id)
    }

    /// Reports whether this stands for none.
    pub fn is_none(&self) -> bool {
        self.0 == [0; 16]
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Point at which an interrupted stream continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resume {
    /// Number of segments before.
    pub segments: u64,
    /// Position after them.
    pub position: Position,
    /// Digest of the last one.
    pub digest: Digest,
}

/// Header of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Header {
    /// Features that a receiver must know.
    pub features: u64,
    /// Features that a receiver may ignore. They count for the identity of the stream.
    pub optional: u64,
    /// Fileset of the snapshot.
    pub fileset: Id,
    /// Identity of the state that the stream leads to.
    pub snapshot: Id,
    /// Snapshot that an incremental stream is relative to; none for a full stream.
    pub base: Id,
    /// Time at which the snapshot was taken.
    pub created: Stamp,
    /// Number of the next inode of the fileset at that time.
    pub next_ino: u64,
    /// Bytes of file data in the snapshot.
    pub data_bytes: u64,
    /// Number of inodes in the snapshot.
    pub inodes: u64,
    /// Start of the stream, if that is not the first segment.
    pub resume: Option<Resume>,
    /// Name of the fileset at the sender.
    pub fileset_name: String,
    /// Name of the snapshot at the sender.
    pub snapshot_name: String,
}

impl Header {
    /// Encodes the header. Names of more than 255 bytes are left out.
    pub fn encode(&self) -> Vec<u8> {
        let name = |name: &'_ str| -> Vec<u8> {
            let fits = name.len() <= NAME_MAX;
            if fits {
                name.as_bytes().to_vec()
            } else {
                Vec::new()
            }
        };
        let names = [name(&self.fileset_name), name(&self.snapshot_name)];
        let len = FIXED_BYTES + names.iter().map(Vec::len).sum::<usize>() + 4;
        let mut out = Vec::with_capacity(len);
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend([0; 2]);
        out.extend(u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
        out.extend(self.features.to_le_bytes());
        out.extend(self.optional.to_le_bytes());
        for id in [self.fileset, self.snapshot, self.base] {
            out.extend(id.0);
        }
        out.extend(self.created.seconds.to_le_bytes());
        out.extend(self.created.nanos.to_le_bytes());
        out.extend([0; 4]);
        for number in [self.next_ino, self.data_bytes, self.inodes] {
            out.extend(number.to_le_bytes());
        }
        let resume = self.resume.unwrap_or(Resume {
            segments: 0,
            position: Position::START,
            digest: Digest::default(),
        });
        out.extend(resume.segments.to_le_bytes());
        resume.position.encode(&mut out);
        out.extend([0; 7]);
        out.extend(resume.digest.0);
        out.resize(FIXED_BYTES - 4, 0);
        for name in &names {
            out.extend(u16::try_from(name.len()).unwrap_or(0).to_le_bytes());
        }
        names.iter().for_each(|name| out.extend(name));
        let sum = crc32c::crc32c(&out);
        out.extend(sum.to_le_bytes());
        out
    }

    /// Determines the length of the header that begins with these bytes; `None` if there are too
    /// few.
    ///
    /// # Errors
    /// The bytes are no header of this version.
    pub(crate) fn length(bytes: &[u8]) -> Result<Option<usize>> {
        let known = bytes.len().min(MAGIC.len());
        if bytes.get(..known) != MAGIC.get(..known) {
            return Err(Error::NotAStream);
        }
        let mut fields = In(bytes);
        let Ok(start) = fields.bytes(16) else {
            return Ok(None);
        };
        let mut fields = In(start);
        fields.bytes(8)?;
        let version = fields.u16()?;
        if version != VERSION {
            return Err(Error::Version(version));
        }
        fields.u16()?;
        let len = usize::try_from(fields.u32()?).unwrap_or(usize::MAX);
        if (FIXED_BYTES + 4..=HEADER_BYTES_MAX).contains(&len) {
            Ok(Some(len))
        } else {
            Err(Error::Damaged("invalid length of the header"))
        }
    }

    /// Decodes the output of [`Header::encode`].
    ///
    /// # Errors
    /// The bytes are no header, or one with unknown features.
    pub fn decode(bytes: &[u8]) -> Result<Header> {
        let invalid = Error::Damaged("invalid header");
        if Header::length(bytes)? != Some(bytes.len()) {
            return Err(invalid);
        }
        let (body, sum) = bytes.split_last_chunk::<4>().ok_or(invalid.clone())?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*sum) {
            return Err(Error::Damaged("wrong checksum of the header"));
        }
        let mut fields = In(body);
        fields.bytes(16)?;
        let features = fields.u64()?;
        if features & !KNOWN != 0 {
            return Err(Error::Features(features & !KNOWN));
        }
        let optional = fields.u64()?;
        let [fileset, snapshot, base] = [
            Id(fields.array()?),
            Id(fields.array()?),
            Id(fields.array()?),
        ];
        let created = Stamp {
            seconds: fields.i64()?,
            nanos: fields.u32()?,
        };
        fields.u32()?;
        let [next_ino, data_bytes, inodes] = [fields.u64()?, fields.u64()?, fields.u64()?];
        let segments = fields.u64()?;
        let position = Position::decode(&mut fields)?;
        fields.bytes(7)?;
        let digest = Digest(fields.array()?);
        fields.bytes(4)?;
        let (first, second) = (fields.u16()?, fields.u16()?);
        let mut name = |len: u16| -> Result<String> {
            let name = String::from_utf8(fields.bytes(len.into())?.to_vec());
            name.map_err(|_| Error::Damaged("a name is not UTF-8"))
        };
        let (fileset_name, snapshot_name) = (name(first)?, name(second)?);
        fields.end()?;
        if snapshot.is_none() || snapshot == base || position.is_end() {
            return Err(invalid);
        }
        let resume = Resume {
            segments,
            position,
            digest,
        };
        Ok(Header {
            features,
            optional,
            fileset,
            snapshot,
            base,
            created,
            next_ino,
            data_bytes,
            inodes,
            resume: (segments > 0).then_some(resume),
            fileset_name,
            snapshot_name,
        })
    }

    /// Computes the identity of the stream: the same for all parts of an interrupted stream, and the
    /// start of the chain of digests. Names and the point of resumption do not count.
    pub fn stream_id(&self) -> Digest {
        let bytes = self.encode();
        let mut hash = Sha256::new();
        hash.update(bytes.get(..12).unwrap_or_default());
        hash.update(bytes.get(IDENTITY).unwrap_or_default());
        Digest(hash.finalize().into())
    }

    /// Reports whether the segments have authentication codes.
    pub fn has_codes(&self) -> bool {
        self.features & FEATURE_CODES != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Header {
        Header {
            features: FEATURE_CODES,
            optional: 1 << 63 | 2,
            fileset: Id([1; 16]),
            snapshot: Id([2; 16]),
            base: Id([3; 16]),
            created: Stamp {
                seconds: -5,
                nanos: 7,
            },
            next_ino: 11,
            data_bytes: 12,
            inodes: 13,
            resume: Some(Resume {
                segments: 4,
                position: Position {
                    phase: 1,
                    object: 9,
                    step: 8,
                },
                digest: Digest([5; 32]),
            }),
            fileset_name: "main".into(),
            snapshot_name: "monday".into(),
        }
    }

    #[test]
    fn a_header_reads_back_and_a_changed_bit_is_noticed() {
        let header = example();
        let bytes = header.encode();
        assert_eq!(Header::decode(&bytes).unwrap(), header);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&damaged).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(Header::decode(&bytes[..len]).is_err());
        }
    }

    #[test]
    fn the_identity_of_a_stream_is_that_of_its_parts() {
        let one = example();
        let part = Header {
            resume: None,
            snapshot_name: "other".into(),
            ..one.clone()
        };
        assert_eq!(one.stream_id(), part.stream_id());
        let others = [
            Header {
                base: Id([9; 16]),
                ..one.clone()
            },
            Header {
                next_ino: 1,
                ..one.clone()
            },
            Header {
                features: 0,
                ..one.clone()
            },
            Header {
                optional: 2,
                ..one.clone()
            },
        ];
        for other in others {
            assert_ne!(one.stream_id(), other.stream_id());
        }
    }
}
