//! Selects the next packets to send: control packets first, then calls in turn, a batch each.

use super::Endpoint;
use crate::ack::{AckOut, Reason};
use crate::call::Role;
use crate::call::loss::Transmission;
use crate::event::End;
use crate::number::{CallNumber, Seq, Serial};
use crate::packet::{HEADER_BYTES, PacketType, flag};
use crate::payload::{Datagram, Payload};
use crate::security::SecurityError;
use crate::slab::Key;
use crate::stats::Stats;
use crate::time::Timestamp;
use crate::timers::Timer;
use crate::transmit::Transmit;

/// Fraction of the limit on received bytes above which smaller windows are advertised, and that
/// window in packets.
const CROWDED: usize = 2;
const CROWDED_WINDOW: u32 = 16;

/// Reason for which sending data of a call stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stopped {
    /// Nothing is left that may be sent.
    Empty,
    /// The batch is full.
    Full,
    /// The path is at its limit.
    Path { by_window: bool },
}

impl<P: Payload, D: Datagram> Endpoint<P, D> {
    /// Fills `out` with the next datagrams to send; returns false if there are none. The driver
    /// calls it until then.
    pub fn poll_transmit(&mut self, now: Timestamp, out: &mut Transmit<P>) -> bool {
        out.clear();
        if let Some(packet) = self.control.pop_front() {
            out.begin(packet.route);
            out.segment(packet.bytes.len());
            out.header(&packet.bytes);
            self.count_out(out);
            return true;
        }
        while let Some(call) = self.ready.pop_front() {
            if let Some(c) = self.calls.get_mut(call) {
                c.ready = false;
                if self.send_for(now, call, out) {
                    self.count_out(out);
                    self.set_call_timer(call);
                    return true;
                }
                self.set_call_timer(call);
            }
        }
        false
    }

    fn count_out(&mut self, out: &Transmit<P>) {
        self.stats.datagrams_out += out.segments() as u64;
        self.stats.bytes_out += out.bytes() as u64;
    }

    /// Sends one batch for a call; queues the call again if it has more to send.
    fn send_for(&mut self, now: Timestamp, call: Key, out: &mut Transmit<P>) -> bool {
        let Some(c) = self.calls.get_mut(call) else {
            return false;
        };
        let proven = self
            .connections
            .get(c.place.connection)
            .is_some_and(|c| c.is_proven());
        if !proven {
            return std::mem::take(&mut c.ping_due) && self.ask_for_proof(now, call, out);
        }
        if c.ended.is_some() {
            return false;
        }
        // A reply implies that the request was received: no acknowledgement is needed beside it.
        let ack_due = c.acks.is_due();
        let reply_says_it = c.role == Role::Server && c.acks.ping.is_none();
        if ack_due && !reply_says_it && self.put_due_ack(now, call, out) {
            return true;
        }
        if self.send_data(now, call, out) {
            return true;
        }
        if ack_due && reply_says_it && self.put_due_ack(now, call, out) {
            return true;
        }
        let Some(c) = self.calls.get_mut(call) else {
            return false;
        };
        std::mem::take(&mut c.ping_due)
            && self.put_ack(now, call, (Reason::Ping, Serial(0)), None, out)
    }

    /// Requests proof from an unproven peer: with a challenge of its security class, or with a
    /// ping.
    fn ask_for_proof(&mut self, now: Timestamp, call: Key, out: &mut Transmit<P>) -> bool {
        let Some(c) = self.calls.get(call) else {
            return false;
        };
        let Some(connection) = self.connections.get_mut(c.place.connection) else {
            return false;
        };
        let Some(challenge) = connection.security.as_mut().and_then(|s| s.challenge()) else {
            return self.put_ack(now, call, (Reason::Ping, Serial(0)), None, out);
        };
        let mut header = connection.header(PacketType::Challenge, 0, CallNumber(0));
        header.serial = connection.take_serials(1);
        out.begin(connection.route);
        out.segment(HEADER_BYTES + challenge.len());
        out.header(&header.encode());
        out.header(&challenge);
        Stats::packets(&mut self.stats.packets_out, PacketType::Challenge as u8, 1);
        true
    }

    fn put_due_ack(&mut self, now: Timestamp, call: Key, out: &mut Transmit<P>) -> bool {
        let due = self.calls.get_mut(call).and_then(|c| c.acks.take());
        let put = due.is_some_and(|prompt| self.put_ack(now, call, prompt, None, out));
        if put {
            if let Some(c) = self.calls.get_mut(call).filter(|c| c.receiver.has_gap()) {
                c.acks.gap_reported(now, &self.config);
                self.set_call_timer(call);
            }
            self.stay_ready(call);
        }
        put
    }

