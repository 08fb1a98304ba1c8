//! What was published, beside what was measured: lines, and their text.

use super::{Columns, Part, Published, Row, SUITES, Suite};
use crate::figures::number;
use crate::record::Better;
use crate::study::{Aggregate, Finding, Judgement, Kind, Study, align, findings};
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// A line of a report, in one pair of columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The table or figure.
    pub part: String,
    /// Key of the study that measures it.
    pub study: String,
    /// What the report calls the line.
    pub label: String,
    /// What the columns have in common.
    pub columns: String,
    /// What was published, as it is printed.
    pub published: String,
    /// The published change in percent, where there is one.
    pub published_change: Option<f64>,
    /// What was measured; `None`: the study is not there, or has no such figure.
    pub measured: Option<Measured>,
}

/// What was measured for a line. Its sign is that of the report: where that has times and we have rates, the rate is
/// turned into a time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Both medians, and their unit; none where the line is a mean over phases.
    pub values: Option<(f64, f64, String)>,
    /// Change in percent.
    pub change: f64,
    /// Its interval of 95 %.
    pub interval: Option<(f64, f64)>,
    /// What may be said.
    pub judgement: Option<Judgement>,
}

/// A suite of which something was run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shown {
    /// Its name.
    pub suite: String,
    /// The report.
    pub after: String,
    /// Its lines, measured or not.
    pub lines: Vec<Line>,
}

/// The suites that `studies` are parts of.
pub fn shown(studies: &[Study]) -> Vec<Shown> {
    SUITES
        .iter()
        .map(|suite| Shown {
            suite: suite.name.to_owned(),
            after: suite.after.to_owned(),
            lines: lines(suite, studies),
        })
        .filter(|shown| shown.lines.iter().any(|line| line.measured.is_some()))
        .collect()
}

/// Every line of a suite, with what `studies` have of it.
fn lines(suite: &Suite, studies: &[Study]) -> Vec<Line> {
    let mut all = Vec::new();
    for part in suite.parts {
        for (index, columns) in part.columns.iter().enumerate() {
            let key = suite.key(part, columns);
            let study = studies.iter().find(|study| study.key() == key);
            let (found, means) = study.map_or_else(Default::default, findings);
            let of = |row: &Row| in_columns((part, columns, &key), index, row, (&found, &means));
            all.extend(part.rows.iter().flat_map(of));
        }
    }
    all
}

/// The lines of a row in a pair of columns: one for each phase that fits it, such as each number of threads.
fn in_columns(
    (part, columns, key): (&Part, &Columns, &str),
    index: usize,
    row: &Row,
    (found, means): (&[Finding], &[Aggregate]),
) -> Vec<Line> {
    let (published, published_change) = published(row, index);
    let line = |label: String, measured: Option<Measured>| Line {
        part: part.title.to_owned(),
        study: key.to_owned(),
        label,
        columns: columns.name.to_owned(),
        published: published.clone(),
        published_change,
        measured,
    };
    if row.phase == "*" {
        return vec![line(row.label.to_owned(), mean(row, found, means))];
    }
    let all = phases(row, found);
    let mut lines = Vec::new();
    for phase in &all {
        let rest = phase.strip_prefix(row.phase).unwrap_or_default();
        // What distinguishes the phases of a row: `, 10 threads`. What only explains one is left away.
        let label = match all.len() {
            1 => row.label.to_owned(),
            _ => format!("{}{rest}", row.label),
        };
        lines.push(line(label, measured(row, phase, found)));
    }
    if lines.is_empty() {
        lines.push(line(row.label.to_owned(), None));
    }
    lines
}

/// The phases that a row means, each once.
fn phases<'a>(row: &Row, found: &'a [Finding]) -> Vec<&'a str> {
    let mut phases: Vec<&str> = Vec::new();
    for f in found {
        if begins(&f.phase, row.phase) && !phases.contains(&f.phase.as_str()) {
            phases.push(&f.phase);
        }
    }
    phases
}

fn published(row: &Row, index: usize) -> (String, Option<f64>) {
    match &row.published {
        Published::Values(pairs, unit) => pairs.get(index).map_or(("-".into(), None), |[a, b]| {
            let text = format!("{a} / {b} {unit}");
            (text, Some((b / a - 1.0) * 100.0))
        }),
        Published::Changes(list) => {
            let each = |(machine, change): &(&str, f64)| format!("{machine} {change:+} %");
            let texts: Vec<String> = list.iter().map(each).collect();
            (texts.join(", "), None)
        }
        Published::Words(text) => ((*text).to_owned(), None),
    }
}

