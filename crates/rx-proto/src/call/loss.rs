//! Time-based loss detection for the packets of a call: RACK-TLP (RFC 8985), adapted to Rx.
//!
//! A packet is lost if one that was sent later has arrived, and the time in which the network could
//! have reordered the two has passed. Unlike those of TCP, acknowledgements name the transmission
//! that prompted them, so an arrival is never credited to the wrong transmission. If nothing is
//! heard, a probe is sent after two round trips, and two more at twice the interval each (RFC 9002
//! does the same without a limit); after that the retransmission timeout declares all packets lost.
//!
//! Section numbers are those of RFC 8985.

use crate::number::Serial;
use crate::rtt::Rtt;
use crate::time::Timestamp;

/// Number of packets received beyond a missing one that declare it lost at once, until the first
/// reordering is observed (section 3.3.2, `DupThresh`).
const DUPLICATE_THRESHOLD: u32 = 3;

/// Recoveries without a sign of reordering after which the reordering window shrinks again (section
/// 6.2, step 4).
const PERSIST: u8 = 16;

/// Probes before a timeout: each is one packet, and tells more than the silence after another.
const PROBES: u8 = 3;

/// Smallest time in nanoseconds added to a round trip before a probe, if round trips vary less (RFC
/// 9002, section 6.2.1, `kGranularity`). Nothing is added for delayed acknowledgements, because the
/// last packet of a burst requests an immediate one.
const GRANULARITY: u64 = 1_000_000;

/// A transmission; later ones compare as greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transmission {
    pub(crate) at: Timestamp,
    pub(crate) serial: Serial,
}

impl Transmission {
    /// Checks whether this transmission left after `other` (section 6.2, `RACK_sent_after`).
    pub(crate) fn is_after(self, other: Transmission) -> bool {
        self.at > other.at || self.at == other.at && self.serial.is_after(other.serial)
    }

    /// Checks whether this transmission of a retransmitted packet is not the one whose arrival is
    /// reported now (section 6.2, step 2): the acknowledgement names an earlier transmission, or
    /// no round trip is as short.
    pub(crate) fn is_unrelated(self, now: Timestamp, named: Option<Serial>, rtt: &Rtt) -> bool {
        let before = named.is_some_and(|n| self.serial.is_after(n));
        before || now.nanos_since(self.at) < rtt.minimum()
    }
}

/// Time at which a peer is expected to acknowledge packets in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AckTiming {
    /// At once.
    Prompt,
    /// With a delay, because one of them is the end of a reply.
    Delayed,
}

/// Action that an expiry of a call's loss timer requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expired {
    /// None: the timer has not expired.
    Nothing,
    /// Packets may be lost by now: run loss detection.
    Reordering,
    /// A probe has to be sent.
    Probe,
    /// All packets in flight count as lost.
    Timeout,
}

/// State of loss detection of a call.
#[derive(Debug, Clone)]
pub(crate) struct Loss {
    /// Latest transmission among those that arrived, and its round trip.
    newest: Option<Transmission>,
    newest_rtt: u64,
    reordering: bool,
    /// Reordering window in quarters of the shortest round trip.
    multiplier: u64,
    persist: u8,
    /// Time before which packets that may only be late are not declared lost.
    reorder_at: Timestamp,
    /// Time of the last transmission of data, or of the last acknowledgement with news.
    since: Timestamp,
    /// Last probe, and the number of probes since the last acknowledgement with news.
    probe: Option<Serial>,
    probes: u8,
    /// Expectation that the probe followed: after a delayed one, it was for the end of a reply.
    probe_timing: AckTiming,
    backoff: u32,
}

impl Loss {
    pub(crate) const fn new() -> Loss {
        Loss {
            newest: None,
            newest_rtt: 0,
            reordering: false,
            multiplier: 1,
            persist: PERSIST,
            reorder_at: Timestamp::NEVER,
            since: Timestamp::from_nanos(0),
            probe: None,
            probes: 0,
            probe_timing: AckTiming::Prompt,
            backoff: 0,
        }
    }

    /// Records that data was sent.
    pub(crate) const fn sent(&mut self, now: Timestamp) {
        self.since = now;
    }

    /// Records that a probe was sent.
    pub(crate) const fn probe_sent(&mut self, serial: Serial) {
        self.probe = Some(serial);
    }

    /// Records the arrival of a transmission (section 6.2, step 2).
    pub(crate) fn arrived(&mut self, now: Timestamp, sent: Transmission) {
        if self.newest.is_none_or(|newest| sent.is_after(newest)) {
            self.newest = Some(sent);
            self.newest_rtt = now.nanos_since(sent.at);
        }
    }

