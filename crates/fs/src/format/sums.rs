//! Checksums of file data: the record of those of 64 consecutive blocks of the device.
//!
//! **Invariant:** a block that holds file data and has a checksum is not overwritten while a record
//! refers to it, unless its checksum was durably dropped first (full device). So a checksum in use
//! never changes to another. Checksums of unused blocks have no meaning and stay until the blocks
//! are written again.

use crate::error::{Error, Result};
use crate::format::record::BLOCK_BYTES;
use std::ops::Range;

/// Number of blocks of a record.
pub(crate) const SUMS_BLOCKS: u64 = 64;

/// Checksum of a block; [`NO_SUM`] if there is none.
pub(crate) type Sum = u32;

/// Place of a block without a checksum.
pub(crate) const NO_SUM: Sum = 0;

/// Length of an encoded record in bytes.
const BYTES: usize = SUMS_BLOCKS as usize * size_of::<Sum>();

/// Makes the checksum of a block from the CRC-32C of its bytes.
pub(crate) fn sum_of_crc(crc: u32) -> Sum {
    // 0 marks a block without a checksum.
    crc.max(1)
}

/// Computes the checksum of a block.
pub(crate) fn sum_of(block: &[u8]) -> Sum {
    sum_of_crc(block::sum_block(block))
}

fn fields(bytes: &[u8]) -> Result<&[[u8; size_of::<Sum>()]]> {
    match bytes.as_chunks() {
        (fields, []) if bytes.len() == BYTES => Ok(fields),
        _ => Err(Error::corrupt("invalid checksum record")),
    }
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

    pub fn encode(&self) -> Vec<u8> {
        self.0.iter().flat_map(|sum| sum.to_le_bytes()).collect()
    }

    pub fn decode(bytes: &[u8]) -> Result<Sums> {
        let mut sums = Sums::none();
        for (sum, field) in sums.0.iter_mut().zip(fields(bytes)?) {
            *sum = Sum::from_le_bytes(*field);
        }
        Ok(sums)
    }

    /// Adds the checksums at some places of an encoded record to a list.
    pub fn decode_part(bytes: &[u8], places: Range<usize>, to: &mut Vec<Sum>) -> Result<()> {
        let fields = &fields(bytes)?[places];
        to.extend(fields.iter().map(|field| Sum::from_le_bytes(*field)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_as_it_was_written_and_has_one_length() {
        let mut sums = Sums::none();
        (sums.0[0], sums.0[63]) = (7, 0xffff_fffe);
        let bytes = sums.encode();
        assert_eq!(bytes[..4], [7, 0, 0, 0]);
        assert_eq!(Sums::decode(&bytes).unwrap(), sums);
        let mut part = vec![5];
        Sums::decode_part(&bytes, 62..64, &mut part).unwrap();
        assert_eq!(part, [5, 0, 0xffff_fffe]);
        assert!(Sums::decode(&bytes[1..]).is_err());
        assert!(Sums::decode(&[bytes, vec![0]].concat()).is_err());
    }

    #[test]
    fn no_content_has_the_sum_of_none() {
        assert_eq!(sum_of_crc(0), 1);
        for byte in [0, 1, 0xff] {
            assert_eq!(sum_of(&[byte; 4096]), crc32c::crc32c(&[byte; 4096]));
        }
    }
}
