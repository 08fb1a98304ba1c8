//! A study: one job on one side, or on several sides in turn, recorded in a journal run by run.
//!
//! ```text
//!   sides ──► order (A B · B A; with control: B A A' · A' A B) ──► run ──► journal ──► analysis
//!                        ▲ drawn from the seed                      │
//!                        └──────── runs of an earlier session ◄─────┘
//! ```
//!
//! **Invariant:** the journal is the result. The order of runs follows from the plan alone, so an
//! interrupted study is resumed by replaying its journal as if the runs had just finished, and a
//! journal that was truncated anywhere is a valid result of the runs it contains.
//!
//! The **control** is the first side a second time. Its difference from the first side is the
//! resolution of this machine at this time, measured among the other runs and not before them.

use crate::analysis;
use crate::journal::{Journal, Line, Logged};
use crate::study::{Caches, SideFacts, Study, StudyPlan};
use bench_core::account::Opened;
use bench_core::caches::drop_caches;
use bench_core::result::End;
use bench_core::series::{Ran, Series};
use bench_core::target::TargetKind;
use bench_core::{Error, Facts, Record, Result, Target};
use bench_load::workload::shell;
use bench_load::{Job, RunEnvironment};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

/// Maximum number of repetitions that calibration may choose.
const TIMES_MAX: u32 = 10_000;

/// One configuration to measure.
#[derive(Clone)]
pub struct Side {
    /// Short name.
    pub name: String,
    /// Target of the runs.
    pub target: Target,
    /// A second instance of the target, if possible, used by the control if this side is the first.
    /// A target that also serves as its own control would be used twice as much as the others, and
    /// files age with use.
    pub again: Option<Target>,
    /// Job to run.
    pub job: Job,
    /// Properties that a reader must know.
    pub facts: Facts,
    /// Shell command before each run, untimed.
    pub before: Option<String>,
    /// Shell command after each run, untimed.
    pub after: Option<String>,
    /// Background load and CPU assignment.
    pub surroundings: RunEnvironment,
}

impl Side {
    /// Creates a side without commands, facts or background load.
    pub fn new(name: impl Into<String>, target: Target, job: Job) -> Side {
        Side {
            name: name.into(),
            target,
            again: None,
            job,
            facts: Facts::default(),
            before: None,
            after: None,
            surroundings: RunEnvironment::default(),
        }
    }

    pub(crate) fn stored(&self) -> SideFacts {
        SideFacts {
            name: self.name.clone(),
            target: self.target.name.clone(),
            job: self.job.clone(),
            facts: self.facts.clone(),
            before: self.before.clone(),
            after: self.after.clone(),
            surroundings: self.surroundings,
        }
    }

    fn run(&self, times: u32, caches: Caches) -> Result<Record> {
        if let Some(command) = &self.before {
            shell(Path::new("/"), command, &[("EVFS_LAB_SIDE", &self.name)])?;
        }
        let made_ready = self.mount_again().and_then(|()| match caches {
            Caches::AsTheyAre => Ok(()),
            Caches::Dropped => drop_caches().and_then(|()| match &self.target.place {
                TargetKind::Guest(guest) => guest.drop_caches(),
                _ => Ok(()),
            }),
        });
        let record = made_ready.and_then(|()| self.run_beside(times));
        if let Some(command) = &self.after {
            shell(Path::new("/"), command, &[("EVFS_LAB_SIDE", &self.name)])?;
        }
        record
    }

    /// Remounts a file system of this process before each run. Its threads, their memory and their
    /// CPUs differ from mount to mount; this changes results by up to a quarter and would otherwise
    /// favor one side in all its runs.
    fn mount_again(&self) -> Result<()> {
        let Some(mount) = &self.target.remount else {
            return Ok(());
        };
        let failed = |detail| Error::Program {
            what: self.name.clone(),
            detail,
        };
        mount.unmount().and_then(|()| mount.mount()).map_err(failed)
    }

    /// Runs the job within its environment.
    fn run_beside(&self, times: u32) -> Result<Record> {
        self.daemons_are_there()?;
        let beside = self.surroundings.begin(&self.target)?;
        let target = Target {
            competitors: beside.pids(),
            ..self.target.clone()
        };
        let opened = Opened::now();
        let mut record = self.job.run(&target, times)?;
        record.account = Some(opened.close(&self.target.daemons));
        self.target.sync()?;
        beside.end()?;
        // The CPU time of a daemon that ended during the run is lost.
        self.daemons_are_there()?;
        Ok(record)
    }

    /// Checks that all daemons exist; a missing one would count as one that uses no CPU time.
    fn daemons_are_there(&self) -> Result<()> {
        let there = |pid: &u32| Path::new("/proc").join(pid.to_string()).exists();
        match self.target.daemons.iter().find(|pid| !there(pid)) {
            None => Ok(()),
            Some(pid) => Err(Error::Program {
                what: self.name.clone(),
                detail: format!("its daemon, process {pid}, is not running"),
            }),
        }
    }
}

