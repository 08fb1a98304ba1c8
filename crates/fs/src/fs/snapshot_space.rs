//! The space that removing a snapshot would free.

use crate::error::{Kind, Result};
use crate::format::chunk::held_by;
use crate::format::key::{Item, Key, TreeId};
use crate::format::record::Run;
use crate::fs::Fs;
use crate::metadata::state::{State, decode_preserved};
use std::collections::BTreeMap;

/// Number of records that are read before others may change the metadata.
const STEP_ITEMS: usize = 4096;

impl Fs {
    /// Counts the blocks that only this snapshot needs, so that removing it would free them. Blocks
    /// that it shares with another snapshot belong to neither. Takes time in proportion to the
    /// changes between this snapshot and the next one.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; the metadata cannot be read.
    pub fn snapshot_blocks(&self, id: TreeId) -> Result<u64> {
        let (mut from, to) = Key::layer(id);
        let mut freed = Freed::default();
        loop {
            let state = self.inner().read();
            let origin = state.tree(id)?.record.origin;
            let siblings = &state.trees.get(&origin).ok_or(Kind::NotFound)?.snapshots;
            let at = siblings.iter().position(|sibling| *sibling == id);
            let older = at.and_then(|at| siblings.get(at.checked_sub(1)?).copied());
            let (mut count, mut last) = (0, None);
            state.items.scan(from, to, |key, bytes| {
                state.add_freed(key, bytes, older, &mut freed)?;
                (count, last) = (count + 1, Some(key));
                Ok(count < STEP_ITEMS)
            })?;
            match last.filter(|_| count == STEP_ITEMS).and_then(Key::next) {
                Some(next) => from = next,
                None => return Ok(freed.blocks + state.blocks_of(&freed.edges)?),
            }
        }
    }
}

/// Blocks that are free once the items of a snapshot's layer are removed.
#[derive(Default)]
struct Freed {
    /// Blocks with a single reference.
    blocks: u64,
    /// References to the others: their change at each block.
    edges: BTreeMap<u64, i64>,
}

impl State {
    /// Adds the blocks of an item of a snapshot's layer.
    fn add_freed(
        &self,
        key: Key,
        bytes: &[u8],
        older: Option<TreeId>,
        freed: &mut Freed,
    ) -> Result<()> {
        let kind = key.kind();
        if !matches!(kind, Some(Item::Extent | Item::Chunk)) {
            return Ok(());
        }
        let Some(value) = decode_preserved(bytes)? else {
            return Ok(());
        };
        if let Some(older) = older
            && self.moves_to(key, older)?
        {
            return Ok(());
        }
        let Some(held) = held_by(kind, value)? else {
            return Ok(());
        };
        for (run, count) in self.counts_within(held.run)? {
            if count == 1 {
                freed.blocks += run.blocks;
            } else {
                *freed.edges.entry(run.start).or_default() += 1;
                *freed.edges.entry(run.end()).or_default() -= 1;
            }
        }
        Ok(())
    }

    /// Counts the blocks that have no references but these.
    fn blocks_of(&self, edges: &BTreeMap<u64, i64>) -> Result<u64> {
        let (mut blocks, mut start, mut found) = (0, 0, 0);
        for (&edge, by) in edges {
            if found > 0 && start < edge {
                let run = Run {
                    start,
                    blocks: edge - start,
                };
                let counts = self.counts_within(run)?.into_iter();
                let own = counts.filter(|(_, count)| i64::from(*count) == found);
                blocks += own.map(|(run, _)| run.blocks).sum::<u64>();
            }
            (start, found) = (edge, found + by);
        }
        Ok(blocks)
    }

    /// Checks whether an older snapshot needs an item of a layer that is removed.
    pub fn moves_to(&self, key: Key, older: TreeId) -> Result<bool> {
        let record = self.trees.get(&older).map(|tree| &tree.record);
        let wants = record.is_some_and(|record| key.object >> 1 < record.next_ino);
        Ok(wants && self.items.get(&key.in_layer(older), |_| Ok(()))?.is_none())
    }
}
