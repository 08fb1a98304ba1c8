//! Changes to the metadata that wait in memory for the next commit.

use crate::key::Key;
use std::collections::BTreeMap;

/// What is to become of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// It has this value. `fresh`: nothing below has the key, so that a delete need leave no trace.
    Put { value: Box<[u8]>, fresh: bool },
    /// It is gone.
    Delete,
}

impl Change {
    /// The value, if the key is there.
    pub fn value(&self) -> Option<&[u8]> {
        match self {
            Change::Put { value, .. } => Some(value),
            Change::Delete => None,
        }
    }
}

/// Changes by key. What an operation does to it can be taken back with what each step returned.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    changes: BTreeMap<Key, Change>,
    bytes: usize,
}

/// About what an entry of the map costs beside its value.
const ENTRY_BYTES: usize = 64;

impl Overlay {
    /// Sets a key. `fresh` says that nothing below has it; what an entry here says goes before.
    /// Gives what was here.
    pub fn put(&mut self, key: Key, value: Box<[u8]>, fresh: bool) -> Option<Change> {
        let fresh = match self.changes.get(&key) {
            Some(Change::Put { fresh, .. }) => *fresh,
            Some(Change::Delete) => false,
            None => fresh,
        };
        self.set(key, Some(Change::Put { value, fresh }))
    }

    /// Removes a key. Gives what was here.
    pub fn delete(&mut self, key: Key) -> Option<Change> {
        match self.changes.get(&key) {
            Some(Change::Put { fresh: true, .. }) => self.set(key, None),
            _ => self.set(key, Some(Change::Delete)),
        }
    }

    /// Makes the entry of a key this one, or none. Gives what was here.
    pub fn set(&mut self, key: Key, change: Option<Change>) -> Option<Change> {
        let cost = |c: &Change| ENTRY_BYTES + c.value().map_or(0, <[u8]>::len);
        self.bytes += change.as_ref().map_or(0, cost);
        let before = match change {
            Some(change) => self.changes.insert(key, change),
            None => self.changes.remove(&key),
        };
        self.bytes -= before.as_ref().map_or(0, cost);
        before
    }

    /// The change of a key, if there is one.
    pub fn get(&self, key: &Key) -> Option<&Change> {
        self.changes.get(key)
    }

    /// The changes from one key to another, both included.
    pub fn range(&self, from: Key, to: Key) -> std::collections::btree_map::Range<'_, Key, Change> {
        self.changes.range(from..=to)
    }

    /// All changes in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Key, &Change)> {
        self.changes.iter()
    }

    /// Keys that are changed.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// About the memory that the changes take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_nothing_below_has_leaves_no_trace_when_it_goes() {
        let mut overlay = Overlay::default();
        let key = Key::item(1, 2, crate::key::Item::Inode, 0);
        assert_eq!(overlay.put(key, Box::new([1]), true), None);
        let before = overlay.put(key, Box::new([2; 100]), false);
        assert_eq!(before.as_ref().and_then(Change::value), Some(&[1][..]));
        overlay.delete(key);
        assert!(overlay.is_empty() && overlay.bytes() == 0);
        overlay.put(key, Box::new([1]), false);
        overlay.delete(key);
        assert_eq!(overlay.get(&key), Some(&Change::Delete));
        overlay.put(key, Box::new([3]), true);
        let before = overlay.delete(key);
        assert_eq!(overlay.get(&key), Some(&Change::Delete));
        overlay.set(key, before);
        assert_eq!(overlay.get(&key).unwrap().value(), Some(&[3][..]));
    }
}
