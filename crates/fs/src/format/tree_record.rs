//! Records of filesets and snapshots.
//!
//! **Invariant:** an encoded record decodes to the same record.

use crate::error::Result;
use crate::format::chunk::Compression;
use crate::format::key::{PLACE_MAX, TreeId};
use crate::format::record::{In, Out, Time, is_name};

/// State of a fileset that receives a snapshot: the stream, and how much of it was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receiving {
    /// Identity of the stream.
    pub stream: [u8; 32],
    /// Identity of the snapshot at the sender.
    pub snapshot: [u8; 16],
    /// Snapshot of this fileset that the stream is relative to; 0 for a full stream.
    pub base: TreeId,
    /// Number of the next inode before the stream.
    pub next_ino: u64,
    /// Number of segments that were applied.
    pub segments: u64,
    /// Digest of the stream up to there.
    pub digest: [u8; 32],
    /// Position in the stream, which only the sender understands: phase, inode, item.
    pub position: (u8, u64, u64),
}

impl Receiving {
    pub(crate) fn encode(&self, out: &mut Out) {
        out.0.extend(self.stream);
        out.0.extend(self.snapshot);
        out.u32(self.base);
        out.u64(self.next_ino);
        out.u64(self.segments);
        out.0.extend(self.digest);
        out.0.push(self.position.0);
        out.u64(self.position.1);
        out.u64(self.position.2);
    }

    pub(crate) fn decode(fields: &mut In<'_>) -> Result<Receiving> {
        Ok(Receiving {
            stream: fields.take()?,
            snapshot: fields.take()?,
            base: fields.u32()?,
            next_ino: fields.u64()?,
            segments: fields.u64()?,
            digest: fields.take()?,
            position: (fields.take::<1>()?[0], fields.u64()?, fields.u64()?),
        })
    }
}

/// Record of a fileset, or of a snapshot of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeRecord {
    /// Fileset that a snapshot was taken of; 0 for a fileset.
    pub origin: TreeId,
    /// Whether it is being removed and therefore hidden.
    pub removing: bool,
    /// Whether the snapshot is protected from removal.
    pub held: bool,
    /// Whether the fileset is being rolled back to this snapshot.
    pub restoring: bool,
    /// Identity of the snapshot at the sender, if this snapshot was received.
    pub received: Option<[u8; 16]>,
    /// Snapshot that the fileset is receiving.
    pub receiving: Option<Receiving>,
    /// Method by which new content of the fileset is compressed, except for files that have a flag
    /// against it; `None`: only files that have a flag for it.
    pub compression: Option<Compression>,
    /// Number of the next inode, without the bit that marks a directory.
    pub next_ino: u64,
    /// Limit for the blocks of its files; 0 for no limit.
    pub quota_blocks: u64,
    /// Limit for its inodes; 0 for no limit.
    pub quota_inodes: u64,
    /// Blocks allocated to its files.
    pub used_blocks: u64,
    /// Number of its inodes.
    pub used_inodes: u64,
    /// Time of creation.
    pub created: Time,
    /// Name in UTF-8.
    pub name: String,
}

