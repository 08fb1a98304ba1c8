//! Runs and their places: what makes two runs a pair.

use serde::{Deserialize, Serialize};

/// A run and its place in a study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run<S> {
    /// Which block of two halves.
    pub block: u32,
    /// 0 or 1: runs of one half are a pair.
    pub half: u32,
    /// How many runs stood before it in its block.
    pub position: u32,
    /// It belongs to the warm-up block and is not counted.
    pub warm_up: bool,
    /// What it did and took.
    pub sample: S,
}

/// Why no more blocks were measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// The plan was carried out.
    Complete,
    /// The budget was used up first.
    Budget,
    /// The caller stopped it.
    Stopped,
}

/// The counted pairs of two sides: runs of the same half of the same block.
pub(crate) fn pairs<'a, S>(a: &'a [Run<S>], b: &'a [Run<S>]) -> Vec<(&'a S, &'a S)> {
    let place = |run: &Run<S>| (run.block, run.half);
    a.iter()
        .filter(|run| !run.warm_up)
        .filter_map(|run| {
            let other = b.iter().find(|other| place(other) == place(run))?;
            Some((&run.sample, &other.sample))
        })
        .collect()
}