    /// Queues a call again if it has more to send.
    fn stay_ready(&mut self, call: Key) {
        let more = self.calls.get(call).is_some_and(|c| {
            let room = self
                .paths
                .get(c.place.path)
                .map_or(0, |path| path.data_bytes());
            c.acks.is_due() || c.ping_due || c.has_data(room)
        });
        if more {
            self.mark_ready(call);
        }
    }

    /// Sends data of a call, if there is any and the path allows it.
    fn send_data(&mut self, now: Timestamp, call: Key, out: &mut Transmit<P>) -> bool {
        let Some(c) = self.calls.get(call) else {
            return false;
        };
        let Some(path) = self.paths.get(c.place.path) else {
            return false;
        };
        if !c.has_data(path.data_bytes()) {
            return false;
        }
        if self.probe_path(now, call, out) {
            self.mark_ready(call);
            return true;
        }
        let stopped = match self.fill(now, call, out) {
            Ok(stopped) => stopped,
            Err(SecurityError::Abort(code)) => {
                self.end_call(now, call, End::Security(code), Some(code));
                return false;
            }
            Err(SecurityError::Discard) => {
                self.end_call(now, call, End::Violation, None);
                return false;
            }
        };
        match stopped {
            Stopped::Full => self.mark_ready(call),
            Stopped::Path { by_window } => self.wait_for_path(call, by_window),
            Stopped::Empty => {}
        }
        out.segments() > 0
    }

    /// Puts datagrams of a call into a batch.
    fn fill(
        &mut self,
        now: Timestamp,
        call: Key,
        out: &mut Transmit<P>,
    ) -> Result<Stopped, SecurityError> {
        let stats = &mut self.stats;
        let Some(c) = self.calls.get_mut(call) else {
            return Ok(Stopped::Empty);
        };
        let (Some(connection), Some(path)) = (
            self.connections.get_mut(c.place.connection),
            self.paths.get_mut(c.place.path),
        ) else {
            return Ok(Stopped::Empty);
        };
        let (mut left, by_window) = path.allowance(now);
        let (jumbo, room) = (path.jumbo.carries(), path.data_bytes());
        let mut header = connection.header(PacketType::Data, c.place.channel, c.place.number);
        let place = connection.place(&header);
        let (mut packets, mut departed, mut largest) = (0, 0, 1);
        out.begin(connection.route);
        let stopped = loop {
            let want = left.clamp(1, 2 * u32::from(jumbo));
            c.sender
                .cut(want, room, place, connection.security.as_deref_mut())?;
            let most = u8::try_from(left).unwrap_or(u8::MAX).min(jumbo).max(1);
            let Some(datagram) = c.sender.next(most) else {
                break Stopped::Empty;
            };
            if left == 0 && !c.sender.probe_due() {
                break Stopped::Path { by_window };
            }
            if !out.fits(datagram.bytes) {
                break Stopped::Full;
            }
            let count = u32::from(datagram.packets);
            header.serial = connection.take_serials(count);
            let before = c.sender.resent();
            let new = c.sender.send(now, datagram, header, out);
            stats.resent += c.sender.resent() - before;
            left = left.saturating_sub(new);
            departed += new;
            packets += count;
            stats.jumbograms_out += u64::from(count > 1);
            largest = largest.max(datagram.packets);
        };
        if packets > 0 {
            let idle = stopped == Stopped::Empty;
            if c.sender.asks(idle, c.role, &path.rtt) {
                let skip = c.sender.must_not_ask(c.role);
                out.flag_last(skip, flag::REQUEST_ACK);
            }
            if largest > 1 {
                out.forbid_fragments();
            }
            path.sent(now, departed);
            path.sent += u64::from(packets);
            path.bytes_sent += out.bytes() as u64;
            Stats::packets(
                &mut stats.packets_out,
                PacketType::Data as u8,
                packets.into(),
            );
            c.acks.data_sent();
            c.clocks.spoke = now;
            connection.active = now;
        }
        Ok(stopped)
    }

    /// Registers a call to be woken when its path can send more.
    fn wait_for_path(&mut self, call: Key, by_window: bool) {
        let Some(c) = self.calls.get_mut(call) else {
            return;
        };
        let Some(path) = self.paths.get_mut(c.place.path) else {
            return;
        };
        if !c.waiting {
            c.waiting = true;
            path.waiting.push_back(call);
        }
        if by_window {
            path.congestion.held_back();
        } else {
            let at = path.pace_at();
            self.timers
                .set(Timer::Path(c.place.path), &mut path.timer_entry, at);
        }
    }

