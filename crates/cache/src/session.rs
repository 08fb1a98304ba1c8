//! A session: one thread's access to a volume, with a queue interface and blocking calls on top of
//! it.
//!
//! ```text
//!            submit          step              I/O, or a wait for other sessions         reap
//!   caller ─────────► job ─────────► done ◄──────────────────────────────── parked ─────► caller
//! ```
//!
//! A request becomes a job. A job is stepped when it is submitted and whenever an event it waits
//! for may have happened; a step does everything that is possible at once, submits the necessary
//! I/O, and never blocks. A job waits either for its own I/O or for another session: a page that
//! another session is loading, a frame, a range that is locked, or a page under write-back. In the
//! latter case it is parked, and the session's waker is registered for that event.
//!
//! **Invariant:** every page that a session starts to load is published or aborted by that session,
//! it completes every write-back it starts, and no request moves to another thread. The owner of a
//! session with requests in flight must therefore keep reaping; a session that is dropped finishes
//! its I/O first.

mod blocking;
mod bounce;
mod completion;
mod direct;
mod io;
mod job;
mod jobs;
mod load;
mod read;
mod sleeper;
mod sync;
mod truncate;
mod work;
mod write;

use crate::frames::PAGE_BYTES;
use crate::open::OpenFile;
use crate::policy::{Entry, FrameNo};
use crate::tree::VolumeShared;
use block::{Bufs, Completion, Error, Op, Request, Result, Wait, Waker, about_to_sleep};
use io::PagerLink;
use job::{Job, Target};
use jobs::Jobs;
use sleeper::Sleeper;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use work::{Task, Work};

/// Requests that may be submitted and not yet reaped.
const CAPACITY: usize = 128;

/// Whether the data of a request passes through the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheMode {
    /// Through the cache.
    Cached,
    /// Directly between the caller's buffers and the pager.
    Direct,
}

/// One thread's access to a volume.
pub struct Session {
    shared: Arc<VolumeShared>,
    pager: PagerLink,
    sleeper: Sleeper,
    jobs: Jobs,
    ready: VecDeque<Completion>,
    /// Result of the blocking call.
    outcome: Option<Result<Option<Op>>>,
    /// Frames of this session that belong to no page.
    spare: Vec<FrameNo>,
    /// NUMA node of the thread that pages are loaded for, if not the session's own.
    near: Option<u32>,
    submitted: usize,
    /// Memory for completions of the pager.
    completions: Vec<Completion>,
}

impl Session {
    pub(crate) fn open(below: Arc<VolumeShared>) -> Result<Session> {
        let waker = Waker::new().map_err(|e| Error::from_io(&below.info.name, e))?;
        Session::with_waker(below, Arc::new(waker))
    }

    pub(crate) fn with_waker(below: Arc<VolumeShared>, waker: Arc<Waker>) -> Result<Session> {
        let queue = below.pager.queue()?;
        let sleeper = Sleeper::new(&below.info.name, waker, queue.wait_fd())?;
        Ok(Session {
            shared: below,
            pager: PagerLink::new(queue),
            sleeper,
            jobs: Jobs::default(),
            ready: VecDeque::new(),
            outcome: None,
            spare: Vec::new(),
            near: None,
            submitted: 0,
            completions: Vec::new(),
        })
    }

    /// As [`block::Queue::capacity`].
    pub fn capacity(&self) -> usize {
        CAPACITY
    }

    /// As [`block::Queue::in_flight`].
    pub fn in_flight(&self) -> usize {
        self.submitted
    }

