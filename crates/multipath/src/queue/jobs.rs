//! Jobs of a queue: requests of its user, parts of flushes, and probes.

use crate::log::EventId;
use crate::policy::{Io, Nanos};
use block::{Error, Op};
use slab::Slab;

/// Origin of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// A request of the queue's user, with its tag.
    User(u64),
    /// A part of a flush, with the slot of the job that waits for all parts.
    Part(u32),
    /// A probe of a silent path.
    Probe,
}

pub(super) struct Job {
    pub(super) owner: Owner,
    /// Number of the current attempt in the table.
    attempt: u32,
    /// `None` while a link owns it, or while its parts are in flight.
    pub(super) op: Option<Op>,
    pub(super) io: Io,
    /// Time of submission, and start of the current attempt.
    pub(super) first: Nanos,
    pub(super) started: Nanos,
    /// Earliest time of the next attempt.
    pub(super) after: Nanos,
    pub(super) path: usize,
    pub(super) attempts: u32,
    /// Path that failed this job; another path is tried first.
    pub(super) avoid: Option<usize>,
    /// Path whose error is being verified on another path.
    pub(super) verifying: Option<usize>,
    /// Time of the first `NotNow` result from a path, and number of these results.
    pub(super) refused: Option<(Nanos, u32)>,
    /// For a part of a flush: its path, and the number of writes that it covers there.
    pub(super) flush_of: Option<(usize, u64)>,
    pub(super) parts: u32,
    pub(super) failed: Option<Error>,
    pub(super) moved_by: Option<EventId>,
}

impl Job {
    fn new(owner: Owner, op: Op, now: Nanos, attempt: u32) -> Job {
        let io = Io {
            write: op.changes_data(),
            bytes: match &op {
                Op::Read { bufs, .. } | Op::Write { bufs, .. } => bufs.total_len() as u32,
                _ => 0,
            },
        };
        Job {
            owner,
            attempt,
            op: Some(op),
            io,
            first: now,
            started: now,
            after: 0,
            path: 0,
            attempts: 0,
            avoid: None,
            verifying: None,
            refused: None,
            flush_of: None,
            parts: 0,
            failed: None,
            moved_by: None,
        }
    }
}

/// Jobs by slot. Each attempt of a job has its own tag, so that a stale completion matches no job.
#[derive(Default)]
pub(super) struct JobTable {
    jobs: Slab<Job>,
    /// Number of attempts so far; wraps.
    attempts: u32,
}

impl JobTable {
    pub(super) fn add(&mut self, owner: Owner, op: Op, now: Nanos) -> u32 {
        self.attempts = self.attempts.wrapping_add(1);
        self.jobs.insert(Job::new(owner, op, now, self.attempts)) as u32
    }

    /// Removes the job in a slot, which must exist.
    pub(super) fn remove(&mut self, slot: u32) -> Job {
        self.jobs.remove(slot as usize)
    }

    pub(super) fn get(&self, slot: u32) -> Option<&Job> {
        self.jobs.get(slot as usize)
    }

    /// Returns the job in a slot, which must exist.
    pub(super) fn job(&mut self, slot: u32) -> &mut Job {
        &mut self.jobs[slot as usize]
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Job> {
        self.jobs.iter_mut().map(|(_, job)| job)
    }

    /// Returns the tag of a job's current attempt.
    pub(super) fn tag(&self, slot: u32) -> u64 {
        u64::from(self.jobs[slot as usize].attempt) << 32 | u64::from(slot)
    }

    /// Finds the slot of the job whose current attempt has this tag.
    pub(super) fn find(&self, tag: u64) -> Option<u32> {
        let slot = tag as u32;
        let job = self.get(slot)?;
        (job.attempt == (tag >> 32) as u32).then_some(slot)
    }

    /// Gives a job the tag of another attempt.
    pub(super) fn begin_attempt(&mut self, slot: u32) {
        self.attempts = self.attempts.wrapping_add(1);
        self.jobs[slot as usize].attempt = self.attempts;
    }
}