    /// Records that a packet arrived after one with a higher number, without having been
    /// retransmitted.
    pub(crate) const fn reordered(&mut self) {
        self.reordering = true;
    }

    /// Handles a duplicate reported by the peer: the packet was not lost, only late (section 6.2,
    /// step 4).
    pub(crate) fn was_not_lost(&mut self, serial: Serial, rtt: &mut Rtt) {
        if self.probe == Some(serial) {
            // A probe may be superfluous (section 7.4); that for the end of a reply was sent too
            // early.
            self.probe = None;
            if self.probe_timing == AckTiming::Delayed {
                rtt.last_was_late();
            }
        } else {
            self.multiplier = (self.multiplier + 1).min(16);
            self.persist = PERSIST;
        }
    }

    /// Handles an acknowledgement with news.
    pub(crate) fn progress(&mut self, now: Timestamp, rtt: &mut Rtt) {
        if self.probe.is_some() && self.probe_timing == AckTiming::Delayed {
            rtt.last_was_lost();
        }
        self.since = now;
        self.backoff = 0;
        self.probe = None;
        self.probes = 0;
    }

    /// Resets the backoff after an acknowledgement without news, because the peer is alive.
    pub(crate) const fn reset_backoff(&mut self) {
        self.backoff = 0;
    }

    /// Records that all lost packets have arrived.
    pub(crate) const fn recovered(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.multiplier = 1;
            self.persist = PERSIST;
        }
    }

    /// Computes how long after `newest` a packet sent before it counts as late and not as lost
    /// (section 6.2, step 4). `beyond` is the number of packets that arrived and were sent after a
    /// missing one.
    pub(crate) fn window(&self, recovering: bool, beyond: u32, rtt: &Rtt) -> u64 {
        if !self.reordering && (recovering || beyond >= DUPLICATE_THRESHOLD) {
            return 0;
        }
        (self.multiplier * rtt.minimum() / 4).min(rtt.smoothed())
    }

    /// Checks whether a packet in flight is lost (section 6.2, step 5). Schedules the next check.
    pub(crate) fn is_lost(&mut self, now: Timestamp, sent: Transmission, window: u64) -> bool {
        let Some(newest) = self.newest else {
            return false;
        };
        if !newest.is_after(sent) {
            return false;
        }
        let lost_at = sent.at.plus(self.newest_rtt + window);
        if lost_at <= now {
            return true;
        }
        let none = self.reorder_at == Timestamp::NEVER;
        self.reorder_at = if none {
            lost_at
        } else {
            self.reorder_at.max(lost_at)
        };
        false
    }

    /// Starts a new check of all packets.
    pub(crate) const fn begin_scan(&mut self) {
        self.reorder_at = Timestamp::NEVER;
    }

    /// Computes the expiry of the timer for `in_flight` packets in flight.
    pub(crate) fn deadline(&self, in_flight: u32, timing: AckTiming, rtt: &Rtt) -> Timestamp {
        if in_flight == 0 {
            return Timestamp::NEVER;
        }
        if self.reorder_at != Timestamp::NEVER {
            return self.reorder_at;
        }
        let delay = match timing {
            AckTiming::Delayed => rtt.last_ack_delay(),
            AckTiming::Prompt => 0,
        };
        if self.may_probe(rtt) {
            let spread = (4 * rtt.variation()).max(GRANULARITY);
            let probe = rtt.smoothed() + rtt.smoothed().max(spread) + delay;
            return self.since.plus(probe << self.probes);
        }
        self.since.plus(rtt.timeout(self.backoff).max(delay))
    }

    fn may_probe(&self, rtt: &Rtt) -> bool {
        self.probes < PROBES && rtt.known() && self.backoff == 0
    }

    /// Handles an expiry of the timer and returns the action that it requires.
    pub(crate) fn expire(
        &mut self,
        now: Timestamp,
        in_flight: u32,
        timing: AckTiming,
        rtt: &Rtt,
    ) -> Expired {
        if now < self.deadline(in_flight, timing, rtt) {
            return Expired::Nothing;
        }
        if self.reorder_at != Timestamp::NEVER {
            return Expired::Reordering;
        }
        self.since = now;
        if self.may_probe(rtt) {
            self.probes += 1;
            self.probe_timing = timing;
            return Expired::Probe;
        }
        self.backoff += 1;
        self.probe = None;
        self.probes = 0;
        Expired::Timeout
    }
}

