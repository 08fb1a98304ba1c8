//! Removal of pages from windows: to the pool when they are no longer mapped, or out of memory when
//! it is short.

use crate::latch::Latch;
use crate::mapped::Mapped;
use crate::page_state::PageLocation;
use crate::tree::{CacheShared, Vnode};

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

/// Releases unmapped pages of a vnode to the pool, so that they count against its limit again;
/// without a free frame, evicts clean ones.
pub(crate) fn reclaim(vnode: &Vnode, mapped: &Mapped) -> ReclaimResult {
    let pages = mapped.unwanted(BATCH);
    if pages.is_empty() {
        return ReclaimResult::All;
    }
    let core = &vnode.shared().core;
    let mut frames = Vec::with_capacity(pages.len());
    core.take_frames_lightly(None, pages.len(), &mut frames);
    let mut sent = 0;
    for page in pages {
        let Some(mut latch) = latch_in_window(vnode, page) else {
            continue;
        };
        if let Some(frame) = frames.pop() {
            if latch.move_to_pool(frame) {
                sent += 1
            } else {
                frames.push(frame)
            }
        } else if may_go(&latch) && mapped.revoke(page) {
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

/// Evicts up to `want` clean pages from the windows of a cache.
pub(crate) fn evict_mapped(core: &CacheShared, want: usize) {
    // The background thread calls this in each pass, and there may be very many vnodes.
    if want == 0 {
        return;
    }
    let mut left = want;
    for vnode in core.vnodes.live() {
        if left == 0 {
            return;
        }
        if let Some(mapped) = vnode.mapped() {
            left -= evict(&vnode, mapped, left);
        }
    }
}

/// Evicts up to `want` clean pages that were not used since the last pass, and returns how many
/// were evicted. A page that was used is unmapped, so that the next use is noticed.
fn evict(vnode: &Vnode, mapped: &Mapped, want: usize) -> usize {
    let mut gone = 0;
    // Two rounds: the first clears the use marks, the second finds pages without one.
    let mut looks = 2 * mapped.pages();
    while gone < want && looks > 0 {
        let batch = mapped.next_batch(looks.min(BATCH));
        if batch.is_empty() {
            break;
        }
        looks -= batch.len();
        for page in batch {
            if gone < want && evict_one(vnode, mapped, page) {
                gone += 1;
            }
        }
    }
    vnode.shared().core.windows.add_evicted(gone);
    gone
}

fn evict_one(vnode: &Vnode, mapped: &Mapped, page: u64) -> bool {
    let Some(mut latch) = latch_in_window(vnode, page) else {
        return false;
    };
    if !mapped.revoke(page) || latch.take_touches() || !may_go(&latch) {
        return false;
    }
    latch.discard();
    true
}

/// Latches a page if it lies in the window.
fn latch_in_window(vnode: &Vnode, page: u64) -> Option<Latch<'_>> {
    let latch = vnode.latch(page)?;
    (latch.home() == PageLocation::Window).then_some(latch)
}

/// Checks whether the page may be evicted.
fn may_go(latch: &Latch<'_>) -> bool {
    !latch.is_dirty() && !latch.is_in_writeback()
}
