//! The meaning of a hole that a loop device punches into its file.

use ::survival::Memory;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Meaning of a hole that this process's own loop device punches into its file.
///
/// The loop driver punches one for a discard, but also for a zeroing that may free blocks, which
/// file systems expect to read back as zeros. A discarded block of an encrypted volume reads as
/// noise. So a hole is a discard only once the kernel is known to write zeros instead of requesting
/// them. It does so (Linux 6.11) after `FALLOC_FL_ZERO_RANGE` has been rejected as unsupported.
///
/// A successor of the server continues with the same meaning.
pub struct Holes {
    memory: Arc<Memory>,
    /// Word of the memory with the meaning.
    at: usize,
}

/// The kernel was not tried.
const UNKNOWN: u64 = 0;
pub(crate) const TRIED: u64 = 1;
pub(crate) const DISCARDED: u64 = 2;
const REFUSED: u64 = 3;

impl Holes {
    /// Keeps the meaning in a word of `memory`.
    pub(crate) fn new(memory: Arc<Memory>, at: usize) -> Holes {
        Holes { memory, at }
    }

    fn word(&self) -> &AtomicU64 {
        &self.memory.words()[self.at]
    }

    /// Rejects zeroing as unsupported, and all writes, while `zero` makes the kernel try both and finds
    /// out whether it requests zeroing no more. Every hole is a discard from then on, or refused.
    ///
    /// If the process is killed, the successor rejects them as well until it tries again, because the
    /// requests of the first attempt may still arrive: carried out, they would destroy data.
    pub(crate) fn disable_zeroing(&self, zero: impl FnOnce() -> bool) {
        self.word().store(TRIED, SeqCst);
        let holes = if zero() { DISCARDED } else { REFUSED };
        self.word().store(holes, SeqCst);
    }

    /// Refuses every hole from now on.
    pub(crate) fn refuse(&self) {
        self.word().store(REFUSED, SeqCst);
    }

    /// Forgets what is known of an earlier device.
    pub(crate) fn forget(&self) {
        self.word().store(UNKNOWN, SeqCst);
    }

    /// Checks for one of the states.
    pub(crate) fn is(&self, state: u64) -> bool {
        self.word().load(SeqCst) == state
    }

    /// Returns whether holes are discards, if the kernel was tried.
    pub(crate) fn known(&self) -> Option<bool> {
        match self.word().load(SeqCst) {
            DISCARDED => Some(true),
            REFUSED => Some(false),
            _ => None,
        }
    }
}
