//! CPU by layer of the stack in this process, for each phase and side.
//!
//! Values are medians over the runs, in the unit of the phase's CPU figure. The CPU time that no
//! layer claims is that of the workload itself, of the kernel on its behalf, and of processes
//! behind the target. Counting costs CPU time at each crossing of layers, so a side with more
//! layers pays for more crossings; measure ratios without it if they must be exact.

use crate::label::readable;
use bench_core::columns::align;
use bench_core::figures::number;
use bench_core::record::{Better, Phase};
use bench_study::Study;
use layer_cpu::Layer;

/// CPU by layer of one phase and side.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerRow {
    /// Name of the phase.
    pub phase: String,
    /// Name of the side.
    pub side: String,
    /// Unit of all values.
    pub unit: String,
    /// CPU time that no layer claims.
    pub rest: f64,
    /// CPU time of each layer, in the order of [`Layer::ALL`].
    pub layers: [f64; 5],
}

/// Column headers before those of the layers.
pub(crate) const HEAD: [&str; 4] = ["phase", "side", "unit", "rest"];

/// Builds the rows of a study; empty if layers were not counted.
pub fn layer_rows(study: &Study) -> Vec<LayerRow> {
    let Some(first) = study.runs.first().and_then(|runs| runs.first()) else {
        return Vec::new();
    };
    let phases = first.sample.phases.iter().enumerate();
    let rows = phases.flat_map(|(index, phase)| {
        let sides = study.sides.iter().zip(&study.runs);
        sides.filter_map(move |(side, runs)| {
            let counted = runs.iter().filter(|run| !run.warm_up);
            let of =
                |run: &bench_core::Run<bench_core::Record>| each(run.sample.phases.get(index)?);
            let all: Vec<[f64; 6]> = counted.filter_map(of).collect();
            let middle = |n: usize| {
                let values: Vec<f64> = all.iter().map(|row| row[n]).collect();
                bench_core::median(&values)
            };
            Some(LayerRow {
                phase: phase.name.clone(),
                side: side.name.clone(),
                unit: phase.cells.last()?.unit.clone(),
                rest: middle(0)?,
                layers: [middle(1)?, middle(2)?, middle(3)?, middle(4)?, middle(5)?],
            })
        })
    });
    rows.collect()
}

/// Computes the unclaimed CPU time and that of each layer for one run, in the unit of the phase's
/// CPU figure, which is its last.
fn each(phase: &Phase) -> Option<[f64; 6]> {
    let layers = phase.layers?.all();
    let cpu = phase.cells.last().filter(|c| c.better == Better::Lower)?;
    let total = phase.cpu.total_ns + phase.others.total_ns();
    let scale = cpu.value() / total.max(1) as f64;
    let rest = total.saturating_sub(layers.iter().sum());
    let [a, b, c, d, e] = layers;
    Some([rest, a, b, c, d, e].map(|ns| ns as f64 * scale))
}

/// Formats the cells of a row; a layer that a side does not use is a dash.
pub(crate) fn cells(row: &LayerRow) -> Vec<String> {
    let shown = |v: f64| match v {
        0.0 => "-".to_owned(),
        v => number(v),
    };
    let front = [readable(&row.phase), row.side.clone(), row.unit.clone()];
    let values = std::iter::once(row.rest).chain(row.layers);
    front.into_iter().chain(values.map(shown)).collect()
}

/// Lists the headers of all columns.
pub(crate) fn heads() -> Vec<String> {
    let layers = Layer::ALL.map(Layer::name);
    let all = HEAD.iter().copied().chain(layers);
    all.map(str::to_owned).collect()
}

/// Formats the rows as a table; empty if there are none.
pub(crate) fn text(study: &Study) -> String {
    let rows = layer_rows(study);
    if rows.is_empty() {
        return String::new();
    }
    let mut lines = vec![heads()];
    lines.extend(rows.iter().map(cells));
    format!("\nCPU by layer:\n\n{}", align(&lines))
}
