//! `predicted_finish`: models each path as a serial link with a rate, followed by a base latency
//! that I/Os spend in parallel. Both are learned from completions.
//!
//! An I/O sent now finishes after
//!
//! ```text
//!   wait for the link + size / rate + base latency
//! ```
//!
//! Choosing the path with the earliest finish is optimal for the single I/O. It fills a near path
//! until its queue is as long as the base latency of a far one, and leaves the far one idle until
//! then. But a place in the queue of a busy link makes nothing faster: it delays all later I/Os. So
//! the wait is multiplied by its cost to all I/Os together, 1 / (1 - fraction of I/Os that had to
//! wait). This price is 1 on a path with idle time, where the rule equals the selfish one. It is
//! large on a saturated path, which then holds only enough to stay busy while a far path can take
//! the rest. When every path has a queue that outlasts the time to the next choice, holding back
//! gains nothing, and the selfish rule is used: it keeps the longest latencies short.
//! (Marginal-cost pricing of a queue: Pigou 1920; Naor, Econometrica 37, 1969.)
//!
//! Learning: in the model, an I/O has waited if and only if it was sent earlier than one base
//! latency before the previous completion. Then the time since that completion is its size divided
//! by the rate; otherwise its latency is the base latency plus its size divided by the rate. The
//! base latency is the minimum of the last one to two seconds that had such samples. The rate rises
//! quickly and falls slowly, because any disturbance makes a measured rate too low. If other
//! threads use the path too, a completion also stands for their bytes. In addition, one I/O at a
//! time is followed: the bytes that were on the path with it, divided by its latency, are a lower
//! bound of the link's rate. A path that has been silent gets one I/O from time to time; the cost
//! of an overdue path is increased by the time it is overdue.

use super::{Io, Nanos, Outcome, PathView, Rotation};

/// Upper limit of the price of waiting: a path is not worth using if it takes longer than this many
/// times the wait for another path.
const PRICE_MAX: f64 = 32.0;
/// Weight of one I/O in the fraction of I/Os that waited.
const WAITED_WEIGHT: f64 = 1.0 / 32.0;
/// Weight of one I/O in the mean time between choices.
const INTERVAL_WEIGHT: f64 = 1.0 / 32.0;
/// A queue is long enough if it lasts this many times the time to the next choice, plus the mean
/// error of the path's predictions.
const CUSHION: f64 = 2.0;
/// A path is overdue if it is silent for this many mean errors longer than predicted.
const OVERDUE_ERRORS: f64 = 4.0;
/// Weight of one I/O in the mean absolute error.
const ERROR_WEIGHT: f64 = 1.0 / 16.0;
/// Decay of the largest size, per I/O.
const LARGEST_FADES: f64 = 1.0 / 64.0;
/// Number of completions that make one measurement of the rate.
const RATE_SAMPLES: u32 = 8;
/// Weight of a measurement of a faster, and of a slower, rate than the current estimate.
const FASTER_WEIGHT: f64 = 0.5;
const SLOWER_WEIGHT: f64 = 1.0 / 8.0;
/// Upper limit of a gap between completions, as a multiple of the expected gap.
const GAP_MAX: f64 = 8.0;
/// Fraction of the first latency attributed to the link until a better estimate is known.
const FIRST_SPLIT: f64 = 0.5;
/// Fraction of that estimate that remains after an I/O that had not waited.
const HOPE: f64 = 0.5;
/// Minimum time that a least latency is kept; the maximum is twice this.
const BASE_WINDOW: Nanos = 1_000_000_000;
/// An idle path is tried again after this time, after [`EXPLORE_TIMES`] times its latency, and
/// after [`EXPLORE_TIMES`] I/Os on other paths.
const EXPLORE_AFTER: Nanos = 100_000_000;
const EXPLORE_TIMES: u32 = 64;

