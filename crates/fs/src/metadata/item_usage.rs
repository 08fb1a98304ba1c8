//! Usage of a fileset with limits besides its blocks and inodes: names, targets of symbolic links,
//! extended attributes.
//!
//! The format does not store these numbers: they are counted when a file system with limits is
//! opened or a limit is set, and kept in memory from then on. **Invariant:** each change of a
//! counted item updates the number in the same operation, and is undone with it
//! (`State::count_held` is the only place).

use crate::format::key::{Item, Key};
use crate::format::record::BLOCK_BYTES;

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
    pub fn is_counted(key: &Key) -> bool {
        key.object != 0 && matches!(key.kind(), Some(Item::Entry | Item::Xattr | Item::Target))
    }

    /// Computes the bytes for which an item with a value of `len` bytes counts.
    pub fn bytes_of(len: usize) -> u64 {
        len as u64 + ITEM_BYTES
    }

    /// Replaces an item with a value of `old` bytes by one with a value of `new` bytes.
    pub fn change(&mut self, key: &Key, old: Option<usize>, new: Option<usize>) {
        let bytes = |len: Option<usize>| len.map_or(0, ItemUsage::bytes_of);
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
