//! A checksum of words, for tables that each operation of a server stores to.
//!
//! Each word is multiplied with a constant that its place alters, and the products are added. No
//! product waits for another, so the checksum of a short entry costs a few nanoseconds. It finds
//! damage, and keeps out no writer that has the memory.

/// Difference between the keys of neighbouring words: 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// An odd factor without a pattern.
const FACTOR: u64 = 0xd1b5_4a32_d192_ed03;

/// Checksum of the words so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Check {
    sum: u64,
    key: u64,
}

impl Check {
    /// Begins a checksum.
    pub const fn new() -> Check {
        Check { sum: 0, key: STEP }
    }

    /// Adds a word.
    #[inline]
    pub fn add(&mut self, word: u64) {
        self.sum = self.sum.wrapping_add(fold(word ^ self.key));
        self.key = self.key.wrapping_add(STEP);
    }

    /// Adds words in their order.
    #[inline]
    pub fn with(mut self, words: impl IntoIterator<Item = u64>) -> Check {
        words.into_iter().for_each(|word| self.add(word));
        self
    }

    /// Returns the checksum, which also depends on the number of words.
    #[inline]
    pub fn value(self) -> u32 {
        (self.whole() >> 32) as u32
    }

    /// As [`Check::value`], with more bits.
    #[inline]
    pub fn whole(self) -> u64 {
        fold(self.sum ^ self.key)
    }
}

/// Multiplies, and mixes both halves of the product, so that each bit alters many.
#[inline]
fn fold(word: u64) -> u64 {
    let product = u128::from(word) * u128::from(FACTOR);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words as an entry has them: small numbers, zeros, and text.
    const WORDS: [u64; 6] = [
        0,
        1,
        u64::MAX,
        40 << 32 | 7,
        0,
        u64::from_le_bytes(*b"a file 1"),
    ];

    fn of(words: &[u64]) -> u32 {
        Check::new().with(words.iter().copied()).value()
    }

    #[test]
    fn one_or_two_flips_of_any_bits_change_the_checksum() {
        let right = of(&WORDS);
        let bits = WORDS.len() * 64;
        let mut words = WORDS;
        for one in 0..bits {
            words[one / 64] ^= 1 << (one % 64);
            assert_ne!(of(&words), right, "bit {one}");
            for two in 0..one {
                words[two / 64] ^= 1 << (two % 64);
                assert_ne!(of(&words), right, "bits {one} and {two}");
                words[two / 64] ^= 1 << (two % 64);
            }
            words[one / 64] ^= 1 << (one % 64);
        }
        assert_eq!(of(&words), right);
    }

    #[test]
    fn words_that_are_swapped_or_lost_or_zero_change_the_checksum() {
        let right = of(&WORDS);
        for (one, first) in WORDS.iter().enumerate() {
            for (two, second) in WORDS.iter().enumerate().take(one) {
                let mut words = WORDS;
                words.swap(one, two);
                assert_eq!(of(&words) == right, first == second, "{one} {two}");
            }
            let mut words = WORDS.to_vec();
            words.remove(one);
            assert_ne!(of(&words), right, "without {one}");
        }
        assert_ne!(of(&[0]), of(&[0, 0]));
        assert_ne!(of(&[]), of(&[0]));
    }

    /// A flip changes each bit of the checksum about as often as not.
    #[test]
    fn each_bit_of_a_word_alters_about_half_of_the_checksum() {
        for bit in 0..64 {
            let changes: u32 = (0..1000_u64)
                .map(|n| (of(&[n, n * n]) ^ of(&[n, (n * n) ^ (1 << bit)])).count_ones())
                .sum();
            let mean = f64::from(changes) / 1000.0;
            assert!((12.0..20.0).contains(&mean), "bit {bit}: {mean} bits of 32");
        }
    }
}
