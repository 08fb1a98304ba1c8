//! Keyed checksums: tags that only the holder of the volume's key can compute.
//!
//! **Invariant:** a block whose tag its parent holds, and a root, which holds its own tag, use
//! different keys. So no content of a file can produce the tag of a root.

use crate::error::{Error, Kind, Result};
use blake3::IncrementCounter;
use blake3::platform::{Platform, words_from_le_bytes_32};
use block::{BlockDevice, DERIVED_KEY_BYTES, SUMS_AT_ONCE, SumBlock};
use secret::SecretBytes;
use std::fmt;
use std::sync::Arc;
use subtle::ConstantTimeEq;
use zeroize::Zeroize;

/// Length of a tag in bytes.
pub(crate) const TAG_BYTES: usize = 16;

/// BLAKE3 with a key, truncated.
pub(crate) type Tag = [u8; TAG_BYTES];

/// Tag of nothing: of a page that was never written.
pub(crate) const NO_TAG: Tag = [0; TAG_BYTES];

/// Number of blocks below which each is faster alone.
const TOGETHER_MIN: usize = 5;

const BLOCK: usize = block::SUM_BLOCK_BYTES;
const CHUNK: usize = 1024;
/// Length of a chaining value of BLAKE3.
const VALUE: usize = 32;
/// Flags of BLAKE3.
const CHUNK_START: u8 = 1;
const CHUNK_END: u8 = 2;
const PARENT: u8 = 4;
const ROOT: u8 = 8;
const KEYED_HASH: u8 = 16;

/// Labels of the keys, before the UUID of the file system.
const BLOCKS_LABEL: &[u8] = b"evfs file system 1: blocks ";
const ROOTS_LABEL: &[u8] = b"evfs file system 1: roots ";

/// Keys of a file system.
pub(crate) struct IntegrityKey {
    blocks: SecretBytes,
    roots: SecretBytes,
}

impl IntegrityKey {
    /// Obtains the keys of the file system with this UUID from its device.
    ///
    /// # Errors
    /// [`Kind::Unsupported`]: the device has no key.
    pub fn of(device: &dyn BlockDevice, uuid: &[u8; 16]) -> Result<Arc<IntegrityKey>> {
        let derive = |label: &[u8]| {
            let mut key = SecretBytes::zeroed(DERIVED_KEY_BYTES);
            let place = key.first_chunk_mut().expect("of this length");
            device
                .derive_key(&[label, uuid].concat(), place)
                .then_some(key)
        };
        match (derive(BLOCKS_LABEL), derive(ROOTS_LABEL)) {
            (Some(blocks), Some(roots)) => Ok(Arc::new(IntegrityKey { blocks, roots })),
            _ => Err(Error::new(
                Kind::Unsupported,
                "keyed checksums need the key of an encrypted volume, and this device has none; use \
                 the volume that contains the file system",
            )),
        }
    }

    #[cfg(test)]
    pub fn for_tests(byte: u8) -> Arc<IntegrityKey> {
        Arc::new(IntegrityKey {
            blocks: SecretBytes::from_slice(&[byte; DERIVED_KEY_BYTES]),
            roots: SecretBytes::from_slice(&[!byte; DERIVED_KEY_BYTES]),
        })
    }

    /// Computes the tag of a block. Another block holds it.
    pub fn block_tag(&self, block: &[u8]) -> Tag {
        tag(&self.blocks, &[block])
    }

    /// Computes the tags of up to [`SUMS_AT_ONCE`] blocks, as [`IntegrityKey::block_tag`] does for
    /// each, and passes them to `take` in order. A block has too few chunks for wide vectors, so
    /// these take the same chunk of several blocks.
    pub fn block_tags(&self, blocks: &[&SumBlock], take: impl FnMut(Tag)) {
        if blocks.len() < TOGETHER_MIN {
            let tags = blocks.iter().map(|block| self.block_tag(&block[..]));
            return tags.for_each(take);
        }
        let platform = Platform::detect();
        let lanes = lanes_for(blocks.len(), platform.simd_degree());
        let mut key = words_from_le_bytes_32(self.blocks.first_chunk().expect("as long as all"));
        let no = IncrementCounter::No;
        let mut values = [0; SUMS_AT_ONCE * VALUE];
        // The chaining values of two chunks each, and then of two parents.
        let mut pairs = [[[0; 2 * VALUE]; SUMS_AT_ONCE]; 2];
        for chunk in 0..BLOCK / CHUNK {
            let part = |i: usize| -> &[u8; CHUNK] {
                let block = blocks[i.min(blocks.len() - 1)];
                block[chunk * CHUNK..].first_chunk().expect("within it")
            };
            let parts: [_; SUMS_AT_ONCE] = std::array::from_fn(part);
            let (flags, parts, number) = (KEYED_HASH, &parts[..lanes], chunk as u64);
            let (start, end) = (CHUNK_START, CHUNK_END);
            platform.hash_many(parts, &key, number, no, flags, start, end, &mut values);
            keep(&values, &mut pairs[chunk / 2], chunk % 2);
        }
        let mut tops = [[0; 2 * VALUE]; SUMS_AT_ONCE];
        for (half, pairs) in pairs.iter().enumerate() {
            let pairs: [_; SUMS_AT_ONCE] = std::array::from_fn(|i| &pairs[i]);
            let (flags, pairs) = (KEYED_HASH | PARENT, &pairs[..lanes]);
            platform.hash_many(pairs, &key, 0, no, flags, 0, 0, &mut values);
            keep(&values, &mut tops, half);
        }
        let tops: [_; SUMS_AT_ONCE] = std::array::from_fn(|i| &tops[i]);
        let (flags, tops) = (KEYED_HASH | PARENT | ROOT, &tops[..lanes]);
        platform.hash_many(tops, &key, 0, no, flags, 0, 0, &mut values);
        key.zeroize();
        let tags = values.chunks_exact(VALUE).take(blocks.len());
        tags.map(|value| *value.first_chunk().expect("half of a hash"))
            .for_each(take);
    }

