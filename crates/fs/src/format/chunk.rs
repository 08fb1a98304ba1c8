//! Records of compressed chunks of files.
//!
//! A chunk is a range of a file of at most [`CHUNK_BLOCKS`] blocks that begins at a multiple of
//! them. Its bytes are compressed as a whole, in one run of fewer blocks of the device, which are
//! only ever replaced as a whole. A record states which blocks of the chunk are still read from
//! there: the others have been written again, or are holes.
//!
//! **Invariant:** an encoded record decodes to the same record; any other bytes are refused.

use crate::error::Result;
use crate::format::key::Item;
use crate::format::record::{BLOCK_BYTES, DEVICE_BLOCKS_MAX, Extent, FILE_SIZE_MAX, In, Out, Run};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// Most blocks of a file in a chunk: 64 KiB.
pub(crate) const CHUNK_BLOCKS: u64 = 16;

/// Method of compression of file data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Fast, and compresses less.
    Lz4,
    /// Slower, and compresses more.
    Zstd,
}

impl Compression {
    /// All methods.
    pub const ALL: [Compression; 2] = [Compression::Lz4, Compression::Zstd];

    /// Returns the number on the device.
    fn number(self) -> u8 {
        match self {
            Compression::Lz4 => 1,
            Compression::Zstd => 2,
        }
    }

    /// Returns the name that users type.
    pub fn name(self) -> &'static str {
        match self {
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Compression {
    type Err = ();

    fn from_str(name: &str) -> std::result::Result<Compression, ()> {
        let mut all = Compression::ALL.into_iter();
        all.find(|method| method.name() == name).ok_or(())
    }
}

/// Compressed chunk of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// First block on the device.
    pub start: u64,
    /// Number of blocks on the device.
    pub blocks: u8,
    /// Number of blocks of the file that were compressed.
    pub content: u8,
    pub method: Compression,
    /// Length of the compressed bytes; zeros follow in the last block.
    pub bytes: u16,
    /// Blocks of the chunk that are read from here: bit n for its block n.
    pub valid: u16,
    /// A block of the chunk of which only this number of bytes are valid; the rest reads as zeros.
    pub tail: Option<(u8, u16)>,
}

impl Chunk {
    /// Returns the blocks on the device.
    pub fn run(&self) -> Run {
        Run {
            start: self.start,
            blocks: self.blocks.into(),
        }
    }

    /// Computes the length of the content in bytes.
    pub fn content_bytes(&self) -> usize {
        usize::from(self.content) * BLOCK_BYTES as usize
    }

    /// Collects the runs of blocks of the file, within a range, that are read from the chunk that
    /// begins at block `first`.
    pub fn valid_within(&self, first: u64, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        let blocks = (0..CHUNK_BLOCKS).filter(|n| self.valid >> n & 1 == 1);
        for block in blocks.map(|n| first + n).filter(|b| range.contains(b)) {
            match runs.last_mut() {
                Some(last) if last.end == block => last.end += 1,
                _ => runs.push(block..block + 1),
            }
        }
        runs
    }

    /// Returns the chunk without these blocks; `None` if no block is left.
    pub fn without(&self, blocks: u16) -> Option<Chunk> {
        let valid = self.valid & !blocks;
        let tail = self.tail.filter(|(block, _)| valid >> block & 1 == 1);
        (valid != 0).then_some(Chunk {
            valid,
            tail,
            ..*self
        })
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Out::with(20);
        let (tail_block, tail) = self.tail.unwrap_or_default();
        out.u64(self.start);
        out.0
            .extend([self.blocks, self.content, self.method.number(), tail_block]);
        out.u16(self.bytes);
        out.u16(self.valid);
        out.u16(tail);
        out.u16(0);
        out.0
    }

