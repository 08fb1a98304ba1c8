//! A socket, its endpoint, and the lock that protects both.
//!
//! ```text
//!   thread of the socket: poll ─► receive pending datagrams ─► lock ─► handle_input … ─┐
//!   worker, caller:               read, write, finish       ─► lock ─► verb ───────────┤
//!                                                                                      ▼
//!              settle: events (data to inboxes, calls to workers) ─► send ─► set the timer ─► unlock
//! ```
//!
//! The lock holder completes all work that it caused before it unlocks: a reply leaves from the
//! thread that wrote it, without a thread switch. The thread of the socket processes all pending
//! datagrams before anything is sent, so that all acknowledgements open the windows at once, and it
//! moves data to the inboxes of calls that are being read, so that one acknowledgement reports the
//! data as received and read.
//!
//! **Invariant:** the timer is set to the endpoint's next deadline or earlier, except while the
//! lock is held.

use crate::bytes::Bytes;
use crate::error::Error;
use crate::inbox::{Endpoint, OpenCall};
use crate::ledger::{Entry, Ledger, Table};
use crate::socket::{SendResult, Socket};
use rustix::time::{Itimerspec, TimerfdFlags, TimerfdTimerFlags, Timespec};
use rx_proto::{
    CallId, Config, End, Epoch, Event, Incoming, Route, SEGMENTS_MAX, Timestamp, Transmit, code,
};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A socket of a port with its endpoint and calls.
pub(crate) struct Shard {
    state: Mutex<State>,
    timer: OwnedFd,
    /// Epoch of the connections made by this endpoint.
    pub(crate) epoch: Epoch,
    /// Notified when a channel of a connection becomes free.
    pub(crate) channels: Arc<Condvar>,
    /// Passes a new call to the threads that serve calls.
    dispatch: Box<dyn Fn(Job) + Send + Sync>,
}

/// State protected by the lock.
pub(crate) struct State {
    pub(crate) endpoint: Endpoint,
    /// Calls owned by the program.
    pub(crate) open: HashMap<CallId, OpenCall>,
    pub(crate) socket: Socket,
    batch: Transmit<Bytes>,
    /// Whether the batch could not be sent yet.
    unsent: bool,
    /// Time to which the timer is set.
    armed: Option<Timestamp>,
    pub(crate) stopped: bool,
    /// What another server needs to continue the calls; `None` if they end with this one.
    ledger: Option<Ledger>,
    /// Threads to wake and calls to pass to the workers after the lock is released.
    wakes: Vec<Arc<Condvar>>,
    fresh: Vec<Job>,
}

/// A call to be served, with the beginning of its request.
pub(crate) struct Job {
    pub(crate) shard: Arc<Shard>,
    pub(crate) incoming: Incoming,
    /// Local address that was called.
    pub(crate) local: Option<IpAddr>,
    pub(crate) wake: Arc<Condvar>,
    pub(crate) first: Option<Bytes>,
    /// Whether `first` is the whole request.
    pub(crate) at_end: bool,
    /// Its entry in the table of calls, if it has one.
    pub(crate) entry: Option<Entry>,
}