/// Whether a name here begins with `part`, as a whole word.
fn begins(name: &str, part: &str) -> bool {
    name.strip_prefix(part)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with([',', ' ', ':']))
}

/// The geometric mean of the changes of a figure in all phases, in which half and twice weigh alike. Where it is the first
/// figure of each phase, it has an interval and a judgement.
fn mean(row: &Row, found: &[Finding], means: &[Aggregate]) -> Option<Measured> {
    let logs: Vec<f64> = found
        .iter()
        .filter(|f| begins(&f.cell, row.cell))
        .filter_map(|f| change(row, f, f.ratio?.median))
        .map(|change| (change / 100.0).ln_1p())
        .collect();
    let mean = (logs.iter().sum::<f64>() / logs.len() as f64).exp_m1() * 100.0;
    let heads = |f: &Finding| f.kind == Kind::Headline && begins(&f.cell, row.cell);
    let of_heads = means
        .iter()
        .find(|mean| mean.kind == Kind::Headline && found.iter().any(heads));
    let percent = |gain: f64| (gain - 1.0) * 100.0;
    mean.is_finite().then_some(Measured {
        values: None,
        change: of_heads
            .and_then(|mean| mean.gain)
            .map_or(mean, |gain| percent(gain.median)),
        interval: of_heads
            .and_then(|mean| mean.gain?.interval)
            .map(|i| (percent(i.low), percent(i.high))),
        judgement: of_heads.map(|mean| mean.judgement),
    })
}

fn measured(row: &Row, phase: &str, found: &[Finding]) -> Option<Measured> {
    let here = || found.iter().filter(|f| f.phase == phase);
    // A whole name goes before a longer one that begins with it.
    let exact = here().find(|f| f.cell == row.cell);
    let f = exact.or_else(|| here().find(|f| begins(&f.cell, row.cell)))?;
    let ratio = f.ratio?;
    let interval = ratio.interval.and_then(|i| {
        let (a, b) = (change(row, f, i.low)?, change(row, f, i.high)?);
        Some((a.min(b), a.max(b)))
    });
    Some(Measured {
        values: Some((f.base, f.value, f.unit.clone())),
        change: change(row, f, ratio.median)?,
        interval,
        judgement: Some(f.judgement),
    })
}

/// A ratio of what is measured here, as a change in percent of what the report printed.
fn change(row: &Row, f: &Finding, ratio: f64) -> Option<f64> {
    let ratio = match (row.better, f.better) {
        (Better::Higher, Better::Higher) | (Better::Lower, Better::Lower) => ratio,
        _ => 1.0 / ratio,
    };
    ratio.is_finite().then_some((ratio - 1.0) * 100.0)
}

/// The columns of a suite's table.
pub(crate) const HEAD: [&str; 8] = [
    "table or figure",
    "line",
    "in",
    "published",
    "change %",
    "here",
    "change % here",
    "judgement",
];

/// A suite, a table for each of the report's.
pub fn text(shown: &Shown) -> String {
    let mut out = format!("## {}: {}\n\n", shown.suite, shown.after);
    for lines in shown.lines.chunk_by(|a, b| a.part == b.part) {
        let mut rows = vec![HEAD[1..].iter().map(|&head| head.to_owned()).collect()];
        rows.extend(lines.iter().map(|line| cells(line).split_off(1)));
        let _ = writeln!(out, "### {}\n\n{}", lines[0].part, align(&rows));
    }
    let missing = shown.lines.iter().filter(|l| l.measured.is_none()).count();
    if missing > 0 {
        let all = shown.lines.len();
        let _ = writeln!(out, "{missing} of {all} lines are not measured.\n");
    }
    out
}

/// A line as it is printed.
pub(crate) fn cells(line: &Line) -> Vec<String> {
    let dash = || "-".to_owned();
    let percent = |v: f64| format!("{v:+.1}");
    let m = line.measured.as_ref();
    let values = m.and_then(|m| m.values.as_ref());
    vec![
        line.part.clone(),
        line.label.clone(),
        line.columns.clone(),
        line.published.clone(),
        line.published_change.map_or_else(dash, percent),
        values.map_or_else(dash, |(a, b, unit)| {
            format!("{} / {} {unit}", number(*a), number(*b))
        }),
        m.map_or_else(dash, |m| match m.interval {
            Some((low, high)) => format!("{:+.1} [{low:+.1}, {high:+.1}]", m.change),
            None => percent(m.change),
        }),
        m.and_then(|m| m.judgement)
            .map_or_else(dash, |j| j.name().to_owned()),
    ]
}
