//! Connections and calls that a server continues after another one was killed.
//!
//! A client keeps the packets of its request until they are acknowledged for good, which
//! [`Config::keeps_requests`](crate::Config::keeps_requests) delays until they are kept elsewhere. So
//! the client and what was kept have the whole request together, and the call goes on under its
//! number. The numbers of all channels are continued as well, so that no late duplicate of an
//! earlier call runs again.

use super::Endpoint;
use crate::ack::Reason;
use crate::call::Role;
use crate::call::recv::Receiver;
use crate::config::Timeouts;
use crate::connection::{AddressValidation, ConnectionKey, LastCallEnd};
use crate::event::{CallId, ConnectionId};
use crate::number::{CallNumber, Cid, Epoch, Seq, Serial};
use crate::packet::CHANNELS;
use crate::payload::{Datagram, Payload};
use crate::security::RXNULL;
use crate::time::Timestamp;
use crate::transmit::Route;

/// An incoming connection, of the security class rxnull, whose peer has proven its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptConnection {
    /// Address of the client, and the local one that it calls.
    pub route: Route,
    /// Epoch of the client.
    pub epoch: Epoch,
    /// Connection id without a channel.
    pub cid: Cid,
    /// Service id.
    pub service: u16,
    /// Number of the last call on each channel.
    pub numbers: [CallNumber; CHANNELS],
}

/// The last call of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptCall {
    /// Channel of its connection.
    pub channel: usize,
    /// User status byte of the client's packets.
    pub user_status: u8,
    /// First packet of the request that was not kept.
    pub next: Seq,
    /// Last packet that was received, kept or not.
    pub highest: Seq,
    /// Whether that is the last packet of the request.
    pub ends: bool,
}

impl KeptCall {
    /// Reports whether all of the request was kept.
    pub fn is_whole(&self) -> bool {
        self.ends && self.next.is_after(self.highest)
    }
}

/// Position of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallPlace {
    /// Channel of its connection.
    pub channel: usize,
    /// Number of the call on the channel.
    pub number: CallNumber,
    /// Last packet that was received.
    pub highest: Seq,
    /// Whether that is the last packet of the request.
    pub ends: bool,
}

impl<P: Payload, D: Datagram> Endpoint<P, D> {
    /// Describes an incoming connection of the class rxnull.
    pub fn connection_to_keep(&self, connection: ConnectionId) -> Option<KeptConnection> {
        let c = self.connections.get(connection.0)?;
        let is_plain = c.is_server() && c.is_proven() && c.security_index == RXNULL;
        is_plain.then(|| KeptConnection {
            route: c.route,
            epoch: c.key.epoch,
            cid: c.key.cid,
            service: c.service,
            numbers: c.channels.map(|channel| channel.number),
        })
    }

    /// Returns the position of a call.
    pub fn place_of(&self, call: CallId) -> Option<CallPlace> {
        let c = self.calls.get(call.0)?;
        Some(CallPlace {
            channel: c.place.channel,
            number: c.place.number,
            highest: c.receiver.highest(),
            ends: c.receiver.has_last(),
        })
    }

    /// Records that the packets of a request before `next` are kept, so that its client need not keep
    /// them; `None` if the client need not keep any packet that was read.
    pub fn keep(&mut self, now: Timestamp, call: CallId, next: Option<Seq>) {
        let Some(c) = self.calls.get_mut(call.0) else {
            return;
        };
        let released = c.receiver.keep(next);
        for _ in 0..released.min(self.config.ack_stride) {
            c.acks.read(now, &self.config);
        }
        if c.acks.is_due() {
            self.mark_ready(call.0);
        }
        self.set_call_timer(call.0);
    }

    /// Continues a connection; `None` if there is one of its name.
    pub fn continue_connection(
        &mut self,
        now: Timestamp,
        kept: &KeptConnection,
    ) -> Option<ConnectionId> {
        let key = ConnectionKey {
            peer: kept.route.peer,
            epoch: kept.epoch,
            cid: kept.cid.connection(),
            role: Role::Server,
        };
        if self.connections.contains(&key) {
            return None;
        }
        let mut connection = self.new_connection(now, key, kept.route);
        connection.service = kept.service;
        connection.timeouts = Timeouts::of_server(&self.config);
        connection.validation = AddressValidation::Proven;
        for (channel, number) in connection.channels.iter_mut().zip(kept.numbers) {
            channel.number = number;
        }
        if let Some(path) = self.paths.get(connection.path) {
            self.hosts.connected(path.host);
        }
        let connection = self.connections.insert(connection);
        self.set_connection_timer(connection, now + self.config.connection_idle);
        Some(ConnectionId(connection))
    }

    /// Continues the last call of a channel, which the application owns from now on. What it has not
    /// kept is requested from the client.
    pub fn continue_call(
        &mut self,
        now: Timestamp,
        connection: ConnectionId,
        kept: &KeptCall,
    ) -> Option<CallId> {
        let channel = self
            .connections
            .get(connection.0)?
            .channels
            .get(kept.channel)?;
        let number = channel.number;
        if channel.call.is_some() || number == CallNumber(0) {
            return None;
        }
        let call = self.new_call(now, connection.0, kept.channel, number)?;
        let c = self.calls.get_mut(call)?;
        c.user_status = kept.user_status;
        c.continued = true;
        c.user.announced = true;
        c.user.held = true;
        c.receiver = Receiver::continued(kept.next, kept.highest, kept.ends);
        let before = self.held_bytes;
        self.held_bytes = before + c.receiver.held();
        if !kept.is_whole() {
            // Reported again as any gap: some clients send a packet again only after three reports.
            c.acks.prompt(Reason::OutOfSequence, Serial(0));
            self.mark_ready(call);
        }
        self.set_call_timer(call);
        Some(CallId(call))
    }

    /// Returns the code by which the last call of a channel was aborted.
    pub fn abort_of(&self, connection: ConnectionId, channel: usize) -> Option<i32> {
        let c = self.connections.get(connection.0)?;
        match c.channels.get(channel)?.last_end {
            LastCallEnd::Aborted(code) => Some(code),
            _ => None,
        }
    }

    /// Ends the last call of a channel, which cannot be continued: its client gets `code`.
    pub fn refuse_call(&mut self, connection: ConnectionId, channel: usize, code: i32) {
        self.set_after(connection.0, channel, LastCallEnd::Aborted(code));
        self.queue_abort(connection.0, channel, code);
    }
}
