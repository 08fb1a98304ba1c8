//! Timeouts of a queue: silent paths, overdue requests, and requests that waited too long.

use super::LunQueue;
use super::jobs::Owner;
use super::sleeper::TICK;
use crate::link::{Link, LinkState};
use crate::mailbox::WaitingIo;
use crate::policy::Nanos;
use crate::sync::lock;
use block::{Buf, Error, ErrorKind, Op};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// If the thread did not tick for this long, it was not running or was busy elsewhere. That time is
/// not attributed to any path.
const OWN_STALL: Nanos = 25_000_000;
/// Minimum length in bytes of the read that probes a silent path.
const PROBE_BYTES: usize = 4096;
/// Interval between probes of a suspect path that answers.
const PROBE_PAUSE: Nanos = 100_000_000;
/// Interval between updates of the latency quantiles.
const LEARN_EVERY: Nanos = 500_000_000;
/// Maximum number of waiting I/Os that are listed.
const SHOWN_MAX: usize = 64;

/// Times at which a queue checks its links, and since when it lacks them.
pub(super) struct Watch {
    /// Time of the last tick, and of the last latency update.
    ticked: Nanos,
    learned: Nanos,
    /// Time since which no link is up, and since which none is up that takes writes.
    no_path_since: Option<Nanos>,
    unwritable_since: Option<Nanos>,
}

impl Watch {
    /// Creates the times of a queue that has no link yet.
    pub(super) fn new(now: Nanos) -> Watch {
        Watch {
            ticked: now,
            learned: now,
            no_path_since: Some(now),
            unwritable_since: None,
        }
    }

    /// Continues after the queue was idle.
    pub(super) fn resume(&mut self, now: Nanos) {
        self.ticked = now;
    }
}

impl LunQueue {
    pub(super) fn tick(&mut self, now: Nanos) {
        let away = now - self.watch.ticked;
        if away < TICK.as_nanos() as Nanos {
            return;
        }
        self.watch.ticked = now;
        if away > OWN_STALL {
            // Completions that arrived during the stall could not be received.
            for link in &mut self.links {
                link.heard = now.min(link.heard + away);
            }
            for job in self.jobs.iter_mut() {
                job.started = now.min(job.started + away);
            }
        }
        if now - self.watch.learned > LEARN_EVERY {
            self.watch.learned = now;
            self.links.iter_mut().for_each(Link::learn);
        }
        let attributes = Arc::clone(&self.attributes);
        let (silence, give_up, deadline) = (
            attributes.silence().as_nanos() as Nanos,
            u64::from(attributes.path_fail_secs) * 1_000_000_000,
            u64::from(attributes.esd_secs) * 1_000_000_000,
        );
        for path in 0..self.links.len() {
            self.watch_link(path, silence, give_up, deadline, now);
        }
        self.release_held(now);
        self.give_up_waiting(now);
        self.show_waiting(now);
    }

    fn watch_link(
        &mut self,
        path: usize,
        silence: Nanos,
        give_up: Nanos,
        deadline: Nanos,
        now: Nanos,
    ) {
        let link = &self.links[path];
        let since = now.saturating_sub(deadline);
        if link.queue.is_some() && self.lun.unanswered.overdue(self.shared.id, path, since) {
            let why = format!("a write had no answer for {} s", deadline / 1_000_000_000);
            return self.close_link(path, &why, None, now);
        }
        let silent = now.saturating_sub(link.heard);
        let suspect = matches!(link.state, LinkState::Suspect(_));
        if link.queue.is_some() && suspect && link.jobs.is_empty() {
            // The path answers again, and must do so for a while.
            if silent > PROBE_PAUSE {
                self.links[path].heard = now;
                self.probe(path, now);
            }
            return;
        }
        if link.queue.is_none() || link.jobs.is_empty() {
            return;
        }
        let is_closing = self.lun.abandoned.load(Relaxed);
        let transient = u64::from(self.attributes.transient_secs) * 1_000_000_000;
        let waits = self.attributes.infinite_retries_enable || silent <= transient;
        if link.is_exclusive && self.links.len() == 1 && waits && !is_closing {
            // Closing would let other clients in, and no other path could take the I/O.
            return;
        }
        if silent > give_up {
            let why = format!(
                "silent for {} s: closing the connection",
                silent / 1_000_000_000
            );
            return self.close_link(path, &why, None, now);
        }
        let patience = link.suspect_after(silence);
        if suspect {
            if silent > patience {
                self.links[path].back = None;
            }
            return self.probe(path, now);
        }
        if silent > patience && self.another_answers(path, patience / 2, now) {
            self.suspect(path, silent, now);
            return;
        }
        let overdue = |slot: &u32| {
            let job = self.jobs.get(*slot);
            job.is_some_and(|j| now.saturating_sub(j.started) > deadline)
        };
        if self.links[path].jobs.iter().any(overdue) {
            self.links[path]
                .path
                .counters
                .timeouts
                .fetch_add(1, Relaxed);
            let why = format!("an I/O took more than {} s", deadline / 1_000_000_000);
            self.close_link(path, &why, None, now);
        }
    }

    /// Checks whether another path is up and not silent itself. If all paths are silent, the cause
    /// is not the path, and moving the I/O would make matters worse.
    fn another_answers(&self, path: usize, within: Nanos, now: Nanos) -> bool {
        let heeded = self.attributes.alua_enabled;
        let mut others = self.links.iter().enumerate().filter(|(i, _)| *i != path);
        self.shared.only.is_none()
            && others.any(|(_, l)| {
                l.serves(heeded) && (l.jobs.is_empty() || now - l.heard.min(now) < within)
            })
    }

