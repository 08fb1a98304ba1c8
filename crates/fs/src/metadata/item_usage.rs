//! Usage of a fileset with limits besides its blocks and inodes: names, targets of symbolic links,
//! extended attributes.
//!
//! The format does not store these numbers: they are counted when a file system with limits is
//! opened or a limit is set, and kept in memory from then on. **Invariant:** each change of a
//! counted item updates the number in the same operation, and is undone with it
//! ([`State::count_held`] is the only place).

use crate::error::{Error, Kind, Result};
use crate::format::key::{Item, Key, TreeId};
use crate::format::record::BLOCK_BYTES;
use crate::fs::FsShared;
use crate::metadata::op::Op;
use crate::metadata::state::{State, Step, Tree};

/// Approximate space of an item besides its value, in bytes: its key, and its share of pages that
/// are not full.
const ITEM_BYTES: u64 = 64;

/// Usage of a fileset. See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ItemUsage {
    /// Bytes of all counted items.
    pub bytes: u64,
    /// Number of names; a file has one or more.
    pub names: u64,
}

impl ItemUsage {
    /// Checks whether the item of this key counts.
    fn is_counted(key: &Key) -> bool {
        key.object != 0 && matches!(key.kind(), Some(Item::Entry | Item::Xattr | Item::Target))
    }

    /// Replaces an item with a value of `old` bytes by one with a value of `new` bytes.
    fn change(&mut self, key: &Key, old: Option<usize>, new: Option<usize>) {
        let bytes = |len: Option<usize>| len.map_or(0, |len| len as u64 + ITEM_BYTES);
        let names =
            |len: Option<usize>| u64::from(len.is_some() && key.kind() == Some(Item::Entry));
        self.bytes = (self.bytes + bytes(new)).saturating_sub(bytes(old));
        self.names = (self.names + names(new)).saturating_sub(names(old));
    }

    /// Returns the number of full blocks; a partial block is free of charge.
    pub fn blocks(&self) -> u64 {
        self.bytes / BLOCK_BYTES
    }
}

impl Tree {
    /// Returns the blocks that count against the quota: content, allocated and promised, and the
    /// blocks that the counted items would fill.
    pub fn charged_blocks(&self) -> u64 {
        self.record.used_blocks + self.promised + self.item_usage.map_or(0, |held| held.blocks())
    }

    /// Returns the inodes that count against the quota: each once per name. The root has no name.
    pub fn charged_inodes(&self) -> u64 {
        let names = self.item_usage.map_or(0, |held| held.names + 1);
        self.record.used_inodes.max(names)
    }

    fn is_limited(&self) -> bool {
        let is_fileset = self.record.origin == 0 && !self.record.removing;
        is_fileset && (self.record.quota_blocks != 0 || self.record.quota_inodes != 0)
    }
}

impl State {
    /// Updates the usage for a change of an item.
    pub(crate) fn count_held(&mut self, key: Key, new: Option<usize>, fresh: bool) -> Result<()> {
        let held = self.trees.get(&key.layer).and_then(|tree| tree.item_usage);
        let Some(before) = held.filter(|_| ItemUsage::is_counted(&key)) else {
            return Ok(());
        };
        let old = if fresh {
            None
        } else {
            self.store.get(&key, |bytes| Ok(bytes.len()))?
        };
        let mut now = before;
        now.change(&key, old, new);
        self.steps.push(Step::ItemUsage(key.layer, before));
        if let Some(tree) = self.trees.get_mut(&key.layer) {
            tree.item_usage = Some(now);
        }
        Ok(())
    }

    /// Recounts the usage of a fileset if it has limits.
    pub(crate) fn recount_held(&mut self, id: TreeId) -> Result<()> {
        let held = if self.trees.get(&id).is_some_and(Tree::is_limited) {
            let mut held = ItemUsage::default();
            self.scan_tree(id, |key, bytes| {
                if ItemUsage::is_counted(&key) {
                    held.change(&key, None, Some(bytes.len()));
                }
                Ok(true)
            })?;
            Some(held)
        } else {
            None
        };
        if let Some(tree) = self.trees.get_mut(&id) {
            tree.item_usage = held;
        }
        Ok(())
    }
}

impl FsShared {
    /// Counts the usage of all filesets with limits. One that cannot be read does not prevent the
    /// use of the others.
    pub(crate) fn count_all_held(&self) -> Result<()> {
        let mut state = self.write();
        let all: Vec<TreeId> = state.trees.keys().copied().collect();
        for id in all {
            match state.recount_held(id) {
                Err(error) if error.kind() == Kind::Corrupt => {
                    let name = &self.name;
                    tracing::warn!(
                        "{name}: quota of fileset {id} excludes names and attributes: {error}"
                    );
                }
                counted => counted?,
            }
        }
        Ok(())
    }
}

impl Op<'_> {
    /// Checks that names and attributes added by this operation stay within the limits of the
    /// fileset. Called after the changes.
    pub fn check_held(&self) -> Result<()> {
        let first = self.state().steps.iter().find_map(|step| match step {
            Step::ItemUsage(id, held) if *id == self.tree => Some(*held),
            _ => None,
        });
        let tree = self.state().tree(self.tree)?;
        let (Some(before), Some(now)) = (first, tree.item_usage) else {
            return Ok(());
        };
        let (blocks, inodes) = (tree.record.quota_blocks, tree.record.quota_inodes);
        let beyond = |quota: u64, used: u64| quota != 0 && used > quota;
        let full = now.bytes > before.bytes && beyond(blocks, tree.charged_blocks())
            || now.names > before.names && beyond(inodes, tree.charged_inodes());
        if full {
            Err(Error::new(Kind::Quota, "fileset quota exceeded"))
        } else {
            Ok(())
        }
    }
}
