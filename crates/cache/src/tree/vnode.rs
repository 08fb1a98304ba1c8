//! A vnode: one file's pages, its size, its dirty pages and its write-back errors.
//!
//! **Invariant:** bytes of a page beyond the size of the file are zeros.

use super::open_state::OpenStates;
use super::volume_shared::VolumeShared;
use crate::attributes::{Attributes, FlushBehind, SharedAttributes};
use crate::dirty_leaves::DirtyLeaves;
use crate::dirty_vnodes::DIRTY_FILES_MAX;
use crate::failed_loads::FailedLoads;
use crate::frames::{Base, PAGE_BYTES};
use crate::index::Index;
use crate::leaf::{FILE_BYTES_MAX, Leaf, LeafAt, LeafNo, Tag};
use crate::mapped::Mapped;
use crate::page_state::PageLocation;
use crate::pager::FileId;
use crate::policy::Entry;
use crate::ranges::Ranges;
use crate::stats::{Counts, EvictReason, FileActivity, FileStats};
use crate::write_back::WriteBack;
use std::ops::RangeInclusive;
use std::sync::atomic::{
    AtomicU8, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};
use std::sync::{Arc, OnceLock};

/// A file in the cache.
pub struct Vnode {
    number: u64,
    file: FileId,
    shared: Arc<VolumeShared>,
    index: Index,
    base: Base,
    size: FileSize,
    dirty: DirtyLeaves,
    pub(crate) write_back: WriteBack,
    /// Ranges into which no page may be loaded.
    pub(crate) ranges: Ranges,
    pub(crate) failed_loads: FailedLoads,
    attributes: SharedAttributes,
    class: FileClass,
    pub(crate) opens: OpenStates,
    /// If not [`ALIVE`], no page is loaded any more, and pages whose I/O ends are dropped.
    dead: AtomicU8,
    /// Set when the file is first mapped.
    mapped: OnceLock<Mapped>,
}

/// Values of `dead`: the file is in use, was removed, or its volume was closed.
const ALIVE: u8 = 0;
const UNLINKED: u8 = 1;
const CLOSED: u8 = 2;

/// Number of leaves up to which [`Vnode::activity`] counts the pages: up to 896 MiB of data, and
/// less than a millisecond.
const LEAVES_COUNTED_MAX: usize = 4096;

/// Class of a file's pages in the policy, fixed when the vnode is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileClass {
    Data,
    /// Its pages count towards `metadata_share`.
    Metadata,
}

/// Reason for which a vnode drops its pages and loads no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Death {
    /// The file was removed.
    Unlinked,
    /// Its volume was closed.
    Closed,
}

/// Size of a file in bytes, and the number of times it was lowered.
struct FileSize {
    bytes: AtomicU64,
    cuts: AtomicU64,
}

