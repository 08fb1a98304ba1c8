//! A comparison for people (a Markdown table that is also readable on a terminal) and for machines
//! (JSON with every raw run).
//!
//! **Invariant:** no ratio is printed without its number of pairs, and its interval or the words
//! "no interval"; what speaks against a number stands under the same table.

use crate::result::{ArmRuns, Comparison, End, Versus};
use crate::stats::{Ratio, Verdict};
use crate::{Error, Result};
use std::fmt::Write;

/// Name and version of the JSON layout. A reader refuses what it does not know.
pub const SCHEMA: &str = "evfs-lab-comparison/1";

pub(crate) fn to_json(comparison: &Comparison) -> String {
    serde_json::to_string_pretty(comparison).expect("plain data has a JSON form")
}

/// Reads a stored comparison back.
pub fn from_json(text: &str) -> Result<Comparison> {
    #[derive(serde::Deserialize)]
    struct Head {
        schema: String,
    }
    let bad = |e: serde_json::Error| Error::Format(e.to_string());
    let head: Head = serde_json::from_str(text).map_err(bad)?;
    if head.schema != SCHEMA {
        return Err(Error::Format(format!(
            "schema {}, not {SCHEMA}",
            head.schema
        )));
    }
    serde_json::from_str(text).map_err(bad)
}

const HEAD: [&str; 13] = [
    "workload",
    "block",
    "threads",
    "arm",
    "MiB/s",
    "IOPS",
    "CPU s/GiB",
    "p50 µs",
    "p99 µs",
    "device/asked",
    "throughput ratio",
    "CPU ratio",
    "pairs (tainted)",
];

/// A table of comparisons, one row an arm, and below it what a reader has to know to believe it.
pub fn table(comparisons: &[Comparison]) -> String {
    let mut rows = vec![HEAD.map(str::to_owned)];
    for comparison in comparisons {
        rows.extend(comparison.arms.iter().map(|arm| row(comparison, arm)));
    }
    let mut out = align(&rows);
    out.push('\n');
    for comparison in comparisons {
        for versus in &comparison.versus {
            let _ = writeln!(out, "- {}", sentence(comparison, versus));
        }
    }
    out.push('\n');
    for note in notes(comparisons) {
        let _ = writeln!(out, "- {note}");
    }
    out
}

fn row(comparison: &Comparison, arm: &ArmRuns) -> [String; 13] {
    let spec = &comparison.spec;
    let absent = || "-".to_owned();
    let number = |value: Option<f64>| value.map_or_else(absent, figures);
    let s = arm.summary;
    let versus = comparison.versus.iter().find(|v| v.arm == arm.name);
    let ratio_of = |pick: fn(&Versus) -> Option<Ratio>| match versus {
        Some(v) => pick(v).map_or_else(absent, |r| ratio(&r)),
        None => "1".to_owned(),
    };
    [
        spec.workload.to_string(),
        size(u64::from(spec.block)),
        match spec.depth {
            1 => spec.threads.to_string(),
            depth => format!("{}×{depth}", spec.threads),
        },
        arm.name.clone(),
        number(s.map(|s| s.mib_per_s)),
        number(s.map(|s| s.iops)),
        number(s.map(|s| s.cpu_s_per_gib)),
        number(s.map(|s| s.p50_us)),
        number(s.map(|s| s.p99_us)),
        s.and_then(|s| s.device_per_asked)
            .map_or_else(absent, |p| format!("{p:.2}")),
        ratio_of(|v| v.throughput),
        ratio_of(|v| v.cpu),
        versus.map_or_else(absent, |v| format!("{} ({})", v.pairs, v.tainted_pairs)),
    ]
}

/// `0.97 [0.95, 0.99]`, or the range and the words "no interval".
pub(crate) fn ratio(r: &Ratio) -> String {
    match r.interval {
        Some(i) => format!("{:.3} [{:.3}, {:.3}]", r.median, i.low, i.high),
        None => format!(
            "{:.3} (range {:.3} to {:.3}, no interval)",
            r.median, r.min, r.max
        ),
    }
}

