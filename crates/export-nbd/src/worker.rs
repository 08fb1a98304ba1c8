//! A worker: one thread, its connections, its device queues, one epoll.
//!
//! Sockets are watched for edges, so a connection that is not read from for lack of room costs no
//! system call; room to write is watched for only while replies wait. One round takes what all
//! ready sockets have, hands it to the devices as one batch, and sends the replies of each
//! connection together.

use crate::connection::{Connection, Next, Terms};
use crate::engine::{Engine, Finished};
use crate::hub::{Hub, Post};
use crate::memory::Memory;
use crate::socket::Raw;
use nbd_proto::TlsPolicy;
use rustix::event::epoll::{self, EventFlags};
use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// Rounds between two looks at epoll, so that busy connections do not keep others waiting.
const ROUNDS_MAX: usize = 8;
/// How often time-outs are looked at while there are any.
const TICK: Duration = Duration::from_millis(250);
/// How often a stopping worker looks whether its patience has ended.
const STOP_TICK: Duration = Duration::from_millis(20);
/// Events of one look at epoll.
const EVENTS: usize = 64;

/// The data of epoll events: connections from 0 on, devices from `DEVICE` on.
const WAKE: u64 = u64::MAX;
const DEVICE: u64 = 1 << 62;

/// Serves until the hub stops. Says first whether the queues could be opened.
///
/// # Errors
/// Those of a device that fails as a whole, or of its last flush.
pub(crate) fn run(
    hub: &Hub,
    post: &Arc<Post>,
    opened: Sender<block::Result<()>>,
) -> block::Result<()> {
    let _on_exit = Retire(post);
    let mut worker = match Worker::open(hub, post) {
        Ok(worker) => worker,
        Err(e) => {
            let _ = opened.send(Err(e));
            return Ok(());
        }
    };
    let _ = opened.send(Ok(()));
    drop(opened);
    let outcome = worker.serve();
    worker.close_all();
    outcome
}

/// A worker that is gone, however it went, is given no more connections.
struct Retire<'a>(&'a Arc<Post>);

impl Drop for Retire<'_> {
    fn drop(&mut self) {
        self.0.alive.store(false, Ordering::SeqCst);
        let left = self.0.collect().len();
        self.0.gone(left);
    }
}

struct Worker<'a> {
    hub: &'a Hub,
    post: &'a Arc<Post>,
    epoll: OwnedFd,
    engine: Engine,
    memory: Memory,
    pieces: Vec<usize>,
    connections: HashMap<u64, Connection>,
    next_id: u64,
    /// Connections that something happened to in this round.
    touched: Vec<u64>,
    finished: Vec<Finished>,
    next_tick: Instant,
}

