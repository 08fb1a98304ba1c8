//! Counters of a mount.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one thread, which alone writes them; on a cache line of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    pub(crate) reads: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) zeroed: AtomicU64,
    pub(crate) patched: AtomicU64,
    pub(crate) waited: AtomicU64,
    pub(crate) errors: AtomicU64,
}

impl Counters {
    /// Adds to a counter of the calling thread, without a locked instruction.
    pub(crate) fn count(counter: &AtomicU64, more: u64) {
        counter.store(
            counter.load(Ordering::Relaxed).wrapping_add(more),
            Ordering::Relaxed,
        );
    }
}

/// What a mount has done so far, all its threads together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Reads.
    pub reads: u64,
    /// Bytes of these reads.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes of these writes.
    pub written_bytes: u64,
    /// Flushes: fsync, and close of what was open for writing.
    pub flushes: u64,
    /// Ranges made zero.
    pub zeroed: u64,
    /// Changes that were not aligned to blocks: read, patched and written back.
    pub patched: u64,
    /// Changes that had to wait for another one of the same blocks.
    pub waited: u64,
    /// Requests to the device that failed.
    pub errors: u64,
}

impl Stats {
    pub(crate) fn sum(all: &[Arc<Counters>]) -> Stats {
        let sum = |of: fn(&Counters) -> &AtomicU64| {
            all.iter().map(|c| of(c).load(Ordering::Relaxed)).sum()
        };
        Stats {
            reads: sum(|c| &c.reads),
            read_bytes: sum(|c| &c.read_bytes),
            writes: sum(|c| &c.writes),
            written_bytes: sum(|c| &c.written_bytes),
            flushes: sum(|c| &c.flushes),
            zeroed: sum(|c| &c.zeroed),
            patched: sum(|c| &c.patched),
            waited: sum(|c| &c.waited),
            errors: sum(|c| &c.errors),
        }
    }
}
