//! Creation and removal of connections and paths, within limits.

use super::hosts::Host;
use super::{Endpoint, PendingEvent};
use crate::ack::Reason;
use crate::call::Role;
use crate::config::Timeouts;
use crate::connection::{AddressValidation, Connection, ConnectionKey};
use crate::event::{ConnectionId, End, Event, code};
use crate::number::{CallNumber, Serial};
use crate::packet::{Header, PacketType};
use crate::path::Path;
use crate::payload::{Datagram, Payload};
use crate::security::{RXNULL, SecurityError};
use crate::slab::Key;
use crate::time::Timestamp;
use crate::timers::Timer;
use crate::transmit::Route;

/// Connections examined in a search for an idle one.
const SWEEP: usize = 64;

impl<P: Payload, D: Datagram> Endpoint<P, D> {
    /// Handles the first packet of an unknown peer: creates a connection, or refuses it.
    pub(super) fn admit(
        &mut self,
        now: Timestamp,
        route: Route,
        header: &Header,
        datagram: &[u8],
    ) -> Option<Key> {
        let key = ConnectionKey {
            peer: route.peer,
            epoch: header.epoch,
            cid: header.cid.connection(),
            role: Role::Server,
        };
        let answer = match header.kind {
            PacketType::Data => None,
            _ => Some(self.handle_unknown_ack(now, &key, route, header, datagram)?),
        };
        let class = header.security_index;
        // Peers of other classes answer challenges, not pings.
        let answers_pings = class == RXNULL;
        if !self.services.accept(header.service, class) || answer.is_some() && !answers_pings {
            let code = code::INVALID_OPERATION.to_be_bytes();
            self.answer_stray(now, route, header, PacketType::Abort, &code);
            return None;
        }
        if !self.has_place_for(now, Host::of(route.peer)) {
            self.stats.connections_refused += 1;
            return None;
        }
        let mut connection = self.new_connection(now, key, route);
        connection.service = header.service;
        connection.security_index = class;
        connection.timeouts = Timeouts::of_server(&self.config);
        if class != RXNULL {
            let entropy = std::array::from_fn(|_| self.secret.next());
            let acceptor = self.services.acceptor(class);
            connection.security = acceptor.map(|a| a.accept(key.epoch, key.cid, entropy));
        }
        if let Some(path) = self.paths.get(connection.path) {
            self.hosts.connected(path.host);
        }
        let connection = self.connections.insert(connection);
        self.proofs.asked(connection);
        self.set_connection_timer(connection, now + self.config.reach_time);
        match answer {
            None => Some(connection),
            Some(serial) => {
                self.challenge_again(connection, header, serial);
                None
            }
        }
    }

    /// Checks whether one more connection from `host` fits the limits; evicts another where that
    /// is fair.
    fn has_place_for(&mut self, now: Timestamp, host: Host) -> bool {
        if self.hosts.connections(host) >= self.config.connections_per_host {
            return false;
        }
        while self.proofs.unproven() >= self.config.unproven_max {
            let Some(oldest) = self.proofs.oldest(&self.connections) else {
                break;
            };
            self.remove_connection(now, oldest);
        }
        // Drops settled entries from the front of the queue.
        self.proofs.oldest(&self.connections);
        if self.connections.incoming() < self.config.connections_max {
            return true;
        }
        // In small steps, so that a full table does not make each packet of an unknown peer costly.
        let idle = self.connections.sweep(SWEEP).find_map(|(key, c)| {
            let long = now.since(c.active) >= self.config.connection_idle_min;
            (c.is_server() && !c.has_calls() && long).then_some(key)
        });
        let Some(idle) = idle else {
            return false;
        };
        self.remove_connection(now, idle);
        true
    }

    /// Creates a connection on the path to its peer, in no table yet.
    pub(super) fn new_connection(
        &mut self,
        now: Timestamp,
        key: ConnectionKey,
        route: Route,
    ) -> Connection<P, D> {
        let path = match self.paths.to(&route.peer) {
            Some(path) => path,
            None => {
                let host = self.hosts.share(Host::of(route.peer));
                let path = Path::new(route.peer, host, self.config.jumbo_packets);
                self.paths.insert(path)
            }
        };
        if let Some(path) = self.paths.get_mut(path) {
            path.users += 1;
        }
        // Below 2^30, because peers compare serial numbers with 0 as signed numbers.
        let serial = Serial((self.secret.next() >> 2).max(1));
        Connection::new(now, key, route, path, serial)
    }

