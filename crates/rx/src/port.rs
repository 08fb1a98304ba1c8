//! A UDP port: its sockets and their threads.

use crate::bytes::Bytes;
use crate::client::Connection;
use crate::pool::{BUFFERS, Pool};
use crate::settings::{Service, Settings};
use crate::shard::Shard;
use crate::socket::Socket;
use crate::sys::{self, Received, Receiver};
use crate::worker::{Job, Workers};
use rustix::event::{PollFd, PollFlags};
use rx_proto::{Header, Host, Route, Stats, Timeouts, flag};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Number of times that a thread fills all its buffers before it processes them: 4 MiB of data.
const ROUNDS: usize = 4;

/// Largest number of ICMP errors read before received data is processed.
const ERRORS: usize = 256;

/// Pause after a socket error, which may persist for a while (out of memory).
const ERROR_PAUSE: Duration = Duration::from_millis(10);

/// A UDP port on which calls are served and made. Dropping it closes it: calls being served end
/// with an abort that tells clients to retry, and the drop waits for their handlers.
pub struct Port {
    address: SocketAddr,
    shards: Vec<Arc<Shard>>,
    dropped: Vec<Arc<AtomicU64>>,
    workers: Arc<Workers>,
    next: AtomicUsize,
}

/// Counters of a port's sockets.
#[derive(Debug, Clone, Default)]
pub struct PortStats {
    /// Counters of each socket's endpoint.
    pub sockets: Vec<Stats>,
    /// Datagrams that the kernel dropped because a receive buffer was full.
    pub dropped: u64,
    /// Failed sends: their datagrams are lost.
    pub send_errors: u64,
    /// Current number of connections, in both directions.
    pub connections: usize,
    /// Current number of calls, in both directions.
    pub calls: usize,
    /// Current number of bytes written and not acknowledged.
    pub unacknowledged: u64,
}

impl Port {
    /// Opens a port and serves `services` immediately.
    ///
    /// # Errors
    /// Errors of the system for sockets and threads; [`io::ErrorKind::AddrInUse`] if another
    /// program uses the port.
    pub fn open(settings: &Settings, services: Vec<Service>) -> io::Result<Port> {
        let buffer = settings.socket_buffer_bytes;
        // Without sharing first: sockets that share a port would share it with another server of
        // the same user.
        let alone = Socket::bind(settings.listen, false, buffer)?;
        let address = alone.address()?;
        let count = settings.sockets.max(1);
        let sockets = if count == 1 {
            vec![alone]
        } else {
            drop(alone);
            let shared = |_| Socket::bind(address, true, buffer);
            (0..count).map(shared).collect::<io::Result<_>>()?
        };
        if let Some(socket) = sockets.first() {
            let got = socket.receive_buffer()?;
            tracing::debug!(%address, got, "receive buffer");
        }
        let workers = Workers::new(services, settings.workers, settings.thread_name);
        let mut port = Port {
            address,
            shards: Vec::new(),
            dropped: Vec::new(),
            workers,
            next: AtomicUsize::new(0),
        };
        let mut descriptors = Vec::new();
        for socket in sockets {
            descriptors.push(socket.fd().try_clone_to_owned()?);
            let shard = Shard::new(socket, settings.rx.clone(), &port.workers)?;
            port.shards.push(shard);
            port.dropped.push(Arc::default());
        }
        for (index, socket) in descriptors.into_iter().enumerate() {
            let intake = Intake {
                socket,
                own: Arc::clone(&port.shards[index]),
                others: port.shards.clone(),
                pool: Pool::new(settings.lent_buffers),
                room: Receiver::new(BUFFERS),
                received: Vec::new(),
                datagrams: Vec::new(),
                dropped: Arc::clone(&port.dropped[index]),
                dropped_before: 0,
            };
            port.workers.listen(intake)?;
        }
        Ok(port)
    }

    /// Returns the address and port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Creates a connection to a service of `peer`. Nothing is sent before its first call.
    pub fn connect(&self, peer: SocketAddr, service: u16, timeouts: Timeouts) -> Connection {
        self.connect_by(Route { peer, local: None }, service, timeouts)
    }

    /// Creates a connection from a specific local address, which must be covered by the port's own:
    /// a port at 0.0.0.0 can act as many clients, each with an address in 127/8.
    pub fn connect_from(
        &self,
        local: IpAddr,
        peer: SocketAddr,
        service: u16,
        timeouts: Timeouts,
    ) -> Connection {
        let local = Some(local);
        self.connect_by(Route { peer, local }, service, timeouts)
    }

    fn connect_by(&self, route: Route, service: u16, timeouts: Timeouts) -> Connection {
        let index = self.next.fetch_add(1, Ordering::Relaxed) % self.shards.len();
        Connection::new(&self.shards[index], route, service, timeouts)
    }