/// Learned parameters of a path under `predicted_finish`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prediction {
    /// Latency of a zero-length I/O on an idle path, in nanoseconds.
    pub base_latency: Nanos,
    /// Rate in bytes per second.
    pub rate: u64,
    /// Mean of |predicted - actual latency| of recent I/Os, in nanoseconds.
    pub mean_absolute_error: Nanos,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Predictor {
    links: Vec<Link>,
    /// Number of I/Os for which a path was chosen.
    chosen: u64,
    last_select: Nanos,
    /// Means of the time between two choices, and of its square.
    interval: f64,
    interval_square: f64,
}

/// A latency and the size of its I/O.
#[derive(Debug, Clone, Copy)]
struct Sample {
    latency: f64,
    bytes: f64,
}

impl Sample {
    fn base(&self, per_byte: f64) -> f64 {
        (self.latency - self.bytes * per_byte).max(0.0)
    }
}

#[derive(Debug, Clone, Copy)]
struct Followed {
    started: Nanos,
    predicted: f64,
    /// Bytes on the path, of all threads, including this I/O.
    bytes: f64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Link {
    /// Nanoseconds per byte; meaningless while `least` is empty.
    per_byte: f64,
    /// `per_byte` was measured, not guessed.
    rate_known: bool,
    /// Samples with the least base latency, of the current and of the previous window.
    least: [Option<Sample>; 2],
    window_start: Nanos,
    /// The rate measurement in progress: nanoseconds, bytes, completions.
    gaps: f64,
    gap_bytes: f64,
    gap_count: u32,
    /// Fraction of recent I/Os that had to wait.
    waited: f64,
    /// Time at which the modeled link has sent all its bytes.
    free_at: Nanos,
    last_finish: Option<Nanos>,
    /// Time of the last completion, or of the start that made the path busy.
    last_sign: Nanos,
    /// Recent fraction of the bytes on the path that belong to this selector.
    own_share: f64,
    own_bytes: u64,
    /// Size of the largest recent I/O.
    largest: f64,
    /// Bytes on the path, of all threads, including the I/O for which it was chosen last.
    all_bytes: f64,
    /// Some of those bytes belong to other threads. The delay they cause cannot be distinguished
    /// from base latency, so a sample taken then may only lower the base latency.
    shared: bool,
    /// Value of `Predictor::chosen` when this path was chosen last.
    last_chosen: u64,
    /// I/O whose prediction is being checked.
    followed: Option<Followed>,
    error: f64,
}

impl Link {
    fn base(&self) -> Option<f64> {
        let of = |s: &Option<Sample>| s.map(|s| s.base(self.per_byte));
        match (of(&self.least[0]), of(&self.least[1])) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Computes the nanoseconds until the link has sent its queue. The modeled clock is kept within
    /// bounds derived from the bytes in flight. Upper bound: all of them are still to be sent.
    /// Lower bound: the I/O that completed last left the link one base latency before its
    /// completion, and the link has been sending since then. The time since the completion counts
    /// for at most one I/O, because a stalled path has sent nothing; if other threads have I/Os on
    /// the path too, it is unknown and counts as zero.
    fn wait(&self, base: f64, view: &PathView, now: Nanos) -> f64 {
        let all = view.bytes_in_flight as f64 * self.per_byte;
        let by_clock = self.free_at.saturating_sub(now) as f64;
        let since = match self.last_finish {
            Some(finish) if view.bytes_in_flight <= self.own_bytes => now.saturating_sub(finish),
            _ => 0,
        };
        let sent = base + (since as f64).min(self.largest * self.per_byte);
        by_clock.clamp((all - sent).max(0.0), all)
    }

    fn learn_base(&mut self, sample: Sample, now: Nanos) {
        if now.saturating_sub(self.window_start) >= BASE_WINDOW {
            self.least = [None, self.least[0]];
            self.window_start = now;
        }
        let less = |s: &Sample| sample.base(self.per_byte) < s.base(self.per_byte);
        if self.least[0].as_ref().is_none_or(less) {
            self.least[0] = Some(sample);
        }
    }

    fn learn_gap(&mut self, gap: f64, bytes: f64) {
        self.gaps += gap.min(GAP_MAX * bytes * self.per_byte);
        self.gap_bytes += bytes;
        self.gap_count += 1;
        if self.gap_count < RATE_SAMPLES {
            return;
        }
        let measured = self.gaps / self.gap_bytes * self.own_share;
        let weight = match (self.rate_known, measured < self.per_byte) {
            (false, _) => 1.0,
            (true, true) => FASTER_WEIGHT,
            (true, false) => SLOWER_WEIGHT,
        };
        self.per_byte += (measured - self.per_byte) * weight;
        self.rate_known = true;
        (self.gaps, self.gap_bytes, self.gap_count) = (0.0, 0.0, 0);
    }

    fn completed(&mut self, io: Io, started: Nanos, now: Nanos) {
        let latency = now.saturating_sub(started) as f64;
        let bytes = f64::from(io.bytes.max(1));
        let before = self.last_finish.replace(now);
        let Some(base) = self.base() else {
            self.per_byte = FIRST_SPLIT * latency / bytes;
            self.learn_base(Sample { latency, bytes }, now);
            return;
        };
        let waited = before.filter(|finish| (started as f64) + base < *finish as f64);
        if let Some(finish) = waited {
            self.learn_gap(now.saturating_sub(finish) as f64, bytes);
        } else if !self.rate_known {
            // The link had room for this I/O. Further I/Os will show how much more room it has.
            self.per_byte *= HOPE;
            self.learn_base(Sample { latency, bytes }, now);
        } else if !self.shared || latency - bytes * self.per_byte < base {
            self.learn_base(Sample { latency, bytes }, now);
        }
        let waited = f64::from(u8::from(waited.is_some()));
        self.waited += (waited - self.waited) * WAITED_WEIGHT;
    }
}

impl Predictor {
    pub(super) fn resize(&mut self, paths: usize) {
        self.links.resize(
            paths,
            Link {
                own_share: 1.0,
                ..Link::default()
            },
        );
    }

