//! `historical_service_time`: reimplements dm-multipath's selector of this name.
//!
//! The service time of a completion is the time since the start of the I/O or since the previous
//! completion, whichever is later. It is averaged exponentially; a longer I/O has more weight, in
//! steps of 2^24 ns. A path without a completion for (paths x service time) is stale: if idle, it
//! gets one I/O as a probe; if busy, it gets no more I/Os than its rival has.

use super::{Nanos, PathView, Rotation};

/// Fraction of the old average that remains after an I/O of up to one bucket.
const KEEP: f64 = 0.95;
/// Length of a bucket, as a power of two in nanoseconds.
const BUCKET_SHIFT: u32 = 24;
/// From this bucket on, nothing of the old average remains.
const BUCKETS: u64 = 64;

#[derive(Debug, Clone, Default)]
pub(super) struct History {
    paths: Vec<Past>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Past {
    /// Average service time in nanoseconds.
    service_time: f64,
    stale_after: Nanos,
    last_finish: Nanos,
}

impl History {
    pub(super) fn resize(&mut self, paths: usize) {
        self.paths.resize(paths, Past::default());
    }

    pub(super) fn completed(&mut self, path: usize, started: Nanos, now: Nanos) {
        let count = self.paths.len();
        let past = &mut self.paths[path];
        let service = now.saturating_sub(started.max(past.last_finish));
        past.last_finish = now;
        let bucket = service >> BUCKET_SHIFT;
        let keep = if bucket + 1 < BUCKETS {
            (0..=bucket).fold(1.0, |keep, _| keep * KEEP)
        } else {
            0.0
        };
        past.service_time = past.service_time * keep + service as f64 * (1.0 - keep);
        past.stale_after = now.saturating_add((count as f64 * past.service_time) as Nanos);
    }

    pub(super) fn select(
        &self,
        turn: &Rotation<'_>,
        open: impl Fn(&PathView) -> bool,
        in_flight: &[u32],
        now: Nanos,
    ) -> Option<usize> {
        turn.iter()
            .filter(|(_, p)| open(p))
            .map(|(i, _)| i)
            .reduce(|best, i| {
                let this = (&self.paths[i], in_flight[i]);
                let rival = (&self.paths[best], in_flight[best]);
                if better(this, rival, now) { i } else { best }
            })
    }
}

/// Checks whether `this` is strictly the better choice.
fn better((this, load): (&Past, u32), (rival, rival_load): (&Past, u32), now: Nanos) -> bool {
    let stale = |past: &Past| past.stale_after < now;
    match (load == 0, rival_load == 0) {
        (true, true) => return this.stale_after < rival.stale_after,
        (true, false) if stale(this) => return true,
        (false, true) if stale(rival) => return false,
        _ => {}
    }
    let cost = |past: &Past, load: u32| past.service_time * f64::from(load + 1);
    let rival_wins = if load == rival_load {
        this.service_time > rival.service_time
    } else {
        cost(this, load) > cost(rival, rival_load)
    };
    if stale(if rival_wins { rival } else { this }) {
        load < rival_load
    } else {
        !rival_wins
    }
}
