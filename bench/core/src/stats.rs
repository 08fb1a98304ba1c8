//! Statistics of pairs: the median of their ratios and its interval, which assumes nothing about
//! the distribution of the ratios.
//!
//! The unit is the pair, two runs next to each other in time: a disturbance of the machine usually
//! lasts longer than a run and so affects both halves of a pair. Quotients of medians of unpaired
//! runs are not provided here.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Minimum confidence of every interval.
pub const CONFIDENCE: f64 = 0.95;

/// Computes the median: the middle value, or the mean of the two middle ones for an even count.
/// `None` if `values` is empty or contains a NaN.
pub fn median(values: &[f64]) -> Option<f64> {
    if values.is_empty() || values.iter().any(|v| v.is_nan()) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let mid = sorted.len() / 2;
    Some(match sorted.len() % 2 {
        1 => sorted[mid],
        _ => (sorted[mid - 1] + sorted[mid]) / 2.0,
    })
}

/// Computes the 1-based ranks of the two order statistics of `n` values that enclose the median of
/// the underlying distribution with at least 95 % confidence, and that confidence exactly:
/// `1 - 2 P(Bin(n, 1/2) < low)`. The interval is the narrowest symmetric one. `None` for fewer than
/// 6 values, where even the whole range does not reach 95 %.
pub fn order_statistic_ranks(n: usize) -> Option<(usize, usize, f64)> {
    let mut best = None;
    // P(Bin(n, 1/2) <= k - 1), summed from logarithms because 2^-n underflows beyond n = 1074.
    let mut ln_term = -(n as f64) * std::f64::consts::LN_2;
    let mut below = 0.0;
    for low in 1..=n / 2 {
        below += ln_term.exp();
        let coverage = 1.0 - 2.0 * below;
        if coverage < CONFIDENCE {
            break;
        }
        best = Some((low, n + 1 - low, coverage));
        ln_term += ((n - low + 1) as f64 / low as f64).ln();
    }
    best
}

/// An interval that contains the true median of the ratios with the stated confidence.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Exact confidence, 0.95 or more.
    pub confidence: f64,
    /// 1-based rank of the ratio that is the lower end.
    pub rank_low: usize,
    /// 1-based rank of the ratio that is the upper end.
    pub rank_high: usize,
}

impl Interval {
    /// Checks whether `value` lies inside, ends included.
    pub fn contains(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }
}

/// Statistics of the ratio b / a over pairs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Ratio {
    /// Number of usable pairs.
    pub n: usize,
    /// Pairs excluded because a value was not a positive number.
    pub unusable: usize,
    /// Median of b / a over the pairs; for an even count, the geometric mean of the middle two, so
    /// swapping a and b yields the reciprocal.
    pub median: f64,
    /// Smallest b / a.
    pub min: f64,
    /// Largest b / a.
    pub max: f64,
    /// Confidence interval; absent for fewer than 6 pairs, where only the range is known.
    pub interval: Option<Interval>,
}

/// Computes the ratio b / a over `pairs` of (a, b), or `None` if no pair is usable.
pub fn paired(pairs: &[(f64, f64)]) -> Option<Ratio> {
    let mut ratios: Vec<f64> = pairs
        .iter()
        .filter(|(a, b)| usable(*a) && usable(*b))
        .map(|(a, b)| b / a)
        .filter(|r| usable(*r))
        .collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let n = ratios.len();
    let (first, last) = (*ratios.first()?, *ratios.last()?);
    let mid = n / 2;
    let median = match n % 2 {
        1 => ratios[mid],
        _ => ((ratios[mid - 1].ln() + ratios[mid].ln()) / 2.0).exp(),
    };
    let interval = order_statistic_ranks(n).map(|(low, high, confidence)| Interval {
        low: ratios[low - 1],
        high: ratios[high - 1],
        confidence,
        rank_low: low,
        rank_high: high,
    });
    Some(Ratio {
        n,
        unusable: pairs.len() - n,
        median,
        min: first,
        max: last,
        interval,
    })
}

pub fn usable(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

/// Conclusion about a ratio, given the threshold under which a difference does not matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The whole interval is below 1, and not within the threshold.
    Lower,
    /// The whole interval is above 1, and not within the threshold.
    Higher,
    /// The whole interval is within the threshold of 1.
    Same,
    /// The interval is consistent with more than one of these.
    Undecided,
    /// Too few pairs for an interval.
    NoInterval,
}

