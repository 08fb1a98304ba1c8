//! Studies of simulated and real runs: order, resuming, and the frequency of false claims.

use crate::analysis::{self, Judgement, Kind, findings};
use crate::difference::{changes, gate};
use crate::journal::{Journal, STUDY_SCHEMA, load};
use crate::session::{Side, Step, study};
use crate::study::{Study, StudyPlan};
use bench_core::record::{Better, Phase, PhaseFigure};
use bench_core::result::{End, Run};
use bench_core::rng::Rng;
use bench_core::series::Series;
use bench_core::stats::{order_statistic_ranks, paired};
use bench_core::{Record, Result, Target};
use bench_load::Job;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

/// Creates sides of a CPU study whose runs take a millisecond.
fn sides(names: &[&str]) -> Vec<Side> {
    let mut job = Job::named("dhrystone", bench_load::Extent::Quick).unwrap();
    job.set("millis", "1").unwrap();
    let side = |name: &&str| Side::new(*name, Target::machine(), job.clone());
    names.iter().map(side).collect()
}

fn plan() -> StudyPlan {
    StudyPlan {
        pairs: 2,
        max_pairs: 2,
        ..StudyPlan::default()
    }
}

/// Runs the study until `new_runs` new runs have finished.
fn until(path: &Path, sides: &[Side], plan: &StudyPlan, new_runs: u32) -> Result<Study> {
    let mut journal = Journal::open(path)?;
    let mut made = 0;
    study(sides, plan, &mut journal, &mut |step| {
        if let Step::Ran { replayed, .. } = step {
            made += u32::from(!replayed);
        }
        if made >= new_runs {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })
}

fn places(study: &Study) -> Vec<Vec<(u32, u32, u32)>> {
    let place = |run: &Run<Record>| (run.block, run.half, run.position);
    study
        .runs
        .iter()
        .map(|runs| runs.iter().map(place).collect())
        .collect()
}

#[test]
fn a_study_that_was_stopped_anywhere_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (sides, plan) = (sides(&["a", "b"]), plan());
    let whole = until(&dir.path().join("whole"), &sides, &plan, u32::MAX).unwrap();
    // A warm-up block and one more, of two halves with two sides and the control each.
    assert_eq!(whole.runs.iter().map(Vec::len).sum::<usize>(), 12);
    assert_eq!(whole.end, Some(End::Complete));
    for stop in [1, 3, 6, 7, 11] {
        let path = dir.path().join(format!("stopped-{stop}"));
        let partial = until(&path, &sides, &plan, stop);
        // A study stopped before the first pair has no end, but its runs are kept.
        let kept = load(&path).unwrap();
        assert_eq!(kept.runs.iter().map(Vec::len).sum::<usize>(), stop as usize);
        assert!(partial.is_ok_and(|s| s.end != Some(End::Complete)));
        let done = until(&path, &sides, &plan, u32::MAX).unwrap();
        assert_eq!(places(&done), places(&whole), "stopped after {stop}");
        assert_eq!((done.end, done.sessions.len()), (Some(End::Complete), 2));
        assert_eq!(load(&path).unwrap(), done);
        // Existing runs are not repeated.
        let first = |s: &Study| s.runs.iter().flatten().map(|r| r.sample.wall_ns()).max();
        assert!(first(&done) >= first(&kept));
    }
}

#[test]
fn a_journal_that_was_cut_off_anywhere_is_valid() {
    let dir = tempfile::tempdir().unwrap();
    let (sides, plan) = (sides(&["a", "b"]), plan());
    let path = dir.path().join("journal");
    let whole = until(&path, &sides, &plan, u32::MAX).unwrap();
    let text = std::fs::read(&path).unwrap();
    let head = text.iter().position(|b| *b == b'\n').unwrap() + 1;
    let cut = dir.path().join("cut");
    let mut rng = Rng::new(9);
    for _ in 0..40 {
        let at = head + rng.below((text.len() - head) as u32) as usize;
        std::fs::write(&cut, &text[..at]).unwrap();
        let partial = load(&cut).unwrap();
        let runs = partial.runs.iter().map(Vec::len).sum::<usize>();
        assert!(runs <= 12, "cut at {at}, seed 9");
        findings(&partial);
    }
    let resumed = until(&cut, &sides, &plan, u32::MAX).unwrap();
    assert_eq!(places(&resumed), places(&whole));
    std::fs::write(&cut, &text[..head / 2]).unwrap();
    assert!(load(&cut).is_err(), "half a head is no study");
}

