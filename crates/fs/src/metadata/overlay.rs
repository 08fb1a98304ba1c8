//! Changes to the metadata that wait in memory for the next commit.

use crate::format::key::Key;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Whether the lower layers may have a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prior {
    /// None of them has it.
    Absent,
    /// One of them may have it.
    Possible,
}

/// Pending change of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// New value. With [`Prior::Absent`], a deletion can drop the entry.
    Put { value: Box<[u8]>, prior: Prior },
    /// Deletion.
    Delete,
}

impl Change {
    /// Returns the value, unless this is a deletion.
    pub fn value(&self) -> Option<&[u8]> {
        match self {
            Change::Put { value, .. } => Some(value),
            Change::Delete => None,
        }
    }
}

/// Changes by key. Each modification returns the previous entry, so that an operation can undo it.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    changes: BTreeMap<Key, Change>,
    bytes: usize,
}

/// Approximate memory of a map entry besides its value, in bytes.
const ENTRY_BYTES: usize = 64;

fn cost(change: &Change) -> usize {
    ENTRY_BYTES + change.value().map_or(0, <[u8]>::len)
}

impl Overlay {
    /// Sets a key. An existing entry here takes precedence over `prior`. Returns the previous
    /// entry.
    pub fn put(&mut self, key: Key, value: Box<[u8]>, prior: Prior) -> Option<Change> {
        self.bytes += ENTRY_BYTES + value.len();
        let before = match self.changes.entry(key) {
            Entry::Vacant(place) => {
                place.insert(Change::Put { value, prior });
                return None;
            }
            Entry::Occupied(mut entry) => {
                let prior = match entry.get() {
                    Change::Put { prior, .. } => *prior,
                    Change::Delete => Prior::Possible,
                };
                entry.insert(Change::Put { value, prior })
            }
        };
        self.bytes -= cost(&before);
        Some(before)
    }

    /// Deletes a key. Returns the previous entry.
    pub fn delete(&mut self, key: Key) -> Option<Change> {
        let before = match self.changes.entry(key) {
            Entry::Vacant(place) => {
                self.bytes += cost(place.insert(Change::Delete));
                return None;
            }
            Entry::Occupied(mut entry) => match entry.get() {
                Change::Put {
                    prior: Prior::Absent,
                    ..
                } => entry.remove(),
                _ => {
                    self.bytes += cost(&Change::Delete);
                    entry.insert(Change::Delete)
                }
            },
        };
        self.bytes -= cost(&before);
        Some(before)
    }

    /// Replaces the entry of a key, or removes it. Returns the previous entry.
    pub fn set(&mut self, key: Key, change: Option<Change>) -> Option<Change> {
        self.bytes += change.as_ref().map_or(0, cost);
        let before = match change {
            Some(change) => self.changes.insert(key, change),
            None => self.changes.remove(&key),
        };
        self.bytes -= before.as_ref().map_or(0, cost);
        before
    }

    /// Looks up the change of a key, if there is one.
    pub fn get(&self, key: &Key) -> Option<&Change> {
        self.changes.get(key)
    }

    /// Iterates over the changes from one key to another, both included.
    pub fn range(&self, from: Key, to: Key) -> std::collections::btree_map::Range<'_, Key, Change> {
        self.changes.range(from..=to)
    }

    /// Iterates over all changes in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Key, &Change)> {
        self.changes.iter()
    }

    /// Returns the number of changed keys.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Checks whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Returns the approximate memory of the changes in bytes.
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
        let key = Key::item(1, 2, crate::format::key::Item::Inode, 0);
        assert_eq!(overlay.put(key, Box::new([1]), Prior::Absent), None);
        let before = overlay.put(key, Box::new([2; 100]), Prior::Possible);
        assert_eq!(before.as_ref().and_then(Change::value), Some(&[1][..]));
        overlay.delete(key);
        assert!(overlay.is_empty() && overlay.bytes() == 0);
        overlay.put(key, Box::new([1]), Prior::Possible);
        overlay.delete(key);
        assert_eq!(overlay.get(&key), Some(&Change::Delete));
        overlay.put(key, Box::new([3]), Prior::Absent);
        let before = overlay.delete(key);
        assert_eq!(overlay.get(&key), Some(&Change::Delete));
        overlay.set(key, before);
        assert_eq!(overlay.get(&key).unwrap().value(), Some(&[3][..]));
    }
}
