//! A vnode: one file's pages, its size, its dirty set and its write-back errors.
//!
//! **Invariant:** bytes of a page beyond the size of the file are zeros. A page that is dirty or
//! under write-back is reachable through the dirty set of leaves, so the cost of a flush is
//! proportional to the data to write.

use super::open_state::OpenState;
use super::volume_shared::VolumeShared;
use crate::attributes::{Attributes, FlushBehind};
use crate::errors::ErrorSequence;
use crate::flushes::Flushes;
use crate::frames::{Base, PAGE_BYTES};
use crate::index::Index;
use crate::leaf::{FILE_BYTES_MAX, LEAF_PAGES, Leaf, LeafAt, Tag};
use crate::mapped::Mapped;
use crate::pager::FileId;
use crate::policy::Entry;
use crate::ranges::Ranges;
use crate::stats::{Counters, Counts, EvictReason, FileStats};
use crate::wait::WaitList;
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
    shared: Arc<VolumeShared>,
    index: Index,
    base: Base,
    size: AtomicU64,
    /// Number of times the size was lowered.
    cuts: AtomicU64,
    /// Leaves with pages that are dirty or under write-back, by number.
    dirty: Mutex<BTreeMap<u64, LeafAt>>,
    dirty_pages: AtomicU64,
    pub(crate) ranges: Ranges,
    pub(crate) errors: ErrorSequence,
    pub(crate) flushes: Flushes,
    /// Sessions that wait for pages under write-back.
    pub(crate) written: WaitList,
    attributes: Mutex<Attributes>,
    /// The attributes that every access needs, as bits.
    quick: AtomicU8,
    metadata: bool,
    failed_loads: Mutex<FailedLoads>,
    retry: Mutex<Retry>,
    openers: Mutex<Vec<Weak<OpenState>>>,
    /// Counters of closed open files, and of events outside any open file.
    pub(crate) gone: Counters,
    /// If not [`ALIVE`], no page is loaded any more, and pages whose I/O ends are dropped.
    dead: AtomicU8,
    /// Set when the file is first mapped.
    mapped: OnceLock<Mapped>,
}

/// Values of `dead`: the file is in use, was removed, or its volume was closed.
const ALIVE: u8 = 0;
const UNLINKED: u8 = 1;
const CLOSED: u8 = 2;

/// Bits of `quick`.
const NO_READ_AHEAD: u8 = 1;
const NO_CACHE: u8 = 2;
/// The file has its own flush-behind policy, in the two bits above.
const FLUSH_BEHIND: u8 = 4;
const FLUSH_BEHIND_SHIFT: u32 = 3;
const LARGE_PAGE: u8 = 32;

/// Recent load failures, for sessions that were waiting for one.
#[derive(Default)]
struct FailedLoads {
    count: u64,
    last: VecDeque<(u64, std::ops::Range<u64>, Error)>,
}

/// Failed loads that are kept; a waiter for an older one retries the load itself.
const FAILED_LOADS_MAX: usize = 16;

