//! What the application asks for.

use super::Endpoint;
use super::arrival::send_limit;
use super::connections::Service;
use crate::ack::Reason;
use crate::call::Role;
use crate::config::Timeouts;
use crate::connection::{After, ConnectionKey};
use crate::event::{CallId, ConnectionId, End, code};
use crate::number::{CallNumber, Serial};
use crate::packet::CHANNEL_MASK;
use crate::payload::{Datagram, Payload};
use crate::security::{Acceptor, Security};
use crate::slab::Key;
use crate::time::Timestamp;
use crate::transmit::Route;

/// A connection that is to be made.
pub struct Connect<P, D> {
    /// With whom.
    pub route: Route,
    /// About which service.
    pub service: u16,
    /// How long its calls may take.
    pub timeouts: Timeouts,
    /// The security class at work; `None` is rxnull.
    pub security: Option<Box<dyn Security<P, D>>>,
}

/// What a read gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read<D> {
    /// The next bytes; never none.
    Data(D),
    /// Nothing yet; [`Event::Readable`](crate::Event::Readable) will tell.
    Pending,
    /// All was read. A client's call is over with this.
    End,
}

/// Why something cannot be done with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// It is over.
    #[error("the call is over: {0}")]
    Ended(#[source] End),
    /// The application does not have it.
    #[error("there is no such call")]
    Unknown,
}

/// Why nothing was written; the payload comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteError<P> {
    /// There is no room; [`Event::Writable`](crate::Event::Writable) will tell.
    Blocked(P),
    /// The end was written already.
    Finished(P),
    /// The call cannot be written to.
    Call(P, CallError),
}

/// Why a call cannot be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// Four calls are running; [`Event::ChannelFree`](crate::Event::ChannelFree) will tell.
    #[error("all four channels of the connection have a call")]
    NoChannel,
    /// All numbers of calls were used; another connection has to be made.
    #[error("the connection has used up the numbers of calls")]
    Exhausted,
    /// There is no such connection, or it is not ours to call on.
    #[error("there is no such connection")]
    Unknown,
}

impl<P: Payload, D: Datagram> Endpoint<P, D> {
    /// Takes calls of a service from now on.
    pub fn serve(&mut self, service: Service) {
        self.services.retain(|s| s.id != service.id);
        self.services.push(service);
    }

    /// Takes part in a security class as a server; services name those that they take.
    pub fn accept_class(&mut self, acceptor: Box<dyn Acceptor<P, D>>) {
        self.acceptors.retain(|a| a.index() != acceptor.index());
        self.acceptors.push(acceptor);
    }

    /// Makes a connection. Nothing is sent before its first call.
    pub fn connect(&mut self, now: Timestamp, connect: Connect<P, D>) -> ConnectionId {
        let mut key = ConnectionKey {
            peer: connect.route.peer,
            epoch: self.epoch,
            cid: 0,
            role: Role::Client,
        };
        // Drawn, because the epoch is known to all our peers: whoever knows one connection must not
        // know the others.
        loop {
            key.cid = self.secret.next() & !CHANNEL_MASK;
            if !self.by_key.contains_key(&key) {
                break;
            }
        }
        let mut connection = self.new_connection(now, key, connect.route);
        connection.service = connect.service;
        connection.timeouts = connect.timeouts;
        connection.security_index = connect.security.as_ref().map_or(0, |s| s.index());
        connection.security = connect.security;
        ConnectionId(self.keep(connection))
    }

