//! Simulation of policies in virtual time: the exact behavior of a load on paths of known speed.
//! The result is deterministic on every machine.
//!
//! A path is a serial link (first come, first served, `rate` bytes per second) followed by a base
//! latency that I/Os spend in parallel, plus a uniformly distributed jitter.

use block_testing::Random;
use multipath::policy::{Io, Nanos, Outcome, PathView, Policy, Selector};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// A path of known speed.
#[derive(Debug, Clone)]
pub struct SimPath {
    /// Rate in bytes per second; 0 counts as 1.
    pub rate: u64,
    /// Latency of every I/O in addition to its time on the link.
    pub base_latency: Nanos,
    /// Maximum random addition to the base latency of each I/O.
    pub jitter: Nanos,
    /// Interval in which the link stands still.
    pub pause: Range<Nanos>,
    /// Path view passed to policies; the simulation fills in the I/Os in flight.
    pub view: PathView,
}

impl SimPath {
    /// Creates an undisturbed path with the view [`PathView::idle`].
    pub fn new(rate: u64, base_latency: Nanos) -> SimPath {
        SimPath {
            rate,
            base_latency,
            jitter: 0,
            pause: 0..0,
            view: PathView::idle(),
        }
    }

    /// Returns the time that `bytes` take on the link, at least 1.
    pub fn service(&self, bytes: u32) -> Nanos {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate.max(1));
        Nanos::try_from(nanos).unwrap_or(Nanos::MAX).max(1)
    }

    /// Computes when the link has sent `bytes` if it starts at `begin`.
    fn sent(&self, begin: Nanos, bytes: u32) -> Nanos {
        let begin = if self.pause.contains(&begin) {
            self.pause.end
        } else {
            begin
        };
        let end = begin.saturating_add(self.service(bytes));
        if begin < self.pause.start && end > self.pause.start {
            end.saturating_add(self.pause.end.saturating_sub(self.pause.start))
        } else {
            end
        }
    }
}

/// A recorded I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Time of submission, from an arbitrary origin. Ascending.
    pub at: Nanos,
    /// Number of I/Os in flight at that time.
    pub in_flight: u32,
    /// Direction and length.
    pub io: Io,
}

/// Source of the simulated I/Os.
#[derive(Debug, Clone)]
pub enum Load<'a> {
    /// Each of `threads` threads has its own selector and keeps `depth` reads in flight until
    /// `time`. Sizes are drawn uniformly from `sizes`.
    Closed {
        /// Number of threads; 0 counts as 1.
        threads: u32,
        /// I/Os in flight per thread.
        depth: u32,
        /// Possible sizes in bytes. Must not be empty.
        sizes: &'a [u32],
        /// End of the measurement.
        time: Nanos,
    },
    /// Each I/O is sent at its recorded time, regardless of the I/Os in flight.
    Open(&'a [Arrival]),
    /// The recorded I/Os in order; each is sent once no more I/Os are in flight than when it was
    /// recorded.
    Paced(&'a [Arrival]),
}

/// Result of a simulation. Times are in nanoseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct SimResult {
    /// I/Os and bytes sent on each path.
    pub sent: Vec<Share>,
    /// Completed I/Os.
    pub completed: Share,
    /// Time from the first I/O to the end of the measurement, or to the last completion.
    pub elapsed: Nanos,
    /// Mean latency.
    pub mean: f64,
    /// Median latency.
    pub p50: Nanos,
    /// 99th percentile of the latency.
    pub p99: Nanos,
    /// All I/Os in order of submission.
    pub each: Vec<SimIo>,
}

/// A simulated I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimIo {
    /// Time of submission.
    pub at: Nanos,
    /// Direction and length.
    pub io: Io,
    /// Chosen path; `None` if no path could carry it.
    pub path: Option<usize>,
    /// Time from submission to completion; `None` if it has not completed by the end of the
    /// measurement.
    pub latency: Option<Nanos>,
}

/// A number of I/Os and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    /// Number of I/Os.
    pub ios: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl Share {
    fn add(&mut self, io: Io) {
        self.ios += 1;
        self.bytes += u64::from(io.bytes);
    }
}

impl SimResult {
    /// Returns the throughput in bytes per second.
    pub fn throughput(&self) -> f64 {
        self.completed.bytes as f64 * 1e9 / self.elapsed.max(1) as f64
    }
}

/// Simulates `load` over `links` under `policy`. `seed` determines sizes and jitter; `own_cell` is
/// the NUMA node of all threads.
pub fn run(
    links: &[SimPath],
    policy: Policy,
    own_cell: Option<u32>,
    load: &Load<'_>,
    seed: u64,
) -> SimResult {
    let threads = match load {
        Load::Closed { threads, .. } => (*threads).max(1) as usize,
        _ => 1,
    };
    let mut run = Run {
        links,
        views: links.iter().map(|link| link.view).collect(),
        free_at: vec![0; links.len()],
        selectors: vec![Selector::new(policy, links.len(), own_cell); threads],
        random: Random::new(seed),
        flying: BinaryHeap::new(),
        sent: vec![Share::default(); links.len()],
        completed: Share::default(),
        each: Vec::new(),
    };
    let elapsed = match load {
        Load::Closed {
            depth, sizes, time, ..
        } => run.closed(*depth, sizes, *time),
        Load::Open(arrivals) => run.open(arrivals),
        Load::Paced(arrivals) => run.paced(arrivals),
    };
    run.outcome(elapsed)
}

