//! The meaning of a hole that a loop device punches into its file.

use std::sync::atomic::{AtomicU8, Ordering};

/// Meaning of a hole that this process's own loop device punches into its file.
///
/// The loop driver punches one for a discard, but also for a zeroing that may free blocks, which
/// file systems expect to read back as zeros. A discarded block of an encrypted volume reads as
/// noise. So a hole is a discard only once the kernel is known to write zeros instead of requesting
/// them. It does so (Linux 6.11) after `FALLOC_FL_ZERO_RANGE` has been rejected as unsupported.
#[derive(Debug, Default)]
pub struct Holes(AtomicU8);

const REFUSED: u8 = 0;
pub(crate) const TRIED: u8 = 1;
pub(crate) const DISCARDED: u8 = 2;

impl Holes {
    /// Rejects zeroing as unsupported, and all writes, while `zero` makes the kernel try both.
    pub(crate) fn disable_zeroing(&self, zero: impl FnOnce()) {
        self.0.store(TRIED, Ordering::SeqCst);
        zero();
        self.0.store(REFUSED, Ordering::SeqCst);
    }

    /// Treats every hole from now on as a discard.
    pub(crate) fn are_discards(&self) {
        self.0.store(DISCARDED, Ordering::SeqCst);
    }

    /// Checks for one of the states.
    pub(crate) fn is(&self, state: u8) -> bool {
        self.0.load(Ordering::SeqCst) == state
    }
}