#[test]
fn a_journal_that_was_cut_within_a_letter_is_valid() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    // The line of a failure contains the name of its side, which has multibyte characters.
    let mut sides = sides(&["µ–µ"]);
    sides[0].before = Some("echo µ–µ >&2; false".into());
    until(&path, &sides, &plan(), u32::MAX).unwrap_err();
    let text = std::fs::read(&path).unwrap();
    assert!(!text[text.len() - 40..].is_ascii(), "letters to cut");
    for at in text.len() - 40..text.len() {
        std::fs::write(&path, &text[..at]).unwrap();
        assert_eq!(load(&path).unwrap().failure, None, "cut at {at}");
    }
    sides[0].before = Some("echo µ–µ >&2; false".into());
    until(&path, &sides, &plan(), 1).unwrap_err();
    assert!(load(&path).unwrap().failure.is_some());
}

#[test]
fn a_daemon_that_is_not_there_is_not_counted_as_idle() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let mut sides = sides(&["a"]);
    let mut child = std::process::Command::new("sleep")
        .arg("60")
        .spawn()
        .unwrap();
    sides[0].target.daemons = vec![child.id()];
    until(&path, &sides, &plan(), 1).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let refused = until(&path, &sides, &plan(), u32::MAX).unwrap_err();
    assert!(refused.to_string().contains("is not running"), "{refused}");
    assert_eq!(load(&path).unwrap().runs[0].len(), 1);
}

#[test]
fn one_benchmark_at_a_time_writes_a_journal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let first = Journal::open(&path).unwrap();
    let second = Journal::open(&path).err().unwrap().in_words();
    assert!(second.contains("another `evfs bench`"), "{second}");
    drop(first);
    Journal::open(&path).unwrap();
}

