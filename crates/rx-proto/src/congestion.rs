//! Congestion control of a path: how many packets may be in flight.
//!
//! One window per peer is shared by all calls with it: congestion is a property of the path, and
//! AFS calls are too short to discover it one by one. Slow start and linear growth are those of TCP
//! (RFC 5681); the reaction to loss differs. A single missing packet says little on a path that is
//! lossy by nature (radio, a socket buffer that overflowed once), so the window shrinks only
//!
//! - if the loss exceeds the 2 % that BBRv2 treats as noise: significantly within a round trip, or
//!   on average over several hundred packets, or
//! - if a packet is lost while round trips indicate a queue,
//!
//! and then to 70 % (RFC 9438), but not below the amount that the path was measured to deliver in
//! its shortest round trip, as in TCP Westwood. Slow start also ends when round trips grow (RFC
//! 9406).
//!
//! Loss detection is in `call/loss.rs`, pacing in `pacing.rs`.

use crate::rtt::Rtt;
use crate::time::Timestamp;

/// Window in packets before the first acknowledgement (RFC 6928).
const WINDOW_INITIAL: u32 = 10;

/// Smallest window after a loss, as in Linux's rxrpc (`RXRPC_MIN_CWND`).
const WINDOW_MIN: u32 = 4;

/// Window after a retransmission timeout: enough for an acknowledgement that is not delayed.
const WINDOW_TIMEOUT: u32 = 2;

/// Largest window: 23 MiB, beyond the need of sixteen full calls of 255 packets.
const WINDOW_MAX: u32 = 16_384;

/// Share of lost packets that is treated as noise.
const LOSS_NOISE: f64 = 0.02;

/// Packets over which loss is averaged: at 1 % of loss, fewer than one average in a thousand
/// exceeds 2 %.
const AVERAGE_PACKETS: u32 = 500;

/// Factor applied to the window after a significant loss (RFC 9438, section 4.6).
const SHRINK: f64 = 0.7;

/// Shortest round in nanoseconds, so that a fast path is judged by more than a handful of packets.
const ROUND_MIN: u64 = 1_000_000;

/// Smallest number of rounds for which the best delivery rate is remembered.
const RATE_ROUNDS: u32 = 5;

/// Window of a path and the state from which it is derived.
#[derive(Debug, Clone)]
pub(crate) struct Congestion {
    window: u32,
    threshold: u32,
    in_flight: u32,
    /// Packets acknowledged toward the next increment of the window, in linear growth.
    credit: u32,
    /// Whether the window was the limit, in this round and in the previous one.
    limited: [bool; 2],
    round: Round,
    /// Packets that arrived and datagrams that were lost since the last average.
    arrived: u32,
    lost: u32,
    /// Best delivery rates, in packets per second: of the recent rounds, and of the rounds before
    /// them.
    rate: [u64; 2],
    rate_rounds: u32,
    /// Time before which the window does not shrink again, because it did for the same loss.
    calm_until: Timestamp,
    last_sent: Timestamp,
}

/// Counters since the start of the round; a round takes one round trip.
#[derive(Debug, Clone, Copy)]
struct Round {
    started: Timestamp,
    delivered: u32,
    lost: u32,
    rtt_min: u64,
    /// Values of the previous round, whose losses may be detected in this one.
    delivered_before: u32,
    rtt_min_before: u64,
}

/// Growth of a window that is the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Growth {
    /// The window doubles every round.
    SlowStart,
    /// The window gains a packet every round.
    Linear,
}

impl Congestion {
    pub(crate) const fn new() -> Congestion {
        Congestion {
            window: WINDOW_INITIAL,
            threshold: WINDOW_MAX,
            in_flight: 0,
            credit: 0,
            limited: [false; 2],
            round: Round {
                started: Timestamp::from_nanos(0),
                delivered: 0,
                lost: 0,
                rtt_min: u64::MAX,
                delivered_before: 0,
                rtt_min_before: u64::MAX,
            },
            arrived: 0,
            lost: 0,
            rate: [0; 2],
            rate_rounds: 0,
            calm_until: Timestamp::from_nanos(0),
            last_sent: Timestamp::from_nanos(0),
        }
    }

