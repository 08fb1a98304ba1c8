//! Names that were looked up in vain: before a program creates a file, the kernel looks it up, and
//! each new file and each write asks for attributes that hardly any file has.
//!
//! **Invariant:** an entry is valid while no item of its kind has changed, in any tree.

use crate::format::key::Key;
use std::sync::Mutex;

/// Number of names that are remembered.
const NAMES: usize = 64;

/// The names. They share few locks of the state, so each has a lock of its own.
pub(crate) struct AbsentNames([Mutex<Option<Absent>>; NAMES]);

#[derive(Clone, Copy)]
struct Absent {
    /// First place of the name.
    first: Key,
    /// Place that is free for it.
    free: u64,
    /// Number of changes to items of this kind when it was looked up.
    changes: u64,
}

impl Default for AbsentNames {
    fn default() -> AbsentNames {
        AbsentNames([const { Mutex::new(None) }; NAMES])
    }
}

impl AbsentNames {
    /// Returns the place that is free for a name, if it was looked up in vain after the last of
    /// `changes` changes.
    pub fn find(&self, first: Key, changes: u64) -> Option<u64> {
        let found = (*self.slot(first).try_lock().ok()?)?;
        (found.first == first && found.changes == changes).then_some(found.free)
    }

    /// Remembers that a name does not exist.
    pub fn add(&self, first: Key, free: u64, changes: u64) {
        if let Ok(mut slot) = self.slot(first).try_lock() {
            *slot = Some(Absent {
                first,
                free,
                changes,
            });
        }
    }

    fn slot(&self, first: Key) -> &Mutex<Option<Absent>> {
        // Places are hashes, except that attributes of all inodes have the same few.
        let mixed = (first.item ^ first.object).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.0[mixed as usize >> (usize::BITS - NAMES.ilog2())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::key::Item;

    #[test]
    fn a_name_is_remembered_until_an_item_of_its_kind_changes() {
        let absent = AbsentNames::default();
        let name = |inode| Key::item(1, inode, Item::Xattr, 1000);
        absent.add(name(2), 1001, 7);
        assert_eq!(absent.find(name(2), 7), Some(1001));
        assert_eq!(absent.find(name(2), 8), None);
        assert_eq!(absent.find(name(4), 7), None);
        // Any number of names leaves room for the last one.
        for inode in 0..1000 {
            absent.add(name(inode), 1000, 8);
            assert_eq!(absent.find(name(inode), 8), Some(1000));
        }
    }
}
