//! Published and measured values side by side: lines and their text.

use super::{Columns, Part, Published, Row, SUITES, Suite};
use crate::label::readable;
use bench_core::columns::align;
use bench_core::figures::number;
use bench_core::record::Better;
use bench_study::{Aggregate, Finding, Judgement, Kind, Study, findings};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// A line of a report in one pair of columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Line {
    /// Title of the table or figure.
    pub part: String,
    /// Key of the study that measures the line.
    pub study: String,
    /// Label in the report.
    pub label: String,
    /// Common property of the columns.
    pub columns: String,
    /// Published values as text.
    pub published: String,
    /// Published change in percent, if any.
    pub published_change: Option<f64>,
    /// Measured values; `None` if the study is missing or has no such figure.
    pub measured: Option<Measured>,
}

/// Measured values of a line. Signs follow the report: if the report has times and the workload
/// measures rates, the rates are converted to times.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Measured {
    /// Both medians and their unit; `None` if the line is a mean over phases.
    pub values: Option<(f64, f64, String)>,
    /// Change in percent.
    pub change: f64,
    /// 95 % confidence interval of `change`.
    pub interval: Option<(f64, f64)>,
    /// Conclusion about the change.
    pub judgement: Option<Judgement>,
}

/// A suite with at least one measured line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Shown {
    /// Name of the suite.
    pub suite: String,
    /// Title of the report.
    pub after: String,
    /// Lines, measured or not.
    pub lines: Vec<Line>,
}

/// Collects the suites that `studies` belong to.
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

/// Builds every line of a suite with the values measured by `studies`.
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

/// Builds the lines of a row in a pair of columns: one per matching phase, such as each number of
/// threads.
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
        // Keep the part that distinguishes the phases of a row, such as `, 10 threads`; omit it if
        // there is only one phase.
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

/// Lists the phases that match a row, without duplicates.
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

/// Checks whether `name` begins with `part` as a whole word.
fn begins(name: &str, part: &str) -> bool {
    name.strip_prefix(part)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with([',', ' ', ':']))
}

/// Computes the geometric mean of the changes of a figure in all phases, which weighs half and
/// double equally. If the figure is the first of each phase, the mean has an interval and a
/// judgement.
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
    // An exact match takes precedence over a longer name with this prefix.
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

/// Converts a measured ratio to a change in percent in the report's direction.
fn change(row: &Row, f: &Finding, ratio: f64) -> Option<f64> {
    let ratio = match (row.better, f.better) {
        (Better::Higher, Better::Higher) | (Better::Lower, Better::Lower) => ratio,
        _ => 1.0 / ratio,
    };
    ratio.is_finite().then_some((ratio - 1.0) * 100.0)
}

/// Column headers of a suite's table.
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

/// Formats a suite as text, with a table per table of the report.
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

/// Formats the cells of a line.
pub(crate) fn cells(line: &Line) -> Vec<String> {
    let dash = || "-".to_owned();
    let percent = |v: f64| format!("{v:+.1}");
    let m = line.measured.as_ref();
    let values = m.and_then(|m| m.values.as_ref());
    vec![
        line.part.clone(),
        readable(&line.label),
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
