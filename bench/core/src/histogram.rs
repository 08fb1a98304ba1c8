//! Histogram of latencies with buckets no wider than 1/128 of their value, so a run of any length
//! needs the same memory and allocates nothing on the timed path.

/// Number of buckets per power of two.
const SUB: u64 = 128;
const SUB_BITS: u32 = SUB.trailing_zeros();

/// Counts of values in nanoseconds.
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    sum: u128,
    max: u64,
}

impl Histogram {
    pub fn new() -> Histogram {
        Histogram {
            counts: vec![0; ((64 - SUB_BITS as usize) + 1) * SUB as usize],
            total: 0,
            sum: 0,
            max: 0,
        }
    }

    pub fn record(&mut self, value: u64) {
        self.counts[bucket(value)] += 1;
        self.total += 1;
        self.sum += u128::from(value);
        self.max = self.max.max(value);
    }

    pub fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// Computes the `q` quantile: the smallest value that at least the fraction `q` of all values
    /// does not exceed, rounded up to the end of its bucket. 0 if nothing was recorded.
    pub fn quantile(&self, q: f64) -> u64 {
        let rank = ((q * self.total as f64).ceil() as u64).clamp(1, self.total.max(1));
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return upper(index).min(self.max);
            }
        }
        0
    }

    pub fn mean(&self) -> u64 {
        if self.total == 0 {
            return 0;
        }
        (self.sum / u128::from(self.total)) as u64
    }

    pub fn max(&self) -> u64 {
        self.max
    }
}

fn bucket(value: u64) -> usize {
    if value < SUB {
        return value as usize;
    }
    let shift = 63 - value.leading_zeros() - SUB_BITS;
    // value >> shift is in SUB..2*SUB, so consecutive shifts yield consecutive runs of SUB buckets.
    (u64::from(shift) * SUB + (value >> shift)) as usize
}

/// Computes the largest value of a bucket.
fn upper(index: usize) -> u64 {
    let index = index as u64;
    if index < 2 * SUB {
        return index;
    }
    let shift = index / SUB - 1;
    let top = index - shift * SUB;
    ((top + 1) << shift).wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn a_bucket_holds_its_values_and_is_narrow() {
        let mut rng = Rng::new(3);
        for _ in 0..100_000 {
            let value = rng.next_u64() >> rng.below(64);
            let top = upper(bucket(value));
            assert!(top >= value, "{value} in a bucket up to {top}");
            assert!(
                top - value <= value / SUB,
                "{value} in a bucket up to {top}"
            );
        }
        assert_eq!(upper(bucket(u64::MAX)), u64::MAX);
    }

    #[test]
    fn buckets_are_in_the_order_of_their_values() {
        let mut last = 0;
        for value in (0..4096).chain((12..64).flat_map(|p| [(1u64 << p) - 1, 1 << p])) {
            let now = bucket(value);
            assert!(now >= last, "{value}");
            last = now;
        }
    }

    #[test]
    fn quantiles_agree_with_sorting() {
        let mut rng = Rng::new(5);
        let mut all = Histogram::new();
        let mut values = Vec::new();
        for _ in 0..5 {
            let mut part = Histogram::new();
            for _ in 0..1000 {
                let value = rng.next_u64() >> (30 + rng.below(20));
                part.record(value);
                values.push(value);
            }
            all.merge(&part);
        }
        values.sort_unstable();
        for q in [0.5, 0.9, 0.99, 1.0] {
            let exact = values[((q * 5000.0_f64).ceil() as usize) - 1];
            let ours = all.quantile(q);
            assert!(
                ours >= exact && ours - exact <= exact / SUB,
                "{q}: {ours} for {exact}"
            );
        }
        assert_eq!(all.max(), values[4999]);
        assert_eq!(Histogram::new().quantile(0.5), 0);
    }
}
