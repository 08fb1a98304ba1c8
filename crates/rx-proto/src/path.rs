//! State of the path to a peer, shared by all connections with it.
//!
//! A path exists as long as a connection uses it. It determines how many packets may leave now, not
//! which ones.

use crate::ack::Trailer;
use crate::congestion::Congestion;
use crate::jumbo::{self, Jumbo};
use crate::pacing::Pacer;
use crate::packet::{HEADER_BYTES, PACKET_DATA_BYTES};
use crate::rtt::Rtt;
use crate::slab::Key;
use crate::time::Timestamp;
use crate::timers::TimerEntry;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Largest packet of the protocol on an Ethernet: 1500 minus the headers of IPv6, a fragment and
/// UDP (OpenAFS, `OLD_MAX_PACKET_SIZE`).
const ETHERNET_PACKET: u32 = 1444;

/// Smallest data size per packet that a peer or a network can impose: the remainder of 576 bytes,
/// the IPv4 minimum. Without it a peer could request one header per byte.
const PACKET_DATA_MIN: usize = 576 - 56 - HEADER_BYTES;

/// Path to a peer.
#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) peer: SocketAddr,
    /// Share of the peer's host.
    pub(crate) host: Key,
    /// Number of connections on this path.
    pub(crate) users: u32,
    pub(crate) rtt: Rtt,
    pub(crate) congestion: Congestion,
    pub(crate) jumbo: Jumbo,
    pacer: Pacer,
    /// Calls that wait until the path can send more.
    pub(crate) waiting: VecDeque<Key>,
    pub(crate) timer_entry: TimerEntry,
    /// Data bytes of a packet, such that it fits the limits of peer and network.
    data_bytes: usize,
    /// Whether the peer asks to be probed (Linux 6.14 and later).
    probed: bool,
    pub(crate) sent: u64,
    pub(crate) resent: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
}

impl Path {
    pub(crate) const fn new(peer: SocketAddr, host: Key, jumbo_max: u8) -> Path {
        Path {
            peer,
            host,
            users: 0,
            rtt: Rtt::new(),
            congestion: Congestion::new(),
            jumbo: Jumbo::new(jumbo_max),
            pacer: Pacer::new(),
            waiting: VecDeque::new(),
            timer_entry: TimerEntry::new(),
            data_bytes: PACKET_DATA_BYTES,
            probed: false,
            sent: 0,
            resent: 0,
            bytes_sent: 0,
            bytes_received: 0,
        }
    }

    pub(crate) const fn data_bytes(&self) -> usize {
        self.data_bytes
    }

    /// Computes the number of packets that may be sent now, and whether the window (and not the
    /// pacer) is the limit.
    pub(crate) fn allowance(&mut self, now: Timestamp) -> (u32, bool) {
        self.congestion.resume(now, &self.rtt);
        let room = self.congestion.room();
        let paced = self.pacer.allowance(
            now,
            self.congestion.window(),
            self.rtt.smoothed(),
            self.congestion.growth(),
        );
        (room.min(paced), room <= paced)
    }

    /// Returns the time at which the pacer allows more packets.
    pub(crate) const fn pace_at(&self) -> Timestamp {
        self.pacer.wake()
    }

    /// Records that `packets` packets were sent.
    pub(crate) fn sent(&mut self, now: Timestamp, packets: u32) {
        self.congestion.sent(now, packets);
        self.pacer.sent(packets);
    }

    /// Applies the limits that the peer advertises.
    pub(crate) fn set_peer_limits(&mut self, trailer: &Trailer) {
        let packet = trailer.max_mtu.min(trailer.if_mtu);
        self.limit_data(usize::try_from(packet).unwrap_or(usize::MAX));
        let datagram = usize::try_from(trailer.max_mtu).unwrap_or(usize::MAX);
        let fits = jumbo::packets_in(datagram);
        self.probed = trailer.datagram_packets == Some(0);
        self.jumbo.set_peer_limit(match trailer.datagram_packets {
            None => 1,
            Some(0) => fits,
            Some(packets) => fits.min(u8::try_from(packets).unwrap_or(u8::MAX)),
        });
    }

