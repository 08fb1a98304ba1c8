//! Names next to each other in a directory or among the attributes of an inode, to find duplicates
//! in a scan in the order of places.
//!
//! Equal names have equal hashes, so their places differ by less than [`PLACES`]; a name that is
//! elsewhere is in the wrong slot. So at most that many names are in memory, whatever a directory
//! contains, and their memory is used again.

use crate::format::key::{Item, Key};
use std::collections::VecDeque;

/// Number of places that a name may have.
const PLACES: u64 = 256;

/// Names that may be equal to the next one.
#[derive(Default)]
pub(super) struct NearNames {
    kind: Option<Item>,
    names: VecDeque<(u64, Vec<u8>)>,
    /// Memory of names that are no longer needed.
    spare: Vec<Vec<u8>>,
}

impl NearNames {
    /// Forgets all names.
    pub fn clear(&mut self) {
        self.drop_until(u64::MAX);
    }

    /// Reports whether a name differs from all that were passed before, in ascending order of keys,
    /// and whose place an equal name may have.
    pub fn is_new(&mut self, key: &Key, name: &[u8]) -> bool {
        if self.kind != key.kind() {
            self.clear();
            self.kind = key.kind();
        }
        self.drop_until((key.place() + 1).saturating_sub(PLACES));
        let is_new = self.names.iter().all(|(_, other)| other != name);
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.extend_from_slice(name);
        self.names.push_back((key.place(), copy));
        is_new
    }

    fn drop_until(&mut self, place: u64) {
        while self.names.front().is_some_and(|(at, _)| *at < place) {
            if let Some((_, mut name)) = self.names.pop_front() {
                name.clear();
                self.spare.push(name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_are_found_as_far_apart_as_they_can_be() {
        let mut near = NearNames::default();
        let mut is_new =
            |item, place, name: &[u8]| near.is_new(&Key::item(1, 3, item, place), name);
        assert!(is_new(Item::Xattr, 700, b"one"));
        assert!(is_new(Item::Entry, 300, b"one"));
        assert!(is_new(Item::Entry, 301, b"two"));
        assert!(!is_new(Item::Entry, 302, b"two"));
        assert!(!is_new(Item::Entry, 555, b"one"));
        assert!(is_new(Item::Entry, 600, b"three"));
        // The first of these is out of reach, the second is not.
        assert!(is_new(Item::Entry, 855, b"four"));
        assert!(!is_new(Item::Entry, 856, b"four"));
        assert!(is_new(Item::Entry, 1112, b"four"));
        assert!(near.names.len() == 1 && near.spare.len() <= 8);
        near.clear();
        assert!(near.is_new(&Key::item(1, 3, Item::Entry, 1113), b"four"));
    }
}
