//! Estimates how recorded I/O would have performed under the other policies.
//!
//! Each path that was used is fitted with a rate and a base latency (the pair that predicts the
//! recorded completions best). The recorded I/Os are then replayed over the fitted paths in virtual
//! time under every policy: once at their recorded times, for the effect on latency, and once as
//! fast as the recorded concurrency permits, for the effect on throughput. The fit is validated
//! first, by replaying every I/O on the path it actually took: the advice is only as good as that
//! agreement.

use crate::virtual_time::{Arrival, Load, Share, SimPath, SimResult, run};
use multipath::policy::{Nanos, PathView, Policy};
use multipath::trace::{Record, Trace};
use std::fmt;

/// Minimum number of I/Os on a path for a fit.
pub const RECORDS_MIN: usize = 64;

/// Policies that differ by less than this fraction are considered equal.
const INDIFFERENT: f64 = 0.01;

/// Expected performance of every policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Advice {
    /// Policy that the gains are relative to.
    pub current: Policy,
    /// Fitted paths; `None` if too few I/Os were recorded on a path. The replay does not use it.
    pub paths: Vec<Option<Fit>>,
    /// How well the fitted paths reproduce the recording.
    pub agreement: Agreement,
    /// One row per policy, in the order of [`Policy::ALL`].
    pub rows: Vec<Row>,
}

/// Model parameters of a path, fitted to its recorded I/Os.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fit {
    /// Number of I/Os it was fitted to.
    pub ios: usize,
    /// Rate in bytes per second.
    pub rate: u64,
    /// Base latency in nanoseconds.
    pub base_latency: Nanos,
    /// Sum of |fitted - recorded latency| over the sum of recorded latencies.
    pub error: f64,
}

/// Recorded latencies compared with those of the same I/Os on the fitted paths. Nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Agreement {
    /// Sum of |fitted - recorded latency| over the sum of recorded latencies.
    pub error: f64,
    /// Mean of the recorded and of the fitted latencies.
    pub mean: [f64; 2],
    /// 99th percentile of the recorded and of the fitted latencies.
    pub p99: [Nanos; 2],
}

/// Expected performance of one policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Evaluated policy.
    pub policy: Policy,
    /// Replay with the recorded concurrency.
    pub paced: Expected,
    /// Replay at the recorded times.
    pub open: Expected,
}

/// Result of one replay.
#[derive(Debug, Clone, PartialEq)]
pub struct Expected {
    /// Throughput in bytes per second.
    pub throughput: f64,
    /// Mean latency in nanoseconds.
    pub mean: f64,
    /// 99th percentile of the latency in nanoseconds.
    pub p99: Nanos,
    /// I/Os and bytes per path.
    pub sent: Vec<Share>,
    /// Paced: throughput relative to the current policy. Open: mean latency of the current policy
    /// divided by the mean latency. 1 means no change; larger is better.
    pub gain: f64,
}

/// Reason why no advice is possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdviseError {
    /// No path has [`RECORDS_MIN`] recorded I/Os.
    TooFew,
    /// The views do not match the paths of the trace: number of views, number of paths.
    Paths(usize, usize),
}

impl fmt::Display for AdviseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdviseError::TooFew => write!(f, "too few recorded I/Os: no path has {RECORDS_MIN}"),
            AdviseError::Paths(views, paths) => {
                write!(f, "{views} paths were specified, but the trace has {paths}")
            }
        }
    }
}

impl std::error::Error for AdviseError {}

/// Replays `trace` under every policy. `views` holds the attributes of the LUN's paths; `own_cell`
/// is the NUMA node of the issuing thread.
///
/// # Errors
/// The trace holds too few I/Os, or its number of paths differs from that of `views`.
pub fn advise(
    trace: &Trace,
    views: &[PathView],
    current: Policy,
    own_cell: Option<u32>,
) -> Result<Advice, AdviseError> {
    if views.len() != trace.paths() {
        return Err(AdviseError::Paths(views.len(), trace.paths()));
    }
    let good: Vec<&Record> = trace.records().iter().filter(|r| r.ok).collect();
    let mut fitted: Vec<(Nanos, Nanos)> = Vec::new();
    let paths: Vec<Option<Fit>> = (0..views.len())
        .map(|path| {
            let of_path: Vec<&Record> = good
                .iter()
                .copied()
                .filter(|r| usize::from(r.path) == path)
                .collect();
            let fit = (of_path.len() >= RECORDS_MIN).then(|| fit(&of_path))?;
            let recorded = of_path.iter().map(|r| r.latency);
            fitted.extend(recorded.zip(modelled(&of_path, &fit)));
            Some(fit)
        })
        .collect();
    if fitted.is_empty() {
        return Err(AdviseError::TooFew);
    }
    let links: Vec<SimPath> = paths
        .iter()
        .zip(views)
        .map(|(fit, view)| {
            let mut link = fit.map_or(SimPath::new(1, 0), |f| SimPath::new(f.rate, f.base_latency));
            link.view = PathView {
                usable: view.usable && fit.is_some(),
                in_flight: 0,
                bytes_in_flight: 0,
                ..*view
            };
            link
        })
        .collect();
    let arrivals = arrivals(&good);
    let replay = |policy, load: &Load<'_>| run(&links, policy, own_cell, load, 0);
    let paced = Load::Paced(&arrivals);
    let open = Load::Open(&arrivals);
    let (paced_now, open_now) = (replay(current, &paced), replay(current, &open));
    let rows = Policy::ALL
        .into_iter()
        .map(|policy| {
            let (paced, open) = (replay(policy, &paced), replay(policy, &open));
            let faster = ratio(paced.throughput(), paced_now.throughput());
            let sooner = ratio(open_now.mean, open.mean);
            Row {
                policy,
                paced: expected(paced, faster),
                open: expected(open, sooner),
            }
        })
        .collect();
    Ok(Advice {
        current,
        paths,
        agreement: agreement(&fitted),
        rows,
    })
}

