//! Studies as text: a Markdown table that is readable on a terminal as well, and caveats.

use bench_core::Facts;
use bench_core::columns::align;
use bench_core::facts::Accelerator;
use bench_core::figures::{number, ratio as ratio_text};
use bench_core::record::{Phase, Record};
use bench_core::result::{End, Run};
use bench_load::Job;
use bench_study::{Aggregate, Finding, Judgement, Kind, Study, findings};
use std::fmt::Write;

/// Maximum difference of two sides' device bytes per requested byte; beyond it they accessed the
/// device differently.
const PROOF_TOLERANCE: f64 = 0.05;
/// Minimum fraction of written bytes that reached the device; if less, the writes went to a cache.
const TO_DEVICE: f64 = 0.9;
/// Number of rows above which a table shows only headlines; if those are still too many, only the
/// worst and the best.
const ROWS_MAX: usize = 60;
/// Number of the worst and of the best rows shown.
const ENDS: usize = 5;

/// Formats the tables of all studies.
pub fn tables(studies: &[Study]) -> String {
    let mut out = String::new();
    for study in studies {
        let (found, means) = findings(study);
        let _ = writeln!(out, "## {}\n", title(study));
        for line in verdicts(study, &means) {
            let _ = writeln!(out, "{line}");
        }
        if !means.is_empty() {
            out.push('\n');
        }
        out.push_str(&rows(study, &found));
        out.push_str(&crate::layers::text(study));
        out.push_str(&crate::accounts::text(study));
        out.push('\n');
        for note in notes(study, &found) {
            let _ = writeln!(out, "- {note}");
        }
        out.push('\n');
    }
    out
}

/// Returns the name of the workload and its sides.
pub fn title(study: &Study) -> String {
    let names: Vec<&str> = study.sides.iter().map(|s| s.name.as_str()).collect();
    match names.split_first() {
        Some((first, [])) => format!("{} on {first}", study.key()),
        Some((first, others)) => {
            format!("{}: {} against {first}", study.key(), others.join(", "))
        }
        None => study.key(),
    }
}

/// Formats the verdict about each other side.
pub fn verdicts(study: &Study, means: &[Aggregate]) -> Vec<String> {
    let base = study.sides.first().map_or("", |s| s.name.as_str());
    means
        .iter()
        .map(|mean| {
            let what = match mean.kind {
                Kind::Cpu => "CPU for the same work",
                _ => "headline figures",
            };
            let counts: Vec<String> = mean
                .counts
                .iter()
                .map(|(judgement, n)| format!("{n} {}", judgement.name()))
                .collect();
            format!(
                "{} against {base}, {what}: {} ({} figures: {}).",
                mean.side,
                words(mean, study.plan.theta),
                mean.cells,
                counts.join(", ")
            )
        })
        .collect()
}

fn words(mean: &Aggregate, theta: f64) -> String {
    let Some(gain) = mean.gain else {
        return "nothing to compare".into();
    };
    // The change of the figure itself, as in the table: less CPU is a gain.
    let percent = |gain: f64| {
        let change = match mean.kind {
            Kind::Cpu => 1.0 / gain - 1.0,
            _ => gain - 1.0,
        };
        format!("{:.1} %", change.abs() * 100.0)
    };
    let Some(i) = gain.interval else {
        return format!(
            "between {:.3} and {:.3} times as good; too few pairs ({}) for an interval",
            gain.min, gain.max, gain.n
        );
    };
    let sure = i.confidence * 100.0;
    match mean.judgement {
        Judgement::Same => format!("no difference of more than {:.0} %", theta * 100.0),
        Judgement::Worse => format!(
            "worse by {} to {} ({sure:.0} % confidence)",
            percent(i.high),
            percent(i.low)
        ),
        Judgement::Better => format!(
            "better by {} to {} ({sure:.0} % confidence)",
            percent(i.low),
            percent(i.high)
        ),
        Judgement::Noise => format!(
            "within the noise of this machine, between {:.3} and {:.3} times as good",
            i.low, i.high
        ),
        Judgement::Undecided | Judgement::NoInterval => format!(
            "undecided, between {:.3} and {:.3} times as good",
            i.low, i.high
        ),
    }
}

/// Formats the table, shortened if it would be too long to read.
fn rows(study: &Study, found: &[Finding]) -> String {
    let headlines = || found.iter().filter(|f| f.kind == Kind::Headline);
    let shown: Vec<&Finding> = match (found.len(), headlines().count()) {
        (all, _) if all <= ROWS_MAX => found.iter().collect(),
        (_, some) if some <= ROWS_MAX => headlines().collect(),
        _ => extremes(headlines().collect()),
    };
    let mut lines = match study.sides.len() {
        1 => vec![
            ["phase", "figure", "median", "unit", "runs"]
                .map(str::to_owned)
                .to_vec(),
        ],
        _ => {
            let base = &study.sides[0].name;
            let head = [
                "phase",
                "figure",
                "side",
                base,
                "value",
                "unit",
                "change %",
                "ratio",
                "pairs",
                "judgement",
            ];
            vec![head.map(str::to_owned).to_vec()]
        }
    };
    lines.extend(shown.iter().map(|f| row(study, f)));
    let mut text = align(&lines);
    if shown.len() < found.len() {
        let _ = writeln!(
            text,
            "\n{} of {} figures are shown; all are in the JSON and the CSV.",
            shown.len(),
            found.len()
        );
    }
    text
}

