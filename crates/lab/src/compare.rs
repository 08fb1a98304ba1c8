//! The comparison: from arms and a plan to a result. What it does in order: check, write every arm
//! full, settle how much work a run is, measure the floor if asked, measure the series.

use crate::environment::Environment;
use crate::result::{ArmRuns, Comparison, Floor, Run, pairs, values};
use crate::series::{Ran, Rules, Series};
use crate::stats::{Verdict, paired, verdict};
use crate::{DeviceBytes, Error, Result, Sample, Spec, Workload, engine};
use block::BlockDevice;
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most passes a calibration may settle on.
const PASSES_MAX: u32 = 1 << 20;

/// Counts what reached the device below an arm, from the start of the process on.
pub type Probe = Arc<dyn Fn() -> DeviceBytes + Send + Sync>;

/// One side of a comparison.
///
/// **Everything on its device from the start up to the used span is overwritten.**
#[derive(Clone)]
pub struct Arm {
    /// Short name for tables, for example `clear` or `encrypted-128`.
    pub name: String,
    /// What is measured.
    pub device: Arc<dyn BlockDevice>,
    /// What a reader has to know about it.
    pub facts: ArmFacts,
    /// Counts device bytes, where the kernel's count for this process does not see them.
    pub probe: Option<Probe>,
}

impl Arm {
    /// An arm of which nothing is known but its device.
    pub fn new(name: impl Into<String>, device: Arc<dyn BlockDevice>) -> Arm {
        Arm {
            name: name.into(),
            device,
            facts: ArmFacts::default(),
            probe: None,
        }
    }
}

/// What a reader has to know about an arm, printed and stored beside its numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ArmFacts {
    /// Whether the device goes past the page cache; `None`: not known.
    pub direct: Option<bool>,
    /// Cipher, or `none`.
    pub cipher: Option<String>,
    /// Implementation of the cipher that runs on this machine.
    pub cipher_kernel: Option<String>,
    /// Anything else that differs between the arms.
    pub note: Option<String>,
}

/// How many runs, in what order, and when to stop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Pairs to measure for each other arm, rounded up to whole blocks of two.
    pub pairs: u32,
    /// Goes on while a verdict is undecided, up to this many. At most `pairs`, for example 0, does
    /// not go on. More makes intervals looser than they say, because looking at them decides when
    /// to stop; the result says so.
    pub max_pairs: u32,
    /// A difference that does not matter, for example 0.05.
    pub theta: f64,
    /// A run repeats its passes until it lasts this long; the number is found before the first
    /// block and is the same for all arms. Zero: as many as the specification says.
    pub min_wall: Duration,
    /// No block is begun that would probably end later than this after the start. One is always
    /// measured.
    pub budget: Duration,
    /// The first block is a warm-up.
    pub discard_first: bool,
    /// Pairs of the first arm against itself, to see what this machine can tell apart. 0: none.
    pub floor_pairs: u32,
    /// Write the used span through each arm first, so that no read meets a hole and no write
    /// allocates.
    pub prepare: bool,
    /// The arms lie over the same bytes, so that what one writes another does not read back; reads
    /// are then not verified.
    pub shared: bool,
    /// Where the order of the arms is drawn from.
    pub seed: u64,
}

impl Default for Plan {
    /// Ten pairs of runs of two seconds, five percent, ten minutes.
    fn default() -> Plan {
        Plan {
            pairs: 10,
            max_pairs: 0,
            theta: 0.05,
            min_wall: Duration::from_secs(2),
            budget: Duration::from_secs(600),
            discard_first: true,
            floor_pairs: 0,
            prepare: true,
            shared: false,
            seed: 1,
        }
    }
}

impl Plan {
    fn rules(&self) -> Rules {
        Rules {
            pairs: self.pairs,
            max_pairs: self.max_pairs,
            budget: self.budget,
            discard_first: self.discard_first,
            seed: self.seed,
        }
    }
}

