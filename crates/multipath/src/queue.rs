//! Request queue of one thread on a LUN: selects a path for each request, enforces timeouts, and
//! resubmits requests that a path left unanswered.
//!
//! ```text
//!   submit ─► held? (a lost write over the same blocks) ─► waiting ─► dispatch ─► a link
//!                                                             ▲                     │
//!                                                             └── lost, silent ─────┤
//!   reap ◄──────────────────────────── ready ◄────────────────────── answered ──────┘
//! ```
//!
//! Nothing here connects, queries a target, or waits for another thread.

mod dispatch;
mod jobs;
mod lost;
mod requests;
mod selection;
mod sleeper;
mod verify;
mod watch;

use crate::access_query;
use crate::attributes::Attributes;
use crate::link::{Link, LinkState};
use crate::log::EventId;
use crate::mailbox::{LINK_DOWN, LINK_UP, QueueMessage, QueueShared};
use crate::policy::{Nanos, Outcome};
use crate::shared::Shared;
use crate::sync::lock;
use crate::trace::Record;
use crate::unanswered::OPEN;
use block::{BufPool, Completion, DeviceInfo, Error, ErrorKind, Op, Queue, Request, Result, Wait};
use jobs::{JobTable, Owner};
use layer_cpu::{Layer, within};
use lunpath::Connection;
use requests::Requests;
use selection::Selection;
use sleeper::{Sleeper, TICK};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;
use watch::Watch;

/// Maximum number of requests in one queue.
const CAPACITY: usize = 256;

/// Request queue of a LUN.
pub(crate) struct LunQueue {
    lun: Arc<Shared>,
    shared: Arc<QueueShared>,
    info: DeviceInfo,
    sleeper: Sleeper,
    links: Vec<Link>,
    selection: Selection,
    attributes: Arc<Attributes>,
    /// Generation of paths and attributes that was applied last.
    seen: u64,
    jobs: JobTable,
    /// Jobs that wait for a path, in order, and writes that wait for a lost write.
    waiting: VecDeque<u32>,
    held: Vec<u32>,
    /// Bytes in flight on all links.
    bytes: u64,
    requests: Requests,
    pools: Vec<BufPool>,
    watch: Watch,
    scratch: Scratch,
}

/// Completions and late tags of a link. Empty between calls, kept for their capacity.
#[derive(Default)]
struct Scratch {
    done: Vec<Completion>,
    late: Vec<u64>,
}

impl LunQueue {
    pub(crate) fn open(
        lun: Arc<Shared>,
        shared: Arc<QueueShared>,
        info: DeviceInfo,
    ) -> Result<LunQueue> {
        let sleeper =
            Sleeper::new(shared.waker.as_fd()).map_err(|e| Error::from_io(&info.name, e.into()))?;
        let now = lun.clock.now();
        // A queue stays on its thread, and an affine thread stays on its NUMA node.
        let own_cell = lun.topology.current_node();
        let mut queue = LunQueue {
            selection: Selection::new(lun.policy(), own_cell),
            attributes: lun.attributes(),
            seen: 0,
            lun,
            shared,
            sleeper,
            links: Vec::new(),
            jobs: JobTable::default(),
            waiting: VecDeque::new(),
            held: Vec::new(),
            bytes: 0,
            requests: Requests::default(),
            pools: Vec::new(),
            watch: Watch::new(now),
            scratch: Scratch::default(),
            info,
        };
        queue.apply_changes();
        Ok(queue)
    }

    /// Counts the connections that are up.
    pub(crate) fn links_up(&self) -> usize {
        self.links.iter().filter(|l| l.queue.is_some()).count()
    }

    // ---- paths ------------------------------------------------------------------------------

    /// Applies changes made by the control plane.
    fn apply_changes(&mut self) {
        let generation = self.lun.generation.load(Acquire);
        if generation == self.seen {
            return;
        }
        self.seen = generation;
        self.attributes = self.lun.attributes();
        let paths = self.lun.paths();
        for path in paths.iter().skip(self.links.len()) {
            self.links.push(Link::new(Arc::clone(path)));
        }
        let views = self.lun.views(&paths, self.selection.own_cell());
        self.selection.apply(self.attributes.load_bal_policy, views);
    }

