//! What a fileset with limits holds beside its blocks and inodes: names, targets of symbolic links, extended attributes.
//!
//! The format has no place for these numbers: they are counted when a file system with limits is opened, or a limit is
//! set, and kept in memory from then on. **Invariant:** each change of an item that counts changes the number in the same
//! operation, and is taken back with it ([`State::count_held`] is the only place).

use crate::error::{Error, Kind, Result};
use crate::fs::Inner;
use crate::key::{Item, Key, TreeId};
use crate::op::Op;
use crate::record::BLOCK_BYTES;
use crate::state::{State, Step, Tree};

/// Bytes that an item takes beside its value, about: its key, and its share of pages that are not full.
const ITEM_BYTES: u64 = 64;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Held {
    /// Bytes of all items that count.
    pub bytes: u64,
    /// Names; a file has one or more.
    pub names: u64,
}

impl Held {
    /// Whether items of this kind count.
    fn is_counted(key: &Key) -> bool {
        key.object != 0 && matches!(key.kind(), Some(Item::Entry | Item::Xattr | Item::Target))
    }

    /// The item of a key, whose value had `old` bytes, has `new` ones now.
    fn change(&mut self, key: &Key, old: Option<usize>, new: Option<usize>) {
        let bytes = |len: Option<usize>| len.map_or(0, |len| len as u64 + ITEM_BYTES);
        let names =
            |len: Option<usize>| u64::from(len.is_some() && key.kind() == Some(Item::Entry));
        self.bytes = (self.bytes + bytes(new)).saturating_sub(bytes(old));
        self.names = (self.names + names(new)).saturating_sub(names(old));
    }

    /// Blocks that the bytes fill; what fills none costs nothing.
    pub fn blocks(&self) -> u64 {
        self.bytes / BLOCK_BYTES
    }
}

impl Tree {
    /// Blocks that count against the quota: of content, there and promised, and what the rest would fill.
    pub fn charged_blocks(&self) -> u64 {
        self.record.used_blocks + self.promised + self.held.map_or(0, |held| held.blocks())
    }

    /// Inodes that count against the quota: each as often as it has names. The root has none.
    pub fn charged_inodes(&self) -> u64 {
        let names = self.held.map_or(0, |held| held.names + 1);
        self.record.used_inodes.max(names)
    }

    fn is_limited(&self) -> bool {
        let is_fileset = self.record.origin == 0 && !self.record.removing;
        is_fileset && (self.record.quota_blocks != 0 || self.record.quota_inodes != 0)
    }
}

impl State {
    /// Counts what a change of an item does.
    pub(crate) fn count_held(&mut self, key: Key, new: Option<usize>, fresh: bool) -> Result<()> {
        let held = self.trees.get(&key.layer).and_then(|tree| tree.held);
        let Some(before) = held.filter(|_| Held::is_counted(&key)) else {
            return Ok(());
        };
        let old = match fresh {
            true => None,
            false => self.store.get(&key, |bytes| Ok(bytes.len()))?,
        };
        let mut now = before;
        now.change(&key, old, new);
        self.steps.push(Step::Held(key.layer, before));
        if let Some(tree) = self.trees.get_mut(&key.layer) {
            tree.held = Some(now);
        }
        Ok(())
    }

    /// Counts all of a fileset if it has limits.
    pub(crate) fn recount_held(&mut self, id: TreeId) -> Result<()> {
        let held = match self.trees.get(&id).is_some_and(Tree::is_limited) {
            false => None,
            true => {
                let mut held = Held::default();
                self.scan_tree(id, |key, bytes| {
                    if Held::is_counted(&key) {
                        held.change(&key, None, Some(bytes.len()));
                    }
                    Ok(true)
                })?;
                Some(held)
            }
        };
        if let Some(tree) = self.trees.get_mut(&id) {
            tree.held = held;
        }
        Ok(())
    }
}

impl Inner {
    /// Counts what the filesets with limits hold. One that cannot be read is still there for who can use the rest.
    pub(crate) fn count_all_held(&self) -> Result<()> {
        let mut state = self.write();
        let all: Vec<TreeId> = state.trees.keys().copied().collect();
        for id in all {
            match state.recount_held(id) {
                Err(error) if error.kind() == Kind::Corrupt => {
                    let name = &self.name;
                    tracing::warn!(
                        "{name}: names of fileset {id} do not count against its limits: {error}"
                    );
                }
                counted => counted?,
            }
        }
        Ok(())
    }
}

impl Op<'_> {
    /// Refuses an operation that has brought names or attributes beyond the limits of the fileset. Comes after them.
    pub fn check_held(&self) -> Result<()> {
        let first = self.state().steps.iter().find_map(|step| match step {
            Step::Held(id, held) if *id == self.tree => Some(*held),
            _ => None,
        });
        let tree = self.state().tree(self.tree)?;
        let (Some(before), Some(now)) = (first, tree.held) else {
            return Ok(());
        };
        let (blocks, inodes) = (tree.record.quota_blocks, tree.record.quota_inodes);
        let beyond = |quota: u64, used: u64| quota != 0 && used > quota;
        let full = now.bytes > before.bytes && beyond(blocks, tree.charged_blocks())
            || now.names > before.names && beyond(inodes, tree.charged_inodes());
        match full {
            false => Ok(()),
            true => Err(Error::new(
                Kind::Quota,
                "the quota of the fileset is used up",
            )),
        }
    }
}