#[test]
fn a_journal_of_something_else_is_refused_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    until(&path, &sides(&["a", "b"]), &plan(), u32::MAX).unwrap();
    let before = std::fs::read(&path).unwrap();
    let other = StudyPlan { seed: 2, ..plan() };
    for (names, plan) in [(["a", "c"], plan()), (["a", "b"], other)] {
        let refused = until(&path, &sides(&names), &plan, 1).unwrap_err();
        assert!(refused.to_string().contains("--out"), "{refused}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), before);
    let mut file = std::fs::File::options().append(true).open(&path).unwrap();
    file.write_all(b"{\"run\":{}}\n").unwrap();
    let wrong = load(&path).unwrap_err().to_string();
    assert!(wrong.contains("line "), "{wrong}");
}

#[test]
fn a_run_that_fails_is_noted_and_what_was_run_stays() {
    let dir = tempfile::tempdir().unwrap();
    let marker = dir.path().join("marker");
    let mut sides = sides(&["a", "b"]);
    // The command fails from the side's third run on.
    let command = format!(
        "printf x >>{0}; test \"$(wc -c <{0})\" -lt 3 || {{ echo no luck >&2; exit 1; }}",
        marker.display()
    );
    sides[1].before = Some(command);
    let path = dir.path().join("journal");
    let failed = until(&path, &sides, &plan(), u32::MAX).unwrap_err();
    assert!(failed.to_string().contains("no luck"), "{failed}");
    let kept = load(&path).unwrap();
    assert!(
        kept.failure
            .as_ref()
            .is_some_and(|why| why.contains("no luck"))
    );
    assert_eq!(kept.runs[1].len(), 2);
    // Without the failure, the study resumes.
    std::fs::remove_file(&marker).unwrap();
    let plan = plan();
    assert!(until(&path, &sides, &plan, 1).is_ok());
    assert_eq!(load(&path).unwrap().failure, None);
}

/// Creates a study of simulated runs; `value` returns the rate of a side.
fn made_up(plan: &StudyPlan, mut value: impl FnMut(usize) -> f64) -> Study {
    let record = |rate: f64| Record {
        phases: vec![Phase {
            name: "p".into(),
            cells: vec![
                PhaseFigure::rate("rate", "MiB/s", rate, 1.0),
                PhaseFigure::cost("CPU", "s/GiB", 1.0, 1.0),
            ],
            ..Phase::default()
        }],
        ..Record::default()
    };
    let mut series = Series::new(3, plan.rules());
    let end = series.measure(
        &|| Duration::ZERO,
        &mut |arm| Ok(record(value(arm))),
        &|runs| analysis::narrow(runs, 2, plan.width),
        &mut |_| ControlFlow::Continue(()),
    );
    Study {
        schema: STUDY_SCHEMA.into(),
        workload: "dhrystone".into(),
        sides: sides(&["a", "b"]).iter().map(Side::stored).collect(),
        plan: plan.clone(),
        sessions: Vec::new(),
        times: 1,
        runs: series.runs,
        end: end.ok(),
        failure: None,
        extended: series.extended,
    }
}

/// Draws a number around 1 with approximately this standard deviation, from the sum of twelve
/// uniform ones.
fn bell(rng: &mut Rng, deviation: f64) -> f64 {
    let even = |rng: &mut Rng| (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    let sum: f64 = (0..12).map(|_| even(rng)).sum();
    ((sum - 6.0) * deviation).exp()
}

/// Simulates `labs` studies with this spread whose second side is `factor` times as fast. Returns
/// the judgements, the fraction of intervals that contain the true value, and the mean number of
/// pairs.
fn repeated(labs: u64, spread: f64, factor: f64) -> (Vec<Judgement>, f64, f64) {
    let plan = StudyPlan {
        pairs: 6,
        max_pairs: 100,
        ..StudyPlan::default()
    };
    let (mut said, mut covered, mut count) = (Vec::new(), 0.0, 0.0);
    for lab in 0..labs {
        let mut rng = Rng::stream(1000 + (spread * 1e3) as u64, lab);
        // The load of the machine drifts from run to run, for both sides alike.
        let mut load = 1.0;
        let study = made_up(&plan, |arm| {
            load *= bell(&mut rng, 0.02);
            let side = if arm == 1 { factor } else { 1.0 };
            100.0 * load * side * bell(&mut rng, spread)
        });
        let (found, _) = findings(&study);
        let ratio = found[0].ratio.unwrap();
        covered += f64::from(u8::from(ratio.interval.unwrap().contains(factor)));
        count += ratio.n as f64;
        said.push(found[0].judgement);
    }
    (said, covered / labs as f64, count / labs as f64)
}

#[test]
fn a_thing_against_itself_is_called_different_at_most_once_in_twenty() {
    let labs = 1000;
    for spread in [0.005, 0.03, 0.1] {
        let (said, covered, pairs) = repeated(labs, spread, 1.0);
        let wrong = said
            .iter()
            .filter(|j| matches!(j, Judgement::Better | Judgement::Worse))
            .count();
        // The control makes false claims rarer than the one in twenty of an interval.
        assert!(
            (wrong as f64) < 0.03 * labs as f64,
            "{wrong} of {labs} at a spread of {spread}"
        );
        // Stopping when the interval is narrow costs a little of its coverage, never much.
        assert!(
            covered > 0.9,
            "covered {covered} at {spread}, {pairs} pairs"
        );
    }
}

#[test]
fn effects_are_found_where_the_spread_allows_it() {
    let (said, _, few) = repeated(300, 0.01, 0.9);
    let worse = said.iter().filter(|j| **j == Judgement::Worse).count();
    assert!(worse >= 285, "{worse} of 300 found a slowdown of a tenth");
    let (said, _, many) = repeated(300, 0.05, 0.99);
    let cried = said.iter().filter(|j| **j == Judgement::Worse).count();
    assert!(cried <= 15, "{cried} of 300 called one percent worse");
    assert!(
        few < 12.0 && many > few,
        "pairs: {few}, and {many} where runs scatter"
    );
}

#[test]
fn a_claim_no_larger_than_the_noise_is_withheld() {
    let ratio = |pairs: &[(f64, f64)]| paired(pairs).unwrap();
    let effect = ratio(&[(1.0, 0.9); 8]);
    let (quiet, noisy) = (ratio(&[(1.0, 1.001); 8]), ratio(&[(1.0, 0.94); 8]));
    let judge = |control, beside, better| {
        let ratios = analysis::Ratios {
            ratio: effect,
            control,
            beside,
        };
        analysis::verdict_of(&ratios, better, 0.05)
    };
    let higher = |control, beside| judge(control, beside, Better::Higher);
    assert_eq!(higher(None, None), Judgement::Worse);
    assert_eq!(higher(Some(quiet), Some(effect)), Judgement::Worse);
    assert_eq!(higher(Some(noisy), Some(effect)), Judgement::Noise);
    assert_eq!(higher(Some(quiet), Some(quiet)), Judgement::Noise);
    assert_eq!(judge(None, None, Better::Lower), Judgement::Better);
    assert_eq!(order_statistic_ranks(8).unwrap().0, 1);
}

#[test]
fn figures_of_different_directions_have_one_mean_and_far_pairs_are_marked() {
    let plan = StudyPlan {
        pairs: 8,
        max_pairs: 8,
        ..StudyPlan::default()
    };
    let mut runs = 0;
    let study = made_up(&plan, |arm| {
        runs += 1;
        let scatter = 1.0 + 0.001 * f64::from(runs % 7);
        let far = if runs == 20 { 5.0 } else { 1.0 };
        if arm == 1 {
            80.0 * scatter * far
        } else {
            100.0
        }
    });
    let (found, means) = findings(&study);
    let finding = &found[0];
    assert!(
        (finding.change().unwrap() + 20.0).abs() < 1.0,
        "{finding:?}"
    );
    assert_eq!(finding.judgement, Judgement::Worse);
    assert!(finding.far <= 1, "{finding:?}");
    let headline = means.iter().find(|m| m.kind == Kind::Headline).unwrap();
    assert!((headline.gain.unwrap().median - 0.8).abs() < 0.02);
    let mean_cpu = means.iter().find(|m| m.kind == Kind::Cpu).unwrap();
    assert_eq!(mean_cpu.counts, [(Judgement::Same, 1)]);
}

#[test]
fn a_regression_closes_the_gate_and_noise_does_not() {
    let plan = StudyPlan {
        pairs: 12,
        max_pairs: 12,
        ..StudyPlan::default()
    };
    let study = |seed: u64, factor: f64| {
        let mut rng = Rng::new(seed);
        // On another day the machine is half as fast, for both sides.
        let day = if seed == 1 { 1.0 } else { 0.5 };
        made_up(&plan, |arm| {
            let side = if arm == 1 { 0.8 * factor } else { 1.0 };
            100.0 * day * side * bell(&mut rng, 0.01)
        })
    };
    let (old, same, slower) = (study(1, 1.0), study(2, 1.0), study(3, 0.9));
    let unchanged = changes(&old, &same, 0.05).unwrap();
    assert!(gate(&unchanged, 0.05).is_empty(), "{unchanged:?}");
    let changed = changes(&old, &slower, 0.05).unwrap();
    let closed = gate(&changed, 0.05);
    assert_eq!(closed.len(), 1, "{changed:?}");
    assert_eq!(
        (closed[0].side.as_str(), closed[0].cell.as_str()),
        ("b / a", "rate")
    );
    assert!(gate(&changed, 0.2).is_empty());
    let mut other = slower;
    other.sides[1].job.set("millis", "7").unwrap();
    assert!(changes(&old, &other, 0.05).is_err());
}
