//! A leaf: the words of 56 neighbouring pages of one vnode, and what is known of them as bit sets.
//!
//! ```text
//!   tag  dirty  writeback  since  live            one line of the processor's cache
//!   tag  word 0  ...  word 6                      eight more
//!   tag  word 7  ...
//! ```
//!
//! **Invariant:** the memory of a leaf is a leaf for as long as the [`Slab`] lives, whichever range of
//! whichever vnode it stands for. A reader may therefore keep the address of a leaf without a count
//! on it, and asks the leaf whose it is between its two looks at a word: a leaf changes hands only
//! while all its words are empty, so a word that was resident at both looks belonged all the time to
//! whom the leaf named between them. It asks the tag that lies in one line with the word, so a hit on
//! a page that was not used of late waits for one line and not for two.
//!
//! So few pages, because then a set of them is one integer that changes in one step, and a device
//! that is used thinly all over takes half a kilobyte for a lone page and not four.

use crate::policy::PageKey;
use crate::word::Word;
use std::sync::Mutex;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Pages of a leaf.
pub const LEAF_PAGES: u64 = (LINES * LINE_WORDS) as u64;
/// Lines of words.
const LINES: usize = 8;
/// Words in a line, beside its tag.
const LINE_WORDS: usize = 7;

/// Bits of a tag that say which leaf of the vnode it is: enough for files of 14 PiB.
const NUMBER_BITS: u32 = 36;
/// Numbers of vnodes end before this.
pub const VNODES_MAX: u64 = 1 << (64 - NUMBER_BITS);
/// Longest file in bytes.
pub const FILE_BYTES_MAX: u64 = (LEAF_PAGES * 4096) << NUMBER_BITS;

/// Vnode and number in one: what a leaf stands for. Zero: nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag(u64);

impl Tag {
    /// Of a leaf of a vnode, whose number is not zero.
    #[inline]
    pub fn of(vnode: u64, number: u64) -> Tag {
        debug_assert!(vnode < VNODES_MAX && number < 1 << NUMBER_BITS);
        Tag(vnode << NUMBER_BITS | number)
    }

    fn split(self) -> (u64, u64) {
        (self.0 >> NUMBER_BITS, self.0 & ((1 << NUMBER_BITS) - 1))
    }
}

/// `live` of a leaf that stands for nothing.
const DEAD: u32 = u32::MAX;

/// The words of 56 neighbouring pages. What belongs to all of them comes first.
#[repr(C, align(64))]
pub struct Leaf {
    tag: AtomicU64,
    /// Pages that hold what is not below; changed under the latch of the page.
    dirty: AtomicU64,
    /// Pages whose content is on its way below; changed under the latch of the page.
    writeback: AtomicU64,
    /// When the first of the dirty pages became so, in milliseconds of the cache's clock.
    dirty_since_ms: AtomicU64,
    /// Words that are not empty, and callers about to fill one. At zero the leaf may be given up.
    live: AtomicU32,
    lines: [Line; LINES],
}

