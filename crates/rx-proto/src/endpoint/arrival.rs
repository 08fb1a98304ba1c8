//! Effect of a packet on its call: data is stored, acknowledgements move the window.

use super::Endpoint;
use crate::ack::{Ack, Reason};
use crate::call::Role;
use crate::call::recv::Placed;
use crate::call::send::Effect;
use crate::config::Config;
use crate::event::{End, code};
use crate::number::{Seq, Serial};
use crate::packet::{
    DataPacket, DataPackets, HEADER_BYTES, Header, PACKET_DATA_BYTES, PacketType, flag,
};
use crate::payload::{Datagram, Payload};
use crate::security::{PacketPlace, SecurityError};
use crate::slab::Key;
use crate::stats::Stats;
use crate::time::Timestamp;

/// Bytes that a call may write while all calls, or those of its host, are above their limit.
const SEND_BYTES_CROWDED: u64 = 16 * PACKET_DATA_BYTES as u64;

impl<P: Payload, D: Datagram> Endpoint<P, D> {
    /// Handles a datagram of one or several DATA packets.
    pub(super) fn data(&mut self, now: Timestamp, call: Key, header: &Header, datagram: D) {
        if !self.begin_reply(now, call) {
            return;
        }
        if !header.has(flag::JUMBO_PACKET) {
            let range = HEADER_BYTES..datagram.len();
            let packet = DataPacket {
                seq: header.seq,
                serial: header.serial,
                flags: header.flags,
                checksum: header.checksum,
                range: range.clone(),
            };
            self.place(now, call, header, &packet, datagram.into_slice(range));
        } else {
            let Some(packets) = DataPackets::parse(header, datagram.as_ref()) else {
                self.stats.malformed += 1;
                return;
            };
            self.stats.jumbograms_in += 1;
            let more = packets.clone().count().saturating_sub(1);
            let kind = PacketType::Data as u8;
            Stats::packets(&mut self.stats.packets_in, kind, more as u64);
            for packet in packets {
                let data = datagram.slice(packet.range.clone());
                self.place(now, call, header, &packet, data);
            }
        }
        self.after_data(call);
    }

    /// Handles the start of the reply at a client, which implies that all of the request arrived.
    /// Returns false if the request was not sent completely.
    fn begin_reply(&mut self, now: Timestamp, call: Key) -> bool {
        let Some(c) = self.calls.get_mut(call) else {
            return false;
        };
        if c.role == Role::Server || !c.receiver.is_untouched() {
            return true;
        }
        if !c.sender.all_sent() {
            self.end_call(now, call, End::Violation, Some(code::PROTOCOL_ERROR));
            return false;
        }
        self.all_received(now, call);
        true
    }

    /// Records that the peer has everything that was sent.
    pub(super) fn all_received(&mut self, now: Timestamp, call: Key) {
        let Some(c) = self.calls.get_mut(call) else {
            return;
        };
        if !c.sender.all_sent() {
            self.stats.stray += 1;
            return;
        }
        let bound = c.sender.since_last(now);
        self.hosts.released(c.place.host, c.sender.stream.held());
        let in_flight = c.sender.clear();
        let path = c.place.path;
        c.clocks.moved = now;
        if let Some(path) = self.paths.get_mut(path) {
            if let Some(bound) = bound {
                path.rtt.at_most(now, bound);
            }
            path.congestion.acknowledged(now, in_flight, &path.rtt);
        }
        self.wake_path(now, path);
        self.remove_if_done(now, call);
    }

