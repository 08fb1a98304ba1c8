//! Request queue of one thread, over its own session.
//!
//! A request waits in `waiting` until the target's command window and any delay requested by the
//! target permit its command; then it is in `flights` until the response. [`IscsiQueue::receive`]
//! reads responses and completes requests.
//!
//! A request that the target cannot take now is returned to an upper layer that has other paths;
//! without such a layer it is retried here.

use crate::errors::{access_of, of_fault};
use crate::job::{Job, Next};
use crate::link::{BUSY, Link};
use crate::unit::{Unit, UnitProperties};
use crate::wire::Memory;
use block::{Completion, DeviceInfo, Error, ErrorKind, Op, Queue, Request, Result, Wait};
use iscsi_proto::scsi::{Action, Fault, PortState, Sense, classify};
use iscsi_proto::{Event, TaskId, Transfer, slot_of};
use layer_cpu::{Layer, within};
use lunpath::{AccessHint, PathQueue};
use retry::random_seed;
use rustix::event::{Timespec, epoll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Maximum number of immediate resends of a command, for unit attentions and similar conditions.
const AGAIN_MAX: u32 = 3;
/// Maximum number of delayed resends of a command by this queue, for a busy target.
const LATER_MAX: u32 = 100;
/// Number of successful commands after which `depth` grows by one again, after a full queue.
const GOOD_FOR_MORE: u32 = 64;

/// Requests in flight, indexed by the slot of their task.
#[derive(Default)]
struct Flights {
    slots: Vec<Flight>,
    jobs: usize,
}

#[derive(Default)]
enum Flight {
    #[default]
    None,
    Job(TaskId, Job),
    /// Taken back; `data` is a copy of the bytes that its command may still send.
    Withdrawn {
        tag: u64,
        data: Vec<u8>,
    },
}

impl Flights {
    fn put(&mut self, task: TaskId, job: Job) {
        let slot = slot_of(task);
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, Flight::default);
        }
        self.slots[slot] = Flight::Job(task, job);
        self.jobs += 1;
    }

    fn take(&mut self, task: TaskId) -> Flight {
        let flight = std::mem::take(&mut self.slots[slot_of(task)]);
        self.jobs -= usize::from(matches!(flight, Flight::Job(..)));
        flight
    }

    /// Finds the task of the request with this tag.
    fn find(&self, wanted: u64) -> Option<TaskId> {
        self.slots.iter().find_map(|flight| match flight {
            Flight::Job(task, job) if job.tag == wanted => Some(*task),
            _ => None,
        })
    }
}

impl Memory for Flights {
    fn gather<'a>(&'a self, task: TaskId, offset: u32, len: u32, mut each: impl FnMut(&'a [u8])) {
        match &self.slots[slot_of(task)] {
            Flight::Job(_, job) => job.gather(offset, len, each),
            Flight::Withdrawn { data, .. } => each(&data[offset as usize..(offset + len) as usize]),
            Flight::None => {}
        }
    }

    fn room(&mut self, task: TaskId, offset: u32) -> &mut [u8] {
        match &mut self.slots[slot_of(task)] {
            Flight::Job(_, job) => job.room(offset),
            _ => &mut [],
        }
    }
}

/// Layer that resends requests that the target cannot take now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retries {
    /// This queue, after a delay.
    Here,
    /// The upper layer, possibly on another path.
    Above,
}

/// Request queue of a path.
pub(crate) struct IscsiQueue {
    /// `None` after the connection was lost.
    link: Option<Link>,
    /// Reason for the loss.
    lost: String,
    info: DeviceInfo,
    unit: Unit,
    capacity: usize,
    /// Maximum number of commands in flight; below `capacity` after TASK SET FULL.
    depth: usize,
    /// Successful commands since `depth` last changed.
    good: u32,
    retries: Retries,
    waiting: VecDeque<Job>,
    /// End of the delay requested by the target; no command is sent before.
    hold: Option<Instant>,
    /// Number of consecutive delays.
    busies: u32,
    /// For the delays.
    seed: u64,
    sign: Option<AccessHint>,
    flights: Flights,
    ready: VecDeque<Completion>,
    late: Vec<u64>,
    events: Vec<Event>,
    /// Readable when the socket or the timer is readable.
    epoll: OwnedFd,
    timer: OwnedFd,
    /// Whether `epoll` also watches for writability of the socket.
    watches_room: bool,
}

