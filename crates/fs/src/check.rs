//! A complete check of an open file system, without changing it; for that see `check/repair.rs`.
//!
//! Three passes, each in a thread: over the pages of the metadata as stored on the device, comparing
//! each with its checksum; over every record in every layer (each block is in use exactly as often
//! as its count states); and over every tree as its readers see it (each name refers to an inode,
//! each inode has the links, entries and blocks that it states, everything is reachable from a
//! root). **Invariant:** the state does not change during the check: changes wait, readers do not. A clean
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
use blocks::Counter;
use finding::Findings;
use meter::Meter;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::RwLockWriteGuard;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;
use sums::Unsummed;

/// Bytes of file data read between two reports of progress.
const DATA_STEP_BYTES: u64 = 16 << 20;
/// Interval of progress reports.
const TELL_EVERY: Duration = Duration::from_millis(200);

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

    /// Adds the result of another part of the check.
    fn add(&mut self, other: Report) {
        self.problem_count += other.problem_count;
        let problems = other.problems.into_iter();
        problems.for_each(|problem| self.problems.add(problem));
        other
            .notes
            .into_iter()
            .for_each(|note| self.notes.add(note));
        self.trees += other.trees;
        self.inodes += other.inodes;
        self.entries += other.entries;
        self.extents += other.extents;
        self.chunks += other.chunks;
        if !other.files_by_extents.is_empty() {
            self.files_by_extents = other.files_by_extents;
        }
        self.data_blocks += other.data_blocks;
        self.shared_blocks += other.shared_blocks;
        self.metadata_blocks += other.metadata_blocks;
        self.unverified_blocks += other.unverified_blocks;
        self.orphaned_blocks += other.orphaned_blocks;
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
        let mut state = self.write();
        if !self.options.read_only {
            // The records of directories that were changed last are newer in memory.
            let written = state.write_inodes();
            report.note(FindingKind::Pages, "inodes in memory", written)?;
        }
        let state = RwLockWriteGuard::downgrade(state);
        for text in self.superblock.damaged_copies() {
            report.problem(FindingKind::Pages, text);
        }
        // If these cannot be read, the check of the pages reports why.
        let item_bytes = db.item_bytes().unwrap_or(0);
        let epoch = db.epoch();
        let key = self.superblock.key();
        let parts = Parts {
            state: &state,
            superblock: &superblock,
            hasher: &self.hasher,
            used: &|device_blocks| db.used(device_blocks),
            space: Some(&self.space),
        };
        let (mut of_pages, mut of_trees) = (Report::default(), Report::default());
        let mut of_records = Report::default();
        let threads: [Work<'_>; 3] = [
            Box::new(|tell| {
                let meter = &mut Meter::for_pages(tell, &superblock);
                let of = (&superblock, key);
                let pages = epoch.and_then(|epoch| pages::verify(&self.io, of, epoch, meter));
                of_pages.note(FindingKind::Pages, "page check", pages)?;
                meter.end();
                Ok(())
            }),
            Box::new(|tell| {
                let meter = &mut Meter::for_records(tell, item_bytes);
                parts.check_records(&mut of_records, meter)?;
                meter.end();
                Ok(())
            }),
            Box::new(|tell| {
                let meter = &mut Meter::for_trees(tell, item_bytes, &state);
                parts.check_trees(&mut of_trees, meter)?;
                meter.end();
                Ok(())
            }),
        ];
        at_once(threads, progress)?;
        for part in [of_pages, of_records, of_trees] {
            report.add(part);
        }
        Ok(report)
    }
}

/// Part of a check, with the receiver of its progress.
type Work<'a> = Box<dyn FnOnce(&mut dyn FnMut(u64, u64)) -> Result<()> + Send + 'a>;