    fn mail(&mut self, now: Nanos) {
        for mail in self.shared.take_messages() {
            self.apply_changes();
            match mail {
                QueueMessage::Connected(path, connection) => self.adopt(path, connection, now),
                QueueMessage::Drop(path) => {
                    self.close_link(path, "taken out of service", None, now)
                }
                QueueMessage::Recheck => {}
            }
        }
    }

    fn adopt(&mut self, path: usize, connection: Box<dyn Connection>, now: Nanos) {
        let Some(link) = self.links.get_mut(path) else {
            return;
        };
        if link.queue.is_some() || !link.path.eligible() {
            return self.mark_down(path);
        }
        let key = connection.fence_key();
        let opened = connection.open().and_then(|mut queue| {
            for pool in &self.pools {
                queue.register(pool);
            }
            if let Some(fd) = queue.wait_fd() {
                self.sleeper
                    .add_link(path, fd)
                    .map_err(|e| Error::from_io(&self.info.name, e.into()))?;
            }
            Ok(queue)
        });
        match opened {
            Ok(queue) => {
                link.queue = Some(queue);
                link.fence_key = key;
                link.is_exclusive = link.path.path.is_exclusive();
                link.state = LinkState::Up;
                link.heard = now;
                (link.since, link.wrote) = (now, false);
                link.broken = None;
                link.path.links_up.fetch_add(1, Relaxed);
                link.path.counters.online_events.fetch_add(1, Relaxed);
                self.shared.links[path].store(LINK_UP, Release);
            }
            Err(error) => {
                tracing::warn!(
                    name: "EVFS-0402",
                    path = link.path.path.name(), "cannot be used: {error}"
                );
                self.mark_down(path);
            }
        }
    }

    fn mark_down(&self, path: usize) {
        self.shared.links[path].store(LINK_DOWN, Release);
        self.lun.wake_monitor();
    }

    // ---- jobs -------------------------------------------------------------------------------

    /// Handles a job that ended without a result: resubmits it, or fails it after too many
    /// attempts.
    fn again(&mut self, slot: u32, op: Op, event: Option<EventId>, why: &str, now: Nanos) {
        let retries = self.attributes.max_retries;
        let job = self.jobs.job(slot);
        job.moved_by = event.or(job.moved_by);
        job.attempts += 1;
        if job.owner != Owner::Probe && job.attempts > retries {
            let why = format!(
                "given up after {retries} attempts on all paths; the last one failed: {why}"
            );
            let error = Error::new(ErrorKind::TimedOut, &self.info.name, why).in_op(&op);
            return self.finish(slot, op, Err(error), now);
        }
        self.requeue(slot, op);
    }

    /// Queues a job again; ends it if it is a probe.
    fn requeue(&mut self, slot: u32, op: Op) {
        // A stale completion must match no job, so each attempt has its own tag.
        self.jobs.begin_attempt(slot);
        let job = self.jobs.job(slot);
        let path = job.path;
        if job.owner == Owner::Probe {
            self.links[path].probing = false;
            self.jobs.remove(slot);
            return;
        }
        job.op = Some(op);
        self.links[path].path.counters.retried.fetch_add(1, Relaxed);
        self.waiting.push_front(slot);
    }

    fn finish(&mut self, slot: u32, op: Op, result: Result<()>, now: Nanos) {
        let job = self.jobs.remove(slot);
        if let Some(event) = job.moved_by {
            self.lun.log.stalled(event, now - job.first);
        }
        match job.owner {
            Owner::User(tag) => self.requests.complete(Completion { tag, op, result }),
            Owner::Probe => self.links[job.path].probing = false,
            Owner::Part(whole) => {
                if let (Ok(()), Some((path, seen))) = (&result, job.flush_of) {
                    self.links[path].path.flushed.fetch_max(seen, Release);
                }
                let parent = self.jobs.job(whole);
                parent.parts -= 1;
                if let Err(error) = result {
                    parent.failed.get_or_insert(error);
                }
                if parent.parts == 0 {
                    let failed = parent.failed.take();
                    self.finish(whole, Op::Flush, failed.map_or(Ok(()), Err), now);
                }
            }
        }
    }