impl IscsiQueue {
    pub(crate) fn new(
        link: Link,
        found: UnitProperties,
        capacity: usize,
        retries: Retries,
    ) -> Result<IscsiQueue> {
        let (epoll, timer) =
            descriptors(&link).map_err(|e| Error::from_io(&link.name, e.into()))?;
        Ok(IscsiQueue {
            link: Some(link),
            lost: String::new(),
            info: found.info,
            unit: found.unit,
            capacity,
            depth: capacity,
            good: 0,
            retries,
            waiting: VecDeque::new(),
            hold: None,
            busies: 0,
            seed: random_seed(),
            sign: None,
            flights: Flights::default(),
            ready: VecDeque::new(),
            late: Vec::new(),
            events: Vec::new(),
            epoll,
            timer,
            watches_room: false,
        })
    }

    /// Sends as many commands as are permitted.
    fn send(&mut self) {
        self.end_hold();
        loop {
            let Some(link) = &mut self.link else { return };
            let wire = &mut link.wire;
            if let Err(why) = wire.flush(&self.flights) {
                return self.lose(&why);
            }
            let mut issued = false;
            while self.hold.is_none()
                && !wire.is_blocked()
                && self.flights.jobs < self.depth
                && wire.session.has_room()
            {
                let Some(mut job) = self.waiting.pop_front() else {
                    break;
                };
                let cdb = job.command(&self.unit);
                let Some(task) = wire.session.command(&cdb, job.transfer) else {
                    self.waiting.push_front(job);
                    break;
                };
                self.flights.put(task, job);
                issued = true;
            }
            if !issued {
                return self.watch_room();
            }
        }
    }

    /// Reads available input and processes the events in it.
    fn receive(&mut self) {
        let Some(link) = &mut self.link else { return };
        let mut events = std::mem::take(&mut self.events);
        let received = link.wire.receive(&mut self.flights, &mut events);
        for event in events.drain(..) {
            self.handle_event(event);
        }
        self.events = events;
        if let Err(why) = received {
            self.lose(&why);
        }
    }

    fn handle_event(&mut self, event: Event) {
        let Some(link) = &mut self.link else { return };
        match event {
            Event::Done {
                task,
                status,
                received,
                qualifier,
                sense,
                ..
            } => {
                link.wire.detach(task, &self.flights);
                if let Flight::Job(_, job) = self.flights.take(task) {
                    self.end(job, status, received, qualifier, &sense);
                }
            }
            Event::Late { task } => {
                link.wire.detach(task, &self.flights);
                if let Flight::Withdrawn { tag, .. } = self.flights.take(task) {
                    self.late.push(tag);
                }
            }
            Event::Leaving { code } => {
                self.lose(&format!("the target ended the session (event {code})"));
            }
            Event::Data { .. }
            | Event::Managed { .. }
            | Event::Text { .. }
            | Event::Pong { .. }
            | Event::LoggedOut => {}
        }
    }

    /// Handles the end of a command: completes, resends, delays or fails the request.
    fn end(&mut self, mut job: Job, status: u8, received: u32, qualifier: u16, sense: &[u8]) {
        let fault = match classify(status, qualifier, sense) {
            Action::Done => return self.went_well(job, received),
            Action::Again if job.again < AGAIN_MAX => {
                if Sense::parse(sense).is_some_and(Sense::access_changed) {
                    self.sign.get_or_insert(AccessHint::Changed);
                }
                job.again += 1;
                return self.waiting.push_front(job);
            }
            Action::Again => Fault::Other,
            Action::Later {
                delay_ms,
                queue_full,
            } => {
                let why = if queue_full {
                    "the target's queue is full"
                } else {
                    "the target is busy"
                };
                if queue_full {
                    (self.depth, self.good) = (self.flights.jobs.max(1), 0);
                }
                // Commands in flight free space in a full queue when they end.
                if !queue_full || self.flights.jobs == 0 || delay_ms.is_some() {
                    self.hold_back(delay_ms);
                }
                return self.later(job, why);
            }
            Action::Fail(Fault::IllegalRequest) => {
                if job.fall_back(&mut self.unit) {
                    return self.waiting.push_front(job);
                }
                if job.syncs() && !self.unit.volatile_cache {
                    return self.went_well(job, received);
                }
                Fault::IllegalRequest
            }
            Action::Fail(Fault::ReservationConflict) if self.is_registered() => {
                // Our key was removed: another path has fenced this connection.
                self.waiting.push_front(job);
                return self.lose("another path has fenced this connection");
            }
            Action::Fail(Fault::NoAccess(state)) => {
                self.sign = Some(AccessHint::Is(access_of(state)));
                if state == PortState::Transitioning && self.retries == Retries::Here {
                    self.hold_back(None);
                    return self.later(job, "the access state of this port is changing");
                }
                Fault::NoAccess(state)
            }
            Action::Fail(fault) => fault,
        };
        let error = of_fault(&self.info.name, fault, status, sense);
        self.complete(job, Err(error));
    }

