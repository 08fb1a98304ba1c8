//! A leaf: the words of 56 consecutive pages of one vnode, and their states as bit sets.
//!
//! ```text
//!   tag  dirty  writeback  since  live            one cache line
//!   tag  word 0  ...  word 6                      eight more
//!   tag  word 7  ...
//! ```
//!
//! **Invariant:** the memory of a leaf remains a leaf as long as the [`Slab`] lives, although the
//! range and vnode it stands for may change. A reader may therefore keep the address of a leaf
//! without a reference count, and checks the leaf's tag between its two loads of a word: a leaf is
//! reassigned only while all its words are empty, so a word that was resident at both loads
//! belonged throughout to the owner that the tag named between them. It checks the tag in the
//! word's own cache line, so a hit on a page that was not used recently misses one line instead of
//! two.
//!
//! A leaf is this small so that a set of its pages is one integer that changes atomically, and so
//! that a sparsely used device takes half a kilobyte for a lone page and not four.

use crate::page_state::PageState;
use crate::policy::PageKey;
use std::ops::{Range, RangeInclusive};
use std::sync::Mutex;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Pages per leaf.
pub const LEAF_PAGES: u64 = (LINES * LINE_WORDS) as u64;
/// Cache lines of words per leaf.
const LINES: usize = 8;
/// Words in a line, beside its tag.
const LINE_WORDS: usize = 7;

/// Bits of a tag for the leaf's number within its vnode: enough for files of 14 PiB.
const NUMBER_BITS: u32 = 36;
/// Exclusive upper bound of vnode numbers.
pub const VNODES_MAX: u64 = 1 << (64 - NUMBER_BITS);
/// Largest file size in bytes.
pub const FILE_BYTES_MAX: u64 = (LEAF_PAGES * 4096) << NUMBER_BITS;

/// Number of a leaf within its vnode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct LeafNo(u64);

impl LeafNo {
    /// Computes the leaf of a page, and the index of the page in it.
    #[inline]
    pub fn of_page(page: u64) -> (LeafNo, u32) {
        (LeafNo(page / LEAF_PAGES), LeafNo::index_of(page))
    }

    /// Computes the index of a page in its leaf.
    #[inline]
    pub fn index_of(page: u64) -> u32 {
        (page % LEAF_PAGES) as u32
    }

    /// Computes the leaves that a range of pages touches, which is not empty.
    pub fn of_pages(pages: &Range<u64>) -> RangeInclusive<LeafNo> {
        LeafNo(pages.start / LEAF_PAGES)..=LeafNo((pages.end - 1) / LEAF_PAGES)
    }

    /// Returns the range of all leaves.
    pub fn all() -> RangeInclusive<LeafNo> {
        LeafNo(0)..=LeafNo(u64::MAX)
    }

    /// Computes the page at an index of the leaf.
    #[inline]
    pub fn page(self, index: u32) -> u64 {
        self.0 * LEAF_PAGES + u64::from(index)
    }

    /// Returns the number as an integer, for hashing.
    #[inline]
    pub fn raw(self) -> u64 {
        self.0
    }
}

/// Identity of a leaf: vnode and leaf number in one integer. Zero: unassigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag(u64);

impl Tag {
    /// Creates the tag of leaf `number` of a vnode; vnode numbers are not zero.
    #[inline]
    pub fn of(vnode: u64, number: LeafNo) -> Tag {
        debug_assert!(vnode < VNODES_MAX && number.0 < 1 << NUMBER_BITS);
        Tag(vnode << NUMBER_BITS | number.0)
    }

    fn split(self) -> (u64, LeafNo) {
        let number = self.0 & ((1 << NUMBER_BITS) - 1);
        (self.0 >> NUMBER_BITS, LeafNo(number))
    }
}

/// `live` of an unassigned leaf.
const DEAD: u32 = u32::MAX;

/// The words of 56 consecutive pages. The state common to all of them comes first.
#[repr(C, align(64))]
pub struct Leaf {
    tag: AtomicU64,
    /// Pages not yet written back; changed under the latch of the page.
    dirty: AtomicU64,
    /// Pages under write-back; changed under the latch of the page.
    writeback: AtomicU64,
    /// When the first of the dirty pages became dirty, in milliseconds of the cache's clock.
    dirty_since_ms: AtomicU64,
    /// Words that are not empty, plus callers about to fill one. At zero the leaf may be retired.
    live: AtomicU32,
    lines: [Line; LINES],
}

/// Seven words and the tag of their leaf.
#[repr(C, align(64))]
struct Line {
    /// The leaf's tag when it was last adopted; the words of a retired leaf are empty.
    tag: AtomicU64,
    words: [PageState; LINE_WORDS],
}