fn extremes(mut found: Vec<&Finding>) -> Vec<&Finding> {
    let gain = |f: &&Finding| f.gain().unwrap_or(0.0);
    found.sort_by(|a, b| gain(a).total_cmp(&gain(b)));
    let best = found.split_off(found.len() - ENDS);
    found.truncate(ENDS);
    found.extend(best);
    found
}

fn row(study: &Study, f: &Finding) -> Vec<String> {
    let common = [f.phase.clone(), f.cell.clone()];
    let shown = |v: f64| {
        if v.is_finite() { number(v) } else { "-".into() }
    };
    let own = match study.sides.len() {
        1 => {
            let runs = study.runs[0].iter().filter(|r| !r.warm_up).count();
            vec![shown(f.value), f.unit.clone(), runs.to_string()]
        }
        _ => vec![
            f.side.clone(),
            shown(f.base),
            shown(f.value),
            f.unit.clone(),
            f.change().map_or("-".into(), |c| format!("{c:+.1}")),
            f.ratio.map_or("-".into(), |r| ratio_text(&r)),
            f.ratio.map_or("0".into(), |r| r.n.to_string()),
            f.judgement.name().to_owned(),
        ],
    };
    common.into_iter().chain(own).collect()
}

/// Collects the notes for the reader, without duplicates.
pub fn notes(study: &Study, found: &[Finding]) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(environment) = study.sessions.first() {
        notes.push(environment.line());
        if !environment.optimised {
            notes.push(
                "DEBUG BUILD: figures of a build without optimization are meaningless".into(),
            );
        }
    }
    notes.extend(differences(study));
    if study.sides.len() > 1 {
        notes.push(
            "Ratios are medians of paired runs with exact 95 % confidence intervals (order \
             statistics); the runs of a pair are adjacent, in mirrored order; a warm-up block is \
             excluded"
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
                unequal.push(format!("{} ({a:.2} / {b:.2})", phase.name));
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

/// Formats every figure as comma-separated values, one per line.
pub fn csv(studies: &[Study]) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let number = |v: Option<f64>| {
        v.filter(|v| v.is_finite())
            .map_or(String::new(), |v| v.to_string())
    };
    let mut out = String::from(
        "workload,base,side,phase,figure,unit,better,base_median,side_median,pairs,ratio,low,high,control,judgement\n",
    );
    for study in studies {
        let base = study.sides.first().map_or("", |s| s.name.as_str());
        for f in findings(study).0 {
            let interval = f.ratio.and_then(|r| r.interval);
            let fields = [
                quoted(&study.key()),
                quoted(base),
                quoted(&f.side),
                quoted(&f.phase),
                quoted(&f.cell),
                quoted(&f.unit),
                format!("{:?}", f.better).to_lowercase(),
                number(Some(f.base)),
                number(Some(f.value)),
                f.ratio.map_or(0, |r| r.n).to_string(),
                number(f.ratio.map(|r| r.median)),
                number(interval.map(|i| i.low)),
                number(interval.map(|i| i.high)),
                number(f.control.map(|c| c.median)),
                quoted(f.judgement.name()),
            ];
            out.push_str(&fields.join(","));
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench_core::stats::{Interval, Ratio};

    /// The words must agree with the table's change in percent.
    #[test]
    fn a_loss_is_the_change_of_the_figure() {
        let said = |kind, judgement, low, high| {
            let interval = Interval {
                low,
                high,
                confidence: 0.95,
                rank_low: 1,
                rank_high: 8,
            };
            let gain = Ratio {
                n: 8,
                unusable: 0,
                median: 0.9,
                min: low,
                max: high,
                interval: Some(interval),
            };
            let mean = Aggregate {
                side: "encrypted".into(),
                kind,
                cells: 1,
                gain: Some(gain),
                judgement,
                counts: Vec::new(),
            };
            words(&mean, 0.01)
        };
        let (worse, better) = (Judgement::Worse, Judgement::Better);
        for (kind, judgement, low, high, expected) in [
            (
                Kind::Headline,
                worse,
                0.811,
                0.967,
                "worse by 3.3 % to 18.9 %",
            ),
            (
                Kind::Headline,
                better,
                1.1,
                1.25,
                "better by 10.0 % to 25.0 %",
            ),
            (Kind::Cpu, worse, 0.5, 0.8, "worse by 25.0 % to 100.0 %"),
            (Kind::Cpu, better, 1.25, 2.0, "better by 20.0 % to 50.0 %"),
        ] {
            let said = said(kind, judgement, low, high);
            assert!(said.starts_with(expected), "{said}");
        }
    }
}
