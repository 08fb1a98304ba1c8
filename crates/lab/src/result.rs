//! A comparison when it is done: every run, and what the pairs say.
//!
//! **Invariant:** everything derived here follows from the raw runs alone and can be recomputed from
//! a stored result; no run is left out because of its values.

use crate::environment::Environment;
use crate::stats::{Ratio, Verdict, median, paired, verdict};
use crate::{ArmFacts, Plan, Sample, Spec, Workload, report};
use serde::{Deserialize, Serialize};

/// Two arms touched the device differently when their device bytes for each asked byte are
/// further apart than this.
const PROOF_TOLERANCE: f64 = 0.05;
/// A run and its place in the comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run<S = Sample> {
    /// Which block of two halves.
    pub block: u32,
    /// 0 or 1: runs of one half are a pair.
    pub half: u32,
    /// How many runs stood before it in its block.
    pub position: u32,
    /// It belongs to the warm-up block and is not counted.
    pub warm_up: bool,
    /// What it did and took.
    pub sample: S,
}

/// Medians over the counted runs of an arm.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Counted runs.
    pub runs: usize,
    /// MiB a second.
    pub mib_per_s: f64,
    /// Requests a second.
    pub iops: f64,
    /// CPU seconds for each GiB.
    pub cpu_s_per_gib: f64,
    /// Cores in use.
    pub cores: f64,
    /// Median service time, microseconds.
    pub p50_us: f64,
    /// 99 % service time, microseconds.
    pub p99_us: f64,
    /// Device bytes for each asked byte.
    pub device_per_asked: Option<f64>,
}

/// An arm with all its runs, in the order in which they ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ArmRuns {
    /// Name of the arm.
    pub name: String,
    /// What is known about it.
    pub facts: ArmFacts,
    /// Size of its device in bytes.
    pub device_size: u64,
    /// Medians.
    pub summary: Option<Summary>,
    /// Every run, warm-up too.
    pub runs: Vec<Run>,
}

/// One other arm against the first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Versus {
    /// The other arm.
    pub arm: String,
    /// The first arm.
    pub base: String,
    /// Throughput, other / first. Equal requests make it the ratio of IOPS too.
    pub throughput: Option<Ratio>,
    /// `higher` means faster.
    pub throughput_verdict: Verdict,
    /// CPU for the same bytes, other / first.
    pub cpu: Option<Ratio>,
    /// `higher` means more CPU.
    pub cpu_verdict: Verdict,
    /// 99 % service time, other / first.
    pub p99: Option<Ratio>,
    /// Complete pairs.
    pub pairs: usize,
    /// Pairs with a run beside foreign load; they are counted like all others.
    pub tainted_pairs: usize,
    /// The arms moved different amounts to or from the device, so one of them was served by a cache.
    pub device_bytes_differ: bool,
}

/// The first arm against itself: what this machine can tell apart now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Floor {
    /// Throughput of a run over that of the same run next to it.
    pub throughput: Option<Ratio>,
    /// CPU of a run over that of the same run next to it.
    pub cpu: Option<Ratio>,
    /// The runs, pair after pair.
    pub samples: Vec<Sample>,
}

impl Floor {
    /// Whether both intervals contain 1; without an interval nothing speaks against it.
    pub fn fit(&self) -> bool {
        [self.throughput, self.cpu]
            .into_iter()
            .flatten()
            .all(|r| r.interval.is_none_or(|i| i.contains(1.0)))
    }
}

/// Why no more blocks were measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// The plan was carried out.
    Complete,
    /// The budget was used up first.
    Budget,
    /// The caller stopped it.
    Stopped,
}

/// A comparison, complete: specification, environment, every run, and what the pairs say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Name and version of this layout, [`crate::SCHEMA`].
    pub schema: String,
    /// What a run did, with the calibrated number of passes.
    pub spec: Spec,
    /// How it was planned.
    pub plan: Plan,
    /// The machine.
    pub environment: Environment,
    /// The first arm, then the others.
    pub arms: Vec<ArmRuns>,
    /// Each other arm against the first.
    pub versus: Vec<Versus>,
    /// The first arm against itself.
    pub floor: Option<Floor>,
    /// Why it ended.
    pub end: End,
    /// Pairs were added because a verdict was undecided.
    pub extended: bool,
}