    /// Closes a connection of ours and ends its calls, or forgets one that a client made. A server
    /// that waits to hear that its reply was received is told.
    pub fn close(&mut self, now: Timestamp, connection: ConnectionId) {
        let Some(c) = self.connections.get(connection.0) else {
            return;
        };
        let channels = c.channels;
        for (channel, slot) in channels.iter().enumerate() {
            if let After::Received { last, tell_at } = slot.after
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

    /// Who the peer of a connection is, in the form of its security class.
    pub fn identity(&self, connection: ConnectionId) -> Option<&[u8]> {
        self.connections
            .get(connection.0)?
            .security
            .as_ref()?
            .identity()
    }

    /// Where the packets of a connection go to, and from which address of ours.
    pub fn route(&self, connection: ConnectionId) -> Option<Route> {
        self.connections.get(connection.0).map(|c| c.route)
    }

    /// Starts a call. The channel that had one last is taken first: its next packet tells the server
    /// that the last reply was received.
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
        // Numbers do not go around: a server would take them for those of older calls.
        let (channel, number) = free()
            .filter(|(_, slot)| slot.number != CallNumber(u32::MAX))
            .max_by_key(|(_, slot)| matches!(slot.after, After::Received { tell_at, .. } if tell_at != Timestamp::NEVER))
            .map(|(channel, slot)| (channel, slot.number.next()))
            .ok_or(StartError::Exhausted)?;
        let call = self.new_call(now, connection.0, channel, number);
        call.map(CallId).ok_or(StartError::Unknown)
    }

    /// Writes bytes of a request, or of a reply. The whole payload is taken if there is room for any
    /// of it; gives how many more bytes there is room for.
    pub fn write(
        &mut self,
        now: Timestamp,
        call: CallId,
        payload: P,
    ) -> Result<usize, WriteError<P>> {
        let Some(c) = self.calls.get_mut(call.0).filter(|c| c.held) else {
            return Err(WriteError::Call(payload, CallError::Unknown));
        };
        if let Some(reason) = c.ended {
            return Err(WriteError::Call(payload, CallError::Ended(reason)));
        }
        if c.sender.is_finished() {
            return Err(WriteError::Finished(payload));
        }
        let limit = send_limit(&self.config, self.hosts.unacknowledged(c.host));
        if c.sender.stream.held() >= limit
            || c.sender.stream.pieces() >= self.config.send_buffer_pieces
        {
            c.writer_waits = true;
            // Many small pieces may be less than a packet, and nothing else would make room.
            c.sender.push();
            self.ready_to_send(call.0);
            return Err(WriteError::Blocked(payload));
        }
        if c.sender.stream.held() == 0 {
            // The peer is waited for from now on.
            c.moved = now;
        }
        self.hosts.wrote(c.host, payload.len() as u64);
        c.sender.stream.push(payload);
        let room = limit.saturating_sub(c.sender.stream.held());
        self.ready_to_send(call.0);
        Ok(usize::try_from(room).unwrap_or(usize::MAX))
    }

    /// Ends what is written. A server has done its part with this: the call is no longer the
    /// application's, what was not read of the request is let go, and the reply is delivered.
    pub fn finish(&mut self, now: Timestamp, call: CallId) -> Result<(), CallError> {
        let c = self
            .calls
            .get_mut(call.0)
            .filter(|c| c.held)
            .ok_or(CallError::Unknown)?;
        if let Some(reason) = c.ended {
            self.release(now, call);
            return Err(CallError::Ended(reason));
        }
        c.sender.finish();
        if c.role == Role::Server {
            c.held = false;
            let before = c.receiver.held();
            c.receiver.discard();
            self.held_bytes = self.held_bytes - before + c.receiver.held();
        }
        c.moved = now;
        self.ready_to_send(call.0);
        Ok(())
    }

    /// A call that was written to may have something to send.
    fn ready_to_send(&mut self, call: Key) {
        let sends = self.calls.get(call).is_some_and(|c| {
            let room = self.paths.get(c.path).map_or(0, |path| path.data_bytes());
            c.has_data(room)
        });
        if sends {
            self.mark_ready(call);
        }
    }

    /// Reads the next bytes of a call: of its request at a server, of its reply at a client.
    pub fn read(&mut self, now: Timestamp, call: CallId) -> Result<Read<D>, CallError> {
        loop {
            let c = self
                .calls
                .get_mut(call.0)
                .filter(|c| c.held)
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
                c.reader_waits = true;
                return Ok(Read::Pending);
            }
            if c.role == Role::Client {
                self.received_all(now, call.0);
            }
            return Ok(Read::End);
        }
    }

    /// Ends a call with a code that the peer's application gets.
    pub fn abort(&mut self, now: Timestamp, call: CallId, code: i32) {
        let Some(c) = self.calls.get_mut(call.0).filter(|c| c.held) else {
            return;
        };
        c.held = false;
        if c.ended.is_some() {
            self.remove_call(now, call.0);
        } else {
            self.end_call(now, call.0, End::Aborted(code), Some(code));
        }
    }

    /// Gives a call back; one that is not over is aborted.
    pub fn release(&mut self, now: Timestamp, call: CallId) {
        self.abort(now, call, code::USER_ABORT);
    }

    /// The network stack refused a datagram to `route`'s peer: it takes no more than `bytes` bytes
    /// of UDP payload. Packets are smaller from now on.
    pub fn too_long(&mut self, route: Route, bytes: usize) {
        let path = self
            .by_peer
            .get(&route.peer)
            .and_then(|path| self.paths.get_mut(*path));
        if let Some(path) = path {
            path.local_limit(bytes);
        }
    }
}