/// Runs the parts of a check, each in a thread, and reports the sum of their progress.
fn at_once<const N: usize>(parts: [Work<'_>; N], progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
    // Amounts done, and totals, which each part tells first.
    let told: [(AtomicU64, AtomicU64); N] =
        std::array::from_fn(|_| (AtomicU64::new(0), AtomicU64::new(u64::MAX)));
    let sum =
        |of: fn(&(AtomicU64, AtomicU64)) -> u64| told.iter().map(of).fold(0, u64::saturating_add);
    let total = || sum(|told| told.1.load(Relaxed));
    std::thread::scope(|scope| {
        let (over, wait) = sync_channel::<()>(1);
        let threads: Vec<_> = parts
            .into_iter()
            .zip(&told)
            .map(|(part, (done, total))| {
                let over = over.clone();
                scope.spawn(move || {
                    // Dropped at the end, also of a panic.
                    let _over = over;
                    part(&mut |now, of| {
                        total.store(of, Relaxed);
                        done.store(now, Relaxed);
                    })
                })
            })
            .collect();
        drop(over);
        while let Err(RecvTimeoutError::Timeout) = wait.recv_timeout(TELL_EVERY) {
            if total() < u64::MAX {
                progress(sum(|told| told.0.load(Relaxed)), total());
            }
        }
        let results = threads.into_iter().map(|thread| {
            let result = thread.join();
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        let results: Vec<Result<()>> = results.collect();
        results.into_iter().collect::<Result<()>>()
    })?;
    let total = total();
    progress(total, total);
    Ok(())
}

/// State to be checked, besides the pages that it is stored in.
struct Parts<'a> {
    state: &'a State,
    superblock: &'a Superblock,
    hasher: &'a Hasher,
    /// Returns the runs in use according to the last commit.
    used: &'a (dyn Fn(u64) -> Result<Vec<Run>> + Sync),
    /// The allocator, if it belongs to the same state.
    space: Option<&'a Space>,
}

impl Parts<'_> {
    /// Checks every record in every layer. Returns the runs in use that nothing refers to, see
    /// [`blocks::check`].
    fn check_records(&self, report: &mut Report, meter: &mut Meter) -> Result<Vec<Run>> {
        let state = self.state;
        let unsummed = state.checksums.then(|| Unsummed::new(state, report));
        let mut unsummed = match unsummed {
            Some(summed) => report.note(FindingKind::Data, "checksum check", summed)?,
            None => None,
        };
        let mut counter = Counter::default();
        meter.begin(meter.items());
        let (from, to) = (Key::layer(0).0, Key::layer(TreeId::MAX).1);
        let scanned = state.items.scan(from, to, |key, bytes| {
            meter.item(bytes);
            if !belongs(state, &key) {
                let text = format!("{key}: stray record, which no lookup can find");
                report.problem(FindingKind::Record, text);
            }
            if key.layer > 0 {
                counter.add(state, &key, bytes);
                if let Some(unsummed) = &mut unsummed {
                    unsummed.add(&key, bytes);
                }
            }
            Ok(true)
        });
        check_next_tree(state, report);
        if report
            .note(FindingKind::Pages, "record check", scanned)?
            .is_none()
        {
            return Ok(Vec::new());
        }
        report.unverified_blocks = unsummed.map_or(0, |unsummed| unsummed.count());
        let blocks = blocks::check(self, counter, report);
        let orphaned = report.note(FindingKind::Space, "block check", blocks)?;
        Ok(orphaned.unwrap_or_default())
    }

    /// Checks every tree as its readers see it, and the accounts of its owners.
    fn check_trees(&self, report: &mut Report, meter: &mut Meter) -> Result<()> {
        let state = self.state;
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
        Ok(())
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

/// Checks that no fileset has the next id.
fn check_next_tree(state: &State, report: &mut Report) {
    let last = state.trees.last_key_value().map_or(0, |(id, _)| *id);
    if last >= state.next_tree {
        let text = format!(
            "the next fileset id is {}, but fileset {last} exists",
            state.next_tree
        );
        report.problem(FindingKind::Record, text);
    }
}
