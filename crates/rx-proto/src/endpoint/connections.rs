//! Connections and paths come and go, within limits; and peers prove that they are where they say.
//!
//! **Reach.** A stranger's first packet creates a connection that does nothing but ask: a ping, sent
//! only in answer to a packet, whose serial number nobody else can know. Until it is answered nothing
//! is acknowledged, no call is shown to the application, and little is held. So a packet in
//! another's name brings that other one packet of at most 65 bytes, and a request that was delayed
//! in the network until its connection was forgotten is not run again: its client does not answer for
//! calls that are over. OpenAFS asks in the same way (`rxi_CheckConnReach`), once a minute per peer.

use super::{Endpoint, Notice};
use crate::ack::Reason;
use crate::call::Role;
use crate::config::Timeouts;
use crate::connection::{Connection, ConnectionKey, Reach};
use crate::event::{ConnectionId, End, Event, code};
use crate::number::{CallNumber, Serial};
use crate::packet::{CHANNEL_MASK, Header, PacketType};
use crate::path::Path;
use crate::payload::{Datagram, Payload};
use crate::security::{RXNULL, SecurityError};
use crate::slab::Key;
use crate::time::Timestamp;
use crate::timers::Timer;
use crate::transmit::Route;
use std::net::{IpAddr, SocketAddr};

/// Connections that are looked at for one that may make room.
const SWEEP: usize = 64;

/// What counts as one host: an IPv4 address, or an IPv6 network of 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Host {
    V4([u8; 4]),
    V6([u16; 4]),
}

impl Host {
    fn of(peer: SocketAddr) -> Host {
        match peer.ip().to_canonical() {
            IpAddr::V4(address) => Host::V4(address.octets()),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Host::V6([a, b, c, d])
            }
        }
    }
}

/// A service that others may call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Its number.
    pub id: u16,
    /// Security classes that it takes; 0 is rxnull. The others need an
    /// [`Acceptor`](crate::Acceptor).
    pub classes: Vec<u8>,
}

impl<P: Payload, D: Datagram> Endpoint<P, D> {
    /// The connection that a packet belongs to.
    pub(super) fn find(&mut self, key: &ConnectionKey) -> Option<Key> {
        match self.recent {
            Some((recent, connection)) if recent == *key => Some(connection),
            _ => {
                let connection = *self.by_key.get(key)?;
                self.recent = Some((*key, connection));
                Some(connection)
            }
        }
    }

    /// Takes a stranger's first packet: makes a connection of it, or turns it away.
    pub(super) fn admit(&mut self, now: Timestamp, route: Route, header: &Header) -> Option<Key> {
        if header.kind != PacketType::Data {
            self.stats.stray += 1;
            if header.kind == PacketType::Ack {
                // The rest of a call from before we began. Its client would wait for silence to become
                // death, if it has sent everything. Nothing but an abort tells all clients: some take any
                // other answer for a sign of life (OpenAFS, `rxi_ReceiveServerCall`).
                let code = code::RESTARTING.to_be_bytes();
                self.answer_stray(now, route, header, PacketType::Abort, &code);
            }
            return None;
        }
        let service = self.services.iter().find(|s| s.id == header.service);
        let class = header.security_index;
        let known = class == RXNULL || self.acceptors.iter().any(|a| a.index() == class);
        if !known || !service.is_some_and(|s| s.classes.contains(&class)) {
            let code = code::INVALID_OPERATION.to_be_bytes();
            self.answer_stray(now, route, header, PacketType::Abort, &code);
            return None;
        }
        if !self.has_place_for(now, Host::of(route.peer)) {
            self.stats.connections_refused += 1;
            return None;
        }
        let key = ConnectionKey {
            peer: route.peer,
            epoch: header.epoch,
            cid: header.cid & !CHANNEL_MASK,
            role: Role::Server,
        };
        let mut connection = self.new_connection(now, key, route);
        connection.service = header.service;
        connection.security_index = class;
        connection.timeouts = Timeouts::of_server(&self.config);
        if class != RXNULL {
            let entropy = std::array::from_fn(|_| self.secret.next());
            let acceptor = self.acceptors.iter_mut().find(|a| a.index() == class);
            connection.security = acceptor.map(|a| a.accept(key.epoch, key.cid, entropy));
        }
        let connection = self.keep(connection);
        self.unproven.push_back(connection);
        self.unproven_count += 1;
        self.connections_in += 1;
        *self.hosts.entry(Host::of(route.peer)).or_default() += 1;
        self.set_connection_timer(connection, now + self.config.reach_time);
        Some(connection)
    }

    /// Whether one more connection from `host` fits the limits; makes room where that is fair.
    fn has_place_for(&mut self, now: Timestamp, host: Host) -> bool {
        if self
            .hosts
            .get(&host)
            .is_some_and(|n| *n >= self.config.connections_per_host)
        {
            return false;
        }
        while self.unproven_count >= self.config.unproven_max {
            let Some(oldest) = self.unproven.pop_front() else {
                break;
            };
            if self.connections.get(oldest).is_some_and(|c| !c.is_proven()) {
                self.remove_connection(now, oldest);
            }
        }
        while self
            .unproven
            .front()
            .is_some_and(|c| self.connections.get(*c).is_none_or(Connection::is_proven))
        {
            self.unproven.pop_front();
        }
        if self.connections_in < self.config.connections_max {
            return true;
        }
        // A few at a time, so that a full table does not make each stranger's packet costly.
        let idle = self
            .connections
            .some(self.sweep, SWEEP)
            .find_map(|(key, c)| {
                let long = now.since(c.active) >= self.config.connection_idle_min;
                (c.is_server() && !c.has_calls() && long).then_some(key)
            });
        self.sweep = self.sweep.wrapping_add(SWEEP);
        let Some(idle) = idle else {
            return false;
        };
        self.remove_connection(now, idle);
        true
    }

