//! The checksums of file data: whether their records are valid, and how many blocks have none.
//! Whether the data matches them is a matter of [`crate::Fs::check_data`].

use super::Report;
use super::finding::FindingKind;
use crate::error::Result;
use crate::format::chunk::held_by;
use crate::format::key::{Item, Key, Section};
use crate::format::record::{BLOCK_BYTES, DeviceOffset, Run};
use crate::format::sums::{NO_SUM, SUMS_BLOCKS};
use crate::fs::upgrade::Upgraded;
use crate::metadata::inode_state::Blocks;
use crate::metadata::op::Op;
use crate::metadata::shared::FsShared;
use crate::metadata::state::{State, decode_preserved};
use crate::scrub::is_of_medium;
use std::ops::Range;

/// Blocks read and changed at a time.
const STEP_BLOCKS: u64 = 1024;

/// The written blocks without a checksum, found in one pass over all records: a crash leaves some
/// while they are overwritten on a full device.
pub(super) struct Unsummed<'a> {
    state: &'a State,
    summed: Blocks,
    missing: Blocks,
}

/// Checks whether a record of checksums is valid and belongs to blocks of the device.
pub(super) fn is_sound(state: &State, key: &Key, bytes: &[u8]) -> bool {
    key.item < state.bounds.end.div_ceil(SUMS_BLOCKS) && state.summer.decode(bytes).is_ok()
}

impl<'a> Unsummed<'a> {
    /// Reads all checksums. Records of them that are invalid are in the report.
    pub fn new(state: &'a State, report: &mut Report) -> Result<Unsummed<'a>> {
        let mut summed = Blocks::default();
        let (from, to) = Key::section(Section::Sums);
        state.items.scan(from, to, |key, bytes| {
            if !is_sound(state, &key, bytes) {
                let text = format!("{key}: invalid checksum record");
                report.problem(FindingKind::Record, text);
                return Ok(true);
            }
            let mut at = key.item * SUMS_BLOCKS;
            for alike in state
                .summer
                .decode(bytes)?
                .0
                .chunk_by(|one, two| (*one == NO_SUM) == (*two == NO_SUM))
            {
                let end = at + alike.len() as u64;
                if alike[0] != NO_SUM {
                    summed.insert(at..end);
                }
                at = end;
            }
            Ok(true)
        })?;
        for (block, sum) in state.pending_sums.iter() {
            if sum == NO_SUM {
                summed.remove(block..block + 1);
            } else {
                summed.insert(block..block + 1);
            }
        }
        Ok(Unsummed {
            state,
            summed,
            missing: Blocks::default(),
        })
    }

    /// Adds the blocks of a record that have no checksum. Other parts of the check report invalid
    /// records.
    pub fn add(&mut self, key: &Key, bytes: &[u8]) {
        let kind = key.kind();
        if !matches!(kind, Some(Item::Extent | Item::Chunk)) || key.object == 0 {
            return;
        }
        let state = self.state;
        let tree = state.trees.get(&key.layer);
        let value = match tree.map(|tree| tree.record.origin) {
            Some(0) => Ok(Some(bytes)),
            Some(_) => decode_preserved(bytes),
            None => Ok(None),
        };
        let held =
            value.and_then(|value| Ok(value.map(|v| held_by(kind, v)).transpose()?.flatten()));
        if let Ok(Some(held)) = held
            && !held.unwritten
        {
            let run = held.run;
            let inside = run.start.max(state.bounds.start)..run.end().min(state.bounds.end);
            if !inside.is_empty() {
                for run in self.summed.missing(inside) {
                    self.missing.insert(run);
                }
            }
        }
    }

    /// Counts the blocks found.
    pub fn count(&self) -> u64 {
        self.missing.count()
    }
}

/// Finds the written blocks without a checksum.
fn missing(state: &State) -> Result<Vec<Range<u64>>> {
    let mut unsummed = Unsummed::new(state, &mut Report::default())?;
    let (from, to) = (Key::layer(1).0, Key::layer(u32::MAX).1);
    state.items.scan(from, to, |key, bytes| {
        unsummed.add(&key, bytes);
        Ok(true)
    })?;
    Ok(unsummed.missing.iter().collect())
}

impl FsShared {
    /// Computes missing checksums from the data as it is.
    pub fn add_missing_sums(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Upgraded> {
        let mut done = Upgraded::default();
        if !self.read().checksums {
            return Ok(done);
        }
        let missing = missing(&self.read())?;
        let total = missing.iter().map(|run| run.end - run.start).sum();
        progress(0, total);
        for range in missing {
            let mut at = range.start;
            while at < range.end {
                let run = Run {
                    start: at,
                    blocks: (range.end - at).min(STEP_BLOCKS),
                };
                at = run.end();
                self.add_sums_of(run, &mut done)?;
                progress(done.added + done.unreadable, total);
            }
        }
        Ok(done)
    }

    fn add_sums_of(&self, run: Run, done: &mut Upgraded) -> Result<()> {
        let mut data = vec![0; (run.blocks * BLOCK_BYTES) as usize];
        let start = DeviceOffset::of_block(run.start);
        match self.io.read(start, &mut data) {
            Ok(()) => {}
            Err(error) if !is_of_medium(&error) => return Err(error.into()),
            Err(_) if run.blocks > 1 => {
                // Each block alone, because the device names none.
                return (run.start..run.end())
                    .try_for_each(|start| self.add_sums_of(Run { start, blocks: 1 }, done));
            }
            Err(_) => {
                done.unreadable += 1;
                return Ok(());
            }
        }
        let sums = self.summer.sums_of(&data);
        let mut op = Op::begin_any(self, 0)?;
        op.set_sums(run, &sums);
        op.finish();
        done.added += run.blocks;
        Ok(())
    }
}