impl Shard {
    pub(crate) fn new(
        socket: Socket,
        config: Config,
        services: impl IntoIterator<Item = u16>,
        dispatch: impl Fn(Job) + Send + Sync + 'static,
    ) -> io::Result<Arc<Shard>> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(|e| io::Error::other(e.to_string()))?;
        let mut endpoint = Endpoint::new(config, seed);
        for id in services {
            endpoint.serve(rx_proto::Service {
                id,
                classes: vec![rx_proto::RXNULL],
            });
        }
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let clock = rustix::time::TimerfdClockId::Monotonic;
        let timer = rustix::time::timerfd_create(clock, flags)?;
        Ok(Arc::new(Shard {
            timer,
            epoch: endpoint.epoch(),
            channels: Arc::new(Condvar::new()),
            dispatch: Box::new(dispatch),
            state: Mutex::new(State {
                endpoint,
                open: HashMap::new(),
                socket,
                batch: Transmit::new(SEGMENTS_MAX),
                unsent: false,
                armed: None,
                stopped: false,
                ledger: None,
                wakes: Vec::new(),
                fresh: Vec::new(),
            }),
        }))
    }

    /// Notes calls in a table for another server, and continues those that are in it.
    pub(crate) fn keep_calls(self: &Arc<Self>, table: Table, continues: bool) -> io::Result<()> {
        self.run(|state, now| {
            if !continues {
                state.ledger = Some(Ledger::new(table));
                return Ok(());
            }
            let (ledger, calls) = Ledger::continued(table, &mut state.endpoint, now)?;
            state.ledger = Some(ledger);
            for call in calls {
                let open = OpenCall::continued(call.is_whole);
                let Some(kept) = state.endpoint.connection_to_keep(call.connection) else {
                    continue;
                };
                state.fresh.push(Job {
                    shard: Arc::clone(self),
                    incoming: Incoming {
                        call: call.call,
                        connection: call.connection,
                        peer: kept.route.peer,
                        service: kept.service,
                        user_status: call.user_status,
                    },
                    local: kept.route.local,
                    wake: Arc::clone(&open.wake),
                    first: Some(call.head.into()),
                    at_end: open.at_end,
                    entry: Some(call.entry),
                });
                state.open.insert(call.call, open);
            }
            Ok(())
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A handler never panics while it holds this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `act` under the lock, then handles its consequences.
    pub(crate) fn run<R>(self: &Arc<Self>, act: impl FnOnce(&mut State, Timestamp) -> R) -> R {
        let mut state = self.lock();
        let now = now();
        let result = act(&mut state, now);
        self.flush(&mut state, now);
        self.leave(state);
        result
    }

    /// Runs `act` like [`run`](Shard::run) until it returns a result, each time after `wake` was
    /// notified. Returns [`Error::Late`] if the deadline passes first.
    pub(crate) fn until<R>(
        self: &Arc<Self>,
        wake: &Condvar,
        deadline: Option<Instant>,
        mut act: impl FnMut(&mut State, Timestamp) -> Option<Result<R, Error>>,
    ) -> Result<R, Error> {
        let mut state = self.lock();
        loop {
            let now = now();
            let result = act(&mut state, now);
            self.flush(&mut state, now);
            if let Some(result) = result {
                self.leave(state);
                return result;
            }
            // A notification caused by this call itself would be lost, because no thread waits yet.
            let mut news = false;
            for other in state.wakes.drain(..) {
                news |= std::ptr::eq(Arc::as_ptr(&other), wake);
                other.notify_all();
            }
            for job in state.fresh.drain(..) {
                self.dispatch(job);
            }
            if news {
                continue;
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            state = match left {
                None => wake.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return Err(Error::Late),
                Some(left) => {
                    let waited = wake.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Unlocks, then wakes threads, so that they find the lock free.
    fn leave(&self, mut state: MutexGuard<'_, State>) {
        let wakes = std::mem::take(&mut state.wakes);
        let fresh = std::mem::take(&mut state.fresh);
        drop(state);
        for job in fresh {
            self.dispatch(job);
        }
        for wake in wakes {
            wake.notify_all();
        }
    }

    /// Passes a new call to the threads that serve calls.
    pub(crate) fn dispatch(&self, job: Job) {
        (self.dispatch)(job);
    }

    /// Checks whether a call owned by the program is over.
    pub(crate) fn has_ended(&self, call: CallId) -> bool {
        let state = self.lock();
        state
            .open
            .get(&call)
            .is_none_or(|open| open.ended.is_some())
    }

    /// Processes datagrams and expired timers. Returns one of the new calls, for the caller to
    /// serve.
    pub(crate) fn input(
        self: &Arc<Self>,
        datagrams: impl Iterator<Item = (Route, Bytes)>,
    ) -> Option<Job> {
        let mut state = self.lock();
        let now = now();
        for (route, datagram) in datagrams {
            state.endpoint.handle_input(now, route, datagram);
        }
        if state.endpoint.poll_timeout().is_some_and(|at| at <= now) {
            state.endpoint.handle_timeout(now);
        }
        self.flush(&mut state, now);
        let job = state.fresh.pop();
        self.leave(state);
        job
    }

    /// Records the expiry of the timer, if it has expired.
    pub(crate) fn timer_expired(&self) {
        if rustix::io::read(&self.timer, &mut [0; 8]).is_ok() {
            self.lock().armed = None;
        }
    }

    /// Reports whether to wait for room in the socket's send buffer, or `None` if the port was
    /// closed.
    pub(crate) fn waits_for_room(&self) -> Option<bool> {
        let state = self.lock();
        (!state.stopped).then_some(state.unsent)
    }

    /// Returns the descriptor that becomes readable when the timer expires.
    pub(crate) fn timer(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// Ends all calls with a code that tells clients to retry elsewhere or later.
    pub(crate) fn stop(self: &Arc<Self>) {
        self.run(|state, now| {
            let calls: Vec<CallId> = state.open.keys().copied().collect();
            for call in calls {
                state.endpoint.abort(now, call, code::RESTARTING);
            }
            for (_, open) in state.open.drain() {
                state.wakes.push(open.wake);
            }
            state.wakes.push(Arc::clone(&self.channels));
            state.stopped = true;
        });
        // Wakes the thread of the socket, which checks whether it should end.
        set_timer(&self.timer, Timestamp::from_nanos(1));
    }

    /// Handles the endpoint's events.
    fn hear(self: &Arc<Self>, state: &mut State, now: Timestamp) {
        while let Some(event) = state.endpoint.poll_event() {
            match event {
                Event::Call(incoming) if !state.stopped => {
                    let (first, open) = OpenCall::begin(&mut state.endpoint, now, incoming.call);
                    let entry = state.ledger.as_mut().and_then(|ledger| {
                        let head = first.as_ref().map_or(&[][..], AsRef::as_ref);
                        ledger.begin(&mut state.endpoint, now, &incoming, head)
                    });
                    let route = state.endpoint.route(incoming.connection);
                    state.fresh.push(Job {
                        shard: Arc::clone(self),
                        incoming,
                        local: route.and_then(|route| route.local),
                        wake: Arc::clone(&open.wake),
                        first,
                        at_end: open.at_end,
                        entry,
                    });
                    state.open.insert(incoming.call, open);
                }
                Event::Call(incoming) => {
                    state.endpoint.abort(now, incoming.call, code::RESTARTING);
                }
                Event::Readable(call) => state.readable(now, call),
                Event::Writable(call) => state.news(call, |_| {}),
                Event::Ended { call, reason } => state.news(call, |open| open.ended = Some(reason)),
                Event::ChannelFree(_) => state.wakes.push(Arc::clone(&self.channels)),
                Event::Received(call) => {
                    if let Some(ledger) = &mut state.ledger {
                        ledger.received(&state.endpoint, call);
                    }
                }
                Event::Over(call) => {
                    if let Some(ledger) = &mut state.ledger {
                        ledger.over(&state.endpoint, call);
                    }
                }
                Event::Closed(connection) => {
                    if let Some(ledger) = &mut state.ledger {
                        ledger.closed(connection);
                    }
                }
            }
        }
    }

    /// Handles the endpoint's events, sends its packets, and sets the timer.
    fn flush(self: &Arc<Self>, state: &mut State, now: Timestamp) {
        let could = !state.unsent;
        self.hear(state, now);
        state.send(now);
        // A call whose data could not be sealed has ended.
        self.hear(state, now);
        if state.unsent && could {
            // The thread of the socket has to wait for room.
            set_timer(&self.timer, Timestamp::from_nanos(1));
        } else if let Some(next) = state.endpoint.poll_timeout()
            && state.armed.is_none_or(|armed| next < armed)
        {
            state.armed = Some(next);
            set_timer(&self.timer, next);
        }
    }
}

impl State {
    /// Sends until nothing is left, or the socket's buffer is full.
    fn send(&mut self, now: Timestamp) {
        while self.unsent || self.endpoint.poll_transmit(now, &mut self.batch) {
            self.unsent = false;
            match self.socket.send(&self.batch) {
                SendResult::Gone => {}
                SendResult::Later => {
                    self.unsent = true;
                    return;
                }
                SendResult::TooLong(route, bytes) => self.endpoint.too_long(route, bytes),
            }
        }
        self.batch.clear();
    }

    /// Moves everything from the inbox of a call into `ready`, like [`OpenCall::take`]. At the end a
    /// client's call is over and removed.
    pub(crate) fn take(
        &mut self,
        now: Timestamp,
        call: CallId,
        client: bool,
        wanted: usize,
        ready: &mut VecDeque<Bytes>,
    ) -> Option<Result<bool, Error>> {
        if self.stopped {
            return Some(Err(Error::Stopped));
        }
        let Some(open) = self.open.get_mut(&call) else {
            return Some(Err(Error::Ended(End::Closed)));
        };
        let taken = open.take(&mut self.endpoint, now, call, wanted, ready);
        if client && taken == Some(Ok(true)) {
            self.open.remove(&call);
        }
        taken
    }

    /// Handles available data of a call: moves it to the inbox if the call is being read.
    fn readable(&mut self, now: Timestamp, call: CallId) {
        if let Some(open) = self.open.get_mut(&call)
            && open.reads
        {
            open.fill(&mut self.endpoint, now, call);
            if open.is_enough() {
                self.news(call, |_| {});
            }
        }
    }

    /// Updates a call, and wakes the thread that waits for it.
    fn news(&mut self, call: CallId, note: impl FnOnce(&mut OpenCall)) {
        if let Some(open) = self.open.get_mut(&call) {
            note(open);
            if std::mem::take(&mut open.waits) {
                self.wakes.push(Arc::clone(&open.wake));
            }
        }
    }
}

/// Reads the current time of the endpoints and their timers.
fn now() -> Timestamp {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Timestamp::from_nanos(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// Sets `timer` to expire at a moment of [`now`]'s clock.
fn set_timer(timer: &OwnedFd, at: Timestamp) {
    let nanos = at.as_nanos().max(1);
    let zero = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let spec = Itimerspec {
        it_interval: zero,
        it_value: Timespec {
            tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: (nanos % 1_000_000_000) as _,
        },
    };
    rustix::time::timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &spec)
        .expect("a timer of ours takes any moment");
}
