//! Counters. Each opener counts by itself, so that hits of two threads meet in no counter; totals
//! are summed when somebody asks.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// Counters of one opener, to each of which one thread adds at a time; or of all that are gone.
        #[derive(Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: AtomicU64,)+
        }

        /// What was counted, in all.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)+
        }

        impl Counters {
            /// What was counted so far.
            pub fn get(&self) -> Counts {
                Counts { $($name: self.$name.load(Relaxed),)+ }
            }

            /// Adds what others counted; many threads may.
            pub fn fold(&self, other: Counts) {
                $(self.$name.fetch_add(other.$name, Relaxed);)+
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
    /// Pages that were read and were there.
    hits,
    /// Pages that were read and had to be brought.
    misses,
    /// Pages that were read while somebody else brought them.
    joins,
    /// Pages written.
    writes,
    /// Pages copied to another frame because somebody held the old one.
    copies_on_write,
    /// Pages brought because somebody was expected to read them.
    read_ahead,
    /// Pages brought ahead that somebody did use.
    read_ahead_used,
    /// Pages brought ahead that left before anybody used them. What is neither used nor wasted is
    /// still there.
    read_ahead_wasted,
    /// Bytes read past the cache.
    direct_bytes_read,
    /// Bytes written past the cache.
    direct_bytes_written,
    /// Milliseconds that writers were held back.
    throttled_ms,
    /// Pages that left because others needed the room.
    evicted_limit,
    /// Pages that left because the system was short of memory.
    evicted_pressure,
    /// Pages that left because their file's streams had taken more than their share.
    evicted_stealback,
    /// Pages that left because somebody asked for it, or wrote past the cache.
    dropped,
    /// Pages that left behind the reader of a file that is not to be kept.
    left_behind,
    /// Pages that were cut off their file.
    cut,
    /// Pages of files that were removed.
    unlinked,
    /// Pages of volumes that were closed.
    closed,
}

/// Why a page left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
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
    /// Counts pages that left, `wasted` of them before anybody used what was read ahead.
    pub(crate) fn left(&self, reason: Reason, pages: u64, wasted: u64) {
        let counter = match reason {
            Reason::Limit => &self.evicted_limit,
            Reason::Pressure => &self.evicted_pressure,
            Reason::Stealback => &self.evicted_stealback,
            Reason::Dropped => &self.dropped,
            Reason::Behind => &self.left_behind,
            Reason::Cut => &self.cut,
            Reason::Unlinked => &self.unlinked,
            Reason::Closed => &self.closed,
        };
        counter.fetch_add(pages, Relaxed);
        if wasted > 0 {
            self.read_ahead_wasted.fetch_add(wasted, Relaxed);
        }
    }
}

impl Counts {
    /// Pages that left to make room.
    pub fn evicted(&self) -> u64 {
        self.evicted_limit + self.evicted_pressure + self.evicted_stealback
    }

    /// Pages that were read ahead, and that nobody has used yet.
    pub fn read_ahead_unused(&self) -> u64 {
        // Summed while it changes, so the parts may not fit.
        let settled = self.read_ahead_used + self.read_ahead_wasted;
        self.read_ahead.saturating_sub(settled)
    }
}

/// Adds to a counter that only the calling thread adds to: a load and a store, no locked operation.
#[inline]
pub fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Relaxed) + count, Relaxed);
}

/// A file in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileStats {
    /// The file's number below its pager.
    pub file: crate::FileId,
    /// Size in bytes.
    pub size: u64,
    /// It holds metadata.
    pub metadata: bool,
    /// Its attributes.
    pub attributes: crate::Attributes,
    /// What was counted.
    pub counts: Counts,
    /// Bytes in frames, pages that are being brought included.
    pub resident_bytes: u64,
    /// Bytes in the window that programs have mapped.
    pub mapped_bytes: u64,
    /// Bytes that are not below yet, those on their way included.
    pub dirty_bytes: u64,
    /// Age of the oldest of them in milliseconds.
    pub oldest_dirty_ms: Option<u64>,
    /// Leaves of 56 pages that have a page.
    pub leaves: usize,
}

/// A cache in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheStats {
    /// What was counted, by openers that are gone too.
    pub counts: Counts,
    /// Pages that left to make room.
    pub evicted: u64,
    /// Mapped pages that left to make room.
    pub mapped_evicted: u64,
    /// Bytes in frames that are out.
    pub used_bytes: u64,
    /// Most bytes in frames that may be out.
    pub max_bytes: u64,
    /// Bytes of memory behind frames, free ones included.
    pub resident_bytes: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Bytes in frames that hold metadata.
    pub metadata_bytes: u64,
    /// Bytes in windows that programs have mapped, which no limit counts.
    pub mapped_bytes: u64,
    /// Bytes that are not below yet, those on their way included.
    pub dirty_bytes: u64,
    /// Age of the oldest of them in milliseconds.
    pub oldest_dirty_ms: Option<u64>,
    /// What the frames are made of.
    pub backing: crate::Backing,
    /// The system allows neither way to keep frames out of swap.
    pub swappable: bool,
}
