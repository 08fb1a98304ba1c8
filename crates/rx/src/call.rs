//! A call in the program's hands: bytes one way, then bytes the other way.

use crate::bytes::Bytes;
use crate::client::{Connection, Link};
use crate::error::Error;
use crate::inbox::Open;
use crate::shard::Shard;
use crate::worker::Job;
use rx_proto::{CallId, PACKET_DATA_BYTES, Route, Timeouts, WriteError, code};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar};
use std::time::Instant;

/// Bytes of what is written that are handed on at once: the endpoint takes whole pieces, and must not
/// take much more than it has room for.
const SLICE_BYTES: usize = 16 * 1024;

/// Small pieces that are written before they are handed on, however few bytes they are.
const UNSENT_PIECES: usize = 64;

/// A call, at a server or at a client.
///
/// A client writes its request, says [`finish`](Call::finish), and reads the reply to its end. A server
/// ([`Handler`](crate::Handler)) reads the request, as far as it cares, and writes the reply. Both block
/// where the peer or the network has to come first. A call that is dropped before its end is aborted.
pub struct Call {
    shard: Arc<Shard>,
    id: CallId,
    wake: Arc<Condvar>,
    /// Taken out of the inbox.
    ready: VecDeque<Bytes>,
    /// All was read.
    at_end: bool,
    /// Written, and less than a packet.
    unsent: VecDeque<Bytes>,
    unsent_bytes: usize,
    /// It is no longer ours.
    over: bool,
    peer: SocketAddr,
    local: Option<IpAddr>,
    service: u16,
    user_status: u8,
    /// Of a client's call: keeps the connection.
    link: Option<Arc<Link>>,
}

impl Call {
    /// A call that a client made.
    pub(crate) fn incoming(job: Job) -> Call {
        Call {
            shard: job.shard,
            id: job.incoming.call,
            wake: job.wake,
            ready: job.first.into_iter().collect(),
            at_end: job.at_end,
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            over: false,
            peer: job.incoming.peer,
            local: job.local,
            service: job.incoming.service,
            user_status: job.incoming.user_status,
            link: None,
        }
    }

    /// A call that we make.
    pub(crate) fn outgoing(link: &Arc<Link>, id: CallId, open: &Open) -> Call {
        Call {
            shard: Arc::clone(&link.shard),
            id,
            wake: Arc::clone(&open.wake),
            ready: VecDeque::new(),
            at_end: false,
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            over: false,
            peer: link.route.peer,
            local: link.route.local,
            service: link.service,
            user_status: 0,
            link: Some(Arc::clone(link)),
        }
    }

    /// The other side.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Which of our addresses the peer uses, if it is known.
    pub fn local(&self) -> Option<IpAddr> {
        self.local
    }

    /// Which service.
    pub fn service(&self) -> u16 {
        self.service
    }

    /// The client's byte in its packets, at a server. Linux asks with 1 whether the server speaks
    /// AuriStor's protocol; to answer as the service that was called says no.
    pub fn user_status(&self) -> u8 {
        self.user_status
    }

    /// The next bytes, as they were received; `None` at the end. What is kept of them for long is to
    /// be copied: it lies in a receive buffer.
    ///
    /// # Errors
    /// [`Error::Ended`] if the call ended before its time, [`Error::Stopped`].
    pub fn read(&mut self) -> Result<Option<Bytes>, Error> {
        self.read_by(None)
    }

    /// The same, but waits no longer than until `deadline`, if there is one.
    ///
    /// # Errors
    /// Those of [`read`](Call::read); [`Error::Late`] if nothing came in time. The call goes on.
    pub fn read_by(&mut self, deadline: Option<Instant>) -> Result<Option<Bytes>, Error> {
        self.wait(0, deadline)?;
        Ok(self.ready.pop_front())
    }

    /// Waits until there is something to read, and if that is not at hand, until it is so many bytes, or
    /// a good part of them, or all there are: who needs them anyhow is woken once and not for each
    /// datagram.
    ///
    /// # Errors
    /// Those of [`read`](Call::read).
    pub fn await_bytes(&mut self, wanted: usize) -> Result<(), Error> {
        self.wait(wanted, None)
    }

    /// The same, but waits no longer than until `deadline`.
    ///
    /// # Errors
    /// Those of [`read_by`](Call::read_by).
    pub fn await_bytes_by(&mut self, wanted: usize, deadline: Instant) -> Result<(), Error> {
        self.wait(wanted, Some(deadline))
    }

    fn wait(&mut self, wanted: usize, deadline: Option<Instant>) -> Result<(), Error> {
        if self.ready.is_empty() && !self.at_end {
            let (id, client, ready) = (self.id, self.link.is_some(), &mut self.ready);
            self.at_end = self.shard.until(&self.wake, deadline, |state, now| {
                state.take(now, id, client, wanted, ready)
            })?;
            self.over |= client && self.at_end;
        }
        Ok(())
    }

