//! Changes of a vnode that take the latches of its pages: growth, moves to other frames, and drops
//! of many pages.

use crate::frames::PAGE_BYTES;
use crate::latch::{Content, Latch};
use crate::leaf::{FILE_BYTES_MAX, LEAF_PAGES, LeafAt, LeafNo};
use crate::mapped::Mapped;
use crate::page_state::PageLocation;
use crate::policy::FrameNo;
use crate::stats::EvictReason;
use crate::tree::{Death, Vnode};
use std::ops::Range;
use std::sync::atomic::{Ordering::SeqCst, fence};

const PAGE: u64 = PAGE_BYTES as u64;

impl Vnode {
    /// Makes the file at least `size` bytes long, up to 14 PiB; the added range reads as zeros.
    pub fn extend(&self, size: u64) {
        let size = size.min(FILE_BYTES_MAX);
        if self.size() >= size {
            return;
        }
        if let Some(mapped) = self.mapped() {
            return extend_mapped(self, mapped, size);
        }
        self.raise(size);
        fence(SeqCst);
        self.unpoison();
    }

    /// Moves the page at `at`, `index` from one frame to another. Returns whether it moved.
    pub(crate) fn relocate(&self, at: LeafAt, index: u32, from: FrameNo, to: FrameNo) -> bool {
        let page = self.index().leaf(at).key(index).page;
        let Some(mut latch) = Latch::take(self, at, index, page) else {
            return false;
        };
        latch.home() == PageLocation::Frame(from.0) && !latch.is_held() && {
            latch.move_to(to, Content::Kept);
            true
        }
    }

    /// Drops pages of a removed file, dirty or not; those under write-back are dropped when it
    /// ends.
    pub(crate) fn drop_dead(&self, pages: Range<u64>) {
        for page in pages {
            if let Some(latch) = self.latch(page)
                && !latch.is_in_writeback()
            {
                latch.drop_page(self.drop_reason());
            }
        }
    }

    /// Drops all pages, like [`Vnode::drop_dead`], and loads none from here on.
    pub(crate) fn die(&self, death: Death) {
        self.mark_dead(death);
        for latch in self.latches() {
            if !latch.is_in_writeback() {
                latch.drop_page(self.drop_reason());
            }
        }
    }

    /// Drops the clean pages that a reader has passed, for a file that is not to be cached. The
    /// page in which the read ended stays, because the next one continues there.
    pub(crate) fn drop_behind(&self, offset: u64, len: u64) {
        let end = offset + len;
        let past = if end >= self.size() {
            end.div_ceil(PAGE)
        } else {
            end / PAGE
        };
        for page in offset / PAGE..past {
            if let Some(latch) = self.latch(page)
                && !latch.is_dirty()
                && !latch.is_in_writeback()
            {
                latch.drop_page(EvictReason::Behind);
            }
        }
    }

    /// Latches the resident pages, one after the other.
    fn latches(&self) -> impl Iterator<Item = Latch<'_>> {
        let leaves = self.index().range(LeafNo::all()).into_iter();
        let places = leaves.flat_map(move |(number, at)| {
            let indexes = 0..LEAF_PAGES as u32;
            // Most files have a few pages, at the beginning.
            let indexes = indexes.take_while(move |_| self.index().leaf(at).live() > 0);
            indexes.map(move |index| (number.page(index), at, index))
        });
        places.filter_map(|(page, at, index)| Latch::take(self, at, index, page))
    }
}

/// Makes a file with a window at least `size` bytes long. The caller holds no latch.
fn extend_mapped(vnode: &Vnode, mapped: &Mapped, size: u64) {
    let growing = mapped.growing();
    loop {
        let old = vnode.size();
        if old >= size {
            return;
        }
        let (page, keep) = (old / PAGE, (old % PAGE) as usize);
        let latch = match keep {
            0 => None,
            _ => vnode.latch(page),
        };
        // A writer to the last page extends the file under that page's latch.
        if vnode.size() != old {
            continue;
        }
        let latch = latch.map(|mut latch| {
            if latch.home() == PageLocation::Window {
                latch.zero(keep..PAGE_BYTES);
            }
            latch
        });
        vnode.raise(size);
        drop(latch);
        break;
    }
    drop(growing);
    mapped.window.unpoison();
}

impl Drop for Vnode {
    fn drop(&mut self) {
        // No reference to the vnode is left, so the remaining pages are clean or to be discarded.
        for latch in self.latches() {
            latch.drop_page(self.drop_reason());
        }
        self.unregister();
    }
}
