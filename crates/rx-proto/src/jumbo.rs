//! Jumbograms: several full packets in one datagram, used where the path has carried them before.
//!
//! A jumbogram larger than the path MTU is fragmented by IP, and one lost fragment costs all of its
//! packets. So no jumbogram is sent until a ping padded to its size, with the "don't fragment" bit
//! set, has been answered; Linux's rxrpc probes in the same way (`rxrpc_send_ACK`, `pmtud_trial`).
//! If jumbograms are lost over several round trips and none arrives, the path has changed or is
//! congested: single packets are sent again, and a new probe after a few seconds.

use crate::number::Serial;
use crate::packet::{HEADER_BYTES, JUMBO_HEADER_BYTES, PACKET_DATA_BYTES};
use crate::slab::Key;
use crate::time::Timestamp;

/// Length in bytes of each packet of a jumbogram except the first.
const STEP: usize = PACKET_DATA_BYTES + JUMBO_HEADER_BYTES;

/// Unanswered pings of one size before it is given up; one may be lost like any packet.
const TRIES: u8 = 2;

/// Consecutive lost jumbograms after which the path is considered not to carry them, if the losses
/// span several round trips: an overflowing queue can drop as many at once.
const LOST_MAX: u8 = 3;

/// Time that the losses must span: in round trips, and at least in nanoseconds.
const LOST_ROUNDS: u64 = 4;
const LOST_NANOS: u64 = 2_000_000;

/// Delay in nanoseconds before a new probe: on a path that refused a size, and on one that carried
/// it before its jumbograms were lost.
const RETRY_NANOS: u64 = 600_000_000_000;
const RESUME_NANOS: u64 = 5_000_000_000;

/// Returns the length in bytes of a datagram with `packets` full packets.
pub(crate) const fn datagram_bytes(packets: u8) -> usize {
    HEADER_BYTES + PACKET_DATA_BYTES + (packets.saturating_sub(1) as usize) * STEP
}

/// Computes the number of full packets that fit a datagram of `bytes` bytes, at least 1.
pub(crate) fn packets_in(bytes: usize) -> u8 {
    let beyond = bytes.saturating_sub(datagram_bytes(1)) / STEP;
    u8::try_from(beyond + 1).unwrap_or(u8::MAX)
}

/// Datagram size that a path carries, and the probe in flight.
#[derive(Debug, Clone)]
pub(crate) struct Jumbo {
    carries: u8,
    /// Limits in packets of the configuration, the peer and the local network stack.
    ours: u8,
    peers: u8,
    local: u8,
    probe: Option<Probe>,
    /// Number of packets to probe next.
    target: u8,
    tries: u8,
    not_before: Timestamp,
    /// Jumbograms lost since one arrived, and when the first of them was declared lost.
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

    /// Returns the largest number of packets in a datagram.
    pub(crate) fn carries(&self) -> u8 {
        self.carries.min(self.limit()).max(1)
    }

    fn limit(&self) -> u8 {
        self.ours.min(self.peers).min(self.local)
    }

    /// Sets the peer's limit in packets per datagram.
    pub(crate) const fn set_peer_limit(&mut self, packets: u8) {
        self.peers = packets;
    }

    /// Sets the local network stack's limit in bytes per datagram.
    pub(crate) fn local_limit(&mut self, bytes: usize) {
        self.local = packets_in(bytes);
        self.probe = None;
    }

    /// Returns the number of packets whose size should be probed now, if any.
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
            // A larger size than the current one was refused, or no larger one is allowed.
            if self.target < self.limit() {
                self.not_before = now.plus(RETRY_NANOS);
            }
            self.target = u8::MAX;
        }
        let packets = self.target.min(self.limit());
        (packets > self.carries() && now >= self.not_before).then_some(packets)
    }

    /// Records a probe that was sent.
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

    /// Handles the answer to a ping; if it was the probe, the path carries that size.
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

    /// Records the loss of a whole jumbogram on a path with this round trip.
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

    /// Records the arrival of a jumbogram.
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
        jumbo.set_peer_limit(4);
        assert_eq!(jumbo.wanted(later(1)), Some(4));
        jumbo.probe_sent(connection, Serial(9), 4, later(2));
        assert_eq!(jumbo.wanted(later(1)), None);
        jumbo.answered(connection, Serial(8));
        assert_eq!(jumbo.carries(), 1);
        jumbo.answered(connection, Serial(9));
        assert_eq!((jumbo.carries(), jumbo.wanted(later(3))), (4, None));
        jumbo.set_peer_limit(1);
        assert_eq!(jumbo.carries(), 1);
    }

    #[test]
    fn unanswered_probes_ask_for_less_and_then_wait() {
        let connection = Slab::new().insert(());
        let mut jumbo = Jumbo::new(4);
        jumbo.set_peer_limit(4);
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
        jumbo.set_peer_limit(4);
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