    /// Splits a flush into one part for each path with writes that no flush has covered yet.
    fn split_flush(&mut self, slot: u32, now: Nanos) {
        let mut parts = Vec::new();
        let own = !self.attributes.shared_cache;
        for (index, link) in self.links.iter().enumerate() {
            let written = link.path.written.load(Acquire);
            if link.path.lost_writes.load(Acquire) {
                return self.fail_flush(slot, index, now);
            }
            // Without its own connection, this thread waits for one: another thread still has the
            // path.
            let asked = link.queue.is_some() || (own && link.path.wants_link(self.shared.only));
            if asked && written != link.path.flushed.load(Acquire) {
                parts.push((index, written));
            }
        }
        self.jobs.job(slot).op = None;
        self.jobs.job(slot).parts = parts.len().max(1) as u32;
        if parts.is_empty() {
            let part = self.jobs.add(Owner::Part(slot), Op::Flush, now);
            self.waiting.push_back(part);
        }
        for (path, written) in parts {
            let part = self.jobs.add(Owner::Part(slot), Op::Flush, now);
            self.jobs.job(part).flush_of = Some((path, written));
            self.waiting.push_back(part);
        }
    }

    /// Fails a flush, once, because acknowledged writes were lost.
    fn fail_flush(&mut self, slot: u32, path: usize, now: Nanos) {
        let shared = &self.links[path].path;
        shared.flushed.store(shared.written.load(Acquire), Release);
        shared.lost_writes.store(false, Release);
        let why = format!(
            "{} was lost with writes that were acknowledged but not flushed, and its cache is not \
             shared (shared_cache=false)",
            shared.path.name()
        );
        let error = Error::new(ErrorKind::Media, &self.info.name, why).in_op(&Op::Flush);
        self.finish(slot, Op::Flush, Err(error), now);
    }

    // ---- answers ----------------------------------------------------------------------------

    /// Reaps the links that have completions.
    fn harvest(&mut self) -> Result<()> {
        for path in 0..self.links.len() {
            let link = &mut self.links[path];
            let Some(queue) = link.queue.as_mut() else {
                continue;
            };
            if !(link.signalled || link.holds || queue.wait_fd().is_none()) {
                continue;
            }
            link.signalled = false;
            link.holds = false;
            let mut scratch = std::mem::take(&mut self.scratch);
            let reaped = queue.reap(Wait::Poll, &mut scratch.done);
            if let Err(error) = reaped {
                self.broke(path, &error);
            }
            let Some(queue) = self.links[path].queue.as_mut() else {
                continue;
            };
            // An idle connection can be lost as well, and no completion reports it.
            let lost = queue
                .lost_reason()
                .filter(|_| scratch.done.is_empty())
                .map(str::to_owned);
            queue.drain_late(&mut scratch.late);
            if let Some(sign) = queue.access_sign() {
                access_query::handle_hint(&self.lun, &self.links[path].path, sign);
            }
            let now = self.lun.clock.now();
            if !scratch.done.is_empty() || !scratch.late.is_empty() {
                self.heard(path, now);
            }
            if let (Some(why), None) = (lost, &self.links[path].broken) {
                let name = self.links[path].path.path.name();
                let event = self.lun.log.add(name, format!("lost: {why}"), 0);
                self.links[path].broken = Some((why, event));
            }
            for tag in scratch.late.drain(..) {
                self.links[path]
                    .path
                    .counters
                    .late_answers
                    .fetch_add(1, Relaxed);
                self.lun.unanswered.remove_answered(self.shared.id, tag);
            }
            for completion in scratch.done.drain(..) {
                self.answered(path, completion, now);
            }
            self.scratch = scratch;
            if let Some((why, event)) = self.links[path].broken.take() {
                self.close_link(path, &why, Some(event), now);
            }
        }
        Ok(())
    }

