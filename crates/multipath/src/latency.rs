//! Latency histograms.

use crate::policy::{Io, Nanos};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Number of latency buckets: two for each power of two of microseconds, up to 2^24 (16 s).
pub(crate) const BUCKETS: usize = 50;
/// Number of size classes: up to 4 KiB, 16 KiB, 128 KiB, and larger.
const SIZES: usize = 4;

/// Latency histogram of one queue on one path. Only that queue writes to it.
#[derive(Debug)]
pub(crate) struct Latencies([[[AtomicU64; BUCKETS]; SIZES]; 2]);

impl Latencies {
    pub(crate) fn new() -> Latencies {
        Latencies(std::array::from_fn(|_| {
            std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0)))
        }))
    }

    pub(crate) fn add(&self, io: Io, took: Nanos) {
        let size = match io.bytes {
            0..=4096 => 0,
            4097..=16384 => 1,
            16385..=131_072 => 2,
            _ => 3,
        };
        let cell = &self.0[usize::from(io.write)][size][bucket(took)];
        cell.store(cell.load(Relaxed) + 1, Relaxed);
    }

    /// Creates empty counts to add to.
    pub(crate) fn none() -> [u64; BUCKETS] {
        [0; BUCKETS]
    }

    /// Adds the counts per bucket, over all operations and sizes.
    pub(crate) fn sum(&self, into: &mut [u64; BUCKETS]) {
        for cells in self.0.iter().flatten() {
            for (to, cell) in into.iter_mut().zip(cells) {
                *to += cell.load(Relaxed);
            }
        }
    }

    pub(crate) fn clear(&self) {
        for cell in self.0.iter().flatten().flatten() {
            cell.store(0, Relaxed);
        }
    }
}

fn bucket(took: Nanos) -> usize {
    let micros = (took / 1000).max(1);
    let log = micros.ilog2() as usize;
    let half = match log {
        0 => 0,
        _ => (micros >> (log - 1)) as usize & 1,
    };
    (log * 2 + half).min(BUCKETS - 1)
}

/// Computes the upper bound of a bucket in nanoseconds.
fn upper(bucket: usize) -> Nanos {
    let (log, half) = (bucket / 2, bucket as u64 % 2);
    ((1u64 << log) + ((half + 1) << log) / 2) * 1000
}

/// Computes the given quantile (`share`) of the latency in nanoseconds; 0 without samples.
pub(crate) fn quantile(counts: &[u64; BUCKETS], share: f64) -> Nanos {
    let total: u64 = counts.iter().sum();
    let wanted = (total as f64 * share).ceil() as u64;
    let mut seen = 0;
    for (at, count) in counts.iter().enumerate() {
        seen += count;
        if seen >= wanted && *count > 0 {
            return upper(at);
        }
    }
    0
}

/// Returns the upper bounds in nanoseconds and the counts of the non-empty buckets.
pub(crate) fn filled(counts: &[u64; BUCKETS]) -> Vec<(u64, u64)> {
    let all = counts.iter().enumerate().filter(|(_, count)| **count > 0);
    all.map(|(at, count)| (upper(at), *count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_what_its_edge_says() {
        for took in (1..2_000_000_000u64).step_by(777_777) {
            let at = bucket(took);
            assert!(took <= upper(at).max(1000), "{took} in bucket {at}");
        }
        let mut counts = [0; BUCKETS];
        counts[bucket(100_000)] = 999;
        counts[bucket(9_000_000)] = 1;
        assert!(quantile(&counts, 0.5) < 200_000);
        assert!(quantile(&counts, 0.9999) >= 9_000_000);
        let filled = filled(&counts);
        assert_eq!(filled.iter().map(|(_, count)| count).sum::<u64>(), 1000);
        assert!(filled[0].0 >= 100_000 && filled[1].0 >= 9_000_000);
    }
}
