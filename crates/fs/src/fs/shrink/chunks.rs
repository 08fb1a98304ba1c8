//! Compressed chunks beyond the new end. A chunk is one run, and all records of it refer to the whole
//! run, so it moves as a whole.

use super::scan_beyond;
use crate::error::{Error, Kind, Result};
use crate::format::chunk::Chunk;
use crate::format::key::{Item, Key};
use crate::format::record::Run;
use crate::metadata::op::Op;
use crate::metadata::overlay::Prior;
use crate::metadata::shared::FsShared;
use crate::metadata::state::{State, encode_preserved};
use crate::space::full;
use std::collections::BTreeMap;

/// Records of chunks, by the first block of the chunk on the device.
pub(super) type Chunks = BTreeMap<u64, Vec<(Key, Chunk)>>;

impl FsShared {
    /// Moves a chunk to free blocks, with all records of it. Returns the number of its blocks.
    pub(super) fn move_chunk(&self, records: &[(Key, Chunk)]) -> Result<u64> {
        let Some(from) = records.first().map(|(_, chunk)| chunk.run()) else {
            return Ok(0);
        };
        let want = from.blocks;
        if !self.space.reserve(want) && !self.space.reserve_from_metadata(want) {
            return Err(full());
        }
        let Some(to) = self.space.allocate_whole(None, want) else {
            self.space.release_reserved(want);
            let text = "the free space below the new end is in too small pieces for a compressed \
                        chunk; choose a larger size";
            return Err(Error::new(Kind::NoSpace, text));
        };
        let moved = self
            .copy_blocks(from, to.start)
            .and_then(|()| self.refer_to_chunk(records, from, to));
        match moved {
            Ok(()) => Ok(want),
            Err(error) => {
                self.space.release_run(to);
                Err(error)
            }
        }
    }

    /// Makes all records of a chunk refer to its copy.
    fn refer_to_chunk(&self, records: &[(Key, Chunk)], from: Run, to: Run) -> Result<()> {
        let mut op = Op::begin_any(self, 0)?;
        for (key, chunk) in records {
            let moved = Chunk {
                start: to.start,
                ..*chunk
            };
            let tree = op.trees.get(&key.layer);
            let is_snapshot = tree.is_some_and(|tree| tree.record.origin != 0);
            let value = if is_snapshot {
                encode_preserved(&moved.encode())
            } else {
                moved.encode()
            };
            op.put_key(*key, value, Prior::Possible);
        }
        op.move_run(from, to)?;
        op.finish();
        Ok(())
    }
}

/// Collects the chunks of all layers that reach beyond a block.
pub(super) fn chunks_beyond(state: &State, end: u64) -> Result<Chunks> {
    let mut all = Chunks::new();
    if !state.compression {
        return Ok(all);
    }
    let what = (Item::Chunk, end);
    scan_beyond(state, what, Chunk::decode, Chunk::run, |key, chunk| {
        let records = all.entry(chunk.start).or_default();
        if records
            .first()
            .is_some_and(|(_, first)| first.run() != chunk.run())
        {
            return Err(Error::corrupt(format!("{key} overlaps another one")));
        }
        records.push((key, chunk));
        Ok(())
    })?;
    Ok(all)
}

/// Counts the blocks of chunks.
pub(super) fn blocks_of(chunks: &Chunks) -> u64 {
    let firsts = chunks.values().filter_map(|records| records.first());
    firsts.map(|(_, chunk)| u64::from(chunk.blocks)).sum()
}
