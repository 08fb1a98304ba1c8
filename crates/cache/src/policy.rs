//! Eviction policies: which page is evicted when a frame is needed.
//!
//! A policy orders frames; it owns no page, does no I/O, reads no clock and takes no lock. The
//! cache calls it under the pool's lock when a page enters or leaves, never on a hit: the traces of
//! hits (two bits of frequency, a dirty bit, pins) are queried through a closure when victims are
//! selected.
//!
//! Invariant: each frame that was `inserted` and not yet `removed` is in exactly one queue. A frame
//! named by `victims` is in the queue of named frames, from which only the cache takes it: by
//! `removed` when the page has been evicted, or by `kept` when the page was used in the meantime.
//! So no frame is named twice.
//!
//! Tables are allocated once, for the highest possible frame number of the pool, and the kernel
//! commits them as frames are used; no operation allocates except `resize`.

mod clock;
mod ghost;
mod lists;
mod lru;
mod partition;
mod stealback;
mod ufc;

#[cfg(test)]
mod tests;

pub use clock::Clock;
pub use lru::Lru;
pub use partition::Partition;
pub use stealback::{SeqLimits, Stealback, Stealing};
pub use ufc::{Shares, Ufc};

/// A frame's number in its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameNo(pub u32);

/// Identity of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageKey {
    /// The vnode's number. A vnode that reuses a number inherits the policy's history of it.
    pub vnode: u64,
    /// The page's number within the file.
    pub page: u64,
}

impl PageKey {
    /// Computes a hash whose high and low bits are equally good (the finalizer of SplitMix64).
    fn hash(self) -> u64 {
        let mut z = self.page.wrapping_add(
            self.vnode
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29),
        );
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// How a page entered the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// A read that missed.
    Read,
    /// A read that missed and belongs to a stream.
    Stream,
    /// Read ahead of a stream, not used yet.
    Prefetched,
    /// A write to an absent page.
    Written,
    /// A write to an absent page, by a sequential stream.
    WrittenStream,
    /// A page of metadata, read or written.
    Metadata,
}

impl Entry {
    /// Reports whether the page entered by a write.
    pub fn is_written(self) -> bool {
        matches!(self, Entry::Written | Entry::WrittenStream)
    }
}

/// State that hits have left on a frame. A query resets `frequency` to zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Touched {
    /// References since the last query, at most 3. Repeated accesses of a stream to its own page do
    /// not count, nor does the first use of a page that was read ahead.
    pub frequency: u8,
    /// The page must be written back before its frame can be freed.
    pub dirty: bool,
    /// Pinned, loading or loaned: the page cannot be evicted.
    pub busy: bool,
    /// Read ahead and not used yet.
    pub ahead: bool,
}

/// An eviction order of frames.
pub trait Policy: Send {
    /// Records that `frame` now holds page `key`. Panics if the frame is beyond the limit given at
    /// construction or already holds a page: both are errors of the cache.
    fn inserted(&mut self, frame: FrameNo, key: PageKey, entry: Entry);

    /// Records that the frame no longer holds its page. A page that had been named is remembered as
    /// evicted; any other (truncated, unlinked, invalidated) is forgotten.
    fn removed(&mut self, frame: FrameNo);

    /// Moves the page of `from` to `to`, which was empty. A named page stays named.
    fn moved(&mut self, from: FrameNo, to: FrameNo);

    /// Appends up to `want` clean frames to `out`, and after them dirty ones that the policy
    /// encountered, up to `want` and the same number again for those stolen from a stream. Names at
    /// least one frame if any is neither busy nor named.
    fn victims(
        &mut self,
        want: usize,
        touched: &mut dyn FnMut(FrameNo) -> Touched,
        out: &mut Vec<FrameNo>,
    );

    /// Puts a named frame, whose page was touched, dirtied or pinned since, at the young end of
    /// the queue it came from.
    fn kept(&mut self, frame: FrameNo);

    /// Names a frame that the caller has chosen, and that is not named yet.
    fn claim(&mut self, frame: FrameNo);

    /// Records a reference that the caller reports: every one for policies that need it
    /// (`wants_hits`), or those that the caller has read from a frame's `Touched` without evicting
    /// the page.
    fn hit(&mut self, frame: FrameNo);

    /// Reports whether each hit must be reported by `hit`. Exact LRU only, at the price of a lock
    /// on each hit; without the reports it is CLOCK.
    fn wants_hits(&self) -> bool {
        false
    }

    /// Sets the cache size to `frames` pages and scales shares and histories; evicts nothing.
    fn resize(&mut self, frames: usize);

    /// Returns the number of frames inserted and not removed, including named ones.
    fn resident(&self) -> usize;
}

/// A batch of victims being collected: clean ones before dirty ones.
struct Batch<'a> {
    want: usize,
    out: &'a mut Vec<FrameNo>,
    /// Position of the next clean frame in `out`.
    clean_end: usize,
    clean: usize,
    dirty: usize,
}

impl<'a> Batch<'a> {
    fn new(want: usize, out: &'a mut Vec<FrameNo>) -> Batch<'a> {
        Batch {
            want,
            clean_end: out.len(),
            out,
            clean: 0,
            dirty: 0,
        }
    }

    fn full(&self) -> bool {
        self.clean == self.want
    }

    /// Checks whether there is room for a frame of this state.
    fn takes(&self, dirty: bool) -> bool {
        !dirty || self.dirty < self.want
    }

    fn push(&mut self, frame: FrameNo, dirty: bool) {
        self.out.push(frame);
        if dirty {
            self.dirty += 1;
        } else {
            let last = self.out.len() - 1;
            self.out.swap(self.clean_end, last);
            self.clean_end += 1;
            self.clean += 1;
        }
    }
}
