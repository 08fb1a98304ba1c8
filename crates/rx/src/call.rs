//! A call in the program's hands: bytes one way, then bytes the other way.

use crate::bytes::Bytes;
use crate::client::{Connection, Link};
use crate::error::Error;
use crate::inbox::Open;
use crate::shard::Shard;
use rx_proto::{CallId, Incoming, Route, Timeouts, WriteError};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar};

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
    /// A call that a client made; `None` if it is over already.
    pub(crate) fn incoming(shard: &Arc<Shard>, incoming: &Incoming) -> Option<Call> {
        let id = incoming.call;
        let (wake, local) = shard.turn(|state, _| {
            let wake = Arc::clone(&state.open.get(&id)?.wake);
            let route = state.endpoint.route(incoming.connection);
            Some((wake, route.and_then(|route| route.local)))
        })?;
        Some(Call {
            shard: Arc::clone(shard),
            id,
            wake,
            ready: VecDeque::new(),
            at_end: false,
            over: false,
            peer: incoming.peer,
            local,
            service: incoming.service,
            user_status: incoming.user_status,
            link: None,
        })
    }

    /// A call that we make.
    pub(crate) fn outgoing(link: &Arc<Link>, id: CallId, open: &Open) -> Call {
        Call {
            shard: Arc::clone(&link.shard),
            id,
            wake: Arc::clone(&open.wake),
            ready: VecDeque::new(),
            at_end: false,
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
        if self.ready.is_empty() && !self.at_end {
            let (id, ready) = (self.id, &mut self.ready);
            let more = self
                .shard
                .until(&self.wake, |state, now| state.take(now, id, ready))?;
            self.at_end = !more;
            if self.at_end && self.link.is_some() {
                self.forget();
            }
        }
        Ok(self.ready.pop_front())
    }

    /// Reads exactly as many bytes as `buffer` has.
    ///
    /// # Errors
    /// Those of [`read`](Call::read); [`Error::Short`] if there are fewer.
    pub fn read_exact(&mut self, mut buffer: &mut [u8]) -> Result<(), Error> {
        while !buffer.is_empty() {
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
        while let Some(piece) = self.read()? {
            if all.len() + piece.len() > max {
                return Err(Error::Long(max));
            }
            all.extend_from_slice(piece.as_ref());
        }
        Ok(all)
    }

    /// Writes bytes: refers to them until the peer has them. Waits while more than two windows are
    /// unacknowledged.
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::Stopped`]; [`Error::Finished`] after [`finish`](Call::finish).
    pub fn write(&mut self, bytes: impl Into<Bytes>) -> Result<(), Error> {
        let id = self.id;
        let mut unwritten = Some(bytes.into());
        if self.over {
            return Err(Error::Finished);
        }
        self.shard.until(&self.wake, |state, now| {
            if state.stopped {
                return Some(Err(Error::Stopped));
            }
            let bytes = unwritten.take()?;
            match state.endpoint.write(now, id, bytes) {
                Ok(_) => Some(Ok(())),
                Err(WriteError::Blocked(bytes)) => {
                    unwritten = Some(bytes);
                    if let Some(open) = state.open.get_mut(&id) {
                        open.waits = true;
                    }
                    None
                }
                Err(WriteError::Finished(_)) => Some(Err(Error::Finished)),
                Err(WriteError::Call(_, error)) => Some(Err(error.into())),
            }
        })
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
        let (id, server) = (self.id, self.link.is_none());
        self.over = server;
        self.shard.turn(|state, now| {
            if server {
                state.open.remove(&id);
            }
            match state.stopped {
                true => Err(Error::Stopped),
                false => Ok(state.endpoint.finish(now, id)?),
            }
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

    /// A client's call whose reply was read to its end: the endpoint has forgotten it.
    fn forget(&mut self) {
        let id = self.id;
        self.over = true;
        self.shard.turn(|state, _| state.open.remove(&id));
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
        self.end(rx_proto::code::USER_ABORT);
    }
}
