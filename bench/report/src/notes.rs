//! Notes of a study: how to read its figures, and what speaks against them.

use crate::label::readable;
use bench_core::Facts;
use bench_core::facts::Accelerator;
use bench_core::record::{Phase, Record};
use bench_core::result::{End, Run};
use bench_load::Job;
use bench_study::{Finding, Judgement, Kind, Study};

/// Maximum difference of two sides' device bytes per requested byte; beyond it they accessed the
/// device differently.
const PROOF_TOLERANCE: f64 = 0.05;
/// Minimum fraction of written bytes that reached the device; if less, the writes went to a cache.
const TO_DEVICE: f64 = 0.9;

/// Collects the notes for the reader, without duplicates.
pub fn notes(study: &Study, found: &[Finding]) -> Vec<String> {
    let mut notes = Vec::new();
    if study.sessions.first().is_some_and(|first| !first.optimised) {
        notes.push("DEBUG BUILD: figures of a build without optimization are meaningless".into());
    }
    notes.extend(differences(study));
    if study.sides.len() > 1 {
        notes.push(
            "Changes are medians over pairs of adjacent runs, in mirrored order, with exact 95 % \
             confidence intervals (order statistics); they are not the ratio of the two medians, \
             which a slow minute of the machine would distort; a warm-up block is excluded"
                .into(),
        );
    }
    let open = |side: &bench_study::SideFacts| matches!(&side.job, Job::Devmix(c) if c.rate > 0);
    let times = if study.sides.iter().any(open) {
        "times from due count from when a request was due, even if it was delayed"
    } else {
        "times are service times in a closed loop"
    };
    notes.push(format!(
        "CPU includes this process, its children and the listed daemons; {times}"
    ));
    notes.extend(guests(study));
    notes.extend(taint(study));
    notes.extend(proof(study));
    notes.extend(crate::paths::notes(study));
    notes.extend(control(found));
    let far: usize = found.iter().map(|f| f.far).sum();
    if far > 0 {
        notes.push(format!(
            "{far} pairs are outliers of their figure; they are counted"
        ));
    }
    if study.extended {
        notes.push(
            "Pairs were added while intervals were wide, so their coverage is slightly below the \
             stated confidence"
                .into(),
        );
    }
    match (&study.failure, study.end) {
        (Some(why), _) => notes.push(format!("INCOMPLETE, a run failed: {why}")),
        (None, None | Some(End::Stopped)) => notes.push(
            "INCOMPLETE: the study was interrupted; repeat the command with the same directory \
             to resume"
                .into(),
        ),
        (None, Some(End::Budget)) => {
            notes.push("The budget expired before the planned pairs were complete".into())
        }
        (None, Some(End::Complete)) => {}
    }
    let intervals = found.iter().filter(|f| f.ratio.is_some()).count();
    if intervals >= 10 {
        notes.push(format!(
            "Of {intervals} 95 % intervals, up to one in twenty misses the true value by chance"
        ));
    }
    notes
}

/// Lists the differences of the sides from the first, parameter by parameter.
pub fn differences(study: &Study) -> Vec<String> {
    let Some((first, others)) = study.sides.split_first() else {
        return Vec::new();
    };
    let compare = |other: &bench_study::SideFacts| {
        let mut differ = Vec::new();
        let mut add = |what: &str, a: String, b: String| {
            if a != b {
                differ.push(format!("{what} {a} / {b}"));
            }
        };
        add("target", first.target.clone(), other.target.clone());
        let text = |v: &Option<String>| v.clone().unwrap_or_else(|| "none".into());
        add(
            "cipher",
            text(&first.facts.cipher),
            text(&other.facts.cipher),
        );
        add("note", text(&first.facts.note), text(&other.facts.note));
        add(
            "direct",
            format!("{:?}", first.facts.direct),
            format!("{:?}", other.facts.direct),
        );
        add(
            "environment",
            first.surroundings.to_string(),
            other.surroundings.to_string(),
        );
        let guest = |facts: &Facts| facts.guest.as_ref().map(ToString::to_string);
        add(
            "guest",
            text(&guest(&first.facts)),
            text(&guest(&other.facts)),
        );
        add("before", text(&first.before), text(&other.before));
        add("after", text(&first.after), text(&other.after));
        for (a, b) in first.job.parameters().iter().zip(other.job.parameters()) {
            add(&a.0, a.1.to_string(), b.1.to_string());
        }
        if differ.is_empty() {
            format!(
                "{} and {} have the same configuration",
                first.name, other.name
            )
        } else {
            format!(
                "{} and {} differ in: {}",
                first.name,
                other.name,
                differ.join("; ")
            )
        }
    };
    others.iter().map(compare).collect()
}

