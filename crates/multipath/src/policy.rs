//! Path selection policies. Pure: no clock, no socket, and no allocation per I/O.
//!
//! ```text
//!   select(views, io, now) ──► path ──► started ──► … ──► completed (input of the estimators)
//! ```
//!
//! The first eight policies are those of HP-UX 11i v3 (`scsimgr` attribute `load_bal_policy`),
//! three are those of Linux dm-multipath, and `predicted_finish` is our own.
//!
//! Asymmetric access (ALUA) takes precedence over every policy: while a usable path is optimized,
//! only optimized paths carry I/O.

mod history;
mod predict;

pub use predict::Prediction;

use history::History;
use predict::Predictor;
use std::fmt;
use std::str::FromStr;

/// Nanoseconds of a monotonic clock with an arbitrary origin.
pub type Nanos = u64;

/// State of one path as input of a policy. Plain data, updated by the queue of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathView {
    /// The path may carry I/O now.
    pub usable: bool,
    /// Its target port group is active/optimized; also true for targets without ALUA.
    pub optimized: bool,
    /// Number of I/Os in flight on the path, over all threads.
    pub in_flight: u32,
    /// Bytes of those I/Os.
    pub bytes_in_flight: u64,
    /// NUMA node of the path, if known.
    pub cell: Option<u32>,
    /// Distance to the NUMA node of the issuing CPU, as in sysfs: 10 is local.
    pub distance: u32,
    /// `wrr_path_weight`: consecutive I/Os under `weighted_rr`; 0 excludes the path there.
    pub weight: u32,
    /// Index of the target port.
    pub port: u32,
    /// Relative throughput for `service_time`, 1 to 100; 0 is used only if all paths have 0.
    pub throughput: u32,
    /// The attribute `preferred_path` names this path.
    pub preferred: bool,
    /// The attribute `pref_tport` names this path's port.
    pub preferred_port: bool,
    /// The attribute `lpt_to_lockdown` names this path.
    pub lockdown: bool,
}

impl PathView {
    /// Creates a default idle path: usable, optimized, local, weight 1, throughput 1.
    pub fn idle() -> PathView {
        PathView {
            usable: true,
            optimized: true,
            in_flight: 0,
            bytes_in_flight: 0,
            cell: None,
            distance: 10,
            weight: 1,
            port: 0,
            throughput: 1,
            preferred: false,
            preferred_port: false,
            lockdown: false,
        }
    }
}

/// An I/O as input of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Io {
    /// True for a write, false for a read.
    pub write: bool,
    /// Length in bytes.
    pub bytes: u32,
}

/// A load-balancing policy, as named by the attribute `load_bal_policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Each path in turn.
    RoundRobin,
    /// The path with the fewest I/Os over all threads; ties in turn.
    LeastCmdLoad,
    /// In turn over the paths of the issuing CPU's NUMA node; over all if none is usable.
    ClRoundRobin,
    /// The path with the smallest distance to the issuing CPU; ties in turn.
    ClosestPath,
    /// The path named by the attribute `preferred_path`; if it cannot be used, the first usable
    /// one. That is the same path for all threads, because an administrator who chooses this policy
    /// wants a single path.
    PreferredPath,
    /// In turn over the paths to the port named by `pref_tport`; over all if none is usable.
    PrefTport,
    /// `wrr_path_weight` I/Os on one path, then the next path. Weight 0 excludes a path.
    WeightedRr,
    /// One path, chosen at the first I/O (the one named by `lpt_to_lockdown`, otherwise the one
    /// with the fewest I/Os) and kept. When it fails, no other path carries I/O.
    PathLockdown,
    /// Like dm's queue-length: the path with the fewest I/Os of this selector; ties in turn.
    QueueLength,
    /// Like dm's service-time: smallest (bytes in flight + size) / throughput; ties in turn.
    ServiceTime,
    /// Like dm's historical-service-time: smallest (I/Os of this selector + 1) x learned service
    /// time.
    HistoricalServiceTime,
    /// Smallest predicted cost: see [`Prediction`].
    PredictedFinish,
}

impl Policy {
    /// All policies, in declaration order.
    pub const ALL: [Policy; 12] = [
        Policy::RoundRobin,
        Policy::LeastCmdLoad,
        Policy::ClRoundRobin,
        Policy::ClosestPath,
        Policy::PreferredPath,
        Policy::PrefTport,
        Policy::WeightedRr,
        Policy::PathLockdown,
        Policy::QueueLength,
        Policy::ServiceTime,
        Policy::HistoricalServiceTime,
        Policy::PredictedFinish,
    ];