/// The verdicts in words.
fn sentence(comparison: &Comparison, v: &Versus) -> String {
    let theta = comparison.plan.theta;
    let mut text = format!(
        "{}, {}, {} against {}: {}; {}",
        comparison.spec.workload,
        threads(comparison),
        v.arm,
        v.base,
        words(
            v.throughput.as_ref(),
            v.throughput_verdict,
            theta,
            "throughput",
            ["slower", "faster"]
        ),
        words(
            v.cpu.as_ref(),
            v.cpu_verdict,
            theta,
            "CPU",
            ["less CPU", "more CPU"]
        ),
    );
    if v.device_bytes_differ {
        text.push_str(" - NOT COMPARABLE: the arms moved different amounts to or from the device");
    }
    text
}

fn words(
    ratio: Option<&Ratio>,
    verdict: Verdict,
    theta: f64,
    what: &str,
    [lower, higher]: [&str; 2],
) -> String {
    let percent = |value: f64| format!("{:.1}", (value - 1.0).abs() * 100.0);
    let Some(ratio) = ratio else {
        return format!("{what} not measured");
    };
    let ends = ratio.interval.map(|i| (percent(i.low), percent(i.high)));
    match (verdict, ends) {
        (Verdict::Lower, Some((low, high))) => format!("{lower} by {high}–{low} %"),
        (Verdict::Higher, Some((low, high))) => format!("{higher} by {low}–{high} %"),
        (Verdict::Same, _) => format!(
            "{what} the same within {} %",
            (theta * 1000.0).round() / 10.0
        ),
        (Verdict::Undecided, _) => format!("{what} undecided"),
        _ => format!("{what}: no interval from {} pairs", ratio.n),
    }
}

/// What a reader has to know, each once.
fn notes(comparisons: &[Comparison]) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    let mut add = |note: String| {
        if !notes.contains(&note) {
            notes.push(note);
        }
    };
    for c in comparisons {
        add(c.environment.line());
        if !c.environment.optimised {
            add("WITHOUT OPTIMISATION: a debug build's figures are of no use".into());
        }
        add(
            "Ratios are medians of paired runs with an exact 95 % interval (order statistics); \
             runs of a pair are next to each other, in mirrored order; a warm-up block is left out"
                .into(),
        );
        add("CPU is that of the whole process with its io_uring workers; kernel threads that serve \
             everybody are not in it. Latency is service time in a closed loop"
            .into());
        if c.spec.workload.writes() {
            add("Writes: the flush that makes them durable is inside the timed part".into());
        } else if c.spec.verify {
            add("Reads: each request was checked to begin with what had been written there".into());
        }
        for arm in &c.arms {
            add(facts(arm));
        }
        if c.extended {
            add("Pairs were added where a verdict was undecided: intervals are somewhat looser than 95 %".into());
        }
        match c.end {
            End::Complete => {}
            End::Budget => add(format!(
                "{}: the budget ended before the planned pairs",
                c.spec.workload
            )),
            End::Stopped => add(format!(
                "{}: stopped before the planned pairs",
                c.spec.workload
            )),
        }
        if let Some(floor) = &c.floor {
            add(floor_line(c, floor));
        }
    }
    notes.extend(load(comparisons));
    let intervals: usize = comparisons.iter().map(|c| 2 * c.versus.len()).sum();
    if intervals >= 10 {
        notes.push(format!(
            "Of {intervals} intervals of 95 %, up to one in twenty misses by chance"
        ));
    }
    notes
}

fn facts(arm: &ArmRuns) -> String {
    let direct = match arm.facts.direct {
        Some(true) => "direct I/O",
        Some(false) => "through the page cache",
        None => "direct I/O not known",
    };
    let mut text = format!("{}: {direct}", arm.name);
    for (name, value) in [
        ("cipher", &arm.facts.cipher),
        ("kernel", &arm.facts.cipher_kernel),
        ("note", &arm.facts.note),
    ] {
        if let Some(value) = value {
            let _ = write!(text, ", {name} {value}");
        }
    }
    text
}