/// Seven words, and whose they are.
#[repr(C, align(64))]
struct Line {
    /// That of the leaf when it was last given out; words of one that has been given up are empty.
    tag: AtomicU64,
    words: [Word; LINE_WORDS],
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
                words: std::array::from_fn(|_| Word::empty()),
            }),
        }
    }

    /// Whether it stands for this range of this vnode at the moment.
    #[inline]
    pub fn is(&self, vnode: u64, number: u64) -> bool {
        self.tag.load(Acquire) == Tag::of(vnode, number).0
    }

    /// Whether a page that was resident at a look just now, and is at the next, is of this leaf.
    #[inline]
    pub fn has(&self, index: u32, tag: Tag) -> bool {
        let line = &self.lines[index as usize / LINE_WORDS];
        line.tag.load(Acquire) == tag.0
    }

    /// The vnode's number, and which range of it.
    pub fn owner(&self) -> (u64, u64) {
        Tag(self.tag.load(Acquire)).split()
    }

    /// Which page this index stands for at the moment.
    pub fn key(&self, index: u32) -> PageKey {
        let (vnode, number) = self.owner();
        PageKey {
            vnode,
            page: number * LEAF_PAGES + u64::from(index),
        }
    }

    /// The word of a page.
    #[inline]
    pub fn word(&self, index: u32) -> &Word {
        let index = index as usize;
        &self.lines[index / LINE_WORDS].words[index % LINE_WORDS]
    }

    /// The dirty pages.
    pub fn dirty(&self) -> u64 {
        self.dirty.load(Acquire)
    }

    /// The pages on their way below.
    pub fn writeback(&self) -> u64 {
        self.writeback.load(Acquire)
    }

    /// Since when a page has been dirty.
    pub fn dirty_since_ms(&self) -> u64 {
        self.dirty_since_ms.load(Relaxed)
    }

    /// Puts a page among the dirty ones; gives those there were. By the holder of its latch.
    pub fn set_dirty(&self, index: u32, now_ms: u64) -> u64 {
        let before = self.dirty.fetch_or(1 << index, AcqRel);
        if before == 0 {
            self.dirty_since_ms.store(now_ms, Relaxed);
        }
        before
    }

    /// Takes a page from among the dirty ones; says whether it was there. By the holder of its latch.
    pub fn clear_dirty(&self, index: u32) -> bool {
        self.dirty.fetch_and(!(1 << index), AcqRel) & 1 << index != 0
    }

    /// Counts the age of the dirty pages from now on: one of them was sent below and stays dirty.
    pub fn renew_dirty(&self, now_ms: u64) {
        self.dirty_since_ms.store(now_ms, Relaxed);
    }

    /// Says that a page is on its way below. By the holder of its latch.
    pub fn set_writeback(&self, index: u32) {
        self.writeback.fetch_or(1 << index, AcqRel);
    }

    /// Says that a page is on its way no more. By the holder of its latch.
    pub fn clear_writeback(&self, index: u32) {
        self.writeback.fetch_and(!(1 << index), AcqRel);
    }

    /// Keeps the leaf from being given up: for a word about to be filled. `false`: it stands for
    /// something else, or nothing.
    pub fn keep(&self, vnode: u64, number: u64) -> bool {
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
            // Its new owner cannot give it up meanwhile, and finds it empty the next time it looks.
            self.let_go();
        }
        right
    }

    /// Words that are not empty, and callers about to fill one.
    pub fn live(&self) -> u64 {
        match self.live.load(Relaxed) {
            DEAD => 0,
            live => live.into(),
        }
    }

    /// Takes a [`Leaf::keep`] back, or says that a word is empty now. `true`: nothing keeps the leaf,
    /// and its vnode may give it up.
    pub fn let_go(&self) -> bool {
        self.live.fetch_sub(1, AcqRel) == 1
    }

    /// Gives the leaf up if nothing keeps it.
    pub fn retire(&self) -> bool {
        let idle = self.live.compare_exchange(0, DEAD, AcqRel, Relaxed).is_ok();
        if idle {
            debug_assert_eq!((self.dirty(), self.writeback()), (0, 0));
            self.tag.store(0, Release);
        }
        idle
    }

    fn adopt(&self, vnode: u64, number: u64) {
        let tag = Tag::of(vnode, number).0;
        self.lines
            .iter()
            .for_each(|line| line.tag.store(tag, Relaxed));
        self.tag.store(tag, Release);
        // Kept once, for the caller.
        self.live.store(1, Release);
    }
}

/// A leaf by its address, which stays good while the slab lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeafAt(*const Leaf);

// SAFETY: an address; what it leads to is shared by all threads.
unsafe impl Send for LeafAt {}
// SAFETY: as above.
unsafe impl Sync for LeafAt {}

impl LeafAt {
    /// The address with the index of a page in its low bits, which are zero by alignment.
    pub fn with_index(self, index: u32) -> u64 {
        debug_assert!(u64::from(index) < LEAF_PAGES);
        self.0 as u64 | u64::from(index)
    }

    /// The reverse of [`LeafAt::with_index`]; `None` for zero.
    pub fn split(both: u64) -> Option<(LeafAt, u32)> {
        let low = align_of::<Leaf>() as u64 - 1;
        (both != 0).then_some((LeafAt((both & !low) as *const Leaf), (both & low) as u32))
    }

    /// The address as a number.
    pub fn raw(self) -> u64 {
        self.0 as u64
    }

    /// The reverse of [`LeafAt::raw`].
    pub fn of_raw(raw: u64) -> Option<LeafAt> {
        (raw != 0).then_some(LeafAt(raw as *const Leaf))
    }
}

/// Leaves made at a time.
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
    /// The leaf at an address that this slab gave out.
    #[inline]
    pub fn get(&self, at: LeafAt) -> &Leaf {
        // SAFETY: addresses of leaves come from `Slab::adopt` alone, each cache has one slab and
        // keeps its addresses to itself, and the slab frees no leaf before it is dropped. All fields
        // of a leaf are atomic, so a shared reference is good whoever the leaf belongs to.
        unsafe { &*at.0 }
    }

    /// A leaf that stands for this range, kept once for the caller.
    pub fn adopt(&self, vnode: u64, number: u64) -> LeafAt {
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

    /// Takes back a leaf that was retired.
    pub fn give_back(&self, at: LeafAt) {
        debug_assert_eq!(self.get(at).live.load(Relaxed), DEAD);
        let mut inner = self.inner.lock().expect("no panic under this lock");
        inner.free.push(at);
    }

    /// Bytes of all leaves.
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
        let at = slab.adopt(1, 10);
        let leaf = slab.get(at);
        assert!(leaf.has(0, Tag::of(1, 10)) && leaf.has(55, Tag::of(1, 10)));
        assert!(leaf.is(1, 10) && !leaf.retire());
        assert!(leaf.keep(1, 10) && !leaf.keep(2, 10) && !leaf.keep(1, 11));
        assert!(!leaf.let_go());
        assert!(leaf.let_go() && leaf.retire());
        assert!(!leaf.is(1, 10) && !leaf.keep(1, 10));
        slab.give_back(at);
        assert!(slab.adopt(2, 3) == at);
        assert!(leaf.is(2, 3));
        assert_eq!(leaf.key(5).page, 3 * LEAF_PAGES + 5);
        assert!(LeafAt::split(at.with_index(55)) == Some((at, 55)));
    }
}