    /// Computes the tag of a root, which holds it itself. The parts have fixed lengths, or state
    /// them.
    pub fn root_tag(&self, parts: &[&[u8]]) -> Tag {
        tag(&self.roots, parts)
    }

    /// Compares the tag that a root states with that of its parts, in constant time: a user who
    /// writes the disk must not learn from the time how much of a guessed tag is right.
    pub fn is_root_tag(&self, parts: &[&[u8]], stated: &Tag) -> bool {
        self.root_tag(parts).ct_eq(stated).into()
    }
}

/// Number of lanes for some blocks: a whole vector costs less than the narrower ones that an odd
/// number would be split into, so the last block is repeated.
fn lanes_for(blocks: usize, widest: usize) -> usize {
    let lanes = blocks.next_power_of_two();
    lanes.min(blocks.next_multiple_of(widest)).min(SUMS_AT_ONCE)
}

fn tag(key: &SecretBytes, parts: &[&[u8]]) -> Tag {
    let key = key.first_chunk().expect("the length of all keys");
    let mut hasher = blake3::Hasher::new_keyed(key);
    for part in parts {
        hasher.update(part);
    }
    let hash = hasher.finalize();
    // It holds a copy of the key.
    hasher.zeroize();
    *hash.as_bytes().first_chunk().expect("half of a hash")
}

/// Copies chaining values to one half of their pairs.
fn keep(
    values: &[u8; SUMS_AT_ONCE * VALUE],
    pairs: &mut [[u8; 2 * VALUE]; SUMS_AT_ONCE],
    half: usize,
) {
    for (value, pair) in values.chunks_exact(VALUE).zip(pairs) {
        pair[half * VALUE..][..VALUE].copy_from_slice(value);
    }
}

impl fmt::Debug for IntegrityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IntegrityKey")
    }
}

/// Creates the error for content that does not match its tag.
pub(crate) fn tampered(what: impl fmt::Display) -> Error {
    Error::corrupt(format!(
        "{what} was tampered with or is damaged: its keyed checksum does not match; restore from a \
         backup what cannot be read"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use block_testing::Random;

    #[test]
    fn an_odd_number_of_blocks_takes_whole_vectors_of_the_cpu() {
        let lanes = |widest| [1, 3, 5, 8, 9, 12, 15, 16].map(|blocks| lanes_for(blocks, widest));
        assert_eq!(lanes(16), [1, 4, 8, 8, 16, 16, 16, 16]);
        assert_eq!(lanes(8), [1, 4, 8, 8, 16, 16, 16, 16]);
        assert_eq!(lanes(4), [1, 4, 8, 8, 12, 12, 16, 16]);
        assert_eq!(lanes(1), [1, 3, 5, 8, 9, 12, 15, 16]);
    }

    #[test]
    fn several_tags_at_once_are_those_of_each_block() {
        let mut random = Random::new(1);
        let key = IntegrityKey::for_tests(3);
        let mut blocks = [[0; BLOCK]; SUMS_AT_ONCE];
        blocks.iter_mut().for_each(|block| random.fill(block));
        for count in 1..=SUMS_AT_ONCE {
            let some: Vec<_> = blocks.iter().take(count).collect();
            let mut tags = Vec::new();
            key.block_tags(&some, |tag| tags.push(tag));
            let alone: Vec<_> = some.iter().map(|b| key.block_tag(&b[..])).collect();
            assert_eq!(tags, alone);
            let plain = some.iter().map(|b| blake3::keyed_hash(&[3; 32], &b[..]));
            assert!(
                plain
                    .zip(&tags)
                    .all(|(hash, tag)| hash.as_bytes()[..16] == *tag)
            );
        }
    }
}
