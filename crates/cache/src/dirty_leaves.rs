//! The leaves of a file with pages that are dirty or under write-back.
//!
//! **Invariant:** such a page is in a leaf of this set, so the cost of a flush is proportional to
//! the data to write.

use crate::index::Index;
use crate::leaf::{Leaf, LeafAt, LeafNo};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

/// Leaves with pages that are dirty or under write-back, by number.
#[derive(Default)]
pub(crate) struct DirtyLeaves {
    leaves: Mutex<BTreeMap<LeafNo, LeafAt>>,
    /// Number of pages that are dirty or under write-back.
    pages: AtomicU64,
}

impl DirtyLeaves {
    /// Returns the number of pages that are dirty or under write-back.
    pub(crate) fn pages(&self) -> u64 {
        self.pages.load(Relaxed)
    }

    /// Counts a page; returns whether it is the first.
    pub(crate) fn add_page(&self) -> bool {
        self.pages.fetch_add(1, Relaxed) == 0
    }

    pub(crate) fn remove_page(&self) {
        self.pages.fetch_sub(1, Relaxed);
    }

    /// Adds a leaf, after its first page was marked dirty.
    pub(crate) fn insert(&self, number: LeafNo, at: LeafAt) {
        self.lock().insert(number, at);
    }

    /// Collects the leaves in order, within a range of leaf numbers. `index` is the file's.
    pub(crate) fn collect(
        &self,
        index: &Index,
        numbers: RangeInclusive<LeafNo>,
    ) -> Vec<(LeafNo, LeafAt)> {
        let mut leaves = self.lock();
        let mut found = Vec::new();
        let mut clean = Vec::new();
        for (number, at) in leaves.range(numbers) {
            let leaf = index.leaf(*at);
            if leaf.is(index.vnode(), *number) && is_dirty(leaf) {
                found.push((*number, *at));
            } else {
                clean.push(*number);
            }
        }
        // A thread that dirties a page of one of these now inserts the leaf again afterwards.
        for number in clean {
            leaves.remove(&number);
        }
        found
    }

    /// Finds when the oldest dirty page became dirty, in milliseconds of the cache's clock.
    pub(crate) fn oldest_ms(&self, index: &Index) -> Option<u64> {
        let leaves = self.lock();
        let dirty = leaves.values().map(|at| index.leaf(*at));
        let dirty = dirty.filter(|leaf| is_dirty(leaf));
        dirty.map(Leaf::dirty_since_ms).min()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<LeafNo, LeafAt>> {
        self.leaves.lock().expect("no panic under this lock")
    }
}

fn is_dirty(leaf: &Leaf) -> bool {
    leaf.dirty() | leaf.writeback() != 0
}