impl Vnode {
    pub(crate) fn new(
        number: u64,
        file: FileId,
        size: u64,
        class: FileClass,
        below: Arc<VolumeShared>,
    ) -> Vnode {
        let slab = Arc::clone(&below.core.slab);
        Vnode {
            number,
            file,
            index: Index::new(number, slab),
            base: below.core.pool.base(),
            shared: below,
            size: FileSize {
                bytes: AtomicU64::new(size.min(FILE_BYTES_MAX)),
                cuts: AtomicU64::new(0),
            },
            dirty: DirtyLeaves::default(),
            write_back: WriteBack::default(),
            ranges: Ranges::default(),
            failed_loads: FailedLoads::default(),
            attributes: SharedAttributes::default(),
            class,
            opens: OpenStates::default(),
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
        self.size.bytes.load(Acquire)
    }

    /// Raises the size without any other effect.
    pub(crate) fn raise(&self, size: u64) {
        self.size.bytes.fetch_max(size, AcqRel);
    }

    /// Lets mappings fault again on pages that were behind the end and now belong to the file.
    pub(crate) fn unpoison(&self) {
        if let Some(mapped) = self.mapped() {
            mapped.unpoison();
        }
    }

    /// Returns the number of times the size was lowered.
    pub(crate) fn truncations(&self) -> u64 {
        self.size.cuts.load(Acquire)
    }

    /// Lowers the size; the caller drops the pages.
    pub(crate) fn shrink(&self, size: u64) {
        self.size.bytes.store(size, Release);
        self.size.cuts.fetch_add(1, AcqRel);
    }

    /// Returns the file's attributes.
    pub fn attributes(&self) -> Attributes {
        self.attributes.get()
    }

    /// Replaces the file's attributes, for all of its open files.
    pub fn set_attributes(&self, attributes: Attributes) {
        self.attributes.set(attributes);
        if let Some(ms) = attributes.sync_ms {
            self.shared.background.sync_within(ms.into());
        }
    }

    /// Checks whether pages may be read ahead.
    pub(crate) fn reads_ahead(&self) -> bool {
        self.attributes.reads_ahead()
    }

    /// Checks whether pages are loaded in whole clusters.
    pub(crate) fn has_large_pages(&self) -> bool {
        self.attributes.has_large_pages()
    }

    /// Checks whether pages are dropped after use.
    #[inline]
    pub(crate) fn drops_behind(&self) -> bool {
        self.attributes.drops_behind()
    }

    pub(crate) fn flush_behind(&self) -> FlushBehind {
        let own = self.attributes.flush_behind();
        own.unwrap_or_else(|| self.shared.core.settings.flush_behind())
    }

    /// Reports whether the file holds metadata.
    pub fn is_metadata(&self) -> bool {
        self.class == FileClass::Metadata
    }

    /// Returns the class for the policy of a page of this file that is loaded as `entry`.
    pub(crate) fn entry(&self, entry: Entry) -> Entry {
        match self.class {
            FileClass::Data => entry,
            FileClass::Metadata => Entry::Metadata,
        }
    }

    /// Returns the number of pages that are dirty or under write-back.
    pub fn dirty_pages(&self) -> u64 {
        self.dirty.pages()
    }

    /// Returns the file's statistics.
    pub fn stats(&self) -> FileStats {
        let now = self.shared.core.now_ms();
        let mapped = self.mapped().map_or(0, Mapped::pages) as u64;
        let (leaves, pages) = self.index.tally();
        FileStats {
            file: self.file,
            size: self.size(),
            metadata: self.is_metadata(),
            attributes: self.attributes(),
            counts: self.counts(),
            resident_bytes: pages.saturating_sub(mapped) * PAGE_BYTES as u64,
            mapped_bytes: mapped * PAGE_BYTES as u64,
            dirty_bytes: self.dirty_pages() * PAGE_BYTES as u64,
            oldest_dirty_ms: self.oldest_dirty_ms().map(|at| now.saturating_sub(at)),
            leaves,
        }
    }

    /// Returns the statistics that [`crate::Volume::leading_files`] reports.
    pub(crate) fn activity(&self) -> FileActivity {
        let now = self.shared.core.now_ms();
        // Counting pages holds the lock of the index, which a load may need.
        let few = self.index.len() <= LEAVES_COUNTED_MAX;
        FileActivity {
            file: self.file,
            size: self.size(),
            metadata: self.is_metadata(),
            counts: self.counts(),
            cached_bytes: few.then(|| self.index.tally().1 * PAGE_BYTES as u64),
            dirty_bytes: self.dirty_pages() * PAGE_BYTES as u64,
            oldest_dirty_ms: self.oldest_dirty_ms().map(|at| now.saturating_sub(at)),
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
        self.opens.counts()
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Acquire) != ALIVE
    }

    /// Marks the file as removed, or as belonging to a closed volume, and sets its size to 0.
    pub(crate) fn mark_dead(&self, death: Death) {
        let dead = match death {
            Death::Unlinked => UNLINKED,
            Death::Closed => CLOSED,
        };
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
        let (number, index) = LeafNo::of_page(page);
        Some((self.index.find_exact(number)?, index))
    }

    /// Checks whether the page in a leaf that was found earlier still belongs to this vnode.
    #[inline]
    pub(crate) fn owns(&self, leaf: &Leaf, page: u64) -> bool {
        let (number, index) = LeafNo::of_page(page);
        leaf.has(index, Tag::of(self.number, number))
    }

    /// Records that a page became dirty; its bytes lie at `home`. The caller holds its latch or is
    /// loading it.
    pub(crate) fn mark_dirty(&self, at: LeafAt, page: u64, home: PageLocation) {
        let (number, index) = LeafNo::of_page(page);
        let leaf = self.index.leaf(at);
        let now = self.shared.core.now_ms();
        let before = leaf.set_dirty(index, now);
        if (before | leaf.writeback()) & 1 << index == 0 {
            if self.dirty.add_page() {
                let files = self.shared.background.dirty.insert(self.number, now);
                // As for pages, an occasional notice is enough.
                if files > DIRTY_FILES_MAX && files.is_multiple_of(64) {
                    self.shared.background.write_out();
                }
            }
            self.shared.core.add_dirty(&self.shared);
        }
        if before == 0 {
            self.dirty.insert(number, at);
        }
        if before & 1 << index == 0 {
            self.list(page, home);
        }
    }

    /// Lists the frame of a page for a successor of this process, if the cache has a table for that.
    /// The frame holds the whole page; only a change in progress may be incomplete.
    pub(crate) fn list(&self, page: u64, home: PageLocation) {
        if let Some(pages) = &self.shared.core.pool.surviving
            && let PageLocation::Frame(frame) = home
        {
            pages.set(frame, (self.shared.tree, self.file.0), page);
        }
    }

    /// Counts a page that is neither dirty nor under write-back any more.
    pub(crate) fn count_clean(&self) {
        self.dirty.remove_page();
        self.shared.core.sub_dirty();
    }

    /// Collects the leaves with pages that are dirty or under write-back, in order, within a range
    /// of leaf numbers.
    pub(crate) fn dirty_leaves(&self, numbers: RangeInclusive<LeafNo>) -> Vec<(LeafNo, LeafAt)> {
        self.dirty.collect(&self.index, numbers)
    }

    /// Finds when the oldest dirty page became dirty, in milliseconds of the cache's clock.
    pub(crate) fn oldest_dirty_ms(&self) -> Option<u64> {
        self.dirty.oldest_ms(&self.index)
    }

    /// Returns the age in milliseconds at which a dirty page is due.
    pub(crate) fn sync_ms(&self) -> u64 {
        let own = self.attributes().sync_ms;
        let all = self.shared.core.settings.sync_ms.load(Relaxed);
        own.map_or(all, u64::from)
    }

    /// Removes the vnode from the cache that counts its pages; the vnode has none left.
    pub(crate) fn unregister(&self) {
        let core = &self.shared.core;
        core.gone.fold(self.opens.closed.get());
        core.vnodes.remove(self.number);
    }
}
