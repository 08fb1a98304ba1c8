//! Jumbograms: several full packets in one datagram, where the path was seen to carry them.
//!
//! A jumbogram that is larger than the path's largest datagram is fragmented by IP, and one lost
//! fragment costs all of its packets. So none is sent before a ping padded to its size, with the
//! "don't fragment" bit set, was answered; Linux's rxrpc probes in the same way (`rxrpc_send_ACK`,
//! `pmtud_trial`). If jumbograms get lost one after the other, the path has changed: single packets
//! again, and a new probe after some minutes.

use crate::number::Serial;
use crate::packet::{HEADER_BYTES, JUMBO_HEADER_BYTES, PACKET_DATA_BYTES};
use crate::slab::Key;
use crate::time::Timestamp;

/// Bytes of each packet of a jumbogram but the first.
const STEP: usize = PACKET_DATA_BYTES + JUMBO_HEADER_BYTES;

/// Pings of one size that may stay unanswered: one may be lost like any packet.
const TRIES: u8 = 2;

/// Jumbograms lost in a row that say that the path no longer carries them.
const LOST_MAX: u8 = 3;

/// Time before a path that refused a size is asked again.
const RETRY_NANOS: u64 = 600_000_000_000;

/// Bytes of a datagram with this many full packets.
pub(crate) const fn datagram_bytes(packets: u8) -> usize {
    HEADER_BYTES + PACKET_DATA_BYTES + (packets.saturating_sub(1) as usize) * STEP
}

/// Full packets that fit a datagram of this many bytes; 1 at least.
pub(crate) fn packets_in(bytes: usize) -> u8 {
    let beyond = bytes.saturating_sub(datagram_bytes(1)) / STEP;
    u8::try_from(beyond + 1).unwrap_or(u8::MAX)
}

/// What a path carries, and the probe that is on its way.
#[derive(Debug, Clone)]
pub(crate) struct Jumbo {
    carries: u8,
    /// What we, the peer, and the local network stack allow.
    ours: u8,
    peers: u8,
    local: u8,
    probe: Option<Probe>,
    /// Size to ask for next.
    target: u8,
    tries: u8,
    not_before: Timestamp,
    lost: u8,
}

#[derive(Debug, Clone, Copy)]
struct Probe {
    connection: Key,
    serial: Serial,
    packets: u8,
    expires: Timestamp,
}

impl Jumbo {
    pub(crate) const fn new(ours: u8) -> Jumbo {
        Jumbo {
            carries: 1,
            ours,
            peers: 1,
            local: u8::MAX,
            probe: None,
            target: u8::MAX,
            tries: 0,
            not_before: Timestamp::from_nanos(0),
            lost: 0,
        }
    }

    /// Packets that a datagram may have.
    pub(crate) fn carries(&self) -> u8 {
        self.carries.min(self.limit()).max(1)
    }

    fn limit(&self) -> u8 {
        self.ours.min(self.peers).min(self.local)
    }

    /// The peer takes so many packets in a datagram.
    pub(crate) const fn peer_takes(&mut self, packets: u8) {
        self.peers = packets;
    }

    /// The local network stack sends no datagram larger than `bytes`.
    pub(crate) fn local_limit(&mut self, bytes: usize) {
        self.local = packets_in(bytes);
        self.probe = None;
    }

    /// The number of packets whose size should be probed now, if any.
    pub(crate) fn wanted(&mut self, now: Timestamp) -> Option<u8> {
        if let Some(probe) = self.probe {
            if now < probe.expires {
                return None;
            }
            self.probe = None;
            if self.tries >= TRIES {
                self.tries = 0;
                self.target = probe.packets / 2;
            }
        }
        if self.target.min(self.limit()) <= self.carries() {
            // Larger than what is carried was refused, or nothing larger is allowed.
            if self.target < self.limit() {
                self.not_before = now.plus(RETRY_NANOS);
            }
            self.target = u8::MAX;
        }
        let packets = self.target.min(self.limit());
        (packets > self.carries() && now >= self.not_before).then_some(packets)
    }

