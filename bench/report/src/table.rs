//! Studies as text: a Markdown table that is readable on a terminal as well, and caveats.

use crate::answer;
use crate::label::{readable, title};
use crate::notes::notes;
use bench_core::columns::align;
use bench_core::figures::{change, change_interval, number};
use bench_study::{Finding, Kind, Study, findings};
use std::fmt::Write;

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
        for line in answer::lines(study, &found, &means) {
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
                "change",
                "95 % interval",
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
    let common = [readable(&f.phase), readable(&f.cell)];
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
            f.ratio.map_or("-".into(), |r| change(r.median)),
            f.ratio.map_or("-".into(), |r| change_interval(&r)),
            f.ratio.map_or("0".into(), |r| r.n.to_string()),
            f.judgement.name().to_owned(),
        ],
    };
    common.into_iter().chain(own).collect()
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
