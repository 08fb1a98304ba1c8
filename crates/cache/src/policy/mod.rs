//! Which pages leave when room is needed.
//!
//! **Invariant:** a policy is never asked on a hit. A hit leaves a note of use in the page's word,
//! and the policy collects the notes when it looks for victims.

mod clock;

pub use clock::Clock;

/// A frame of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameNo(pub u32);

/// Which page it is, for a policy that remembers pages it has given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageKey {
    /// The vnode's number in this cache; used again after 2^28 vnodes.
    pub vnode: u64,
    /// The page in the vnode.
    pub page: u64,
}

/// How a page came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Entry {
    /// Somebody read it.
    Read,
    /// Somebody read it in a sequence.
    Stream,
    /// Nobody has read it yet.
    Prefetched,
    /// It was written without having been there.
    Written,
}

/// What happened to a page since the policy last asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touched {
    /// How often it was used: 0, 1, 2, or 3 and more.
    pub frequency: u8,
    /// It holds what is not below yet.
    pub dirty: bool,
    /// It is being brought, changed, sent or written out: it stays, and is asked for again later.
    pub busy: bool,
}

/// Order of the pages that are in the pool. Called under the pool's lock.
pub trait Policy: Send {
    /// The page of `key` is in `frame` now.
    fn inserted(&mut self, frame: FrameNo, key: PageKey, entry: Entry);

    /// The page is gone for a reason that was not the policy's: truncated, unlinked, invalidated.
    fn removed(&mut self, frame: FrameNo);

    /// The page lies in another frame now.
    fn moved(&mut self, from: FrameNo, to: FrameNo);

    /// Puts up to `want` frames into `out`, the best first. `touched` says what happened to a page
    /// and forgets it. What is put into `out` has left the policy; a page that cannot go after all,
    /// because it is dirty or in use by then, comes back through [`Policy::returned`].
    fn victims(
        &mut self,
        want: usize,
        touched: &mut dyn FnMut(FrameNo) -> Touched,
        out: &mut Vec<FrameNo>,
    );

    /// A victim of the last call stays.
    fn returned(&mut self, frame: FrameNo, key: PageKey) {
        self.inserted(frame, key, Entry::Read);
    }

    /// The pool may hold this many pages from now on.
    fn resize(&mut self, frames: usize);
}
