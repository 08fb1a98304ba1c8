//! Operations for the application.

use super::Endpoint;
use super::arrival::send_limit;
use super::services::Service;
use crate::ack::Reason;
use crate::call::Role;
use crate::config::Timeouts;
use crate::connection::{ConnectionKey, LastCallEnd};
use crate::event::{CallId, ConnectionId, End, code};
use crate::number::{CallNumber, Cid, Serial};
use crate::payload::{Datagram, Payload};
use crate::security::{Acceptor, Security};
use crate::slab::Key;
use crate::time::Timestamp;
use crate::transmit::Route;

/// Parameters of a new connection.
pub struct Connect<P, D> {
    /// Address of the server.
    pub route: Route,
    /// Service id.
    pub service: u16,
    /// Time limits of its calls.
    pub timeouts: Timeouts,
    /// State of the security class; `None` is rxnull.
    pub security: Option<Box<dyn Security<P, D>>>,
}

/// Result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read<D> {
    /// The next bytes; never empty.
    Data(D),
    /// No data yet; [`Event::Readable`](crate::Event::Readable) will follow.
    Pending,
    /// The end of the stream. A client's call is over with this.
    End,
}

/// Reason for which an operation on a call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The call is over.
    #[error("the call is over: {0}")]
    Ended(#[source] End),
    /// The application does not own the call.
    #[error("unknown call")]
    Unknown,
}

/// Reason for which nothing was written; contains the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteError<P> {
    /// The buffer is full; [`Event::Writable`](crate::Event::Writable) will follow.
    Blocked(P),
    /// The end was already written.
    Finished(P),
    /// The call does not accept data.
    Call(P, CallError),
}

/// Reason for which a call cannot be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// Four calls are running; [`Event::ChannelFree`](crate::Event::ChannelFree) will follow.
    #[error("all four channels of the connection are in use")]
    NoChannel,
    /// All call numbers are used up; the caller has to make another connection.
    #[error("the connection has used up its call numbers")]
    Exhausted,
    /// There is no such connection, or it was made by a client.
    #[error("unknown connection")]
    Unknown,
}

impl<P: Payload, D: Datagram> Endpoint<P, D> {
    /// Accepts calls of a service from now on.
    pub fn serve(&mut self, service: Service) {
        self.services.add(service);
    }

    /// Registers the server side of a security class; services list the classes that they accept.
    pub fn accept_class(&mut self, acceptor: Box<dyn Acceptor<P, D>>) {
        self.services.add_class(acceptor);
    }

    /// Makes a connection. Nothing is sent before its first call.
    pub fn connect(&mut self, now: Timestamp, connect: Connect<P, D>) -> ConnectionId {
        let mut key = ConnectionKey {
            peer: connect.route.peer,
            epoch: self.epoch,
            cid: Cid(0),
            role: Role::Client,
        };
        // Chosen at random, because all our peers know the epoch: a peer that knows one connection
        // must not know the others.
        loop {
            key.cid = Cid(self.secret.next()).connection();
            if !self.connections.contains(&key) {
                break;
            }
        }
        let mut connection = self.new_connection(now, key, connect.route);
        connection.service = connect.service;
        connection.timeouts = connect.timeouts;
        connection.security_index = connect.security.as_ref().map_or(0, |s| s.index());
        connection.security = connect.security;
        ConnectionId(self.connections.insert(connection))
    }

    /// Closes an outgoing connection and ends its calls, or drops an incoming one. A server that
    /// waits for the acknowledgement of its reply is notified.
    pub fn close(&mut self, now: Timestamp, connection: ConnectionId) {
        let Some(c) = self.connections.get(connection.0) else {
            return;
        };
        let channels = c.channels;
        for (channel, slot) in channels.iter().enumerate() {
            if let LastCallEnd::Received { last, tell_at } = slot.last_end
                && tell_at != Timestamp::NEVER
            {
                self.queue_received(connection.0, channel, last, (Reason::Delay, Serial(0)));
            }
        }
        let Some(c) = self.connections.get(connection.0) else {
            return;
        };
        let calls: Vec<Key> = c.calls().collect();
        for call in calls {
            self.end_call(now, call, End::Closed, Some(code::CALL_DEAD));
        }
        self.remove_connection(now, connection.0);
    }

    /// Returns the identity of the peer in the form of the connection's security class.
    pub fn identity(&self, connection: ConnectionId) -> Option<&[u8]> {
        self.connections
            .get(connection.0)?
            .security
            .as_ref()?
            .identity()
    }

    /// Returns the destination of a connection's packets and the local address.
    pub fn route(&self, connection: ConnectionId) -> Option<Route> {
        self.connections.get(connection.0).map(|c| c.route)
    }

    /// Starts a call. Prefers the channel whose last reply is not yet acknowledged: its next packet
    /// implies the acknowledgement.
    pub fn start(
        &mut self,
        now: Timestamp,
        connection: ConnectionId,
    ) -> Result<CallId, StartError> {
        let c = self
            .connections
            .get_mut(connection.0)
            .ok_or(StartError::Unknown)?;
        if c.is_server() {
            return Err(StartError::Unknown);
        }
        let free = || {
            c.channels
                .iter()
                .enumerate()
                .filter(|(_, slot)| slot.call.is_none())
        };
        if free().next().is_none() {
            c.channel_wanted = true;
            return Err(StartError::NoChannel);
        }
        // Numbers do not wrap around: a server would take them for those of older calls.
        let (channel, number) = free()
            .filter(|(_, slot)| slot.number != CallNumber(u32::MAX))
            .max_by_key(|(_, slot)| matches!(slot.last_end, LastCallEnd::Received { tell_at, .. } if tell_at != Timestamp::NEVER))
            .map(|(channel, slot)| (channel, slot.number.next()))
            .ok_or(StartError::Exhausted)?;
        let call = self.new_call(now, connection.0, channel, number);
        call.map(CallId).ok_or(StartError::Unknown)
    }

