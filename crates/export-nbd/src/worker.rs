//! A worker: one thread with its connections, its device queues, and one epoll.

use crate::connection::{Again, Connection, Newcomer, Next, Resumed, Status};
use crate::engine::{Engine, Pending};
use crate::hub::Hub;
use crate::kept::Left;
use block::Waker;
use layer_cpu::{Layer, home};
use rustix::event::epoll;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::collections::{BTreeMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a stopping server waits for clients to receive their last replies.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// Interval at which a worker checks connections that end only by time.
const TICK: rustix::event::Timespec = rustix::event::Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// Bounds of the interval between two checks for overdue connections.
const TIMER_SHORTEST: Duration = Duration::from_millis(10);
const TIMER_LONGEST: Duration = Duration::from_secs(5);

const WAKE: u64 = u64::MAX;
const TIMER: u64 = u64::MAX - 1;
const DEVICE: u64 = 1 << 32;

/// Queue of connections from the acceptor to a worker.
#[derive(Clone)]
pub(crate) struct Inbox {
    waker: Arc<Waker>,
    /// `None` once the worker has ended.
    waiting: Arc<Mutex<Option<Vec<Newcomer>>>>,
}

impl Inbox {
    /// Passes a connection to the worker, or returns it if the worker has ended.
    pub(crate) fn push(&self, newcomer: Newcomer) -> Result<(), Newcomer> {
        match &mut *self.waiting.lock().expect("no panic under this lock") {
            Some(waiting) => waiting.push(newcomer),
            None => return Err(newcomer),
        }
        self.waker.wake();
        Ok(())
    }

    fn take(&self) -> Vec<Newcomer> {
        let mut waiting = self.waiting.lock().expect("no panic under this lock");
        waiting.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Refuses further connections, and closes those that are queued.
    fn close(&self) {
        let waiting = self
            .waiting
            .lock()
            .expect("no panic under this lock")
            .take();
        drop(waiting);
    }
}

pub(crate) struct Worker {
    number: usize,
    hub: Arc<Hub>,
    inbox: Inbox,
    epoll: OwnedFd,
}

impl Worker {
    pub(crate) fn new(number: usize, hub: Arc<Hub>) -> std::io::Result<(Inbox, Worker)> {
        let inbox = Inbox {
            waker: hub.wakers.add()?,
            waiting: Arc::new(Mutex::new(Some(Vec::new()))),
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(WAKE);
        epoll::add(&epoll, &*inbox.waker, data, epoll::EventFlags::IN)?;
        let worker = Worker {
            number,
            hub,
            inbox: inbox.clone(),
            epoll,
        };
        Ok((inbox, worker))
    }

    /// Serves until the hub stops. First reports whether the queues could be opened.
    pub(crate) fn run(self, opened: &Sender<block::Result<()>>) {
        home(Layer::Protocol);
        let mut queues = Vec::new();
        for export in &self.hub.exports {
            match export.device.queue() {
                Ok(queue) => queues.push(queue),
                Err(e) => {
                    let _ = opened.send(Err(e));
                    return;
                }
            }
        }
        let kept = self.hub.kept.as_ref();
        let engine = Engine::new(queues, kept.map(|kept| (&**kept, self.number)));
        let engine = match engine {
            Ok(engine) => engine,
            Err(e) => {
                let _ = opened.send(Err(block::Error::from_io("the buffers of a worker", e)));
                return;
            }
        };
        for (index, queue) in engine.queues().enumerate() {
            if let Some(fd) = queue.wait_fd() {
                let data = epoll::EventData::new_u64(DEVICE + index as u64);
                if let Err(e) = epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN) {
                    let e = block::Error::from_io(&queue.info().name, e.into());
                    let _ = opened.send(Err(e));
                    return;
                }
            }
        }
        let timer = match self.timer() {
            Ok(timer) => timer,
            Err(e) => {
                let _ = opened.send(Err(block::Error::from_io("a worker", e)));
                return;
            }
        };
        let _ = opened.send(Ok(()));
        let mut service = Service {
            hub: &self.hub,
            epoll: self.epoll.as_fd(),
            engine,
            timer,
            connections: BTreeMap::new(),
            fencing: Vec::new(),
            held: Vec::new(),
            lingering: Vec::new(),
            finished: Vec::new(),
            touched: Vec::new(),
            next_connection: 0,
        };
        if service.resume(self.number) {
            service.serve(&self.inbox);
        }
        // Before its connections close: a client that connects again reaches another worker.
        self.inbox.close();
    }

    /// Creates a timer and adds it to the epoll.
    fn timer(&self) -> std::io::Result<OwnedFd> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let data = epoll::EventData::new_u64(TIMER);
        epoll::add(&self.epoll, &timer, data, epoll::EventFlags::IN)?;
        Ok(timer)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.inbox.close();
    }
}

/// Event loop of a worker.
struct Service<'a> {
    hub: &'a Arc<Hub>,
    epoll: BorrowedFd<'a>,
    engine: Engine,
    /// Runs while connections are open, to check for overdue ones.
    timer: OwnedFd,
    connections: BTreeMap<u64, Connection>,
    /// Connections that wait for the end of another session.
    fencing: Vec<u64>,
    /// Connections that wait for buffers or for their own replies.
    held: Vec<u64>,
    /// Connections that wait for their client's close notice.
    lingering: Vec<u64>,
    /// Completed requests and their connections. Empty between calls, kept for their capacity.
    finished: Vec<Pending>,
    touched: Vec<u64>,
    next_connection: u64,
}

