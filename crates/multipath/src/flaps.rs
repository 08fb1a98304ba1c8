//! Losses of a path: many of them hold it back.

use crate::policy::Nanos;
use crate::sync::lock;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Half-life of the weight of a flap, in nanoseconds.
const FLAP_HALF_LIFE: f64 = 10e9;
/// Number of flaps without a penalty.
const FLAP_FREE: f64 = 3.0;

/// Recent losses of a path, as all queues count them.
#[derive(Debug, Default)]
pub(crate) struct Flaps {
    score: Mutex<Score>,
    /// Until this time, the path carries nothing that another path can carry.
    held_until: AtomicU64,
}

/// Weight of the recent losses.
#[derive(Debug, Default)]
struct Score {
    value: f64,
    /// Time at which the score begins to decay.
    at: Nanos,
    /// Time at which the last loss was counted.
    counted: Option<Nanos>,
}

impl Flaps {
    /// Counts the loss of a connection that began at `since`, and holds the path back if there were
    /// many losses. A loss noticed by several threads counts once. Returns whether it was counted.
    pub(crate) fn record(&self, since: Nanos, longest: u32, now: Nanos) -> bool {
        let mut score = lock(&self.score);
        if score.counted.is_some_and(|counted| since <= counted) {
            return false;
        }
        // A higher score would only outlast the longest penalty.
        let most = FLAP_FREE + 1.0 + f64::from(longest.max(1)).log2();
        score.value = (score.decayed(now) + 1.0).min(most);
        score.counted = Some(now);
        let penalty = penalty(score.value, longest);
        score.at = now + (penalty * 1e9) as Nanos;
        self.held_until.store(score.at, Relaxed);
        true
    }

    /// Checks whether the path is held back because of its losses.
    pub(crate) fn hold_back(&self, now: Nanos) -> bool {
        now < self.held_until.load(Relaxed)
    }

    /// Computes the seconds for which a path that answers again is held back because of its losses.
    pub(crate) fn penalty_secs(&self, longest: u32, now: Nanos) -> f64 {
        penalty(lock(&self.score).decayed(now), longest)
    }
}

impl Score {
    fn decayed(&self, now: Nanos) -> f64 {
        self.value * (-(now.saturating_sub(self.at) as f64) / FLAP_HALF_LIFE).exp2()
    }
}

fn penalty(score: f64, longest: u32) -> f64 {
    let over = score - FLAP_FREE;
    if over > 0.0 {
        over.exp2().min(longest.into())
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_counts_once_and_many_hold_the_path_back_for_longer_each_time() {
        const SEC: Nanos = 1_000_000_000;
        let flaps = Flaps::default();
        let mut now = SEC;
        let mut waits = Vec::new();
        for _ in 0..12 {
            assert!(flaps.record(now, 30, now + 1));
            assert!(
                !flaps.record(now, 30, now + 2),
                "another thread's view of it"
            );
            now += 2;
            let began = now;
            while flaps.hold_back(now) {
                now += SEC / 10;
            }
            waits.push((now - began).div_ceil(SEC));
        }
        assert!(waits[..3].iter().all(|w| *w == 0), "{waits:?}");
        assert!(waits.is_sorted() && waits[11] >= 30, "{waits:?}");
        // A path that stayed up for long has no penalty left.
        now += 120 * SEC;
        assert!(flaps.record(now, 30, now + 1) && !flaps.hold_back(now + 2));
    }
}