    /// Takes a request on an open file, as [`block::Queue::submit`]. A read beyond the end of the
    /// file fills with zeros; a write beyond it makes the file longer. With [`CacheMode::Direct`],
    /// offset and length must be multiples of the pager's block size.
    pub fn submit(
        &mut self,
        open: &mut OpenFile,
        mode: CacheMode,
        request: Request,
    ) -> std::result::Result<(), Request> {
        if self.submitted >= CAPACITY {
            return Err(request);
        }
        self.submitted += 1;
        let Request { tag, mut op } = request;
        let (mut entry, mut done) = (Entry::Read, 0);
        match &mut op {
            Op::Read { offset, bufs } if mode == CacheMode::Cached => {
                let (offset, len) = (*offset, bufs.total_len() as u64);
                done = read_hits(open, offset, bufs);
                let hit = done == len || !open.is_absent(offset + done);
                entry = open.accessed(offset, len, hit);
                if done == len {
                    if open.vnode().drops_behind() {
                        open.vnode().drop_behind(offset, len);
                    }
                    let result = Ok(());
                    self.ready.push_back(Completion { tag, op, result });
                    return Ok(());
                }
            }
            Op::Write { offset, bufs, .. } if mode == CacheMode::Cached => {
                entry = open.writes(*offset, bufs.total_len() as u64);
            }
            _ => {}
        }
        let mut work = Work::of(&op, open.vnode(), mode);
        let job = Job::of_request(&open.state, Some(tag), op);
        if let Work::Read(pages) = &mut work {
            pages.next += (job.offset + done) / PAGE - job.offset / PAGE;
        }
        let job = Job { entry, ..job };
        self.jobs.add(Task { job, work });
        self.step_runnable();
        Ok(())
    }

    /// Accepts a request whose result is already known.
    pub(crate) fn answer(&mut self, request: Request, result: Result<()>) {
        let Request { tag, op } = request;
        self.submitted += 1;
        self.ready.push_back(Completion { tag, op, result });
    }

    /// As [`block::Queue::kick`].
    pub fn kick(&mut self) -> Result<()> {
        self.pager.kick()
    }