    /// Marks a link whose queue is unusable.
    fn broke(&mut self, path: usize, error: &Error) {
        let link = &mut self.links[path];
        let event = self
            .lun
            .log
            .add(link.path.path.name(), format!("lost: {error}"), 0);
        link.broken.get_or_insert((error.to_string(), event));
        link.signalled = true;
    }

    /// Records a sign of life of a path.
    fn heard(&mut self, path: usize, now: Nanos) {
        let longest = self.attributes.flap_penalty_secs;
        let link = &mut self.links[path];
        link.heard = now;
        if let LinkState::Suspect(since) = link.state {
            let back = *link.back.get_or_insert(now);
            let penalty = link.path.flaps.penalty_secs(longest, now);
            if ((now - back) as f64) < penalty * 1e9 {
                return;
            }
            link.state = LinkState::Up;
            link.uncount_suspicion();
            let silent = (now - since) / 1_000_000;
            let what = format!("answers again, {silent} ms after it was suspected");
            self.lun.log.add(link.path.path.name(), what, 0);
        }
    }

    fn answered(&mut self, path: usize, completion: Completion, now: Nanos) {
        let Completion { tag, op, result } = completion;
        let Some(slot) = self.jobs.find(tag) else {
            return;
        };
        let started = self.unload(path, slot);
        let link = &mut self.links[path];
        if let Some(at) = link.jobs.iter().position(|s| *s == slot) {
            link.jobs.swap_remove(at);
        }
        let job = self.jobs.job(slot);
        let (io, first, doubted) = (job.io, job.first, job.verifying);
        let outcome = Outcome::of(&result);
        self.selection.completed(path, io, started, now, outcome);
        let link = &mut self.links[path];
        let counters = &link.path.counters;
        let Err(error) = result else {
            let bytes = u64::from(io.bytes);
            match &op {
                Op::Read { .. } => {
                    counters.reads.fetch_add(1, Relaxed);
                    counters.bytes_read.fetch_add(bytes, Relaxed);
                }
                Op::Flush => {}
                _ => {
                    counters.writes.fetch_add(1, Relaxed);
                    counters.bytes_written.fetch_add(bytes, Relaxed);
                    link.path.written.fetch_add(1, Release);
                    link.wrote = true;
                }
            }
            link.latencies.add(io, now - started);
            if let Some((offset, _)) = op.range() {
                lock(&self.shared.recorder).record(Record {
                    at: started,
                    offset,
                    latency: now - started,
                    io,
                    path: path as u16,
                    ok: true,
                });
            }
            if let (true, Some(other)) = (io.write, doubted.filter(|other| *other != path)) {
                self.record_refusal(other, first, now);
            }
            return self.finish(slot, op, Ok(()), now);
        };
        counters.failures.fetch_add(1, Relaxed);
        match error.kind() {
            ErrorKind::PathLost => {
                let event = match &link.broken {
                    Some((_, event)) => *event,
                    None => {
                        let what = format!("lost: {error}");
                        let event = self.lun.log.add(link.path.path.name(), what, 0);
                        link.broken = Some((error.to_string(), event));
                        event
                    }
                };
                self.lun.log.moved(event);
                self.record_unanswered(path, tag, &op, now, OPEN);
                self.again(slot, op, Some(event), &error.to_string(), now);
            }
            ErrorKind::TimedOut | ErrorKind::Cancelled => {
                self.links[path]
                    .path
                    .counters
                    .timeouts
                    .fetch_add(1, Relaxed);
                self.record_unanswered(path, tag, &op, now, self.quiesced(now));
                self.again(slot, op, None, &error.to_string(), now);
            }
            ErrorKind::NotNow => self.not_now(path, slot, op, error, now),
            // Medium error or path error? Another path is tried; if both fail, the error is
            // reported.
            ErrorKind::Io | ErrorKind::ReadOnly | ErrorKind::Permission | ErrorKind::Busy
                if doubted.is_none_or(|d| d == path) && self.can_verify(path, io, slot) =>
            {
                self.retry_elsewhere(path, slot, op, now);
            }
            _ => self.finish(slot, op, Err(error), now),
        }
    }