impl<'a> Worker<'a> {
    fn open(hub: &'a Hub, post: &'a Arc<Post>) -> block::Result<Worker<'a>> {
        let system = |e: rustix::io::Errno| block::Error::from_io("epoll", e.into());
        let queues = hub.exports.iter().map(|export| export.device.queue());
        let memory = Memory::new();
        let engine = Engine::new(queues.collect::<block::Result<_>>()?, memory.pool());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
        let watch = |fd: BorrowedFd<'_>, data: u64| {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(data), EventFlags::IN)
        };
        watch(post.wake_fd(), WAKE).map_err(system)?;
        for (export, fd) in engine.wait_fds() {
            watch(fd, DEVICE + export as u64).map_err(system)?;
        }
        Ok(Worker {
            pieces: engine.pieces(),
            hub,
            post,
            epoll,
            engine,
            memory,
            connections: HashMap::new(),
            next_id: 0,
            touched: Vec::new(),
            finished: Vec::new(),
            next_tick: Instant::now(),
        })
    }

    fn serve(&mut self) -> block::Result<()> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
        loop {
            events.clear();
            let timeout = self.timeout().map(|time| rustix::event::Timespec {
                tv_sec: 0,
                tv_nsec: i64::from(time.subsec_nanos()),
            });
            let space = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, space, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(block::Error::from_io("epoll", e.into())),
            }
            for event in &events {
                self.note(event.data.u64(), event.flags);
            }
            for _ in 0..ROUNDS_MAX {
                self.round()?;
                if self.touched.is_empty() && !self.engine.is_stirred() {
                    break;
                }
            }
            self.tick();
            if self.hub.is_stopping() && self.may_stop() {
                return self.engine.flush();
            }
        }
    }

    /// How long to wait for events.
    fn timeout(&self) -> Option<Duration> {
        if !self.touched.is_empty() || self.engine.is_stirred() {
            return Some(Duration::ZERO);
        }
        if self.hub.is_stopping() {
            return Some(STOP_TICK);
        }
        self.has_deadlines().then_some(TICK)
    }

    fn has_deadlines(&self) -> bool {
        self.memory.large_taken() || self.connections.values().any(Connection::is_negotiating)
    }

    fn note(&mut self, data: u64, flags: EventFlags) {
        if data == WAKE {
            for (raw, policy) in self.post.collect() {
                self.welcome(raw, policy);
            }
        } else if data >= DEVICE {
            self.engine.stir((data - DEVICE) as usize);
        } else if let Some(connection) = self.connections.get_mut(&data) {
            let end = EventFlags::HUP | EventFlags::ERR | EventFlags::RDHUP;
            // TLS may have been unable to read because it had to write first.
            if flags.intersects(EventFlags::IN | EventFlags::OUT | end) {
                connection.readable(flags.intersects(end));
            }
            self.touched.push(data);
        }
    }

    fn welcome(&mut self, raw: Raw, policy: TlsPolicy) {
        let id = self.next_id;
        self.next_id += 1;
        let connection = Connection::new(raw, policy, &self.hub.infos);
        let data = epoll::EventData::new_u64(id);
        if let Err(e) = epoll::add(&self.epoll, connection.fd(), data, interest(false)) {
            tracing::warn!("a connection cannot be waited for: {e}");
            self.post.gone(1);
            return;
        }
        tracing::debug!(id, "an NBD connection begins");
        self.connections.insert(id, connection);
        self.touched.push(id);
    }

    /// Takes requests from touched connections, lets the devices work, and sends what there is.
    /// Connections that may have more to give stay touched.
    fn round(&mut self) -> block::Result<()> {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        for id in &touched {
            self.take_requests(*id);
        }
        let outcome = self.engine.turn(&mut self.finished);
        let mut finished = std::mem::take(&mut self.finished);
        for one in finished.drain(..) {
            let id = one.connection;
            self.answer(one);
            touched.push(id);
            self.touched.push(id);
        }
        self.finished = finished;
        touched.sort_unstable();
        touched.dedup();
        for id in touched {
            self.send(id);
        }
        if self.memory.was_released() {
            let starved = self.connections.iter().filter(|(_, c)| c.is_starved());
            self.touched.extend(starved.map(|(id, _)| *id));
        }
        outcome
    }

    fn take_requests(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let terms = Terms {
            pieces: &self.pieces,
            tls: self.hub.tls.as_ref(),
            max_requests: self.hub.config.max_requests.max(1),
            stopping: self.hub.is_stopping(),
        };
        while let Next::Job(export, job) = connection.next(&terms, &mut self.memory) {
            self.finished.extend(self.engine.begin(id, export, job));
        }
    }

    fn answer(&mut self, done: Finished) {
        let Finished {
            connection,
            request,
            grant,
            error,
            data,
        } = done;
        let len = |wanted| {
            let counts = request.command == wanted && error.is_none();
            if counts { u64::from(request.len) } else { 0 }
        };
        let (read, written) = (
            len(nbd_proto::Command::Read),
            len(nbd_proto::Command::Write),
        );
        self.post.counters.answered(error.is_some(), read, written);
        let data = data.into_iter().map(|(_, bufs)| bufs);
        match self.connections.get_mut(&connection) {
            Some(connection) => connection.reply(&request, error, data, grant),
            None => {
                data.for_each(drop);
                self.memory.give_back(None, grant);
            }
        }
    }

    /// Sends what there is, tells epoll what to wait for, and closes what is over.
    fn send(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        connection.send(&mut self.memory);
        self.post.counters.refused(connection.take_refusals());
        if connection.may_resume() {
            self.touched.push(id);
        }
        if connection.is_over() {
            self.close(id);
        } else if let Some(write) = connection.changed_interest() {
            let data = epoll::EventData::new_u64(id);
            if let Err(e) = epoll::modify(&self.epoll, connection.fd(), data, interest(write)) {
                tracing::warn!("a connection cannot be waited for: {e}");
                self.close(id);
            }
        }
    }

    fn close(&mut self, id: u64) {
        if let Some(connection) = self.connections.remove(&id) {
            tracing::debug!(id, "an NBD connection ends");
            if connection.is_broken() {
                self.post.counters.cut_off();
            }
            let _ = epoll::delete(&self.epoll, connection.fd());
            connection.close(&mut self.memory);
            self.post.gone(1);
        }
    }

    /// Cuts off connections that are late.
    fn tick(&mut self) {
        let now = Instant::now();
        if now < self.next_tick {
            return;
        }
        self.next_tick = now + TICK;
        let config = &self.hub.config;
        for (id, connection) in &mut self.connections {
            connection.check_time(now, config.handshake_timeout, config.stall_timeout);
            if connection.is_broken() {
                self.touched.push(*id);
            }
        }
    }

    /// Nothing is under way and every reply is sent, or patience with slow clients has ended. What
    /// the devices have begun is waited for in any case, by the queues themselves.
    fn may_stop(&self) -> bool {
        let quiet = self.touched.is_empty()
            && !self.engine.is_stirred()
            && !self.connections.values().any(Connection::has_output);
        self.engine.is_idle() && (quiet || self.hub.is_out_of_patience())
    }

    fn close_all(&mut self) {
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        ids.into_iter().for_each(|id| self.close(id));
    }
}

/// Edges of readability and of the end; room to write while it is needed.
fn interest(write: bool) -> EventFlags {
    let mut flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
    flags.set(EventFlags::OUT, write);
    flags
}