    /// Limits datagrams to `bytes` bytes, because the network stack refuses larger ones.
    pub(crate) fn local_limit(&mut self, bytes: usize) {
        self.limit_data(bytes);
        self.jumbo.local_limit(bytes);
    }

    fn limit_data(&mut self, packet: usize) {
        let data = packet.saturating_sub(HEADER_BYTES);
        self.data_bytes = data
            .clamp(PACKET_DATA_MIN, PACKET_DATA_BYTES)
            .min(self.data_bytes);
    }

    /// Returns the limits that our acknowledgements advertise: maxMTU, ifMTU, rwind and
    /// maxDgramPackets.
    ///
    /// A size beyond an Ethernet packet is advertised only to peers that handle it with care: those
    /// that ask to be probed, as we do (a last word of 0), and those whose path has carried
    /// jumbograms. OpenAFS would send single packets of that size, in fragments
    /// (`rxi_ReceiveAckPacket`); it treats the 0 as 1.
    pub(crate) fn takes(&self, window: u32, receive_packets: u8) -> [u32; 4] {
        let largest = |packets: u8| {
            let bytes = jumbo::datagram_bytes(packets) + 4;
            u32::try_from(bytes).unwrap_or(ETHERNET_PACKET)
        };
        let carried = self.jumbo.carries().min(receive_packets);
        match (receive_packets, carried) {
            (1, _) => [ETHERNET_PACKET, ETHERNET_PACKET, window, 1],
            (all, _) if self.probed => [largest(all), ETHERNET_PACKET, window, 0],
            (_, 1) => [ETHERNET_PACKET, ETHERNET_PACKET, window, 0],
            (_, some) => [largest(some), ETHERNET_PACKET, window, some.into()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Slab;

    fn path() -> Path {
        Path::new("192.0.2.1:7001".parse().unwrap(), Slab::new().insert(()), 6)
    }

    fn takes(words: [u32; 4]) -> Trailer {
        Trailer {
            max_mtu: words[0],
            if_mtu: words[1],
            window: Some(words[2]),
            datagram_packets: Some(words[3]),
        }
    }

    #[test]
    fn what_known_peers_say_of_themselves_is_understood() {
        // As advertised by: OpenAFS file server, the same with -jumbo, afsd.fuse, kafs 6.1, kafs
        // 6.14.
        for (words, packets) in [
            ([1444, 1444, 32, 1], None),
            ([5692, 1444, 32, 4], Some(4)),
            ([15604, 8524, 32, 6], Some(6)),
            ([5692, 1444, 255, 4], Some(4)),
            ([5692, 1444, 255, 0], Some(4)),
        ] {
            let mut path = path();
            path.set_peer_limits(&takes(words));
            assert_eq!(path.data_bytes(), PACKET_DATA_BYTES, "{words:?}");
            let now = Timestamp::from_nanos(1);
            assert_eq!(path.jumbo.wanted(now), packets, "{words:?}");
        }
    }

    #[test]
    fn a_peer_cannot_ask_for_a_header_per_byte() {
        let mut path = path();
        path.set_peer_limits(&takes([1, 0, 1, 200]));
        assert_eq!(path.data_bytes(), PACKET_DATA_MIN);
        assert_eq!(path.jumbo.wanted(Timestamp::from_nanos(1)), None);
    }

    #[test]
    fn large_datagrams_are_named_only_to_peers_that_probe() {
        let mut path = path();
        assert_eq!(path.takes(255, 4), [1444, 1444, 255, 0]);
        assert_eq!(path.takes(255, 1), [1444, 1444, 255, 1]);
        path.set_peer_limits(&takes([5692, 1444, 255, 0]));
        assert_eq!(path.takes(255, 4), [5692, 1444, 255, 0]);
    }
}