    /// Blocks until a link is ready or the timer expires.
    fn sleep(&mut self, time: Duration) -> Result<()> {
        let (links, busy) = (&mut self.links, !self.requests.is_idle());
        let ready = |path| {
            if let Some(link) = links.get_mut::<usize>(path) {
                link.signalled = true;
            }
        };
        let slept = self.sleeper.sleep(time, busy, ready);
        slept.map_err(|e| Error::from_io(&self.info.name, e.into()))
    }
}

impl Queue for LunQueue {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn capacity(&self) -> usize {
        CAPACITY
    }

    fn in_flight(&self) -> usize {
        self.requests.in_flight()
    }

    fn submit(&mut self, request: Request) -> std::result::Result<(), Request> {
        let _here = within(Layer::Path);
        if self.requests.in_flight() >= CAPACITY {
            return Err(request);
        }
        let was_idle = self.requests.is_idle();
        self.requests.begin();
        let Request { tag, op } = request;
        let empty = op.range().is_some_and(|(_, len)| len == 0);
        let result = self.info.check(&op);
        if empty || result.is_err() {
            self.requests.complete(Completion { tag, op, result });
            return Ok(());
        }
        let now = self.lun.clock.now();
        if was_idle {
            self.watch.resume(now);
            self.note_no_path(now);
            self.links.iter_mut().for_each(Link::count_suspicion);
        }
        let hold = self.lun.unanswered.must_wait(&op, now);
        let flush = matches!(op, Op::Flush);
        let slot = self.jobs.add(Owner::User(tag), op, now);
        match (hold, flush) {
            (true, _) => self.held.push(slot),
            (false, true) => self.split_flush(slot, now),
            (false, false) => self.waiting.push_back(slot),
        }
        Ok(())
    }

    fn kick(&mut self) -> Result<()> {
        let _here = within(Layer::Path);
        let now = self.lun.clock.now();
        self.mail(now);
        self.apply_changes();
        self.dispatch(now);
        for path in 0..self.links.len() {
            let link = &mut self.links[path];
            if let (true, Some(queue)) = (link.fresh, link.queue.as_mut()) {
                link.fresh = false;
                let kicked = queue.kick();
                link.holds |= queue.holds_answers();
                if let Err(error) = kicked {
                    self.broke(path, &error);
                }
            }
        }
        Ok(())
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        let _here = within(Layer::Path);
        let until = match wait {
            Wait::AtMost(time) => Some(self.lun.clock.now().saturating_add(nanos(time))),
            Wait::Poll | Wait::Block => None,
        };
        self.sleeper.set_timer_runs(!self.requests.is_idle());
        self.kick()?;
        loop {
            self.harvest()?;
            let nothing = !self.requests.is_ready() && !self.requests.is_idle();
            let sleeps = nothing && wait != Wait::Poll && !self.links.iter().any(|l| l.holds);
            let left = until.map_or(TICK, |u| {
                Duration::from_nanos(u.saturating_sub(self.lun.clock.now())).min(TICK)
            });
            self.sleep(if sleeps { left } else { Duration::ZERO })?;
            self.harvest()?;
            let now = self.lun.clock.now();
            self.tick(now);
            // Requests that a completion made room for are sent before any thread sleeps.
            self.kick()?;
            let over = until.is_some_and(|u| now >= u);
            let enough = self.requests.is_ready() || self.requests.is_idle();
            if enough || wait == Wait::Poll || over {
                break;
            }
        }
        let count = self.requests.reap(done);
        if self.requests.is_idle() {
            self.links.iter_mut().for_each(Link::uncount_suspicion);
        }
        Ok(count)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.sleeper.fd())
    }

    fn register(&mut self, pool: &BufPool) {
        self.pools.push(pool.clone());
        for link in &mut self.links {
            if let Some(queue) = link.queue.as_mut() {
                queue.register(pool);
            }
        }
    }
}

fn nanos(time: Duration) -> Nanos {
    Nanos::try_from(time.as_nanos()).unwrap_or(Nanos::MAX)
}
