//! The leaves of a vnode: a hash table that readers search without a lock, and an authoritative map
//! in file order.
//!
//! **Invariant:** the leaf's own tag confirms that a leaf found in the table is the requested one.
//! The table may lack a leaf that the map has; a miss that matters is repeated in the map, under
//! the lock.

use crate::leaf::{Leaf, LeafAt, LeafNo, Slab};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{
    AtomicPtr, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

/// Slots in the smallest table.
const PLACES_MIN: usize = 8;
/// Slots that a search probes.
const PROBES: usize = 8;

/// The table of all vnodes that never had a leaf. It stays empty.
static EMPTY: LazyLock<Table> = LazyLock::new(|| Table::new(PLACES_MIN));

/// The leaves of one vnode.
pub struct Index {
    vnode: u64,
    slab: Arc<Slab>,
    table: AtomicPtr<Table>,
    map: Mutex<LeafMap>,
}

/// Addresses of leaves at the slot of their number's hash, or one of the next; 0 for none.
struct Table {
    places: Box<[AtomicU64]>,
    /// Right shift from hash to slot: keeps the top bits, which spread neighbors evenly.
    shift: u32,
}

struct LeafMap {
    leaves: BTreeMap<LeafNo, LeafAt>,
    /// All tables ever used except [`EMPTY`], the last one being current: a reader may still be in an
    /// old one. Each is at least twice as long as the one before, so the old ones take less than the
    /// current.
    #[expect(clippy::vec_box, reason = "readers have the address of the table")]
    tables: Vec<Box<Table>>,
}

impl Table {
    fn new(places: usize) -> Table {
        debug_assert!(places.is_power_of_two());
        Table {
            places: (0..places).map(|_| AtomicU64::new(0)).collect(),
            shift: 64 - places.trailing_zeros(),
        }
    }

    /// Computes the first slot of a leaf of this number.
    #[inline]
    fn place(&self, number: LeafNo) -> usize {
        // Fibonacci hashing: the top bits of multiples of the golden ratio are spread evenly, so
        // the leaves of a sequentially read file do not collide, and the first probe finds them.
        (number.raw().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    /// Iterates over all slots where a leaf of this number may be.
    fn probe(&self, number: LeafNo) -> impl Iterator<Item = &AtomicU64> {
        let (first, mask) = (self.place(number), self.places.len() - 1);
        (0..PROBES).map(move |i| &self.places[(first + i) & mask])
    }
}

impl Index {
    /// Creates the index of a vnode without pages.
    pub fn new(vnode: u64, slab: Arc<Slab>) -> Index {
        Index {
            vnode,
            slab,
            table: AtomicPtr::new(std::ptr::from_ref::<Table>(&EMPTY).cast_mut()),
            map: Mutex::new(LeafMap {
                leaves: BTreeMap::new(),
                tables: Vec::new(),
            }),
        }
    }

    /// Returns the number of the vnode.
    pub fn vnode(&self) -> u64 {
        self.vnode
    }

    /// Finds the probable leaf of this number in a few instructions; the caller verifies its tag.
    #[inline]
    pub fn guess(&self, number: LeafNo) -> Option<LeafAt> {
        // SAFETY: tables live in `map.tables` until the index is dropped, and `EMPTY` lives on.
        let table = unsafe { &*self.table.load(Acquire) };
        LeafAt::of_raw(table.places[table.place(number)].load(Acquire))
    }

    /// Looks up the leaf of this number, if the table has it. Takes no lock.
    pub fn find(&self, number: LeafNo) -> Option<LeafAt> {
        // SAFETY: tables live in `map.tables` until the index is dropped, and `EMPTY` lives on.
        let table = unsafe { &*self.table.load(Acquire) };
        for place in table.probe(number) {
            if let Some(at) = LeafAt::of_raw(place.load(Acquire))
                && self.slab.get(at).is(self.vnode, number)
            {
                return Some(at);
            }
        }
        None
    }

    /// Looks up the leaf of this number; on a miss in the table, searches the map under the lock.
    pub fn find_exact(&self, number: LeafNo) -> Option<LeafAt> {
        let found = self.find(number);
        found.or_else(|| self.truth().leaves.get(&number).copied())
    }

    /// Returns the leaf of this number, creating it if necessary, with one reference for the
    /// caller, who releases it with [`Index::release`].
    pub fn acquire(&self, number: LeafNo) -> LeafAt {
        if let Some(at) = self.find(number)
            && self.slab.get(at).acquire(self.vnode, number)
        {
            return at;
        }
        let mut truth = self.truth();
        if let Some(at) = truth.leaves.get(&number).copied() {
            // Leaves are retired under this lock, so this one stays.
            assert!(self.slab.get(at).acquire(self.vnode, number));
            self.enter(&mut truth, number, at);
            return at;
        }
        let at = self.slab.adopt(self.vnode, number);
        truth.leaves.insert(number, at);
        self.enter(&mut truth, number, at);
        at
    }

    /// Undoes an [`Index::acquire`], or accounts for a word that became empty; releases the leaf
    /// when nothing uses it any more.
    pub fn release(&self, number: LeafNo, at: LeafAt) {
        if self.slab.get(at).release() {
            self.release_if_idle(number);
        }
    }

    /// Releases a leaf if it is idle.
    pub fn release_if_idle(&self, number: LeafNo) {
        let mut truth = self.truth();
        let Some(at) = truth.leaves.get(&number).copied() else {
            return;
        };
        if !self.slab.get(at).retire() {
            return;
        }
        truth.leaves.remove(&number);
        if let Some(table) = truth.tables.last()
            && let Some(place) = table.probe(number).find(|p| p.load(Relaxed) == at.raw())
        {
            place.store(0, Release);
        }
        drop(truth);
        self.slab.free(at);
    }

    /// Collects the leaves in a range of numbers, in order.
    pub fn range(&self, numbers: RangeInclusive<LeafNo>) -> Vec<(LeafNo, LeafAt)> {
        let truth = self.truth();
        truth
            .leaves
            .range(numbers)
            .map(|(n, at)| (*n, *at))
            .collect()
    }

    pub fn len(&self) -> usize {
        self.truth().leaves.len()
    }

    /// Counts the leaves, and the pages that are resident or being loaded.
    pub fn tally(&self) -> (usize, u64) {
        let truth = self.truth();
        let pages = truth.leaves.values().map(|at| self.leaf(*at).live());
        (truth.leaves.len(), pages.sum())
    }

    #[inline]
    pub fn leaf(&self, at: LeafAt) -> &Leaf {
        self.slab.get(at)
    }

    fn truth(&self) -> MutexGuard<'_, LeafMap> {
        self.map.lock().expect("no panic under this lock")
    }

    /// Enters a leaf into the table, which grows when it is half full or the slots are taken.
    fn enter(&self, truth: &mut LeafMap, number: LeafNo, at: LeafAt) {
        let mut least = PLACES_MIN;
        if let Some(table) = truth.tables.last() {
            if truth.leaves.len() * 2 <= table.places.len() && place(table, number, at) {
                return;
            }
            if table.probe(number).any(|p| p.load(Relaxed) == at.raw()) {
                return;
            }
            least = 2 * table.places.len();
        }
        // More slots than twice the leaves make a crowded spot unlikely, and a leaf without a slot
        // is found through the map.
        let wanted = (truth.leaves.len() * 2).next_power_of_two();
        if !truth.tables.is_empty() && wanted < least {
            return;
        }
        let table = Box::new(Table::new(wanted.max(least)));
        for (number, at) in &truth.leaves {
            place(&table, *number, *at);
        }
        self.table
            .store(std::ptr::from_ref(&*table).cast_mut(), Release);
        truth.tables.push(table);
    }
}

fn place(table: &Table, number: LeafNo, at: LeafAt) -> bool {
    if table.probe(number).any(|p| p.load(Relaxed) == at.raw()) {
        return true;
    }
    let free = table.probe(number).find(|p| p.load(Relaxed) == 0);
    if let Some(place) = free {
        place.store(at.raw(), Release);
    }
    free.is_some()
}

impl Drop for Index {
    fn drop(&mut self) {
        let numbers: Vec<LeafNo> = self.truth().leaves.keys().copied().collect();
        numbers.into_iter().for_each(|n| self.release_if_idle(n));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leaf::LEAF_PAGES;

    #[test]
    fn leaves_are_found_in_any_number_and_order_and_given_up() {
        let slab = Arc::new(Slab::default());
        let index = Index::new(9, slab.clone());
        let number = |i: u64| LeafNo::of_page(i * i % 100_003 * LEAF_PAGES).0;
        let numbers: Vec<LeafNo> = (0..5000).map(number).collect();
        let mut made = BTreeMap::new();
        for number in &numbers {
            let at = index.acquire(*number);
            let before = made.insert(*number, at);
            assert!(before.is_none_or(|b| b == at));
            if before.is_some() {
                index.release(*number, at);
            }
        }
        assert_eq!(index.len(), made.len());
        let in_order = index.range(LeafNo::all());
        assert!(
            in_order
                .iter()
                .copied()
                .eq(made.iter().map(|(n, at)| (*n, *at)))
        );
        for (number, at) in &made {
            assert!(index.find_exact(*number) == Some(*at));
        }
        let fast = made.keys().filter(|n| index.find(**n).is_some()).count();
        assert!(
            fast * 100 >= made.len() * 99,
            "{fast} of {} without the lock",
            made.len()
        );
        for (number, at) in made {
            index.release(number, at);
            assert!(index.find_exact(number).is_none());
        }
        assert_eq!(index.len(), 0);
    }
}
