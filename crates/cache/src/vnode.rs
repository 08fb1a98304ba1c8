//! A vnode: one file's pages, its size, what of it is dirty, and what went wrong with it.
//!
//! **Invariant:** bytes of a page beyond the size of the file are zeros. A page that is dirty or on
//! its way below is in the dirty set through its leaf, so that a flush costs as much as there is to
//! write.

use crate::attributes::{Attributes, FlushBehind};
use crate::core::Below;
use crate::errors::ErrorSequence;
use crate::flushes::Flushes;
use crate::frames::{Base, PAGE_BYTES};
use crate::index::Index;
use crate::latch::Latch;
use crate::leaf::{FILE_BYTES_MAX, LEAF_PAGES, Leaf, LeafAt, Tag};
use crate::mapped::Mapped;
use crate::open::OpenState;
use crate::pager::FileId;
use crate::policy::{Entry, FrameNo};
use crate::ranges::Ranges;
use crate::stats::{Counters, Counts, FileStats, Reason};
use crate::wait::WaitList;
use crate::word::Home;
use block::Error;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{
    AtomicU8, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

/// A file in the cache.
pub struct Vnode {
    number: u64,
    file: FileId,
    below: Arc<Below>,
    index: Index,
    base: Base,
    size: AtomicU64,
    /// How often the size was lowered.
    cuts: AtomicU64,
    /// Leaves with pages that are dirty or on their way, by number.
    dirty: Mutex<BTreeMap<u64, LeafAt>>,
    dirty_pages: AtomicU64,
    pub(crate) ranges: Ranges,
    pub(crate) errors: ErrorSequence,
    pub(crate) flushes: Flushes,
    /// Sessions that wait for pages on their way below.
    pub(crate) written: WaitList,
    attributes: Mutex<Attributes>,
    /// The attributes that each access asks for, as bits.
    quick: AtomicU8,
    metadata: bool,
    failed_loads: Mutex<FailedLoads>,
    retry: Mutex<Retry>,
    openers: Mutex<Vec<Weak<OpenState>>>,
    /// What openers that are gone have counted, and what no opener counts.
    pub(crate) gone: Counters,
    /// No page comes any more, and what comes back goes: one of the numbers below.
    dead: AtomicU8,
    /// Since it was first mapped.
    mapped: OnceLock<Mapped>,
}

/// `dead` of a file in use, one that was removed, and one whose volume was closed.
const ALIVE: u8 = 0;
const UNLINKED: u8 = 1;
const CLOSED: u8 = 2;

/// Bits of `quick`.
const NO_READ_AHEAD: u8 = 1;
const NO_CACHE: u8 = 2;
/// The file has a policy of its own for flush-behind, in the two bits above.
const FLUSH_BEHIND: u8 = 4;
const FLUSH_BEHIND_SHIFT: u32 = 3;
const LARGE_PAGE: u8 = 32;

/// Loads that failed of late, for those who waited for one.
#[derive(Default)]
struct FailedLoads {
    count: u64,
    last: VecDeque<(u64, std::ops::Range<u64>, Error)>,
}

/// Failed loads that are kept; who waited for an older one tries the load itself.
const FAILED_LOADS_MAX: usize = 16;

/// When write-behind may be tried again.
#[derive(Default)]
struct Retry {
    failures: u32,
    not_before: Option<Instant>,
}

impl Vnode {
    pub(crate) fn new(
        number: u64,
        file: FileId,
        size: u64,
        metadata: bool,
        below: Arc<Below>,
    ) -> Vnode {
        let slab = Arc::clone(&below.core.slab);
        Vnode {
            number,
            file,
            index: Index::new(number, slab),
            base: below.core.pool.base(),
            below,
            size: AtomicU64::new(size.min(FILE_BYTES_MAX)),
            cuts: AtomicU64::new(0),
            dirty: Mutex::default(),
            dirty_pages: AtomicU64::new(0),
            ranges: Ranges::default(),
            errors: ErrorSequence::default(),
            flushes: Flushes::default(),
            written: WaitList::default(),
            attributes: Mutex::default(),
            quick: AtomicU8::new(0),
            metadata,
            failed_loads: Mutex::default(),
            retry: Mutex::default(),
            openers: Mutex::default(),
            gone: Counters::default(),
            dead: AtomicU8::new(ALIVE),
            mapped: OnceLock::new(),
        }
    }

    /// The file's number below its pager.
    pub fn file(&self) -> FileId {
        self.file
    }

    /// The vnode's number in this cache; used again when it is gone and 2^28 more have come.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Size in bytes.
    #[inline]
    pub fn size(&self) -> u64 {
        self.size.load(Acquire)
    }

    /// Makes the file at least this long, up to 14 PiB; what is between reads as zeros.
    pub fn extend(&self, size: u64) {
        let size = size.min(FILE_BYTES_MAX);
        if self.size() >= size {
            return;
        }
        if let Some(mapped) = self.mapped() {
            return mapped.extend(self, size);
        }
        self.raise(size);
        fence(SeqCst);
        self.heal();
    }

    /// Raises the size, and nothing more.
    pub(crate) fn raise(&self, size: u64) {
        self.size.fetch_max(size, AcqRel);
    }

    /// Pages have come into the file: mappings that had them behind the end ask again.
    pub(crate) fn heal(&self) {
        if let Some(mapped) = self.mapped() {
            mapped.heal();
        }
    }

    /// How often the size was lowered.
    pub(crate) fn cuts(&self) -> u64 {
        self.cuts.load(Acquire)
    }

    /// Lowers the size; the pages are the caller's business.
    pub(crate) fn cut(&self, size: u64) {
        self.size.store(size, Release);
        self.cuts.fetch_add(1, AcqRel);
    }

    /// The file's attributes.
    pub fn attributes(&self) -> Attributes {
        *self.attributes.lock().expect("no panic under this lock")
    }

    /// Sets the file's attributes; the last to set them wins.
    pub fn set_attributes(&self, attributes: Attributes) {
        let mut own = self.attributes.lock().expect("no panic under this lock");
        *own = attributes;
        let mut quick = 0;
        if attributes.no_read_ahead {
            quick |= NO_READ_AHEAD;
        }
        if attributes.no_cache {
            quick |= NO_CACHE;
        }
        if attributes.large_page {
            quick |= LARGE_PAGE;
        }
        if let Some(policy) = attributes.flush_behind {
            quick |= FLUSH_BEHIND | (policy as u8) << FLUSH_BEHIND_SHIFT;
        }
        self.quick.store(quick, Relaxed);
        if let Some(ms) = attributes.sync_ms {
            self.below.errands.sync_within(ms.into());
        }
    }

    /// Pages may be read ahead.
    pub(crate) fn reads_ahead(&self) -> bool {
        self.quick.load(Relaxed) & NO_READ_AHEAD == 0
    }

    /// Pages come by whole clusters.
    pub(crate) fn has_large_pages(&self) -> bool {
        self.quick.load(Relaxed) & LARGE_PAGE != 0
    }

    /// Pages are not to be kept longer than they are used.
    #[inline]
    pub(crate) fn drops_behind(&self) -> bool {
        self.quick.load(Relaxed) & NO_CACHE != 0
    }

    /// When written pages go below.
    pub(crate) fn flush_behind(&self) -> FlushBehind {
        let quick = self.quick.load(Relaxed);
        match quick & FLUSH_BEHIND {
            0 => self.below.core.live.flush_behind(),
            _ => FlushBehind::of(quick >> FLUSH_BEHIND_SHIFT & 3),
        }
    }

    /// It holds metadata.
    pub fn is_metadata(&self) -> bool {
        self.metadata
    }

    /// What the policy is told of a page of this file that comes as `entry`.
    pub(crate) fn entry(&self, entry: Entry) -> Entry {
        if self.metadata {
            Entry::Metadata
        } else {
            entry
        }
    }

    /// Pages that are not below yet, those on their way included.
    pub fn dirty_pages(&self) -> u64 {
        self.dirty_pages.load(Relaxed)
    }

    /// The file in numbers.
    pub fn stats(&self) -> FileStats {
        let now = self.below.core.now_ms();
        let mapped = self.mapped().map_or(0, Mapped::pages) as u64;
        let (leaves, pages) = self.index.tally();
        FileStats {
            file: self.file,
            size: self.size(),
            metadata: self.metadata,
            attributes: self.attributes(),
            counts: self.counts(),
            resident_bytes: pages.saturating_sub(mapped) * PAGE_BYTES as u64,
            mapped_bytes: mapped * PAGE_BYTES as u64,
            dirty_bytes: self.dirty_pages() * PAGE_BYTES as u64,
            oldest_dirty_ms: self.oldest_dirty_ms().map(|at| now.saturating_sub(at)),
            leaves,
        }
    }

    pub(crate) fn below(&self) -> &Arc<Below> {
        &self.below
    }

    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    /// What was counted by all openers.
    pub(crate) fn counts(&self) -> Counts {
        let mut openers = self.openers.lock().expect("no panic under this lock");
        openers.retain(|o| o.strong_count() > 0);
        let live: Vec<_> = openers.iter().filter_map(Weak::upgrade).collect();
        drop(openers);
        let mut counts = self.gone.get();
        live.iter().for_each(|o| counts += o.counters.get());
        counts
    }

    pub(crate) fn add_opener(&self, opener: &Arc<OpenState>) {
        let mut openers = self.openers.lock().expect("no panic under this lock");
        openers.retain(|o| o.strong_count() > 0);
        openers.push(Arc::downgrade(opener));
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Acquire) != ALIVE
    }

    /// The file was removed, or its volume closed.
    pub(crate) fn die(&self, closed: bool) {
        let dead = if closed { CLOSED } else { UNLINKED };
        self.dead.store(dead, Release);
        self.cut(0);
    }

    /// Why pages leave that nobody has asked to go.
    pub(crate) fn death(&self) -> Reason {
        match self.dead.load(Acquire) {
            UNLINKED => Reason::Unlinked,
            CLOSED => Reason::Closed,
            _ => Reason::Dropped,
        }
    }

    /// What the file has if it was ever mapped.
    #[inline]
    pub(crate) fn mapped(&self) -> Option<&Mapped> {
        self.mapped.get()
    }

    /// The file is mapped for the first time, unless it was already.
    pub(crate) fn become_mapped(&self, mapped: Mapped) -> &Mapped {
        let mapped = self.mapped.get_or_init(|| mapped);
        // Whoever makes the file longer raises the size first and looks for mappings then; whoever
        // faults looks at the size after this.
        fence(SeqCst);
        mapped
    }

    /// Where the frames of the pool begin.
    #[inline]
    pub(crate) fn base(&self) -> Base {
        self.base
    }

    /// The leaf and the index of a page, if it has a leaf.
    pub(crate) fn find_surely(&self, page: u64) -> Option<(LeafAt, u32)> {
        let at = self.index.find_surely(page / LEAF_PAGES)?;
        Some((at, (page % LEAF_PAGES) as u32))
    }

    /// Whether the page in a leaf that was found earlier is still this vnode's.
    #[inline]
    pub(crate) fn owns(&self, leaf: &Leaf, page: u64) -> bool {
        leaf.has(
            (page % LEAF_PAGES) as u32,
            Tag::of(self.number, page / LEAF_PAGES),
        )
    }

    /// Takes a page's latch; waits for others who have it, which is never long. `None`: the page is
    /// not there, or on its way.
    pub(crate) fn latch(&self, page: u64) -> Option<Latch<'_>> {
        let (at, index) = self.find_surely(page)?;
        Latch::take(self, at, index, page)
    }

    /// A page became dirty. By the holder of its latch, or by who brings it.
    pub(crate) fn mark_dirty(&self, at: LeafAt, page: u64) {
        let (leaf, index) = (self.index.leaf(at), (page % LEAF_PAGES) as u32);
        let now = self.below.core.now_ms();
        let before = leaf.set_dirty(index, now);
        if (before | leaf.writeback()) & 1 << index == 0 {
            if self.dirty_pages.fetch_add(1, Relaxed) == 0 {
                self.below.errands.dirty_vnode(self.number, now);
            }
            self.below.core.add_dirty(&self.below);
        }
        if before == 0 {
            let mut dirty = self.dirty.lock().expect("no panic under this lock");
            dirty.insert(page / LEAF_PAGES, at);
        }
    }

    /// A page is neither dirty nor on its way any more.
    pub(crate) fn count_clean(&self) {
        self.dirty_pages.fetch_sub(1, Relaxed);
        self.below.core.sub_dirty();
    }

    /// Leaves with pages that are dirty or on their way, in order, within a range of leaf numbers.
    pub(crate) fn dirty_leaves(
        &self,
        numbers: std::ops::RangeInclusive<u64>,
    ) -> Vec<(u64, LeafAt)> {
        let mut dirty = self.dirty.lock().expect("no panic under this lock");
        let mut found = Vec::new();
        let mut clean = Vec::new();
        for (number, at) in dirty.range(numbers) {
            let leaf = self.index.leaf(*at);
            if leaf.is(self.number, *number) && leaf.dirty() | leaf.writeback() != 0 {
                found.push((*number, *at));
            } else {
                clean.push(*number);
            }
        }
        // Whoever makes a page of one of these dirty just now puts the leaf back afterwards.
        for number in clean {
            dirty.remove(&number);
        }
        found
    }

    /// When the oldest dirty page became so, in milliseconds of the cache's clock.
    pub(crate) fn oldest_dirty_ms(&self) -> Option<u64> {
        let dirty = self.dirty.lock().expect("no panic under this lock");
        let leaves = dirty.values().map(|at| self.index.leaf(*at));
        let leaves = leaves.filter(|leaf| leaf.dirty() | leaf.writeback() != 0);
        leaves.map(Leaf::dirty_since_ms).min()
    }

    /// Age in milliseconds at which a dirty page is due.
    pub(crate) fn sync_ms(&self) -> u64 {
        let own = self.attributes().sync_ms;
        let all = self.below.core.live.sync_ms.load(Relaxed);
        own.map_or(all, u64::from)
    }

    /// How many loads have failed, to be asked before waiting for one.
    pub(crate) fn failed_loads(&self) -> u64 {
        self.failed_loads
            .lock()
            .expect("no panic under this lock")
            .count
    }

    /// A load failed; those who wait for it are to know why.
    pub(crate) fn load_failed(&self, pages: std::ops::Range<u64>, error: Error) {
        let mut failed = self.failed_loads.lock().expect("no panic under this lock");
        failed.count += 1;
        let count = failed.count;
        failed.last.push_back((count, pages, error));
        if failed.last.len() > FAILED_LOADS_MAX {
            failed.last.pop_front();
        }
    }

    /// Why the load of a page failed, if it did since [`Vnode::failed_loads`] was `since`.
    pub(crate) fn why_load_failed(&self, page: u64, since: u64) -> Option<Error> {
        let failed = self.failed_loads.lock().expect("no panic under this lock");
        let mut last = failed.last.iter().rev();
        let found = last.find(|(count, pages, _)| *count > since && pages.contains(&page));
        found.map(|(_, _, error)| error.clone())
    }

    /// Whether write-behind may be tried.
    pub(crate) fn may_retry(&self) -> bool {
        let retry = self.retry.lock().expect("no panic under this lock");
        retry.not_before.is_none_or(|at| Instant::now() >= at)
    }

    /// How a write-behind went. Says whether that is news: a first failure, or a success after one.
    pub(crate) fn note_write(&self, good: bool) -> bool {
        let mut retry = self.retry.lock().expect("no panic under this lock");
        let news = good == (retry.failures > 0);
        if good {
            if news {
                *retry = Retry::default();
            }
            return news;
        }
        let first: Duration = self.below.core.limits.retry;
        let wait = first * (1 << retry.failures.min(6)).min(100);
        retry.failures += 1;
        retry.not_before = Some(Instant::now() + wait);
        news
    }

    /// Where a frame's page is, to move it to another frame. Says whether it moved.
    pub(crate) fn relocate(&self, at: LeafAt, index: u32, from: FrameNo, to: FrameNo) -> bool {
        let page = self.index.leaf(at).key(index).page;
        let Some(mut latch) = Latch::take(self, at, index, page) else {
            return false;
        };
        latch.home() == Home::Frame(from.0) && !latch.is_held() && {
            latch.move_to(to, true);
            true
        }
    }
}

impl Drop for Vnode {
    fn drop(&mut self) {
        // Nobody has the vnode any more: what is left are pages that are clean, or that are not
        // wanted.
        for (number, at) in self.index.range(0..=u64::MAX) {
            for index in 0..LEAF_PAGES as u32 {
                let page = number * LEAF_PAGES + u64::from(index);
                if let Some(latch) = Latch::take(self, at, index, page) {
                    latch.leave(self.death());
                }
            }
        }
        self.below.core.gone.fold(self.gone.get());
        self.below.core.unregister(self.number);
    }
}
