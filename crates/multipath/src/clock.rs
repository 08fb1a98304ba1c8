//! The clock of a LUN.

use crate::policy::Nanos;
use std::time::Instant;

/// Monotonic clock of a LUN.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock(Instant::now())
    }

    pub(crate) fn now(self) -> Nanos {
        self.0.elapsed().as_nanos() as Nanos
    }
}