    /// Returns the name used in attributes, listings and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Policy::RoundRobin => "round_robin",
            Policy::LeastCmdLoad => "least_cmd_load",
            Policy::ClRoundRobin => "cl_round_robin",
            Policy::ClosestPath => "closest_path",
            Policy::PreferredPath => "preferred_path",
            Policy::PrefTport => "pref_tport",
            Policy::WeightedRr => "weighted_rr",
            Policy::PathLockdown => "path_lockdown",
            Policy::QueueLength => "queue_length",
            Policy::ServiceTime => "service_time",
            Policy::HistoricalServiceTime => "historical_service_time",
            Policy::PredictedFinish => "predicted_finish",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Error for a text that names no policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownPolicy(pub String);

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown load-balancing policy {:?}; choose one of",
            self.0
        )?;
        for (i, policy) in Policy::ALL.iter().enumerate() {
            write!(f, "{} {policy}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl std::error::Error for UnknownPolicy {}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Policy, UnknownPolicy> {
        Policy::ALL
            .into_iter()
            .find(|policy| policy.name() == text)
            .ok_or_else(|| UnknownPolicy(text.to_string()))
    }
}

/// Outcome of an I/O on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The I/O was carried out.
    Succeeded,
    /// The I/O failed, timed out, or was withdrawn.
    Failed,
}

impl Outcome {
    /// Returns the outcome of an I/O with this result.
    #[inline]
    pub fn of<T, E>(result: &Result<T, E>) -> Outcome {
        match result {
            Ok(_) => Outcome::Succeeded,
            Err(_) => Outcome::Failed,
        }
    }
}

/// Selects paths for the I/O of one queue. Used by one thread.
#[derive(Debug, Clone)]
pub struct Selector {
    policy: Policy,
    own_cell: Option<u32>,
    /// Number of I/Os of this selector in flight on each path.
    own_in_flight: Vec<u32>,
    /// Path chosen last; the next turn starts after it.
    last: usize,
    /// I/Os that `weighted_rr` may still send to `last`.
    credit: u32,
    locked: Option<usize>,
    learned: Learned,
}

/// State that a policy learns about paths, beyond counters.
#[derive(Debug, Clone)]
enum Learned {
    Nothing,
    History(History),
    Predictor(Predictor),
}

impl Learned {
    fn new(policy: Policy) -> Learned {
        match policy {
            Policy::HistoricalServiceTime => Learned::History(History::default()),
            Policy::PredictedFinish => Learned::Predictor(Predictor::default()),
            _ => Learned::Nothing,
        }
    }
}

impl Selector {
    /// Creates a selector for `paths` paths. `own_cell` is the NUMA node of the issuing thread.
    pub fn new(policy: Policy, paths: usize, own_cell: Option<u32>) -> Selector {
        let mut selector = Selector {
            policy,
            own_cell,
            own_in_flight: Vec::new(),
            last: 0,
            credit: 0,
            locked: None,
            learned: Learned::Nothing,
        };
        selector.resize(paths);
        selector
    }

    /// Sets the number of paths. If it grows, the new paths are at the end and the state of the
    /// others is kept. Otherwise the path numbers have new meanings and all state is discarded,
    /// including the path chosen by `path_lockdown`.
    pub fn resize(&mut self, paths: usize) {
        if paths <= self.own_in_flight.len() || self.own_in_flight.is_empty() {
            self.own_in_flight.clear();
            self.last = paths.saturating_sub(1);
            self.credit = 0;
            self.locked = None;
            self.learned = Learned::new(self.policy);
        }
        self.own_in_flight.resize(paths, 0);
        match &mut self.learned {
            Learned::Nothing => {}
            Learned::History(history) => history.resize(paths),
            Learned::Predictor(predictor) => predictor.resize(paths),
        }
    }

    /// Returns the policy of this selector.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Returns the path chosen by `path_lockdown`.
    pub fn locked(&self) -> Option<usize> {
        self.locked
    }

    /// Chooses the path for `io`; `None` if no path may carry it. `paths` has the order and
    /// number of [`Selector::resize`]; further elements are ignored.
    pub fn select(&mut self, paths: &[PathView], io: Io, now: Nanos) -> Option<usize> {
        let known = paths.len().min(self.own_in_flight.len());
        let paths = &paths[..known];
        if self.policy == Policy::PathLockdown
            && let Some(locked) = self.locked
        {
            return paths.get(locked).filter(|p| p.usable).map(|_| locked);
        }
        let any_optimized = paths.iter().any(|p| p.usable && p.optimized);
        let open = |p: &PathView| p.usable && (p.optimized || !any_optimized);
        let turn = Rotation {
            paths,
            last: self.last,
        };
        let chosen = match self.policy {
            Policy::RoundRobin => turn.next(open),
            Policy::ClRoundRobin => turn
                .next(|p| open(p) && p.cell.is_some() && p.cell == self.own_cell)
                .or_else(|| turn.next(open)),
            Policy::PrefTport => turn
                .next(|p| open(p) && p.preferred_port)
                .or_else(|| turn.next(open)),
            Policy::PreferredPath => paths
                .iter()
                .position(|p| open(p) && p.preferred)
                .or_else(|| paths.iter().position(open)),
            Policy::LeastCmdLoad => turn.least(open, |_, p| p.in_flight),
            Policy::ClosestPath => turn.least(open, |_, p| p.distance),
            Policy::QueueLength => turn.least(open, |i, _| self.own_in_flight[i]),
            Policy::ServiceTime => turn.least(open, |_, p| ServiceTime {
                bytes: p.bytes_in_flight + u64::from(io.bytes),
                throughput: p.throughput,
            }),
            Policy::WeightedRr => self.weighted(paths, open),
            Policy::PathLockdown => {
                self.locked = turn
                    .next(|p| open(p) && p.lockdown)
                    .or_else(|| turn.least(open, |_, p| p.in_flight));
                self.locked
            }
            Policy::HistoricalServiceTime => match &self.learned {
                Learned::History(history) => history.select(&turn, open, &self.own_in_flight, now),
                _ => None,
            },
            Policy::PredictedFinish => match &mut self.learned {
                Learned::Predictor(predictor) => predictor.select(&turn, open, io, now),
                _ => None,
            },
        }?;
        self.last = chosen;
        Some(chosen)
    }

