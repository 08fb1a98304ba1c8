//! Pauses between attempts.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// The random part of a pause. It keeps clients that failed at the same moment from trying again at
/// the same moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Jitter {
    /// All of it: from zero to the longest pause. Spreads clients most.
    Full,
    /// One half of it: the pause is at least half of the longest one.
    Equal,
}

/// Pauses after failures: doubled with each failure up to a limit, and shortened at random.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    last: Duration,
    jitter: Jitter,
}

impl Backoff {
    /// Creates a policy. `first`: longest pause after the first failure. `last`: longest pause of
    /// all, also if it is less than `first`.
    pub const fn new(first: Duration, last: Duration, jitter: Jitter) -> Backoff {
        Backoff {
            first,
            last,
            jitter,
        }
    }

    /// Returns the longest pause after a failure that `failures` others preceded.
    pub fn longest(&self, failures: u32) -> Duration {
        let times = 1_u32.checked_shl(failures).unwrap_or(u32::MAX);
        self.first.saturating_mul(times).min(self.last)
    }

    /// Returns the pause after a failure that `failures` others preceded. `seed`: a number that
    /// differs between clients; the same arguments give the same pause.
    pub fn pause(&self, failures: u32, seed: u64) -> Duration {
        let longest = self.longest(failures);
        let least = match self.jitter {
            Jitter::Full => Duration::ZERO,
            Jitter::Equal => longest / 2,
        };
        least + share(longest - least, mixed(seed, failures))
    }
}

/// Returns a seed for a client that needs no reproducible pauses. Seeds of two calls differ, also in
/// two processes.
pub fn random_seed() -> u64 {
    RandomState::new().hash_one(0)
}

/// Computes `random / 2^64` of a time.
fn share(time: Duration, random: u64) -> Duration {
    // The pauses of this project are far below the 584 years that fit.
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let part = (u128::from(nanos) * u128::from(random)) >> 64;
    Duration::from_nanos(part as u64)
}

/// Mixes two numbers such that each bit of the result depends on all bits of both (SplitMix64).
fn mixed(seed: u64, number: u32) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut z = seed.wrapping_add(GOLDEN.wrapping_mul(u64::from(number) + 1));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
