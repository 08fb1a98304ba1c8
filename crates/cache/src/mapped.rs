//! The pages of a file that lie in its window, for a file that programs have mapped.
//!
//! **Invariants.** A page is in one place, recorded in its word, and moves only under its latch. No
//! page behind the end of the file is in the window. In the last page, bytes behind the end are
//! never written to the pager and never become part of the file: a program may have stored there,
//! so they are zeroed when the file grows over them.
//!
//! Mapped pages do not count against the limit of the cache, as in HP-UX; they are counted
//! separately. Pages that are no longer mapped return to the pool (`reclaim.rs`).

use crate::window::{Window, Windows};
use block::Result;
use std::collections::BTreeSet;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

/// Mapping state of a vnode that was mapped at least once.
pub(crate) struct Mapped {
    pub(crate) window: Arc<Window>,
    totals: Arc<WindowTotals>,
    /// The pages that lie in the window; changed under their latches.
    resident: Mutex<BTreeSet<u64>>,
    /// Position at which the search for pages to evict continues.
    hand: AtomicU64,
    /// Held while a page is determined to lie behind the end, and while the file is extended.
    growing: Mutex<()>,
}

/// Numbers of pages in all windows of a cache.
#[derive(Default)]
pub(crate) struct WindowTotals {
    /// Pages that reside in windows.
    pages: AtomicUsize,
    /// Pages that were evicted from windows.
    evicted: AtomicU64,
}

impl WindowTotals {
    pub(crate) fn pages(&self) -> usize {
        self.pages.load(Relaxed)
    }

    pub(crate) fn evicted(&self) -> u64 {
        self.evicted.load(Relaxed)
    }

    pub(crate) fn add_evicted(&self, count: usize) {
        self.evicted.fetch_add(count as u64, Relaxed);
    }
}

impl Mapped {
    /// Creates an empty window.
    pub(crate) fn new(windows: &Arc<Windows>, totals: &Arc<WindowTotals>) -> Result<Mapped> {
        Ok(Mapped {
            window: Window::new(windows)?,
            totals: Arc::clone(totals),
            resident: Mutex::default(),
            hand: AtomicU64::new(0),
            growing: Mutex::default(),
        })
    }

    /// Returns the address of a page in the cache's own view of the window, where no fault happens.
    /// The caller holds the page's latch, or a read of it in the window, while the page lies there.
    pub(crate) fn at(&self, page: u64) -> NonNull<u8> {
        NonNull::new(self.window.page(page)).expect("a mapping is not at zero")
    }

    /// Allocates memory in the window for a page that is about to move there.
    pub(crate) fn make_room(&self, page: u64) -> Result<NonNull<u8>> {
        self.window.allocate(page..page + 1)?;
        let new = self.resident().insert(page);
        debug_assert!(new, "page {page} is in the window already");
        self.totals.pages.fetch_add(1, Relaxed);
        Ok(self.at(page))
    }

    /// Write-protects the page in all mappings, so that the next store faults. `false`: the holder
    /// of a lease may still store.
    pub(crate) fn seal(&self, page: u64) -> bool {
        self.window.protect(page..page + 1)
    }

    /// Removes the page from all mappings. `false`: it is leased.
    pub(crate) fn revoke(&self, page: u64) -> bool {
        self.window.revoke(page..page + 1)
    }

    /// Removes the page from the window, and from all mappings and leases.
    pub(crate) fn remove_page(&self, page: u64) {
        self.window.discard(page..page + 1);
        let was = self.resident().remove(&page);
        debug_assert!(was, "page {page} is not in the window");
        self.totals.pages.fetch_sub(1, Relaxed);
    }

    pub(crate) fn is_leased(&self, page: u64) -> bool {
        self.window.is_leased(page)
    }

    /// Checks whether any page is mapped or leased.
    pub(crate) fn is_in_use(&self) -> bool {
        !self.window.wanted().is_empty()
    }

    /// Returns the number of pages that lie in the window.
    pub(crate) fn pages(&self) -> usize {
        self.resident().len()
    }

    /// Selects the next pages of the window after the last search, wrapping around at the end.
    pub(crate) fn next_batch(&self, count: usize) -> Vec<u64> {
        let resident = self.resident();
        let hand = self.hand.load(Relaxed);
        let (after, before) = (resident.range(hand..), resident.range(..hand));
        let batch: Vec<u64> = after.chain(before).copied().take(count).collect();
        drop(resident);
        self.hand
            .store(batch.last().map_or(0, |page| page + 1), Relaxed);
        batch
    }

    /// Selects up to `count` pages of the window that are neither mapped nor leased.
    pub(crate) fn unwanted(&self, count: usize) -> Vec<u64> {
        let wanted = self.window.wanted();
        let resident = self.resident();
        let mut found = Vec::new();
        for gap in gaps(&wanted) {
            let room = count - found.len();
            found.extend(resident.range(gap).copied().take(room));
        }
        found
    }

    /// Un-poisons pages that now lie within the file, so that the next access faults again.
    pub(crate) fn unpoison(&self) {
        // A thread that read the size before it was raised has finished poisoning by now.
        drop(self.growing());
        self.window.unpoison();
    }

    /// Excludes growth of the file, and decisions that a page lies behind its end.
    pub(crate) fn growing(&self) -> MutexGuard<'_, ()> {
        self.growing.lock().expect("no panic under this lock")
    }

    fn resident(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.resident.lock().expect("no panic under this lock")
    }
}

/// Computes the gaps between ranges that are sorted by their start.
fn gaps(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut gaps = Vec::with_capacity(ranges.len() + 1);
    let mut at = 0;
    for range in ranges {
        if at < range.start {
            gaps.push(at..range.start);
        }
        at = at.max(range.end);
    }
    gaps.push(at..u64::MAX);
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_what_no_range_covers() {
        let check = |ranges: &[Range<u64>], expected: &[(u64, u64)]| {
            let found: Vec<_> = gaps(ranges)
                .iter()
                .map(|gap| (gap.start, gap.end))
                .collect();
            assert_eq!(found, expected);
        };
        check(&[], &[(0, u64::MAX)]);
        check(&[0..7, 7..9], &[(9, u64::MAX)]);
        let ranges = [3..10, 4..5, 8..12, 20..21];
        check(&ranges, &[(0, 3), (12, 20), (21, u64::MAX)]);
    }
}
