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
mod direct;
mod io;
mod job;
mod load;
mod read;
mod sync;
mod truncate;
mod write;

use crate::frames::PAGE_BYTES;
use crate::open::OpenFile;
use crate::pager::{FileId, PagerQueue};
use crate::policy::{Entry, FrameNo};
use crate::tree::VolumeShared;
use crate::wait::Waker;
use block::{Bufs, Completion, Error, Op, Request, Result, Wait};
use io::Io;
use job::{Job, Target, Work};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Requests that may be submitted and not yet reaped.
const CAPACITY: usize = 128;
/// Polling interval of a session that waits for a frame: releasing a hold on a page wakes no
/// session.
const STARVED: Duration = Duration::from_millis(5);

/// One thread's access to a volume.
pub struct Session {
    shared: Arc<VolumeShared>,
    queue: Box<dyn PagerQueue>,
    waker: Arc<Waker>,
    /// Readable when the pager's queue, the waker or the timer is.
    all: OwnedFd,
    timer: OwnedFd,
    jobs: Slots<Job>,
    ios: Slots<Io>,
    /// Requests that the pager's queue had no room for.
    outgoing: VecDeque<(FileId, Request)>,
    /// Jobs to step.
    runnable: Vec<usize>,
    /// Jobs that wait for other sessions.
    parked: Vec<usize>,
    /// Completed jobs whose completion is delayed, because there are too many dirty pages.
    held: Vec<(Instant, usize)>,
    ready: VecDeque<Completion>,
    /// Result of the blocking call.
    outcome: Option<Result<Option<Op>>>,
    /// A job waits for a frame.
    starved: bool,
    spare: Vec<FrameNo>,
    /// NUMA node of the thread that pages are loaded for, if not the session's own.
    near: Option<u32>,
    /// A request was submitted to the pager since the last reap.
    sent: bool,
    completions: Vec<Completion>,
    submitted: usize,
}

impl Session {
    pub(crate) fn open(below: Arc<VolumeShared>) -> Result<Session> {
        let waker = Waker::new()?;
        Session::with_waker(below, waker)
    }