/// Back-off state of write-behind.
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
        below: Arc<VolumeShared>,
    ) -> Vnode {
        let slab = Arc::clone(&below.core.slab);
        Vnode {
            number,
            file,
            index: Index::new(number, slab),
            base: below.core.pool.base(),
            shared: below,
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

    /// Returns the file's number in its pager.
    pub fn file(&self) -> FileId {
        self.file
    }

    /// Returns the vnode's number in this cache; numbers are reused after 2^28 vnodes.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the size of the file in bytes.
    #[inline]
    pub fn size(&self) -> u64 {
        self.size.load(Acquire)
    }

    /// Raises the size without any other effect.
    pub(crate) fn raise(&self, size: u64) {
        self.size.fetch_max(size, AcqRel);
    }

    /// Lets mappings fault again on pages that were behind the end and now belong to the file.
    pub(crate) fn unpoison(&self) {
        if let Some(mapped) = self.mapped() {
            mapped.unpoison();
        }
    }

    /// Returns the number of times the size was lowered.
    pub(crate) fn truncations(&self) -> u64 {
        self.cuts.load(Acquire)
    }

    /// Lowers the size; the caller drops the pages.
    pub(crate) fn shrink(&self, size: u64) {
        self.size.store(size, Release);
        self.cuts.fetch_add(1, AcqRel);
    }

    /// Returns the file's attributes.
    pub fn attributes(&self) -> Attributes {
        *self.attributes.lock().expect("no panic under this lock")
    }

    /// Replaces the file's attributes, for all of its open files.
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
            self.shared.background.sync_within(ms.into());
        }
    }

    /// Checks whether pages may be read ahead.
    pub(crate) fn reads_ahead(&self) -> bool {
        self.quick.load(Relaxed) & NO_READ_AHEAD == 0
    }

    /// Checks whether pages are loaded in whole clusters.
    pub(crate) fn has_large_pages(&self) -> bool {
        self.quick.load(Relaxed) & LARGE_PAGE != 0
    }

    /// Checks whether pages are dropped after use.
    #[inline]
    pub(crate) fn drops_behind(&self) -> bool {
        self.quick.load(Relaxed) & NO_CACHE != 0
    }

    pub(crate) fn flush_behind(&self) -> FlushBehind {
        let quick = self.quick.load(Relaxed);
        match quick & FLUSH_BEHIND {
            0 => self.shared.core.settings.flush_behind(),
            _ => FlushBehind::of(quick >> FLUSH_BEHIND_SHIFT & 3),
        }
    }

    /// Reports whether the file holds metadata.
    pub fn is_metadata(&self) -> bool {
        self.metadata
    }

    /// Returns the class for the policy of a page of this file that is loaded as `entry`.
    pub(crate) fn entry(&self, entry: Entry) -> Entry {
        if self.metadata {
            Entry::Metadata
        } else {
            entry
        }
    }

    /// Returns the number of pages that are dirty or under write-back.
    pub fn dirty_pages(&self) -> u64 {
        self.dirty_pages.load(Relaxed)
    }

    /// Returns the file's statistics.
    pub fn stats(&self) -> FileStats {
        let now = self.shared.core.now_ms();
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

    pub(crate) fn shared(&self) -> &Arc<VolumeShared> {
        &self.shared
    }

    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    /// Sums the counters of all open files, live and closed.
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

    /// Marks the file as removed, or as belonging to a closed volume, and sets its size to 0.
    pub(crate) fn mark_dead(&self, closed: bool) {
        let dead = if closed { CLOSED } else { UNLINKED };
        self.dead.store(dead, Release);
        self.shrink(0);
    }

    /// Returns the reason to record for pages that are dropped without a request.
    pub(crate) fn drop_reason(&self) -> EvictReason {
        match self.dead.load(Acquire) {
            UNLINKED => EvictReason::Unlinked,
            CLOSED => EvictReason::Closed,
            _ => EvictReason::Dropped,
        }
    }

    /// Returns the mapping state, if the file was ever mapped.
    #[inline]
    pub(crate) fn mapped(&self) -> Option<&Mapped> {
        self.mapped.get()
    }

    /// Sets the mapping state, unless the file already has one, and returns it.
    pub(crate) fn become_mapped(&self, mapped: Mapped) -> &Mapped {
        let mapped = self.mapped.get_or_init(|| mapped);
        // A thread that extends the file raises the size first and then checks for mappings; a
        // faulting thread checks the size after this fence.
        fence(SeqCst);
        mapped
    }

    /// Returns the address of the pool's first frame.
    #[inline]
    pub(crate) fn base(&self) -> Base {
        self.base
    }

    /// Looks up the leaf and the index of a page, if it has a leaf.
    pub(crate) fn find_exact(&self, page: u64) -> Option<(LeafAt, u32)> {
        let at = self.index.find_exact(page / LEAF_PAGES)?;
        Some((at, (page % LEAF_PAGES) as u32))
    }

    /// Checks whether the page in a leaf that was found earlier still belongs to this vnode.
    #[inline]
    pub(crate) fn owns(&self, leaf: &Leaf, page: u64) -> bool {
        leaf.has(
            (page % LEAF_PAGES) as u32,
            Tag::of(self.number, page / LEAF_PAGES),
        )
    }

    /// Records that a page became dirty. The caller holds its latch or is loading it.
    pub(crate) fn mark_dirty(&self, at: LeafAt, page: u64) {
        let (leaf, index) = (self.index.leaf(at), (page % LEAF_PAGES) as u32);
        let now = self.shared.core.now_ms();
        let before = leaf.set_dirty(index, now);
        if (before | leaf.writeback()) & 1 << index == 0 {
            if self.dirty_pages.fetch_add(1, Relaxed) == 0 {
                self.shared.background.dirty.insert(self.number, now);
            }
            self.shared.core.add_dirty(&self.shared);
        }
        if before == 0 {
            let mut dirty = self.dirty.lock().expect("no panic under this lock");
            dirty.insert(page / LEAF_PAGES, at);
        }
    }

    /// Counts a page that is neither dirty nor under write-back any more.
    pub(crate) fn count_clean(&self) {
        self.dirty_pages.fetch_sub(1, Relaxed);
        self.shared.core.sub_dirty();
    }

    /// Collects the leaves with pages that are dirty or under write-back, in order, within a range
    /// of leaf numbers.
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
        // A thread that dirties a page of one of these now inserts the leaf again afterwards.
        for number in clean {
            dirty.remove(&number);
        }
        found
    }

    /// Finds when the oldest dirty page became dirty, in milliseconds of the cache's clock.
    pub(crate) fn oldest_dirty_ms(&self) -> Option<u64> {
        let dirty = self.dirty.lock().expect("no panic under this lock");
        let leaves = dirty.values().map(|at| self.index.leaf(*at));
        let leaves = leaves.filter(|leaf| leaf.dirty() | leaf.writeback() != 0);
        leaves.map(Leaf::dirty_since_ms).min()
    }

    /// Returns the age in milliseconds at which a dirty page is due.
    pub(crate) fn sync_ms(&self) -> u64 {
        let own = self.attributes().sync_ms;
        let all = self.shared.core.settings.sync_ms.load(Relaxed);
        own.map_or(all, u64::from)
    }

    /// Returns the number of failed loads, to be read before waiting for one.
    pub(crate) fn failed_loads(&self) -> u64 {
        self.failed_loads
            .lock()
            .expect("no panic under this lock")
            .count
    }

    /// Records the error of a failed load, for the sessions that wait for it.
    pub(crate) fn load_failed(&self, pages: std::ops::Range<u64>, error: Error) {
        let mut failed = self.failed_loads.lock().expect("no panic under this lock");
        failed.count += 1;
        let count = failed.count;
        failed.last.push_back((count, pages, error));
        if failed.last.len() > FAILED_LOADS_MAX {
            failed.last.pop_front();
        }
    }

    /// Finds why the load of a page failed, if it did since [`Vnode::failed_loads`] was `since`.
    pub(crate) fn why_load_failed(&self, page: u64, since: u64) -> Option<Error> {
        let failed = self.failed_loads.lock().expect("no panic under this lock");
        let mut last = failed.last.iter().rev();
        let found = last.find(|(count, pages, _)| *count > since && pages.contains(&page));
        found.map(|(_, _, error)| error.clone())
    }

    /// Checks whether the back-off permits write-behind now.
    pub(crate) fn may_retry(&self) -> bool {
        let retry = self.retry.lock().expect("no panic under this lock");
        retry.not_before.is_none_or(|at| Instant::now() >= at)
    }

    /// Records the result of a write-behind. Returns whether it is a change: a first failure, or a
    /// success after one.
    pub(crate) fn note_write(&self, good: bool) -> bool {
        let mut retry = self.retry.lock().expect("no panic under this lock");
        let news = good == (retry.failures > 0);
        if good {
            if news {
                *retry = Retry::default();
            }
            return news;
        }
        let first: Duration = self.shared.core.limits.retry;
        let wait = first * (1 << retry.failures.min(6)).min(100);
        retry.failures += 1;
        retry.not_before = Some(Instant::now() + wait);
        news
    }

    /// Removes the vnode from the cache that counts its pages; the vnode has none left.
    pub(crate) fn unregister(&self) {
        let core = &self.shared.core;
        core.gone.fold(self.gone.get());
        core.vnodes.remove(self.number);
    }
}
