//! What operations have changed since the last entry of the log for a successor: the items, encoded, and
//! the names of the rest.
//!
//! An item is encoded when it is set, while its value is at hand. An operation that is rolled back takes
//! its items back.

use crate::format::account::Owner;
use crate::format::key::{Ino, Item, Key, Section, TreeId};
use crate::format::record::{Out, Run};
use crate::format::sums::SUMS_BLOCKS;
use crate::metadata::inode_state::InodeState;
use crate::metadata::journal;

/// Room for the numbers of items and of runs, which an entry begins with.
const COUNTS_BYTES: usize = 8;

/// What was changed since the last entry. The lists may contain duplicates.
pub(crate) struct Unsaved {
    /// The next entry, which begins with its items.
    pub entry: Out,
    items: u32,
    /// Length of the entry and number of its items, without those of the operation in progress.
    kept: (usize, u32),
    pub inodes: Vec<(TreeId, Ino)>,
    /// Inodes of which only what a write sets has changed; those that are in `inodes`, too, have changed
    /// in more.
    pub written: Vec<(TreeId, Ino)>,
    pub accounts: Vec<(TreeId, Owner)>,
    pub trees: Vec<TreeId>,
    /// Blocks whose checksums were set.
    pub sums: Vec<Run>,
    /// Inodes in memory that no record was the same as when they were last saved, even after a commit.
    pub ahead: Vec<(TreeId, Ino)>,
    /// Whether changes are only those of replayed entries, which the log has.
    pub replaying: bool,
}

impl Unsaved {
    pub fn new(replaying: bool) -> Unsaved {
        Unsaved {
            entry: Out(vec![0; COUNTS_BYTES]),
            items: 0,
            kept: (COUNTS_BYTES, 0),
            inodes: Vec::new(),
            written: Vec::new(),
            accounts: Vec::new(),
            trees: Vec::new(),
            sums: Vec::new(),
            ahead: Vec::new(),
            replaying,
        }
    }

    /// Adds an item; `None` if it was deleted.
    pub fn put(&mut self, key: &Key, value: Option<&[u8]>) {
        journal::put_item(&mut self.entry, key, value);
        self.items += 1;
    }

    /// Adds an item whose value `encode` appends.
    pub fn put_with(&mut self, key: &Key, encode: impl FnOnce(&mut Out)) {
        journal::put_item_with(&mut self.entry, key, encode);
        self.items += 1;
    }

    /// Notes what else an item that was set or deleted concerns: what is in memory counts more.
    pub fn note_item(&mut self, key: &Key) {
        if let Some(name) = inode_of(key) {
            self.inodes.push(name);
        } else if let Some(number) = sums_of(key) {
            let (start, blocks) = (number * SUMS_BLOCKS, SUMS_BLOCKS);
            self.sums.push(Run { start, blocks });
        }
    }

    /// Makes the items so far final.
    pub fn keep(&mut self) {
        self.kept = (self.entry.0.len(), self.items);
    }

    /// Drops the items that are not final.
    pub fn roll_back(&mut self) {
        self.entry.0.truncate(self.kept.0);
        self.items = self.kept.1;
    }

    /// Ends the items, and sets the numbers that the entry begins with.
    pub fn end_items(&mut self, runs: usize) {
        let counts = u64::from(self.items) | (runs as u64) << 32;
        self.entry.0[..COUNTS_BYTES].copy_from_slice(&counts.to_le_bytes());
    }

    pub fn clear(&mut self) {
        self.entry.0.truncate(COUNTS_BYTES);
        self.items = 0;
        self.keep();
        self.inodes.clear();
        self.written.clear();
        self.accounts.clear();
        self.trees.clear();
        self.sums.clear();
    }

    /// Notes whether an inode has something that no commit makes an item of.
    pub fn note_ahead(&mut self, name: (TreeId, Ino), core: &mut InodeState) {
        if is_ahead(core) && !std::mem::replace(&mut core.noted_ahead, true) {
            self.ahead.push(name);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.items == 0
            && self.inodes.is_empty()
            && self.written.is_empty()
            && self.accounts.is_empty()
            && self.trees.is_empty()
            && self.sums.is_empty()
    }
}

/// Reports whether an inode has something that no commit makes an item of.
pub(super) fn is_ahead(core: &InodeState) -> bool {
    core.unnamed || core.inode.size != core.inode.disk_size
}

/// Returns the inode that a key is the record of.
pub(super) fn inode_of(key: &Key) -> Option<(TreeId, Ino)> {
    let is_record = key.layer != 0 && *key == Key::item(key.layer, key.object, Item::Inode, 0);
    is_record.then_some((key.layer, key.object))
}

/// Returns the number of the record of checksums that a key is of.
pub(super) fn sums_of(key: &Key) -> Option<u64> {
    key.is_in(Section::Sums).then_some(key.item)
}
