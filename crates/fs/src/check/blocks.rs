//! Block usage: references by records, compared with the counts, the bitmap and the allocator.

use super::finding::FindingKind;
use super::{Parts, Report};
use crate::error::{Error, Result};
use crate::format::chunk::held_by;
use crate::format::key::{Item, Key, Section};
use crate::format::record::{Run, SharedRun};
use crate::metadata::inode_state::Blocks;
use crate::metadata::state::{State, decode_preserved};
use crate::space::Space;
use std::collections::BTreeMap;

/// Compares the references by records with the bitmap, and with the state of the allocator if it is
/// part of the view. Returns the runs in use that nothing refers to, if that is all that is wrong with
/// the bitmap.
pub(super) fn check(parts: &Parts, counter: Counter, report: &mut Report) -> Result<Vec<Run>> {
    let (state, superblock) = (parts.state, parts.superblock);
    let counted = counter.end(report);
    let shared = shared(state, report)?;
    for (run, count) in &counted {
        report.data_blocks += run.blocks;
        if *count > 1 {
            report.shared_blocks += run.blocks;
        }
    }
    let many: Vec<(Run, u64)> = counted
        .iter()
        .copied()
        .filter(|(_, count)| *count > 1)
        .collect();
    if joined(many) != joined(shared) {
        let text = "reference counts of shared blocks do not match the extent records";
        report.problem(FindingKind::Space, text);
    }
    let mut used: Vec<Run> = counted.iter().map(|(run, _)| *run).collect();
    let in_use = (parts.used)(superblock.device_blocks)?;
    let bitmap = bitmap(state, in_use, superblock.device_blocks)?;
    let records = united(used.clone());
    // The sets take memory, which is needed only if something is wrong.
    let (orphaned, missing) = if records == bitmap {
        (Vec::new(), Vec::new())
    } else {
        (beyond(&bitmap, &records), beyond(&records, &bitmap))
    };
    report.orphaned_blocks = orphaned.iter().map(|run| run.blocks).sum();
    compare(&records, &bitmap, "the bitmap", report);
    for segment in &superblock.segments {
        report.metadata_blocks += u64::from(segment.blocks);
        used.push(Run {
            start: segment.start,
            blocks: segment.blocks.into(),
        });
    }
    used.sort_unstable();
    if let Some(two) = used.windows(2).find(|two| two[0].end() > two[1].start) {
        let text = format!("block {}: in use by both data and metadata", two[1].start);
        report.problem(FindingKind::Space, text);
    }
    // Blocks being written are no longer free in the allocator, but no record refers to them yet.
    let writing = state.cores.values().any(|core| !core.writes.is_empty());
    if let Some(space) = parts.space.filter(|space| !writing && space.is_loaded()) {
        let all = superblock.first_block()..superblock.device_blocks;
        let unused = inverse(&united(space.unused()), all.start, all.end);
        compare(&united(used), &unused, "the allocator", report);
    }
    Ok(if missing.is_empty() {
        orphaned
    } else {
        Vec::new()
    })
}

/// Computes the blocks of `runs` that are not in `others`.
fn beyond(runs: &[Run], others: &[Run]) -> Vec<Run> {
    let mut left = Blocks::default();
    for run in runs {
        left.insert(run.start..run.end());
    }
    for run in others {
        left.remove(run.start..run.end());
    }
    let run = |range: std::ops::Range<u64>| Run {
        start: range.start,
        blocks: range.end - range.start,
    };
    left.iter().map(run).collect()
}

/// Collects the runs that records refer to, split where the number of references changes. Calls
/// `read` for every item.
pub(super) fn counted(
    state: &State,
    report: &mut Report,
    read: &mut dyn FnMut(&[u8]),
) -> Result<Vec<(Run, u64)>> {
    let mut counter = Counter::default();
    let (from, to) = (Key::layer(1).0, Key::layer(u32::MAX).1);
    state.items.scan(from, to, |key, bytes| {
        read(bytes);
        counter.add(state, &key, bytes);
        Ok(true)
    })?;
    Ok(counter.end(report))
}