impl Advice {
    /// Returns the recommended policy: of those with the best throughput, the one with the lowest
    /// 99th percentile at the recorded times. Returns the current policy if it is among the best.
    pub fn recommended(&self) -> Policy {
        let top = self.rows.iter().map(|r| r.paced.gain).fold(0.0, f64::max);
        let good = |r: &&Row| r.paced.gain >= top * (1.0 - INDIFFERENT);
        let least = self.rows.iter().filter(good).map(|r| r.open.p99).min();
        let near = |r: &&Row| r.open.p99 as f64 * (1.0 - INDIFFERENT) <= least.unwrap_or(0) as f64;
        let best = || self.rows.iter().filter(good).filter(near);
        best()
            .find(|r| r.policy == self.current)
            .or_else(|| best().next())
            .map_or(self.current, |r| r.policy)
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |nanos: f64| nanos / 1e6;
        writeln!(
            f,
            "{:23} {:>8} {:>6} {:>8} {:>8} {:>8} {:>6}  share of I/Os",
            "policy", "MB/s", "gain", "p99 ms", "open ms", "p99 ms", "gain"
        )?;
        for row in &self.rows {
            let mark = if row.policy == self.current { '*' } else { ' ' };
            write!(
                f,
                "{:22}{mark} {:8.1} {:5.2}x {:8.2} {:8.2} {:8.2} {:5.2}x ",
                row.policy,
                row.paced.throughput / 1e6,
                row.paced.gain,
                ms(row.paced.p99 as f64),
                ms(row.open.mean),
                ms(row.open.p99 as f64),
                row.open.gain,
            )?;
            let all: u64 = row.paced.sent.iter().map(|s| s.ios).sum();
            for share in &row.paced.sent {
                write!(f, " {:.0}%", share.ios as f64 * 100.0 / all.max(1) as f64)?;
            }
            writeln!(f)?;
        }
        let a = &self.agreement;
        writeln!(
            f,
            "model: error {:.0}%; mean {:.2} ms, recorded {:.2}; p99 {:.2} ms, recorded {:.2}",
            a.error * 100.0,
            ms(a.mean[1]),
            ms(a.mean[0]),
            ms(a.p99[1] as f64),
            ms(a.p99[0] as f64),
        )
    }
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 1.0 }
}

fn expected(outcome: SimResult, gain: f64) -> Expected {
    Expected {
        throughput: outcome.throughput(),
        mean: outcome.mean,
        p99: outcome.p99,
        sent: outcome.sent,
        gain,
    }
}

/// Collects the I/Os with the number of I/Os in flight when each was issued.
fn arrivals(records: &[&Record]) -> Vec<Arrival> {
    let mut ends: Vec<Nanos> = records.iter().map(|r| end(r)).collect();
    ends.sort_unstable();
    let mut ended = 0;
    let arrival = |(i, r): (usize, &&Record)| {
        ended += ends[ended..].iter().take_while(|e| **e <= r.at).count();
        Arrival {
            at: r.at,
            in_flight: u32::try_from(i.saturating_sub(ended)).unwrap_or(u32::MAX),
            io: r.io,
        }
    };
    records.iter().enumerate().map(arrival).collect()
}

fn end(record: &Record) -> Nanos {
    record.at.saturating_add(record.latency)
}