    /// Returns the counters.
    pub fn stats(&self) -> PortStats {
        let mut stats = PortStats::default();
        for shard in &self.shards {
            shard.run(|state, _| {
                stats.sockets.push(*state.endpoint.stats());
                stats.send_errors += state.socket.errors;
                stats.connections += state.endpoint.connections();
                stats.calls += state.endpoint.calls();
                stats.unacknowledged += state.endpoint.unacknowledged_bytes();
            });
        }
        let dropped = self.dropped.iter().map(|n| n.load(Ordering::Relaxed));
        stats.dropped = dropped.sum();
        stats
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        for shard in &self.shards {
            shard.stop();
        }
        self.workers.stop();
    }
}

/// Receiver of a socket's datagrams.
pub(crate) struct Intake {
    socket: OwnedFd,
    own: Arc<Shard>,
    /// Shards of all sockets of the port.
    others: Vec<Arc<Shard>>,
    pool: Pool,
    room: Receiver,
    received: Vec<Option<Received>>,
    datagrams: Vec<(Route, Bytes)>,
    dropped: Arc<AtomicU64>,
    dropped_before: u32,
}

impl Intake {
    /// Receives until the port is closed, or until a call arrives that the caller serves: then
    /// another thread has taken over the socket.
    pub(crate) fn run(mut self: Box<Self>, workers: &Arc<Workers>) -> Option<Job> {
        while let Some(waits_for_room) = self.own.waits_for_room() {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, waits_for_room);
            let mut ready = [
                PollFd::new(&self.socket, flags),
                PollFd::from_borrowed_fd(self.own.timer(), PollFlags::IN),
            ];
            match rustix::event::poll(&mut ready, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => {
                    tracing::error!("cannot poll the sockets of a port: {e}");
                    return None;
                }
            }
            let [socket, timer] = ready.map(|fd| fd.revents());
            if !timer.is_empty() {
                self.own.timer_expired();
            }
            if socket.contains(PollFlags::ERR) {
                self.hear_refusals();
            }
            self.receive();
            if let Some(job) = self.deliver(workers) {
                match workers.hand_over(self, Host::of(job.incoming.peer)) {
                    Ok(()) => return Some(job),
                    Err(intake) => self = intake,
                }
                workers.push(job);
            }
        }
        None
    }

    /// Reads ICMP errors from the socket, and reports each to the endpoint whose connection the
    /// refused datagram belonged to.
    fn hear_refusals(&mut self) {
        for _ in 0..ERRORS {
            let Ok(error) = sys::take_error(self.socket.as_fd()) else {
                return;
            };
            let Some(refused) = error else {
                continue;
            };
            let epoch = Header::parse(refused.quoted()).map(|header| header.epoch);
            if let Some(shard) = self.others.iter().find(|s| Some(s.epoch) == epoch) {
                let (peer, quoted) = (refused.peer, refused.quoted());
                shard.run(|state, now| state.endpoint.refused(now, peer, quoted));
            }
        }
    }

    /// Receives all pending datagrams.
    fn receive(&mut self) {
        for _ in 0..ROUNDS {
            let buffers = self.pool.offered();
            let socket = self.socket.as_fd();
            match self.room.receive(socket, buffers, &mut self.received) {
                Ok(()) => {}
                Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => return,
                Err(e) if sys::is_of_earlier(&e) => continue,
                Err(e) => {
                    tracing::warn!("cannot receive: {e}");
                    std::thread::sleep(ERROR_PAUSE);
                    return;
                }
            }
            for (index, received) in self.received.iter().enumerate() {
                let Some(received) = received else {
                    continue;
                };
                if let Some(dropped) = received.dropped {
                    let more = dropped.wrapping_sub(self.dropped_before);
                    self.dropped.fetch_add(more.into(), Ordering::Relaxed);
                    self.dropped_before = dropped;
                }
                let route = Route {
                    peer: received.peer,
                    local: received.local,
                };
                let datagrams = &mut self.datagrams;
                self.pool
                    .take(index, received, |bytes| datagrams.push((route, bytes)));
            }
            if self.received.len() < BUFFERS {
                return;
            }
        }
    }

    /// Passes the datagrams to their endpoints. Replies to our own calls arrive at the socket that
    /// the kernel selected for their sender, but belong to the endpoint that made the call, which
    /// their epoch identifies. Returns one of the new calls.
    fn deliver(&mut self, workers: &Arc<Workers>) -> Option<Job> {
        if self.others.len() > 1 {
            for (index, other) in self.others.iter().enumerate() {
                if Arc::ptr_eq(other, &self.own) {
                    continue;
                }
                let theirs = |(_, bytes): &mut (Route, Bytes)| {
                    let header = Header::parse(bytes.as_ref());
                    header.is_some_and(|h| !h.has(flag::CLIENT_INITIATED) && h.epoch == other.epoch)
                };
                let astray: Vec<_> = self.datagrams.extract_if(.., theirs).collect();
                if !astray.is_empty()
                    && let Some(job) = self.others[index].input(astray.into_iter())
                {
                    workers.push(job);
                }
            }
        }
        self.own.input(self.datagrams.drain(..))
    }
}
