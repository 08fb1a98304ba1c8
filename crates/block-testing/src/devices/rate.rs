//! A device with a rate limit.

use super::hold::{Deadline, Hold};
use block::{BlockDevice, DeviceInfo, Op, Queue, Result};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Limits per second, and the burst. `None` means unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateConfig {
    /// Bytes of reads and writes per second; other requests have no bytes.
    pub bytes_per_s: Option<u64>,
    /// Requests of every kind per second.
    pub requests_per_s: Option<u64>,
    /// Depth of the token bucket: the amount that an idle device lets through at once, expressed as
    /// the time it takes at the limit.
    pub burst: Duration,
}

/// A device that limits bytes and requests per second, over all queues together.
///
/// Two token buckets, one for bytes and one for requests, each stored as the time at which it is
/// full again. A request completes when both have let it through; it is never split.
pub struct Rate(Hold);

struct Buckets {
    config: RateConfig,
    /// Times at which the buckets of bytes and of requests have paid for everything let through so
    /// far.
    paid_at: Mutex<[Option<Instant>; 2]>,
}

impl Rate {
    /// Creates a limit over `lower`, without a burst.
    pub fn new(
        lower: Arc<dyn BlockDevice>,
        bytes_per_s: Option<u64>,
        requests_per_s: Option<u64>,
    ) -> Rate {
        let config = RateConfig {
            bytes_per_s,
            requests_per_s,
            burst: Duration::ZERO,
        };
        Rate::with(lower, config)
    }

    /// Creates a limit over `lower` with this configuration.
    pub fn with(lower: Arc<dyn BlockDevice>, config: RateConfig) -> Rate {
        let buckets = Buckets {
            config,
            paid_at: Mutex::default(),
        };
        Rate(Hold {
            lower,
            deadline: Arc::new(buckets),
        })
    }
}

impl Deadline for Buckets {
    fn of(&self, op: &Op, now: Instant) -> Option<Instant> {
        let bytes = match op {
            Op::Read { bufs, .. } | Op::Write { bufs, .. } => bufs.total_len() as u64,
            Op::Flush | Op::Discard { .. } | Op::WriteZeroes { .. } => 0,
        };
        let amounts = [
            (bytes, self.config.bytes_per_s),
            (1, self.config.requests_per_s),
        ];
        let mut paid_at = self.paid_at.lock().expect("no panic under this lock");
        let mut due = now;
        for (paid_at, (amount, limit)) in paid_at.iter_mut().zip(amounts) {
            let Some(limit) = limit else { continue };
            let cost = Duration::try_from_secs_f64(amount as f64 / limit.max(1) as f64).ok()?;
            let from = paid_at.map_or(now, |at| at.max(now));
            let end = from.checked_add(cost)?;
            *paid_at = Some(end);
            due = due.max(end.checked_sub(self.config.burst).unwrap_or(now));
        }
        Some(due)
    }
}

impl BlockDevice for Rate {
    fn info(&self) -> &DeviceInfo {
        self.0.lower.info()
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        self.0.queue()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mem;
    use block::{Blocking, Buf};

    fn buckets(bytes: Option<u64>, requests: Option<u64>, burst: Duration) -> Buckets {
        Buckets {
            config: RateConfig {
                bytes_per_s: bytes,
                requests_per_s: requests,
                burst,
            },
            paid_at: Mutex::default(),
        }
    }

    fn read(len: usize) -> Op {
        Op::Read {
            offset: 0,
            bufs: Buf::zeroed(len).into(),
        }
    }

    #[test]
    fn the_tighter_of_two_limits_decides_and_idle_time_is_not_saved_up() {
        let now = Instant::now();
        let ms = Duration::from_millis;
        let rate = buckets(Some(1_024_000), Some(100), Duration::ZERO);
        // 1 KiB takes 1 ms by bytes and 10 ms by requests; for 20 KiB bytes are the tighter limit.
        let due = |op: &Op, now| rate.of(op, now).map(|at| at - now);
        assert_eq!(due(&read(1024), now), Some(ms(10)));
        assert_eq!(due(&read(20 * 1024), now), Some(ms(21)));
        assert_eq!(due(&Op::Flush, now), Some(ms(30)));
        let later = now + ms(10_000);
        assert_eq!(due(&read(1024), later), Some(ms(10)));
    }

    #[test]
    fn a_burst_passes_at_once_and_is_paid_for_afterwards() {
        let now = Instant::now();
        let ms = Duration::from_millis;
        let rate = buckets(None, Some(1000), ms(5));
        let due: Vec<_> = (0..8)
            .map(|_| rate.of(&Op::Flush, now).unwrap() - now)
            .collect();
        let expected = [0, 0, 0, 0, 0, 1, 2, 3].map(ms);
        assert_eq!(due, expected);
    }

    #[test]
    fn queues_on_several_threads_share_one_limit() {
        let rate = Rate::new(Arc::new(Mem::new(1 << 20, 512)), None, Some(1000));
        let started = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut blocking = Blocking::open(&rate).unwrap();
                    (0..10).for_each(|_| blocking.flush().unwrap());
                });
            }
        });
        // 30 requests at 1000 per second; each thread alone would finish in a third of that time.
        assert!(started.elapsed() >= Duration::from_millis(30));
    }
}