    /// Returns the largest number of packets in flight.
    pub(crate) const fn window(&self) -> u32 {
        self.window
    }

    #[cfg(test)]
    pub(crate) const fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Returns the number of packets that may be sent now.
    pub(crate) const fn room(&self) -> u32 {
        self.window.saturating_sub(self.in_flight)
    }

    /// Returns how the window grows now.
    pub(crate) const fn growth(&self) -> Growth {
        if self.window < self.threshold {
            Growth::SlowStart
        } else {
            Growth::Linear
        }
    }

    /// Records that a packet could have been sent if the window had allowed it.
    pub(crate) const fn held_back(&mut self) {
        self.limited[0] = true;
    }

    /// Records that packets were sent.
    pub(crate) const fn sent(&mut self, now: Timestamp, packets: u32) {
        if self.in_flight == 0 {
            self.round.started = now;
        }
        self.in_flight = self.in_flight.saturating_add(packets);
        self.last_sent = now;
    }

    /// Prepares for sending after a pause: the window decays with every timeout that has passed
    /// (RFC 2861).
    pub(crate) fn resume(&mut self, now: Timestamp, rtt: &Rtt) {
        if self.in_flight > 0 {
            return;
        }
        let mut idle = now.nanos_since(self.last_sent);
        self.last_sent = now;
        let timeout = rtt.timeout(0);
        while idle > timeout && self.window > WINDOW_INITIAL {
            self.threshold = self.threshold.max(self.window - self.window / 4);
            self.window = (self.window / 2).max(WINDOW_INITIAL);
            idle -= timeout;
        }
    }

    /// Records that packets arrived.
    pub(crate) fn acknowledged(&mut self, now: Timestamp, packets: u32, rtt: &Rtt) {
        self.in_flight = self.in_flight.saturating_sub(packets);
        self.round.delivered = self.round.delivered.saturating_add(packets);
        self.round.rtt_min = self.round.rtt_min.min(rtt.latest());
        self.arrived = self.arrived.saturating_add(packets);
        if self.arrived >= AVERAGE_PACKETS {
            let share = f64::from(self.lost) / f64::from(self.arrived);
            (self.arrived, self.lost) = (0, 0);
            if share > LOSS_NOISE {
                self.shrink(now, rtt);
            }
        }
        if self.limited.contains(&true) {
            self.grow(packets);
        }
        let length = now.nanos_since(self.round.started);
        if length >= rtt.smoothed().max(ROUND_MIN) {
            self.end_round(now, length);
        }
    }

    fn grow(&mut self, packets: u32) {
        match self.growth() {
            Growth::SlowStart => self.window += packets,
            Growth::Linear => {
                self.credit += packets;
                if self.credit >= self.window {
                    self.credit -= self.window;
                    self.window += 1;
                }
            }
        }
        self.window = self.window.min(WINDOW_MAX);
    }

    fn end_round(&mut self, now: Timestamp, length: u64) {
        let Round {
            delivered,
            rtt_min,
            rtt_min_before: before,
            ..
        } = self.round;
        let rate = u64::from(delivered) * 1_000_000_000 / length.max(1);
        self.rate[0] = self.rate[0].max(rate);
        if self.limited[0] {
            // A round that could have carried more is no evidence against an older rate.
            self.rate_rounds += 1;
            if self.rate_rounds > RATE_ROUNDS {
                self.rate = [rate, self.rate[0]];
                self.rate_rounds = 0;
            }
        }
        // RFC 9406, section 4.2: a rise by an eighth, clamped to 4 to 16 ms, indicates a queue.
        let rise = (before / 8).clamp(4_000_000, 16_000_000);
        let rises = rtt_min != u64::MAX && rtt_min > before.saturating_add(rise);
        if self.growth() == Growth::SlowStart && rises {
            self.threshold = self.window;
        }
        self.limited = [false, self.limited[0]];
        self.begin_round(now);
    }

