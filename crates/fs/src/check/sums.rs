//! The checksums of file data: whether their records are valid, and how many blocks have none.
//! Whether the data matches them is a matter of [`crate::Fs::check_data`].

use super::Report;
use super::finding::FindingKind;
use crate::error::Result;
use crate::format::key::{Item, Key, Section};
use crate::format::record::{BLOCK_BYTES, DeviceOffset, Extent, Run};
use crate::format::sums::{NO_SUM, SUMS_BLOCKS, Sums, sum_of};
use crate::metadata::inode_state::Blocks;
use crate::metadata::op::Op;
use crate::metadata::shared::FsShared;
use crate::metadata::state::{State, decode_preserved};
use std::ops::Range;

/// Blocks read and changed at a time by a repair.
const STEP_BLOCKS: u64 = 1024;

/// Checks that each record of checksums is valid, and counts the written blocks without a checksum:
/// a crash leaves some while they are overwritten on a full device.
pub(super) fn check(state: &State, report: &mut Report) -> Result<()> {
    if !state.checksums {
        return Ok(());
    }
    let (from, to) = Key::section(Section::Sums);
    state.items.scan(from, to, |key, bytes| {
        if !is_sound(state, &key, bytes) {
            let text = format!("{key}: invalid checksum record");
            report.problem(FindingKind::Record, text);
        }
        Ok(true)
    })?;
    let missing = missing(state)?;
    report.unverified_blocks = missing.iter().map(|run| run.end - run.start).sum();
    Ok(())
}

/// Checks whether a record of checksums is valid and belongs to blocks of the device.
pub(super) fn is_sound(state: &State, key: &Key, bytes: &[u8]) -> bool {
    key.item < state.bounds.end.div_ceil(SUMS_BLOCKS) && Sums::decode(bytes).is_ok()
}

/// Finds the written blocks without a checksum.
fn missing(state: &State) -> Result<Vec<Range<u64>>> {
    let mut summed = Blocks::default();
    let (from, to) = Key::section(Section::Sums);
    state.items.scan(from, to, |key, bytes| {
        if is_sound(state, &key, bytes) {
            let mut at = key.item * SUMS_BLOCKS;
            for alike in Sums::decode(bytes)?
                .0
                .chunk_by(|one, two| (*one == NO_SUM) == (*two == NO_SUM))
            {
                let end = at + alike.len() as u64;
                if alike[0] != NO_SUM {
                    summed.insert(at..end);
                }
                at = end;
            }
        }
        Ok(true)
    })?;
    let mut missing = Blocks::default();
    let (from, to) = (Key::layer(1).0, Key::layer(u32::MAX).1);
    state.items.scan(from, to, |key, bytes| {
        if key.kind() != Some(Item::Extent) || key.object == 0 {
            return Ok(true);
        }
        let tree = state.trees.get(&key.layer);
        let value = match tree.map(|tree| tree.record.origin) {
            Some(0) => Ok(Some(bytes)),
            Some(_) => decode_preserved(bytes),
            None => Ok(None),
        };
        // Other parts of the check report invalid records.
        let extent = value.and_then(|value| value.map(Extent::decode).transpose());
        if let Ok(Some(extent)) = extent
            && !extent.unwritten
        {
            let run = extent.run();
            let inside = run.start.max(state.bounds.start)..run.end().min(state.bounds.end);
            if !inside.is_empty() {
                for run in summed.missing(inside) {
                    missing.insert(run);
                }
            }
        }
        Ok(true)
    })?;
    Ok(missing.iter().collect())
}

impl FsShared {
    /// Computes missing checksums from the data as it is. Returns the number of blocks.
    pub(super) fn add_missing_sums(&self) -> Result<u64> {
        if !self.read().checksums {
            return Ok(0);
        }
        let missing = missing(&self.read())?;
        let mut blocks = 0;
        for range in missing {
            let mut at = range.start;
            while at < range.end {
                let run = Run {
                    start: at,
                    blocks: (range.end - at).min(STEP_BLOCKS),
                };
                let mut data = vec![0; (run.blocks * BLOCK_BYTES) as usize];
                at = run.end();
                // What the device cannot read stays without checksums.
                if self
                    .io
                    .read(DeviceOffset::of_block(run.start), &mut data)
                    .is_err()
                {
                    continue;
                }
                let sums: Vec<_> = data.chunks(BLOCK_BYTES as usize).map(sum_of).collect();
                let mut op = Op::begin_any(self, 0)?;
                op.set_sums(run, &sums)?;
                op.finish();
                blocks += run.blocks;
            }
        }
        Ok(blocks)
    }
}