    /// A connection on the path to its peer, in no table yet.
    pub(super) fn new_connection(
        &mut self,
        now: Timestamp,
        key: ConnectionKey,
        route: Route,
    ) -> Connection<P, D> {
        let path = match self.by_peer.get(&route.peer) {
            Some(path) => *path,
            None => {
                let path = Path::new(route.peer, self.config.jumbo_packets);
                let path = self.paths.insert(path);
                self.by_peer.insert(route.peer, path);
                path
            }
        };
        if let Some(path) = self.paths.get_mut(path) {
            path.users += 1;
        }
        // Below 2^30, because peers compare serial numbers with 0 as signed numbers.
        let serial = Serial((self.secret.next() >> 2).max(1));
        Connection::new(now, key, route, path, serial)
    }

    /// Puts a connection into the tables.
    pub(super) fn keep(&mut self, connection: Connection<P, D>) -> Key {
        let key = connection.key;
        let connection = self.connections.insert(connection);
        self.by_key.insert(key, connection);
        connection
    }

    /// Forgets a connection with its calls.
    pub(super) fn remove_connection(&mut self, now: Timestamp, connection: Key) {
        let Some(c) = self.connections.get(connection) else {
            return;
        };
        let calls: Vec<Key> = c.calls().collect();
        for call in calls {
            self.end_call(now, call, End::Closed, None);
        }
        let Some(c) = self.connections.remove(connection) else {
            return;
        };
        self.recent = None;
        self.by_key.remove(&c.key);
        if c.is_server() {
            self.connections_in -= 1;
            self.unproven_count -= usize::from(!c.is_proven());
            let host = Host::of(c.key.peer);
            if let Some(count) = self.hosts.get_mut(&host) {
                *count -= 1;
                if *count == 0 {
                    self.hosts.remove(&host);
                }
            }
            if c.is_proven() {
                let closed = Event::Closed(ConnectionId(connection));
                self.notices.push_back(Notice::Event(closed));
            }
        }
        let unused = self.paths.get_mut(c.path).is_some_and(|path| {
            path.users -= 1;
            path.users == 0
        });
        if unused {
            self.paths.remove(c.path);
            self.by_peer.remove(&c.key.peer);
        }
    }

    /// The peer is where it says it is: its calls are shown to the application.
    pub(super) fn proven(&mut self, now: Timestamp, connection: Key) {
        let Some(c) = self.connections.get_mut(connection) else {
            return;
        };
        if c.is_proven() {
            return;
        }
        c.reach = Reach::Proven;
        c.active = now;
        self.unproven_count -= 1;
        let calls: Vec<Key> = c.calls().collect();
        for call in calls {
            if let Some(call) = self.calls.get_mut(call) {
                call.ping_due = false;
                call.acks.prompt(Reason::Idle, Serial(0));
            }
            self.announce(call);
            self.mark_ready(call);
        }
        let until = now + self.config.connection_idle;
        self.set_connection_timer(connection, until);
    }

    /// A client's answer to a challenge.
    pub(super) fn check_response(&mut self, now: Timestamp, connection: Key, response: &[u8]) {
        let Some(c) = self.connections.get_mut(connection) else {
            return;
        };
        let Some(security) = c.security.as_mut().filter(|_| c.reach != Reach::Proven) else {
            return;
        };
        match security.check_response(response) {
            Ok(()) => self.proven(now, connection),
            Err(SecurityError::Discard) => self.stats.not_genuine += 1,
            Err(SecurityError::Abort(code)) => self.abort_connection(now, connection, code),
        }
    }

    /// A server's challenge. Only a client with a call answers: others may be after the answer.
    pub(super) fn respond(&mut self, now: Timestamp, connection: Key, challenge: &[u8]) {
        let Some(c) = self.connections.get_mut(connection) else {
            return;
        };
        if !c.has_calls() {
            return;
        }
        match c.security.as_mut().map(|s| s.respond(challenge)) {
            Some(Ok(response)) => {
                let header = c.header(PacketType::Response, 0, CallNumber(0));
                self.queue_on(connection, header, &response);
            }
            Some(Err(SecurityError::Abort(code))) => self.abort_connection(now, connection, code),
            Some(Err(SecurityError::Discard)) | None => self.stats.not_genuine += 1,
        }
    }

    /// Ends a connection and its calls, and tells the peer.
    pub(super) fn abort_connection(&mut self, now: Timestamp, connection: Key, code: i32) {
        let Some(c) = self.connections.get(connection) else {
            return;
        };
        let header = c.header(PacketType::Abort, 0, CallNumber(0));
        let server = c.is_server();
        self.queue_on(connection, header, &code.to_be_bytes());
        self.end_connection(now, connection, End::Security(code), server);
    }

    /// Ends the calls of a connection; forgets the connection if a stranger made it.
    pub(super) fn end_connection(
        &mut self,
        now: Timestamp,
        connection: Key,
        reason: End,
        forget: bool,
    ) {
        let Some(c) = self.connections.get(connection) else {
            return;
        };
        let calls: Vec<Key> = c.calls().collect();
        for call in calls {
            self.end_call(now, call, reason, None);
        }
        if forget {
            self.remove_connection(now, connection);
        }
    }

    /// Makes sure that a connection's timer comes up at `deadline` or before.
    pub(super) fn set_connection_timer(&mut self, connection: Key, deadline: Timestamp) {
        if let Some(c) = self.connections.get_mut(connection) {
            self.timers
                .set(Timer::Connection(connection), &mut c.note, deadline);
        }
    }
}