    /// Wakes calls that wait for their path, as many as it has room for packets.
    pub(super) fn wake_path(&mut self, now: Timestamp, path_key: Key) {
        let Some(path) = self.paths.get_mut(path_key) else {
            return;
        };
        if path.waiting.is_empty() {
            return;
        }
        let (allowed, by_window) = path.allowance(now);
        if allowed == 0 && !by_window {
            let at = path.pace_at();
            self.timers
                .set(Timer::Path(path_key), &mut path.timer_entry, at);
        }
        for _ in 0..allowed {
            let path = self.paths.get_mut(path_key);
            let Some(call) = path.and_then(|path| path.waiting.pop_front()) else {
                return;
            };
            if let Some(c) = self.calls.get_mut(call) {
                c.waiting = false;
            }
            self.mark_ready(call);
        }
    }

    /// Probes with a padded ping whether the path carries larger datagrams, if a call has enough
    /// data to make use of them.
    fn probe_path(&mut self, now: Timestamp, call: Key, out: &mut Transmit<P>) -> bool {
        let Some(c) = self.calls.get(call) else {
            return false;
        };
        let Some(path) = self.paths.get_mut(c.place.path) else {
            return false;
        };
        let uncut = c.sender.uncut();
        if uncut < 4 * crate::packet::PACKET_DATA_BYTES as u64 {
            return false;
        }
        let Some(packets) = path.jumbo.wanted(now) else {
            return false;
        };
        let (connection, path_key) = (c.place.connection, c.place.path);
        let bytes = crate::jumbo::datagram_bytes(packets);
        let Some(serial) = self.connections.get(connection).map(|c| c.next_serial()) else {
            return false;
        };
        if !self.put_ack(now, call, (Reason::Ping, Serial(0)), Some(bytes), out) {
            return false;
        }
        if let Some(path) = self.paths.get_mut(path_key) {
            let expires = now.plus(path.rtt.timeout(0));
            path.jumbo.probe_sent(connection, serial, packets, expires);
        }
        true
    }

    /// Puts an ACK packet into the batch, padded to `padded` bytes if set.
    fn put_ack(
        &mut self,
        now: Timestamp,
        call: Key,
        (reason, serial): (Reason, Serial),
        padded: Option<usize>,
        out: &mut Transmit<P>,
    ) -> bool {
        let Some(c) = self.calls.get_mut(call) else {
            return false;
        };
        let (Some(connection), Some(path)) = (
            self.connections.get_mut(c.place.connection),
            self.paths.get(c.place.path),
        ) else {
            return false;
        };
        let mut header = connection.header(PacketType::Ack, c.place.channel, c.place.number);
        header.flags |= flag::SLOW_START_OK;
        if reason == Reason::Ping {
            header.serial = self.proofs.ping_serial(now, connection, &header);
            header.flags |= flag::REQUEST_ACK;
            c.pinged = Some(Transmission {
                at: now,
                serial: header.serial,
            });
            self.stats.pings += 1;
        } else {
            header.serial = connection.take_serials(1);
        }
        // Until the peer's address is proven nothing is acknowledged: the peer retransmits and is
        // pinged again, without a timer on our side.
        let proven = connection.is_proven();
        let crowded = self.held_bytes > self.config.receive_bytes_max / CROWDED;
        let window = match (proven, crowded) {
            (false, _) => 1,
            (true, false) => self.config.receive_window,
            (true, true) => self.config.receive_window.min(CROWDED_WINDOW),
        };
        let ack = AckOut {
            first: c.receiver.hard(),
            previous: if proven { c.receiver.highest() } else { Seq(0) },
            serial,
            reason,
            takes: path.takes(window, self.config.jumbo_packets),
        };
        let told = if proven { usize::MAX } else { 0 };
        out.begin(connection.route);
        if padded.is_some() {
            out.forbid_fragments();
        }
        out.header(&header.encode());
        let mut bytes = HEADER_BYTES;
        bytes += out.header_with(|buffer| {
            let start = buffer.len();
            ack.encode(c.receiver.received().take(told), buffer);
            let least = padded.unwrap_or(0).saturating_sub(HEADER_BYTES);
            buffer.resize(buffer.len().max(start + least), 0);
        });
        out.segment(bytes);
        Stats::packets(&mut self.stats.packets_out, PacketType::Ack as u8, 1);
        c.clocks.spoke = now;
        true
    }
}
