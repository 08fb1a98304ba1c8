//! Removal of pages from a window: to the pool when they are no longer mapped, or out of memory
//! when it is short.

use super::Mapped;
use crate::latch::Latch;
use crate::page_state::PageLocation;
use crate::vnode::Vnode;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// Pages examined together.
const BATCH: usize = 64;

/// Result of an attempt to return unmapped pages to the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReclaimResult {
    /// No unmapped page is left.
    All,
    /// Some were removed, and there may be more.
    Some,
    /// None of the remaining ones can be removed now.
    Stuck,
}

impl Mapped {
    /// Releases unmapped pages to the pool, so that they count against its limit again; without a
    /// free frame, evicts clean ones.
    pub(crate) fn reclaim(&self, vnode: &Vnode) -> ReclaimResult {
        let pages = self.unwanted();
        if pages.is_empty() {
            return ReclaimResult::All;
        }
        let core = &self.shared.core;
        let mut frames = Vec::with_capacity(pages.len());
        core.take_frames_lightly(None, pages.len(), &mut frames);
        let mut sent = 0;
        for page in pages {
            let Some(mut latch) = self.latch(vnode, page) else {
                continue;
            };
            if let Some(frame) = frames.pop() {
                if latch.move_to_pool(frame) {
                    sent += 1
                } else {
                    frames.push(frame)
                }
            } else if may_go(&latch) && self.revoke(page) {
                latch.discard();
                sent += 1;
            }
        }
        core.pool.put(frames);
        match sent {
            0 => ReclaimResult::Stuck,
            _ => ReclaimResult::Some,
        }
    }

    /// Evicts up to `want` clean pages that were not used since the last pass, and returns how many
    /// were evicted. A page that was used is unmapped, so that the next use is noticed.
    pub(crate) fn evict(&self, vnode: &Vnode, want: usize) -> usize {
        let mut gone = 0;
        // Two rounds: the first clears the use marks, the second finds pages without one.
        let mut looks = 2 * self.pages();
        while gone < want && looks > 0 {
            let batch = self.next_batch(looks.min(BATCH));
            if batch.is_empty() {
                break;
            }
            looks -= batch.len();
            for page in batch {
                if gone < want && self.evict_one(vnode, page) {
                    gone += 1;
                }
            }
        }
        self.shared
            .core
            .window_evicted
            .fetch_add(gone as u64, Relaxed);
        gone
    }

    fn evict_one(&self, vnode: &Vnode, page: u64) -> bool {
        let Some(mut latch) = self.latch(vnode, page) else {
            return false;
        };
        if !self.revoke(page) || latch.take_touches() || !may_go(&latch) {
            return false;
        }
        latch.discard();
        true
    }

    /// Latches a page if it lies in the window.
    fn latch<'a>(&self, vnode: &'a Vnode, page: u64) -> Option<Latch<'a>> {
        let latch = vnode.latch(page)?;
        (latch.home() == PageLocation::Window).then_some(latch)
    }

    /// Selects the next pages of the window after the last search, wrapping around at the end.
    fn next_batch(&self, count: usize) -> Vec<u64> {
        let resident = self.resident();
        let hand = self.hand.load(Relaxed);
        let (after, before) = (resident.range(hand..), resident.range(..hand));
        let batch: Vec<u64> = after.chain(before).copied().take(count).collect();
        drop(resident);
        self.hand
            .store(batch.last().map_or(0, |page| page + 1), Relaxed);
        batch
    }

    /// Selects some pages of the window that are neither mapped nor leased.
    fn unwanted(&self) -> Vec<u64> {
        let wanted = self.window.wanted();
        let resident = self.resident();
        let mut found = Vec::new();
        for gap in gaps(&wanted) {
            let room = BATCH - found.len();
            found.extend(resident.range(gap).copied().take(room));
        }
        found
    }
}

/// Checks whether the page may be evicted.
fn may_go(latch: &Latch<'_>) -> bool {
    !latch.is_dirty() && !latch.is_in_writeback()
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
