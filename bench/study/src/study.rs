//! A study as planned and as stored.

use bench_core::result::{End, Run};
use bench_core::series::Rules;
use bench_core::{Environment, Error, Facts, Record, Result};
use bench_load::{Job, RunEnvironment};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// State of caches when a run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Caches {
    /// As left by earlier runs.
    #[default]
    AsTheyAre,
    /// Written back and dropped by the kernel before each run, which requires root.
    Dropped,
}

/// Parameters of a study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StudyPlan {
    /// Minimum number of pairs; six yield an interval.
    pub pairs: u32,
    /// Maximum number of pairs if intervals stay wide.
    pub max_pairs: u32,
    /// Half-width, as a fraction of the center, at which an interval is narrow enough.
    pub width: f64,
    /// Relative difference that does not matter.
    pub theta: f64,
    /// Minimum duration of a run, reached by repeating its job. The number of repetitions is
    /// determined before the first block and is the same for all runs.
    pub min_wall: Duration,
    /// Time limit from the start of the session: a block that would probably exceed it is not
    /// started.
    pub budget: Duration,
    /// Time limit for pairs beyond `pairs`.
    #[serde(default)]
    pub extra: Duration,
    /// Whether the first block is a warm-up.
    pub discard_first: bool,
    /// Whether the first side runs once more in each half of a block.
    pub control: bool,
    /// State of caches.
    pub caches: Caches,
    /// Seed for the order of runs.
    pub seed: u64,
    /// Whether CPU is counted by layer, which costs a little CPU time.
    #[serde(default)]
    pub layers: bool,
    /// Key of the suite part that this study measures.
    #[serde(default)]
    pub part: Option<String>,
}

impl Default for StudyPlan {
    /// Creates a plan with a control and at least six pairs, extended for up to ten minutes until
    /// intervals reach no further than 2 % to either side, within a threshold of 5 %. An interval
    /// of that width lies within the threshold unless its center is off by more than three standard
    /// deviations.
    fn default() -> StudyPlan {
        StudyPlan {
            pairs: 6,
            max_pairs: 1000,
            width: 0.02,
            theta: 0.05,
            min_wall: Duration::ZERO,
            budget: Duration::from_secs(600),
            extra: Duration::from_secs(600),
            discard_first: true,
            control: true,
            caches: Caches::AsTheyAre,
            seed: 1,
            layers: false,
            part: None,
        }
    }
}

impl StudyPlan {
    pub(crate) fn rules(&self) -> Rules {
        Rules {
            pairs: self.pairs,
            max_pairs: self.max_pairs,
            budget: self.budget,
            extra: self.extra,
            discard_first: self.discard_first,
            seed: self.seed,
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let part = |v: f64| v > 0.0 && v < 1.0;
        if self.pairs == 0 || !part(self.width) || !part(self.theta) {
            return Err(Error::Spec(
                "the plan needs at least one pair, and a width and a threshold between 0 and 1"
                    .into(),
            ));
        }
        Ok(())
    }
}

/// Stored description of a side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SideFacts {
    /// Short name.
    pub name: String,
    /// Name of its target.
    pub target: String,
    /// Job to run.
    pub job: Job,
    /// Properties that a reader must know.
    pub facts: Facts,
    /// Shell command before each run.
    pub before: Option<String>,
    /// Shell command after each run.
    pub after: Option<String>,
    /// Background load and CPU assignment.
    #[serde(default)]
    pub surroundings: RunEnvironment,
}

/// A study as stored: all runs, and nothing derived.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Study {
    /// Name and version of this layout, [`crate::STUDY_SCHEMA`].
    pub schema: String,
    /// Name of the workload.
    pub workload: String,
    /// The sides; the others are compared with the first.
    pub sides: Vec<SideFacts>,
    /// Parameters of the study.
    pub plan: StudyPlan,
    /// The machine at the beginning of each session.
    pub sessions: Vec<Environment>,
    /// Repetitions of the job in each run.
    pub times: u32,
    /// Runs of each side, then those of the control, if any.
    pub runs: Vec<Vec<Run<Record>>>,
    /// Reason for the end; `None` if the study was interrupted and can be resumed.
    pub end: Option<End>,
    /// Message of a run that failed, which ended its session.
    pub failure: Option<String>,
    /// Whether pairs were added because intervals were wide.
    pub extended: bool,
}

impl Study {
    /// Returns the [`key`] of this study, or of the suite part that it measures.
    pub fn key(&self) -> String {
        if let Some(part) = &self.plan.part {
            return part.clone();
        }
        key(
            &self.workload,
            self.sides.iter().map(|side| side.surroundings),
        )
    }
}

/// Builds the name that distinguishes the studies of one result and names their files: the
/// workload, and the environment if all sides share one other than `idle`.
pub fn key(workload: &str, mut surroundings: impl Iterator<Item = RunEnvironment>) -> String {
    let first = surroundings.next().unwrap_or_default();
    if first == RunEnvironment::default() || surroundings.any(|other| other != first) {
        workload.to_owned()
    } else {
        format!("{workload}.{first}")
    }
}
