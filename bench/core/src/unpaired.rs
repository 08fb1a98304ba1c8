//! Comparison of two sets of runs that did not run side by side: an old result and a new one.
//!
//! The estimate is that of Hodges and Lehmann (1963), the median of all ratios of one value from
//! each set; the interval is the exact one of the Mann-Whitney test (1947). Neither assumes a
//! normal distribution. Anything that changed between the two results, such as the kernel or the
//! load, is part of the ratio; only pairs remove it.

use crate::stats::{CONFIDENCE, Interval, Ratio, median, usable};

/// Set size above which the normal approximation provides the ranks: the exact count takes too
/// long, and both agree to a rank in a thousand.
const EXACT_MAX: usize = 60;
/// 97.5 % quantile of the standard normal distribution, for a two-sided 95 % interval.
const QUANTILE: f64 = 1.959_964;

/// Computes the ratio b / a, or `None` if a set has no usable value. The interval is absent if even
/// the whole range does not reach 95 %, as for 3 values against 3.
pub fn unpaired(a: &[f64], b: &[f64]) -> Option<Ratio> {
    let keep = |set: &[f64]| -> Vec<f64> { set.iter().copied().filter(|v| usable(*v)).collect() };
    let (x, y) = (keep(a), keep(b));
    let unusable = a.len() + b.len() - x.len() - y.len();
    let mut logs: Vec<f64> = x
        .iter()
        .flat_map(|a| y.iter().map(move |b| (b / a).ln()))
        .collect();
    logs.sort_unstable_by(f64::total_cmp);
    let middle = median(&logs)?;
    let interval = rank(x.len(), y.len()).map(|(low, confidence)| {
        let high = logs.len() + 1 - low;
        Interval {
            low: logs[low - 1].exp(),
            high: logs[high - 1].exp(),
            confidence,
            rank_low: low,
            rank_high: high,
        }
    });
    Some(Ratio {
        n: x.len().min(y.len()),
        unusable,
        median: middle.exp(),
        min: logs.first()?.exp(),
        max: logs.last()?.exp(),
        interval,
    })
}

/// Computes the largest lower rank whose interval reaches 95 %, and its confidence.
fn rank(m: usize, n: usize) -> Option<(usize, f64)> {
    if m == 0 || n == 0 {
        return None;
    }
    if m > EXACT_MAX || n > EXACT_MAX {
        let (m, n) = (m as f64, n as f64);
        let spread = (m * n * (m + n + 1.0) / 12.0).sqrt();
        let low = (m * n / 2.0 - QUANTILE * spread).floor();
        return (low >= 1.0).then_some((low as usize, CONFIDENCE));
    }
    let counts = counts(m, n);
    let all: f64 = counts.iter().sum();
    let mut best = None;
    let mut below = 0.0;
    for (u, count) in counts.iter().enumerate().take(m * n / 2 + 1) {
        below += count / all;
        let confidence = 1.0 - 2.0 * below;
        if confidence < CONFIDENCE {
            break;
        }
        best = Some((u + 1, confidence));
    }
    best
}

/// Counts, for each value of the Mann-Whitney U, the orders of m and n items that yield it.
///
/// These are the coefficients of the Gaussian binomial, built up from its factors
/// `(1 - q^(n+i)) / (1 - q^i)`.
fn counts(m: usize, n: usize) -> Vec<f64> {
    let mut counts = vec![0.0; m * n + 1];
    counts[0] = 1.0;
    for i in 1..=m {
        for u in (n + i..counts.len()).rev() {
            counts[u] -= counts[u - n - i];
        }
        for u in i..counts.len() {
            counts[u] += counts[u - i];
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn counts_agree_with_trying_all_orders() {
        for (m, n) in [(1, 1), (2, 3), (4, 4), (5, 3), (6, 6)] {
            let mut want = vec![0.0; m * n + 1];
            for order in 0..1u32 << (m + n) {
                if order.count_ones() as usize != m {
                    continue;
                }
                // U: for each of the m items, the number of the n items before it.
                let (mut u, mut before) = (0, 0);
                for place in 0..m + n {
                    match order >> place & 1 {
                        1 => u += before,
                        _ => before += 1,
                    }
                }
                want[u] += 1.0;
            }
            assert_eq!(counts(m, n), want, "{m} and {n}");
        }
        let all: f64 = counts(20, 20).iter().sum();
        assert_eq!(all, 137_846_528_820.0, "40 over 20");
    }

    #[test]
    fn ranks_are_those_of_the_published_tables() {
        // Two-sided 5 % critical values of U, as in textbooks; the rank is one more.
        for (m, n, critical) in [
            (4, 4, 0),
            (5, 5, 2),
            (8, 8, 13),
            (10, 10, 23),
            (20, 20, 127),
        ] {
            assert_eq!(rank(m, n).unwrap().0, critical + 1, "{m} and {n}");
        }
        assert_eq!(rank(3, 3), None);
        let (exact, _) = rank(60, 60).unwrap();
        let (near, _) = rank(61, 60).unwrap();
        assert!(
            (near as f64 / exact as f64 - 1.0).abs() < 0.03,
            "{near} for {exact}"
        );
    }

    #[test]
    fn equal_sets_are_covered_as_often_as_claimed() {
        let labs = 2000;
        let mut covered = 0;
        for lab in 0..labs {
            let mut rng = Rng::stream(3, lab);
            let mut set = || -> Vec<f64> {
                let draw =
                    |rng: &mut Rng| ((rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64).exp();
                (0..8).map(|_| draw(&mut rng)).collect()
            };
            let (a, b) = (set(), set());
            let interval = unpaired(&a, &b).unwrap().interval.unwrap();
            covered += u32::from(interval.contains(1.0));
        }
        let claim = rank(8, 8).unwrap().1;
        let sigma = (claim * (1.0 - claim) / labs as f64).sqrt();
        let seen = f64::from(covered) / labs as f64;
        assert!(
            (seen - claim).abs() < 4.0 * sigma,
            "{seen} for {claim}, seed 3"
        );
    }

    #[test]
    fn a_shift_is_found_and_nothing_is_made_of_nothing() {
        let a = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0];
        let b = a.map(|v| v * 1.2);
        let ratio = unpaired(&a, &b).unwrap();
        assert!((ratio.median - 1.2).abs() < 1e-9);
        assert!(ratio.interval.unwrap().low > 1.1);
        assert_eq!(unpaired(&a, &[]), None);
        assert_eq!(unpaired(&a, &[f64::NAN, 1.0]).unwrap().unusable, 1);
    }
}
