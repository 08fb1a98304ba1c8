//! The frame pool: free frames, the page of each allocated frame, and eviction when none is free.
//!
//! **Invariant:** at most `limit` frames are allocated, except for those that were allocated when
//! the limit was lowered and cannot be freed yet. An allocated frame belongs to one page, to one
//! load, or, as an orphan, to its holders.
//!
//! Lock order: the latch of a page, then the pool's lock. Under the lock, a page is latched only by
//! trying, never by waiting.

use crate::config::MakePolicy;
use crate::leaf::{LeafAt, LeafNo, Slab};
use crate::memory::{Backing, CHUNK_BYTES, Memory};
use crate::page_state::FrameRefs;
use crate::policy::Touched;
use crate::policy::{Entry, FrameNo, PageKey, Partition, Policy, SeqLimits, Stealback, Stealing};
use crate::stats::EvictReason;
use crate::wait::WaitList;
use block::{Buf, Error, ErrorKind, Result};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, MutexGuard};
use survival::Pages;

/// Size of a page and of a frame in bytes.
pub const PAGE_BYTES: usize = 4096;
/// Frames per chunk.
const CHUNK_FRAMES: usize = CHUNK_BYTES / PAGE_BYTES;
/// Frames that an allocation tries to keep contiguous: 64 KiB.
const CLUSTER_FRAMES: usize = 16;
/// Pages evicted at a time, which amortizes the lock and the policy's search.
const BATCH: usize = 64;
/// Free frames that are kept when chunks are released, so that the next load need not wait for the
/// kernel to zero one.
const KEPT_FREE: usize = CHUNK_FRAMES;

/// State of one frame.
struct Frame {
    /// Leaf address and index of the frame's page; 0 for none.
    page: AtomicU64,
    refs: FrameRefs,
}

/// The limit follows [`Pool::charge`] in steps of this share of what was set.
const CHARGE_STEPS: usize = 64;

/// All frames of a cache.
pub struct Pool {
    memory: Memory,
    frames: Box<[Frame]>,
    slab: Arc<Slab>,
    inner: Mutex<Inner>,
    /// Number of allocated frames, readable without the lock.
    used: AtomicUsize,
    limit: AtomicUsize,
    maximum: AtomicUsize,
    /// Sessions that wait for a frame.
    pub(crate) waiters: WaitList,
    /// NUMA nodes that chunks are spread over; empty if memory is uniform.
    nodes: Vec<u32>,
    /// Frames with data that the pager lacks, for a successor of this process.
    pub(crate) surviving: Option<Pages>,
}

struct Inner {
    policy: Partition,
    chunks: Vec<Chunk>,
    /// Chunks that have memory, including those being populated.
    present: usize,
    /// `maximum`, less the frames whose place other memory takes.
    limit: usize,
    maximum: usize,
    /// Number of frames whose memory is never released.
    kept: usize,
    used: usize,
    /// Chunk of the last allocation.
    cursor: usize,
    victims: Vec<FrameNo>,
}

