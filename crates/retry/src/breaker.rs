//! A circuit breaker: a peer that fails is left alone for a while.

use crate::Backoff;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Attempts that a [`Breaker`] permits. In the order in which a caller prefers the peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// The peer did not fail since its last success: any attempt.
    Closed,
    /// It failed, and the pause is over: one attempt, the probe.
    HalfOpen,
    /// It failed, and the pause runs, or a probe does: no attempt.
    Open,
}

/// Failures of one peer in a row, and the time of the next attempt. A single atomic word, which
/// threads share without a lock. The default is closed.
///
/// Times are times since a fixed point that all callers share, in microseconds, rounded up.
///
/// ```
/// use retry::{Backoff, Breaker, Jitter, State};
/// use std::time::Duration;
///
/// let policy = Backoff::new(Duration::from_secs(1), Duration::from_secs(60), Jitter::Equal);
/// let member = Breaker::default();
/// let at = Duration::from_secs;
/// assert!(member.admit(at(0), at(1)));
/// member.failed(at(0), &policy, 7);
/// assert_eq!(member.state(Duration::from_millis(499)), State::Open);
/// assert_eq!(member.state(at(1)), State::HalfOpen);
/// assert!(member.admit(at(1), at(1)), "the probe");
/// assert!(!member.admit(at(1), at(1)), "there is one only");
/// member.succeeded();
/// assert_eq!(member.state(at(1)), State::Closed);
/// ```
#[derive(Debug, Default)]
pub struct Breaker(AtomicU64);

/// Contents of the word. All zero: closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Word {
    /// Failures in a row, at most [`FAILURES_MAX`].
    failures: u32,
    /// Whether `until` is the end of a probe.
    is_probed: bool,
    /// Microseconds.
    until: u64,
}

const FAILURES_MAX: u32 = 127;
const PROBED: u64 = 128;
const UNTIL_SHIFT: u32 = 8;
const UNTIL_MAX: u64 = u64::MAX >> UNTIL_SHIFT;

impl Word {
    fn of(word: u64) -> Word {
        Word {
            failures: (word % PROBED) as u32,
            is_probed: word & PROBED != 0,
            until: word >> UNTIL_SHIFT,
        }
    }

    fn get(self) -> u64 {
        let probed = if self.is_probed { PROBED } else { 0 };
        u64::from(self.failures) | probed | (self.until << UNTIL_SHIFT)
    }

    fn state(self, now: Duration) -> State {
        match self.failures {
            0 => State::Closed,
            _ if Duration::from_micros(self.until) <= now => State::HalfOpen,
            _ => State::Open,
        }
    }
}

impl Breaker {
    /// Returns what is permitted now. Does not claim the probe.
    pub fn state(&self, now: Duration) -> State {
        self.word().state(now)
    }

    /// Returns the time of the next attempt; zero if the breaker is closed.
    pub fn until(&self) -> Duration {
        Duration::from_micros(self.word().until)
    }

    /// Reports whether the caller may try now. Of several callers that ask when the pause is over,
    /// one may; the others wait for its result, for at most `within`.
    pub fn admit(&self, now: Duration, within: Duration) -> bool {
        let claim = |word| {
            let word = Word::of(word);
            let probe = Word {
                is_probed: true,
                until: micros(now.saturating_add(within)),
                ..word
            };
            (word.state(now) == State::HalfOpen).then_some(probe.get())
        };
        self.state(now) == State::Closed || self.0.fetch_update(Relaxed, Relaxed, claim).is_ok()
    }

    /// Notes a failure at `now`: permits no attempt for a pause, which grows with each failure in a
    /// row. Failures during the pause are those of attempts that began before it, and count no more.
    /// Returns whether the breaker was closed.
    pub fn failed(&self, now: Duration, policy: &Backoff, seed: u64) -> bool {
        let count = |word| {
            let word = Word::of(word);
            if word.state(now) == State::Open && !word.is_probed {
                return None;
            }
            // The pauses of one client differ, even after the count has reached its limit.
            let pause = policy.pause(word.failures, seed ^ micros(now));
            let next = Word {
                failures: (word.failures + 1).min(FAILURES_MAX),
                is_probed: false,
                until: micros(now.saturating_add(pause)),
            };
            Some(next.get())
        };
        let before = self.0.fetch_update(Relaxed, Relaxed, count);
        before.is_ok_and(|word| Word::of(word).failures == 0)
    }

    /// Notes a success: permits any attempt. Returns whether a failure preceded it.
    pub fn succeeded(&self) -> bool {
        // The usual case writes nothing, so that threads do not compete for the word.
        self.0.load(Relaxed) != 0 && self.0.swap(0, Relaxed) != 0
    }

    fn word(&self) -> Word {
        Word::of(self.0.load(Relaxed))
    }
}

/// A time in microseconds, rounded up so that it does not come early.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1000)).map_or(UNTIL_MAX, |micros| micros.min(UNTIL_MAX))
}