    /// Stores one packet of data.
    fn place(&mut self, now: Timestamp, call: Key, header: &Header, packet: &DataPacket, data: D) {
        let Some(c) = self.calls.get_mut(call) else {
            return;
        };
        let Some(connection) = self.connections.get_mut(c.place.connection) else {
            return;
        };
        let proven = connection.is_proven();
        let window = if proven {
            self.config.receive_window
        } else {
            self.config.unproven_packets
        };
        let last = packet.flags & flag::LAST_PACKET != 0;
        let placed = c.receiver.classify(packet.seq, last, window);
        let reason = match placed {
            Placed::Violation => {
                self.end_call(now, call, End::Violation, Some(code::PROTOCOL_ERROR));
                return;
            }
            Placed::Duplicate => Err(Reason::Duplicate),
            Placed::Beyond => Err(Reason::ExceedsWindow),
            // Above the limit a call gets only the packet that lets it make progress.
            Placed::Early if self.held_bytes >= self.config.receive_bytes_max => {
                Err(Reason::NoSpace)
            }
            _ if self.held_bytes >= self.config.receive_bytes_max && c.receiver.is_readable() => {
                Err(Reason::NoSpace)
            }
            Placed::Early => Ok(Some(Reason::OutOfSequence)),
            Placed::FillsHole => Ok(Some(Reason::Idle)),
            Placed::InOrder => Ok(None),
        };
        let prompt = match reason {
            Ok(prompt) => prompt,
            Err(reason) => {
                match reason {
                    Reason::Duplicate => self.stats.duplicates += 1,
                    _ => self.stats.refused += 1,
                }
                if proven {
                    c.acks.prompt(reason, packet.serial);
                }
                return;
            }
        };
        let connection_place = connection.place(header);
        let data = match &mut connection.security {
            None => data,
            Some(security) => {
                let place = PacketPlace {
                    seq: packet.seq,
                    ..connection_place
                };
                match security.open(&place, packet.checksum, data) {
                    Ok(data) => data,
                    Err(SecurityError::Discard) => return self.stats.not_genuine += 1,
                    Err(SecurityError::Abort(code)) => {
                        let connection = c.place.connection;
                        return self.abort_connection(now, connection, code);
                    }
                }
            }
        };
        if c.receiver.holds() && data.is_empty() && !last {
            // Packets that are not counted by their bytes cannot be kept.
            self.end_call(now, call, End::Violation, Some(code::PROTOCOL_ERROR));
            return;
        }
        self.stats.bytes_in += data.len() as u64;
        if let Some(path) = self.paths.get_mut(c.place.path) {
            path.bytes_received += data.len() as u64;
        }
        let held = c.receiver.held();
        c.receiver.insert(packet, data);
        self.held_bytes = self.held_bytes - held + c.receiver.held();
        c.clocks.moved = now;
        if proven {
            let requested = packet.flags & flag::REQUEST_ACK != 0;
            for reason in prompt
                .into_iter()
                .chain(requested.then_some(Reason::Requested))
            {
                c.acks.prompt(reason, packet.serial);
            }
            c.acks.received(now, packet.serial, &self.config);
        }
    }

    /// Continues after data was stored: requests proof, notifies the application, or queues the
    /// reply.
    fn after_data(&mut self, call: Key) {
        let Some(c) = self.calls.get_mut(call) else {
            return;
        };
        let connection = c.place.connection;
        if self
            .connections
            .get(connection)
            .is_some_and(|c| !c.is_proven())
        {
            c.ping_due = true;
            return self.mark_ready(call);
        }
        if c.receiver.holds() && c.user.announced && c.role == Role::Server {
            self.queue_event(call, |news| news.received = true);
        }
        let Some(c) = self.calls.get_mut(call) else {
            return;
        };
        if !c.user.announced {
            self.announce(call);
        } else if c.user.reader_waits && (c.receiver.is_readable() || c.receiver.at_end()) {
            c.user.reader_waits = false;
            self.queue_event(call, |news| news.readable = true);
        }
        let is_due = self.calls.get(call).is_some_and(|c| c.acks.is_due());
        if is_due || self.has_data(call) {
            self.mark_ready(call);
        }
    }

    /// Handles an ACK packet.
    pub(super) fn ack(&mut self, now: Timestamp, call: Key, header: &Header, ack: &Ack<'_>) {
        let Some(c) = self.calls.get_mut(call) else {
            return;
        };
        let (connection, path) = (c.place.connection, c.place.path);
        if ack.reason == Some(Reason::PingResponse) {
            self.pong(now, call, ack.serial);
        }
        let Some(c) = self.calls.get_mut(call) else {
            return;
        };
        c.clocks.heard = now;
        if ack.reason == Some(Reason::Ping) {
            c.acks.ping = Some(header.serial);
        } else if header.has(flag::REQUEST_ACK) {
            c.acks.prompt(Reason::Requested, header.serial);
        }
        if is_forgotten(c.role, c.sender.first(), ack) {
            return self.end_call(now, call, End::Forgotten, None);
        }
        let Some(path) = self.paths.get_mut(path) else {
            return;
        };
        if let Some(trailer) = &ack.trailer {
            path.set_peer_limits(trailer);
            if let Some(window) = trailer.window {
                c.sender.set_peer_window(window, self.config.send_window);
                if let Some(connection) = self.connections.get_mut(connection) {
                    connection.peer_window = window.min(self.config.send_window);
                }
            }
        }
        let held = c.sender.stream.held();
        let acknowledged = c.sender.acknowledge(now, ack, &mut path.rtt);
        self.hosts
            .released(c.place.host, held - c.sender.stream.held());
        match acknowledged {
            Ok(effect) => self.apply(now, call, &effect),
            // The reply that the other server sent has arrived.
            Err(_) if c.continued => self.end_call(now, call, End::Closed, None),
            Err(_) => self.end_call(now, call, End::Violation, Some(code::PROTOCOL_ERROR)),
        }
    }

