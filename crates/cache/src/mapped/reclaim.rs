//! Pages that leave a window: back to the pool when nobody maps them any more, or out of memory when
//! it is short.

use super::Mapped;
use crate::latch::Latch;
use crate::vnode::Vnode;
use crate::word::Home;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// Pages that are looked at together.
const BATCH: usize = 64;

/// What became of an attempt to send unmapped pages back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// All of them went.
    All,
    /// Some went, and there are more.
    Some,
    /// There are some that cannot go now.
    Stuck,
}

impl Mapped {
    /// Sends pages that nobody maps back to the pool, so that they count against its limit again; if
    /// it has no frame, clean ones go altogether.
    pub(crate) fn send_back(&self, vnode: &Vnode) -> Sent {
        let pages = self.unwanted();
        if pages.is_empty() {
            return Sent::All;
        }
        let core = &self.below.core;
        let mut frames = Vec::with_capacity(pages.len());
        core.take_frames_lightly(None, pages.len(), &mut frames);
        let mut sent = 0;
        for page in pages {
            let Some(mut latch) = self.latch(vnode, page) else {
                continue;
            };
            if let Some(frame) = frames.pop() {
                match latch.move_to_pool(frame) {
                    true => sent += 1,
                    false => frames.push(frame),
                }
            } else if may_go(&latch) && self.revoke(page) {
                latch.discard();
                sent += 1;
            }
        }
        core.pool.put(frames);
        match sent {
            0 => Sent::Stuck,
            _ => Sent::Some,
        }
    }

    /// Makes up to `want` clean pages leave that were not touched since the last look, and says how
    /// many did. A page that was touched is taken out of the mappings, so that a further touch shows.
    pub(crate) fn evict(&self, vnode: &Vnode, want: usize) -> usize {
        let mut gone = 0;
        // Twice around: once to take the notes of use away, once to see who has none.
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
        self.below
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

    /// The latch of a page that lies in the window.
    fn latch<'a>(&self, vnode: &'a Vnode, page: u64) -> Option<Latch<'a>> {
        let latch = vnode.latch(page)?;
        (latch.home() == Home::Window).then_some(latch)
    }

    /// The next pages of the window from where the last search ended, around the end.
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

    /// Some pages of the window that are in no mapping and under no lease.
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

/// Nobody needs the page in memory.
fn may_go(latch: &Latch<'_>) -> bool {
    !latch.is_dirty() && !latch.is_in_writeback()
}

/// What lies between ranges that are in order of their beginnings.
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