    /// Writes bytes of a request or of a reply. Accepts the whole payload if there is room for any
    /// of it. Returns the number of further bytes for which there is room.
    pub fn write(
        &mut self,
        now: Timestamp,
        call: CallId,
        payload: P,
    ) -> Result<usize, WriteError<P>> {
        let Some(c) = self.calls.get_mut(call.0).filter(|c| c.user.held) else {
            return Err(WriteError::Call(payload, CallError::Unknown));
        };
        if let Some(reason) = c.ended {
            return Err(WriteError::Call(payload, CallError::Ended(reason)));
        }
        if c.sender.is_finished() {
            return Err(WriteError::Finished(payload));
        }
        let limit = send_limit(&self.config, self.hosts.unacknowledged(c.place.host));
        if c.sender.stream.held() >= limit
            || c.sender.stream.pieces() >= self.config.send_buffer_pieces
        {
            c.user.writer_waits = true;
            // Many small pieces may be less than a packet, and nothing else would make room.
            c.sender.push();
            self.ready_to_send(call.0);
            return Err(WriteError::Blocked(payload));
        }
        if c.sender.stream.held() == 0 {
            // The wait for the peer starts now.
            c.clocks.moved = now;
        }
        self.hosts.wrote(c.place.host, payload.len() as u64);
        c.sender.stream.push(payload);
        let room = limit.saturating_sub(c.sender.stream.held());
        self.ready_to_send(call.0);
        Ok(usize::try_from(room).unwrap_or(usize::MAX))
    }

    /// Marks the end of the written data. At a server this ends the application's ownership of the
    /// call: unread data of the request is dropped, and the reply is delivered.
    pub fn finish(&mut self, now: Timestamp, call: CallId) -> Result<(), CallError> {
        let c = self
            .calls
            .get_mut(call.0)
            .filter(|c| c.user.held)
            .ok_or(CallError::Unknown)?;
        if let Some(reason) = c.ended {
            self.release(now, call);
            return Err(CallError::Ended(reason));
        }
        c.sender.finish();
        if c.role == Role::Server {
            c.user.held = false;
            let before = c.receiver.held();
            c.receiver.discard();
            self.held_bytes = self.held_bytes - before + c.receiver.held();
        }
        c.clocks.moved = now;
        self.ready_to_send(call.0);
        Ok(())
    }

    /// Queues a call after a write, if it has data to send.
    fn ready_to_send(&mut self, call: Key) {
        if self.has_data(call) {
            self.mark_ready(call);
        }
    }

    /// Reports whether a call has data to send now.
    pub(super) fn has_data(&self, call: Key) -> bool {
        self.calls.get(call).is_some_and(|c| {
            let path = self.paths.get(c.place.path);
            c.has_data(path.map_or(0, |path| path.data_bytes()))
        })
    }

    /// Reads the next bytes of a call: of its request at a server, of its reply at a client.
    pub fn read(&mut self, now: Timestamp, call: CallId) -> Result<Read<D>, CallError> {
        loop {
            let c = self
                .calls
                .get_mut(call.0)
                .filter(|c| c.user.held)
                .ok_or(CallError::Unknown)?;
            if let Some(reason) = c.ended {
                return Err(CallError::Ended(reason));
            }
            let held = c.receiver.held();
            if let Some(data) = c.receiver.read() {
                self.held_bytes -= held - c.receiver.held();
                c.acks.read(now, &self.config);
                let due = c.acks.is_due();
                if due {
                    self.mark_ready(call.0);
                }
                self.set_call_timer(call.0);
                if data.is_empty() {
                    continue;
                }
                return Ok(Read::Data(data));
            }
            if !c.receiver.at_end() {
                c.user.reader_waits = true;
                return Ok(Read::Pending);
            }
            if c.role == Role::Client {
                self.received_all(now, call.0);
            }
            return Ok(Read::End);
        }
    }

    /// Ends a call with a code for the peer's application.
    pub fn abort(&mut self, now: Timestamp, call: CallId, code: i32) {
        let Some(c) = self.calls.get_mut(call.0).filter(|c| c.user.held) else {
            return;
        };
        c.user.held = false;
        if c.ended.is_some() {
            self.remove_call(now, call.0);
        } else {
            self.end_call(now, call.0, End::Aborted(code), Some(code));
        }
    }

    /// Ends the application's ownership of a call, and aborts the call if it is not over.
    pub fn release(&mut self, now: Timestamp, call: CallId) {
        self.abort(now, call, code::USER_ABORT);
    }

    /// Reduces packets to `route`'s peer, because the network stack refused a datagram: it accepts
    /// at most `bytes` bytes of UDP payload.
    pub fn too_long(&mut self, route: Route, bytes: usize) {
        let path = self
            .paths
            .to(&route.peer)
            .and_then(|path| self.paths.get_mut(path));
        if let Some(path) = path {
            path.local_limit(bytes);
        }
    }
}