/// Returns the throughput of [`run`] relative to that of the best single path under the same load.
pub fn ratio_to_best_single(links: &[SimPath], policy: Policy, load: &Load<'_>, seed: u64) -> f64 {
    let single = links
        .iter()
        .map(|link| {
            let alone = std::slice::from_ref(link);
            run(alone, Policy::RoundRobin, None, load, seed).throughput()
        })
        .fold(0.0, f64::max);
    run(links, policy, None, load, seed).throughput() / single
}

/// An I/O in flight, ordered by completion time, then by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Flying {
    finish: Nanos,
    number: usize,
    path: usize,
    thread: usize,
    started: Nanos,
    bytes: u32,
    write: bool,
}

struct Run<'a> {
    links: &'a [SimPath],
    views: Vec<PathView>,
    /// Time at which each link has sent everything queued on it.
    free_at: Vec<Nanos>,
    selectors: Vec<Selector>,
    random: Random,
    flying: BinaryHeap<Reverse<Flying>>,
    sent: Vec<Share>,
    completed: Share,
    each: Vec<SimIo>,
}

impl Run<'_> {
    /// Sends `io`; without a usable path it is lost.
    fn send(&mut self, thread: usize, io: Io, now: Nanos) {
        let number = self.each.len();
        let selector = &mut self.selectors[thread];
        let chosen = selector.select(&self.views, io, now);
        self.each.push(SimIo {
            at: now,
            io,
            path: chosen,
            latency: None,
        });
        let Some(path) = chosen else {
            return;
        };
        selector.started(path, io, now);
        let link = &self.links[path];
        let sent = link.sent(now.max(self.free_at[path]), io.bytes);
        self.free_at[path] = sent;
        let jitter = match link.jitter {
            0 => 0,
            most => self.random.below(most.saturating_add(1).max(1)),
        };
        self.flying.push(Reverse(Flying {
            finish: sent
                .saturating_add(link.base_latency)
                .saturating_add(jitter),
            number,
            path,
            thread,
            started: now,
            bytes: io.bytes,
            write: io.write,
        }));
        self.views[path].in_flight += 1;
        self.views[path].bytes_in_flight += u64::from(io.bytes);
        self.sent[path].add(io);
    }

    /// Removes the next completion if it is not after `until`.
    fn reap(&mut self, until: Nanos) -> Option<Flying> {
        if self.flying.peek()?.0.finish > until {
            return None;
        }
        let Reverse(done) = self.flying.pop()?;
        let io = Io {
            write: done.write,
            bytes: done.bytes,
        };
        let view = &mut self.views[done.path];
        view.in_flight -= 1;
        view.bytes_in_flight -= u64::from(done.bytes);
        let selector = &mut self.selectors[done.thread];
        selector.completed(done.path, io, done.started, done.finish, Outcome::Succeeded);
        self.completed.add(io);
        self.each[done.number].latency = Some(done.finish - done.started);
        Some(done)
    }

    fn closed(&mut self, depth: u32, sizes: &[u32], time: Nanos) -> Nanos {
        for _ in 0..depth {
            for thread in 0..self.selectors.len() {
                self.send_drawn(thread, sizes, 0);
            }
        }
        while let Some(done) = self.reap(time) {
            self.send_drawn(done.thread, sizes, done.finish);
        }
        time
    }

    fn send_drawn(&mut self, thread: usize, sizes: &[u32], now: Nanos) {
        let bytes = sizes[self.random.below(sizes.len() as u64) as usize];
        let io = Io {
            write: false,
            bytes,
        };
        self.send(thread, io, now);
    }

    fn open(&mut self, arrivals: &[Arrival]) -> Nanos {
        let origin = arrivals.first().map_or(0, |first| first.at);
        for arrival in arrivals {
            let at = arrival.at.saturating_sub(origin);
            while self.reap(at).is_some() {}
            self.send(0, arrival.io, at);
        }
        self.drain()
    }

    fn paced(&mut self, arrivals: &[Arrival]) -> Nanos {
        let mut now = 0;
        for arrival in arrivals {
            while self.flying.len() > arrival.in_flight as usize {
                if let Some(done) = self.reap(Nanos::MAX) {
                    now = done.finish;
                }
            }
            self.send(0, arrival.io, now);
        }
        self.drain().max(now)
    }

    fn drain(&mut self) -> Nanos {
        let mut last = 0;
        while let Some(done) = self.reap(Nanos::MAX) {
            last = done.finish;
        }
        last
    }

    fn outcome(self, elapsed: Nanos) -> SimResult {
        let mut latencies: Vec<Nanos> = self.each.iter().filter_map(|s| s.latency).collect();
        latencies.sort_unstable();
        let sum: u128 = latencies.iter().map(|l| u128::from(*l)).sum();
        SimResult {
            sent: self.sent,
            completed: self.completed,
            elapsed,
            mean: sum as f64 / latencies.len().max(1) as f64,
            p50: quantile(&latencies, 50),
            p99: quantile(&latencies, 99),
            each: self.each,
        }
    }
}

/// Finds the smallest value that `percent` percent of `sorted` do not exceed; 0 if it is empty.
fn quantile(sorted: &[Nanos], percent: usize) -> Nanos {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}
