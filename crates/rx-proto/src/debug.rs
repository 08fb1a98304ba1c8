//! Bodies of DEBUG packets, which `rxdebug` requests and displays.
//!
//! A question consists of two words, type and index; its answer is one of the structures of
//! `src/rx/rx.h` in OpenAFS (`rx_debugStats`, `rx_debugConn`, `rx_debugPeer`, `rx_statistics`),
//! version 'S'. Fields without an equivalent are zero, and so are those that only the two ends of a
//! connection may know: its epoch and id, and its serial numbers.

use crate::stats::Stats;
use std::net::{IpAddr, SocketAddr};

/// Version of the structures, as reported by OpenAFS 1.6 and later.
const VERSION: u8 = b'S';

/// Type of the answer to a question of an unknown type (`RX_DEBUGI_BADTYPE`).
const BAD_TYPE: i32 = -8;

/// Type of a DEBUG request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question {
    /// `RX_DEBUGI_GETSTATS`
    Basics,
    /// `RX_DEBUGI_GETCONN`: the n-th connection with a call.
    BusyConnection(u32),
    /// `RX_DEBUGI_GETALLCONN`: the n-th connection.
    Connection(u32),
    /// `RX_DEBUGI_RXSTATS`
    Stats,
    /// `RX_DEBUGI_GETPEER`: the n-th peer.
    Peer(u32),
    /// A request of an unknown type.
    Unknown(u32),
}

impl Question {
    pub(crate) fn parse(body: &[u8]) -> Option<Question> {
        let [a, b, c, d, e, f, g, h] = *body.first_chunk::<8>()?;
        let index = u32::from_be_bytes([e, f, g, h]);
        Some(match u32::from_be_bytes([a, b, c, d]) {
            1 => Question::Basics,
            2 => Question::BusyConnection(index),
            3 => Question::Connection(index),
            4 => Question::Stats,
            5 => Question::Peer(index),
            kind => Question::Unknown(kind),
        })
    }
}

/// Connection, as displayed by `rxdebug`.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionView {
    pub(crate) peer: SocketAddr,
    pub(crate) security_index: u8,
    pub(crate) server: bool,
    pub(crate) channels: [ChannelView; 4],
}

/// Channel, as displayed by `rxdebug`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ChannelView {
    pub(crate) number: u32,
    pub(crate) state: CallState,
    pub(crate) sending: bool,
    pub(crate) holds_input: bool,
    pub(crate) holds_output: bool,
}

/// `RX_STATE_*`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum CallState {
    #[default]
    None = 0,
    Precall = 1,
    Active = 2,
    Hold = 4,
}

/// Peer, as displayed by `rxdebug`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerView {
    pub(crate) peer: SocketAddr,
    pub(crate) connections: u16,
    pub(crate) rtt_nanos: u64,
    pub(crate) deviation_nanos: u64,
    pub(crate) timeout_nanos: u64,
    pub(crate) sent: u64,
    pub(crate) resent: u64,
    pub(crate) window: u32,
    pub(crate) datagram_packets: u8,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
}

/// Totals for the statistics answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Totals {
    pub(crate) server_connections: usize,
    pub(crate) client_connections: usize,
    pub(crate) peers: usize,
    pub(crate) calls: usize,
}

/// Buffer to which big-endian words are appended.
#[derive(Default)]
struct Words(Vec<u8>);

impl Words {
    /// Appends a number as a word, saturating at the largest one.
    fn number(&mut self, value: u64) -> &mut Words {
        let word = u32::try_from(value).unwrap_or(u32::MAX);
        self.0.extend(word.to_be_bytes());
        self
    }

