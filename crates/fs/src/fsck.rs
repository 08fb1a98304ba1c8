//! The check of everything, on a file system that is open; nothing is changed by it. `repair` does that.
//!
//! Two walks: over every tree as its readers see it (each name leads to an inode, each inode has the
//! links, entries and blocks that it says, everything hangs from a root), and over every record in
//! every layer (each block is in use exactly as often as it says). **Invariant:** the state stands
//! still meanwhile: changes wait, readers do not.

mod blocks;
mod repair;
mod tree;

pub use repair::Repair;

use crate::error::{Error, Result};
use crate::fs::{Fs, Inner};
use crate::key::Key;
use crate::state::State;

/// Problems that are listed; more are only counted.
const PROBLEMS_MAX: usize = 1000;

/// What a check has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// What contradicts itself, one sentence each; at most 1000.
    pub problems: Vec<String>,
    /// All of them, those not listed included.
    pub problem_count: u64,
    /// Filesets and snapshots.
    pub trees: u64,
    /// Inodes of all of them.
    pub inodes: u64,
    /// Entries of directories.
    pub entries: u64,
    /// Records of extents, those that snapshots keep included.
    pub extents: u64,
    /// Blocks in use for file data.
    pub data_blocks: u64,
    /// Blocks with more than one reference.
    pub shared_blocks: u64,
    /// Blocks that the metadata takes on the device.
    pub metadata_blocks: u64,
}

impl Report {
    /// Whether nothing contradicts itself.
    pub fn is_clean(&self) -> bool {
        self.problem_count == 0
    }

    fn problem(&mut self, text: impl Into<String>) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(text.into());
        }
    }

    /// Notes an error as a problem and goes on, if it is one of what was read.
    fn note<T>(&mut self, what: &str, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.kind() == crate::Kind::Corrupt => {
                self.problem(format!("{what}: {error}"));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

impl Fs {
    /// Checks everything. Changes wait until it is over.
    ///
    /// # Errors
    /// The device failed. What contradicts itself is in the report.
    pub fn check(&self) -> Result<Report> {
        self.inner().check()
    }
}

impl Inner {
    fn check(&self) -> Result<Report> {
        // Nobody commits meanwhile, so that the bitmap on disk stands still too.
        let db = self.db.lock().expect("no panic under this lock");
        let db = db
            .as_ref()
            .ok_or_else(|| Error::new(crate::Kind::Io, "the file system is closed"))?;
        let state = self.read();
        let mut report = Report::default();
        check_keys(&state, &mut report)?;
        for (id, tree) in &state.trees {
            report.trees += 1;
            if !tree.record.removing {
                let walk = tree::Walk::new(&state, &self.hasher, *id, &mut report);
                walk.run()?;
            }
        }
        let superblock = self.superblock.lock().clone();
        blocks::check(&state, db, &superblock, &self.space, &mut report)?;
        Ok(report)
    }
}

/// Every key belongs to something.
fn check_keys(state: &State, report: &mut Report) -> Result<()> {
    let known = |key: &Key| match key.layer {
        0 => (1..=3).contains(&key.object),
        layer => key.kind().is_some() && state.trees.contains_key(&layer),
    };
    let from = Key::layer(0).0;
    state.store.scan(from, Key::layer(u32::MAX).1, |key, _| {
        if !known(&key) {
            report.problem(format!("{key:?}: belongs to nothing"));
        }
        Ok(true)
    })?;
    let last = state.trees.last_key_value().map_or(0, |(id, _)| *id);
    if last >= state.next_tree {
        report.problem(format!(
            "the next fileset would be {}, and there is {last}",
            state.next_tree
        ));
    }
    Ok(())
}
