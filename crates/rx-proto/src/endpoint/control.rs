//! Control packets, which are sent as they are: aborts, answers, challenges.
//!
//! Their queue is bounded, and so is the rate of answers to packets that belong to no connection:
//! this limits the traffic that spoofed packets can cause.

use super::Endpoint;
use crate::ack::{AckOut, Reason};
use crate::config::DebugAccess;
use crate::number::{Seq, Serial};
use crate::packet::{HEADER_BYTES, Header, PacketType, flag};
use crate::payload::{Datagram, Payload};
use crate::slab::Key;
use crate::stats::Stats;
use crate::time::Timestamp;
use crate::transmit::Route;

/// A complete packet.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) route: Route,
    pub(super) bytes: Vec<u8>,
}

/// Token bucket for answers to stray packets; holds the tokens of one second.
#[derive(Debug)]
pub(super) struct Strays {
    per_second: u64,
    /// Tokens in billionths of an answer.
    level: u64,
    filled_at: Timestamp,
}

const BILLION: u64 = 1_000_000_000;

impl Strays {
    pub(super) fn new(per_second: u32) -> Strays {
        let per_second = u64::from(per_second);
        Strays {
            per_second,
            level: per_second * BILLION,
            filled_at: Timestamp::from_nanos(0),
        }
    }

    /// Takes a token and returns whether a stray packet may be answered now.
    pub(super) fn take(&mut self, now: Timestamp) -> bool {
        let nanos = now.nanos_since(self.filled_at).min(BILLION);
        self.level = (self.level + nanos * self.per_second).min(self.per_second * BILLION);
        self.filled_at = now;
        let may = self.level >= BILLION;
        if may {
            self.level -= BILLION;
        }
        may
    }
}

impl<P: Payload, D: Datagram> Endpoint<P, D> {
    /// Queues a packet, if there is room.
    pub(super) fn queue(&mut self, route: Route, header: &Header, body: &[u8]) {
        if self.control.len() >= self.config.control_packets_max {
            self.stats.control_dropped += 1;
            return;
        }
        Stats::packets(&mut self.stats.packets_out, header.kind as u8, 1);
        let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
        bytes.extend(header.encode());
        bytes.extend(body);
        self.control.push_back(Control { route, bytes });
    }

    /// Answers a packet that belongs to no connection, with its header as sent by the other side.
    pub(super) fn answer_stray(
        &mut self,
        now: Timestamp,
        route: Route,
        header: &Header,
        kind: PacketType,
        body: &[u8],
    ) {
        let answers = self.config.questions.of(route.peer.ip());
        if answers == DebugAccess::None || !self.strays.take(now) {
            self.stats.strays_unanswered += 1;
            return;
        }
        let answer = Header {
            kind,
            seq: Seq(0),
            serial: Serial(0),
            flags: (header.flags ^ flag::CLIENT_INITIATED) & flag::CLIENT_INITIATED,
            checksum: 0,
            ..*header
        };
        self.queue(route, &answer, body);
    }

    /// Queues a packet of a connection that concerns a channel's last call, or no call.
    pub(super) fn queue_on(&mut self, connection: Key, header: Header, body: &[u8]) {
        let Some(connection) = self.connections.get_mut(connection) else {
            return;
        };
        let header = Header {
            serial: connection.take_serials(1),
            ..header
        };
        let route = connection.route;
        self.queue(route, &header, body);
    }

    /// Queues an ABORT with this code for the last call on a channel.
    pub(super) fn queue_abort(&mut self, connection: Key, channel: usize, code: i32) {
        let Some(c) = self.connections.get(connection) else {
            return;
        };
        let Some(number) = c.channels.get(channel).map(|c| c.number) else {
            return;
        };
        let header = c.header(PacketType::Abort, channel, number);
        self.queue_on(connection, header, &code.to_be_bytes());
    }

    /// Queues an acknowledgement of the whole reply of the last call on a channel.
    pub(super) fn queue_received(
        &mut self,
        connection: Key,
        channel: usize,
        last: Seq,
        prompt: (Reason, Serial),
    ) {
        let Some(c) = self.connections.get(connection) else {
            return;
        };
        let Some(number) = c.channels.get(channel).map(|c| c.number) else {
            return;
        };
        let mut header = c.header(PacketType::Ack, channel, number);
        header.flags |= flag::SLOW_START_OK;
        let takes = self.paths.get(c.path).map_or([0; 4], |path| {
            path.takes(self.config.receive_window, self.config.jumbo_packets)
        });
        let ack = AckOut {
            first: last.next(),
            previous: last,
            serial: prompt.1,
            reason: prompt.0,
            takes,
        };
        let mut body = Vec::new();
        ack.encode(std::iter::empty(), &mut body);
        self.queue_on(connection, header, &body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strays_are_answered_at_a_rate() {
        let mut strays = Strays::new(5);
        let count = |strays: &mut Strays, at: u64| {
            let now = Timestamp::from_nanos(at);
            (0..100).filter(|_| strays.take(now)).count()
        };
        assert_eq!(count(&mut strays, 1), 5);
        assert_eq!(count(&mut strays, BILLION / 2), 2);
        assert_eq!(count(&mut strays, 100 * BILLION), 5);
        assert_eq!(count(&mut Strays::new(0), 1), 0);
    }
}
