//! Counters. Each opener counts by itself, so that hits of two threads meet in no counter; totals
//! are summed when somebody asks.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// Counters of one opener, or of all that are gone. One thread adds at a time.
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
    /// Pages brought ahead that somebody did read.
    read_ahead_used,
    /// Bytes read past the cache.
    direct_bytes_read,
    /// Bytes written past the cache.
    direct_bytes_written,
    /// Milliseconds that writers were held back.
    throttled_ms,
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
    /// What was counted.
    pub counts: Counts,
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
    /// Pages that left because their part of the file did.
    pub dropped: u64,
    /// Bytes in frames that are out.
    pub used_bytes: u64,
    /// Most bytes in frames that may be out.
    pub max_bytes: u64,
    /// Bytes of memory behind frames, free ones included.
    pub resident_bytes: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Bytes that are not below yet, those on their way included.
    pub dirty_bytes: u64,
    /// What the frames are made of.
    pub backing: crate::Backing,
    /// The system allows neither way to keep frames out of swap.
    pub swappable: bool,
}
