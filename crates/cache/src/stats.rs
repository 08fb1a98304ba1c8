//! Counters. Each open file has its own, so that hits of two threads share no counter; totals are
//! summed on request.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// Counters of one open file, to each of which one thread adds at a time; or totals of
        /// closed ones.
        #[derive(Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: AtomicU64,)+
        }

        /// Totals of all counters.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)+
        }

        impl Counters {
            /// Reads the current values.
            pub fn get(&self) -> Counts {
                Counts { $($name: self.$name.load(Relaxed),)+ }
            }

            /// Adds other counters; may be called by many threads at once. Most counters of a small
            /// file are zero.
            pub fn fold(&self, other: Counts) {
                $(if other.$name > 0 {
                    self.$name.fetch_add(other.$name, Relaxed);
                })+
            }
        }

        impl std::ops::AddAssign for Counts {
            fn add_assign(&mut self, other: Counts) {
                $(self.$name += other.$name;)+
            }
        }
    };
}

counters! {
    /// Page reads that found the page resident.
    hits,
    /// Page reads that had to load the page.
    misses,
    /// Page reads that joined a load in progress.
    joins,
    /// Pages written.
    writes,
    /// Pages copied to another frame because the old one was held.
    copies_on_write,
    /// Pages loaded in anticipation of a read.
    read_ahead,
    /// Pages read ahead that were used later.
    read_ahead_used,
    /// Pages read ahead that were evicted before their first use. Those neither used nor wasted are
    /// still resident.
    read_ahead_wasted,
    /// Bytes read bypassing the cache.
    direct_bytes_read,
    /// Bytes written bypassing the cache.
    direct_bytes_written,
    /// Milliseconds that writers were throttled.
    throttled_ms,
    /// Pages evicted to make room for others.
    evicted_limit,
    /// Pages evicted because the system was short of memory.
    evicted_pressure,
    /// Pages evicted because their file's streams had taken more than their share.
    evicted_stealback,
    /// Pages dropped on request, or because of a write that bypassed the cache.
    dropped,
    /// Pages dropped behind the reader of a file that is not to be cached.
    left_behind,
    /// Pages dropped because their file was truncated.
    cut,
    /// Pages dropped because their file was removed.
    unlinked,
    /// Pages dropped because their volume was closed.
    closed,
}

/// Why a page left the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EvictReason {
    Limit,
    Pressure,
    Stealback,
    Dropped,
    Behind,
    Cut,
    Unlinked,
    Closed,
}

impl Counters {
    /// Counts pages that left the cache, `wasted` of which were read ahead and never used.
    pub(crate) fn left(&self, reason: EvictReason, pages: u64, wasted: u64) {
        let counter = match reason {
            EvictReason::Limit => &self.evicted_limit,
            EvictReason::Pressure => &self.evicted_pressure,
            EvictReason::Stealback => &self.evicted_stealback,
            EvictReason::Dropped => &self.dropped,
            EvictReason::Behind => &self.left_behind,
            EvictReason::Cut => &self.cut,
            EvictReason::Unlinked => &self.unlinked,
            EvictReason::Closed => &self.closed,
        };
        counter.fetch_add(pages, Relaxed);
        if wasted > 0 {
            self.read_ahead_wasted.fetch_add(wasted, Relaxed);
        }
    }
}

impl Counts {
    /// Returns the number of pages that were read and written through the cache.
    pub fn accesses(&self) -> u64 {
        self.hits + self.misses + self.joins + self.writes
    }

    /// Returns the number of pages evicted to make room.
    pub fn evicted(&self) -> u64 {
        self.evicted_limit + self.evicted_pressure + self.evicted_stealback
    }

    /// Returns the number of pages that were read ahead and are still unused.
    pub fn read_ahead_unused(&self) -> u64 {
        // The counters change while they are summed, so the difference could become negative.
        let settled = self.read_ahead_used + self.read_ahead_wasted;
        self.read_ahead.saturating_sub(settled)
    }
}

/// Adds to a counter that only the calling thread adds to: a load and a store, no locked operation.
#[inline]
pub fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Relaxed) + count, Relaxed);
}

/// Statistics of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileStats {
    /// The file's number in its pager.
    pub file: crate::FileId,
    /// Size in bytes.
    pub size: u64,
    /// The file holds metadata.
    pub metadata: bool,
    /// Current attributes.
    pub attributes: crate::Attributes,
    /// Counters of all open files.
    pub counts: Counts,
    /// Bytes in frames, including pages being loaded.
    pub resident_bytes: u64,
    /// Bytes in the window of a mapped file.
    pub mapped_bytes: u64,
    /// Bytes that are dirty or under write-back.
    pub dirty_bytes: u64,
    /// Age of the oldest dirty page in milliseconds.
    pub oldest_dirty_ms: Option<u64>,
    /// Leaves of 56 pages that are in use.
    pub leaves: usize,
}

/// A file that is among the first of its volume by use, dirty data or cached data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileActivity {
    /// The file's number in its pager.
    pub file: crate::FileId,
    /// Size in bytes.
    pub size: u64,
    /// The file holds metadata.
    pub metadata: bool,
    /// Counters of all open files.
    pub counts: Counts,
    /// Bytes in frames and windows; `None` for a file whose pages would take long to count.
    pub cached_bytes: Option<u64>,
    /// Bytes that are dirty or under write-back.
    pub dirty_bytes: u64,
    /// Age of the oldest dirty page in milliseconds.
    pub oldest_dirty_ms: Option<u64>,
}

/// Data of a volume that is in memory only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirtyData {
    /// Bytes that are dirty or under write-back.
    pub bytes: u64,
    /// Age of the oldest dirty page in milliseconds.
    pub oldest_ms: Option<u64>,
}

/// Statistics of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheStats {
    /// Counters of all open files, live and closed.
    pub counts: Counts,
    /// Pages evicted to make room.
    pub evicted: u64,
    /// Mapped pages evicted to make room.
    pub mapped_evicted: u64,
    /// Bytes in allocated frames.
    pub used_bytes: u64,
    /// Limit of bytes in allocated frames.
    pub max_bytes: u64,
    /// Bytes of memory behind frames, including free ones.
    pub resident_bytes: u64,
    /// Size of the index in bytes.
    pub index_bytes: u64,
    /// Bytes in frames that hold metadata.
    pub metadata_bytes: u64,
    /// Bytes in windows of mapped files, which count towards no limit.
    pub mapped_bytes: u64,
    /// Bytes that are dirty or under write-back.
    pub dirty_bytes: u64,
    /// Age of the oldest dirty page in milliseconds.
    pub oldest_dirty_ms: Option<u64>,
    /// Kind of memory behind the frames.
    pub backing: crate::Backing,
    /// The system allows neither way to keep frames out of swap.
    pub swappable: bool,
}