/// Finds the rate and base latency that best predict each completion of a path from its start and
/// from the preceding completion: service begins a base latency after the start, or right after the
/// preceding completion, whichever is later, and then takes the I/O's transfer time. The base
/// latency is one of several quantiles of the latency that the transfer time does not explain; the
/// rate is searched on a logarithmic scale, then between the neighbors of the best value.
fn fit(records: &[&Record]) -> Fit {
    const STEPS: usize = 60;
    // Nanoseconds per byte: from 1 TB/s to 1 kB/s.
    let (mut low, mut high) = (1e-3f64.ln(), 1e6f64.ln());
    let mut ended: Vec<&Record> = records.to_vec();
    ended.sort_by_key(|r| end(r));
    let mut best = (f64::INFINITY, 0.0, 0.0);
    for _ in 0..3 {
        let step = (high - low) / STEPS as f64;
        for i in 0..=STEPS {
            let at = low + step * i as f64;
            for base in bases(records, at.exp()) {
                let error = step_error(&ended, at.exp(), base);
                if error < best.0 {
                    best = (error, base, at);
                }
            }
        }
        (low, high) = (best.2 - step, best.2 + step);
    }
    let (_, base, per_byte) = best;
    let mut fit = Fit {
        ios: records.len(),
        rate: (1e9 / per_byte.exp()).max(1.0) as u64,
        base_latency: base as Nanos,
        error: 0.0,
    };
    let recorded = records.iter().map(|r| r.latency);
    fit.error = agreement(&recorded.zip(modelled(records, &fit)).collect::<Vec<_>>()).error;
    fit
}

/// Computes candidates for the base latency.
fn bases(records: &[&Record], per_byte: f64) -> [f64; 4] {
    let rest = |r: &&Record| r.latency as f64 - f64::from(r.io.bytes) * per_byte;
    let mut rest: Vec<f64> = records.iter().map(rest).collect();
    [0, 1, 10, 50].map(|percent| {
        let rank = (rest.len() - 1) * percent / 100;
        rest.select_nth_unstable_by(rank, f64::total_cmp).1.max(0.0)
    })
}

/// Computes the sum of |predicted - recorded completion|; each is predicted from the one before it.
fn step_error(ended: &[&Record], per_byte: f64, base: f64) -> f64 {
    let pairs = ended.windows(2).map(|pair| {
        let (before, this) = (end(pair[0]), pair[1]);
        // Relative to the start: for large values, a double has no nanosecond resolution.
        let before = if before > this.at {
            (before - this.at) as f64
        } else {
            -((this.at - before) as f64)
        };
        let predicted = before.max(base) + f64::from(this.io.bytes) * per_byte;
        (this.latency as f64 - predicted).abs()
    });
    pairs.sum()
}

/// Computes the latency of each I/O on the fitted path. The queue of the link is computed by the
/// model within the bounds of the recorded bytes in flight: all of them, or all but the bytes that
/// fit into the base latency. Without these bounds, the smallest error of the rate would accumulate
/// over a trace that keeps a path busy.
fn modelled(records: &[&Record], fit: &Fit) -> Vec<Nanos> {
    let per_byte = 1e9 / fit.rate as f64;
    let base = fit.base_latency as f64;
    let origin = records.first().map_or(0, |r| r.at);
    let mut ends: Vec<(Nanos, u32)> = records.iter().map(|r| (end(r), r.io.bytes)).collect();
    ends.sort_unstable();
    let (mut ended, mut in_flight, mut free_at) = (0, 0u64, 0.0f64);
    records
        .iter()
        .map(|r| {
            while ended < ends.len() && ends[ended].0 <= r.at {
                in_flight = in_flight.saturating_sub(u64::from(ends[ended].1));
                ended += 1;
            }
            let at = (r.at - origin) as f64;
            let all = in_flight as f64 * per_byte;
            let wait = (free_at - at).clamp((all - base).max(0.0), all);
            let sent = wait + f64::from(r.io.bytes) * per_byte;
            free_at = at + sent;
            in_flight += u64::from(r.io.bytes);
            (sent + base) as Nanos
        })
        .collect()
}

