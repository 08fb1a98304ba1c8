//! Spreads packets over the round trip, so that a window does not reach the path as one burst.
//!
//! A burst of one millisecond is allowed, because a driver's timers are no finer and packets that
//! leave together cost less (segmentation offload). A burst is never less than 16 packets, so that
//! pacing a slow path does not wake the driver for each packet.

use crate::congestion::Growth;
use crate::time::Timestamp;

/// Smallest burst in packets.
const BURST_MIN: u64 = 16;

/// Packets to wait for after a burst is used up, so that they leave together.
const QUANTUM: u64 = 8;

/// Length of a burst in nanoseconds.
const BURST_NANOS: u64 = 1_000_000;

/// Departure time of the next packet of a path.
#[derive(Debug, Clone)]
pub(crate) struct Pacer {
    next: Timestamp,
    /// Nanoseconds between packets; 0 while the round-trip time is unknown.
    interval: u64,
}

impl Pacer {
    pub(crate) const fn new() -> Pacer {
        Pacer {
            next: Timestamp::from_nanos(0),
            interval: 0,
        }
    }

    /// Computes the number of packets that may leave at `now` on a path with this window and
    /// smoothed round trip. The rate exceeds what the window needs, by a factor of 2 in slow start
    /// and 1.25 later, so that pacing does not become the limit (Linux, `tcp_pacing_ss_ratio` and
    /// `tcp_pacing_ca_ratio`).
    pub(crate) fn allowance(
        &mut self,
        now: Timestamp,
        window: u32,
        rtt_nanos: u64,
        growth: Growth,
    ) -> u32 {
        let quarters = match growth {
            Growth::SlowStart => 8,
            Growth::Linear => 5,
        };
        self.interval = 4 * rtt_nanos / (quarters * u64::from(window.max(1)));
        if self.interval == 0 {
            return u32::MAX;
        }
        let burst = BURST_NANOS.max(BURST_MIN * self.interval);
        self.next = self.next.max(now.minus(burst));
        u32::try_from(now.nanos_since(self.next) / self.interval).unwrap_or(u32::MAX)
    }

    /// Records that `packets` packets were sent.
    pub(crate) const fn sent(&mut self, packets: u32) {
        self.next = self.next.plus(packets as u64 * self.interval);
    }

    /// Returns the time at which [`QUANTUM`] packets may leave.
    pub(crate) const fn wake(&self) -> Timestamp {
        self.next.plus(QUANTUM * self.interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_round_trip_passes_the_window_and_a_quarter() {
        let mut pacer = Pacer::new();
        let (mut now, mut sent) = (Timestamp::from_nanos(1_000 * MS), 0);
        for _ in 0..100 {
            let allowed = pacer.allowance(now, 80, 100 * MS, Growth::Linear);
            assert!(allowed <= 16);
            pacer.sent(allowed);
            sent += allowed;
            now = now.plus(MS);
        }
        assert!((100..=116).contains(&sent), "{sent}");
    }

    #[test]
    fn a_wait_is_for_several_packets() {
        let mut pacer = Pacer::new();
        let now = Timestamp::from_nanos(1_000 * MS);
        let allowed = pacer.allowance(now, 80, 100 * MS, Growth::Linear);
        pacer.sent(allowed);
        assert_eq!(pacer.allowance(now, 80, 100 * MS, Growth::Linear), 0);
        let later = pacer.wake();
        assert_eq!(pacer.allowance(later, 80, 100 * MS, Growth::Linear), 8);
    }

    #[test]
    fn an_unknown_path_and_a_fast_one_are_not_paced() {
        let mut pacer = Pacer::new();
        let now = Timestamp::from_nanos(1_000 * MS);
        assert_eq!(pacer.allowance(now, 10, 0, Growth::SlowStart), u32::MAX);
        assert!(pacer.allowance(now, 255, MS / 10, Growth::Linear) > 2 * 255);
    }
}
