//! The vnodes of a cache by number.

use super::vnode::Vnode;
use crate::leaf::VNODES_MAX;
use foldhash::HashMap;
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

/// All vnodes of a cache. It does not keep them alive.
#[derive(Default)]
pub(crate) struct VnodeTable(RwLock<State>);

#[derive(Default)]
struct State {
    by_number: HashMap<u64, Weak<Vnode>>,
    /// The last number that was assigned.
    last: u64,
}

impl VnodeTable {
    /// Creates a vnode with an unused number and adds it.
    pub(crate) fn add(&self, make: impl FnOnce(u64) -> Vnode) -> Arc<Vnode> {
        let mut state = self.write();
        // Numbers wrap around at 2^28; those in use are skipped.
        let number = loop {
            state.last = (state.last + 1) % VNODES_MAX;
            if state.last != 0 && !state.by_number.contains_key(&state.last) {
                break state.last;
            }
        };
        let vnode = Arc::new(make(number));
        state.by_number.insert(number, Arc::downgrade(&vnode));
        vnode
    }

    pub(crate) fn remove(&self, number: u64) {
        self.write().by_number.remove(&number);
    }

    /// Looks up the vnode of this number, if it is alive.
    pub(crate) fn get(&self, number: u64) -> Option<Arc<Vnode>> {
        self.read().by_number.get(&number).and_then(Weak::upgrade)
    }

    /// Counts the vnodes.
    pub(crate) fn len(&self) -> usize {
        self.read().by_number.len()
    }

    /// Collects the vnodes that are alive.
    pub(crate) fn live(&self) -> Vec<Arc<Vnode>> {
        let state = self.read();
        state.by_number.values().filter_map(Weak::upgrade).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.0.read().expect("no panic under this lock")
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.0.write().expect("no panic under this lock")
    }
}