    /// Removes a connection with its calls.
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
        if c.channel_wanted {
            // A caller that waits for a channel must learn that none will become free.
            let free = Event::ChannelFree(ConnectionId(connection));
            self.notices.push_back(PendingEvent::Event(free));
        }
        if c.is_server() {
            self.proofs.settled(&c);
            if let Some(path) = self.paths.get(c.path) {
                self.hosts.disconnected(path.host);
            }
            if c.is_proven() {
                self.forgets(now, c.created);
                let closed = Event::Closed(ConnectionId(connection));
                self.notices.push_back(PendingEvent::Event(closed));
            }
        }
        let unused = self.paths.get_mut(c.path).is_some_and(|path| {
            path.users -= 1;
            path.users == 0
        });
        if unused && let Some(path) = self.paths.remove(c.path) {
            self.hosts.leave(path.host);
        }
    }

    /// Marks the address of the peer as proven and shows its calls to the application.
    pub(super) fn mark_validated(&mut self, now: Timestamp, connection: Key) {
        let Some(c) = self.connections.get_mut(connection) else {
            return;
        };
        if c.is_proven() {
            return;
        }
        self.proofs.settled(c);
        c.validation = AddressValidation::Proven;
        c.active = now;
        let (path, calls) = (c.path, c.calls().collect::<Vec<Key>>());
        for call in calls {
            if !self.host_may_call(path) {
                self.put_off(now, call);
                continue;
            }
            self.count_call(call);
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

    /// Checks whether a host may have one more call.
    pub(super) fn host_may_call(&self, path: Key) -> bool {
        let calls = |path: &Path| self.hosts.calls(path.host);
        self.paths.get(path).map_or(0, calls) < self.config.calls_per_host
    }

    /// Removes a call that was not shown to the application, as if it had never begun: its client
    /// will send it again.
    fn put_off(&mut self, now: Timestamp, call: Key) {
        let Some(place) = self.calls.get(call).map(|c| c.place) else {
            return;
        };
        self.remove_call(now, call);
        if let Some(c) = self.connections.get_mut(place.connection)
            && let Some(slot) = c.channels.get_mut(place.channel)
        {
            slot.number = CallNumber(0);
        }
    }

    /// Handles a client's answer to a challenge.
    pub(super) fn check_response(&mut self, now: Timestamp, connection: Key, response: &[u8]) {
        let Some(c) = self.connections.get_mut(connection) else {
            return;
        };
        let Some(security) = c
            .security
            .as_mut()
            .filter(|_| c.validation != AddressValidation::Proven)
        else {
            return;
        };
        match security.check_response(response) {
            Ok(()) => self.mark_validated(now, connection),
            Err(SecurityError::Discard) => self.stats.not_genuine += 1,
            Err(SecurityError::Abort(code)) => self.abort_connection(now, connection, code),
        }
    }

    /// Answers a server's challenge, only with a call in progress: otherwise the sender may be an
    /// attacker that wants the answer.
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

    /// Ends a connection and its calls, and sends an ABORT.
    pub(super) fn abort_connection(&mut self, now: Timestamp, connection: Key, code: i32) {
        let Some(c) = self.connections.get(connection) else {
            return;
        };
        let header = c.header(PacketType::Abort, 0, CallNumber(0));
        self.queue_on(connection, header, &code.to_be_bytes());
        self.end_connection(now, connection, End::Security(code));
    }

    /// Ends the calls of a connection that its peer or a security class aborts. An incoming
    /// connection is removed with them.
    pub(super) fn end_connection(&mut self, now: Timestamp, connection: Key, reason: End) {
        let Some(c) = self.connections.get(connection) else {
            return;
        };
        let incoming = c.is_server();
        let calls: Vec<Key> = c.calls().collect();
        for call in calls {
            self.end_call(now, call, reason, None);
        }
        if incoming {
            self.remove_connection(now, connection);
        }
    }

    /// Ensures that a connection's timer expires at `deadline` or before.
    pub(super) fn set_connection_timer(&mut self, connection: Key, deadline: Timestamp) {
        if let Some(c) = self.connections.get_mut(connection) {
            self.timers
                .set(Timer::Connection(connection), &mut c.timer_entry, deadline);
        }
    }
}
