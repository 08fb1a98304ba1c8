//! Checksums of blocks, for layers that compute them while they touch the data anyway.

use std::fmt;

/// Length in bytes of a block that has a checksum.
pub const SUM_BLOCK_BYTES: usize = 4096;

/// Bytes of a block that has a checksum.
pub type SumBlock = [u8; SUM_BLOCK_BYTES];

/// Checksum of a block. A function with shorter ones fills the low bits.
pub type Sum = u128;

/// Largest number of blocks whose checksums are computed at once.
pub const SUMS_AT_ONCE: usize = 16;

/// Function that computes checksums of blocks. The layer that asks for them chooses it
/// ([`crate::Bufs::ask_sums`]).
pub trait Summer: fmt::Debug + Send + Sync {
    /// Number of blocks that are cheapest to compute at once, at most [`SUMS_AT_ONCE`].
    fn at_once(&self) -> usize;

    /// Computes the checksums of up to [`SUMS_AT_ONCE`] blocks, and adds them to a list in order.
    fn sum(&self, blocks: &[&SumBlock], sums: &mut Vec<Sum>);
}

/// Blocks on their way to a [`Summer`], which receives as many at once as are cheapest.
///
/// The bytes of a block are read when its group is complete, so they should then still be in a
/// cache of the CPU: a group is at most 64 KiB.
pub struct SumGroup<'s, 'b> {
    summer: &'s dyn Summer,
    blocks: [&'b SumBlock; SUMS_AT_ONCE],
    len: usize,
    sums: Vec<Sum>,
}

impl<'s, 'b> SumGroup<'s, 'b> {
    /// Starts with no block, and reserves memory for the checksums of `total`.
    pub fn new(summer: &'s dyn Summer, total: usize) -> SumGroup<'s, 'b> {
        SumGroup {
            summer,
            blocks: [&[0; SUM_BLOCK_BYTES]; SUMS_AT_ONCE],
            len: 0,
            sums: Vec::with_capacity(total),
        }
    }

    /// Adds the next block.
    pub fn add(&mut self, block: &'b SumBlock) {
        self.blocks[self.len] = block;
        self.len += 1;
        if self.len == self.summer.at_once().min(SUMS_AT_ONCE) {
            self.flush();
        }
    }

    /// Adds the next block, whose bytes will not outlive the call.
    pub fn add_now(&mut self, block: &SumBlock) {
        self.flush();
        self.summer.sum(&[block], &mut self.sums);
    }

    /// Returns the checksums of all blocks, in order.
    pub fn finish(mut self) -> Vec<Sum> {
        self.flush();
        self.sums
    }

    fn flush(&mut self) {
        if self.len > 0 {
            self.summer.sum(&self.blocks[..self.len], &mut self.sums);
            self.len = 0;
        }
    }
}

/// Computes the checksum of a block: its CRC-32C.
pub fn sum_block(block: &[u8]) -> u32 {
    debug_assert_eq!(block.len(), SUM_BLOCK_BYTES);
    // For a whole block, three times as fast as by the CPU's instruction, where the CPU multiplies
    // vectors without carry.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, block) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buf, Bufs};
    use std::sync::Arc;

    /// The definition, bit by bit.
    fn crc32c(bytes: &[u8]) -> u32 {
        let step = |crc: u32, byte: &u8| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
            })
        };
        !bytes.iter().fold(!0, step)
    }

    #[test]
    fn the_checksum_is_the_crc_32c() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        for seed in [0, 1, 77] {
            let bytes = (0..SUM_BLOCK_BYTES as u32).map(|i| ((i * seed) >> 3) as u8);
            let block: Vec<u8> = bytes.collect();
            assert_eq!(sum_block(&block), crc32c(&block));
        }
    }

    /// Numbers blocks by their first byte, in groups of a size.
    #[derive(Debug)]
    struct FirstBytes(usize);

    impl Summer for FirstBytes {
        fn at_once(&self) -> usize {
            self.0
        }

        fn sum(&self, blocks: &[&SumBlock], sums: &mut Vec<Sum>) {
            assert!((1..=self.0.min(SUMS_AT_ONCE)).contains(&blocks.len()));
            sums.extend(blocks.iter().map(|block| Sum::from(block[0])));
        }
    }

    #[test]
    fn a_group_returns_the_checksums_in_order_whatever_its_size() {
        let blocks: Vec<SumBlock> = (0..40).map(|i| [i; SUM_BLOCK_BYTES]).collect();
        let expected: Vec<Sum> = (0..40).collect();
        for at_once in [1, 2, 7, 16, 100] {
            for alone in [None, Some(0), Some(1), Some(39)] {
                let summer = FirstBytes(at_once);
                let mut group = SumGroup::new(&summer, blocks.len());
                for (i, block) in blocks.iter().enumerate() {
                    if Some(i) == alone {
                        group.add_now(&block.clone());
                    } else {
                        group.add(block);
                    }
                }
                assert_eq!(group.finish(), expected, "{at_once} {alone:?}");
            }
        }
        assert!(SumGroup::new(&FirstBytes(16), 0).finish().is_empty());
    }

    #[test]
    fn buffers_return_checksums_once_and_only_if_they_were_asked_for() {
        let mut bufs = Bufs::from(Buf::zeroed(8192));
        assert!(bufs.summer().is_none() && bufs.take_sums().is_none());
        bufs.set_sums(vec![1, 2]);
        assert!(bufs.take_sums().is_none());
        let summer: Arc<dyn Summer> = Arc::new(FirstBytes(1));
        bufs.ask_sums(&summer);
        assert!(bufs.summer().is_some() && bufs.is_asking());
        bufs.set_sums(vec![1, 2]);
        assert!(
            bufs.summer().is_some(),
            "a second attempt computes them again"
        );
        assert!(!bufs.is_asking());
        bufs.set_sums(vec![3, 4]);
        assert_eq!(bufs.take_sums(), Some(vec![3, 4]));
        assert!(bufs.summer().is_none() && bufs.take_sums().is_none());
        bufs.ask_sums(&summer);
        assert_eq!(bufs.take_sums(), None);
    }
}
