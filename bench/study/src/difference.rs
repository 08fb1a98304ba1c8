//! Regression check: compares an old result with a new one.
//!
//! If both compare the same sides, their paired ratios are compared, which do not depend on the
//! state of the machine on that day. If they have one side, the values themselves are compared.
//! Either way the two sets are not paired with one another, and the report says so.

use crate::analysis::{Judgement, Ratios, verdict_of};
use crate::study::Study;
use bench_core::columns::align;
use bench_core::record::{Better, Record};
use bench_core::result::{Run, pairs};
use bench_core::stats::Ratio;
use bench_core::unpaired;
use bench_core::{Error, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Change of a figure from the old result to the new one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// Key of the new study.
    pub workload: String,
    /// Name of the side; `B / A` if ratios are compared.
    pub side: String,
    /// Name of the phase.
    pub phase: String,
    /// Name of the figure.
    pub cell: String,
    /// Unit of the values, also if ratios are compared.
    pub unit: String,
    /// Direction of improvement.
    pub better: Better,
    /// Whether the figure is the first of its phase (its headline) or the last (its CPU).
    pub counts: bool,
    /// Ratio new / old.
    pub ratio: Option<Ratio>,
    /// Conclusion about the ratio.
    pub judgement: Judgement,
}

/// Computes the change of every figure that two results have in common.
///
/// # Errors
/// [`Error::Spec`] for results that have none in common, or that did different work.
pub fn changes(old: &Study, new: &Study, theta: f64) -> Result<Vec<Change>> {
    let refuse = |why: String| Err(Error::Spec(why));
    if old.workload != new.workload {
        return refuse(format!(
            "the results are of different workloads: {} (old) and {} (new)",
            old.workload, new.workload
        ));
    }
    let mut all = Vec::new();
    for (index, side) in new.sides.iter().enumerate() {
        let Some(before) = old.sides.iter().position(|s| s.name == side.name) else {
            continue;
        };
        if old.sides[before].job != side.job || old.times != new.times {
            return refuse(format!(
                "{} cannot be compared: its parameters or repetitions differ from those of the \
                 old result",
                side.name
            ));
        }
        match (index, before) {
            // The first of several sides is only the base of the ratios.
            (0, 0) if new.sides.len() > 1 && old.sides.len() > 1 => {}
            (0, 0) => all.extend(of_side(old, new, (0, 0), &side.name, theta)),
            (n, o) if old.sides[0].name == new.sides[0].name && o > 0 => {
                let name = format!("{} / {}", side.name, new.sides[0].name);
                all.extend(of_side(old, new, (o, n), &name, theta));
            }
            _ => {}
        }
    }
    if all.is_empty() {
        refuse("the two results have no side in common".into())
    } else {
        Ok(all)
    }
}

/// Computes the changes from side `o` of the old result to `n` of the new one.
fn of_side(
    old: &Study,
    new: &Study,
    (o, n): (usize, usize),
    name: &str,
    theta: f64,
) -> Vec<Change> {
    let Some(run) = new.runs[n].first() else {
        return Vec::new();
    };
    let cells = run.sample.phases.iter().flat_map(|phase| {
        let last = phase.cells.len().saturating_sub(1);
        let cells = phase.cells.iter().enumerate();
        cells.map(move |(n, cell)| (phase, cell, n == 0 || n == last))
    });
    cells
        .filter_map(|(phase, cell, counts)| {
            let (before, after) = (
                samples(old, o, &phase.name, &cell.name),
                samples(new, n, &phase.name, &cell.name),
            );
            if before.is_empty() || after.is_empty() {
                return None;
            }
            let ratio = unpaired(&before, &after);
            Some(Change {
                workload: new.key(),
                side: name.to_owned(),
                phase: phase.name.clone(),
                cell: cell.name.clone(),
                unit: cell.unit.clone(),
                better: cell.better,
                counts,
                judgement: ratio.map_or(Judgement::NoInterval, |r| {
                    let alone = Ratios {
                        ratio: r,
                        control: None,
                        beside: None,
                    };
                    verdict_of(&alone, cell.better, theta)
                }),
                ratio,
            })
        })
        .collect()
}

/// Collects the values of a figure or, for a further side, its ratios to the first side.
fn samples(study: &Study, side: usize, phase: &str, cell: &str) -> Vec<f64> {
    let value = |record: &Record| record.value(phase, cell);
    let counted = |runs: &[Run<Record>]| -> Vec<f64> {
        let counted = runs.iter().filter(|run| !run.warm_up);
        counted.filter_map(|run| value(&run.sample)).collect()
    };
    match (side, study.sides.len()) {
        (0, _) => counted(&study.runs[0]),
        _ => pairs(&study.runs[0], &study.runs[side])
            .into_iter()
            .filter_map(|(a, b)| Some(value(b)? / value(a)?))
            .collect(),
    }
}

/// Selects the regressions whose whole interval is beyond `threshold`, for example 0.05. A CI gate
/// fails on these.
pub fn gate(changes: &[Change], threshold: f64) -> Vec<&Change> {
    let beyond = |change: &&Change| {
        let Some(interval) = change.ratio.and_then(|r| r.interval) else {
            return false;
        };
        match change.better {
            Better::Higher => interval.high < 1.0 / (1.0 + threshold),
            Better::Lower => interval.low > 1.0 + threshold,
        }
    };
    changes.iter().filter(beyond).collect()
}

/// Formats the changes as a table.
pub fn change_table(changes: &[Change]) -> String {
    let head = [
        "workload",
        "side",
        "phase",
        "figure",
        "new / old",
        "judgement",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(changes.iter().map(|c| {
        vec![
            c.workload.clone(),
            c.side.clone(),
            c.phase.clone(),
            format!("{} ({})", c.cell, c.unit),
            c.ratio
                .map_or("-".into(), |r| bench_core::figures::ratio(&r)),
            c.judgement.name().to_owned(),
        ]
    }));
    align(&rows)
}
