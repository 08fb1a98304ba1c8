//! The addresses of this process that are mappings of files, of any cache: to be checked before
//! memory is accessed under a latch.
//!
//! **Invariant:** a mapping is entered before its address is published, and removed when it is no
//! longer used, before the address can be reused. A query for memory far from all mappings takes no
//! lock.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Start and end addresses. Addresses are per process, so the list is, too.
static MAPPINGS: RwLock<BTreeMap<usize, usize>> = RwLock::new(BTreeMap::new());
/// Bounds of all mappings that have ever existed.
static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

pub(super) fn enter(addresses: Range<usize>) {
    let mut mappings = MAPPINGS.write().expect("no panic under this lock");
    LOWEST.fetch_min(addresses.start, Relaxed);
    HIGHEST.fetch_max(addresses.end, Relaxed);
    mappings.insert(addresses.start, addresses.end);
}

pub(super) fn remove(addresses: &Range<usize>) {
    let mut mappings = MAPPINGS.write().expect("no panic under this lock");
    mappings.remove(&addresses.start);
}

/// Checks whether `len` bytes at `at` overlap a [`Mapping`](super::Mapping) of any cache.
/// Accessing such memory may fault, and serving the fault may need a resource that the caller
/// holds.
#[inline]
pub fn covers(at: *const u8, len: usize) -> bool {
    let (from, to) = (at as usize, (at as usize).saturating_add(len));
    // A thread that knows the address of a mapping learned it after it was entered.
    let near = from < HIGHEST.load(Relaxed) && LOWEST.load(Relaxed) < to;
    near && len > 0 && search(from, to)
}

#[cold]
fn search(from: usize, to: usize) -> bool {
    let mappings = MAPPINGS.read().expect("no panic under this lock");
    let last = mappings.range(..to).next_back();
    last.is_some_and(|(_, end)| from < *end)
}