#[derive(Clone, Copy)]
struct Chunk {
    state: ChunkState,
    /// Index of the node that its memory was requested from.
    node: usize,
    /// Bitmap of free frames.
    free: [u64; CHUNK_FRAMES / 64],
    /// Number of bits set in `free`.
    count: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ChunkState {
    /// Has no memory.
    Absent,
    /// Is being populated or released.
    Changing,
    /// Its free frames may be allocated.
    Open,
    /// Is to be released: its free frames are no longer allocated.
    Closed,
}

impl Chunk {
    const ABSENT: Chunk = Chunk {
        state: ChunkState::Absent,
        node: 0,
        free: [0; CHUNK_FRAMES / 64],
        count: 0,
    };
}

/// Address of a pool's first frame, for frequent use by owners of a reference to the pool.
#[derive(Clone, Copy)]
pub struct Base(NonNull<u8>);

// SAFETY: an address of memory that all threads share.
unsafe impl Send for Base {}
// SAFETY: as above.
unsafe impl Sync for Base {}

impl Base {
    /// Computes the address of a frame.
    #[inline]
    pub fn at(self, frame: FrameNo) -> NonNull<u8> {
        // SAFETY: frame numbers come from `Pool::take`, so the frame lies in the mapping.
        unsafe { self.0.add(frame.0 as usize * PAGE_BYTES) }
    }
}

/// Bookkeeping from an eviction batch, applied by the caller after the pool lock is released.
#[derive(Default)]
pub struct EvictionBatch {
    /// Leaves that became empty: vnode and leaf number.
    pub leaves: Vec<(u64, LeafNo)>,
    /// Evicted pages, one entry per run of the same vnode and reason.
    pub pages: Vec<EvictedPages>,
}

/// Pages of one vnode that were evicted for one reason.
pub struct EvictedPages {
    pub vnode: u64,
    pub reason: EvictReason,
    pub count: u64,
    /// Number of them that were read ahead and never used.
    pub wasted: u64,
}

impl EvictionBatch {
    /// Creates an empty record.
    pub fn new() -> EvictionBatch {
        EvictionBatch::default()
    }