impl Comparison {
    /// The workload that was compared.
    pub fn workload(&self) -> Workload {
        self.spec.workload
    }

    /// Recomputes medians, ratios and verdicts from the raw runs, for example under another
    /// threshold.
    pub fn analyse(&mut self) {
        for arm in &mut self.arms {
            arm.summary = summarise(&arm.runs);
        }
        self.versus = match self.arms.split_first() {
            Some((a, others)) => others
                .iter()
                .map(|b| compare_runs(a, b, self.plan.theta))
                .collect(),
            None => Vec::new(),
        };
    }

    /// The result as JSON, with every raw run.
    pub fn to_json(&self) -> String {
        report::to_json(self)
    }
}

/// The counted pairs of two arms: runs of the same half of the same block.
pub(crate) fn pairs<'a, S>(a: &'a [Run<S>], b: &'a [Run<S>]) -> Vec<(&'a S, &'a S)> {
    let place = |run: &Run<S>| (run.block, run.half);
    a.iter()
        .filter(|run| !run.warm_up)
        .filter_map(|run| {
            let other = b.iter().find(|other| place(other) == place(run))?;
            Some((&run.sample, &other.sample))
        })
        .collect()
}

pub(crate) fn values(pairs: &[(&Sample, &Sample)], value: fn(&Sample) -> f64) -> Vec<(f64, f64)> {
    pairs.iter().map(|(a, b)| (value(a), value(b))).collect()
}

fn compare_runs(a: &ArmRuns, b: &ArmRuns, theta: f64) -> Versus {
    let pairs = pairs(&a.runs, &b.runs);
    let judge = |ratio: Option<Ratio>| ratio.map_or(Verdict::NoInterval, |r| verdict(&r, theta));
    let throughput = paired(&values(&pairs, Sample::mib_per_s));
    let cpu = paired(&values(&pairs, Sample::cpu_s_per_gib));
    let proof = |arm: &ArmRuns| arm.summary.and_then(|s| s.device_per_asked);
    Versus {
        arm: b.name.clone(),
        base: a.name.clone(),
        throughput,
        throughput_verdict: judge(throughput),
        cpu,
        cpu_verdict: judge(cpu),
        p99: paired(&values(&pairs, |s| s.latency.p99_ns as f64)),
        pairs: pairs.len(),
        tainted_pairs: pairs
            .iter()
            .filter(|(x, y)| x.noise.tainted() || y.noise.tainted())
            .count(),
        device_bytes_differ: proof(a)
            .zip(proof(b))
            .is_some_and(|(x, y)| (x - y).abs() > PROOF_TOLERANCE * x.max(y)),
    }
}

fn summarise(runs: &[Run]) -> Option<Summary> {
    let counted: Vec<&Sample> = runs
        .iter()
        .filter(|r| !r.warm_up)
        .map(|r| &r.sample)
        .collect();
    let of = |value: &dyn Fn(&Sample) -> f64| {
        median(&counted.iter().map(|s| value(s)).collect::<Vec<_>>())
    };
    let proofs: Option<Vec<f64>> = counted.iter().map(|s| s.device_per_asked()).collect();
    Some(Summary {
        runs: counted.len(),
        mib_per_s: of(&Sample::mib_per_s)?,
        iops: of(&Sample::iops)?,
        cpu_s_per_gib: of(&Sample::cpu_s_per_gib)?,
        cores: of(&Sample::cores)?,
        p50_us: of(&|s| s.latency.p50_ns as f64 / 1e3)?,
        p99_us: of(&|s| s.latency.p99_ns as f64 / 1e3)?,
        device_per_asked: proofs.and_then(|p| median(&p)),
    })
}