    fn suspect(&mut self, path: usize, silent: Nanos, now: Nanos) {
        let longest = self.attributes.flap_penalty_secs;
        let link = &mut self.links[path];
        link.state = LinkState::Suspect(now);
        link.back = None;
        if link.path.links_suspect.load(Relaxed) == 0 {
            link.path.flaps.record(link.heard, longest, now);
        }
        link.count_suspicion();
        link.path.counters.suspect_events.fetch_add(1, Relaxed);
        let why = format!(
            "suspect: silent for {} ms with I/O outstanding",
            silent / 1_000_000
        );
        self.withdraw_all(path, &why, None, now);
        self.probe(path, now);
    }

    /// Probes a path on its existing connection.
    pub(super) fn probe(&mut self, path: usize, now: Nanos) {
        if self.links[path].probing {
            return;
        }
        let op = Op::Read {
            offset: 0,
            bufs: Buf::zeroed(PROBE_BYTES.max(self.info.logical_block_size as usize)).into(),
        };
        let slot = self.jobs.add(Owner::Probe, op, now);
        let heard = self.links[path].heard;
        if !self.send(slot, path, now) {
            self.jobs.remove(slot);
            return;
        }
        let link = &mut self.links[path];
        // The silence began before the probe.
        link.heard = heard;
        link.probing = true;
        if let Some(queue) = link.queue.as_mut() {
            let _ = queue.kick();
        }
    }

    /// Releases writes that waited for a lost write.
    fn release_held(&mut self, now: Nanos) {
        if self.held.is_empty() {
            return;
        }
        let abandoned = self.lun.abandoned.load(Relaxed);
        for slot in std::mem::take(&mut self.held) {
            if abandoned {
                let op = self.jobs.job(slot).op.take().unwrap_or(Op::Flush);
                let why = "an older write to the same blocks may still arrive, and the LUN is \
                           being closed by force";
                let error = Error::new(ErrorKind::PathLost, &self.info.name, why).in_op(&op);
                self.finish(slot, op, Err(error), now);
                continue;
            }
            let job = self.jobs.get(slot);
            let op = job.and_then(|j| j.op.as_ref());
            if op.is_some_and(|op| self.lun.unanswered.must_wait(op, now)) {
                self.held.push(slot)
            } else {
                self.waiting.push_back(slot)
            }
        }
        self.shared.held.store(self.held.len() as u32, Relaxed);
    }

    /// Returns how long I/O waits for a path.
    pub(super) fn grace(&self) -> Nanos {
        if self.attributes.infinite_retries_enable {
            Nanos::MAX
        } else {
            u64::from(self.attributes.transient_secs) * 1_000_000_000
        }
    }

    /// Records since when no link carries I/O, or writes.
    pub(super) fn note_no_path(&mut self, now: Nanos) {
        let heeded = self.attributes.alua_enabled;
        let carries = |l: &&Link| l.queue.is_some() && (!heeded || l.path.access.carries());
        let (mut any, mut writable) = (false, false);
        for link in self.links.iter().filter(carries) {
            any = true;
            writable |= !link.path.read_only.load(Relaxed);
        }
        let note = |there: bool, since: &mut Option<Nanos>| {
            if there {
                *since = None
            } else {
                _ = since.get_or_insert(now)
            }
        };
        note(any, &mut self.watch.no_path_since);
        note(writable, &mut self.watch.unwritable_since);
    }

    /// Fails jobs that have waited too long for a path. Writes wait for a writable path.
    fn give_up_waiting(&mut self, now: Nanos) {
        self.note_no_path(now);
        let attributes = Arc::clone(&self.attributes);
        let grace = self.grace();
        let over = |since: Option<Nanos>| since.is_some_and(|s| now.saturating_sub(s) >= grace);
        let (reads, writes) = (
            over(self.watch.no_path_since),
            over(self.watch.unwritable_since),
        );
        if !(reads || writes) {
            return;
        }
        let what = if reads { "" } else { " that accepts writes" };
        let why = if self.lun.abandoned.load(Relaxed) {
            "no path to the LUN, and it is being closed by force".to_owned()
        } else {
            format!(
                "no path to the LUN{what} for {} s (transient_secs); `evfs lun show` says why \
                 each is down",
                attributes.transient_secs
            )
        };
        for slot in std::mem::take(&mut self.waiting) {
            let job = self.jobs.job(slot);
            if !reads && !job.io.write {
                self.waiting.push_back(slot);
                continue;
            }
            let op = job.op.take().unwrap_or(Op::Flush);
            let error = Error::new(ErrorKind::PathLost, &self.info.name, &why).in_op(&op);
            self.finish(slot, op, Err(error), now);
        }
    }

    /// Publishes the waiting I/Os for status queries.
    fn show_waiting(&self, now: Nanos) {
        let mut shown = lock(&self.shared.shown);
        shown.clear();
        let no_path = match self.watch.no_path_since {
            Some(_) => "no path carries I/O",
            None => "every path is at its limit or cannot carry this I/O",
        };
        let held = "an older write to the same blocks was lost and may still arrive";
        let waiting = self.waiting.iter().map(|slot| (slot, no_path));
        let held = self.held.iter().map(|slot| (slot, held));
        for (slot, why) in waiting.chain(held).take(SHOWN_MAX) {
            let job = self.jobs.get(*slot);
            let Some((job, op)) = job.and_then(|j| Some((j, j.op.as_ref()?))) else {
                continue;
            };
            let (offset, len) = op.range().unwrap_or((0, 0));
            shown.push(WaitingIo {
                op: op.kind().to_string(),
                offset,
                len,
                age_ms: now.saturating_sub(job.first) / 1_000_000,
                why,
            });
        }
    }
}
