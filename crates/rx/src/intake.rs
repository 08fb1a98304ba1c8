//! Receiving the datagrams of a socket.

use crate::bytes::Bytes;
use crate::pool::{BUFFERS, Pool};
use crate::shard::{Job, Shard};
use crate::sys::{self, Received, Receiver};
use rustix::event::{PollFd, PollFlags};
use rx_proto::{Header, Route, flag};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of times that a thread fills all its buffers before it processes them: 4 MiB of data.
const ROUNDS: usize = 4;

/// Largest number of ICMP errors read before received data is processed.
const ERRORS: usize = 256;

/// Pause after a socket error, which may persist for a while (out of memory).
const ERROR_PAUSE: Duration = Duration::from_millis(10);

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
    /// Creates the receiver of `own`, one of the `shards` of a port. Adds the datagrams that the
    /// kernel drops to `dropped`.
    pub(crate) fn new(
        socket: OwnedFd,
        own: &Arc<Shard>,
        shards: &[Arc<Shard>],
        lent_buffers: usize,
        dropped: &Arc<AtomicU64>,
    ) -> Intake {
        Intake {
            socket,
            own: Arc::clone(own),
            others: shards.to_vec(),
            pool: Pool::new(lent_buffers),
            room: Receiver::new(BUFFERS),
            received: Vec::new(),
            datagrams: Vec::new(),
            dropped: Arc::clone(dropped),
            dropped_before: 0,
        }
    }

    /// Receives until a call arrives. Returns `None` once the port is closed.
    pub(crate) fn next_call(&mut self) -> Option<Job> {
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
                    tracing::error!(name: "EVFS-0704", "cannot poll the sockets of a port: {e}");
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
            if let Some(job) = self.deliver() {
                return Some(job);
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
                    tracing::warn!(name: "EVFS-0705", "cannot receive: {e}");
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
    fn deliver(&mut self) -> Option<Job> {
        if self.others.len() > 1 {
            for other in &self.others {
                if Arc::ptr_eq(other, &self.own) {
                    continue;
                }
                let theirs = |(_, bytes): &mut (Route, Bytes)| {
                    let header = Header::parse(bytes.as_ref());
                    header.is_some_and(|h| !h.has(flag::CLIENT_INITIATED) && h.epoch == other.epoch)
                };
                let astray: Vec<_> = self.datagrams.extract_if(.., theirs).collect();
                if !astray.is_empty()
                    && let Some(job) = other.input(astray.into_iter())
                {
                    other.dispatch(job);
                }
            }
        }
        self.own.input(self.datagrams.drain(..))
    }
}