impl TreeRecord {
    /// Creates the record of an empty fileset without limits.
    pub(crate) fn new(name: String, created: Time) -> TreeRecord {
        TreeRecord {
            origin: 0,
            removing: false,
            held: false,
            restoring: false,
            received: None,
            receiving: None,
            compression: None,
            // Number 0 is the root directory, inode 1.
            next_ino: 1,
            quota_blocks: 0,
            quota_inodes: 0,
            used_blocks: 0,
            used_inodes: 1,
            created,
            name,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Out::with(68 + self.name.len());
        self.encode_into(&mut out);
        out.0
    }

    /// Appends what [`TreeRecord::encode`] returns.
    pub(crate) fn encode_into(&self, out: &mut Out) {
        out.u32(self.origin);
        let flags = [
            self.removing,
            self.held,
            self.restoring,
            self.receiving.is_some(),
            self.received.is_some(),
            false,
            self.compression == Some(Compression::Lz4),
            self.compression == Some(Compression::Zstd),
        ];
        let bits = (0..).zip(flags).map(|(bit, flag)| u32::from(flag) << bit);
        out.u32(bits.sum());
        for number in [
            self.next_ino,
            self.quota_blocks,
            self.quota_inodes,
            self.used_blocks,
            self.used_inodes,
        ] {
            out.u64(number);
        }
        out.time(self.created);
        if let Some(receiving) = &self.receiving {
            receiving.encode(out);
        }
        out.0.extend(self.received.iter().flatten());
        out.0.extend_from_slice(self.name.as_bytes());
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<TreeRecord> {
        let mut fields = In::of(bytes, "fileset record");
        let origin = fields.u32()?;
        let flags = fields.u32()?;
        let mut record = TreeRecord {
            origin,
            removing: flags & 1 != 0,
            held: flags & 2 != 0,
            restoring: flags & 4 != 0,
            received: None,
            receiving: None,
            compression: match flags & (64 | 128) {
                64 => Some(Compression::Lz4),
                128 => Some(Compression::Zstd),
                0 => None,
                _ => return Err(fields.wrong()),
            },
            next_ino: fields.u64()?,
            quota_blocks: fields.u64()?,
            quota_inodes: fields.u64()?,
            used_blocks: fields.u64()?,
            used_inodes: fields.u64()?,
            created: fields.time()?,
            name: String::new(),
        };
        if flags & 8 != 0 {
            record.receiving = Some(Receiving::decode(&mut fields)?);
        }
        if flags & 16 != 0 {
            record.received = Some(fields.take()?);
        }
        let name = std::str::from_utf8(fields.rest()).map_err(|_| fields.wrong())?;
        let possible = 1 | 64 | 128 | if origin == 0 { 8 } else { 2 | 4 | 16 };
        let before = record.receiving.map_or(0, |receiving| receiving.next_ino);
        let next_ino = record.next_ino.max(before);
        if flags & !possible != 0 || next_ino > PLACE_MAX >> 1 || !is_tree_name(name) {
            return Err(fields.wrong());
        }
        record.name = name.to_owned();
        Ok(record)
    }
}

/// Checks whether a fileset may have this name: a valid file name without control characters.
pub fn is_tree_name(name: &str) -> bool {
    is_name(name.as_bytes()) && !name.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;
    use block_testing::Random;

    fn receiving() -> Receiving {
        Receiving {
            stream: [1; 32],
            snapshot: [2; 16],
            base: 3,
            next_ino: 9,
            segments: 4,
            digest: [5; 32],
            position: (6, 7, 8),
        }
    }

    #[test]
    fn a_record_reads_back() {
        let tree = TreeRecord {
            origin: 3,
            removing: true,
            held: true,
            restoring: false,
            received: Some([5; 16]),
            receiving: None,
            compression: Some(Compression::Lz4),
            next_ino: 9,
            quota_blocks: 1,
            quota_inodes: 2,
            used_blocks: 3,
            used_inodes: 4,
            created: Time::now(),
            name: "home é".into(),
        };
        assert_eq!(TreeRecord::decode(&tree.encode()).unwrap(), tree);
        let tree = TreeRecord {
            origin: 0,
            held: false,
            received: None,
            receiving: Some(receiving()),
            compression: Some(Compression::Zstd),
            ..tree
        };
        assert_eq!(TreeRecord::decode(&tree.encode()).unwrap(), tree);
    }

    #[test]
    fn random_bytes_are_refused_or_read_and_never_a_panic() {
        let mut random = Random::new(3);
        let record = TreeRecord {
            receiving: Some(receiving()),
            ..TreeRecord::new("main".into(), Time::default())
        };
        for _ in 0..20_000 {
            let mut bytes = record.encode();
            bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
            for _ in 0..random.below(20) {
                if !bytes.is_empty() {
                    let at = random.below(bytes.len() as u64) as usize;
                    bytes[at] = random.next_u64() as u8;
                }
            }
            if let Ok(record) = TreeRecord::decode(&bytes) {
                assert_eq!(record.encode(), bytes);
            }
        }
    }

    #[test]
    fn a_name_with_a_line_break_is_refused() {
        assert!(!is_tree_name("a\nb"));
    }
}