    fn left(&mut self, vnode: u64, reason: EvictReason, wasted: bool) {
        let wasted = u64::from(wasted);
        match self.pages.last_mut() {
            Some(last) if (last.vnode, last.reason) == (vnode, reason) => {
                last.count += 1;
                last.wasted += wasted;
            }
            _ => self.pages.push(EvictedPages {
                vnode,
                reason,
                count: 1,
                wasted,
            }),
        }
    }
}

impl Pool {
    /// Creates a pool that may grow to `reserve` bytes and holds at most `limit` frames for now.
    ///
    /// # Errors
    /// The system refuses the mapping.
    pub fn new(
        reserve: usize,
        limit: usize,
        policy: MakePolicy,
        slab: Arc<Slab>,
        nodes: Vec<u32>,
        surviving: Option<Pages>,
    ) -> Result<Arc<Pool>> {
        let memory = Memory::reserve(reserve)?;
        if surviving.is_some() && memory.backing() == Backing::Anonymous {
            let detail = "no other process can read anonymous memory, so its pages cannot survive";
            return Err(Error::new(ErrorKind::Invalid, "cache", detail));
        }
        let chunks = memory.chunks();
        let limit = limit.clamp(1, chunks * CHUNK_FRAMES);
        let frames = chunks * CHUNK_FRAMES;
        let numbers = u32::try_from(frames).unwrap_or(u32::MAX);
        let data = policy(numbers, limit);
        let how = Stealing::BehindCursor;
        let data = Stealback::new(data, numbers, limit, SeqLimits::OFF, how);
        let policy = Partition::new(data, numbers);
        Ok(Arc::new(Pool {
            frames: zeroed_frames(frames),
            memory,
            slab,
            inner: Mutex::new(Inner {
                policy,
                chunks: vec![Chunk::ABSENT; chunks],
                present: 0,
                limit,
                maximum: limit,
                kept: 0,
                used: 0,
                cursor: 0,
                victims: Vec::with_capacity(BATCH),
            }),
            used: AtomicUsize::new(0),
            limit: AtomicUsize::new(limit),
            maximum: AtomicUsize::new(limit),
            waiters: WaitList::default(),
            nodes,
            surviving,
        }))
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    #[inline]
    pub fn at(&self, frame: FrameNo) -> NonNull<u8> {
        debug_assert!((frame.0 as usize) < self.frames.len());
        self.base().at(frame)
    }

    pub fn base(&self) -> Base {
        Base(self.memory.base())
    }

    /// Returns the holds on a frame beyond pins.
    #[inline]
    pub fn holds(&self, frame: FrameNo) -> &FrameRefs {
        &self.frames[frame.0 as usize].refs
    }

    /// Creates a buffer over `count` contiguous frames, which keeps the pool alive.
    ///
    /// # Safety
    /// No thread may write to the frames while the buffer lives, nor read them if the buffer is to
    /// be written to.
    pub unsafe fn buf(self: &Arc<Self>, first: FrameNo, count: usize) -> Buf {
        let keep = Arc::clone(self);
        // SAFETY: the frames lie in the mapping, which `keep` owns; the caller guarantees the rest.
        unsafe { Buf::pinned(self.at(first), count * PAGE_BYTES, keep) }
    }

    /// Records which page a frame belongs to.
    pub fn assign(&self, frame: FrameNo, leaf: LeafAt, index: u32) {
        let page = leaf.with_index(index);
        self.frames[frame.0 as usize].page.store(page, Release);
    }

    /// Returns the number of allocated frames.
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// Returns the largest number of frames that may be allocated.
    pub fn limit(&self) -> usize {
        self.limit.load(Relaxed)
    }

    /// Returns the limit that was set, of which [`Pool::limit`] is what [`Pool::charge`] leaves.
    pub fn maximum(&self) -> usize {
        self.maximum.load(Relaxed)
    }

    /// Returns the bytes of memory that the pool occupies, including free frames.
    pub fn resident_bytes(&self) -> usize {
        self.lock().present * CHUNK_BYTES
    }

    /// Returns the number of frames that hold metadata.
    pub fn metadata(&self) -> usize {
        self.lock().policy.metadata()
    }

    /// Sets the number of metadata frames that are not evicted for data, the limits of streams, and
    /// the number of frames whose memory is kept even when unused.
    pub fn set_shares(&self, metadata: usize, limits: SeqLimits, kept: usize) {
        let mut inner = self.lock();
        inner.policy.set_share(metadata);
        inner.policy.set_limits(limits);
        inner.kept = kept;
    }

    /// Returns the NUMA nodes that memory is requested from, and the bytes requested from each.
    pub fn nodes(&self) -> Vec<(u32, usize)> {
        let inner = self.lock();
        let chunks = |index| {
            let of_node = |c: &&Chunk| c.node == index && c.state != ChunkState::Absent;
            inner.chunks.iter().filter(of_node).count()
        };
        let nodes = self.nodes.iter().enumerate();
        nodes
            .map(|(index, node)| (*node, chunks(index) * CHUNK_BYTES))
            .collect()
    }

    /// Allocates up to `want` frames, contiguous where possible, and returns their number; evicts
    /// pages to make room. Adds the leaves that became empty to `emptied`. Prefers frames on `node`
    /// if the pool is spread over several nodes.
    pub fn take(
        &self,
        want: usize,
        node: Option<u32>,
        out: &mut Vec<FrameNo>,
        emptied: &mut EvictionBatch,
    ) -> usize {
        let had = out.len();
        let index = |node| self.nodes.iter().position(|n| *n == node);
        let near = node.and_then(index).unwrap_or(0);
        let mut inner = self.lock();
        loop {
            let missing = want - (out.len() - had);
            if missing == 0 {
                break;
            }
            let room = inner.limit.saturating_sub(inner.used);
            if room == 0 {
                let over = inner.used - inner.limit;
                let batch = BATCH.min(inner.limit / 8).max(missing + over);
                if self.evict(&mut inner, batch, EvictReason::Limit, emptied) == 0 {
                    break;
                }
                continue;
            }
            let wanted = missing.min(room);
            let mut taken = inner.take_free(wanted, |c| c.node == near, out);
            let grown = if taken == 0 { inner.grow(near) } else { None };
            if taken == 0 && grown.is_none() {
                taken = inner.take_free(wanted, |_| true, out);
            }
            inner.used += taken;
            self.used.store(inner.used, Relaxed);
            if taken > 0 {
                continue;
            }
            let Some(chunk) = grown else { break };
            drop(inner);
            self.memory.populate(chunk, self.nodes.get(near).copied());
            inner = self.lock();
            inner.chunks[chunk] = Chunk {
                state: ChunkState::Open,
                node: near,
                free: [u64::MAX; CHUNK_FRAMES / 64],
                count: CHUNK_FRAMES as u32,
            };
        }
        drop(inner);
        let taken = &mut out[had..];
        taken.sort_unstable();
        taken.len()
    }

    /// Frees frames that belong to no page and are not held.
    pub fn put(&self, frames: impl IntoIterator<Item = FrameNo>) {
        let mut inner = self.lock();
        for frame in frames {
            debug_assert!(!self.is_listed(frame), "a listed frame keeps its bytes");
            self.frames[frame.0 as usize].page.store(0, Relaxed);
            inner.free(frame);
        }
        self.used.store(inner.used, Relaxed);
        drop(inner);
        self.waiters.wake_all();
    }

    /// Adds pages to the policy. Must precede their publication, so that a page cannot be removed
    /// before it has been inserted.
    pub fn inserted(&self, pages: impl IntoIterator<Item = (FrameNo, PageKey)>, entry: Entry) {
        let mut inner = self.lock();
        for (frame, key) in pages {
            inner.policy.inserted(frame, key, entry);
        }
    }

    /// Removes a page from the policy. The caller holds its latch, and then clears the word and
    /// calls [`Pool::abandon`].
    pub fn removed(&self, frame: FrameNo) {
        self.lock().policy.removed(frame);
    }

    /// Reassigns the page of frame `from` to frame `to`. The caller holds its latch, and then calls
    /// [`Pool::abandon`] for `from`.
    pub fn moved(&self, from: FrameNo, to: FrameNo) {
        let page = self.frames[from.0 as usize].page.load(Relaxed);
        self.frames[to.0 as usize].page.store(page, Release);
        self.lock().policy.moved(from, to);
    }

    /// Detaches a frame from its page: frees it, or leaves it as an orphan to its holders.
    pub fn abandon(&self, frame: FrameNo) {
        if self.holds(frame).orphan() {
            self.put([frame]);
        }
    }

    /// Removes a frame from the surviving ones. Its bytes may change after that.
    #[inline]
    pub fn unlist(&self, frame: FrameNo) {
        if let Some(pages) = &self.surviving {
            pages.clear(frame.0);
        }
    }

    fn is_listed(&self, frame: FrameNo) -> bool {
        let pages = self.surviving.as_ref();
        pages.is_some_and(|pages| pages.is_listed(frame.0))
    }

    /// Releases hold counts (not pins) on a frame.
    pub fn release(&self, frame: FrameNo, count: u32) {
        if self.holds(frame).release(count) {
            self.put([frame]);
        }
    }

    /// Sets the limit of allocated frames and evicts pages down to it, as far as possible.
    pub fn set_limit(&self, limit: usize, emptied: &mut EvictionBatch) {
        let mut inner = self.lock();
        let charged = inner.maximum - inner.limit;
        inner.maximum = limit.clamp(1, self.frames.len());
        self.maximum.store(inner.maximum, Relaxed);
        self.set_charge(inner, charged, emptied);
    }

    /// Reserves the memory of `frames` frames for other purposes: lowers the limit by as much, but
    /// not below a quarter of what was set. Small changes have no effect.
    pub fn charge(&self, frames: usize, emptied: &mut EvictionBatch) {
        let inner = self.lock();
        let charged = inner.maximum - inner.limit;
        let most = inner.maximum - inner.maximum.div_ceil(4);
        let frames = frames.min(most);
        if frames.abs_diff(charged) > inner.maximum / CHARGE_STEPS
            || (frames == 0) != (charged == 0)
        {
            self.set_charge(inner, frames, emptied);
        }
    }

    fn set_charge(
        &self,
        mut inner: MutexGuard<'_, Inner>,
        frames: usize,
        emptied: &mut EvictionBatch,
    ) {
        let least = inner.maximum.div_ceil(4);
        inner.limit = inner.maximum.saturating_sub(frames).max(least);
        let limit = inner.limit;
        self.limit.store(limit, Relaxed);
        inner.policy.resize(limit);
        drop(inner);
        self.shrink_to(limit, EvictReason::Limit, emptied);
        self.waiters.wake_all();
    }

    /// Evicts pages until at most `frames` are allocated, as far as possible. Returns the number of
    /// pages evicted.
    pub fn shrink_to(
        &self,
        frames: usize,
        reason: EvictReason,
        emptied: &mut EvictionBatch,
    ) -> usize {
        let mut gone = 0;
        loop {
            let mut inner = self.lock();
            let over = inner.used.saturating_sub(frames);
            if over == 0 {
                return gone;
            }
            match self.evict(&mut inner, over.min(BATCH), reason, emptied) {
                0 => return gone,
                some => gone += some,
            }
        }
    }

    /// Releases the memory of chunks that the limit does not need. `relocate` moves the page in a
    /// frame to another frame and returns whether it could.
    pub fn trim(&self, mut relocate: impl FnMut(FrameNo) -> bool) {
        loop {
            // Not the head of a `while let`: its lock would be held through the body.
            let Some(chunk) = self.lock().close_one() else {
                return;
            };
            let first = chunk * CHUNK_FRAMES;
            for frame in first..first + CHUNK_FRAMES {
                if self.frames[frame].page.load(Relaxed) != 0 && !relocate(FrameNo(frame as u32)) {
                    break;
                }
            }
            let mut inner = self.lock();
            if (inner.chunks[chunk].count as usize) < CHUNK_FRAMES {
                inner.chunks[chunk].state = ChunkState::Open;
                return;
            }
            inner.chunks[chunk].state = ChunkState::Changing;
            drop(inner);
            self.memory.release(chunk);
            let mut inner = self.lock();
            inner.chunks[chunk] = Chunk::ABSENT;
            inner.present -= 1;
        }
    }

    /// Looks up the leaf and the index of the page in a frame.
    pub fn page_of(&self, frame: FrameNo) -> Option<(LeafAt, u32)> {
        LeafAt::split(self.frames[frame.0 as usize].page.load(Acquire))
    }

    /// Zeroes all free frames, so that no data of a closed volume remains in them.
    pub fn wipe_free(&self) {
        let chunks = self.memory.chunks();
        for chunk in 0..chunks {
            for word in 0..CHUNK_FRAMES / 64 {
                // Taken out of the bitmap while they are wiped, a few at a time, so that no other
                // thread allocates them.
                let mut inner = self.lock();
                if inner.chunks[chunk].state != ChunkState::Open {
                    break;
                }
                let bits = std::mem::take(&mut inner.chunks[chunk].free[word]);
                inner.chunks[chunk].count -= bits.count_ones();
                drop(inner);
                for bit in ones(bits) {
                    let frame = FrameNo((chunk * CHUNK_FRAMES + word * 64) as u32 + bit);
                    // SAFETY: the frame is free and has just been taken out of the bitmap.
                    unsafe { crate::copy::zero_page(self.at(frame).as_ptr(), PAGE_BYTES) };
                }
                let chunk = &mut self.lock().chunks[chunk];
                chunk.free[word] |= bits;
                chunk.count += bits.count_ones();
            }
        }
        self.waiters.wake_all();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic under this lock")
    }

    /// Evicts up to `want` pages and returns how many were evicted.
    fn evict(
        &self,
        inner: &mut Inner,
        want: usize,
        reason: EvictReason,
        emptied: &mut EvictionBatch,
    ) -> usize {
        let mut victims = std::mem::take(&mut inner.victims);
        let mut touched = |frame: FrameNo| self.touched(frame);
        inner.policy.victims(want, &mut touched, &mut victims);
        let stolen = inner.policy.stolen();
        let mut gone = 0;
        for (place, frame) in victims.drain(..).enumerate() {
            let reason = if stolen.contains(&place) {
                EvictReason::Stealback
            } else {
                reason
            };
            match self.evict_one(frame, reason, emptied) {
                Evicted::Free => {
                    inner.policy.removed(frame);
                    inner.free(frame);
                    gone += 1;
                }
                Evicted::Held => inner.policy.removed(frame),
                Evicted::No => inner.policy.kept(frame),
            }
        }
        inner.victims = victims;
        self.used.store(inner.used, Relaxed);
        gone
    }

    /// Reads the page state that the policy bases its decision on, and clears the use marks.
    fn touched(&self, frame: FrameNo) -> Touched {
        let busy = Touched {
            frequency: 0,
            dirty: false,
            busy: true,
            ahead: false,
        };
        let Some((at, index)) = self.page_of(frame) else {
            return busy;
        };
        let leaf = self.slab.get(at);
        let word = leaf.word(index);
        let snap = word.load();
        if !snap.is_resident() || snap.in_window() || snap.frame() != frame.0 {
            return busy;
        }
        word.forget_touches();
        let bit = 1 << index;
        Touched {
            frequency: snap.frequency(),
            dirty: leaf.dirty() & bit != 0,
            busy: snap.pins() > 0 || leaf.writeback() & bit != 0 || self.holds(frame).any(),
            ahead: snap.is_ahead(),
        }
    }

    /// Evicts the page of a frame if it is clean and unused.
    fn evict_one(
        &self,
        frame: FrameNo,
        reason: EvictReason,
        emptied: &mut EvictionBatch,
    ) -> Evicted {
        let Some((at, index)) = self.page_of(frame) else {
            return Evicted::No;
        };
        let leaf = self.slab.get(at);
        let word = leaf.word(index);
        let snap = word.load();
        if snap.frame() != frame.0 || snap.in_window() || snap.pins() > 0 {
            return Evicted::No;
        }
        // Without pins no counts are added, so none can have to be undone.
        let Some(latched) = word.latch(snap, self.holds(frame), || {}) else {
            return Evicted::No;
        };
        let bit = 1 << index;
        if (leaf.dirty() | leaf.writeback()) & bit != 0 || self.holds(frame).any() {
            word.unlatch(latched);
            return Evicted::No;
        }
        debug_assert!(!self.is_listed(frame), "a listed frame keeps its bytes");
        let (vnode, number) = leaf.owner();
        self.frames[frame.0 as usize].page.store(0, Relaxed);
        word.clear(latched);
        emptied.left(vnode, reason, latched.is_ahead());
        if leaf.release() {
            emptied.leaves.push((vnode, number));
        }
        // A concurrent latch attempt that is about to fail may have added counts; the thread that
        // undoes them frees the frame.
        if self.holds(frame).orphan() {
            Evicted::Free
        } else {
            Evicted::Held
        }
    }
}

/// Result of evicting one page.
enum Evicted {
    /// The page stays.
    No,
    /// The page was evicted and its frame is free.
    Free,
    /// The page was evicted; its frame is freed with the last hold.
    Held,
}

impl Inner {
    /// Takes up to `want` free frames of chunks that satisfy `will_do`: whole clusters first when
    /// many are wanted, then single frames.
    fn take_free(
        &mut self,
        want: usize,
        will_do: impl Fn(&Chunk) -> bool,
        out: &mut Vec<FrameNo>,
    ) -> usize {
        let had = out.len();
        if want >= CLUSTER_FRAMES / 2 {
            self.take_from_chunks(want, &will_do, whole_cluster, out);
        }
        let rest = want - (out.len() - had);
        let any = |word: u64| Some(word.trailing_zeros() as usize..64);
        self.take_from_chunks(rest, &will_do, any, out);
        out.len() - had
    }

