//! A complete check of an open file system, without changing it; for that see `check/repair.rs`.
//!
//! Three passes: over the pages of the metadata as stored on the device, comparing each with its
//! checksum; over every tree as its readers see it (each name refers to an inode, each inode has
//! the links, entries and blocks that it states, everything is reachable from a root); and over
//! every record in every layer (each block is in use exactly as often as its count states).
//! **Invariant:** the state does not change during the check: changes wait, readers do not. A clean
//! file system can be used without metadata errors.

mod accounts;
mod blocks;
mod finding;
mod meter;
mod near_names;
mod online;
mod pages;
mod rebuild;
mod repair;
mod stored_pages;
mod sums;
mod tree;

pub use finding::{Finding, FindingKind};
pub use online::Checked;
pub use repair::Repair;

use crate::error::Result;
use crate::format::key::{Key, Section, TreeId};
use crate::format::name_hash::Hasher;
use crate::format::record::Run;
use crate::format::superblock::Superblock;
use crate::fs::Fs;
use crate::metadata::shared::FsShared;
use crate::metadata::state::State;
use crate::scrub::{Invalid, ScrubPosition};
use crate::space::Space;
use finding::Findings;
use meter::Meter;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Bytes of file data read between two reports of progress.
const DATA_STEP_BYTES: u64 = 16 << 20;

/// Result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// Inconsistencies; at most 1000.
    pub problems: Vec<Finding>,
    /// Number of all inconsistencies, including unlisted ones.
    pub problem_count: u64,
    /// Peculiarities that are no inconsistencies, such as flags that this version does not know; at
    /// most 1000.
    pub notes: Vec<Finding>,
    /// Number of filesets and snapshots.
    pub trees: u64,
    /// Number of inodes of all filesets and snapshots.
    pub inodes: u64,
    /// Number of directory entries.
    pub entries: u64,
    /// Number of extent records, including those that snapshots keep.
    pub extents: u64,
    /// Number of those that are of compressed chunks.
    pub chunks: u64,
    /// Histogram of the files of filesets by their number of extents: element n counts those with
    /// at least 2^n and fewer than 2^(n + 1).
    pub files_by_extents: Vec<u64>,
    /// Blocks in use for file data.
    pub data_blocks: u64,
    /// Blocks with more than one reference.
    pub shared_blocks: u64,
    /// Blocks of the device that the metadata occupies.
    pub metadata_blocks: u64,
    /// Blocks of file data without a checksum, in a file system with checksums.
    pub unverified_blocks: u64,
    /// Blocks in use to which nothing refers.
    pub orphaned_blocks: u64,
}

impl Report {
    /// Reports whether there are no inconsistencies.
    pub fn is_clean(&self) -> bool {
        self.problem_count == 0
    }

    fn problem(&mut self, kind: FindingKind, text: impl Into<String>) {
        self.found(Finding::new(kind, text));
    }

    fn found(&mut self, finding: Finding) {
        self.problem_count += 1;
        self.problems.add(finding);
    }

