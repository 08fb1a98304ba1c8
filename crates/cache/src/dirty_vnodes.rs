//! The vnodes of a volume with dirty pages, ordered so that those that are due are found without
//! scanning the others.

use foldhash::HashMap;
use std::collections::BTreeSet;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard};

/// Dirty files above which the oldest are written back: the write-back of a small file takes much
/// longer than its bytes take on the device, and a sync or an unmount waits for all of them.
pub(crate) const DIRTY_FILES_MAX: usize = 16_384;

/// Numbers of vnodes that have, or had, dirty pages. Times are milliseconds of the cache's clock.
#[derive(Default)]
pub(crate) struct DirtyVnodes(Mutex<State>);

/// The time of a vnode is when the oldest of its pages became dirty, or earlier.
#[derive(Default)]
struct State {
    by_age: BTreeSet<(u64, u64)>,
    since: HashMap<u64, u64>,
}

impl State {
    fn insert(&mut self, number: u64, since: u64) {
        if let Entry::Vacant(place) = self.since.entry(number) {
            place.insert(since);
            self.by_age.insert((since, number));
        }
    }

    fn remove(&mut self, number: u64) {
        if let Some(since) = self.since.remove(&number) {
            self.by_age.remove(&(since, number));
        }
    }
}

impl DirtyVnodes {
    /// Records that a vnode has dirty pages since this time, unless it is recorded already. Returns
    /// the number of vnodes.
    pub(crate) fn insert(&self, number: u64, since: u64) -> usize {
        let mut state = self.lock();
        state.insert(number, since);
        state.since.len()
    }

    /// Counts the vnodes.
    pub(crate) fn len(&self) -> usize {
        self.lock().since.len()
    }

    /// Removes a vnode, unless it has dirty pages. If it becomes dirty after the check, the thread
    /// that dirties it records it after the removal, so a later sync finds it.
    pub(crate) fn remove_unless(&self, number: u64, is_dirty: impl FnOnce() -> bool) {
        let mut state = self.lock();
        if !is_dirty() {
            state.remove(number);
        }
    }

    /// Sets the time of a vnode's oldest dirty page.
    pub(crate) fn set_since(&self, number: u64, since: u64) {
        let mut state = self.lock();
        state.remove(number);
        state.insert(number, since);
    }

    /// Finds the oldest dirty vnode not before `from`: the time it became dirty, and its number.
    pub(crate) fn oldest(&self, from: (u64, u64)) -> Option<(u64, u64)> {
        self.lock().by_age.range(from..).next().copied()
    }

    /// Collects the vnodes in ascending order.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        let mut numbers: Vec<u64> = self.lock().since.keys().copied().collect();
        numbers.sort_unstable();
        numbers
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic under this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_vnode_comes_first_and_keeps_its_time_until_it_is_set() {
        let dirty = DirtyVnodes::default();
        dirty.insert(7, 20);
        dirty.insert(3, 30);
        dirty.insert(7, 40);
        assert_eq!(dirty.oldest((0, 0)), Some((20, 7)));
        assert_eq!(dirty.oldest((20, 8)), Some((30, 3)));
        dirty.set_since(7, 40);
        assert_eq!(dirty.oldest((0, 0)), Some((30, 3)));
        assert_eq!(dirty.numbers(), [3, 7]);
        dirty.remove_unless(3, || true);
        assert_eq!(dirty.oldest((0, 0)), Some((30, 3)));
        dirty.remove_unless(3, || false);
        assert_eq!(dirty.oldest((0, 0)), Some((40, 7)));
        assert_eq!(dirty.len(), 1);
    }
}