impl Service<'_> {
    fn serve(&mut self, inbox: &Inbox) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        let mut stop_at: Option<Instant> = None;
        loop {
            let waits = !self.fencing.is_empty() || !self.lingering.is_empty();
            let ticks = stop_at.is_some() || waits;
            events.clear();
            match epoll::wait(
                self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                ticks.then_some(&TICK),
            ) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => {
                    tracing::error!(
                        name: "EVFS-0506",
                        "an NBD worker cannot wait for its connections: {e}"
                    );
                    return;
                }
            }
            for event in &events {
                let data = event.data.u64();
                if data == WAKE {
                    inbox.waker.take();
                    for newcomer in inbox.take() {
                        self.add_connection(newcomer);
                    }
                    self.close_unwanted();
                } else if data == TIMER {
                    let _ = rustix::io::read(&self.timer, &mut [0u8; 8]);
                    self.close_overdue();
                } else if data < DEVICE {
                    let flags = event.flags;
                    self.socket_ready(data, flags);
                }
            }
            self.go_on_fencing();
            for id in std::mem::take(&mut self.lingering) {
                self.after(id);
            }
            if !self.process_completions() {
                return;
            }
            if self.hub.is_stopping() {
                let end = *stop_at.get_or_insert_with(|| Instant::now() + STOP_PATIENCE);
                let busy =
                    self.engine.is_busy() || self.connections.values().any(Connection::has_output);
                if !busy || Instant::now() >= end {
                    return;
                }
            }
        }
    }

    /// Continues the connections of a predecessor; returns false if a queue must be dropped.
    fn resume(&mut self, worker: usize) -> bool {
        let hub = Arc::clone(self.hub);
        let Some(kept) = hub.kept.as_ref().filter(|kept| kept.is_successor()) else {
            return true;
        };
        let all = kept.left(worker);
        let wanted: HashSet<(u32, u64)> = all.iter().flat_map(Left::unfinished_writes).collect();
        // First all buffers that are in use: what is taken later must not be one of them.
        let wants = |place, at| wanted.contains(&(place, at));
        let mut owned = kept.owned(worker, self.engine.pools(), &wants);
        for left in all {
            let admitted = hub.door().admit(left.raw.address());
            let Some((slot, _)) = admitted else {
                left.give_up();
                continue;
            };
            let mut take = |len| self.engine.take_again(len);
            let resumed = Connection::resume(left, &hub, slot, &mut take, &mut owned);
            let Some(Resumed { connection, again }) = resumed else {
                continue;
            };
            let session = connection.session();
            let Some(id) = self.insert(connection) else {
                continue;
            };
            for Again {
                export,
                request,
                payload,
            } in again
            {
                let session = session.clone();
                let failed = self.engine.begin(id, export, request, payload, session);
                if let (Some(error), Some(connection)) = (failed, self.connections.get_mut(&id)) {
                    connection.complete(request, Some(error), Vec::new());
                }
            }
            self.read_requests(id);
            self.after(id);
        }
        self.process_completions()
    }

    fn add_connection(&mut self, newcomer: Newcomer) {
        let connection = Connection::new(newcomer, Arc::clone(self.hub));
        if let Some(id) = self.insert(connection) {
            self.after(id);
        }
    }

    /// Adds a connection; returns its number, or `None` if the system refuses it.
    fn insert(&mut self, connection: Connection) -> Option<u64> {
        let id = self.next_connection;
        self.next_connection = (self.next_connection + 1) % DEVICE;
        let data = epoll::EventData::new_u64(id);
        epoll::add(self.epoll, connection.fd(), data, epoll::EventFlags::IN).ok()?;
        self.connections.insert(id, connection);
        if self.connections.len() == 1 {
            self.start_timer();
        }
        Some(id)
    }

    fn socket_ready(&mut self, id: u64, flags: epoll::EventFlags) {
        let gone = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        if flags.intersects(gone | epoll::EventFlags::IN) {
            self.read_requests(id);
        }
        if flags.intersects(gone)
            && let Some(connection) = self.connections.get_mut(&id)
        {
            connection.hung_up();
        }
        self.after(id);
    }

    /// Takes requests from a connection while it has requests and buffers are available; returns
    /// whether it had any.
    fn read_requests(&mut self, id: u64) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else {
            return false;
        };
        let mut had = false;
        while !self.hub.is_stopping() {
            let engine = &mut self.engine;
            match connection.next(&mut |len, empty_handed| engine.take(len, empty_handed)) {
                Next::Request {
                    export,
                    request,
                    payload,
                } => {
                    had = true;
                    let session = connection.session();
                    if let Some(error) = engine.begin(id, export, request, payload, session) {
                        connection.complete(request, Some(error), Vec::new());
                    }
                }
                Next::Nothing => break,
            }
        }
        if connection.is_held() && !self.held.contains(&id) {
            self.held.push(id);
        }
        had
    }

    /// Closes connections whose session is fenced, and strangers that have to make room.
    fn close_unwanted(&mut self) {
        self.close_those(|connection| connection.close_if_fenced() | connection.close_if_evicted());
    }

    /// Closes overdue connections.
    fn close_overdue(&mut self) {
        let (now, hub) = (Instant::now(), self.hub);
        self.close_those(|connection| connection.is_overdue(now, &hub.limits));
        if self.connections.is_empty() {
            self.stop_timer();
        }
    }

    fn close_those(&mut self, unwanted: impl Fn(&mut Connection) -> bool) {
        let over: Vec<u64> = self
            .connections
            .iter_mut()
            .filter_map(|(id, connection)| unwanted(connection).then_some(*id))
            .collect();
        over.into_iter().for_each(|id| self.after(id));
    }

    /// Starts the timer of checks for overdue connections.
    fn start_timer(&self) {
        let limits = &self.hub.limits;
        let shortest = limits.handshake.min(limits.stall) / 4;
        self.set_timer(shortest.clamp(TIMER_SHORTEST, TIMER_LONGEST));
    }

    fn stop_timer(&self) {
        self.set_timer(Duration::ZERO);
    }

    /// Sets the interval of the timer; zero stops it.
    fn set_timer(&self, every: Duration) {
        let every = Timespec {
            tv_sec: every.as_secs() as i64,
            tv_nsec: i64::from(every.subsec_nanos()),
        };
        let setting = Itimerspec {
            it_interval: every,
            it_value: every,
        };
        // Setting an open timer cannot fail.
        let flags = TimerfdTimerFlags::empty();
        let _ = rustix::time::timerfd_settime(&self.timer, flags, &setting);
    }

    /// Continues connections whose fence has ended.
    fn go_on_fencing(&mut self) {
        for id in std::mem::take(&mut self.fencing) {
            self.read_requests(id);
            self.after(id);
        }
    }

    /// Processes completions until no work is left that does not wait; returns false if a queue
    /// must be dropped.
    fn process_completions(&mut self) -> bool {
        loop {
            if let Err(e) = self.engine.poll(&mut self.finished) {
                tracing::error!(
                    name: "EVFS-0504",
                    "a device queue failed; closing its connections: {e}"
                );
                return false;
            }
            let mut idle = self.finished.is_empty();
            let mut touched = std::mem::take(&mut self.touched);
            for pending in self.finished.drain(..) {
                let id = pending.connection;
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.complete(pending.request, pending.error, pending.data);
                    touched.push(id);
                }
            }
            touched.sort_unstable();
            touched.dedup();
            for id in touched.drain(..) {
                self.after(id);
            }
            self.touched = touched;
            // Replies have ended and buffers have become free, here or when sockets accepted data.
            for id in std::mem::take(&mut self.held) {
                if self.read_requests(id) || !self.held.contains(&id) {
                    idle = false;
                    self.after(id);
                }
            }
            if idle {
                return true;
            }
        }
    }

    /// Sends pending output, updates the epoll interest, and closes the connection if it has ended.
    fn after(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        connection.send();
        if connection.is_fencing() && !self.fencing.contains(&id) {
            self.fencing.push(id);
        }
        let status = connection.status();
        if connection.is_lingering() && !self.lingering.contains(&id) {
            self.lingering.push(id);
        }
        match status {
            Status::Closed => {
                let _ = epoll::delete(self.epoll, connection.fd());
                self.connections.remove(&id);
            }
            Status::Waiting {
                changed: Some(interest),
            } => {
                let mut flags = epoll::EventFlags::empty();
                flags.set(epoll::EventFlags::IN, interest.read);
                flags.set(epoll::EventFlags::OUT, interest.write);
                let data = epoll::EventData::new_u64(id);
                let _ = epoll::modify(self.epoll, connection.fd(), data, flags);
            }
            Status::Waiting { changed: None } => {}
        }
    }
}
