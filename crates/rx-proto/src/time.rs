//! Time as the driver tells it: the core has no clock.

use std::ops::Add;
use std::time::Duration;

/// A moment on the driver's monotonic clock: nanoseconds since an origin that the driver chooses and
/// keeps. Moments given to one endpoint never go backwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Later than any moment a driver gives: a timer that is not set.
    pub(crate) const NEVER: Timestamp = Timestamp(u64::MAX);

    /// The moment `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Timestamp {
        Timestamp(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time since `earlier`; zero if that is not earlier.
    pub const fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    /// Nanoseconds since `earlier`; zero if that is not earlier.
    pub(crate) const fn nanos_since(self, earlier: Timestamp) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment `nanos` nanoseconds later; never past [`Timestamp::NEVER`].
    pub(crate) const fn plus(self, nanos: u64) -> Timestamp {
        Timestamp(self.0.saturating_add(nanos))
    }

    /// The moment `nanos` nanoseconds earlier, or the origin.
    pub(crate) const fn minus(self, nanos: u64) -> Timestamp {
        Timestamp(self.0.saturating_sub(nanos))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Timestamp;

    fn add(self, time: Duration) -> Timestamp {
        self.plus(nanos(time))
    }
}

/// A duration in nanoseconds; 584 years at most.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_saturate_at_both_ends() {
        let one = Timestamp::from_nanos(1);
        assert_eq!(one.since(Timestamp::from_nanos(2)), Duration::ZERO);
        assert_eq!(one.minus(5), Timestamp::from_nanos(0));
        assert_eq!(one + Duration::MAX, Timestamp::NEVER);
        assert_eq!((one + Duration::from_secs(1)).since(one).as_secs(), 1);
    }
}
