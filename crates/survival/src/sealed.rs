//! Words that state a value and prove it: one store replaces both.

use crate::check::Check;

/// Bits of the value of a sealed word.
pub const VALUE_BITS: u32 = 48;

/// Multiplies a value into the bits of its proof. Each bit of the value changes them.
const FACTOR: u64 = 0x5a5a_5a5a_5a5a_5a5b;

/// Returns the word for a value at a place. Never 0, so that memory that was never written proves
/// nothing.
///
/// # Panics
/// The value has more than [`VALUE_BITS`] bits.
pub fn seal(value: u64, place: u64) -> u64 {
    assert!(value >> VALUE_BITS == 0, "{value:#x} is too large");
    value | proof(value, place) << VALUE_BITS
}

/// Returns the value of a word; `None` if it is damaged, or was sealed for another place.
pub fn unseal(word: u64, place: u64) -> Option<u64> {
    let value = word & ((1 << VALUE_BITS) - 1);
    (word >> VALUE_BITS == proof(value, place)).then_some(value)
}

fn proof(value: u64, place: u64) -> u64 {
    let place = (place + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((value ^ place << VALUE_BITS)
        .wrapping_mul(FACTOR)
        .wrapping_add(place)
        >> VALUE_BITS)
        .max(1)
}

/// Returns a checksum of several words.
pub fn checksum(words: &[u64]) -> u64 {
    Check::new().with(words.iter().copied()).whole()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_changed_bit_and_each_other_place_is_noticed() {
        for place in [0, 1, 7, 4096] {
            for value in [0, 1, 0xffff_ffff_ffff, 0x1234_5678_9abc, 1 << 47] {
                let word = seal(value, place);
                assert_eq!(unseal(word, place), Some(value));
                assert_eq!(unseal(word, place + 1), None, "{value:#x}");
                for bit in 0..64 {
                    assert_eq!(
                        unseal(word ^ 1 << bit, place),
                        None,
                        "{value:#x}, bit {bit}"
                    );
                }
            }
            assert_eq!(unseal(0, place), None);
        }
    }

    #[test]
    fn a_checksum_notices_each_changed_bit_and_the_order() {
        let words = [0, 1, u64::MAX, 7];
        let sum = checksum(&words);
        for at in 0..words.len() {
            for bit in 0..64 {
                let mut other = words;
                other[at] ^= 1 << bit;
                assert_ne!(checksum(&other), sum);
            }
        }
        assert_ne!(checksum(&[1, 0, u64::MAX, 7]), sum);
    }
}