    /// Handles the answer to a ping: takes a round-trip sample and completes a path probe.
    pub(super) fn pong(&mut self, now: Timestamp, call: Key, serial: Serial) {
        let Some(c) = self.calls.get_mut(call) else {
            return;
        };
        let (connection, path) = (c.place.connection, c.place.path);
        let pinged = c.pinged.filter(|ping| ping.serial == serial);
        if let (Some(ping), Some(path)) = (pinged, self.paths.get_mut(path)) {
            let sample = now.nanos_since(ping.at);
            path.rtt.sample(now, sample);
            self.stats.rtt(sample);
            c.pinged = None;
            path.jumbo.answered(connection, serial);
        }
    }

    /// Applies the effect of an acknowledgement or of a timer expiry on a call's window.
    pub(super) fn apply(&mut self, now: Timestamp, call: Key, effect: &Effect) {
        let Some(c) = self.calls.get_mut(call) else {
            return;
        };
        let Some(path) = self.paths.get_mut(c.place.path) else {
            return;
        };
        if let Some(sample) = effect.rtt {
            self.stats.rtt(sample);
        }
        if effect.arrived + effect.late > 0 {
            c.clocks.moved = now;
            path.congestion.acknowledged(now, effect.arrived, &path.rtt);
        }
        if effect.jumbogram_arrived {
            path.jumbo.arrived();
        }
        if effect.lost > 0 {
            let datagrams = effect.lost_datagrams.max(1);
            path.congestion.lost(now, effect.lost, datagrams, &path.rtt);
            for _ in 0..effect.lost_jumbograms {
                path.jumbo.lost(now, path.rtt.smoothed());
            }
        }
        self.stats.lost += u64::from(effect.lost);
        self.stats.late += u64::from(effect.late);
        let room = path.data_bytes();
        let stream = &c.sender.stream;
        let limit = send_limit(&self.config, self.hosts.unacknowledged(c.place.host));
        let room_to_write =
            stream.held() <= limit / 2 && stream.pieces() <= self.config.send_buffer_pieces / 2;
        if c.user.writer_waits && room_to_write {
            c.user.writer_waits = false;
            self.queue_event(call, |news| news.writable = true);
        }
        let Some(c) = self.calls.get(call) else {
            return;
        };
        let path = c.place.path;
        if c.acks.is_due() || c.has_data(room) {
            self.mark_ready(call);
        }
        self.wake_path(now, path);
        self.remove_if_done(now, call);
    }
}

/// Returns the number of bytes that a call may have written and not acknowledged, given those of
/// its host and of all hosts.
pub(super) const fn send_limit(config: &Config, (host, all): (u64, u64)) -> u64 {
    if host < config.send_bytes_per_host as u64 && all < config.send_bytes_max as u64 {
        config.send_buffer_bytes as u64
    } else {
        SEND_BYTES_CROWDED
    }
}

/// Checks whether an acknowledgement shows that the server has no state of a call of which it has
/// confirmed packets: it restarted, or a NAT gave us another port (Linux, `rxrpc_input_ack`).
fn is_forgotten(role: Role, first: Seq, ack: &Ack<'_>) -> bool {
    let puzzled = matches!(
        ack.reason,
        Some(Reason::ExceedsWindow | Reason::OutOfSequence)
    );
    let nothing = ack.first == Seq(1) && ack.previous == Seq(0);
    role == Role::Client && puzzled && nothing && first.is_after(Seq(1))
}