fn agreement(pairs: &[(Nanos, Nanos)]) -> Agreement {
    let error: f64 = pairs.iter().map(|(r, m)| r.abs_diff(*m) as f64).sum();
    let (mut recorded, mut modelled): (Vec<Nanos>, Vec<Nanos>) = pairs.iter().copied().unzip();
    let sum = |of: &[Nanos]| of.iter().map(|l| *l as f64).sum::<f64>();
    let p99 = |of: &mut [Nanos]| *of.select_nth_unstable((of.len() * 99).div_ceil(100) - 1).1;
    let count = pairs.len() as f64;
    Agreement {
        error: error / sum(&recorded).max(1.0),
        mean: [sum(&recorded) / count, sum(&modelled) / count],
        p99: [p99(&mut recorded), p99(&mut modelled)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use multipath::policy::Io;
    use multipath::trace::Recorder;

    /// Records a trace of `policy` on `links` with `depth` I/Os in flight.
    fn recorded(links: &[SimPath], policy: Policy, depth: u32, time: Nanos) -> Trace {
        let load = Load::Closed {
            threads: 1,
            depth,
            sizes: &[4096, 8192, 16384],
            time,
        };
        let outcome = run(links, policy, None, &load, 7);
        let mut ring = Recorder::new(outcome.each.len());
        for done in &outcome.each {
            if let (Some(latency), Some(path)) = (done.latency, done.path) {
                ring.record(Record {
                    at: done.at,
                    offset: 0,
                    latency,
                    io: done.io,
                    path: path as u16,
                    ok: true,
                });
            }
        }
        Trace::collect(links.len() as u16, [&ring])
    }

    fn views(count: usize) -> Vec<PathView> {
        vec![PathView::idle(); count]
    }

    #[test]
    fn the_fit_finds_the_paths_and_the_replay_what_really_happens() {
        let links = [
            SimPath::new(20_000_000, 0),
            SimPath::new(40_000_000, 3_000_000),
        ];
        let time = 2_000_000_000;
        let trace = recorded(&links, Policy::RoundRobin, 32, time);
        let advice = advise(&trace, &views(2), Policy::RoundRobin, None).unwrap();
        for (fit, link) in advice.paths.iter().zip(&links) {
            let fit = fit.unwrap();
            assert!(fit.rate.abs_diff(link.rate) < link.rate / 100, "{fit:?}");
            let off = fit.base_latency.abs_diff(link.base_latency);
            assert!(off < 100_000, "{fit:?}");
        }
        assert!(advice.agreement.error < 0.02, "{:?}", advice.agreement);
        for policy in [Policy::LeastCmdLoad, Policy::PredictedFinish] {
            let row = advice.rows.iter().find(|r| r.policy == policy).unwrap();
            let load = Load::Closed {
                threads: 1,
                depth: 32,
                sizes: &[4096, 8192, 16384],
                time,
            };
            let really = run(&links, policy, None, &load, 7).throughput();
            let off = (row.paced.throughput - really).abs() / really;
            assert!(off < 0.03, "{policy}: {off}");
            assert!(row.paced.gain > 1.4);
        }
        assert_ne!(advice.recommended(), Policy::RoundRobin);
        assert_eq!(advice.to_string().lines().count(), 2 + Policy::ALL.len());
    }

    #[test]
    fn equal_paths_give_no_reason_to_change() {
        let links = [SimPath::new(20_000_000, 0), SimPath::new(20_000_000, 0)];
        let trace = recorded(&links, Policy::LeastCmdLoad, 16, 1_000_000_000);
        let advice = advise(&trace, &views(2), Policy::LeastCmdLoad, None).unwrap();
        let row = |p| advice.rows.iter().find(|r| r.policy == p).unwrap();
        assert_eq!(row(Policy::LeastCmdLoad).paced.gain, 1.0);
        assert_eq!(row(Policy::LeastCmdLoad).open.gain, 1.0);
        assert!(row(Policy::PathLockdown).paced.gain < 0.52);
    }

    #[test]
    fn noise_shows_in_the_agreement() {
        let mut links = [
            SimPath::new(20_000_000, 1_000_000),
            SimPath::new(20_000_000, 0),
        ];
        links[0].jitter = 4_000_000;
        let trace = recorded(&links, Policy::RoundRobin, 4, 1_000_000_000);
        let advice = advise(&trace, &views(2), Policy::RoundRobin, None).unwrap();
        assert!(advice.agreement.error > 0.2, "{:?}", advice.agreement);
    }

    #[test]
    fn too_little_and_unusable_paths() {
        let none = Trace::collect(2, []);
        let refused = |n| advise(&none, &views(n), Policy::RoundRobin, None).unwrap_err();
        assert_eq!(refused(2), AdviseError::TooFew);
        assert_eq!(refused(3), AdviseError::Paths(3, 2));

        // Hostile trace: completion times past the end of the range, zero bytes, zero latency.
        let mut ring = Recorder::new(200);
        for i in 0..200u64 {
            ring.record(Record {
                at: u64::MAX - 200 + i,
                offset: u64::MAX,
                latency: if i % 2 == 0 { u64::MAX } else { 0 },
                io: Io {
                    write: false,
                    bytes: if i % 3 == 0 { 0 } else { u32::MAX },
                },
                path: 1,
                ok: true,
            });
        }
        let trace = Trace::collect(2, [&ring]);
        let advice = advise(&trace, &views(2), Policy::RoundRobin, None).unwrap();
        assert!(advice.paths[0].is_none());
        assert!(advice.rows.iter().all(|r| r.paced.sent[0].ios == 0));
    }
}
