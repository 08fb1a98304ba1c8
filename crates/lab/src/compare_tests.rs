//! Series and analysis on made-up runs: no device, no clock.

use super::*;
use crate::result::{End, Run, pairs};
use crate::rng::Rng;
use crate::{CpuTime, Noise, Verdict};

const ARMS: [&str; 3] = ["a", "b", "c"];

fn sample(mib_per_s: f64, cpu_factor: f64) -> Sample {
    Sample {
        bytes: 1 << 30,
        requests: 1 << 14,
        wall_ns: (1024.0 / mib_per_s * 1e9) as u64,
        cpu: CpuTime {
            total_ns: (1e9 * cpu_factor) as u64,
            ..CpuTime::default()
        },
        ..Sample::default()
    }
}

fn plan() -> Plan {
    Plan {
        max_pairs: 0,
        ..Plan::default()
    }
}

/// Runs a series over made-up samples; each run takes a second of a made-up clock.
fn series(
    names: &[&str],
    plan: &Plan,
    make: &mut dyn FnMut(usize) -> Sample,
) -> (Vec<Vec<Run>>, End, bool) {
    let clock = std::cell::Cell::new(Duration::ZERO);
    let mut series = Series::new(names.len(), plan.rules());
    let end = series
        .measure(
            &|| clock.get(),
            &mut |arm| {
                clock.set(clock.get() + Duration::from_secs(1));
                Ok(make(arm))
            },
            &|runs| decided(runs, plan.theta),
            &mut |_| ControlFlow::Continue(()),
        )
        .unwrap();
    (series.runs, end, series.extended)
}

fn comparison(names: &[&str], plan: &Plan, make: &mut dyn FnMut(usize) -> Sample) -> Comparison {
    let (runs, end, extended) = series(names, plan, make);
    let arms = names.iter().zip(runs).map(|(name, runs)| ArmRuns {
        name: (*name).to_owned(),
        facts: ArmFacts::default(),
        device_size: 1 << 30,
        summary: None,
        runs,
    });
    let mut comparison = Comparison {
        schema: crate::SCHEMA.to_owned(),
        spec: Spec::default(),
        plan: plan.clone(),
        environment: Environment::capture(),
        arms: arms.collect(),
        versus: Vec::new(),
        floor: None,
        end,
        extended,
    };
    comparison.analyse();
    comparison
}

#[test]
fn a_block_is_mirrored_and_the_first_arm_stands_next_to_the_others() {
    for names in [&ARMS[..2], &ARMS[..]] {
        let mut ran = Vec::new();
        series(names, &plan(), &mut |arm| {
            ran.push(arm);
            sample(100.0, 1.0)
        });
        let per_block = 2 * names.len();
        assert_eq!(
            ran.len(),
            6 * per_block,
            "a warm-up block and five of two pairs"
        );
        for block in ran.chunks(per_block) {
            let mirrored: Vec<usize> = block.iter().rev().copied().collect();
            assert_eq!(block, mirrored);
            let first_half = &block[..names.len()];
            let at = first_half.iter().position(|&arm| arm == 0).unwrap();
            assert!(
                (0..names.len()).all(|i| i.abs_diff(at) <= 1),
                "{first_half:?}"
            );
        }
        let firsts: std::collections::HashSet<&[usize]> =
            ran.chunks(per_block).map(|b| &b[..names.len()]).collect();
        assert!(firsts.len() > 1, "the seed draws the order block by block");
    }
}

#[test]
fn a_drift_of_the_machine_falls_out_and_sequence_alone_gives_no_difference() {
    // Every run is a hundredth slower than the one before; the arms are alike.
    let mut speed = 100.0;
    let c = comparison(&ARMS, &plan(), &mut |_| {
        speed *= 0.99;
        sample(speed, 1.0)
    });
    for versus in &c.versus {
        assert_eq!(versus.throughput_verdict, Verdict::Same, "{versus:?}");
        let median = versus.throughput.unwrap().median;
        assert!((median - 1.0).abs() < 1e-6, "{median}");
    }
}