/// References by records, counted in one pass over all records.
#[derive(Default)]
pub(super) struct Counter {
    /// Change of the number of references at each block.
    edges: BTreeMap<u64, i64>,
    records: u64,
    chunks: u64,
    broken: Vec<(FindingKind, String)>,
}

impl Counter {
    /// Counts the references of a record.
    pub fn add(&mut self, state: &State, key: &Key, bytes: &[u8]) {
        let kind = key.kind();
        if !matches!(kind, Some(Item::Extent | Item::Chunk)) {
            return;
        }
        let tree = state.trees.get(&key.layer);
        let is_snapshot = tree.is_some_and(|tree| tree.record.origin != 0);
        let value = if is_snapshot {
            decode_preserved(bytes)
        } else {
            Ok(Some(bytes))
        };
        let held =
            value.and_then(|value| Ok(value.map(|v| held_by(kind, v)).transpose()?.flatten()));
        match held {
            Ok(Some(held)) => {
                self.records += 1;
                self.chunks += u64::from(kind == Some(Item::Chunk));
                let run = held.run;
                if run.start < state.bounds.start || run.end() > state.bounds.end {
                    let text = format!("{key}: extent lies outside the device");
                    self.broken.push((FindingKind::Extent, text));
                    return;
                }
                add_edge(&mut self.edges, run.start, 1);
                add_edge(&mut self.edges, run.end(), -1);
            }
            Ok(None) => {}
            Err(error) => self
                .broken
                .push((FindingKind::Record, format!("{key}: {error}"))),
        }
    }

    /// Returns the runs with their numbers of references. Invalid records are in the report.
    fn end(self, report: &mut Report) -> Vec<(Run, u64)> {
        (report.extents, report.chunks) = (self.records, self.chunks);
        for (kind, text) in self.broken {
            report.problem(kind, text);
        }
        let mut runs: Vec<(Run, u64)> = Vec::new();
        let (mut at, mut count) = (0, 0i64);
        for (edge, by) in self.edges {
            if count > 0 && at < edge {
                let blocks = edge - at;
                runs.push((Run { start: at, blocks }, count as u64));
            }
            (at, count) = (edge, count + by);
        }
        runs
    }
}

/// Adds a change of the number of references. Adjacent extents leave no edge between them, so the
/// memory depends on the number of gaps and not on the number of files.
fn add_edge(edges: &mut BTreeMap<u64, i64>, at: u64, by: i64) {
    let edge = edges.entry(at).or_default();
    *edge += by;
    if *edge == 0 {
        edges.remove(&at);
    }
}

/// Collects the runs that are recorded as shared.
fn shared(state: &State, report: &mut Report) -> Result<Vec<(Run, u64)>> {
    let mut runs = Vec::new();
    let (from, to) = Key::section(Section::Shared);
    state.items.scan(from, to, |key, bytes| {
        match SharedRun::decode(bytes) {
            Ok(shared) => {
                let run = Run {
                    start: key.item,
                    blocks: shared.blocks.into(),
                };
                runs.push((run, u64::from(shared.count)));
            }
            Err(error) => report.problem(FindingKind::Record, format!("{key}: {error}")),
        }
        Ok(true)
    })?;
    Ok(runs)
}

/// Collects the runs in use according to the last commit and the changes since.
fn bitmap(state: &State, in_use: Vec<Run>, device_blocks: u64) -> Result<Vec<Run>> {
    let space = Space::new(0);
    let unused = inverse(&united(in_use), 0, device_blocks);
    unused.into_iter().for_each(|run| space.add(run));
    for change in state.items.space_changes() {
        if change.used {
            space.remove(change.run)?
        } else {
            space.add(change.run)
        }
    }
    let used = inverse(&space.unused(), 0, device_blocks);
    if used.iter().map(|run| run.blocks).sum::<u64>() <= device_blocks {
        Ok(used)
    } else {
        Err(Error::corrupt("the bitmap is longer than the device"))
    }
}

