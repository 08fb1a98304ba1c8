//! Which page leaves when a frame is wanted.
//!
//! A policy orders frames; it holds no page, does no I/O, takes no time and no lock. The cache calls it
//! under the pool's queue lock when a page enters or leaves, never on a hit: what hits leave behind (two
//! bits of frequency, a dirty bit, pins) is asked for with a closure when victims are looked for.
//!
//! Invariant: each frame that was `inserted` and not yet `removed` is in exactly one queue. A frame that
//! `victims` names is in the queue of the named, from which only the cache takes it: by `removed` when the
//! page is gone, or by `kept` when somebody was faster. So no frame is named twice.
//!
//! Tables are allocated once, for the highest frame number the pool may ever reach, and the kernel commits
//! them as frames are used; no operation allocates but `resize`.

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

/// The name of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageKey {
    /// The vnode. Whoever reuses the number inherits what policies remember of it, for the better or not.
    pub vnode: u64,
    /// The page's number in it, in pages.
    pub page: u64,
}

impl PageKey {
    /// A hash whose high and low bits are equally good (the finaliser of SplitMix64).
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

/// How a page came into the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// A read that missed.
    Read,
    /// A read that missed and belongs to a stream.
    Stream,
    /// Read ahead of a stream, not used yet.
    Prefetched,
    /// A write of a page that was not there.
    Written,
    /// The same, by a sequential stream.
    WrittenStream,
    /// A page of metadata, read or written.
    Metadata,
}

impl Entry {
    /// The page entered by a write.
    pub fn is_written(self) -> bool {
        matches!(self, Entry::Written | Entry::WrittenStream)
    }
}

/// What hits have left on a frame. Asking takes `frequency`: the next answer counts from zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Touched {
    /// References since last asked, at most 3. A page that its own stream touches again is not
    /// referenced, and neither is a page read ahead by its first use.
    pub frequency: u8,
    /// The page has to be written before its frame is free.
    pub dirty: bool,
    /// Pinned, loading or lent: it stays.
    pub busy: bool,
    /// Read ahead and not used yet.
    pub ahead: bool,
}

/// An order of frames.
pub trait Policy: Send {
    /// `key` is in `frame` now. Panics if the frame is beyond the limit given at construction or
    /// holds a page already: both are mistakes of the cache.
    fn inserted(&mut self, frame: FrameNo, key: PageKey, entry: Entry);

    /// The frame's page is gone. A page that had been named is remembered as evicted; one that had
    /// not (truncated, unlinked, invalidated) is forgotten.
    fn removed(&mut self, frame: FrameNo);

    /// The page in `from` lives in `to` now, which held none. A named page is named in `to`.
    fn moved(&mut self, from: FrameNo, to: FrameNo);

    /// Names up to `want` clean frames, and behind them in `out` dirty ones that the policy came upon
    /// meanwhile, up to `want` and as many again that are stolen from a stream; `out` is appended to.
    /// If some frame is neither busy nor named, at least one is named.
    fn victims(
        &mut self,
        want: usize,
        touched: &mut dyn FnMut(FrameNo) -> Touched,
        out: &mut Vec<FrameNo>,
    );

    /// A named frame stays after all: touched, dirtied or pinned since. It goes back to the young end
    /// of the queue it came from.
    fn kept(&mut self, frame: FrameNo);

    /// Names a frame that the caller has chosen, and that is not named.
    fn claim(&mut self, frame: FrameNo);

    /// A reference that the caller tells about, for policies that want each (`wants_hits`), and for
    /// those who asked a frame's `Touched` and left it where it is.
    fn hit(&mut self, frame: FrameNo);

    /// Each hit is to be told by `hit`. Exact LRU only, which pays with a lock on each hit; without
    /// them it is CLOCK.
    fn wants_hits(&self) -> bool {
        false
    }

    /// The cache may hold `frames` pages now. Shares and memories follow; frames leave only by `victims`.
    fn resize(&mut self, frames: usize);

    /// Frames inserted and not removed, named ones included.
    fn resident(&self) -> usize;
}

/// A batch of victims being gathered: clean ones before dirty ones.
struct Batch<'a> {
    want: usize,
    out: &'a mut Vec<FrameNo>,
    /// Where the next clean frame goes in `out`.
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

    /// Whether a frame of this state still has room.
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