    /// As [`block::Queue::reap`].
    pub fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        let until = wait.deadline();
        loop {
            self.poll(Wait::Poll)?;
            let count = self.ready.len();
            if count > 0 {
                done.extend(self.ready.drain(..));
                self.submitted -= count;
                return Ok(count);
            }
            let late = until.is_some_and(|until| Instant::now() >= until);
            if self.submitted == 0 || wait == Wait::Poll || late {
                return Ok(0);
            }
            self.sleep(until)?;
        }
    }

    /// As [`block::Queue::wait_fd`].
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.sleeper.fd()
    }

    /// As [`block::Queue::holds_answers`].
    pub fn holds_answers(&self) -> bool {
        !self.ready.is_empty() || self.pager.is_deaf()
    }

    /// Processes completions and wake-ups, and steps the jobs that they concern.
    pub(crate) fn poll(&mut self, wait: Wait) -> Result<()> {
        let mut wait = wait;
        loop {
            self.take_completions(wait)?;
            self.jobs.unpark(self.sleeper.waker.take());
            self.release_delayed();
            self.step_runnable();
            self.pager.send();
            // Requests submitted just now may have completed already, which no descriptor signals.
            if !self.pager.has_sent() {
                break;
            }
            wait = Wait::Poll;
        }
        if let Some(due) = self.jobs.next_due() {
            self.sleeper.arm(due);
        }
        Ok(())
    }

    fn take_completions(&mut self, wait: Wait) -> Result<()> {
        let mut completions = std::mem::take(&mut self.completions);
        let reaped = self.pager.reap(wait, &mut completions);
        for completion in completions.drain(..) {
            self.completed(completion);
        }
        self.completions = completions;
        reaped
            .map(drop)
            .inspect_err(|error| self.fail_everything(error))
    }

    /// Blocks until an event may have happened.
    fn sleep(&mut self, until: Option<Instant>) -> Result<()> {
        about_to_sleep();
        if self.pager.is_full() || self.pager.is_deaf() {
            return self.poll(Wait::Block);
        }
        if self.jobs.wait_for_io_only() && self.pager.in_flight() {
            let wait = match until {
                Some(until) => Wait::AtMost(until.saturating_duration_since(Instant::now())),
                None => Wait::Block,
            };
            return self.poll(wait);
        }
        self.sleep_on_all(until)
    }

    /// Blocks until a descriptor signals that an event may have happened.
    fn sleep_on_all(&mut self, until: Option<Instant>) -> Result<()> {
        self.pager.kick()?;
        self.sleeper.sleep(until)
    }

    /// Waits at most `time` for I/O of the session or a wake-up, and processes it.
    pub(crate) fn idle(&mut self, time: Duration) -> Result<()> {
        self.poll(Wait::Poll)?;
        let until = Instant::now().checked_add(time);
        if self.pager.is_full() || self.pager.is_deaf() {
            self.poll(Wait::Block)?;
        } else {
            self.sleep_on_all(until)?;
        }
        self.poll(Wait::Poll)
    }

    fn release_delayed(&mut self) {
        if !self.jobs.has_delayed() {
            return;
        }
        let now = Instant::now();
        while let Some(id) = self.jobs.next_released(now) {
            self.finish(id);
        }
        // The timer is armed again if a timed event is left.
        self.sleeper.reset();
    }

    fn step_runnable(&mut self) {
        while let Some((id, mut task)) = self.jobs.take_runnable() {
            let done = self.step(id, &mut task);
            self.jobs.restore(id, task);
            if done {
                self.job_done(id);
            }
        }
        if !self.spare.is_empty() {
            self.shared.core.pool.put(self.spare.drain(..));
        }
    }

    /// Steps a job; returns whether it is done.
    fn step(&mut self, id: usize, task: &mut Task) -> bool {
        let job = &mut task.job;
        let done = match &mut task.work {
            Work::Read(pages) => self.step_read(id, job, pages),
            Work::Write(write) => self.step_write(id, job, write),
            Work::Sync(sync) => self.step_sync(id, job, sync),
            Work::Direct(direct) => self.step_direct(id, job, direct),
            Work::Truncate(truncation) => self.step_truncate(id, job, truncation),
        };
        done && job.in_flight == 0
    }

    /// Parks a job that waits for a frame. `true`: it has waited too long and has failed.
    fn park_for_frame(&mut self, id: usize, job: &mut Job) -> bool {
        let since = *job.starved_since.get_or_insert_with(Instant::now);
        if since.elapsed() > self.shared.core.limits.frame_timeout {
            let why = self.shared.failing().unwrap_or_else(|| {
                let detail = "every page of the cache is in use or cannot be written back";
                Error::new(block::ErrorKind::Busy, &self.shared.info.name, detail)
            });
            job.fail(why);
            return true;
        }
        self.shared.core.pool.waiters.register(&self.sleeper.waker);
        self.jobs.park_starved(id);
        false
    }

    /// Counts the loads and the write-backs in flight, in runs of pages.
    pub(crate) fn runs_in_flight(&self) -> (usize, usize) {
        self.pager.runs()
    }

    /// Ends a job that has nothing left to do, now or, with too many dirty pages, after a delay.
    fn job_done(&mut self, id: usize) {
        let task = self.jobs.get(id).expect("it was stepped just now");
        if let Some(pages) = task.pages_written() {
            let pause = self.shared.core.throttle(pages, &self.shared);
            if !pause.is_zero() {
                let ms = pause.as_millis() as u64;
                crate::stats::add(&task.job.open.counters.throttled_ms, ms);
                return self.jobs.delay(id, pause);
            }
        }
        self.finish(id);
    }

    fn finish(&mut self, id: usize) {
        let Task { job, work } = self.jobs.remove(id).expect("a job ends once");
        if job.tag.is_some() && matches!(work, Work::Read(_)) && job.open.vnode.drops_behind() {
            job.open.vnode.drop_behind(job.offset, job.len);
        }
        let result = job.result();
        match (job.tag, job.target) {
            (Some(tag), Target::Op(op)) => {
                let result = result.map_err(|e| e.in_op(&op));
                self.ready.push_back(Completion { tag, op, result });
            }
            (_, Target::Op(op)) => self.outcome = Some(result.map(|()| Some(op))),
            (_, Target::Memory(_) | Target::Nothing) => self.outcome = Some(result.map(|()| None)),
        }
    }
}

/// Copies the resident pages at the beginning of a read, and returns the number of bytes copied.
fn read_hits(open: &mut OpenFile, offset: u64, bufs: &mut Bufs) -> u64 {
    if offset.saturating_add(bufs.total_len() as u64) > open.vnode().size() {
        return 0;
    }
    let mut done = 0;
    for buf in bufs.iter_mut() {
        let copied = open.copy_hits(offset + done, buf);
        done += copied as u64;
        if copied < buf.len() {
            break;
        }
    }
    done
}

impl Drop for Session {
    fn drop(&mut self) {
        // Parked jobs are abandoned; I/O in flight is waited for.
        self.jobs.abort_parked();
        while self.pager.is_busy() {
            if self.poll(Wait::Block).is_err() {
                return;
            }
            self.jobs.abort_parked();
        }
    }
}

/// Page size in bytes, as an offset type.
const PAGE: u64 = PAGE_BYTES as u64;
