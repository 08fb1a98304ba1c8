//! The time of day.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the present time since 1970, or zero if the clock is set to an earlier time.
pub(crate) fn now() -> Duration {
    since_1970(SystemTime::now())
}

/// Returns the time from 1970 to `time`, or zero if that is earlier.
pub(crate) fn since_1970(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_before_1970_counts_as_1970() {
        let second = Duration::from_secs(1);
        assert_eq!(since_1970(UNIX_EPOCH + second), second);
        assert_eq!(since_1970(UNIX_EPOCH - second), Duration::ZERO);
    }
}
