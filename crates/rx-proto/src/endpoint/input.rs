//! Dispatches a datagram to its connection, channel and call.

use super::Endpoint;
use crate::ack::{Ack, Reason};
use crate::call::Role;
use crate::connection::{ConnectionKey, LastCallEnd};
use crate::event::{End, code};
use crate::number::CallNumber;
use crate::packet::{HEADER_BYTES, Header, PacketType, abort_code, flag};
use crate::payload::{Datagram, Payload};
use crate::slab::Key;
use crate::stats::Stats;
use crate::time::Timestamp;
use crate::transmit::Route;
use std::net::SocketAddr;

impl<P: Payload, D: Datagram> Endpoint<P, D> {
    /// Processes a datagram that arrived over `route`. No part of it is trusted.
    pub fn handle_input(&mut self, now: Timestamp, route: Route, datagram: D) {
        self.stats.datagrams_in += 1;
        let Some(header) = Header::parse(datagram.as_ref()) else {
            self.stats.malformed += 1;
            return;
        };
        Stats::packets(&mut self.stats.packets_in, header.kind as u8, 1);
        match header.kind {
            PacketType::Debug | PacketType::Version => {
                self.question(now, route, &header, datagram.as_ref());
            }
            PacketType::Params => {}
            _ if header.has(flag::CLIENT_INITIATED) => {
                self.client_packet(now, route, &header, datagram);
            }
            _ => self.server_packet(now, route, &header, datagram),
        }
    }

    /// Handles an ICMP error that reports the port of `peer` closed and quotes the undeliverable
    /// datagram. It counts only for a call made by us, if the datagram belongs to the call and
    /// nothing was heard of it: see [`Timeouts::refused`](crate::Timeouts::refused). An attacker
    /// that did not see the datagram cannot quote it, because connection ids are random.
    pub fn refused(&mut self, now: Timestamp, peer: SocketAddr, quoted: &[u8]) {
        let Some(header) = Header::parse(quoted).filter(|h| h.has(flag::CLIENT_INITIATED)) else {
            return;
        };
        let route = Route { peer, local: None };
        let connection = self.connections.find(&key_of(route, &header, Role::Client));
        let channels = connection.and_then(|c| self.connections.get(c));
        let call = channels
            .and_then(|c| c.channels.get(header.channel()))
            .filter(|channel| channel.number == header.call_number)
            .and_then(|channel| channel.call);
        if let Some(call) = call
            && let Some(c) = self.calls.get_mut(call)
            && c.clocks.refuse(now)
        {
            self.set_call_timer(call);
        }
    }

    /// Handles a packet of a connection that its sender made.
    fn client_packet(&mut self, now: Timestamp, route: Route, header: &Header, datagram: D) {
        let key = key_of(route, header, Role::Server);
        let about_a_call = header.call_number != CallNumber(0);
        let connection = match self.connections.find(&key) {
            Some(connection) => connection,
            None if !about_a_call => return self.stats.stray += 1,
            None => match self.admit(now, route, header, datagram.as_ref()) {
                Some(connection) => connection,
                None => return,
            },
        };
        let Some(c) = self.connections.get_mut(connection) else {
            return;
        };
        if c.security_index != header.security_index {
            return self.stats.stray += 1;
        }
        if !about_a_call {
            return self.about_connection(now, connection, header, datagram);
        }
        if header.kind == PacketType::Ack && !c.is_proven() {
            self.handle_unvalidated_ack(now, connection, header, datagram.as_ref());
        }
        let Some(c) = self.connections.get(connection) else {
            return;
        };
        if header.kind == PacketType::Ack && !c.is_proven() {
            return;
        }
        let path = c.path;
        let Some(channel) = c.channels.get(header.channel()).copied() else {
            return;
        };
        // A channel without an earlier call accepts any number: its client may be older than we
        // are.
        let had_one = channel.number != CallNumber(0);
        if had_one && channel.number.is_after(header.call_number) {
            return self.stats.stray += 1;
        }
        if channel.number == header.call_number {
            match (channel.call, channel.last_end) {
                (Some(call), _) => self.deliver(now, call, header, datagram),
                (None, LastCallEnd::Aborted(code)) if header.kind != PacketType::Abort => {
                    self.queue_abort(connection, header.channel(), code);
                }
                (None, _) => self.stats.stray += 1,
            }
            return;
        }
        if header.kind != PacketType::Data {
            return self.stats.stray += 1;
        }
        if let Some(call) = self.begin_call(now, (connection, path), channel.call, header) {
            self.deliver(now, call, header, datagram);
        }
    }

    /// Handles the first packet of a client's call: the previous call on the channel is over. If
    /// the application still owns that call, the new one has to wait for its release, so that a
    /// client never makes a server work on more than four calls per connection at once.
    fn begin_call(
        &mut self,
        now: Timestamp,
        (connection, path): (Key, Key),
        before: Option<Key>,
        header: &Header,
    ) -> Option<Key> {
        if let Some(before) = before {
            let held = self.calls.get(before).filter(|c| c.user.held);
            match held.map(|c| c.continued) {
                Some(continued) => {
                    self.end_call(now, before, End::Superseded, None);
                    if !continued {
                        self.say_busy(connection, header);
                        return None;
                    }
                    // The client has the reply of the server that began the call. To wait for this
                    // one would only delay the client, perhaps while its answer is waited for.
                }
                None => {
                    self.reply_arrived(now, before);
                    self.remove_call(now, before);
                }
            }
        }
        if self.calls_in >= self.config.calls_max || !self.host_may_call(path) {
            self.say_busy(connection, header);
            return None;
        }
        let call = self.new_call(now, connection, header.channel(), header.call_number)?;
        if let Some(call) = self.calls.get_mut(call) {
            call.user_status = header.user_status;
        }
        Some(call)
    }

