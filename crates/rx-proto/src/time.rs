//! Time as supplied by the driver: the core has no clock.

use std::ops::Add;
use std::time::Duration;

/// A moment on the driver's monotonic clock: nanoseconds since an origin of the driver's choice
/// that does not change. Moments passed to one endpoint never go backwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Later than any moment of a driver: a timer that is not set.
    pub(crate) const NEVER: Timestamp = Timestamp(u64::MAX);

    /// Returns the moment `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Timestamp {
        Timestamp(nanos)
    }

    /// Returns the nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time since `earlier`, or zero if `earlier` is later.
    pub const fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    /// Computes the nanoseconds since `earlier`, or zero if `earlier` is later.
    pub(crate) const fn nanos_since(self, earlier: Timestamp) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the moment `nanos` nanoseconds later, saturating at [`Timestamp::NEVER`].
    pub(crate) const fn plus(self, nanos: u64) -> Timestamp {
        Timestamp(self.0.saturating_add(nanos))
    }

    /// Returns the moment `nanos` nanoseconds earlier, saturating at the origin.
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

/// Converts a duration to nanoseconds, saturating at 584 years.
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