    /// Takes up to `want` free frames where `choose` finds a range in a word of the bitmap.
    /// Continues at the last position, so that a full pool is not searched from its beginning for
    /// each frame.
    fn take_from_chunks(
        &mut self,
        mut want: usize,
        will_do: &impl Fn(&Chunk) -> bool,
        choose: impl Fn(u64) -> Option<Range<usize>>,
        out: &mut Vec<FrameNo>,
    ) {
        let chunks = self.chunks.len();
        for step in 0..chunks {
            let number = (self.cursor + step) % chunks;
            let chunk = &mut self.chunks[number];
            if chunk.state != ChunkState::Open || chunk.count == 0 || !will_do(chunk) {
                continue;
            }
            for (index, word) in chunk.free.iter_mut().enumerate() {
                let base = (number * CHUNK_FRAMES + index * 64) as u32;
                while *word != 0 && want > 0 {
                    let Some(range) = choose(*word) else { break };
                    let free = ones(*word & mask(&range)).take(want);
                    for bit in free {
                        *word &= !(1 << bit);
                        chunk.count -= 1;
                        want -= 1;
                        out.push(FrameNo(base + bit));
                    }
                }
            }
            if want == 0 {
                self.cursor = number;
                return;
            }
        }
    }

    fn free(&mut self, frame: FrameNo) {
        let (chunk, bit) = (
            frame.0 as usize / CHUNK_FRAMES,
            frame.0 as usize % CHUNK_FRAMES,
        );
        let word = &mut self.chunks[chunk].free[bit / 64];
        debug_assert_eq!(*word & 1 << (bit % 64), 0, "a frame is freed once");
        *word |= 1 << (bit % 64);
        self.chunks[chunk].count += 1;
        self.used -= 1;
    }

