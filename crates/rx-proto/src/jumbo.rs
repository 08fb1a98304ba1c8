//! Jumbograms: several full packets in one datagram, where the path was seen to carry them.
//!
//! A jumbogram that is larger than the path's largest datagram is fragmented by IP, and one lost
//! fragment costs all of its packets. So none is sent before a ping padded to its size, with the
//! "don't fragment" bit set, was answered; Linux's rxrpc probes in the same way (`rxrpc_send_ACK`,
//! `pmtud_trial`). If jumbograms get lost over several round trips and none arrives, the path has
//! changed, or is too full: single packets again, and a new probe after some seconds.

use crate::number::Serial;
use crate::packet::{HEADER_BYTES, JUMBO_HEADER_BYTES, PACKET_DATA_BYTES};
use crate::slab::Key;
use crate::time::Timestamp;

/// Bytes of each packet of a jumbogram but the first.
const STEP: usize = PACKET_DATA_BYTES + JUMBO_HEADER_BYTES;

/// Pings of one size that may stay unanswered: one may be lost like any packet.
const TRIES: u8 = 2;

/// Jumbograms lost without one that arrived that say that the path no longer carries them, if they
/// were lost over several round trips: a queue that overflows drops as many at once.
const LOST_MAX: u8 = 3;

/// How many round trips, and how long at least.
const LOST_ROUNDS: u64 = 4;
const LOST_NANOS: u64 = 2_000_000;

/// Time before a path that refused a size is asked again, and before one that carried it until it was
/// too full is.
const RETRY_NANOS: u64 = 600_000_000_000;
const RESUME_NANOS: u64 = 5_000_000_000;

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
    /// Jumbograms lost since one arrived, and when the first of them was missed.
    lost: u8,
    lost_since: Timestamp,
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
            lost_since: Timestamp::from_nanos(0),
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

    /// A whole jumbogram was lost, on a path of this round trip.
    pub(crate) fn lost(&mut self, now: Timestamp, rtt_nanos: u64) {
        if self.lost == 0 {
            self.lost_since = now;
        }
        self.lost = self.lost.saturating_add(1);
        let long = (LOST_ROUNDS * rtt_nanos).max(LOST_NANOS);
        if self.lost >= LOST_MAX && now.nanos_since(self.lost_since) >= long {
            self.carries = 1;
            self.lost = 0;
            self.target = u8::MAX;
            self.not_before = now.plus(RESUME_NANOS);
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
    fn jumbograms_that_keep_getting_lost_are_given_up() {
        let connection = Slab::new().insert(());
        let mut jumbo = Jumbo::new(4);
        jumbo.peer_takes(4);
        jumbo.probe_sent(connection, Serial(1), 4, later(9));
        jumbo.answered(connection, Serial(1));
        let rtt = 400_000_000;
        jumbo.lost(later(1), rtt);
        jumbo.arrived();
        for _ in 0..9 {
            // All at once: a queue was full.
            jumbo.lost(later(2), rtt);
        }
        jumbo.lost(later(3), rtt);
        assert_eq!(jumbo.carries(), 4);
        jumbo.lost(later(4), rtt);
        assert_eq!((jumbo.carries(), jumbo.wanted(later(5))), (1, None));
        jumbo.local_limit(1500);
        assert_eq!(jumbo.wanted(later(1000)), None);
    }
}