    pub fn decode(bytes: &[u8]) -> Result<Chunk> {
        let mut fields = In::of(bytes, "chunk record");
        let start = fields.u64()?;
        let [blocks, content, method, tail_block] = fields.take()?;
        let (bytes, valid) = (fields.u16()?, fields.u16()?);
        let (tail, zero) = (fields.u16()?, fields.u16()?);
        fields.end()?;
        let mut methods = Compression::ALL.into_iter();
        let method = methods.find(|known| known.number() == method);
        let fits = start < DEVICE_BLOCKS_MAX
            && blocks > 0
            && blocks < content
            && u64::from(content) <= CHUNK_BLOCKS
            && u64::from(bytes).div_ceil(BLOCK_BYTES) == u64::from(blocks)
            && valid != 0
            && u32::from(valid) >> content == 0
            && u64::from(tail) < BLOCK_BYTES
            && (tail != 0 || tail_block == 0)
            && (tail == 0 || u32::from(valid).checked_shr(tail_block.into()).unwrap_or(0) & 1 == 1)
            && zero == 0;
        match method {
            Some(method) if fits => Ok(Chunk {
                start,
                blocks,
                content,
                method,
                bytes,
                valid,
                tail: (tail != 0).then_some((tail_block, tail)),
            }),
            _ => Err(fields.wrong()),
        }
    }
}

/// Computes the first block of the chunk that contains a block.
pub(crate) fn chunk_of(block: u64) -> u64 {
    block - block % CHUNK_BLOCKS
}

/// Computes the bits of the blocks of a range in the chunk that begins at block `first`.
pub(crate) fn bits_of(first: u64, range: &Range<u64>) -> u16 {
    let all = first..first + CHUNK_BLOCKS;
    let bits = all.map(|block| u16::from(range.contains(&block)));
    bits.rev().fold(0, |bits, bit| bits << 1 | bit)
}

/// Reports whether a chunk can be at this place of a file.
pub(crate) fn is_chunk_place(place: u64) -> bool {
    place.is_multiple_of(CHUNK_BLOCKS) && place + CHUNK_BLOCKS <= FILE_SIZE_MAX / BLOCK_BYTES
}

/// Blocks of the device that an item refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    pub run: Run,
    /// Whether they were never written.
    pub unwritten: bool,
    /// Blocks of the file, from the place of the item on, in which it may have data.
    pub span: u64,
}

/// Returns the blocks of the device that the value of an item refers to; `None` for one of a kind
/// that refers to none.
pub(crate) fn held_by(kind: Option<Item>, value: &[u8]) -> Result<Option<Held>> {
    match kind {
        Some(Item::Extent) => {
            let extent = Extent::decode(value)?;
            Ok(Some(Held {
                run: extent.run(),
                unwritten: extent.unwritten,
                span: extent.blocks.into(),
            }))
        }
        Some(Item::Chunk) => Ok(Some(Held {
            run: Chunk::decode(value)?.run(),
            unwritten: false,
            span: CHUNK_BLOCKS,
        })),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block_testing::Random;

    fn chunk() -> Chunk {
        Chunk {
            start: 700,
            blocks: 3,
            content: 11,
            method: Compression::Zstd,
            bytes: 9000,
            valid: 0b101_1111_0011,
            tail: Some((10, 77)),
        }
    }

    #[test]
    fn a_record_reads_back_and_other_bytes_are_refused() {
        let plain = Chunk {
            tail: None,
            method: Compression::Lz4,
            ..chunk()
        };
        for chunk in [chunk(), plain] {
            assert_eq!(Chunk::decode(&chunk.encode()).unwrap(), chunk);
        }
        let mut random = Random::new(5);
        let mut refused = 0;
        for _ in 0..50_000 {
            let mut bytes = chunk().encode();
            bytes.truncate(random.below(30) as usize);
            for _ in 0..random.below(4) {
                if !bytes.is_empty() {
                    let at = random.below(bytes.len() as u64) as usize;
                    bytes[at] = random.next_u64() as u8;
                }
            }
            match Chunk::decode(&bytes) {
                Ok(chunk) => assert_eq!(chunk.encode(), bytes),
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 10_000);
    }

    #[test]
    fn impossible_records_are_refused() {
        let wrong: [fn(&mut Chunk); 9] = [
            |c| c.start = DEVICE_BLOCKS_MAX,
            |c| c.blocks = 0,
            |c| c.blocks = 11,
            |c| c.content = 17,
            |c| c.bytes = 8192,
            |c| c.bytes = 12_289,
            |c| c.valid = 0,
            |c| c.valid = 1 << 11,
            |c| c.tail = Some((9, 77)),
        ];
        for change in wrong {
            let mut chunk = chunk();
            change(&mut chunk);
            assert!(Chunk::decode(&chunk.encode()).is_err(), "{chunk:?}");
        }
    }

    #[test]
    fn blocks_of_a_chunk_and_bits_agree() {
        let chunk = chunk();
        let all = chunk.valid_within(32, &(0..100));
        assert_eq!(all, [32..34, 36..41, 42..43]);
        assert_eq!(chunk.valid_within(32, &(33..38)), [33..34, 36..38]);
        let bits = all.iter().map(|run| bits_of(32, run));
        assert_eq!(bits.fold(0, |all, bits| all | bits), chunk.valid);
        assert_eq!(bits_of(32, &(0..1000)), u16::MAX);
        assert_eq!(bits_of(32, &(0..32)), 0);
        let rest = chunk.without(bits_of(32, &(42..48))).unwrap();
        assert_eq!((rest.valid, rest.tail), (0b1_1111_0011, None));
        assert_eq!(chunk.without(u16::MAX), None);
    }
}
