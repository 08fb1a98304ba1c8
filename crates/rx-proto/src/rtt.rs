//! Round-trip time of a path: RFC 6298, plus a minimum over a window of time.
//!
//! Every transmission has its own serial number and acknowledgements name it, so a sample never
//! confuses a packet with its retransmission (Karn's problem does not arise).

use crate::time::Timestamp;

/// Retransmission timeout in nanoseconds before the first sample (RFC 6298, section 2.1).
const RTO_INITIAL: u64 = 1_000_000_000;

/// Shortest retransmission timeout in nanoseconds. RFC 6298 requires one second; 200 ms, as in
/// Linux TCP, is safe here because it is the last resort behind time-based loss detection. Peers
/// answer from user processes.
const RTO_MIN: u64 = 200_000_000;

/// Longest retransmission timeout in nanoseconds, so that ten fall within a peer's dead time.
const RTO_MAX: u64 = 5_000_000_000;

/// Delay in nanoseconds before a client acknowledges the end of a reply: least, initial and most.
/// Linux waits two ticks of its clock, 2 to 20 ms; OpenAFS 100 ms after the end was read
/// (`rx_hardAckDelay`). A value that is too short costs one packet and is doubled.
const LAST_ACK_DELAY: [u64; 3] = [2_000_000, 10_000_000, 150_000_000];

/// Time in nanoseconds after which a minimum expires, in two halves.
const MINIMUM_WINDOW: u64 = 10_000_000_000;

/// Round-trip time estimate of a path. All numbers are nanoseconds.
#[derive(Debug, Clone)]
pub(crate) struct Rtt {
    smoothed: u64,
    variation: u64,
    latest: u64,
    minimum: [u64; 2],
    minimum_since: Timestamp,
    samples: u32,
    last_ack_delay: u64,
}

impl Rtt {
    pub(crate) const fn new() -> Rtt {
        Rtt {
            smoothed: 0,
            variation: 0,
            latest: 0,
            minimum: [u64::MAX; 2],
            minimum_since: Timestamp::from_nanos(0),
            samples: 0,
            last_ack_delay: LAST_ACK_DELAY[1],
        }
    }

    /// Adds a sample taken at `now`.
    pub(crate) fn sample(&mut self, now: Timestamp, nanos: u64) {
        let nanos = nanos.max(1);
        self.latest = nanos;
        if self.samples == 0 {
            self.smoothed = nanos;
            self.variation = nanos / 2;
        } else {
            let away = self.smoothed.abs_diff(nanos);
            self.variation = self.variation - self.variation / 4 + away / 4;
            self.smoothed = self.smoothed - self.smoothed / 8 + nanos / 8;
        }
        self.samples = self.samples.saturating_add(1);
        if now.nanos_since(self.minimum_since) > MINIMUM_WINDOW / 2 {
            self.minimum = [nanos, self.minimum[0]];
            self.minimum_since = now;
        } else {
            self.minimum[0] = self.minimum[0].min(nanos);
        }
    }

    /// Adds an upper bound of the round trip, which is used only if it is below the current
    /// estimate.
    pub(crate) fn at_most(&mut self, now: Timestamp, nanos: u64) {
        if !self.known() || nanos < self.smoothed {
            self.sample(now, nanos);
        }
    }

    pub(crate) const fn known(&self) -> bool {
        self.samples > 0
    }

    /// Returns the smoothed round-trip time, or zero.
    pub(crate) const fn smoothed(&self) -> u64 {
        self.smoothed
    }

    /// Returns the smoothed deviation, or zero.
    pub(crate) const fn variation(&self) -> u64 {
        self.variation
    }

    /// Returns the shortest sample of the last ten seconds, or zero.
    pub(crate) fn minimum(&self) -> u64 {
        let [new, old] = self.minimum;
        if self.known() { new.min(old) } else { 0 }
    }

    /// Returns the last sample, or zero.
    pub(crate) const fn latest(&self) -> u64 {
        self.latest
    }

    /// Returns the time beyond a round trip that the peer takes to acknowledge the end of a reply.
    pub(crate) const fn last_ack_delay(&self) -> u64 {
        self.last_ack_delay
    }

    /// Records that the end of a reply was retransmitted although it had not been lost.
    pub(crate) fn last_was_late(&mut self) {
        self.last_ack_delay = (2 * self.last_ack_delay).min(LAST_ACK_DELAY[2]);
    }

    /// Records that the end of a reply was retransmitted and had been lost.
    pub(crate) fn last_was_lost(&mut self) {
        self.last_ack_delay = (self.last_ack_delay / 2).max(LAST_ACK_DELAY[0]);
    }

    /// Computes the retransmission timeout after `backoff` timeouts without progress.
    pub(crate) fn timeout(&self, backoff: u32) -> u64 {
        let base = if self.known() {
            (self.smoothed + (4 * self.variation).max(1_000_000)).max(RTO_MIN)
        } else {
            RTO_INITIAL
        };
        base.saturating_mul(1 << backoff.min(16)).min(RTO_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_first_sample_sets_all_and_later_ones_smooth() {
        let mut rtt = Rtt::new();
        assert_eq!((rtt.timeout(0), rtt.minimum()), (RTO_INITIAL, 0));
        rtt.sample(Timestamp::from_nanos(0), 80 * MS);
        assert_eq!((rtt.smoothed(), rtt.variation()), (80 * MS, 40 * MS));
        assert_eq!(rtt.timeout(0), 240 * MS);
        rtt.sample(Timestamp::from_nanos(0), 160 * MS);
        assert_eq!((rtt.smoothed(), rtt.variation()), (90 * MS, 50 * MS));
        assert_eq!(rtt.latest(), 160 * MS);
    }

    #[test]
    fn the_timeout_backs_off_and_has_two_ends() {
        let mut rtt = Rtt::new();
        rtt.sample(Timestamp::from_nanos(0), 10_000);
        assert_eq!(rtt.timeout(0), RTO_MIN);
        assert_eq!(rtt.timeout(2), 4 * RTO_MIN);
        assert_eq!(rtt.timeout(u32::MAX), RTO_MAX);
    }

    #[test]
    fn a_bound_counts_only_if_it_is_news() {
        let mut rtt = Rtt::new();
        rtt.at_most(Timestamp::from_nanos(0), 80 * MS);
        rtt.at_most(Timestamp::from_nanos(0), 800 * MS);
        assert_eq!(rtt.smoothed(), 80 * MS);
        rtt.at_most(Timestamp::from_nanos(0), 40 * MS);
        assert_eq!(rtt.smoothed(), 75 * MS);
    }

    #[test]
    fn an_old_minimum_is_forgotten() {
        let mut rtt = Rtt::new();
        let at = |seconds: u64| Timestamp::from_nanos(seconds * 1_000 * MS);
        rtt.sample(at(6), MS);
        rtt.sample(at(7), 9 * MS);
        assert_eq!(rtt.minimum(), MS);
        rtt.sample(at(12), 8 * MS);
        assert_eq!(rtt.minimum(), MS);
        rtt.sample(at(18), 7 * MS);
        assert_eq!(rtt.minimum(), 7 * MS);
    }
}