/// What a comparison is doing, told before or after each step.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// The used span is about to be written through an arm.
    Preparing {
        /// Name of the arm.
        arm: String,
    },
    /// The work of each run is settled.
    Calibrated {
        /// Passes of each run.
        passes: u32,
    },
    /// A pair of the first arm against itself is complete.
    Floor {
        /// Pairs so far.
        pair: u32,
        /// Pairs planned.
        of: u32,
    },
    /// A run has ended.
    Ran {
        /// Name of the arm.
        arm: String,
        /// Its throughput.
        mib_per_s: f64,
        /// Pairs complete so far for each other arm; 0 during the warm-up block.
        pairs: u32,
        /// Pairs planned.
        of: u32,
        /// Whether this is the warm-up block.
        warm_up: bool,
    },
}

/// Runs `spec` on `a` and on each of `b`, side by side, and compares each of `b` with `a`.
///
/// `progress` is told about every step; [`ControlFlow::Break`] ends the comparison after the run in
/// progress, with the pairs that are complete.
pub fn compare(
    a: &Arm,
    b: &[Arm],
    spec: &Spec,
    plan: &Plan,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Comparison> {
    let arms: Vec<&Arm> = std::iter::once(a).chain(b).collect();
    let mut spec = spec.clone();
    check(&arms, &spec, plan)?;
    let start = Instant::now();
    let environment = Environment::capture();
    spec.span = Some(span(&arms, &spec));
    let writable = arms.iter().all(|arm| !arm.device.info().read_only);
    spec.verify = plan.prepare && writable && !plan.shared && !spec.workload.writes();
    if plan.prepare && writable {
        prepare(&arms, &spec, progress)?;
    }
    let mut run = |index: usize, spec: &Spec| {
        let arm = arms[index];
        let probe = arm.probe.as_deref().map(|p| p as &dyn Fn() -> DeviceBytes);
        engine::run_probed(&arm.name, &arm.device, spec, probe)
    };
    spec.passes = calibrate(arms.len(), &spec, plan, &mut run)?;
    if progress(Progress::Calibrated {
        passes: spec.passes,
    })
    .is_break()
    {
        return Err(Error::Stopped);
    }
    let floor = match plan.floor_pairs {
        0 => None,
        pairs => Some(measure_floor(pairs, &mut || run(0, &spec), progress)?),
    };
    let names: Vec<&str> = arms.iter().map(|arm| arm.name.as_str()).collect();
    let mut series = Series::new(names.len(), plan.rules());
    let end = series.measure(
        &|| start.elapsed(),
        &mut |index| run(index, &spec),
        &|runs| decided(runs, plan.theta),
        &mut |ran| progress(told(&names, plan, &ran)),
    )?;
    let extended = series.extended;
    let runs = series
        .runs
        .into_iter()
        .zip(&arms)
        .map(|(runs, arm)| ArmRuns {
            name: arm.name.clone(),
            facts: arm.facts.clone(),
            device_size: arm.device.info().size,
            summary: None,
            runs,
        });
    let mut comparison = Comparison {
        schema: crate::SCHEMA.to_owned(),
        spec,
        plan: plan.clone(),
        environment,
        arms: runs.collect(),
        versus: Vec::new(),
        floor,
        end,
        extended,
    };
    comparison.analyse();
    Ok(comparison)
}

fn told(names: &[&str], plan: &Plan, ran: &Ran<'_, Sample>) -> Progress {
    Progress::Ran {
        arm: names[ran.arm].to_owned(),
        mib_per_s: ran.sample.mib_per_s(),
        pairs: ran.pairs,
        of: plan.pairs,
        warm_up: ran.warm_up,
    }
}

/// Whether no verdict over the runs is undecided.
fn decided(runs: &[Vec<Run>], theta: f64) -> bool {
    let (a, others) = runs.split_first().expect("at least two arms");
    others.iter().all(|b| {
        [
            Sample::mib_per_s as fn(&Sample) -> f64,
            Sample::cpu_s_per_gib,
        ]
        .into_iter()
        .all(|value| {
            let ratio = paired(&values(&pairs(a, b), value));
            ratio.is_some_and(|r| verdict(&r, theta) != Verdict::Undecided)
        })
    })
}

fn check(arms: &[&Arm], spec: &Spec, plan: &Plan) -> Result<()> {
    let refuse = |text: &str| Err(Error::Spec(text.to_owned()));
    if arms.len() < 2 {
        return refuse("a comparison needs at least two arms");
    }
    if (1..arms.len()).any(|i| arms[..i].iter().any(|arm| arm.name == arms[i].name)) {
        return refuse("two arms have the same name");
    }
    if plan.pairs == 0 {
        return refuse("a comparison needs at least one pair; an interval needs six");
    }
    if !(plan.theta > 0.0 && plan.theta < 1.0) {
        return refuse("the threshold lies between 0 and 1, for example 0.05");
    }
    arms.iter()
        .try_for_each(|arm| spec.layout(arm.device.info()).map(drop))
}

/// All arms use as much of their device as the smallest has, so that they have one geometry.
fn span(arms: &[&Arm], spec: &Spec) -> u64 {
    let smallest = arms
        .iter()
        .map(|arm| arm.device.info().size)
        .min()
        .unwrap_or(0);
    spec.span.map_or(smallest, |span| span.min(smallest))
}

fn prepare(
    arms: &[&Arm],
    spec: &Spec,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<()> {
    let fill = Spec {
        workload: Workload::SeqWrite,
        passes: 1,
        verify: false,
        ..spec.clone()
    };
    for arm in arms {
        let arm_name = arm.name.clone();
        if progress(Progress::Preparing { arm: arm_name }).is_break() {
            return Err(Error::Stopped);
        }
        engine::run_probed(&arm.name, &arm.device, &fill, None)?;
    }
    Ok(())
}

/// The number of passes with which the fastest arm takes `min_wall`.
fn calibrate(
    arms: usize,
    spec: &Spec,
    plan: &Plan,
    run: &mut dyn FnMut(usize, &Spec) -> Result<Sample>,
) -> Result<u32> {
    let wanted = plan.min_wall.as_nanos() as f64;
    let mut trial = spec.clone();
    if wanted == 0.0 {
        return Ok(trial.passes);
    }
    for arm in 0..arms {
        // A short first run says little about a long one, so it grows in bounded steps.
        for _ in 0..8 {
            let wall = run(arm, &trial)?.wall_ns.max(1) as f64;
            if wall >= 0.9 * wanted {
                break;
            }
            let factor = (1.1 * wanted / wall).min(16.0);
            let passes = (f64::from(trial.passes) * factor).ceil();
            trial.passes = (passes as u32).clamp(trial.passes + 1, PASSES_MAX.max(spec.passes + 1));
        }
    }
    Ok(trial.passes)
}

fn measure_floor(
    pairs: u32,
    run: &mut dyn FnMut() -> Result<Sample>,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Floor> {
    let mut samples = Vec::new();
    for pair in 1..=pairs {
        samples.push(run()?);
        samples.push(run()?);
        if progress(Progress::Floor { pair, of: pairs }).is_break() {
            return Err(Error::Stopped);
        }
    }
    // Named in the order of a comparison, A B B A, so that a drift falls out of it as it does there.
    let ratio = |value: fn(&Sample) -> f64| {
        let pairs: Vec<(f64, f64)> = samples
            .chunks_exact(2)
            .enumerate()
            .map(|(i, two)| {
                let (a, b) = (value(&two[0]), value(&two[1]));
                if i % 2 == 0 { (a, b) } else { (b, a) }
            })
            .collect();
        paired(&pairs)
    };
    Ok(Floor {
        throughput: ratio(Sample::mib_per_s),
        cpu: ratio(Sample::cpu_s_per_gib),
        samples,
    })
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
