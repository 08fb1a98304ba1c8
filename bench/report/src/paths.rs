//! Shares of paths: the I/O that each path of a side carried in a phase, and whether the side can
//! be compared as one with that number of paths.

use bench_core::record::Phase;
use bench_core::result::Run;
use bench_core::{Carried, Record};
use bench_study::Study;
use std::fmt::Write as _;

/// Minimum fraction of the requested bytes that the counted paths must have carried; if less,
/// something else served the requests.
const ACCOUNTED: f64 = 0.95;

/// I/O by path of one phase and side, summed over all counted runs.
#[derive(Debug, Clone, PartialEq)]
pub struct PathRow {
    /// Name of the phase.
    pub phase: String,
    /// Name of the side.
    pub side: String,
    /// I/O carried by each path.
    pub paths: Vec<Carried>,
    /// Bytes requested from the target.
    pub asked: u64,
}

impl PathRow {
    /// Computes the fraction of all bytes that each path carried.
    pub fn shares(&self) -> Vec<f64> {
        let all: u64 = self.paths.iter().map(|p| p.bytes).sum();
        let part = |p: &Carried| p.bytes as f64 / all.max(1) as f64;
        self.paths.iter().map(part).collect()
    }

    /// Finds a reason why the row is not comparable, if there is one.
    fn wrong(&self) -> Option<String> {
        let all: u64 = self.paths.iter().map(|p| p.bytes).sum();
        let idle = self.paths.iter().find(|p| p.bytes == 0);
        let lost = self.paths.iter().find(|p| p.lost > 0);
        if (all as f64) < ACCOUNTED * self.asked as f64 {
            let part = 100.0 * all as f64 / self.asked.max(1) as f64;
            return Some(format!("its paths carried only {part:.0} % of the bytes"));
        }
        match (lost, idle) {
            (Some(path), _) => Some(format!(
                "path {} was lost or failed {} times; other paths carried its I/O",
                path.path, path.lost
            )),
            (None, Some(path)) => Some(format!("path {} carried nothing", path.path)),
            (None, None) => None,
        }
    }
}

/// Builds the rows of a study; empty if its I/O does not use paths.
pub fn path_rows(study: &Study) -> Vec<PathRow> {
    let sides = study.sides.iter().zip(&study.runs);
    sides
        .flat_map(|(side, runs)| {
            let phases = runs.first().map_or(0, |run| run.sample.phases.len());
            (0..phases).filter_map(|index| row(&side.name, runs, index))
        })
        .collect()
}

fn row(side: &str, runs: &[Run<Record>], index: usize) -> Option<PathRow> {
    let counted = runs.iter().filter(|run| !run.warm_up);
    let mut phases = counted.filter_map(|run| run.sample.phases.get(index));
    let first: &Phase = phases.next()?;
    let mut row = PathRow {
        phase: first.name.clone(),
        side: side.to_owned(),
        paths: first.paths.clone(),
        asked: first.asked,
    };
    for phase in phases {
        Carried::add(&mut row.paths, &phase.paths);
        row.asked += phase.asked;
    }
    (!row.paths.is_empty()).then_some(row)
}

/// Collects notes about paths without duplicates: shares, and reasons against comparing them.
pub(crate) fn notes(study: &Study) -> Vec<String> {
    let rows = path_rows(study);
    let mut notes: Vec<String> = Vec::new();
    for side in &study.sides {
        let own: Vec<&PathRow> = rows.iter().filter(|row| row.side == side.name).collect();
        let Some((first, others)) = own.split_first() else {
            continue;
        };
        let mut all = (*first).clone();
        for row in others {
            Carried::add(&mut all.paths, &row.paths);
        }
        let mut note = format!("Paths of {}:", side.name);
        for (path, share) in all.paths.iter().zip(all.shares()) {
            let percent = share * 100.0;
            let _ = write!(note, " {} {percent:.1} %", path.path);
        }
        note.push_str(" of the bytes");
        notes.push(note);
    }
    for row in &rows {
        if let Some(wrong) = row.wrong() {
            let PathRow { side, phase, .. } = row;
            notes.push(format!("NOT COMPARABLE as paths: {side}, {phase}: {wrong}"));
        }
    }
    notes
}