#[test]
fn a_tenth_is_found_under_load_that_comes_and_goes() {
    let mut rng = Rng::new(41);
    let mut load = 1.0;
    let mut noise = move |spread: f64| {
        let unit = (rng.next() >> 11) as f64 / (1u64 << 53) as f64;
        1.0 + spread * (unit - 0.5)
    };
    let mut runs = 0;
    let c = comparison(&ARMS, &plan(), &mut |arm| {
        runs += 1;
        if runs % 6 == 1 {
            load = noise(1.6); // A neighbour starts or ends between blocks: 0.2 to 1.8.
        }
        let factor = [1.0, 0.9, 1.0][arm];
        sample(
            500.0 * load * factor * noise(0.04),
            [1.0, 1.2, 1.0][arm] * noise(0.02),
        )
    });
    let [b, c] = &c.versus[..] else { panic!() };
    assert_eq!(b.throughput_verdict, Verdict::Lower, "seed 41: {b:?}");
    assert_eq!(b.cpu_verdict, Verdict::Higher, "seed 41: {b:?}");
    assert_eq!(c.throughput_verdict, Verdict::Same, "seed 41: {c:?}");
    assert_eq!(c.cpu_verdict, Verdict::Same, "seed 41: {c:?}");
}

#[test]
fn the_warm_up_block_is_kept_and_not_counted() {
    let mut runs = 0;
    let c = comparison(&ARMS[..2], &plan(), &mut |arm| {
        runs += 1;
        // A first block in which the second arm is ten times slower.
        let slow = if runs <= 4 && arm == 1 { 0.1 } else { 1.0 };
        sample(100.0 * slow, 1.0)
    });
    assert_eq!(c.versus[0].pairs, 10);
    assert_eq!(c.versus[0].throughput.unwrap().min, 1.0);
    assert_eq!(c.arms[1].runs.iter().filter(|r| r.warm_up).count(), 2);
    assert_eq!(c.arms[1].summary.unwrap().runs, 10);
}

#[test]
fn the_budget_ends_a_series_after_a_whole_block_and_says_so() {
    let plan = Plan {
        budget: Duration::from_secs(17),
        ..plan()
    };
    // A block of two arms takes four seconds: warm-up, then three fit, and the next would not.
    let c = comparison(&ARMS[..2], &plan, &mut |_| sample(100.0, 1.0));
    assert_eq!((c.versus[0].pairs, c.end), (6, End::Budget));
    assert!(crate::table(&[c]).contains("the budget ended before"));
    let tight = Plan {
        budget: Duration::ZERO,
        ..plan
    };
    let c = comparison(&ARMS[..2], &tight, &mut |_| sample(100.0, 1.0));
    assert_eq!(c.versus[0].pairs, 2, "one block is always measured");
    assert!(crate::table(&[c]).contains("no interval"));
}

#[test]
fn an_undecided_series_goes_on_and_says_so() {
    let plan = Plan {
        max_pairs: 40,
        ..Plan::default()
    };
    let mut runs = 0;
    let c = comparison(&ARMS[..2], &plan, &mut |arm| {
        runs += 1;
        // For ten pairs the second arm wins and loses by turns; then it always loses.
        let swing = if (runs / 4) % 2 == 0 { 1.3 } else { 0.7 };
        let factor = if runs > 24 { 0.8 } else { swing };
        sample(if arm == 1 { 100.0 * factor } else { 100.0 }, 1.0)
    });
    assert!(c.extended && c.versus[0].pairs > 10, "{:?}", c.versus);
    assert!(crate::table(&[c]).contains("looser"));
}

