//! Orders and ends of series of simulated runs, without a device or a clock.

use super::*;
use crate::result::pairs;
use crate::stats::{Ratio, paired};
use std::cell::Cell;

fn rules() -> Rules {
    Rules {
        pairs: 10,
        max_pairs: 0,
        budget: Duration::from_secs(600),
        extra: Duration::from_secs(600),
        discard_first: true,
        seed: 1,
    }
}

/// Measures a series of `arms`; each run takes a second of a simulated clock and returns the value
/// of `make`.
fn series(arms: usize, rules: Rules, mut make: impl FnMut(usize) -> f64) -> (Series<f64>, End) {
    let clock = Cell::new(Duration::ZERO);
    let mut series = Series::new(arms, rules);
    let end = series.measure(
        &|| clock.get(),
        &mut |arm| {
            clock.set(clock.get() + Duration::from_secs(1));
            Ok(make(arm))
        },
        &|_| false,
        &mut |_| ControlFlow::Continue(()),
    );
    (series, end.unwrap())
}

fn ratio(series: &Series<f64>, other: usize) -> Ratio {
    let pairs = pairs(&series.runs[0], &series.runs[other]);
    let values: Vec<(f64, f64)> = pairs.into_iter().map(|(a, b)| (*a, *b)).collect();
    paired(&values).unwrap()
}

#[test]
fn a_block_is_mirrored_and_the_first_arm_stands_next_to_the_others() {
    for arms in [2, 3] {
        let mut ran = Vec::new();
        series(arms, rules(), |arm| {
            ran.push(arm);
            1.0
        });
        // A warm-up block and five blocks of two pairs.
        assert_eq!(ran.len(), 6 * 2 * arms);
        for block in ran.chunks(2 * arms) {
            let mirrored: Vec<usize> = block.iter().rev().copied().collect();
            assert_eq!(block, mirrored);
            let half = &block[..arms];
            let at = half.iter().position(|&arm| arm == 0).unwrap();
            assert!((0..arms).all(|i| i.abs_diff(at) <= 1), "{half:?}");
        }
        let halves = ran.chunks(2 * arms).map(|block| &block[..arms]);
        let different: std::collections::HashSet<&[usize]> = halves.collect();
        assert!(
            different.len() > 1,
            "the seed draws the order block by block"
        );
    }
}

#[test]
fn a_drift_of_the_machine_falls_out() {
    // Every run is a hundredth slower than the one before; the arms are alike.
    let mut speed = 100.0;
    let (series, _) = series(3, rules(), |_| {
        speed *= 0.99;
        speed
    });
    for other in [1, 2] {
        let median = ratio(&series, other).median;
        assert!((median - 1.0).abs() < 1e-6, "{median}");
    }
}

#[test]
fn a_tenth_is_found_under_load_that_comes_and_goes() {
    let mut rng = Rng::new(41);
    let mut noise = |spread: f64| {
        let unit = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        1.0 + spread * (unit - 0.5)
    };
    let (mut runs, mut load) = (0, 1.0);
    let (series, _) = series(3, rules(), |arm| {
        runs += 1;
        if runs % 6 == 1 {
            // A background load starts or ends between blocks: 0.2 to 1.8.
            load = noise(1.6);
        }
        500.0 * load * [1.0, 0.9, 1.0][arm] * noise(0.04)
    });
    let slower = ratio(&series, 1).interval.unwrap();
    let same = ratio(&series, 2).interval.unwrap();
    assert!(
        slower.high < 0.95 && slower.contains(0.9),
        "seed 41: {slower:?}"
    );
    assert!(same.contains(1.0) && same.low > 0.95, "seed 41: {same:?}");
}

#[test]
fn the_warm_up_block_is_kept_and_not_counted() {
    let mut runs = 0;
    let (series, _) = series(2, rules(), |arm| {
        runs += 1;
        // A first block in which the second arm is ten times slower.
        if runs <= 4 && arm == 1 { 10.0 } else { 100.0 }
    });
    let ratio = ratio(&series, 1);
    assert_eq!((ratio.n, ratio.min), (10, 1.0));
    assert_eq!(series.runs[1].iter().filter(|run| run.warm_up).count(), 2);
}

#[test]
fn the_budget_ends_a_series_after_a_whole_block() {
    // A block of two arms takes four seconds: the warm-up and three more fit, the next would not.
    let of = |secs| Rules {
        budget: Duration::from_secs(secs),
        ..rules()
    };
    let (some, end) = series(2, of(17), |_| 1.0);
    assert_eq!((some.pairs, end), (6, End::Budget));
    let (one, end) = series(2, of(0), |_| 1.0);
    assert_eq!(
        (one.pairs, end),
        (2, End::Budget),
        "one block is always measured"
    );
}

#[test]
fn pairs_beyond_the_plan_have_a_time_of_their_own() {
    let rules = Rules {
        pairs: 4,
        max_pairs: 40,
        extra: Duration::from_secs(9),
        ..rules()
    };
    let clock = Cell::new(0);
    let mut series = Series::new(2, rules);
    let end = series.measure(
        &|| Duration::from_secs(clock.get()),
        &mut |_| {
            clock.set(clock.get() + 1);
            Ok(1.0)
        },
        &|_| false,
        &mut |_| ControlFlow::Continue(()),
    );
    // The planned pairs take 12 seconds, and no further block is started.
    assert_eq!((series.pairs, end.unwrap()), (4, End::Complete));
}

#[test]
fn a_series_goes_on_until_it_is_enough_and_no_further_than_allowed() {
    let rules = Rules {
        max_pairs: 40,
        ..rules()
    };
    for (wanted, given) in [(0, 10), (13, 14), (100, 40)] {
        let mut series = Series::new(2, rules);
        let end = series.measure(
            &|| Duration::ZERO,
            &mut |_| Ok(1.0),
            &|runs: &[Vec<Run<f64>>]| pairs(&runs[0], &runs[1]).len() >= wanted,
            &mut |_| ControlFlow::Continue(()),
        );
        assert_eq!((series.pairs, end.unwrap()), (given, End::Complete));
        assert_eq!(series.extended, given > 10);
    }
}

#[test]
fn a_stopped_series_keeps_whole_pairs_and_every_run() {
    let run_until = |stop_after: u32| {
        let mut series = Series::new(2, rules());
        let mut left = stop_after;
        let end = series.measure(&|| Duration::ZERO, &mut |_| Ok(1.0), &|_| true, &mut |_| {
            left -= 1;
            match left {
                0 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        });
        (end, series)
    };
    assert!(matches!(run_until(5).0, Err(Error::Stopped)));
    let (end, series) = run_until(7);
    assert_eq!((end.unwrap(), series.pairs), (End::Stopped, 1));
    assert_eq!(series.runs.iter().map(Vec::len).sum::<usize>(), 7);
    assert_eq!(pairs(&series.runs[0], &series.runs[1]).len(), 1);
}