    /// A probe left.
    pub(crate) const fn probe_sent(
        &mut self,
        connection: Key,
        serial: Serial,
        packets: u8,
        expires: Timestamp,
    ) {
        self.tries += 1;
        self.probe = Some(Probe {
            connection,
            serial,
            packets,
            expires,
        });
    }

    /// A ping was answered; if it was the probe, the path carries its size.
    pub(crate) fn answered(&mut self, connection: Key, serial: Serial) {
        let ours = |p: &Probe| p.connection == connection && p.serial == serial;
        if let Some(probe) = self.probe.filter(ours) {
            self.probe = None;
            self.carries = probe.packets;
            self.target = probe.packets;
            self.tries = 0;
            self.lost = 0;
        }
    }

    /// A whole jumbogram was lost.
    pub(crate) fn lost(&mut self, now: Timestamp) {
        self.lost = self.lost.saturating_add(1);
        if self.lost >= LOST_MAX {
            self.carries = 1;
            self.target = u8::MAX;
            self.not_before = now.plus(RETRY_NANOS);
        }
    }

    /// One arrived.
    pub(crate) const fn arrived(&mut self) {
        self.lost = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Slab;

    fn later(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn sizes_are_those_of_the_protocol() {
        let sizes: Vec<_> = (1..=4).map(datagram_bytes).collect();
        assert_eq!(sizes, [1440, 2856, 4272, 5688]);
        for packets in 1..=40 {
            assert_eq!(packets_in(datagram_bytes(packets)), packets);
            assert_eq!(packets_in(datagram_bytes(packets) + STEP - 1), packets);
        }
        assert_eq!((packets_in(0), packets_in(1444)), (1, 1));
    }

    #[test]
    fn a_size_is_used_after_its_probe_was_answered() {
        let connection = Slab::new().insert(());
        let mut jumbo = Jumbo::new(6);
        assert_eq!((jumbo.carries(), jumbo.wanted(later(1))), (1, None));
        jumbo.peer_takes(4);
        assert_eq!(jumbo.wanted(later(1)), Some(4));
        jumbo.probe_sent(connection, Serial(9), 4, later(2));
        assert_eq!(jumbo.wanted(later(1)), None);
        jumbo.answered(connection, Serial(8));
        assert_eq!(jumbo.carries(), 1);
        jumbo.answered(connection, Serial(9));
        assert_eq!((jumbo.carries(), jumbo.wanted(later(3))), (4, None));
        jumbo.peer_takes(1);
        assert_eq!(jumbo.carries(), 1);
    }

    #[test]
    fn unanswered_probes_ask_for_less_and_then_wait() {
        let connection = Slab::new().insert(());
        let mut jumbo = Jumbo::new(4);
        jumbo.peer_takes(4);
        let mut asked = Vec::new();
        for second in 1..20 {
            if let Some(packets) = jumbo.wanted(later(second)) {
                asked.push(packets);
                jumbo.probe_sent(connection, Serial(1), packets, later(second + 1));
            }
        }
        assert_eq!(asked, [4, 4, 2, 2]);
        assert_eq!(jumbo.wanted(later(30)), None);
        assert_eq!(jumbo.wanted(later(700)), Some(4));
    }

    #[test]
    fn jumbograms_lost_in_a_row_are_given_up() {
        let connection = Slab::new().insert(());
        let mut jumbo = Jumbo::new(4);
        jumbo.peer_takes(4);
        jumbo.probe_sent(connection, Serial(1), 4, later(9));
        jumbo.answered(connection, Serial(1));
        jumbo.lost(later(1));
        jumbo.lost(later(1));
        jumbo.arrived();
        jumbo.lost(later(1));
        jumbo.lost(later(1));
        assert_eq!(jumbo.carries(), 4);
        jumbo.lost(later(1));
        assert_eq!((jumbo.carries(), jumbo.wanted(later(2))), (1, None));
        jumbo.local_limit(1500);
        assert_eq!(jumbo.wanted(later(1000)), None);
    }
}
