//! Runs and their positions, which define pairs of runs.

use serde::{Deserialize, Serialize};

/// A run and its position in a study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run<S> {
    /// Number of the block; a block has two halves.
    pub block: u32,
    /// 0 or 1: runs of different arms in the same half of the same block form a pair.
    pub half: u32,
    /// Number of runs before this one in its block.
    pub position: u32,
    /// The run belongs to the warm-up block and is not counted.
    pub warm_up: bool,
    /// Measurements of the run.
    pub sample: S,
}

/// Reason why no more blocks were measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// All planned blocks were measured.
    Complete,
    /// The time budget ran out first.
    Budget,
    /// The caller stopped the measurement.
    Stopped,
}

/// Collects the counted pairs of two sides: runs in the same half of the same block.
pub fn pairs<'a, S>(a: &'a [Run<S>], b: &'a [Run<S>]) -> Vec<(&'a S, &'a S)> {
    let place = |run: &Run<S>| (run.block, run.half);
    a.iter()
        .filter(|run| !run.warm_up)
        .filter_map(|run| {
            let other = b.iter().find(|other| place(other) == place(run))?;
            Some((&run.sample, &other.sample))
        })
        .collect()
}
