//! The Mersenne Twister with the seeding of its authors' second version (1999), which the modeled
//! programs use; libraries use the seeding of 2002. Not suitable for keys.

const WORDS: usize = 624;
const APART: usize = 397;
const MATRIX: u32 = 0x9908_b0df;
const UPPER: u32 = 0x8000_0000;

/// Matsumoto and Nishimura, "Mersenne Twister" (ACM TOMACS 8, 1998): MT19937.
pub struct Mersenne {
    state: [u32; WORDS],
    next: usize,
}

impl Mersenne {
    /// Creates a generator, seeded with two halves of a linear congruential generator per word.
    pub fn new(seed: u32) -> Mersenne {
        let mut seed = seed;
        let mut half = || {
            let high = seed & 0xffff_0000;
            seed = seed.wrapping_mul(69_069).wrapping_add(1);
            high
        };
        let state = std::array::from_fn(|_| {
            let high = half();
            high | half() >> 16
        });
        let next = WORDS;
        Mersenne { state, next }
    }

    /// Draws the next number.
    pub fn draw(&mut self) -> u32 {
        if self.next == WORDS {
            self.turn();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= y << 7 & 0x9d2c_5680;
        y ^= y << 15 & 0xefc6_0000;
        y ^ y >> 18
    }

    /// Draws the next number modulo `bound`, or 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        match bound {
            0 => 0,
            bound => u64::from(self.draw()) % bound,
        }
    }

    fn turn(&mut self) {
        for i in 0..WORDS {
            let y = self.state[i] & UPPER | self.state[(i + 1) % WORDS] & !UPPER;
            let odd = if y & 1 == 1 { MATRIX } else { 0 };
            self.state[i] = self.state[(i + APART) % WORDS] ^ y >> 1 ^ odd;
        }
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_numbers_of_a_seed() {
        let mut numbers = Mersenne::new(42);
        let first: Vec<u32> = (0..3).map(|_| numbers.draw()).collect();
        // As drawn by PostMark 1.53: number 2,097,152 and the next ones are sizes of its first
        // files.
        assert_eq!(first, FIRST_OF_42);
        for _ in 3..2_097_152 {
            numbers.draw();
        }
        assert_eq!(numbers.draw(), 3_611_718_052);
        assert_eq!(numbers.below(0), 0);
    }

    const FIRST_OF_42: [u32; 3] = [4179544424, 615236124, 4165290828];
}