    /// Reads exactly as many bytes as `buffer` has.
    ///
    /// # Errors
    /// Those of [`read`](Call::read); [`Error::Short`] if there are fewer.
    pub fn read_exact(&mut self, mut buffer: &mut [u8]) -> Result<(), Error> {
        while !buffer.is_empty() {
            self.await_bytes(buffer.len())?;
            let piece = self.read_up_to(buffer.len())?.ok_or(Error::Short)?;
            let (filled, rest) = buffer.split_at_mut(piece.len());
            filled.copy_from_slice(piece.as_ref());
            buffer = rest;
        }
        Ok(())
    }

    /// The next bytes, at most `max` of them: what follows a part of known length is left.
    ///
    /// # Errors
    /// Those of [`read`](Call::read).
    pub fn read_up_to(&mut self, max: usize) -> Result<Option<Bytes>, Error> {
        let Some(piece) = self.read()? else {
            return Ok(None);
        };
        if piece.len() > max {
            self.ready.push_front(piece.slice(max..piece.len()));
        }
        Ok(Some(piece.slice(0..max)))
    }

    /// Reads to the end.
    ///
    /// # Errors
    /// Those of [`read`](Call::read); [`Error::Long`] if there are more than `max` bytes.
    pub fn read_to_end(&mut self, max: usize) -> Result<Vec<u8>, Error> {
        let mut all = Vec::new();
        loop {
            self.await_bytes(max)?;
            let Some(piece) = self.read()? else {
                return Ok(all);
            };
            if all.len() + piece.len() > max {
                return Err(Error::Long(max));
            }
            all.extend_from_slice(piece.as_ref());
        }
    }

    /// Writes bytes: refers to them until the peer has them. Waits while more than two windows are
    /// unacknowledged. What is less than a packet leaves with what follows it.
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::Stopped`]; [`Error::Finished`] after [`finish`](Call::finish).
    pub fn write(&mut self, bytes: impl Into<Bytes>) -> Result<(), Error> {
        self.write_all([bytes.into()])
    }

    /// Writes several pieces, as [`write`](Call::write) writes one.
    ///
    /// # Errors
    /// Those of [`write`](Call::write).
    pub fn write_all(&mut self, pieces: impl IntoIterator<Item = Bytes>) -> Result<(), Error> {
        if self.over {
            return Err(Error::Finished);
        }
        for piece in pieces {
            self.unsent_bytes += piece.len();
            self.unsent.push_back(piece);
        }
        if self.unsent_bytes <= PACKET_DATA_BYTES && self.unsent.len() < UNSENT_PIECES {
            return Ok(());
        }
        self.send(false)
    }

    /// Ends what is written. A server's call is over with this, and its reply is delivered; it is
    /// done by itself when a handler returns.
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::Stopped`].
    pub fn finish(&mut self) -> Result<(), Error> {
        if self.over {
            return Ok(());
        }
        let sent = self.send(true);
        if sent.is_err() {
            self.end(code::USER_ABORT);
        }
        self.over |= self.link.is_none();
        sent
    }

    /// Gives to the endpoint what is written, and, at a finish, the end of it.
    fn send(&mut self, finish: bool) -> Result<(), Error> {
        let (id, server) = (self.id, self.link.is_none());
        let unsent = &mut self.unsent;
        self.unsent_bytes = 0;
        self.shard.until(&self.wake, None, |state, now| {
            if state.stopped {
                return Some(Err(Error::Stopped));
            }
            while let Some(bytes) = unsent.pop_front() {
                let slice = bytes.slice(0..SLICE_BYTES);
                match state.endpoint.write(now, id, slice) {
                    Ok(_) if bytes.len() > SLICE_BYTES => {
                        unsent.push_front(bytes.slice(SLICE_BYTES..bytes.len()));
                    }
                    Ok(_) => {}
                    Err(WriteError::Blocked(_)) => {
                        unsent.push_front(bytes);
                        state.open.get_mut(&id)?.waits = true;
                        return None;
                    }
                    Err(WriteError::Finished(_)) => return Some(Err(Error::Finished)),
                    Err(WriteError::Call(_, error)) => return Some(Err(error.into())),
                }
            }
            if !finish {
                return Some(Ok(()));
            }
            if server {
                state.open.remove(&id);
            }
            Some(state.endpoint.finish(now, id).map_err(Error::from))
        })
    }

    /// Ends the call with a code for the peer's application.
    pub fn abort(mut self, code: i32) {
        self.end(code);
    }

    /// A connection back to the client, to call a service of it: from the same socket, port and address
    /// that it called, which is where it expects callbacks from.
    pub fn connect_back(&self, service: u16, timeouts: Timeouts) -> Connection {
        let route = Route {
            peer: self.peer,
            local: self.local,
        };
        Connection::new(&self.shard, route, service, timeouts)
    }

    fn end(&mut self, code: i32) {
        if !std::mem::replace(&mut self.over, true) {
            let id = self.id;
            self.shard.turn(|state, now| {
                state.open.remove(&id);
                state.endpoint.abort(now, id, code);
            });
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.end(code::USER_ABORT);
    }
}
