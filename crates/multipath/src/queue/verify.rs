//! Verification of errors: an error of one path is tried on another path before it is reported.

use super::jobs::{Job, Owner};
use super::{LunQueue, nanos};
use crate::link::Link;
use crate::policy::{Io, Nanos};
use block::{Error, ErrorKind, Op};
use retry::{Backoff, Jitter};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Pauses before a job that no path takes now is retried.
const BUSY: Backoff = Backoff::new(
    Duration::from_millis(2),
    Duration::from_millis(512),
    Jitter::Equal,
);

impl LunQueue {
    /// Retries a failed job on another path.
    pub(super) fn retry_elsewhere(&mut self, path: usize, slot: u32, op: Op, now: Nanos) {
        let job = self.jobs.job(slot);
        if job.verifying.is_some() {
            // The retry ran on the same path: the others are silent or have no room.
            job.after = now + pause(job, job.attempts);
        }
        (job.verifying, job.avoid) = (Some(path), Some(path));
        self.again(
            slot,
            op,
            None,
            "no path confirmed or refuted its error",
            now,
        );
    }

    /// Checks whether another path could verify the error of a job.
    pub(super) fn can_verify(&mut self, path: usize, io: Io, slot: u32) -> bool {
        let heeded = self.attributes.alua_enabled;
        let may = |l: &Link| {
            l.queue.is_some()
                && (!heeded || l.path.access.carries())
                && !(io.write && l.path.read_only.load(Relaxed))
        };
        let mut links = self.links.iter().enumerate();
        self.shared.only.is_none()
            && links.any(|(i, l)| i != path && may(l))
            && self.jobs.job(slot).attempts < self.attributes.max_retries
    }

    /// Handles a write that a path refused and another path completed. It counts as a loss of the
    /// path; while the path is held back, writes go to other paths.
    pub(super) fn record_refusal(&mut self, path: usize, since: Nanos, now: Nanos) {
        let shared = &self.links[path].path;
        if shared
            .flaps
            .record(since, self.attributes.flap_penalty_secs, now)
        {
            let what = "refused a write that another path completed";
            self.lun.log.add(shared.path.name(), what.into(), 0);
        }
    }

    pub(super) fn has_other(&self, path: usize) -> bool {
        let heeded = self.attributes.alua_enabled;
        let mut links = self.links.iter().enumerate();
        self.shared.only.is_none() && links.any(|(i, l)| i != path && l.serves(heeded))
    }

    /// Handles a job that a path cannot take now: another path is tried immediately, then pauses
    /// grow. This is not a failed attempt; it ends after the time that I/O waits for a path.
    pub(super) fn not_now(&mut self, path: usize, slot: u32, op: Op, error: Error, now: Nanos) {
        let (grace, other) = (self.grace(), self.has_other(path));
        self.links[path].path.counters.busy.fetch_add(1, Relaxed);
        let job = self.jobs.job(slot);
        let (since, times) = job.refused.unwrap_or((now, 0));
        job.refused = Some((since, times + 1));
        job.avoid = Some(path);
        job.after = if times == 0 && other {
            now
        } else {
            now + pause(job, times)
        };
        if now - since > grace && job.owner != Owner::Probe {
            return self.finish(slot, op, Err(error.with_kind(ErrorKind::TimedOut)), now);
        }
        self.requeue(slot, op);
    }
}

/// The pause before a job is retried that was refused `times` times before.
fn pause(job: &Job, times: u32) -> Nanos {
    nanos(BUSY.pause(times, job.first))
}