    pub(crate) fn with_waker(below: Arc<VolumeShared>, waker: Arc<Waker>) -> Result<Session> {
        let queue = below.pager.queue()?;
        let failed = |e: rustix::io::Errno| Error::from_io(&below.info.name, e.into());
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer =
            rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags).map_err(failed)?;
        let all = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let fds = [Some(waker.fd()), Some(timer.as_fd()), queue.wait_fd()];
        for (tag, fd) in fds.into_iter().enumerate() {
            if let Some(fd) = fd {
                let data = epoll::EventData::new_u64(tag as u64);
                epoll::add(&all, fd, data, epoll::EventFlags::IN).map_err(failed)?;
            }
        }
        Ok(Session {
            shared: below,
            queue,
            waker,
            all,
            timer,
            jobs: Slots::default(),
            ios: Slots::default(),
            outgoing: VecDeque::new(),
            runnable: Vec::new(),
            parked: Vec::new(),
            held: Vec::new(),
            ready: VecDeque::new(),
            outcome: None,
            starved: false,
            spare: Vec::new(),
            near: None,
            sent: false,
            completions: Vec::new(),
            submitted: 0,
        })
    }

    /// Returns the number of requests that may be submitted and not yet reaped.
    pub fn capacity(&self) -> usize {
        CAPACITY
    }

    /// Returns the number of requests that are submitted and not yet reaped.
    pub fn in_flight(&self) -> usize {
        self.submitted
    }

    /// Takes a request on a file, or returns it when [`Session::capacity`] requests are in flight.
    /// A read beyond the end of the file fills with zeros; a write beyond it makes the file longer.
    /// Does not block. `direct`: bypasses the cache; offset and length must be multiples of the
    /// pager's block size.
    pub fn submit(
        &mut self,
        open: &mut OpenFile,
        direct: bool,
        request: Request,
    ) -> std::result::Result<(), Request> {
        if self.submitted >= CAPACITY {
            return Err(request);
        }
        self.submitted += 1;
        let Request { tag, mut op } = request;
        let (mut entry, mut done) = (Entry::Read, 0);
        match &mut op {
            Op::Read { offset, bufs } if !direct => {
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
            Op::Write { offset, bufs, .. } if !direct => {
                entry = open.writes(*offset, bufs.total_len() as u64);
            }
            _ => {}
        }
        let mut job = Job::of_request(&open.state, Some(tag), op, direct);
        if let Work::Read(pages) = &mut job.work {
            pages.next += (job.offset + done) / PAGE - job.offset / PAGE;
        }
        let id = self.jobs.insert(Job { entry, ..job });
        self.runnable.push(id);
        self.step_runnable();
        Ok(())
    }

    /// Accepts a request whose result is already known.
    pub(crate) fn answer(&mut self, request: Request, result: Result<()>) {
        let Request { tag, op } = request;
        self.submitted += 1;
        self.ready.push_back(Completion { tag, op, result });
    }

    /// Submits the staged requests to the pager.
    ///
    /// # Errors
    /// Fatal: the pager's queue must be dropped.
    pub fn kick(&mut self) -> Result<()> {
        self.send();
        self.queue.kick()
    }

    /// Kicks, then appends completions to `done` and returns their number.
    ///
    /// # Errors
    /// Fatal: the pager's queue must be dropped.
    pub fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        let until = match wait {
            Wait::AtMost(time) => Instant::now().checked_add(time),
            Wait::Poll | Wait::Block => None,
        };
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

    /// Returns a descriptor that becomes readable when a reap may return completions.
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.all.as_fd()
    }

    /// Reports whether completions may be ready without [`Session::wait_fd`] being readable.
    pub fn holds_answers(&self) -> bool {
        !self.ready.is_empty() || self.queue.wait_fd().is_none() && self.queue.in_flight() > 0
    }

    /// Processes completions and wake-ups, and steps the jobs that they concern.
    pub(crate) fn poll(&mut self, wait: Wait) -> Result<()> {
        let mut wait = wait;
        loop {
            self.take_completions(wait)?;
            if self.waker.take() || self.starved {
                self.starved = false;
                self.runnable.append(&mut self.parked);
            }
            self.release_held();
            self.step_runnable();
            self.send();
            // Requests submitted just now may have completed already, which no descriptor signals.
            if !std::mem::take(&mut self.sent) {
                break;
            }
            wait = Wait::Poll;
        }
        self.arm_timer();
        Ok(())
    }

    fn take_completions(&mut self, wait: Wait) -> Result<()> {
        self.send();
        self.sent = false;
        let mut completions = std::mem::take(&mut self.completions);
        let reaped = self.queue.reap(wait, &mut completions);
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
        let alone = self.parked.is_empty() && self.held.is_empty();
        if self.sleeps_deaf() {
            return self.poll(Wait::Block);
        }
        if alone && self.queue.in_flight() > 0 {
            let wait = match until {
                Some(until) => Wait::AtMost(until.saturating_duration_since(Instant::now())),
                None => Wait::Block,
            };
            return self.poll(wait);
        }
        self.poll_all(until)
    }

    /// Checks whether the awaited event makes no descriptor readable.
    fn sleeps_deaf(&self) -> bool {
        !self.outgoing.is_empty() || self.queue.wait_fd().is_none() && self.queue.in_flight() > 0
    }

    /// Blocks until a descriptor signals that an event may have happened.
    fn poll_all(&mut self, until: Option<Instant>) -> Result<()> {
        self.queue.kick()?;
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.map(timespec);
        match poll(
            &mut [PollFd::new(&self.all, PollFlags::IN)],
            timeout.as_ref(),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(Error::from_io(&self.shared.info.name, e.into())),
        }
    }

    /// Computes the time until the next timed event: a delayed completion, or a retry for a frame.
    fn next_due(&self) -> Option<Duration> {
        let now = Instant::now();
        let held = self
            .held
            .iter()
            .map(|(at, _)| at.saturating_duration_since(now));
        held.chain(self.starved.then_some(STARVED)).min()
    }

    fn arm_timer(&mut self) {
        if self.held.is_empty() && !self.starved {
            return;
        }
        // A zero value would disarm the timer.
        let due = self
            .next_due()
            .unwrap_or(STARVED)
            .max(Duration::from_nanos(1));
        let setting = Itimerspec {
            it_interval: timespec(Duration::ZERO),
            it_value: timespec(due),
        };
        let flags = TimerfdTimerFlags::empty();
        // Setting a valid timer cannot fail; it also makes the timer unreadable until it is due.
        let _ = rustix::time::timerfd_settime(&self.timer, flags, &setting);
    }

    fn release_held(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut index = 0;
        while index < self.held.len() {
            if self.held[index].0 <= now {
                let (_, id) = self.held.swap_remove(index);
                self.finish(id);
            } else {
                index += 1;
            }
        }
        // Makes the timer unreadable when no timed event is left.
        let _ = rustix::io::read(&self.timer, &mut [0u8; 8]);
    }

    fn step_runnable(&mut self) {
        while let Some(id) = self.runnable.pop() {
            if self.jobs.get(id).is_none_or(|job| job.held) {
                continue;
            }
            let mut job = self.jobs.take(id).expect("it is there");
            let done = self.step(id, &mut job);
            self.jobs.restore(id, job);
            if done {
                self.job_done(id);
            }
        }
        if !self.spare.is_empty() {
            self.shared.core.pool.put(self.spare.drain(..));
        }
    }

    /// Steps a job; returns whether it is done.
    fn step(&mut self, id: usize, job: &mut Job) -> bool {
        let mut work = std::mem::replace(&mut job.work, Work::Nothing);
        let done = match &mut work {
            Work::Nothing => true,
            Work::Read(pages) => self.step_read(id, job, pages),
            Work::Write(write) => self.step_write(id, job, write),
            Work::Sync(sync) => self.step_sync(id, job, sync),
            Work::Direct(through) => self.step_through(id, job, through),
            Work::Truncate(cut) => self.step_cut(id, job, cut),
        };
        job.work = work;
        done && job.in_flight == 0
    }

    /// Parks a job that waits for another session; the waker is already registered.
    fn park(&mut self, id: usize) {
        if !self.parked.contains(&id) {
            self.parked.push(id);
        }
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
        self.shared.core.pool.waiters.register(&self.waker);
        self.starved = true;
        self.park(id);
        false
    }

    /// Ends a job that has nothing left to do, now or, with too many dirty pages, after a delay.
    fn job_done(&mut self, id: usize) {
        let job = self.jobs.get(id).expect("it was stepped just now");
        if let Some(pages) = job.pages_written() {
            let pause = self.shared.core.throttle(pages, &self.shared);
            if !pause.is_zero() {
                let ms = pause.as_millis() as u64;
                crate::stats::add(&job.open.counters.throttled_ms, ms);
                self.held.push((Instant::now() + pause, id));
                self.jobs.get_mut(id).expect("as above").held = true;
                return;
            }
        }
        self.finish(id);
    }

    fn finish(&mut self, id: usize) {
        let job = self.jobs.remove(id).expect("a job ends once");
        if job.tag.is_some() && matches!(job.work, Work::Read(_)) && job.open.vnode.drops_behind() {
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
        for id in std::mem::take(&mut self.parked) {
            if let Some(job) = self.jobs.remove(id) {
                job.abort();
            }
        }
        while self.queue.in_flight() > 0 || !self.outgoing.is_empty() {
            if self.poll(Wait::Block).is_err() {
                return;
            }
            for id in std::mem::take(&mut self.parked) {
                if let Some(job) = self.jobs.remove(id) {
                    job.abort();
                }
            }
        }
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs().min(i32::MAX as u64) as i64,
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

/// A slab: values with small integer keys that are reused.
struct Slots<T> {
    slots: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slots<T> {
    fn insert(&mut self, thing: T) -> usize {
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[id] = Some(thing);
        id
    }

    fn get(&self, id: usize) -> Option<&T> {
        self.slots[id].as_ref()
    }

    fn get_mut(&mut self, id: usize) -> Option<&mut T> {
        self.slots[id].as_mut()
    }

    /// Takes a value out temporarily; its key stays reserved.
    fn take(&mut self, id: usize) -> Option<T> {
        self.slots[id].take()
    }

    fn restore(&mut self, id: usize, thing: T) {
        self.slots[id] = Some(thing);
    }

    fn remove(&mut self, id: usize) -> Option<T> {
        let thing = self.slots[id].take();
        if thing.is_some() {
            self.free.push(id);
        }
        thing
    }
}

/// Page size in bytes, as an offset type.
const PAGE: u64 = PAGE_BYTES as u64;