/// Merges adjacent runs with the same count.
fn joined(runs: Vec<(Run, u64)>) -> Vec<(Run, u64)> {
    let mut all: Vec<(Run, u64)> = Vec::new();
    for (run, count) in runs {
        match all.last_mut() {
            Some((last, same)) if last.end() == run.start && *same == count => {
                last.blocks += run.blocks;
            }
            _ => all.push((run, count)),
        }
    }
    all
}

/// Checks whether two lists of shared runs are equal, regardless of how they are split into
/// records.
pub(super) fn same_counts(one: &[(u64, SharedRun)], two: &[(u64, Option<SharedRun>)]) -> bool {
    let run = |(start, shared): &(u64, SharedRun)| {
        let blocks = shared.blocks.into();
        let start = *start;
        (Run { start, blocks }, u64::from(shared.count))
    };
    let two: Option<Vec<(u64, SharedRun)>> = two.iter().map(|(at, s)| Some((*at, (*s)?))).collect();
    two.is_some_and(|two| {
        joined(one.iter().map(run).collect()) == joined(two.iter().map(run).collect())
    })
}

/// Sorts runs, and merges those that overlap or are adjacent.
fn united(mut runs: Vec<Run>) -> Vec<Run> {
    runs.sort_unstable();
    let mut all: Vec<Run> = Vec::new();
    for run in runs {
        match all.last_mut() {
            Some(last) if run.start <= last.end() => {
                last.blocks = last.end().max(run.end()) - last.start;
            }
            _ => all.push(run),
        }
    }
    all
}

/// Computes the gaps between runs.
fn inverse(runs: &[Run], start: u64, end: u64) -> Vec<Run> {
    let mut gaps = Vec::new();
    let mut at = start;
    for run in runs {
        if at < run.start {
            let blocks = run.start - at;
            gaps.push(Run { start: at, blocks });
        }
        at = at.max(run.end());
    }
    if at < end {
        let blocks = end - at;
        gaps.push(Run { start: at, blocks });
    }
    gaps
}

/// Reports the first block that only one of the two lists contains.
fn compare(records: &[Run], other: &[Run], name: &str, report: &mut Report) {
    let blocks = |runs: &[Run]| runs.iter().map(|run| run.blocks).sum::<u64>();
    if records == other {
        return;
    }
    let differs = records.iter().zip(other).find(|(one, two)| one != two);
    let at = match differs {
        Some((one, two)) if one.start == two.start => one.end().min(two.end()),
        Some((one, two)) => one.start.min(two.start),
        None => {
            let longer = if records.len() > other.len() {
                records
            } else {
                other
            };
            longer[records.len().min(other.len())].start
        }
    };
    let text = format!(
        "{name} has {} blocks in use, but the records have {}; the first difference is block {at}",
        blocks(other),
        blocks(records)
    );
    report.problem(FindingKind::Space, text);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, blocks: u64) -> Run {
        Run { start, blocks }
    }

    #[test]
    fn runs_are_united_inverted_and_compared() {
        let all = united(vec![run(8, 2), run(0, 3), run(2, 4), run(6, 1)]);
        assert_eq!(all, [run(0, 7), run(8, 2)]);
        assert_eq!(inverse(&all, 0, 20), [run(7, 1), run(10, 10)]);
        let check = |one: &[Run], two: &[Run], at: Option<u64>| {
            let mut report = Report::default();
            compare(one, two, "x", &mut report);
            let text = report.problems.first().map(ToString::to_string);
            assert_eq!(text.is_some(), at.is_some());
            if let (Some(text), Some(at)) = (text, at) {
                assert!(text.ends_with(&format!("block {at}")), "{text}");
            }
        };
        check(&all, &all, None);
        check(&all, &all[..1], Some(8));
        check(&[run(0, 5)], &[run(0, 7)], Some(5));
        check(&[run(1, 5)], &[run(0, 7)], Some(0));
    }
}