    fn is_registered(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.key.is_some())
    }

    fn went_well(&mut self, mut job: Job, received: u32) {
        if let Transfer::In(expected) = job.transfer
            && received < expected
        {
            let why =
                format!("the target sent {received} bytes of {expected}, but reported no error");
            let error = Error::new(ErrorKind::Io, &self.info.name, why);
            return self.complete(job, Err(error));
        }
        self.busies = 0;
        if self.depth < self.capacity {
            self.good += 1;
            if self.good >= GOOD_FOR_MORE {
                (self.depth, self.good) = (self.depth + 1, 0);
            }
        }
        match job.advance(&self.unit) {
            Next::Done => self.complete(job, Ok(())),
            Next::Another => self.waiting.push_front(job),
        }
    }

    fn complete(&mut self, job: Job, result: Result<()>) {
        let Job { tag, op, .. } = job;
        let result = result.map_err(|e| e.in_op(&op));
        self.ready.push_back(Completion { tag, op, result });
    }

    /// Suspends sending for the delay named by the target, or for one of [`BUSY`].
    fn hold_back(&mut self, delay_ms: Option<u32>) {
        let named = delay_ms.map(|ms| Duration::from_millis(ms.into()));
        let delay = named.unwrap_or_else(|| BUSY.pause(self.busies, self.seed));
        if self.hold.is_none() {
            // Other commands in flight may end the same way; that counts as one delay.
            self.busies += 1;
        }
        self.hold = self.hold.max(Some(Instant::now() + delay));
        self.set_timer();
    }

    /// Handles a request that the target cannot take now: requeues it or completes it with
    /// [`ErrorKind::NotNow`].
    fn later(&mut self, mut job: Job, why: &str) {
        job.later += 1;
        if self.retries == Retries::Here && job.later <= LATER_MAX {
            return self.waiting.push_front(job);
        }
        let not_now = Error::new(ErrorKind::NotNow, &self.info.name, why);
        self.complete(job, Err(not_now.clone()));
        if self.retries == Retries::Above && self.hold.is_some() {
            for job in std::mem::take(&mut self.waiting) {
                self.complete(job, Err(not_now.clone()));
            }
        }
    }

    fn is_held(&self) -> bool {
        self.hold.is_some_and(|until| Instant::now() < until)
    }

    /// Ends a delay that has passed.
    fn end_hold(&mut self) {
        if self.hold.is_some_and(|until| until <= Instant::now()) {
            self.hold = None;
            self.set_timer();
        }
    }

    /// Sets the timer to the end of the delay; it does not become readable earlier.
    fn set_timer(&self) {
        // A value of zero disarms the timer.
        let left = self.hold.map_or(Duration::ZERO, |at| {
            let left = at.saturating_duration_since(Instant::now());
            left.max(Duration::from_nanos(1))
        });
        let spec = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec::try_from(left).unwrap_or_default(),
        };
        if let Err(error) = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec) {
            tracing::warn!(name: "EVFS-0409", %error, "cannot set a timer");
        }
    }

    /// Makes the descriptor signal when a blocked socket accepts output again.
    fn watch_room(&mut self) {
        let Some(link) = &self.link else { return };
        let blocked = link.wire.is_blocked();
        if blocked == self.watches_room {
            return;
        }
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, blocked);
        let data = epoll::EventData::new_u64(0);
        match epoll::modify(&self.epoll, link.wire.fd(), data, flags) {
            Ok(()) => self.watches_room = blocked,
            Err(e) => self.lose(&format!("cannot poll the socket: {e}")),
        }
    }

    /// Closes the connection and fails all requests in flight.
    fn lose(&mut self, why: &str) {
        let Some(mut link) = self.link.take() else {
            return;
        };
        tracing::warn!(name: "EVFS-0405", path = self.info.name, why, "the connection is lost");
        // Closing the socket also removes it from the epoll set.
        link.dead = true;
        drop(link);
        self.lost = why.into();
        let flying = std::mem::take(&mut self.flights).slots.into_iter();
        let flying = flying.filter_map(|flight| match flight {
            Flight::Job(_, job) => Some(job),
            _ => None,
        });
        let waiting = std::mem::take(&mut self.waiting);
        for job in flying.chain(waiting) {
            let error = self.path_lost();
            self.complete(job, Err(error));
        }
        self.hold = None;
        self.set_timer();
    }

    fn path_lost(&self) -> Error {
        let why = format!("{}; reconnect, or use another path", self.lost);
        Error::new(ErrorKind::PathLost, &self.info.name, why)
    }

    /// Blocks until the socket is ready, the delay ends, or `until` has passed.
    fn sleep(&self, until: Option<Instant>) -> Result<()> {
        let wake = [until, self.hold].into_iter().flatten().min();
        let time = wake.map(|at| at.saturating_duration_since(Instant::now()));
        match &self.link {
            Some(link) => {
                let waited = link.wire.wait(time);
                waited.map_err(|e| Error::from_io(&self.info.name, e.into()))
            }
            None => Ok(()),
        }
    }

    /// Removes a request that is not in flight yet from `waiting`.
    fn take_waiting(&mut self, tag: u64) -> Option<Job> {
        let at = self.waiting.iter().position(|job| job.tag == tag)?;
        self.waiting.remove(at)
    }
}