    const fn begin_round(&mut self, now: Timestamp) {
        self.round = Round {
            started: now,
            delivered: 0,
            lost: 0,
            rtt_min: u64::MAX,
            delivered_before: self.round.delivered,
            rtt_min_before: self.round.rtt_min,
        };
    }

    /// Records the loss of `packets` packets in `datagrams` datagrams.
    pub(crate) fn lost(&mut self, now: Timestamp, packets: u32, datagrams: u32, rtt: &Rtt) {
        self.in_flight = self.in_flight.saturating_sub(packets);
        self.round.lost = self.round.lost.saturating_add(datagrams);
        self.lost = self.lost.saturating_add(datagrams);
        let seen = self.round.delivered.saturating_add(self.round.lost);
        let noise = f64::from(seen.max(self.window)) * LOSS_NOISE;
        let fresh = self.round.rtt_min != u64::MAX;
        let lately = if fresh {
            self.round.rtt_min
        } else {
            self.round.rtt_min_before
        };
        let usual = rtt.minimum() + rtt.minimum() / 2 + ROUND_MIN;
        let queue = lately != u64::MAX && lately > usual;
        // Three standard deviations above the loss expected from noise alone.
        if queue || f64::from(self.round.lost) > noise + 3.0 * noise.sqrt() {
            self.shrink(now, rtt);
        }
    }