    /// Records an error as a problem and continues, if it concerns the data that was read.
    fn note<T>(&mut self, kind: FindingKind, what: &str, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.kind() == crate::Kind::Corrupt => {
                self.problem(kind, format!("{what}: {error}"));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

impl Fs {
    /// Checks everything. Changes wait until the check is over.
    ///
    /// # Errors
    /// The device failed. Inconsistencies are in the report.
    pub fn check(&self) -> Result<Report> {
        self.check_with(&mut |_, _| {})
    }

    /// As [`Fs::check`]; `progress` is called from time to time with the amount done and the total.
    ///
    /// # Errors
    /// As [`Fs::check`].
    pub fn check_with(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Report> {
        self.inner().check(progress)
    }
}

impl Fs {
    /// Reads all file data, compares it with its checksums, and adds the damage to the report of a
    /// check. Skips the data of invalid records, which the check has reported. `progress` is called
    /// with the blocks done and their number.
    ///
    /// # Errors
    /// The device does not answer. Inconsistencies are in the report.
    pub fn check_data(
        &self,
        report: &mut Report,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        let mut next = Some(ScrubPosition::START);
        let mut done = 0;
        while let Some(from) = next {
            let step = self.scrub_with(from, DATA_STEP_BYTES, Invalid::Skip);
            let Some(step) = report.note(FindingKind::Pages, "data check", step)? else {
                return Ok(());
            };
            done = (done + step.blocks).min(report.data_blocks);
            progress(done, report.data_blocks);
            for damage in step.damage {
                report.found(Finding::of_damage(damage));
            }
            next = step.next;
        }
        Ok(())
    }
}

impl FsShared {
    fn check(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Report> {
        // Held throughout, to prevent commits, so that the pages and the bitmap on disk stay the
        // same.
        let db = self.db.lock().expect("no panic under this lock");
        let db = db.as_ref().ok_or_else(crate::error::closed)?;
        let superblock = self.superblock.lock().clone();
        let mut report = Report::default();
        if !self.options.read_only {
            // The records of directories that were changed last are newer in memory.
            let written = self.write().write_inodes();
            report.note(FindingKind::Pages, "inodes in memory", written)?;
        }
        let state = self.read();
        for text in self.superblock.damaged_copies() {
            report.problem(FindingKind::Pages, text);
        }
        // If these cannot be read, the check of the pages reports why.
        let item_bytes = db.item_bytes().unwrap_or(0);
        let meter = &mut Meter::new(progress, &superblock, item_bytes, &state);
        let epoch = db.epoch();
        let key = self.superblock.key();
        let pages =
            epoch.and_then(|epoch| pages::verify(&self.io, (&superblock, key), epoch, meter));
        report.note(FindingKind::Pages, "page check", pages)?;
        let parts = Parts {
            state: &state,
            superblock: &superblock,
            hasher: &self.hasher,
            used: &|device_blocks| db.used(device_blocks),
            space: Some(&self.space),
        };
        parts.check(&mut report, meter)?;
        meter.end();
        Ok(report)
    }
}

/// State to be checked, besides the pages that it is stored in.
struct Parts<'a> {
    state: &'a State,
    superblock: &'a Superblock,
    hasher: &'a Hasher,
    /// Returns the runs in use according to the last commit.
    used: &'a dyn Fn(u64) -> Result<Vec<Run>>,
    /// The allocator, if it belongs to the same state.
    space: Option<&'a Space>,
}

impl Parts<'_> {
    /// Checks all records. Returns the runs in use that nothing refers to, see [`blocks::check`].
    fn check(&self, report: &mut Report, meter: &mut Meter) -> Result<Vec<Run>> {
        let state = self.state;
        let keys = check_keys(state, report, meter);
        report.note(FindingKind::Pages, "record check", keys)?;
        for (id, tree) in &state.trees {
            report.trees += 1;
            if !tree.record.removing && !tree.restoring {
                let walk = tree::Walk::new(state, self.hasher, *id, report);
                let walked = walk.run(meter);
                let what = format!("`{}`", tree.record.name);
                report.note(FindingKind::Pages, &what, walked)?;
            }
        }
        let accounts = accounts::check(state, report);
        report.note(FindingKind::Usage, "check of users and groups", accounts)?;
        let blocks = blocks::check(self, report, meter);
        let orphaned = report.note(FindingKind::Space, "block check", blocks)?;
        let sums = sums::check(state, report);
        report.note(FindingKind::Data, "checksum check", sums)?;
        Ok(orphaned.unwrap_or_default())
    }
}

/// Checks whether a key belongs to an existing section or layer, and a lookup can ask for it.
fn belongs(state: &State, key: &Key) -> bool {
    let is = |section: Section| key.object == section as u64;
    match key.layer {
        0 if is(Section::NextTree) => key.item == 0,
        0 => is(Section::Trees) || is(Section::Shared) || (state.checksums && is(Section::Sums)),
        layer => key.is_possible_item() && state.trees.contains_key(&layer),
    }
}

/// Checks that every key belongs to an existing section or layer.
fn check_keys(state: &State, report: &mut Report, meter: &mut Meter) -> Result<()> {
    meter.begin(meter.items());
    let from = Key::layer(0).0;
    state
        .items
        .scan(from, Key::layer(TreeId::MAX).1, |key, bytes| {
            meter.item(bytes);
            if !belongs(state, &key) {
                report.problem(
                    FindingKind::Record,
                    format!("{key}: stray record, which no lookup can find"),
                );
            }
            Ok(true)
        })?;
    let last = state.trees.last_key_value().map_or(0, |(id, _)| *id);
    if last >= state.next_tree {
        let text = format!(
            "the next fileset id is {}, but fileset {last} exists",
            state.next_tree
        );
        report.problem(FindingKind::Record, text);
    }
    Ok(())
}