fn floor_line(c: &Comparison, floor: &crate::Floor) -> String {
    let show = |r: &Option<Ratio>| r.as_ref().map_or_else(|| "-".to_owned(), ratio);
    format!(
        "{}, {}, {} against itself: throughput {}, CPU {}{}",
        c.spec.workload,
        threads(c),
        c.arms.first().map_or("", |a| a.name.as_str()),
        show(&floor.throughput),
        show(&floor.cpu),
        if floor.fit() {
            ""
        } else {
            " - UNFIT: this machine now tells a thing apart from itself"
        },
    )
}

fn threads(c: &Comparison) -> String {
    match c.spec.threads {
        1 => "1 thread".to_owned(),
        more => format!("{more} threads"),
    }
}

/// Load averages before the comparisons; foreign load during them is in the tainted pairs.
fn load(comparisons: &[Comparison]) -> Option<String> {
    let loads = || {
        comparisons
            .iter()
            .filter_map(|c| c.environment.load_average)
    };
    let (low, high) = (loads().reduce(f64::min)?, loads().reduce(f64::max)?);
    Some(match comparisons.len() {
        1 => format!("Load average before the start: {low:.2}"),
        _ => format!("Load averages before each start: {low:.2} to {high:.2}"),
    })
}

/// Three significant figures, more in front of the point.
pub(crate) fn figures(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        b if b.is_multiple_of(1 << 20) => format!("{}M", b >> 20),
        b if b.is_multiple_of(1 << 10) => format!("{}k", b >> 10),
        b => b.to_string(),
    }
}

/// A Markdown table whose source is aligned too.
fn align(rows: &[[String; 13]]) -> String {
    let width = |column: usize| {
        rows.iter()
            .map(|r| r[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
    let mut out = String::new();
    for (index, row) in rows.iter().enumerate() {
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(out, "| {cell:<width$} ");
        }
        out.push_str("|\n");
        if index == 0 {
            for width in &widths {
                let _ = write!(out, "|{}", "-".repeat(width + 2));
            }
            out.push_str("|\n");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Interval, stats};

    fn ratio_of(low: f64, median: f64, high: f64) -> Ratio {
        Ratio {
            n: 10,
            unusable: 0,
            median,
            min: low,
            max: high,
            interval: Some(Interval {
                low,
                high,
                confidence: 0.979,
                rank_low: 2,
                rank_high: 9,
            }),
        }
    }

    #[test]
    fn verdicts_read_as_sentences() {
        let say = |r: &Ratio| {
            words(
                Some(r),
                stats::verdict(r, 0.05),
                0.05,
                "throughput",
                ["slower", "faster"],
            )
        };
        assert_eq!(say(&ratio_of(0.81, 0.84, 0.87)), "slower by 13.0–19.0 %");
        assert_eq!(say(&ratio_of(1.1, 1.2, 1.256)), "faster by 10.0–25.6 %");
        assert_eq!(
            say(&ratio_of(0.97, 0.98, 0.99)),
            "throughput the same within 5 %"
        );
        assert_eq!(say(&ratio_of(0.9, 1.0, 1.1)), "throughput undecided");
        let few = Ratio {
            interval: None,
            n: 3,
            ..ratio_of(0.5, 0.6, 0.7)
        };
        assert_eq!(say(&few), "throughput: no interval from 3 pairs");
        assert_eq!(ratio(&few), "0.600 (range 0.500 to 0.700, no interval)");
        assert_eq!(ratio(&ratio_of(0.81, 0.84, 0.87)), "0.840 [0.810, 0.870]");
    }

    #[test]
    fn numbers_keep_three_figures() {
        for (value, text) in [
            (12_345.6, "12346"),
            (45.67, "45.7"),
            (1.234, "1.23"),
            (0.1234, "0.123"),
        ] {
            assert_eq!(figures(value), text);
        }
        assert_eq!(
            (size(65536), size(1 << 20), size(512)),
            ("64k".into(), "1M".into(), "512".into())
        );
    }
}