    /// Selects a chunk to populate, if the limit allows another one.
    fn grow(&mut self, node: usize) -> Option<usize> {
        if self.present >= self.limit.div_ceil(CHUNK_FRAMES) {
            return None;
        }
        let absent = |c: &Chunk| c.state == ChunkState::Absent;
        let chunk = self.chunks.iter().position(absent)?;
        self.chunks[chunk].state = ChunkState::Changing;
        self.chunks[chunk].node = node;
        self.present += 1;
        Some(chunk)
    }

    /// Closes the chunk with the most free frames, if the rest is enough.
    fn close_one(&mut self) -> Option<usize> {
        let wanted = (self.used + KEPT_FREE).max(self.kept);
        let needed = self.limit.min(wanted).div_ceil(CHUNK_FRAMES);
        if self.present <= needed.max(1) {
            return None;
        }
        let open = self.chunks.iter().enumerate();
        let open = open.filter(|(_, c)| c.state == ChunkState::Open);
        let (chunk, _) = open.max_by_key(|(_, c)| c.count)?;
        self.chunks[chunk].state = ChunkState::Closed;
        Some(chunk)
    }
}

/// Finds the first entirely free cluster in a word of the bitmap.
fn whole_cluster(word: u64) -> Option<Range<usize>> {
    let full = |i: &usize| word >> i & 0xffff == 0xffff;
    let first = (0..64).step_by(CLUSTER_FRAMES).find(full)?;
    Some(first..first + CLUSTER_FRAMES)
}

fn mask(bits: &Range<usize>) -> u64 {
    (u64::MAX >> (64 - bits.len())) << bits.start
}

/// Iterates over the numbers of the bits that are set, lowest first.
pub fn ones(mut bits: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = bits.trailing_zeros();
        (bits != 0).then(|| {
            bits &= bits - 1;
            bit
        })
    })
}

/// Allocates zeroed frames, which take no memory until they are used.
fn zeroed_frames(count: usize) -> Box<[Frame]> {
    let frames = Box::<[Frame]>::new_zeroed_slice(count);
    // SAFETY: a frame is two atomic integers, for which all-zero bits are valid: no page, no hold.
    unsafe { frames.assume_init() }
}
