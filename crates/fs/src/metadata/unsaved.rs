//! Names of what operations have changed since the last entry of the log for a successor.

use crate::format::account::Owner;
use crate::format::key::{Ino, Key, TreeId};
use crate::format::record::Run;
use crate::metadata::inode_state::InodeState;
use std::collections::BTreeSet;

/// Names of what was changed since the last entry. May contain duplicates.
#[derive(Default)]
pub(crate) struct Unsaved {
    pub keys: Vec<Key>,
    pub inodes: Vec<(TreeId, Ino)>,
    pub accounts: Vec<(TreeId, Owner)>,
    pub trees: Vec<TreeId>,
    /// Blocks whose checksums were set.
    pub sums: Vec<Run>,
    /// Inodes in memory that no record is the same as, even after a commit.
    pub ahead: BTreeSet<(TreeId, Ino)>,
    /// Whether changes are only those of replayed entries, which the log has.
    pub replaying: bool,
    /// Memory of the last entry, to be used again.
    pub bytes: Vec<u8>,
}

impl Unsaved {
    pub fn clear(&mut self) {
        self.keys.clear();
        self.inodes.clear();
        self.accounts.clear();
        self.trees.clear();
        self.sums.clear();
    }

    /// Notes whether an inode has something that no commit makes an item of.
    pub fn note_ahead(&mut self, name: (TreeId, Ino), core: Option<&InodeState>) {
        if core.is_some_and(is_ahead) {
            self.ahead.insert(name);
        } else {
            self.ahead.remove(&name);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
            && self.inodes.is_empty()
            && self.accounts.is_empty()
            && self.trees.is_empty()
            && self.sums.is_empty()
    }
}

/// Reports whether an inode has something that no commit makes an item of.
pub(super) fn is_ahead(core: &InodeState) -> bool {
    core.unnamed || core.inode.size != core.inode.disk_size
}
