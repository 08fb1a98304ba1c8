//! Checksums of file data: the record of those of 64 consecutive blocks of the device.
//!
//! **Invariant:** a block that holds file data and has a checksum is not overwritten while a record
//! refers to it, unless its checksum was durably dropped first (full device). So a checksum in use
//! never changes to another. Checksums of unused blocks have no meaning and stay until the blocks
//! are written again.

use crate::error::{Error, Result};
use crate::format::record::BLOCK_BYTES;
use crate::integrity::{IntegrityKey, TAG_BYTES, Tag};
use block::{SumBlock, SumGroup};
use std::ops::Range;
use std::sync::Arc;

/// Number of blocks of a record.
pub(crate) const SUMS_BLOCKS: u64 = 64;

/// A CRC, or a tag as a number; [`NO_SUM`] if there is none.
pub(crate) use block::Sum;

/// Place of a block without a checksum.
pub(crate) const NO_SUM: Sum = 0;

/// Makes the checksum of a block from the CRC-32C of its bytes.
pub(crate) fn sum_of_crc(crc: u32) -> Sum {
    // 0 marks a block without a checksum.
    crc.max(1).into()
}

fn sum_of_tag(tag: Tag) -> Sum {
    Sum::from_le_bytes(tag).max(1)
}

/// Function that computes the checksums of a file system, and their length in its records.
#[derive(Debug, Clone, Default)]
pub(crate) enum Summer {
    /// CRC-32C.
    #[default]
    Crc,
    /// See [`IntegrityKey::block_tag`].
    Keyed(Arc<IntegrityKey>),
}

impl Summer {
    /// Computes the checksum of a block.
    pub fn sum_of(&self, block: &[u8]) -> Sum {
        match self {
            Summer::Crc => sum_of_crc(block::sum_block(block)),
            Summer::Keyed(key) => sum_of_tag(key.block_tag(block)),
        }
    }

    /// Computes the checksums of consecutive blocks.
    pub fn sums_of(&self, data: &[u8]) -> Vec<Sum> {
        let (blocks, _) = data.as_chunks();
        let mut sums = SumGroup::new(self, blocks.len());
        blocks.iter().for_each(|block| sums.add(block));
        sums.finish()
    }

    /// Returns the function as the device takes it.
    pub fn shared(&self) -> Arc<dyn block::Summer> {
        Arc::new(self.clone())
    }

    /// Returns the length of an encoded checksum in bytes.
    fn width(&self) -> usize {
        match self {
            Summer::Crc => size_of::<u32>(),
            Summer::Keyed(_) => TAG_BYTES,
        }
    }

    /// Encodes the record of the blocks of `sums`.
    pub fn encode(&self, sums: &Sums) -> Vec<u8> {
        let fields = sums.0.iter().map(|sum| sum.to_le_bytes());
        fields
            .flat_map(|field| field.into_iter().take(self.width()))
            .collect()
    }

    /// Decodes a record.
    pub fn decode(&self, bytes: &[u8]) -> Result<Sums> {
        let mut sums = Sums::none();
        for (sum, field) in sums.0.iter_mut().zip(self.fields(bytes)?) {
            *sum = decode(field);
        }
        Ok(sums)
    }

    /// Adds the checksums at some places of an encoded record to a list.
    pub fn decode_part(&self, bytes: &[u8], places: Range<usize>, to: &mut Vec<Sum>) -> Result<()> {
        let fields = self.fields(bytes)?.skip(places.start);
        to.extend(fields.take(places.len()).map(decode));
        Ok(())
    }

    fn fields<'a>(&self, bytes: &'a [u8]) -> Result<std::slice::ChunksExact<'a, u8>> {
        if bytes.len() != SUMS_BLOCKS as usize * self.width() {
            return Err(Error::corrupt("invalid checksum record"));
        }
        Ok(bytes.chunks_exact(self.width()))
    }
}

impl block::Summer for Summer {
    fn at_once(&self) -> usize {
        match self {
            Summer::Crc => 1,
            Summer::Keyed(_) => block::SUMS_AT_ONCE,
        }
    }

    fn sum(&self, blocks: &[&SumBlock], sums: &mut Vec<Sum>) {
        match self {
            Summer::Crc => sums.extend(blocks.iter().map(|block| self.sum_of(&block[..]))),
            Summer::Keyed(key) => key.block_tags(blocks, |tag| sums.push(sum_of_tag(tag))),
        }
    }
}

fn decode(field: &[u8]) -> Sum {
    let mut bytes = [0; size_of::<Sum>()];
    bytes[..field.len()].copy_from_slice(field);
    Sum::from_le_bytes(bytes)
}

const _: () = assert!(BLOCK_BYTES == block::SUM_BLOCK_BYTES as u64);

/// Checksums of the blocks of one record, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sums(pub [Sum; SUMS_BLOCKS as usize]);

impl Sums {
    /// Creates the record of blocks without checksums.
    pub fn none() -> Sums {
        Sums([NO_SUM; SUMS_BLOCKS as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_as_it_was_written_and_has_one_length() {
        let mut sums = Sums::none();
        (sums.0[0], sums.0[63]) = (7, 0xffff_fffe);
        let bytes = Summer::Crc.encode(&sums);
        assert_eq!((&bytes[..4], bytes.len()), (&[7, 0, 0, 0][..], 256));
        assert_eq!(Summer::Crc.decode(&bytes).unwrap(), sums);
        let mut part = vec![5];
        Summer::Crc.decode_part(&bytes, 62..64, &mut part).unwrap();
        assert_eq!(part, [5, 0, 0xffff_fffe]);
        assert!(Summer::Crc.decode(&bytes[1..]).is_err());
        assert!(
            Summer::Crc
                .decode(&[bytes.clone(), vec![0]].concat())
                .is_err()
        );
        let keyed = Summer::Keyed(IntegrityKey::for_tests(1));
        assert!(keyed.decode(&bytes).is_err());
        sums.0[1] = Sum::MAX - 3;
        let bytes = keyed.encode(&sums);
        assert_eq!((bytes[16], bytes.len()), (0xfc, 1024));
        assert_eq!(keyed.decode(&bytes).unwrap(), sums);
        let mut part = Vec::new();
        keyed.decode_part(&bytes, 0..2, &mut part).unwrap();
        assert_eq!(part, [7, Sum::MAX - 3]);
    }

    #[test]
    fn no_content_has_the_sum_of_none() {
        assert_eq!(sum_of_crc(0), 1);
        for byte in [0, 1, 0xff] {
            let sum = Summer::Crc.sum_of(&[byte; 4096]);
            assert_eq!(sum, crc32c::crc32c(&[byte; 4096]).into());
        }
    }

    #[test]
    fn keyed_checksums_depend_on_the_key_and_on_each_bit() {
        let block = [3; 4096];
        let summers = [1, 2].map(|key| Summer::Keyed(IntegrityKey::for_tests(key)));
        let sums = summers.clone().map(|summer| summer.sum_of(&block));
        assert_ne!(sums[0], sums[1]);
        for bit in [0, 8 * 1024, 8 * 4096 - 1] {
            let mut other = block;
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(summers[0].sum_of(&other), sums[0]);
        }
    }
}
