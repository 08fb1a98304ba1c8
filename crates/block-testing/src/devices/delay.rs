//! A device with additional latency and the throughput of the lower device.

use super::hold::{Deadline, Hold};
use block::{BlockDevice, DeviceInfo, Op, OpKind, Queue, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Minimum time from submit to completion for each kind of request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DelayConfig {
    /// Minimum time of reads.
    pub read: Duration,
    /// Minimum time of writes.
    pub write: Duration,
    /// Minimum time of flushes.
    pub flush: Duration,
    /// Minimum time of discards.
    pub discard: Duration,
    /// Minimum time of write-zeroes requests.
    pub write_zeroes: Duration,
}

/// A device that completes each request no earlier than a configured time after its submit.
/// Requests wait in parallel: a hundred in flight take as long as one.
pub struct Delay(Hold);

impl Delay {
    /// Creates a delay over `lower`, with one time for reads and one for all other requests.
    pub fn new(lower: Arc<dyn BlockDevice>, read: Duration, write: Duration) -> Delay {
        let config = DelayConfig {
            read,
            write,
            flush: write,
            discard: write,
            write_zeroes: write,
        };
        Delay::with(lower, config)
    }

    /// Creates a delay over `lower`, with a time for each kind.
    pub fn with(lower: Arc<dyn BlockDevice>, config: DelayConfig) -> Delay {
        Delay(Hold {
            lower,
            deadline: Arc::new(config),
        })
    }
}

impl Deadline for DelayConfig {
    fn of(&self, op: &Op, now: Instant) -> Option<Instant> {
        let time = match op.kind() {
            OpKind::Read => self.read,
            OpKind::Write => self.write,
            OpKind::Flush => self.flush,
            OpKind::Discard => self.discard,
            OpKind::WriteZeroes => self.write_zeroes,
        };
        now.checked_add(time)
    }
}

impl BlockDevice for Delay {
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
    use block::{Blocking, Buf, Request, Wait};

    fn disk(config: DelayConfig) -> Delay {
        Delay::with(Arc::new(Mem::new(1 << 20, 512)), config)
    }

    #[test]
    fn nothing_completes_before_its_time_and_all_may_wait_at_once() {
        let time = Duration::from_millis(20);
        let delay = disk(DelayConfig {
            read: time,
            ..DelayConfig::default()
        });
        let mut queue = delay.queue().unwrap();
        let started = Instant::now();
        for tag in 0..100 {
            let op = Op::Read {
                offset: 0,
                bufs: Buf::zeroed(512).into(),
            };
            queue.submit(Request { tag, op }).unwrap();
        }
        let mut done = Vec::new();
        while queue.in_flight() > 0 {
            let count = queue.reap(Wait::Block, &mut done).unwrap();
            assert!(count > 0, "a blocking reap gives something");
            assert!(started.elapsed() >= time, "too early");
        }
        assert_eq!(done.len(), 100);
    }

    #[test]
    fn each_kind_has_its_own_time() {
        let time = Duration::from_millis(15);
        let delay = disk(DelayConfig {
            flush: time,
            ..DelayConfig::default()
        });
        let mut blocking = Blocking::open(&delay).unwrap();
        let started = Instant::now();
        blocking.flush().unwrap();
        assert!(started.elapsed() >= time);
    }

    #[test]
    fn a_bounded_wait_ends_without_a_completion_and_a_drop_does_not_wait() {
        let delay = Delay::new(
            Arc::new(Mem::new(1 << 20, 512)),
            Duration::MAX,
            Duration::from_secs(36_000),
        );
        let mut queue = delay.queue().unwrap();
        for (tag, op) in [
            (1, Op::Flush),
            (
                2,
                Op::Read {
                    offset: 0,
                    bufs: Buf::zeroed(512).into(),
                },
            ),
        ] {
            queue.submit(Request { tag, op }).unwrap();
        }
        let mut done = Vec::new();
        let started = Instant::now();
        let time = Duration::from_millis(5);
        assert_eq!(queue.reap(Wait::AtMost(time), &mut done).unwrap(), 0);
        assert!(started.elapsed() >= time);
        assert_eq!(queue.reap(Wait::Poll, &mut done).unwrap(), 0);
        assert_eq!(queue.in_flight(), 2);
        // The drop does not wait ten hours: the lower device no longer uses the buffers.
        drop(queue);
    }
}