    /// Records that the next call on the channel implies the arrival of the previous reply.
    fn reply_arrived(&mut self, now: Timestamp, call: Key) {
        if let Some(c) = self.calls.get_mut(call)
            && let Some(path) = self.paths.get_mut(c.place.path)
        {
            c.sender.all_arrived(now, &mut path.rtt);
        }
    }

    /// Sends BUSY for a call that cannot be accepted now, if the peer's address is proven.
    fn say_busy(&mut self, connection: Key, header: &Header) {
        let Some(c) = self.connections.get(connection).filter(|c| c.is_proven()) else {
            return;
        };
        let busy = c.header(PacketType::Busy, header.channel(), header.call_number);
        self.stats.busy += 1;
        self.queue_on(connection, busy, &[]);
    }

    /// Handles a packet of a connection that we made.
    fn server_packet(&mut self, now: Timestamp, route: Route, header: &Header, datagram: D) {
        let Some(connection) = self.connections.find(&key_of(route, header, Role::Client)) else {
            self.stats.stray += 1;
            if header.kind == PacketType::Data {
                // A reply to an earlier user of this address and port. Its server would retransmit
                // it until it declares us dead, and delay its other packets to us.
                let code = code::CALL_DEAD.to_be_bytes();
                self.answer_stray(now, route, header, PacketType::Abort, &code);
            }
            return;
        };
        let Some(c) = self.connections.get(connection) else {
            return;
        };
        if c.security_index != header.security_index {
            return self.stats.stray += 1;
        }
        if header.call_number == CallNumber(0) {
            return self.about_connection(now, connection, header, datagram);
        }
        let Some(channel) = c.channels.get(header.channel()).copied() else {
            return;
        };
        if channel.number != header.call_number {
            return self.stats.stray += 1;
        }
        match channel.call {
            Some(call) => self.deliver(now, call, header, datagram),
            None => self.answer_late(connection, header, datagram.as_ref()),
        }
    }

    /// Answers a packet of a reply that was received completely, because its server does not know
    /// that yet. A ping is answered in the same way and not with a ping response, which would allow
    /// a server that forgot the call to run it again.
    fn answer_late(&mut self, connection: Key, header: &Header, datagram: &[u8]) {
        let Some(c) = self.connections.get(connection) else {
            return;
        };
        let after = c.channels.get(header.channel()).map(|c| c.last_end);
        let Some(LastCallEnd::Received { last, .. }) = after else {
            return self.stats.stray += 1;
        };
        let is_ping = || {
            let ack = datagram.get(HEADER_BYTES..).and_then(Ack::parse);
            ack.is_some_and(|ack| ack.reason == Some(Reason::Ping))
        };
        match header.kind {
            PacketType::Data => {}
            PacketType::Ack if is_ping() => {}
            _ => return self.stats.stray += 1,
        }
        let prompt = (Reason::Duplicate, header.serial);
        self.queue_received(connection, header.channel(), last, prompt);
    }

    /// Handles a packet that concerns a connection and no call.
    fn about_connection(&mut self, now: Timestamp, connection: Key, header: &Header, datagram: D) {
        let body = datagram.as_ref().get(HEADER_BYTES..).unwrap_or_default();
        let server = header.has(flag::CLIENT_INITIATED);
        match header.kind {
            PacketType::Abort => {
                let code = abort_code(body).unwrap_or(code::CALL_DEAD);
                self.end_connection(now, connection, End::Aborted(code));
            }
            PacketType::Response if server => self.check_response(now, connection, body),
            PacketType::Challenge if !server => self.respond(now, connection, body),
            _ => self.stats.stray += 1,
        }
    }

    /// Handles a packet of an existing call.
    fn deliver(&mut self, now: Timestamp, call: Key, header: &Header, datagram: D) {
        let Some(c) = self.calls.get_mut(call) else {
            return;
        };
        if c.ended.is_some() {
            // The application has yet to release it.
            return self.stats.stray += 1;
        }
        let server = c.role == Role::Server;
        match header.kind {
            PacketType::Data => {
                c.clocks.heard = now;
                self.data(now, call, header, datagram);
            }
            PacketType::Ack => match datagram.as_ref().get(HEADER_BYTES..).and_then(Ack::parse) {
                Some(ack) => self.ack(now, call, header, &ack),
                None => self.stats.malformed += 1,
            },
            PacketType::AckAll => {
                c.clocks.heard = now;
                self.all_received(now, call);
            }
            PacketType::Abort => {
                let body = datagram.as_ref().get(HEADER_BYTES..).unwrap_or_default();
                let code = abort_code(body).unwrap_or(code::CALL_DEAD);
                self.end_call(now, call, End::Aborted(code), None);
            }
            // The server is alive; the timer retransmits the call (Linux ignores BUSY too).
            PacketType::Busy if !server => c.clocks.heard = now,
            _ => self.stats.stray += 1,
        }
        self.set_call_timer(call);
    }
}

fn key_of(route: Route, header: &Header, role: Role) -> ConnectionKey {
    ConnectionKey {
        peer: route.peer,
        epoch: header.epoch,
        cid: header.cid.connection(),
        role,
    }
}