#[cfg(test)]
mod tests {
    use super::AckTiming::{Delayed, Prompt};
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_nanos(ms * MS)
    }

    fn sent(ms: u64, serial: u32) -> Transmission {
        let serial = Serial(serial);
        Transmission { at: at(ms), serial }
    }

    fn rtt(ms: u64) -> Rtt {
        let mut rtt = Rtt::new();
        rtt.sample(at(0), ms * MS);
        rtt
    }

    #[test]
    fn a_packet_is_lost_a_quarter_round_trip_after_a_later_one_arrived() {
        let (rtt, mut loss) = (rtt(40), Loss::new());
        loss.arrived(at(141), sent(101, 7));
        let recovering = false;
        let window = loss.window(recovering, 1, &rtt);
        assert_eq!(window, 10 * MS);
        loss.begin_scan();
        assert!(!loss.is_lost(at(141), sent(100, 6), window));
        assert!(!loss.is_lost(at(141), sent(102, 8), window));
        assert_eq!(loss.deadline(2, Prompt, &rtt), at(150));
        assert_eq!(loss.expire(at(149), 2, Prompt, &rtt), Expired::Nothing);
        assert_eq!(loss.expire(at(150), 2, Prompt, &rtt), Expired::Reordering);
        assert!(loss.is_lost(at(150), sent(100, 6), window));
    }

    #[test]
    fn three_later_arrivals_are_proof_unless_the_path_reorders() {
        let (mut rtt, mut loss) = (rtt(40), Loss::new());
        let (recovering, calm) = (true, false);
        assert_eq!(loss.window(calm, 3, &rtt), 0);
        assert_eq!(loss.window(recovering, 1, &rtt), 0);
        loss.reordered();
        assert_eq!(loss.window(recovering, 9, &rtt), 10 * MS);
        loss.was_not_lost(Serial(1), &mut rtt);
        assert_eq!(loss.window(recovering, 9, &rtt), 20 * MS);
        for _ in 0..PERSIST {
            loss.recovered();
        }
        assert_eq!(loss.window(recovering, 9, &rtt), 10 * MS);
    }

    #[test]
    fn an_arrival_is_not_credited_to_the_wrong_transmission() {
        let (rtt, again) = (rtt(40), sent(145, 9));
        // Sent again 5 ms ago; the acknowledgement is for the first transmission.
        assert!(again.is_unrelated(at(150), None, &rtt));
        assert!(again.is_unrelated(at(200), Some(Serial(8)), &rtt));
        assert!(!again.is_unrelated(at(200), Some(Serial(9)), &rtt));
    }

    #[test]
    fn silence_brings_a_probe_and_then_timeouts_that_back_off() {
        let (mut rtt, mut loss) = (rtt(40), Loss::new());
        loss.sent(at(100));
        assert_eq!(loss.deadline(0, Prompt, &rtt), Timestamp::NEVER);
        assert_eq!(loss.deadline(2, Prompt, &rtt), at(220));
        for (now, wait) in [(220, 240), (460, 480), (940, 200)] {
            assert_eq!(loss.expire(at(now), 2, Prompt, &rtt), Expired::Probe);
            loss.probe_sent(Serial(5));
            assert_eq!(loss.deadline(2, Prompt, &rtt), at(now + wait));
        }
        assert_eq!(loss.expire(at(1140), 2, Prompt, &rtt), Expired::Timeout);
        assert_eq!(loss.deadline(2, Prompt, &rtt), at(1140 + 400));
        loss.progress(at(1600), &mut rtt);
        assert_eq!(loss.deadline(2, Prompt, &rtt), at(1720));
    }

    #[test]
    fn the_end_of_a_reply_is_waited_for_as_long_as_the_peer_usually_takes() {
        let (mut rtt, mut loss) = (rtt(1), Loss::new());
        let mut waits = Vec::new();
        for late in [true, true, true, true, false] {
            loss.sent(at(1000));
            let deadline = loss.deadline(3, Delayed, &rtt);
            waits.push(deadline.since(at(1000)).as_millis());
            assert_eq!(loss.expire(deadline, 3, Delayed, &rtt), Expired::Probe);
            loss.probe_sent(Serial(9));
            if late {
                loss.was_not_lost(Serial(9), &mut rtt);
            }
            loss.progress(deadline, &mut rtt);
        }
        waits.push(rtt.last_ack_delay().into());
        assert_eq!(waits, [13, 23, 43, 83, 153, 75 * u128::from(MS)]);
    }
}