#[test]
fn a_stopped_series_keeps_whole_pairs_and_every_run() {
    let plan = plan();
    let names = &ARMS[..2];
    let run_until = |stop_after: u32| {
        let mut series = Series::new(names.len(), plan.rules());
        let mut left = stop_after;
        let end = series.measure(
            &|| Duration::ZERO,
            &mut |_| Ok(sample(100.0, 1.0)),
            &|_| true,
            &mut |_| {
                left -= 1;
                if left == 0 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            },
        );
        (end, series.pairs, series.runs)
    };
    let (end, _, _) = run_until(5);
    assert!(matches!(end, Err(Error::Stopped)));
    let (end, complete, runs) = run_until(7);
    assert_eq!((end.unwrap(), complete), (End::Stopped, 1));
    assert_eq!(runs.iter().map(Vec::len).sum::<usize>(), 7);
    assert_eq!(pairs(&runs[0], &runs[1]).len(), 1);
}

#[test]
fn foreign_load_and_unequal_device_bytes_are_reported() {
    let mut runs = 0;
    let c = comparison(&ARMS[..2], &plan(), &mut |arm| {
        runs += 1;
        Sample {
            noise: Noise {
                outside_cores: Some(if runs % 8 == 0 { 1.5 } else { 0.0 }),
                ..Noise::default()
            },
            device: Some(DeviceBytes {
                read: if arm == 0 { 1 << 30 } else { 0 },
                ..DeviceBytes::default()
            }),
            ..sample(100.0, 1.0)
        }
    });
    let versus = &c.versus[0];
    assert!(versus.tainted_pairs > 0 && versus.tainted_pairs < versus.pairs);
    assert!(versus.device_bytes_differ);
    assert!(crate::table(std::slice::from_ref(&c)).contains("NOT COMPARABLE"));
}

#[test]
fn json_holds_every_run_and_is_read_back_equal() {
    let mut speed = 100.0;
    let c = comparison(&ARMS, &plan(), &mut |_| {
        speed += 1.0;
        sample(speed, 1.1)
    });
    let json = c.to_json();
    let back = crate::from_json(&json).unwrap();
    assert!(back == c, "a number changed on its way through JSON");
    assert_eq!(back.arms[2].runs.len(), 12);
    let mut again = back.clone();
    again.analyse();
    assert!(again == back, "the derived values follow from the raw ones");
    for (bad, says) in [
        (json.replace("comparison/1", "comparison/9"), "schema"),
        ("{}".to_owned(), "schema"),
        (json[..json.len() / 2].to_owned(), "EOF"),
    ] {
        let error = crate::from_json(&bad).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn calibration_finds_passes_for_the_fastest_arm() {
    let plan = Plan {
        min_wall: Duration::from_secs(2),
        ..plan()
    };
    // A pass takes 10 ms on one arm, 30 ms on the other, and 50 ms once at the start.
    let mut first = true;
    let passes = calibrate(2, &Spec::default(), &plan, &mut |arm, spec| {
        let extra = if std::mem::take(&mut first) {
            50_000_000
        } else {
            0
        };
        Ok(Sample {
            wall_ns: extra + u64::from(spec.passes) * [30_000_000, 10_000_000][arm],
            ..Sample::default()
        })
    })
    .unwrap();
    assert!((180..=240).contains(&passes), "{passes}");
    let as_given = Plan {
        min_wall: Duration::ZERO,
        ..plan
    };
    let passes = calibrate(2, &Spec::default(), &as_given, &mut |_, _| unreachable!()).unwrap();
    assert_eq!(passes, 1);
}

#[test]
fn a_floor_that_does_not_hold_one_is_unfit() {
    let floor = |later: f64| {
        let mut runs = 0;
        measure_floor(
            6,
            &mut || {
                runs += 1;
                // "A" is the first of even pairs and the second of odd ones.
                let is_b = matches!(runs % 4, 2 | 3);
                Ok(sample(if is_b { 100.0 * later } else { 100.0 }, 1.0))
            },
            &mut |_| ControlFlow::Continue(()),
        )
        .unwrap()
    };
    assert!(floor(1.0).fit());
    let unfit = floor(0.9);
    assert!(!unfit.fit());
    assert_eq!(unfit.samples.len(), 12);
}