    fn half(&mut self, value: u64) -> &mut Words {
        let half = u16::try_from(value).unwrap_or(u16::MAX);
        self.0.extend(half.to_be_bytes());
        self
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Words {
        self.0.extend(bytes);
        self
    }

    fn zeros(&mut self, count: usize) -> &mut Words {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    /// Appends an IPv4 address; an IPv6 address does not fit and is written as zero.
    fn host(&mut self, peer: SocketAddr) -> &mut Words {
        match peer.ip().to_canonical() {
            IpAddr::V4(address) => self.bytes(&address.octets()),
            IpAddr::V6(_) => self.zeros(4),
        }
    }

    /// Appends seconds and microseconds.
    fn clock(&mut self, nanos: u64) -> &mut Words {
        self.number(nanos / 1_000_000_000)
            .number(nanos % 1_000_000_000 / 1000)
    }
}

/// Encodes an `rx_debugStats`, 56 bytes.
pub(crate) fn basics(stats: &Stats) -> Vec<u8> {
    let mut w = Words::default();
    // Free packets, reclaims, calls executed; waiting for packets, descriptors, version, spare.
    w.zeros(8).number(stats.calls_in).bytes(&[0, 1, VERSION, 0]);
    // Calls waiting, idle threads, calls that ever waited, packets; six spares.
    w.zeros(16).zeros(24);
    w.0
}

/// Encodes an `rx_debugConn`, 176 bytes; for `None`, one whose cid marks the end of the list.
pub(crate) fn connection(view: Option<&ConnectionView>) -> Vec<u8> {
    let mut w = Words::default();
    let Some(view) = view else {
        w.zeros(4).number(u32::MAX.into()).zeros(168);
        return w.0;
    };
    // Connection id and serial number stay zero: with them and the epoch below, anyone could forge
    // packets of the peer.
    w.host(view.peer).zeros(8);
    for channel in &view.channels {
        w.number(channel.number.into());
    }
    // No error; then port, flags, type, class and three bytes for alignment.
    w.zeros(4).half(view.peer.port().into());
    w.bytes(&[0, u8::from(view.server), view.security_index, 0, 0, 0]);
    w.bytes(&view.channels.map(|c| c.state as u8));
    // RX_MODE_SENDING and RX_MODE_RECEIVING.
    w.bytes(&view.channels.map(|c| match (c.state, c.sending) {
        (CallState::None, _) => 0,
        (_, true) => 1,
        (_, false) => 2,
    }));
    w.zeros(4);
    // RX_OTHER_IN and RX_OTHER_OUT.
    w.bytes(
        &view
            .channels
            .map(|c| u8::from(c.holds_input) | u8::from(c.holds_output) << 1),
    );
    // No information about the security class.
    w.zeros(80).number(1444).zeros(36);
    w.0
}

/// Encodes an `rx_debugPeer`, 132 bytes; for `None`, one whose host marks the end of the list.
pub(crate) fn peer(view: Option<&PeerView>) -> Vec<u8> {
    let mut w = Words::default();
    let Some(view) = view else {
        w.number(u32::MAX.into()).zeros(128);
        return w.0;
    };
    w.host(view.peer).half(view.peer.port().into()).half(1444);
    // Idle since, connections; size, number and end of the burst.
    w.zeros(4).half(view.connections.into()).zeros(2).zeros(8);
    // Units of 1/8 ms and 1/4 ms.
    w.number(view.rtt_nanos / 125_000)
        .number(view.deviation_nanos / 250_000);
    w.clock(view.timeout_nanos)
        .number(view.sent)
        .number(view.resent);
    // Skews and the rate flag; then natMTU, maxMTU, maxDgramPackets, ifDgramPackets, MTU.
    w.zeros(12).half(1444).half(1444);
    let packets = u64::from(view.datagram_packets);
    w.half(packets).half(packets).half(1444);
    w.half(view.window.into()).half(packets).zeros(2);
    for bytes in [view.bytes_sent, view.bytes_received] {
        w.bytes(&bytes.to_be_bytes());
    }
    w.zeros(40);
    w.0
}

/// Encodes an `rx_statistics`, 284 bytes.
pub(crate) fn statistics(stats: &Stats, totals: &Totals) -> Vec<u8> {
    let mut w = Words::default();
    let data = |packets: &[u64]| packets.first().copied().unwrap_or(0);
    let ack = |packets: &[u64]| packets.get(1).copied().unwrap_or(0);
    // Requests for packets, four failures of them, bogus packets and their host.
    w.zeros(20).number(stats.malformed).zeros(4);
    // Reads without a packet or a buffer, selects.
    w.zeros(4).number(stats.refused).zeros(8);
    for packets in stats.packets_in {
        w.number(packets);
    }
    let new = data(&stats.packets_in).saturating_sub(stats.duplicates);
    w.number(new)
        .number(ack(&stats.packets_in))
        .number(stats.duplicates)
        .number(stats.stray);
    for packets in stats.packets_out {
        w.number(packets);
    }
    let aborts = stats.packets_out.get(3).copied().unwrap_or(0);
    w.number(ack(&stats.packets_out))
        .number(stats.pings)
        .number(aborts)
        .number(stats.busy);
    w.number(data(&stats.packets_out).saturating_sub(stats.resent));
    w.number(stats.resent).zeros(8);
    w.clock(stats.rtt_sum)
        .clock(stats.rtt_min)
        .clock(stats.rtt_max)
        .number(stats.rtt_samples);
    w.number(totals.server_connections as u64)
        .number(totals.client_connections as u64);
    w.number(totals.peers as u64)
        .number(totals.calls as u64)
        .zeros(4);
    // Failed sends, fatal errors, packets of calls that are over, two failures, busies; spares.
    w.zeros(20).number(stats.busy).zeros(16);
    w.0
}

/// Encodes an `rx_debugIn` that reports an unknown question.
pub(crate) fn unknown(kind: u32) -> Vec<u8> {
    let mut w = Words::default();
    w.bytes(&BAD_TYPE.to_be_bytes()).number(kind.into());
    w.0
}

/// Builds the answer to a VERSION packet: 65 bytes, text and zeros.
pub(crate) fn version(text: &str) -> Vec<u8> {
    let mut body: Vec<u8> = text.bytes().take(64).collect();
    body.resize(65, 0);
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_the_lengths_of_their_structures() {
        let stats = Stats::default();
        let totals = Totals {
            server_connections: 1,
            client_connections: 2,
            peers: 3,
            calls: 4,
        };
        let peer_view = PeerView {
            peer: "192.0.2.1:7001".parse().unwrap(),
            connections: 1,
            rtt_nanos: 3_000_000,
            deviation_nanos: 1_000_000,
            timeout_nanos: 1_200_000_000,
            sent: 5,
            resent: 6,
            window: 7,
            datagram_packets: 1,
            bytes_sent: 8,
            bytes_received: 9,
        };
        let view = ConnectionView {
            peer: peer_view.peer,
            security_index: 0,
            server: true,
            channels: [ChannelView::default(); 4],
        };
        assert_eq!(basics(&stats).len(), 56);
        assert_eq!(connection(None).len(), 176);
        assert_eq!(connection(Some(&view)).len(), 176);
        assert_eq!(peer(None).len(), 132);
        assert_eq!(peer(Some(&peer_view)).len(), 132);
        assert_eq!(statistics(&stats, &totals).len(), 284);
        assert_eq!(unknown(99).len(), 8);
        assert_eq!(version(&"x".repeat(99)).len(), 65);
    }
}
