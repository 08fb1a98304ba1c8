//! A check of a file system in use: of one commit, while others change the file system.
//!
//! ```text
//!   commit ──view──► pages, records, trees, blocks      at a limited speed
//!     │
//!     └── later commits, which reuse no page of the view
//! ```
//!
//! It verifies what [`Fs::check`] does, except for two parts that no commit contains: the free blocks
//! in memory, which follow from the bitmap when a file system is opened, and the tables of `redb`
//! itself. **Invariant:** nothing is changed but the superblock's room for the metadata, which may
//! grow; see `metadata/view.rs`.
//!
//! Blocks in use that nothing refers to stay so: only a reference leads to another one, and no
//! operation allocates a block in use. So [`Fs::return_orphaned`] can free them later, while the file
//! system is in use.

use super::meter::Meter;
use super::{FindingKind, Parts, Report, stored_pages};
use crate::error::{Error, Result};
use crate::format::record::Run;
use crate::fs::Fs;
use crate::fs::open::load;
use crate::metadata::accounts;
use crate::metadata::database::SpaceChange;
use crate::metadata::op::Op;
use crate::metadata::pace::Pace;
use crate::metadata::shared::FsShared;
use crate::metadata::state::State;
use std::sync::Arc;

/// Result of a check of a file system in use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    /// Findings.
    pub report: Report,
    /// Blocks in use that nothing refers to, if nothing else is wrong.
    orphaned: Vec<Run>,
}

impl Checked {
    /// Reports whether there is space that [`Fs::return_orphaned`] can free.
    pub fn has_orphaned(&self) -> bool {
        !self.orphaned.is_empty()
    }
}

impl Fs {
    /// Checks the metadata of the current state, while others use the file system. `progress` is
    /// called from time to time with the amount done and the total; `pace` limits the bytes read in a
    /// second, and can end the check.
    ///
    /// # Errors
    /// [`crate::Kind::Busy`]: there is another check, `pace` was stopped, or the metadata changes
    /// too fast. The device failed. Inconsistencies are in the report.
    pub fn check_online(
        &self,
        pace: &Arc<Pace>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Checked> {
        self.inner().check_online(pace, progress)
    }

    /// Frees the space that a check has found to be in use by nothing. Returns the number of blocks;
    /// durable when this returns.
    ///
    /// # Errors
    /// [`crate::Kind::ReadOnly`]. [`crate::Kind::Corrupt`]: some of the blocks are free. The device
    /// failed.
    pub fn return_orphaned(&self, found: &Checked) -> Result<u64> {
        let fs = self.inner();
        {
            let mut op = Op::begin_any(fs, 0)?;
            let unused = fs.space.unused();
            for run in &found.orphaned {
                let after = unused.partition_point(|free| free.end() <= run.start);
                if unused.get(after).is_some_and(|free| free.start < run.end()) {
                    return Err(Error::corrupt("orphaned blocks are free"));
                }
                let (run, used) = (*run, false);
                op.space.push(SpaceChange { run, used });
            }
            op.finish();
        }
        self.sync()?;
        Ok(found.orphaned.iter().map(|run| run.blocks).sum())
    }
}

impl FsShared {
    fn check_online(
        &self,
        pace: &Arc<Pace>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Checked> {
        let mut view = self.view(pace)?;
        let mut report = Report::default();
        {
            // Both copies are written under this lock.
            let _unchanged = self.superblock.lock();
            for text in self.superblock.damaged_copies() {
                report.problem(FindingKind::Pages, text);
            }
        }
        let items = view.items.take().ok_or_else(crate::error::closed)?;
        let bounds = view.superblock.first_block()..view.superblock.device_blocks;
        let mut state = State {
            checksums: view.superblock.has_checksums(),
            compression: view.superblock.has_compression(),
            summer: self.summer.clone(),
            ..load(items, bounds, true)?
        };
        for (id, tree) in &mut state.trees {
            if tree.record.origin == 0 && !tree.record.removing {
                // The check of records reports one that cannot be read.
                tree.accounts = accounts::load(&state.items, *id).unwrap_or_default();
            }
        }
        let mut meter = Meter::new(progress, &view.superblock, view.item_bytes, &state);
        meter.begin(meter.pages());
        let pages = stored_pages::verify(&view, &mut report, &mut meter);
        report.note(FindingKind::Pages, "page check", pages)?;
        let parts = Parts {
            state: &state,
            superblock: &view.superblock,
            hasher: &self.hasher,
            used: &|device_blocks| view.used(device_blocks),
            space: None,
        };
        let orphaned = parts.check_records(&mut report, &mut meter)?;
        parts.check_trees(&mut report, &mut meter)?;
        meter.end();
        // A record that cannot be read may refer to them.
        let is_all = report.problem_count == u64::from(!orphaned.is_empty());
        let orphaned = if is_all { orphaned } else { Vec::new() };
        Ok(Checked { report, orphaned })
    }
}

#[cfg(test)]
mod tests;
