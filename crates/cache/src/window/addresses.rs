//! Which addresses of the process are mappings of files, of whatever cache: to be asked before memory
//! is touched under a latch.
//!
//! **Invariant:** a mapping is entered before anybody has its address, and leaves when nobody may use
//! it any more, before the address can be another's. Whoever asks about memory far from all mappings
//! takes no lock.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// First addresses, and the ends. Addresses are the process's, so the list is, too.
static MAPPINGS: RwLock<BTreeMap<usize, usize>> = RwLock::new(BTreeMap::new());
/// All mappings there ever were lie between the two.
static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

pub(super) fn enter(addresses: Range<usize>) {
    let mut mappings = MAPPINGS.write().expect("no panic under this lock");
    LOWEST.fetch_min(addresses.start, Relaxed);
    HIGHEST.fetch_max(addresses.end, Relaxed);
    mappings.insert(addresses.start, addresses.end);
}

pub(super) fn leave(addresses: &Range<usize>) {
    let mut mappings = MAPPINGS.write().expect("no panic under this lock");
    mappings.remove(&addresses.start);
}

/// Whether `len` bytes at `at` touch a [`Mapping`](super::Mapping) of any cache. Such memory may fault,
/// and the fault may need what the asker holds.
#[inline]
pub fn covers(at: *const u8, len: usize) -> bool {
    let (from, to) = (at as usize, (at as usize).saturating_add(len));
    // Who knows the address of a mapping learned of it after it was entered.
    let near = from < HIGHEST.load(Relaxed) && LOWEST.load(Relaxed) < to;
    near && len > 0 && search(from, to)
}

#[cold]
fn search(from: usize, to: usize) -> bool {
    let mappings = MAPPINGS.read().expect("no panic under this lock");
    let last = mappings.range(..to).next_back();
    last.is_some_and(|(_, end)| from < *end)
}
