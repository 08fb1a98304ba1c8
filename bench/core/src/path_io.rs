//! Paths beneath a target: their limits and the I/O that each carried.

use serde::{Deserialize, Serialize};

/// The paths beneath a target in this process.
pub trait Paths: Send + Sync {
    /// Returns the totals of each path since it was created; empty without a choice of paths.
    fn carried(&self) -> Vec<Carried>;

    /// Applies the limits of the paths.
    fn limit(&self);

    /// Lifts the limits of the paths, while a target is prepared.
    fn lift_limits(&self);
}

/// I/O carried by one path.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Carried {
    /// Name of the path.
    pub path: String,
    /// Reads and writes that succeeded.
    pub requests: u64,
    /// Bytes of the requests that succeeded.
    pub bytes: u64,
    /// Requests that failed, timed out or were resubmitted on another path, and lost connections.
    pub lost: u64,
}

impl Carried {
    /// Computes the difference of two readings of the same paths.
    pub fn between(before: &[Carried], after: Vec<Carried>) -> Vec<Carried> {
        let one = |after: Carried| {
            let then = before.iter().find(|b| b.path == after.path);
            let then = then.cloned().unwrap_or_default();
            Carried {
                requests: after.requests.saturating_sub(then.requests),
                bytes: after.bytes.saturating_sub(then.bytes),
                lost: after.lost.saturating_sub(then.lost),
                path: after.path,
            }
        };
        after.into_iter().map(one).collect()
    }

    /// Adds the counts of a repetition of the same work.
    pub fn add(all: &mut [Carried], more: &[Carried]) {
        for one in all {
            if let Some(other) = more.iter().find(|m| m.path == one.path) {
                one.requests += other.requests;
                one.bytes += other.bytes;
                one.lost += other.lost;
            }
        }
    }
}