/// Computes the verdict about `ratio` for a threshold such as 0.05. The band around 1 is `1/(1+θ)`
/// to `1+θ`, so swapping the arms swaps `Lower` and `Higher` and changes nothing else.
pub fn verdict(ratio: &Ratio, theta: f64) -> Verdict {
    let Some(interval) = ratio.interval else {
        return Verdict::NoInterval;
    };
    if interval.low >= 1.0 / (1.0 + theta) && interval.high <= 1.0 + theta {
        Verdict::Same
    } else if interval.high < 1.0 {
        Verdict::Lower
    } else if interval.low > 1.0 {
        Verdict::Higher
    } else {
        Verdict::Undecided
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Counts one by one the subsets of `n` items with fewer than `low` members.
    fn subsets_smaller_than(low: u32, n: u32) -> u32 {
        (0..1u32 << n).filter(|s| s.count_ones() < low).count() as u32
    }

    #[test]
    fn ranks_are_those_of_the_published_table() {
        for (n, low, high, percent) in [
            (6, 1, 6, 96.9),
            (8, 1, 8, 99.2),
            (10, 2, 9, 97.9),
            (12, 3, 10, 96.1),
            (15, 4, 12, 96.5),
            (20, 6, 15, 95.9),
        ] {
            let (l, h, c) = order_statistic_ranks(n).expect("enough values");
            assert_eq!((l, h), (low, high), "n = {n}");
            assert!((c * 100.0 - percent).abs() < 0.05, "n = {n}: {c}");
        }
    }

    #[test]
    fn ranks_agree_with_counting_all_subsets() {
        for n in 1..=18u32 {
            let mut want = None;
            for low in 1..=n / 2 {
                let outside = 2.0 * f64::from(subsets_smaller_than(low, n)) / f64::from(1u32 << n);
                if 1.0 - outside >= 0.95 {
                    want = Some((low as usize, (n + 1 - low) as usize, 1.0 - outside));
                }
            }
            match (order_statistic_ranks(n as usize), want) {
                (None, None) => assert!(n < 6, "n = {n}"),
                (Some((l, h, c)), Some((wl, wh, wc))) => {
                    assert_eq!((l, h), (wl, wh), "n = {n}");
                    assert!((c - wc).abs() < 1e-12, "n = {n}");
                }
                (got, want) => panic!("n = {n}: {got:?} for {want:?}"),
            }
        }
    }

    #[test]
    fn ranks_of_many_values_follow_the_normal_law() {
        for n in [1_000usize, 2_000, 100_000] {
            let (low, high, confidence) = order_statistic_ranks(n).expect("enough values");
            let normal = n as f64 / 2.0 - 1.959_964 * (n as f64).sqrt() / 2.0;
            assert!(
                (low as f64 - normal).abs() < 2.0,
                "n = {n}: {low} for {normal}"
            );
            assert_eq!(low + high, n + 1);
            assert!((0.95..0.96).contains(&confidence), "n = {n}: {confidence}");
        }
    }

    #[test]
    fn five_pairs_have_a_range_and_no_interval() {
        let ratio = paired(&[(1.0, 2.0), (2.0, 3.0), (1.0, 1.0), (4.0, 2.0), (1.0, 3.0)]).unwrap();
        assert_eq!(ratio.interval, None);
        assert_eq!(
            (ratio.n, ratio.min, ratio.median, ratio.max),
            (5, 0.5, 1.5, 3.0)
        );
        assert_eq!(verdict(&ratio, 0.05), Verdict::NoInterval);
        assert_eq!(paired(&[]), None);
    }

    #[test]
    fn values_that_are_not_positive_numbers_are_left_out_and_counted() {
        let ratio = paired(&[
            (1.0, 2.0),
            (0.0, 1.0),
            (1.0, f64::NAN),
            (-1.0, 1.0),
            (1.0, 0.0),
        ])
        .unwrap();
        assert_eq!((ratio.n, ratio.unusable, ratio.median), (1, 4, 2.0));
        assert_eq!(paired(&[(0.0, 1.0)]), None);
    }

    #[test]
    fn exchanging_the_arms_gives_the_reciprocal() {
        let mut rng = Rng::new(17);
        for n in 1..40 {
            let pairs: Vec<(f64, f64)> = (0..n).map(|_| (draw(&mut rng), draw(&mut rng))).collect();
            let swapped: Vec<(f64, f64)> = pairs.iter().map(|&(a, b)| (b, a)).collect();
            let (ab, ba) = (paired(&pairs).unwrap(), paired(&swapped).unwrap());
            assert!((ab.median * ba.median - 1.0).abs() < 1e-12);
            if let (Some(x), Some(y)) = (ab.interval, ba.interval) {
                assert!((x.low * y.high - 1.0).abs() < 1e-12);
            }
            let mirrored = match verdict(&ab, 0.05) {
                Verdict::Lower => Verdict::Higher,
                Verdict::Higher => Verdict::Lower,
                other => other,
            };
            assert_eq!(verdict(&ba, 0.05), mirrored, "n = {n}, seed 17");
        }
    }

    #[test]
    fn verdicts_follow_the_interval() {
        let of = |low, high| Ratio {
            n: 10,
            unusable: 0,
            median: 1.0,
            min: low,
            max: high,
            interval: Some(Interval {
                low,
                high,
                confidence: 0.979,
                rank_low: 2,
                rank_high: 9,
            }),
        };
        for (low, high, want) in [
            (0.80, 0.90, Verdict::Lower),
            (0.90, 0.999, Verdict::Lower),
            (0.97, 0.99, Verdict::Same),
            (0.97, 1.04, Verdict::Same),
            (0.90, 1.01, Verdict::Undecided),
            (0.97, 1.06, Verdict::Undecided),
            (1.01, 1.10, Verdict::Higher),
        ] {
            assert_eq!(verdict(&of(low, high), 0.05), want, "{low}..{high}");
        }
    }

    #[test]
    fn medians_of_small_sets() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[1.0, f64::NAN]), None);
    }

    /// Draws a positive number whose logarithm is uniform over ±0.5: not a normal distribution,
    /// which the interval must not require.
    fn draw(rng: &mut Rng) -> f64 {
        ((rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64 - 0.5).exp()
    }

    #[test]
    fn equal_arms_are_covered_as_often_as_the_interval_says() {
        // 2,000 simulated studies compare a thing with itself. The claimed coverage is exact, so
        // the count is binomial; the bounds are four standard deviations.
        for n in [6usize, 10, 15, 20] {
            let mut rng = Rng::stream(1, n as u64);
            let labs = 2_000;
            let mut covered = 0;
            for _ in 0..labs {
                // A heavy-tailed disturbance shared by both halves of a pair cancels out.
                let pairs: Vec<(f64, f64)> = (0..n)
                    .map(|_| {
                        let load = draw(&mut rng).powi(6);
                        (load * draw(&mut rng), load * draw(&mut rng))
                    })
                    .collect();
                let interval = paired(&pairs).unwrap().interval.expect("enough pairs");
                covered += u32::from(interval.contains(1.0));
            }
            let claim = order_statistic_ranks(n).unwrap().2;
            let sigma = (claim * (1.0 - claim) / f64::from(labs)).sqrt();
            let seen = f64::from(covered) / f64::from(labs);
            assert!(
                (seen - claim).abs() < 4.0 * sigma,
                "n = {n}: {seen} for {claim}, seed 1"
            );
        }
    }

    #[test]
    fn a_slowdown_of_a_tenth_is_found_and_one_percent_is_not_called_slower() {
        // Runs that scatter by ±3 % around a load that changes fivefold from pair to pair.
        let mut found = 0;
        let mut cried_wolf = 0;
        for lab in 0..500u64 {
            let mut rng = Rng::stream(2, lab);
            let mut sample = |factor: f64| {
                let pairs: Vec<(f64, f64)> = (0..12)
                    .map(|_| {
                        let load = draw(&mut rng).powf(1.6);
                        let a = load * draw(&mut rng).powf(0.06);
                        (a, factor * load * draw(&mut rng).powf(0.06))
                    })
                    .collect();
                verdict(&paired(&pairs).unwrap(), 0.05)
            };
            found += u32::from(sample(0.9) == Verdict::Lower);
            cried_wolf += u32::from(!matches!(sample(0.99), Verdict::Same | Verdict::Undecided));
        }
        assert!(
            found >= 495,
            "a tenth was found by {found} of 500 laboratories"
        );
        assert!(
            cried_wolf <= 25,
            "one percent was called a difference by {cried_wolf} of 500"
        );
    }
}
