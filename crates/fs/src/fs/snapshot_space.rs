//! The space that removing a snapshot would free.

use crate::error::{Kind, Result};
use crate::format::key::{Item, Key, TreeId};
use crate::format::record::Extent;
use crate::fs::Fs;
use crate::metadata::state::{State, decode_preserved};

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
        let mut blocks = 0;
        loop {
            let state = self.inner().read();
            let origin = state.tree(id)?.record.origin;
            let siblings = &state.trees.get(&origin).ok_or(Kind::NotFound)?.snapshots;
            let at = siblings.iter().position(|sibling| *sibling == id);
            let older = at.and_then(|at| siblings.get(at.checked_sub(1)?).copied());
            let (mut count, mut last) = (0, None);
            state.items.scan(from, to, |key, bytes| {
                blocks += state.freed_with(key, bytes, older)?;
                (count, last) = (count + 1, Some(key));
                Ok(count < STEP_ITEMS)
            })?;
            match last.filter(|_| count == STEP_ITEMS).and_then(Key::next) {
                Some(next) => from = next,
                None => return Ok(blocks),
            }
        }
    }
}

impl State {
    /// Counts the blocks that are free once an item of a snapshot's layer is removed.
    fn freed_with(&self, key: Key, bytes: &[u8], older: Option<TreeId>) -> Result<u64> {
        if key.kind() != Some(Item::Extent) {
            return Ok(0);
        }
        let Some(value) = decode_preserved(bytes)? else {
            return Ok(0);
        };
        if let Some(older) = older
            && self.moves_to(key, older)?
        {
            return Ok(0);
        }
        let counts = self.counts_within(Extent::decode(value)?.run())?;
        let own = counts.iter().filter(|(_, count)| *count == 1);
        Ok(own.map(|(run, _)| run.blocks).sum())
    }

    /// Checks whether an older snapshot needs an item of a layer that is removed.
    pub fn moves_to(&self, key: Key, older: TreeId) -> Result<bool> {
        let record = self.trees.get(&older).map(|tree| &tree.record);
        let wants = record.is_some_and(|record| key.object >> 1 < record.next_ino);
        Ok(wants && self.items.get(&key.in_layer(older), |_| Ok(()))?.is_none())
    }
}