/// Progress of a study.
#[derive(Debug, Clone, PartialEq)]
pub enum Step<'a> {
    /// The target of the named side is being prepared.
    Preparing(&'a str),
    /// The number of repetitions was determined.
    Calibrated(u32),
    /// A run finished, or was found in the journal.
    Ran {
        /// Name of the side, `control` for the control.
        side: &'a str,
        /// Value and unit of the first figure, for progress output.
        figure: Option<(f64, &'a str)>,
        /// Pairs so far.
        pairs: u32,
        /// Whether the run is in the warm-up block.
        warm_up: bool,
        /// Whether the run was found in the journal.
        replayed: bool,
    },
}

/// Performs a study, appending each run to `journal` and resuming from the runs already in it.
///
/// # Errors
/// [`Error::Spec`] for an invalid plan or job, or a journal of another study. Any error of a run;
/// it is recorded in the journal, and earlier runs are kept.
pub fn study(
    sides: &[Side],
    plan: &StudyPlan,
    journal: &mut Journal,
    progress: &mut dyn FnMut(Step<'_>) -> ControlFlow<()>,
) -> Result<Study> {
    plan.check()?;
    let Some(first) = sides.first() else {
        return Err(Error::Spec("a study needs at least one side".into()));
    };
    if (1..sides.len()).any(|i| sides[..i].iter().any(|s| s.name == sides[i].name)) {
        return Err(Error::Spec("two sides have the same name".into()));
    }
    sides
        .iter()
        .try_for_each(|side| side.job.check(&side.target))?;
    if plan.layers {
        layer_cpu::count();
    }
    let stored = sides.iter().map(Side::stored).collect();
    journal.begin(first.job.entry().name, stored, plan)?;
    let done = match carry_out(sides, plan, journal, progress) {
        Ok(end) => journal.append(&Line::End(end)),
        // Being stopped is not a failure.
        Err(Error::Stopped) => Ok(()),
        Err(error) => {
            journal.append(&Line::Failed(error.in_words()))?;
            Err(error)
        }
    };
    done?;
    Ok(journal.study().clone())
}

fn carry_out(
    sides: &[Side],
    plan: &StudyPlan,
    journal: &mut Journal,
    progress: &mut dyn FnMut(Step<'_>) -> ControlFlow<()>,
) -> Result<End> {
    let controlled = plan.control && sides.len() > 1;
    let again = sides[0].again.clone().filter(|_| controlled);
    let again = again.map(|target| Side {
        target,
        ..sides[0].clone()
    });
    let each = || sides.iter().chain(&again);
    for side in each() {
        if progress(Step::Preparing(&side.name)).is_break() {
            return Err(Error::Stopped);
        }
        side.job.prepare(&side.target)?;
    }
    let times = match journal.times() {
        Some(times) => times,
        None => calibrate(each(), plan)?,
    };
    journal.record_times(times)?;
    if progress(Step::Calibrated(times)).is_break() {
        return Err(Error::Stopped);
    }
    let control = again.as_ref().unwrap_or(&sides[0]);
    let arms = sides.len() + usize::from(controlled);
    let mut earlier = journal.replay();
    let began = Instant::now();
    let mut series = Series::new(arms, plan.rules());
    let replayed = std::cell::Cell::new(false);
    let mut places = Places::default();
    series.measure(
        &|| began.elapsed(),
        &mut |arm| {
            let place = places.next(arms);
            if let Some(logged) = earlier.next() {
                replayed.set(true);
                return logged.expect_arm(arm);
            }
            replayed.set(false);
            let side = sides.get(arm).unwrap_or(control);
            let record = side.run(times, plan.caches)?;
            let logged = Logged::new(arm, place, plan.discard_first, record);
            journal.append(&Line::Run(Box::new(logged.clone())))?;
            Ok(logged.run.sample)
        },
        &|runs| analysis::narrow(runs, sides.len(), plan.width),
        &mut |ran: Ran<'_, Record>| {
            let side = sides.get(ran.arm).map_or("control", |side| &side.name);
            let cell = ran.sample.phases.first().and_then(|p| p.cells.first());
            progress(Step::Ran {
                side,
                figure: cell.map(|c| (c.value(), c.unit.as_str())),
                pairs: ran.pairs,
                warm_up: ran.warm_up,
                replayed: replayed.get(),
            })
        },
    )
}

/// Position of a run in the series: block, half, position.
#[derive(Debug, Default)]
struct Places(u32);

impl Places {
    fn next(&mut self, arms: usize) -> (u32, u32, u32) {
        let (arms, n) = (arms as u32, self.0);
        self.0 += 1;
        (n / (2 * arms), n / arms % 2, n % (2 * arms))
    }
}

/// Determines the number of repetitions with which the fastest side takes `min_wall`.
fn calibrate<'a>(sides: impl Iterator<Item = &'a Side>, plan: &StudyPlan) -> Result<u32> {
    if plan.min_wall.is_zero() {
        return Ok(1);
    }
    let mut times = 1;
    for side in sides {
        let wall = side.run(1, plan.caches)?.wall_ns().max(1) as f64;
        let wanted = (1.1 * plan.min_wall.as_nanos() as f64 / wall).ceil();
        times = times.max((wanted as u32).min(TIMES_MAX));
    }
    Ok(times)
}
