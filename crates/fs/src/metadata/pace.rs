//! Speed and end of work in the background.

use crate::error::{Error, Kind, Result};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// Bytes read between two looks at the clock, at most.
const STEP_BYTES: u64 = 64 << 10;
/// As [`STEP_BYTES`], at a low rate.
const STEP_BYTES_MIN: u64 = 4 << 10;

/// Limits the speed of background work, such as [`crate::Fs::check_online`], and ends it.
pub struct Pace {
    /// Bytes in a second.
    rate: Option<u64>,
    /// Start of the first read.
    begun: Mutex<Option<Instant>>,
    read: AtomicU64,
    end: Mutex<Option<Error>>,
    is_ended: AtomicBool,
    ended: Condvar,
}

impl Pace {
    /// Creates a pace of `rate` bytes in a second at most, or without a limit.
    pub fn new(rate: Option<u64>) -> Pace {
        Pace {
            rate: rate.filter(|rate| *rate > 0),
            begun: Mutex::new(None),
            read: AtomicU64::new(0),
            end: Mutex::new(None),
            is_ended: AtomicBool::new(false),
            ended: Condvar::new(),
        }
    }

    /// Makes the work fail soon.
    pub fn stop(&self) {
        self.end(Error::new(Kind::Busy, "it was stopped"));
    }

    /// Makes the work fail with this error soon, unless it was ended before.
    pub(crate) fn end(&self, error: Error) {
        self.end
            .lock()
            .expect("no panic under this lock")
            .get_or_insert(error);
        self.is_ended.store(true, Relaxed);
        self.ended.notify_all();
    }

    /// Reports whether the work is to end.
    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended.load(Relaxed)
    }

    /// Counts bytes that were read or moved, and waits until they may have been.
    ///
    /// # Errors
    /// The work is to end.
    pub fn pass(&self, bytes: u64) -> Result<()> {
        let before = self.read.fetch_add(bytes, Relaxed);
        let step = self.rate.map_or(STEP_BYTES, |rate| {
            (rate / 4).clamp(STEP_BYTES_MIN, STEP_BYTES)
        });
        let is_step = before / step != (before + bytes) / step;
        if !self.is_ended.load(Relaxed) && (!is_step || self.rate.is_none()) {
            return Ok(());
        }
        let begun = *self
            .begun
            .lock()
            .expect("no panic under this lock")
            .get_or_insert_with(Instant::now);
        let due = self.rate.map_or(Duration::ZERO, |rate| {
            Duration::from_secs_f64((before + bytes) as f64 / rate as f64)
        });
        let rest = due.saturating_sub(begun.elapsed());
        let end = self.end.lock().expect("no panic under this lock");
        let waited = self
            .ended
            .wait_timeout_while(end, rest, |end| end.is_none());
        let end = waited.expect("no panic under this lock").0;
        end.as_ref().map_or(Ok(()), |error| Err(error.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_their_time_and_an_end_is_seen_at_once() {
        let pace = Pace::new(Some(1 << 20));
        let begun = Instant::now();
        for _ in 0..4 {
            pace.pass(STEP_BYTES).unwrap();
        }
        assert!(begun.elapsed() >= Duration::from_millis(150));
        std::thread::scope(|scope| {
            // This would take 16 minutes.
            let reader = scope.spawn(|| pace.pass(1 << 30));
            pace.stop();
            let error = reader.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), Kind::Busy);
        });
        assert!(pace.pass(1).is_err());
        let fast = Pace::new(None);
        (0..100).for_each(|_| fast.pass(1 << 40).unwrap());
        fast.end(Error::new(Kind::Io, "first"));
        fast.stop();
        assert_eq!(fast.pass(1).unwrap_err().kind(), Kind::Io);
    }
}
