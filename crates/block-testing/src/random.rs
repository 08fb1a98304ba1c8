//! A small random number generator for devices and tests that must be reproducible from a seed.

/// SplitMix64 (Steele, Lea, Flood 2014). Not for cryptographic use.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Creates a generator with this seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Generates the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Draws a number less than `bound`, which must not be zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    /// Returns true with the given probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        (self.next_u64() >> 11) as f64 / ((1u64 << 53) as f64) < probability
    }

    /// Fills `out` with random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        for part in out.chunks_mut(8) {
            part.copy_from_slice(&self.next_u64().to_le_bytes()[..part.len()]);
        }
    }
}