    fn shrink(&mut self, now: Timestamp, rtt: &Rtt) {
        if now < self.calm_until {
            return;
        }
        let (arrived, lost) = (
            self.round.delivered + self.round.delivered_before,
            self.round.lost,
        );
        let share = f64::from(lost) / f64::from(arrived.saturating_add(lost).max(1));
        // At least a twentieth less, so that an overestimated rate does not persist.
        let left = f64::from(self.window) * (1.0 - share.max(0.05));
        let floor = f64::from(self.carried(rtt)).min(left);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "between nothing and the window, which is a u32"
        )]
        let window = (f64::from(self.window) * SHRINK).max(floor) as u32;
        self.window = window.max(WINDOW_MIN);
        self.threshold = self.window;
        self.credit = 0;
        self.calm_until = now.plus(rtt.smoothed());
        self.begin_round(now);
    }

    /// Computes the number of packets that the path was measured to carry in its shortest round
    /// trip.
    fn carried(&self, rtt: &Rtt) -> u32 {
        let rate = u128::from(self.rate[0].max(self.rate[1]));
        u32::try_from(rate * u128::from(rtt.minimum()) / 1_000_000_000).unwrap_or(u32::MAX)
    }

    /// Handles a retransmission timeout; `packets` packets are declared lost.
    pub(crate) fn timed_out(&mut self, now: Timestamp, packets: u32, rtt: &Rtt) {
        self.in_flight = self.in_flight.saturating_sub(packets);
        if now < self.calm_until {
            return;
        }
        self.threshold = (self.window / 2)
            .max(self.carried(rtt).min(self.window))
            .max(WINDOW_MIN);
        self.window = WINDOW_TIMEOUT;
        self.credit = 0;
        self.calm_until = now.plus(rtt.timeout(0));
        self.begin_round(now);
    }

    /// Removes the packets in flight of a call that is over.
    pub(crate) const fn forgotten(&mut self, packets: u32) {
        self.in_flight = self.in_flight.saturating_sub(packets);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Simulates rounds of a path of 20 ms whose sender always fills the window; `lose` is the
    /// number of packets lost in a round, `queue` the added delay in nanoseconds.
    struct Rounds {
        now: Timestamp,
        rtt: Rtt,
        control: Congestion,
    }

    impl Rounds {
        fn new() -> Rounds {
            Rounds {
                now: Timestamp::from_nanos(1_000 * MS),
                rtt: Rtt::new(),
                control: Congestion::new(),
            }
        }

        fn round(&mut self, lose: u32, queue: u64) {
            self.control.resume(self.now, &self.rtt);
            let sent = self.control.room();
            self.control.sent(self.now, sent);
            self.control.held_back();
            self.now = self.now.plus(20 * MS + queue);
            self.rtt.sample(self.now, 20 * MS + queue);
            self.control.acknowledged(self.now, sent - lose, &self.rtt);
            if lose > 0 {
                self.control.lost(self.now, lose, lose, &self.rtt);
            }
        }
    }

    #[test]
    fn a_clean_path_doubles_the_window() {
        let mut path = Rounds::new();
        for _ in 0..4 {
            path.round(0, 0);
        }
        assert_eq!(path.control.window(), WINDOW_INITIAL << 4);
        assert_eq!(path.control.in_flight(), 0);
    }

    #[test]
    fn one_percent_of_loss_is_noise() {
        let mut path = Rounds::new();
        for round in 0..60 {
            let lose = path.control.room() / 100;
            path.round(lose, 0);
            assert!(round < 5 || path.control.window() >= 255);
        }
    }

    #[test]
    fn three_percent_of_loss_are_not() {
        let mut path = Rounds::new();
        for _ in 0..6 {
            path.round(0, 0);
        }
        path.round(0, 5 * MS);
        let before = path.control.window();
        assert_eq!(path.control.growth(), Growth::Linear);
        for _ in 0..40 {
            path.round(path.control.room() * 3 / 100, 0);
        }
        assert!(
            path.control.window() < before / 2,
            "{}",
            path.control.window()
        );
    }

    #[test]
    fn much_loss_shrinks_the_window_to_what_arrives() {
        let mut path = Rounds::new();
        for _ in 0..5 {
            path.round(0, 0);
        }
        let before = path.control.window();
        for _ in 0..10 {
            path.round(path.control.room() / 5, 0);
        }
        assert!(path.control.window() < before / 2);
        for _ in 0..40 {
            path.round(path.control.room() / 2, 0);
        }
        assert!(path.control.window() < 40 && path.control.window() >= WINDOW_MIN);
    }

    #[test]
    fn one_loss_with_a_queue_shrinks_the_window() {
        let mut path = Rounds::new();
        for _ in 0..4 {
            path.round(0, 0);
        }
        path.round(0, 12 * MS);
        let before = path.control.window();
        path.round(1, 12 * MS);
        assert!(path.control.window() < before);
        assert!(path.control.window() >= before / 2);
    }

    #[test]
    fn longer_round_trips_end_slow_start() {
        let mut path = Rounds::new();
        path.round(0, 0);
        path.round(0, 0);
        path.round(0, 5 * MS);
        assert_eq!(path.control.growth(), Growth::Linear);
    }

    #[test]
    fn a_timeout_starts_over_and_a_pause_decays() {
        let mut path = Rounds::new();
        for _ in 0..6 {
            path.round(0, 0);
        }
        let full = path.control.window();
        path.now = path.now.plus(500 * MS);
        path.round(0, 0);
        assert!(path.control.window() < full);
        path.control.sent(path.now, 3);
        path.control.timed_out(path.now, 3, &path.rtt);
        assert_eq!(
            (path.control.window(), path.control.in_flight()),
            (WINDOW_TIMEOUT, 0)
        );
        assert_eq!(path.control.growth(), Growth::SlowStart);
    }

    #[test]
    fn a_window_that_is_not_filled_does_not_grow() {
        let mut path = Rounds::new();
        for _ in 0..20 {
            path.control.sent(path.now, 2);
            path.now = path.now.plus(20 * MS);
            path.rtt.sample(path.now, 20 * MS);
            path.control.acknowledged(path.now, 2, &path.rtt);
        }
        assert_eq!(path.control.window(), WINDOW_INITIAL);
    }
}
