//! A queue of a session, used by a single thread.

use crate::errors;
use crate::handle::Event;
use crate::job::Job;
use crate::session::{Inbox, Session};
use block::{Completion, DeviceInfo, Error, GrowingInfo, Queue, Request, Result, Wait};
use layer_cpu::{Layer, within};
use lunpath::{AccessHint, PathQueue};
use rustix::event::epoll;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use slab::Slab;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum time that dropping a queue waits for requests in flight.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// Request queue on a session.
pub(crate) struct RbdQueue {
    session: Arc<Session>,
    info: Arc<GrowingInfo>,
    number: u32,
    inbox: Arc<Inbox>,
    /// Readable when the inbox is, or, while requests are in flight, the session.
    epoll: OwnedFd,
    /// The session's descriptor is in `epoll`.
    watches: bool,
    capacity: usize,
    jobs: Slab<Job>,
    ready: VecDeque<Completion>,
    /// Empty between calls, kept for its capacity.
    events: Vec<Event>,
}

impl RbdQueue {
    pub(crate) fn open(session: Arc<Session>, depth: u32) -> Result<RbdQueue> {
        let info = Arc::clone(session.info());
        let failed = |e: std::io::Error| Error::from_io(&info.name, e);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let (number, inbox) = session.join().map_err(failed)?;
        let queue = RbdQueue {
            session,
            info: Arc::clone(&info),
            number,
            inbox,
            epoll,
            watches: false,
            capacity: depth as usize,
            jobs: Slab::with_capacity(depth as usize),
            ready: VecDeque::new(),
            events: Vec::new(),
        };
        let data = epoll::EventData::new_u64(0);
        epoll::add(
            &queue.epoll,
            &queue.inbox.waker,
            data,
            epoll::EventFlags::IN,
        )
        .map_err(|e| failed(e.into()))?;
        Ok(queue)
    }

    /// Watches the session's descriptor while requests are in flight, so that completions of other
    /// queues do not wake an idle thread.
    fn watch(&mut self) {
        let on = !self.jobs.is_empty();
        if on == self.watches {
            return;
        }
        let event = self.session.event();
        let changed = if on {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&self.epoll, event, data, epoll::EventFlags::IN)
        } else {
            epoll::delete(&self.epoll, event)
        };
        if changed.is_ok() {
            self.watches = on;
        }
    }

    fn token(&self, slot: usize) -> u64 {
        u64::from(self.number) << 32 | slot as u64
    }

    /// Starts the current call of a job. A call that cannot be started ends the job.
    fn start(&mut self, slot: usize) {
        let (token, job) = (self.token(slot), &self.jobs[slot]);
        // SAFETY: the job owns the buffers and the list of their addresses, neither of which moves
        // with it. It stays in `jobs`, or after that in the session, until the token is returned.
        let started = unsafe { self.session.start(token, job.io()) };
        if let Err(failure) = started {
            self.end(
                slot,
                Err(errors::of_request(&self.info.name, failure.errno)),
            );
        }
    }

    fn end(&mut self, slot: usize, result: Result<()>) {
        let Job { tag, op, .. } = self.jobs.remove(slot);
        let result = result.map_err(|error| error.in_op(&op));
        self.ready.push_back(Completion { tag, op, result });
    }

    fn completed(&mut self, event: Event) {
        let slot = event.token as u32 as usize;
        let Some(job) = self.jobs.get_mut(slot) else {
            return;
        };
        let next = match usize::try_from(event.result) {
            Ok(result) => job.advance(result, &self.info.name),
            Err(_) => {
                let errno = i32::try_from(-event.result).unwrap_or(libc::EIO);
                self.session.judge(errno);
                Err(errors::of_request(&self.info.name, errno))
            }
        };
        match next {
            Ok(true) => self.start(slot),
            Ok(false) => self.end(slot, Ok(())),
            Err(error) => self.end(slot, Err(error)),
        }
    }

    /// Takes the completions that there are.
    fn harvest(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        self.inbox.take(&mut events);
        if !self.jobs.is_empty() {
            self.session.collect(self.number, &mut events);
        }
        for event in events.drain(..) {
            self.completed(event);
        }
        self.events = events;
        self.session.note_size();
    }

    /// Sleeps until a completion may have arrived, at most until `until`.
    fn sleep(&mut self, until: Option<Instant>) -> Result<()> {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        let slept = poll(
            &mut [PollFd::new(&self.epoll, PollFlags::IN)],
            timeout.as_ref(),
        );
        match slept {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(Error::from_io(&self.info.name, e.into())),
        }
    }
}

impl Queue for RbdQueue {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn in_flight(&self) -> usize {
        self.jobs.len() + self.ready.len()
    }

    fn submit(&mut self, request: Request) -> std::result::Result<(), Request> {
        let _here = within(Layer::Path);
        if self.in_flight() >= self.capacity {
            return Err(request);
        }
        let Request { tag, op } = request;
        let empty = op.range().is_some_and(|(_, len)| len == 0);
        let mut result = self.info.check(&op);
        if let Some(loss) = self.session.lost() {
            result = Err(Error::new(
                block::ErrorKind::PathLost,
                &self.info.name,
                &loss.why,
            ));
        }
        if empty || result.is_err() {
            self.ready.push_back(Completion { tag, op, result });
            return Ok(());
        }
        let slot = self.jobs.insert(Job::new(tag, op));
        self.start(slot);
        self.watch();
        Ok(())
    }

    fn kick(&mut self) -> Result<()> {
        Ok(())
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        let _here = within(Layer::Path);
        let until = wait.deadline();
        loop {
            self.harvest();
            let over = until.is_some_and(|until| Instant::now() >= until);
            if !self.ready.is_empty() || self.jobs.is_empty() || wait == Wait::Poll || over {
                break;
            }
            self.sleep(until)?;
        }
        self.watch();
        let count = self.ready.len();
        done.extend(self.ready.drain(..));
        Ok(count)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn holds_answers(&self) -> bool {
        !self.ready.is_empty()
    }
}

impl PathQueue for RbdQueue {
    /// `librbd` needs the memory of a request until it has completed it.
    fn withdraw(&mut self, _tag: u64) -> Option<Request> {
        None
    }

    fn drain_late(&mut self, _tags: &mut Vec<u64>) {}

    fn access_sign(&mut self) -> Option<AccessHint> {
        None
    }

    fn lost_reason(&self) -> Option<&str> {
        self.session.lost().map(|loss| loss.why.as_str())
    }
}

impl Drop for RbdQueue {
    fn drop(&mut self) {
        let until = Instant::now() + LEAVE_TIMEOUT;
        while !self.jobs.is_empty() && Instant::now() < until {
            self.harvest();
            if !self.jobs.is_empty() && self.sleep(Some(until)).is_err() {
                break;
            }
        }
        let number = u64::from(self.number) << 32;
        let jobs = std::mem::take(&mut self.jobs).into_iter();
        let jobs: HashMap<u64, Job> = jobs
            .map(|(slot, job)| (number | slot as u64, job))
            .collect();
        self.session.leave(self.number, &self.inbox, jobs);
    }
}