fn counted(runs: &[Run<Record>]) -> impl Iterator<Item = &Record> {
    runs.iter().filter(|r| !r.warm_up).map(|r| &r.sample)
}

/// Collects a note for each guest: its configuration, and the CPU time that it used on the host.
fn guests(study: &Study) -> Vec<String> {
    let mut notes = Vec::new();
    let mut emulated = false;
    for (side, runs) in study.sides.iter().zip(&study.runs) {
        let Some(guest) = &side.facts.guest else {
            continue;
        };
        emulated |= guest.accelerator == Accelerator::Tcg;
        let outside = |r: &Record| r.outside.map(|o| o.cpu_ns as f64 / 1e9);
        let inside = |r: &Record| {
            let spent = |p: &Phase| (p.cpu.total_ns + p.others.total_ns()) as f64 / 1e9;
            Some(r.phases.iter().map(spent).sum::<f64>())
        };
        let middle = |of: &dyn Fn(&Record) -> Option<f64>| {
            let values: Vec<f64> = counted(runs).filter_map(of).collect();
            bench_core::median(&values)
        };
        let took = match (middle(&outside), middle(&inside)) {
            (Some(outside), Some(inside)) => format!(
                "; a run used {outside:.2} CPU s on the host, and {inside:.2} in the guest by \
                 its own clock"
            ),
            _ => String::new(),
        };
        notes.push(format!("{} ran in a guest: {guest}{took}", side.name));
    }
    if emulated {
        notes.push(
            "EMULATED PROCESSORS (tcg) make some instructions more expensive than others, those \
             of ciphers most: counts and ratios of counts remain valid; times and CPU do not"
                .into(),
        );
    }
    notes
}

fn taint(study: &Study) -> Option<String> {
    let all = study.runs.iter().flat_map(|runs| counted(runs));
    let (n, bad) = all.fold((0, 0), |(n, bad), record| {
        (n + 1, bad + usize::from(record.tainted()))
    });
    (bad > 0).then(|| {
        format!(
            "{bad} of {n} runs had foreign load beside them (more than a quarter of a core, or \
             stolen time)"
        )
    })
}

/// Computes the median, over runs, of device bytes per requested byte in a phase.
pub fn device_per_asked(runs: &[Run<Record>], phase: usize) -> Option<f64> {
    let of = |record: &Record| record.phases.get(phase).and_then(Phase::device_per_asked);
    let values: Vec<f64> = counted(runs).filter_map(of).collect();
    bench_core::median(&values)
}

/// Checks that all sides moved the same amount to and from the device, and that written data
/// reached it.
fn proof(study: &Study) -> Vec<String> {
    let Some(record) = study.runs.first().and_then(|runs| runs.first()) else {
        return Vec::new();
    };
    let (mut unequal, mut cached) = (Vec::new(), Vec::new());
    for (index, phase) in record.sample.phases.iter().enumerate() {
        let of = |side: usize| device_per_asked(&study.runs[side], index);
        let first = of(0);
        for side in 1..study.sides.len() {
            if let Some((a, b)) = first.zip(of(side))
                && (a - b).abs() > PROOF_TOLERANCE * a.max(b).max(1.0)
            {
                unequal.push(format!("{} ({a:.2} / {b:.2})", readable(&phase.name)));
            }
        }
        if phase.writes && first.is_some_and(|f| f < TO_DEVICE) {
            cached.push(phase.name.as_str());
        }
    }
    let few = |list: &[String]| list.iter().take(4).cloned().collect::<Vec<_>>().join(", ");
    let mut notes = Vec::new();
    if !unequal.is_empty() {
        notes.push(format!(
            "NOT COMPARABLE in {} phases, as far as this process can measure: the sides moved \
             different amounts to or from the device: {}",
            unequal.len(),
            few(&unequal)
        ));
    }
    if !cached.is_empty() {
        notes.push(format!(
            "{} write phases went to a cache: fewer bytes reached the device than were written",
            cached.len()
        ));
    }
    notes
}

fn control(found: &[Finding]) -> Option<String> {
    let strays: Vec<f64> = found
        .iter()
        .filter(|f| f.kind != Kind::Further)
        .filter_map(|f| Some((f.control?.median.ln().abs().exp() - 1.0) * 100.0))
        .collect();
    let worst = strays.iter().copied().reduce(f64::max)?;
    let noise = found
        .iter()
        .filter(|f| f.judgement == Judgement::Noise)
        .count();
    Some(format!(
        "Control: the first side differs from itself by {:.1} % in the median of its figures, \
         {worst:.1} % at worst; {noise} claims are withheld because of it",
        bench_core::median(&strays)?
    ))
}