    /// Records that `io` was sent on `path`.
    pub fn started(&mut self, path: usize, io: Io, now: Nanos) {
        let Some(count) = self.own_in_flight.get_mut(path) else {
            return;
        };
        *count += 1;
        if let Learned::Predictor(predictor) = &mut self.learned {
            predictor.started(path, io, now);
        }
    }

    /// Records that `io`, sent on `path` at `started`, has completed. Nothing is learned from a
    /// failed I/O.
    pub fn completed(&mut self, path: usize, io: Io, started: Nanos, now: Nanos, outcome: Outcome) {
        let Some(count) = self.own_in_flight.get_mut(path) else {
            return;
        };
        *count = count.saturating_sub(1);
        match &mut self.learned {
            Learned::Nothing => {}
            Learned::History(history) => {
                if outcome == Outcome::Succeeded {
                    history.completed(path, started, now);
                }
            }
            Learned::Predictor(predictor) => {
                predictor.completed(path, io, started, now, outcome);
            }
        }
    }

    /// Returns the prediction of `predicted_finish` for a path; `None` under another policy, and
    /// before a path's first completion.
    pub fn prediction(&self, path: usize) -> Option<Prediction> {
        match &self.learned {
            Learned::Predictor(predictor) => predictor.prediction(path),
            _ => None,
        }
    }

    fn weighted(&mut self, paths: &[PathView], open: impl Fn(&PathView) -> bool) -> Option<usize> {
        let takes = |p: &PathView| open(p) && p.weight > 0;
        let stays = self.credit > 0 && paths.get(self.last).is_some_and(takes);
        let chosen = if stays {
            self.last
        } else {
            let turn = Rotation {
                paths,
                last: self.last,
            };
            let next = turn.next(takes)?;
            self.credit = paths[next].weight;
            next
        };
        self.credit -= 1;
        Some(chosen)
    }
}

/// The paths in order, starting after the one chosen last.
struct Rotation<'a> {
    paths: &'a [PathView],
    last: usize,
}

impl<'a> Rotation<'a> {
    fn iter(&self) -> impl Iterator<Item = (usize, &'a PathView)> + use<'a> {
        let first = if self.last + 1 < self.paths.len() {
            self.last + 1
        } else {
            0
        };
        let (before, after) = self.paths.split_at(first);
        let after = after.iter().enumerate().map(move |(i, p)| (first + i, p));
        after.chain(before.iter().enumerate())
    }

    fn next(&self, open: impl Fn(&PathView) -> bool) -> Option<usize> {
        self.iter().find(|(_, p)| open(p)).map(|(i, _)| i)
    }

    /// Finds the open path with the smallest cost; of equal ones, the first in turn.
    fn least<C: PartialOrd>(
        &self,
        open: impl Fn(&PathView) -> bool,
        cost: impl Fn(usize, &PathView) -> C,
    ) -> Option<usize> {
        let mut best: Option<(usize, C)> = None;
        for (i, path) in self.iter().filter(|(_, p)| open(p)) {
            let cost = cost(i, path);
            if best.as_ref().is_none_or(|(_, least)| cost < *least) {
                best = Some((i, cost));
            }
        }
        best.map(|(i, _)| i)
    }
}

/// Bytes divided by throughput; compared without a division.
#[derive(PartialEq)]
struct ServiceTime {
    bytes: u64,
    throughput: u32,
}

impl PartialOrd for ServiceTime {
    fn partial_cmp(&self, other: &ServiceTime) -> Option<std::cmp::Ordering> {
        let cross =
            |a: &ServiceTime, b: &ServiceTime| u128::from(a.bytes) * u128::from(b.throughput);
        match (self.throughput, other.throughput) {
            (0, 0) => self.bytes.partial_cmp(&other.bytes),
            _ => cross(self, other).partial_cmp(&cross(other, self)),
        }
    }
}