impl Leaf {
    fn new() -> Leaf {
        Leaf {
            tag: AtomicU64::new(0),
            dirty: AtomicU64::new(0),
            writeback: AtomicU64::new(0),
            dirty_since_ms: AtomicU64::new(0),
            live: AtomicU32::new(DEAD),
            lines: std::array::from_fn(|_| Line {
                tag: AtomicU64::new(0),
                words: std::array::from_fn(|_| PageState::empty()),
            }),
        }
    }

    /// Checks whether the leaf currently stands for this range of this vnode.
    #[inline]
    pub fn is(&self, vnode: u64, number: LeafNo) -> bool {
        self.tag.load(Acquire) == Tag::of(vnode, number).0
    }

    /// Checks whether the line of page `index` has this tag. If the page is resident before and
    /// after the call, it belonged to that leaf throughout.
    #[inline]
    pub fn has(&self, index: u32, tag: Tag) -> bool {
        let line = &self.lines[index as usize / LINE_WORDS];
        line.tag.load(Acquire) == tag.0
    }

    /// Returns the vnode's number and the leaf's number within it.
    pub fn owner(&self) -> (u64, LeafNo) {
        Tag(self.tag.load(Acquire)).split()
    }

    /// Returns the page that this index currently stands for.
    pub fn key(&self, index: u32) -> PageKey {
        let (vnode, number) = self.owner();
        PageKey {
            vnode,
            page: number.page(index),
        }
    }

    #[inline]
    pub fn word(&self, index: u32) -> &PageState {
        let index = index as usize;
        &self.lines[index / LINE_WORDS].words[index % LINE_WORDS]
    }

    /// Returns the set of dirty pages.
    pub fn dirty(&self) -> u64 {
        self.dirty.load(Acquire)
    }

    /// Returns the set of pages under write-back.
    pub fn writeback(&self) -> u64 {
        self.writeback.load(Acquire)
    }

    /// Returns when the oldest dirty page became dirty, in milliseconds of the cache's clock.
    pub fn dirty_since_ms(&self) -> u64 {
        self.dirty_since_ms.load(Relaxed)
    }

    /// Marks a page dirty and returns the previous set. The caller holds the page's latch.
    pub fn set_dirty(&self, index: u32, now_ms: u64) -> u64 {
        let before = self.dirty.fetch_or(1 << index, AcqRel);
        if before == 0 {
            self.dirty_since_ms.store(now_ms, Relaxed);
        }
        before
    }

    /// Clears a page's dirty bit and returns whether it was set. The caller holds the page's latch.
    pub fn clear_dirty(&self, index: u32) -> bool {
        self.dirty.fetch_and(!(1 << index), AcqRel) & 1 << index != 0
    }

    /// Restarts the age of the dirty pages: one of them was written out and stays dirty.
    pub fn renew_dirty(&self, now_ms: u64) {
        self.dirty_since_ms.store(now_ms, Relaxed);
    }

    /// Marks a page as under write-back. The caller holds its latch.
    pub fn set_writeback(&self, index: u32) {
        self.writeback.fetch_or(1 << index, AcqRel);
    }

    /// Clears a page's write-back bit. The caller holds its latch.
    pub fn clear_writeback(&self, index: u32) {
        self.writeback.fetch_and(!(1 << index), AcqRel);
    }

    /// Keeps the leaf from being retired while the caller fills a word. `false`: it stands for
    /// another range, or none.
    pub fn acquire(&self, vnode: u64, number: LeafNo) -> bool {
        let mut now = self.live.load(Relaxed);
        loop {
            if now == DEAD {
                return false;
            }
            match self.live.compare_exchange(now, now + 1, AcqRel, Relaxed) {
                Ok(_) => break,
                Err(other) => now = other,
            }
        }
        let right = self.is(vnode, number);
        if !right {
            // The new owner cannot retire the leaf in between; it finds the leaf idle at its next
            // check.
            self.release();
        }
        right
    }

    /// Returns the number of non-empty words plus callers about to fill one.
    pub fn live(&self) -> u64 {
        match self.live.load(Relaxed) {
            DEAD => 0,
            live => live.into(),
        }
    }

    /// Undoes a [`Leaf::acquire`], or accounts for a word that became empty. `true`: the leaf is
    /// idle, and its vnode may retire it.
    pub fn release(&self) -> bool {
        self.live.fetch_sub(1, AcqRel) == 1
    }

    /// Makes the leaf unassigned if it is idle, and returns whether it was.
    pub fn retire(&self) -> bool {
        let idle = self.live.compare_exchange(0, DEAD, AcqRel, Relaxed).is_ok();
        if idle {
            debug_assert_eq!((self.dirty(), self.writeback()), (0, 0));
            self.tag.store(0, Release);
        }
        idle
    }

