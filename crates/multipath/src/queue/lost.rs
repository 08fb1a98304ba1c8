//! Handling of a connection that is lost or closed, and of its unanswered requests.

use super::jobs::Owner;
use super::sleeper::TICK;
use super::{LunQueue, nanos};
use crate::link::LinkState;
use crate::log::EventId;
use crate::policy::Nanos;
use crate::unanswered::{OPEN, UnansweredWrite};
use block::{Op, Wait};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

/// Maximum time that dropping a queue waits for jobs in flight.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);
/// A connection that lasted longer was useful, even if nothing was written.
const STEADY: Nanos = 10_000_000_000;

impl LunQueue {
    /// Closes a connection. Its jobs in flight are resubmitted on other paths.
    pub(super) fn close_link(
        &mut self,
        path: usize,
        why: &str,
        event: Option<EventId>,
        now: Nanos,
    ) {
        if self.links.get(path).is_none_or(|l| l.queue.is_none()) {
            return;
        }
        self.withdraw_all(path, why, event, now);
        self.await_kept(path);
        let link = &mut self.links[path];
        link.broken = None;
        let Some(queue) = link.queue.take() else {
            return;
        };
        if let Some(fd) = queue.wait_fd() {
            self.sleeper.remove_link(fd);
        }
        link.state = LinkState::Down;
        link.uncount_suspicion();
        link.probing = false;
        link.back = None;
        link.fence_key = None;
        let (since, useful) = (link.since, link.wrote || now - link.since > STEADY);
        let shared = &link.path;
        shared.counters.offline_events.fetch_add(1, Relaxed);
        shared.fails(why.to_owned());
        if shared.links_up.fetch_sub(1, Relaxed) == 1 {
            shared.proven.store(false, Release);
            let unflushed = shared.written.load(Acquire) != shared.flushed.load(Acquire);
            if unflushed && !self.attributes.shared_cache {
                shared.lost_writes.store(true, Release);
            }
        }
        if shared.eligible() {
            shared
                .flaps
                .record(since, self.attributes.flap_penalty_secs, now);
            let attempts = &self.shared.attempts[path];
            if useful {
                attempts.succeeded();
            }
            // All clients of a server lose it together.
            shared.delay(attempts, self.lun.clock.now());
        }
        drop(queue);
        self.closed(path, now);
        self.mark_down(path);
    }

    /// Waits for jobs that could not be taken back. Dropping a kernel ring would wait for them too,
    /// but their results would be lost.
    fn await_kept(&mut self, path: usize) {
        let mut done = Vec::new();
        while let (false, Some(queue)) = (
            self.links[path].jobs.is_empty(),
            self.links[path].queue.as_mut(),
        ) {
            if queue.reap(Wait::Block, &mut done).is_err() || done.is_empty() {
                return;
            }
            let now = self.lun.clock.now();
            for completion in done.drain(..) {
                self.answered(path, completion, now);
            }
        }
    }

    /// Takes back all jobs of a link, and records writes that may still be executed.
    pub(super) fn withdraw_all(
        &mut self,
        path: usize,
        why: &str,
        event: Option<EventId>,
        now: Nanos,
    ) {
        let jobs = std::mem::take(&mut self.links[path].jobs);
        let mut kept = Vec::new();
        let mut moved = Vec::new();
        for slot in jobs {
            let tag = self.jobs.tag(slot);
            let link = &mut self.links[path];
            let back = link.queue.as_mut().and_then(|queue| queue.withdraw(tag));
            match back {
                Some(request) => {
                    self.unload(path, slot);
                    self.record_unanswered(path, tag, &request.op, now, OPEN);
                    moved.push((slot, request.op));
                }
                // The device still uses its memory: the completion arrives normally.
                None => kept.push(slot),
            }
        }
        self.links[path].jobs = kept;
        let users = moved.iter().filter(|(slot, _)| {
            let job = self.jobs.get(*slot);
            job.is_some_and(|j| j.owner != Owner::Probe)
        });
        let name = self.links[path].path.path.name();
        let users = users.count() as u64;
        let event = event.unwrap_or_else(|| self.lun.log.add(name, why.to_owned(), users));
        tracing::info!(path = name, event = event.get(), "{why}");
        for (slot, op) in moved {
            self.again(slot, op, Some(event), why, now);
        }
    }

    /// Returns when the open writes of a connection closed at `now` count as settled.
    pub(super) fn quiesced(&self, now: Nanos) -> Nanos {
        now + self.attributes.quiesce().as_nanos() as Nanos
    }

    /// Marks a connection as closed: it sends nothing more. Fencing may take longer: it may wait
    /// for a path as long as I/O does.
    fn closed(&self, path: usize, now: Nanos) {
        let fence = u64::from(self.attributes.transient_secs) * 1_000_000_000;
        let until = self.quiesced(now);
        self.lun
            .unanswered
            .closed(self.shared.id, path, until, fence);
    }

    /// Records a write without a response as a lost write.
    pub(super) fn record_unanswered(
        &self,
        path: usize,
        tag: u64,
        op: &Op,
        now: Nanos,
        until: Nanos,
    ) {
        let Some((offset, len)) = op.range().filter(|_| op.changes_data()) else {
            return;
        };
        self.lun.unanswered.add(UnansweredWrite {
            queue: self.shared.id,
            tag,
            path,
            fence_key: self.links[path].fence_key,
            start: offset,
            end: offset + len,
            noted: now,
            until,
        });
        self.lun.wake_monitor();
    }
}

impl Drop for LunQueue {
    /// Waits for completions for a limited time. Writes unanswered after that may still be
    /// executed.
    fn drop(&mut self) {
        let until = self.lun.clock.now() + nanos(LEAVE_TIMEOUT);
        let _ = self.harvest();
        while self.links.iter().any(|l| !l.jobs.is_empty()) && self.lun.clock.now() < until {
            if self.sleep(TICK).is_err() || self.harvest().is_err() {
                break;
            }
        }
        let now = self.lun.clock.now();
        for path in 0..self.links.len() {
            for slot in self.links[path].jobs.clone() {
                let tag = self.jobs.tag(slot);
                let queue = self.links[path].queue.as_mut();
                if let Some(request) = queue.and_then(|queue| queue.withdraw(tag)) {
                    self.record_unanswered(path, tag, &request.op, now, OPEN);
                }
            }
            self.closed(path, now);
            let link = &mut self.links[path];
            link.uncount_suspicion();
            if link.queue.is_some() {
                link.path.links_up.fetch_sub(1, Relaxed);
            }
            let jobs = std::mem::take(&mut link.jobs);
            for slot in jobs {
                self.unload(path, slot);
            }
        }
        self.lun.forget_queue(self.shared.id);
    }
}