fn descriptors(link: &Link) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
    let data = epoll::EventData::new_u64(0);
    epoll::add(&epoll, link.wire.fd(), data, epoll::EventFlags::IN)?;
    epoll::add(&epoll, &timer, data, epoll::EventFlags::IN)?;
    Ok((epoll, timer))
}

impl Queue for IscsiQueue {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn in_flight(&self) -> usize {
        self.waiting.len() + self.flights.jobs + self.ready.len()
    }

    fn room(&self) -> usize {
        if self.is_held() {
            0
        } else {
            self.depth.saturating_sub(self.in_flight())
        }
    }

    fn submit(&mut self, request: Request) -> std::result::Result<(), Request> {
        let _here = within(Layer::Path);
        if self.in_flight() >= self.capacity {
            return Err(request);
        }
        let Request { tag, op } = request;
        let empty = op.range().is_some_and(|(_, len)| len == 0);
        // A flush of a read-only device has nothing to do.
        let idle = matches!(op, Op::Flush) && self.info.read_only;
        let result = match self.info.check(&op) {
            Ok(()) if self.link.is_none() => Err(self.path_lost().in_op(&op)),
            Ok(()) if self.retries == Retries::Above && self.is_held() => {
                let why = "the target is busy; requests are paused";
                Err(Error::new(ErrorKind::NotNow, &self.info.name, why).in_op(&op))
            }
            Ok(()) if !empty && !idle => {
                self.waiting.push_back(Job::new(tag, op, &self.unit));
                return Ok(());
            }
            result => result,
        };
        self.ready.push_back(Completion { tag, op, result });
        Ok(())
    }

    fn kick(&mut self) -> Result<()> {
        let _here = within(Layer::Path);
        self.send();
        Ok(())
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        let _here = within(Layer::Path);
        let until = wait.deadline();
        loop {
            self.send();
            self.receive();
            let count = self.ready.len();
            let past = until.is_some_and(|until| Instant::now() >= until);
            if count > 0 || self.in_flight() == 0 || past || wait == Wait::Poll {
                // Follow-up commands are sent before the caller sleeps.
                self.send();
                done.extend(self.ready.drain(..count));
                return Ok(count);
            }
            // Responses to received PDUs are sent before this thread sleeps.
            self.send();
            if self.ready.is_empty() {
                self.sleep(until)?;
            }
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn holds_answers(&self) -> bool {
        !self.ready.is_empty() || !self.late.is_empty()
    }
}

impl PathQueue for IscsiQueue {
    /// The command itself cannot be revoked: the target may execute it. Data that it still has to
    /// send is copied because a command whose transmission has begun is sent completely.
    fn withdraw(&mut self, tag: u64) -> Option<Request> {
        if let Some(Job { tag, op, .. }) = self.take_waiting(tag) {
            self.late.push(tag);
            return Some(Request { tag, op });
        }
        let task = self.flights.find(tag)?;
        let wire = &mut self.link.as_mut()?.wire;
        wire.detach(task, &self.flights);
        let mut data = Vec::new();
        let Flight::Job(_, job) = self.flights.take(task) else {
            return None;
        };
        if wire.session.wants_data(task) {
            job.gather(0, job.transfer.bytes(), |part| data.extend_from_slice(part));
        }
        wire.session.abandon(task);
        let Job { tag, op, .. } = job;
        self.flights.slots[slot_of(task)] = Flight::Withdrawn { tag, data };
        Some(Request { tag, op })
    }

    fn drain_late(&mut self, tags: &mut Vec<u64>) {
        tags.append(&mut self.late);
    }

    fn access_sign(&mut self) -> Option<AccessHint> {
        self.sign.take()
    }

    fn lost_reason(&self) -> Option<&str> {
        self.link.is_none().then_some(&self.lost)
    }
}