    fn adopt(&self, vnode: u64, number: LeafNo) {
        let tag = Tag::of(vnode, number).0;
        self.lines
            .iter()
            .for_each(|line| line.tag.store(tag, Relaxed));
        self.tag.store(tag, Release);
        // One reference, for the caller.
        self.live.store(1, Release);
    }
}

/// Address of a leaf, valid while the slab lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeafAt(*const Leaf);

// SAFETY: an address; the leaf it refers to is shared by all threads.
unsafe impl Send for LeafAt {}
// SAFETY: as above.
unsafe impl Sync for LeafAt {}

impl LeafAt {
    /// Returns the address with the index of a page in its low bits, which are zero by alignment.
    pub fn with_index(self, index: u32) -> u64 {
        debug_assert!(u64::from(index) < LEAF_PAGES);
        self.0 as u64 | u64::from(index)
    }

    /// Splits a value of [`LeafAt::with_index`] into leaf and index; `None` for zero.
    pub fn split(both: u64) -> Option<(LeafAt, u32)> {
        let low = align_of::<Leaf>() as u64 - 1;
        (both != 0).then_some((LeafAt((both & !low) as *const Leaf), (both & low) as u32))
    }

    /// Returns the address as an integer.
    pub fn raw(self) -> u64 {
        self.0 as u64
    }

    /// Converts an integer of [`LeafAt::raw`] back to the address; `None` for zero.
    pub fn of_raw(raw: u64) -> Option<LeafAt> {
        (raw != 0).then_some(LeafAt(raw as *const Leaf))
    }
}

/// Leaves allocated at a time.
const BLOCK: usize = 64;

/// All leaves of a cache, in use or not.
#[derive(Default)]
pub struct Slab {
    inner: Mutex<SlabInner>,
}

#[derive(Default)]
struct SlabInner {
    blocks: Vec<Box<[Leaf]>>,
    free: Vec<LeafAt>,
}

impl Slab {
    /// Returns the leaf at an address of this slab.
    #[inline]
    pub fn get(&self, at: LeafAt) -> &Leaf {
        // SAFETY: addresses of leaves come from `Slab::adopt` alone, each cache has one slab and
        // keeps its addresses to itself, and the slab frees no leaf before it is dropped. All
        // fields of a leaf are atomic, so a shared reference is valid whichever vnode owns the
        // leaf.
        unsafe { &*at.0 }
    }

    /// Assigns a leaf to this range, with one [`Leaf::acquire`] for the caller.
    pub fn adopt(&self, vnode: u64, number: LeafNo) -> LeafAt {
        let mut inner = self.inner.lock().expect("no panic under this lock");
        if inner.free.is_empty() {
            let block: Box<[Leaf]> = (0..BLOCK).map(|_| Leaf::new()).collect();
            inner.free.extend(block.iter().map(|leaf| LeafAt(leaf)));
            inner.blocks.push(block);
        }
        let at = inner.free.pop().expect("a block was added");
        drop(inner);
        self.get(at).adopt(vnode, number);
        at
    }

    /// Puts a retired leaf back on the free list.
    pub fn free(&self, at: LeafAt) {
        debug_assert_eq!(self.get(at).live.load(Relaxed), DEAD);
        let mut inner = self.inner.lock().expect("no panic under this lock");
        inner.free.push(at);
    }

    /// Returns the size of all leaves in bytes.
    pub fn bytes(&self) -> usize {
        let inner = self.inner.lock().expect("no panic under this lock");
        inner.blocks.len() * BLOCK * size_of::<Leaf>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_is_nine_lines_of_cache() {
        assert_eq!((size_of::<Leaf>(), align_of::<Leaf>()), (576, 64));
    }

    #[test]
    fn a_leaf_changes_hands_only_when_nothing_keeps_it() {
        let slab = Slab::default();
        let [three, ten, eleven] = [3, 10, 11].map(LeafNo);
        let at = slab.adopt(1, ten);
        let leaf = slab.get(at);
        assert!(leaf.has(0, Tag::of(1, ten)) && leaf.has(55, Tag::of(1, ten)));
        assert!(leaf.is(1, ten) && !leaf.retire());
        assert!(leaf.acquire(1, ten) && !leaf.acquire(2, ten) && !leaf.acquire(1, eleven));
        assert!(!leaf.release());
        assert!(leaf.release() && leaf.retire());
        assert!(!leaf.is(1, ten) && !leaf.acquire(1, ten));
        slab.free(at);
        assert!(slab.adopt(2, three) == at);
        assert!(leaf.is(2, three));
        assert_eq!(leaf.key(5).page, 3 * LEAF_PAGES + 5);
        assert!(LeafAt::split(at.with_index(55)) == Some((at, 55)));
    }
}
