//! Paths beneath a target: what each of them carried, and their limits.

use serde::{Deserialize, Serialize};

/// The paths beneath a target, in this process.
pub trait Paths: Send + Sync {
    /// What each has carried since it is there; none where there is no choice between paths.
    fn carried(&self) -> Vec<Carried>;

    /// Whether the limits of the paths hold. They do not while a target is prepared.
    fn limit(&self, on: bool);
}

/// What a path carried.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Carried {
    /// Its name.
    pub path: String,
    /// Reads and writes that ended well.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Requests that failed, timed out or had to go another way, and connections lost.
    pub lost: u64,
}

impl Carried {
    /// What was carried between two looks at the same paths.
    pub(crate) fn between(before: &[Carried], after: Vec<Carried>) -> Vec<Carried> {
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

    /// Adds a repetition of the same work.
    pub(crate) fn add(all: &mut [Carried], more: &[Carried]) {
        for one in all {
            if let Some(other) = more.iter().find(|m| m.path == one.path) {
                one.requests += other.requests;
                one.bytes += other.bytes;
                one.lost += other.lost;
            }
        }
    }
}
