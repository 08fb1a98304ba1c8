//! Ranges of a vnode into which no page may be loaded for now: direct writes and holes in progress.
//!
//! **Invariant:** a range is registered before its pages are dropped, and a page is made `LOADING`
//! before the ranges are checked; so a page that the drop misses is rejected by the check.

use crate::wait::WaitList;
use block::Waker;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst, fence};
use std::sync::{Arc, Mutex};

/// The ranges of one vnode, in pages.
#[derive(Default)]
pub struct Ranges {
    count: AtomicUsize,
    list: Mutex<Vec<Range<u64>>>,
    waiters: WaitList,
}

impl Ranges {
    /// Keeps pages from being loaded into a range, until [`Ranges::unlock`].
    pub fn lock(&self, range: Range<u64>) {
        let mut list = self.list.lock().expect("no panic under this lock");
        list.push(range);
        self.count.store(list.len(), SeqCst);
        drop(list);
        fence(SeqCst);
    }

    /// Allows loads into the range again.
    pub fn unlock(&self, range: &Range<u64>) {
        let mut list = self.list.lock().expect("no panic under this lock");
        let at = list.iter().position(|r| r == range);
        list.swap_remove(at.expect("the range was locked"));
        self.count.store(list.len(), SeqCst);
        drop(list);
        self.waiters.wake_all();
    }

    /// As [`Ranges::lock`], until the result is dropped.
    pub fn lock_until_drop(&self, range: Range<u64>) -> impl Drop {
        self.lock(range.clone());
        Locked {
            ranges: self,
            range,
        }
    }

    /// Checks whether a page may be loaded. The caller has just made it `LOADING`.
    #[inline]
    pub fn admits(&self, page: u64) -> bool {
        if self.count.load(SeqCst) == 0 {
            return true;
        }
        let list = self.list.lock().expect("no panic under this lock");
        !list.iter().any(|range| range.contains(&page))
    }

    /// Registers for a wake-up when a range is unlocked; the caller checks again afterwards.
    pub fn wait(&self, waker: &Arc<Waker>) {
        self.waiters.register(waker);
    }
}

struct Locked<'a> {
    ranges: &'a Ranges,
    range: Range<u64>,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.ranges.unlock(&self.range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_kept_out_until_the_last_lock_over_them_is_gone() {
        let ranges = Ranges::default();
        assert!(ranges.admits(5));
        ranges.lock(3..6);
        ranges.lock(5..9);
        assert!(ranges.admits(2) && !ranges.admits(3) && !ranges.admits(8));
        ranges.unlock(&(3..6));
        assert!(ranges.admits(3) && !ranges.admits(5));
        ranges.unlock(&(5..9));
        assert!(ranges.admits(5));
    }
}
