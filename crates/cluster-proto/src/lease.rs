//! The lease of a machine.

use crate::At;
use std::time::Duration;

/// The lease, as far as its machine knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lease {
    /// None, and when the next one is requested.
    None { next: At },
    /// Requested at that time.
    Requested { sent: At },
    /// Granted, but the store does not have the key of the machine yet.
    Granted { id: u64, until: At },
    /// In force.
    Held { id: u64, until: At, renew: At },
}

impl Lease {
    /// Returns the number of a lease in force.
    pub fn held(self) -> Option<u64> {
        match self {
            Lease::Held { id, .. } => Some(id),
            _ => None,
        }
    }

    /// Returns the time at which the machine has to have stopped.
    pub fn until(self) -> Option<At> {
        match self {
            Lease::Granted { until, .. } | Lease::Held { until, .. } => Some(until),
            _ => None,
        }
    }
}

/// Returns the end of the time to serve, of a lease that was requested or renewed at `sent` for `ttl`.
pub(crate) fn end(sent: At, ttl: Duration, margin: Duration) -> At {
    sent + ttl.saturating_sub(margin)
}