    pub(super) fn select(
        &mut self,
        turn: &Rotation<'_>,
        open: impl Fn(&PathView) -> bool,
        io: Io,
        now: Nanos,
    ) -> Option<usize> {
        let cushion = CUSHION * self.interval(now);
        let mut idle = false;
        let (mut selfish, mut priced) = (None, None);
        for (i, view) in turn.iter().filter(|(_, p)| open(p)) {
            let cost = self.links[i].cost(view, io, now, self.chosen);
            idle |= cost.wait < cushion + self.links[i].error;
            let less = |best: &Option<(usize, f64)>, cost: f64| best.is_none_or(|(_, c)| cost < c);
            if less(&selfish, cost.selfish) {
                selfish = Some((i, cost.selfish));
            }
            if less(&priced, cost.priced) {
                priced = Some((i, cost.priced));
            }
        }
        let (chosen, _) = if idle { priced } else { selfish }?;
        self.chosen += 1;
        let link = &mut self.links[chosen];
        link.last_chosen = self.chosen;
        let own = (link.own_bytes + u64::from(io.bytes)) as f64;
        let all = (turn.paths[chosen].bytes_in_flight + u64::from(io.bytes)) as f64;
        let share = if all > own { own / all } else { 1.0 };
        link.all_bytes = all;
        link.shared = all > own;
        link.own_share += (share - link.own_share) * WAITED_WEIGHT;
        if let Some(base) = link.base() {
            let wait = link.wait(base, &turn.paths[chosen], now);
            link.free_at = now.saturating_add(wait as Nanos);
        }
        Some(chosen)
    }

    /// Computes the expected time to the next choice. It is a mean over points in time, so pauses
    /// between bursts count by their length.
    fn interval(&mut self, now: Nanos) -> f64 {
        let gap = now.saturating_sub(self.last_select) as f64;
        self.last_select = now;
        self.interval += (gap - self.interval) * INTERVAL_WEIGHT;
        self.interval_square += (gap * gap - self.interval_square) * INTERVAL_WEIGHT;
        self.interval_square / self.interval.max(1.0)
    }

    pub(super) fn started(&mut self, path: usize, io: Io, now: Nanos) {
        let link = &mut self.links[path];
        if link.own_bytes == 0 {
            link.last_sign = now;
        }
        link.own_bytes += u64::from(io.bytes);
        link.largest = f64::from(io.bytes).max(link.largest * (1.0 - LARGEST_FADES));
        let Some(base) = link.base() else {
            return;
        };
        let service = f64::from(io.bytes) * link.per_byte;
        let wait = link.free_at.saturating_sub(now) as f64;
        link.free_at = now.saturating_add((wait + service) as Nanos);
        if link.followed.is_none() {
            link.followed = Some(Followed {
                started: now,
                predicted: wait + service + base,
                bytes: link.all_bytes,
            });
        }
    }

    pub(super) fn completed(
        &mut self,
        path: usize,
        io: Io,
        started: Nanos,
        now: Nanos,
        outcome: Outcome,
    ) {
        let link = &mut self.links[path];
        link.own_bytes = link.own_bytes.saturating_sub(u64::from(io.bytes));
        link.last_sign = now;
        let followed = link.followed.filter(|f| f.started == started);
        if followed.is_some() {
            link.followed = None;
        }
        if outcome == Outcome::Failed {
            return;
        }
        if let Some(followed) = followed {
            let latency = now.saturating_sub(started) as f64;
            let bound = latency / followed.bytes.max(1.0);
            if bound < link.per_byte {
                link.per_byte +=
                    (bound - link.per_byte) * if link.rate_known { FASTER_WEIGHT } else { 1.0 };
            }
            let error = (latency - followed.predicted).abs();
            link.error += (error - link.error) * ERROR_WEIGHT;
        }
        link.completed(io, started, now);
    }

    pub(super) fn prediction(&self, path: usize) -> Option<Prediction> {
        let link = self.links.get(path)?;
        Some(Prediction {
            base_latency: link.base()? as Nanos,
            rate: (1e9 / link.per_byte) as u64,
            mean_absolute_error: link.error as Nanos,
        })
    }
}

/// Cost of sending an I/O on a link, in nanoseconds.
struct Cost {
    /// Time until the link is free.
    wait: f64,
    /// Cost to the I/O itself.
    selfish: f64,
    /// Cost to all I/Os together.
    priced: f64,
}

impl Link {
    /// Computes the cost of sending `io` here, after `chosen` choices.
    fn cost(&self, view: &PathView, io: Io, now: Nanos, chosen: u64) -> Cost {
        let flat = |cost: f64| Cost {
            wait: 0.0,
            selfish: cost,
            priced: cost,
        };
        let Some(base) = self.base() else {
            // Unknown path: try one I/O, then wait for its completion if another path exists.
            return flat(f64::from(view.in_flight) * 1e18);
        };
        let service = f64::from(io.bytes) * self.per_byte;
        let alone = base + service;
        let silent = now.saturating_sub(self.last_sign);
        let stale = self.own_bytes == 0
            && silent > EXPLORE_AFTER
            && silent as f64 > f64::from(EXPLORE_TIMES) * alone
            && chosen - self.last_chosen >= u64::from(EXPLORE_TIMES);
        if stale {
            return flat(0.0);
        }
        let wait = self.wait(base, view, now);
        let overdue = if self.own_bytes > 0 {
            (silent as f64 - alone - wait - OVERDUE_ERRORS * self.error).max(0.0)
        } else {
            0.0
        };
        let price = PRICE_MAX.min(1.0 / (1.0 - self.waited).max(1e-9));
        Cost {
            wait,
            selfish: alone + wait + overdue,
            priced: alone + wait * price + overdue,
        }
    }
}
