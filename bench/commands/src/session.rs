//! Runs planned studies, and writes and prints their results.

use crate::arguments::MeasureArgs;
use bench_load::Job;
use bench_report::{RESULT_SCHEMA, Results};
use bench_study as study;
use bench_study::{Caches, Journal, Side, Step, Study, StudyPlan, journal_path};
use bench_targets::{Builder, Built, program_error};
use cli::document::Document;
use cli::progress::Bar;
use cli::{Context, output};
use stack::{Error, Result, StopSignals, exit};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Maximum time of a part, as a multiple of its share of its suite's time.
const LONG_PART: u32 = 3;
/// Default maximum number of pairs of a part of a suite.
const SUITE_PAIRS: u32 = 20;

/// Default minimum seconds of a run, for each point of a grid: clock resolution and startup then
/// matter little, and many such pairs are more certain than few long ones.
const SHORTEST_RUN: f64 = 0.1;

/// Maximum time of a study, and of its pairs beyond the planned ones.
type Budget = (Duration, Duration);

/// A planned study.
pub struct Planned {
    pub sides: Sides,
    pub job: Job,
    /// Key of the part, for a study that is part of a suite.
    pub part: Option<String>,
}

/// The compared sides of a study.
pub enum Sides {
    Built(Vec<Side>),
    /// As named in a suite, built when the study starts.
    Named(&'static [&'static str]),
}

impl Planned {
    fn key(&self) -> String {
        let sides = match &self.sides {
            Sides::Built(sides) => sides.as_slice(),
            Sides::Named(_) => &[],
        };
        let around = sides.iter().map(|side| side.surroundings);
        let own = || study::key(self.job.entry().name, around);
        self.part.clone().unwrap_or_else(own)
    }
}

/// Builds a side of a study; its own parameters override the common ones.
pub fn side(
    built: &Built,
    job: &Job,
    how: &MeasureArgs,
    more: &[(String, String)],
) -> Result<Side> {
    let mut job = job.clone();
    for (name, value) in built.set.iter().chain(more) {
        job.set(name, value).map_err(program_error)?;
    }
    if let Job::Devmix(config) = &mut job
        && config.span == 0
    {
        config.span = how.size();
    }
    Ok(Side {
        facts: built.facts.clone(),
        before: built.before.clone(),
        after: built.after.clone(),
        surroundings: built.surroundings,
        ..Side::new(built.name.clone(), built.target.clone(), job)
    })
}

/// Runs studies one after the other, until all are done or a signal stops them.
pub struct Session<'a> {
    context: &'a Context,
    how: &'a MeasureArgs,
    control: bool,
    signals: StopSignals,
    /// Directory of the journals.
    folder: PathBuf,
    _temporary: Option<tempfile::TempDir>,
}

impl<'a> Session<'a> {
    pub fn new(context: &'a Context, how: &'a MeasureArgs, control: bool) -> Result<Session<'a>> {
        let (folder, temporary) = match &how.out {
            Some(out) => {
                std::fs::create_dir_all(out).map_err(|e| Error::io("cannot create", out, e))?;
                (out.clone(), None)
            }
            None => {
                let dir = tempfile::tempdir().map_err(|e| {
                    Error::Failed(format!("cannot create a temporary directory: {e}"))
                })?;
                (dir.path().to_owned(), Some(dir))
            }
        };
        Ok(Session {
            context,
            how,
            control,
            signals: StopSignals::install()?,
            folder,
            _temporary: temporary,
        })
    }

    pub fn all(&self, studies: Vec<Planned>) -> Result<u8> {
        let mut done = Vec::new();
        let mut failed = None;
        let mut builder = self.how.builder(self.context);
        let mut left = self.suites_budget(&studies);
        for (n, planned) in studies.iter().enumerate() {
            let began = Instant::now();
            let whole = planned.part.is_none();
            let budget = if whole {
                (self.how.budget(), self.how.budget())
            } else {
                // Time left by one part is for the others; a long one may exceed its share.
                let parts = studies[n..].iter().filter(|other| other.part.is_some());
                let share = left / parts.count() as u32;
                ((share * LONG_PART).min(left), share)
            };
            let done_one = self.one(planned, &mut builder, budget);
            if !whole {
                left = left.saturating_sub(began.elapsed());
            }
            match done_one {
                Ok(study) => done.push(study),
                // The runs before the failure are kept, and shown first.
                Err(error) if whole => {
                    done.extend(self.kept(planned));
                    failed = Some(error);
                }
                // The other parts of a suite do not depend on this one.
                Err(error) => {
                    output::say(
                        self.context.json,
                        &format!("skipped {}: {error}", planned.key()),
                    );
                    failed = Some(error);
                }
            }
            if failed.is_some() && whole || self.signals.stop_asked().is_some() {
                break;
            }
        }
        let results = Results::of(done);
        if failed.is_none() || !results.studies.is_empty() {
            if self.how.out.is_some() {
                self.write()?;
            }
            show(self.context, &results);
        }
        if self.how.out.is_some() {
            match (self.write(), &failed) {
                // The error of a run says more than that of a directory without a result.
                (Err(_), Some(_)) | (Ok(()), _) => {}
                (Err(error), None) => failed = Some(error),
            }
        }
        match (self.signals.stop_asked(), failed) {
            (Some(signal), _) => {
                let words = match &self.how.out {
                    Some(_) => "stopped; run the same command again to resume",
                    None => "stopped; only runs with --out can be resumed",
                };
                output::say(self.context.json, words);
                Ok(128 + signal as u8)
            }
            (None, Some(error)) => Err(error),
            (None, None) => Ok(exit::OK),
        }
    }

    /// Returns the study with the runs before its failure, if it has any.
    fn kept(&self, planned: &Planned) -> Option<Study> {
        let study = study::load(&journal_path(&self.folder, &planned.key())).ok()?;
        let some = study.failure.is_some() && study.runs.iter().any(|runs| !runs.is_empty());
        some.then_some(study)
    }

    /// Writes the report of all results in the directory, including those of earlier commands.
    fn write(&self) -> Result<()> {
        let results = Results::read(&self.folder).map_err(program_error)?;
        bench_report::write(&results, &self.folder).map_err(program_error)?;
        let page = self.folder.join("report.html");
        output::say(self.context.json, &format!("see {}", page.display()));
        Ok(())
    }

    fn one(&self, planned: &Planned, builder: &mut Builder<'_>, budget: Budget) -> Result<Study> {
        let job = &planned.job;
        // Dropped with this study, so that each study starts with new sides, and those of a suite
        // never all exist at once.
        let (mut own, mut named): (Vec<Built>, Vec<Side>) = Default::default();
        let sides = match &planned.sides {
            Sides::Built(sides) => sides,
            Sides::Named(texts) => {
                for text in *texts {
                    own.push(builder.one(text)?);
                }
                let again = builder.again(&own[0], texts[0], self.control)?;
                for built in &own {
                    named.push(side(built, job, self.how, &[])?);
                }
                named[0].again = again.as_ref().map(|built| built.target.clone());
                own.extend(again);
                &named
            }
        };
        let plan = self.plan(planned, budget);
        let path = journal_path(&self.folder, &planned.key());
        let mut journal = Journal::open(&path).map_err(program_error)?;
        let arms = sides.len() + usize::from(self.control && sides.len() > 1);
        let bar = self.bar(job, &plan, arms);
        let done = study::study(sides, &plan, &mut journal, &mut |step| {
            show_progress(&bar, &step);
            match self.signals.stop_asked() {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            }
        });
        bar.end();
        done.map_err(program_error)
    }

    /// Computes the time budget of all suites among the studies.
    fn suites_budget(&self, studies: &[Planned]) -> Duration {
        let suite =
            |planned: &Planned| Some(planned.part.as_deref()?.split('.').next()?.to_owned());
        let suites: BTreeSet<String> = studies.iter().filter_map(suite).collect();
        self.how.budget() * suites.len() as u32
    }

    fn plan(&self, planned: &Planned, (budget, extra): Budget) -> StudyPlan {
        let how = self.how;
        let job = &planned.job;
        let own = StudyPlan::default();
        let most = match (how.max_runs, how.runs) {
            (Some(most), _) => most,
            (None, Some(runs)) => runs,
            (None, None) if planned.part.is_some() && how.quick => own.pairs,
            (None, None) if planned.part.is_some() => SUITE_PAIRS,
            (None, None) if self.control => own.max_pairs,
            (None, None) => own.pairs,
        };
        let points = match job {
            Job::Devmix(config) => config.points().map_or(1, |points| points.len()) as f64,
            _ => 1.0,
        };
        let shortest = if how.quick { 0.0 } else { SHORTEST_RUN };
        let seconds = how.seconds.unwrap_or(shortest);
        StudyPlan {
            pairs: how.runs.unwrap_or(own.pairs),
            max_pairs: most,
            width: how.width,
            theta: how.threshold,
            min_wall: Duration::from_secs_f64((seconds * points).clamp(0.0, 3600.0)),
            budget,
            extra,
            discard_first: !how.quick || self.control && planned.part.is_none(),
            control: self.control,
            caches: if how.drop_caches {
                Caches::Dropped
            } else {
                Caches::AsTheyAre
            },
            seed: how.seed,
            layers: how.layers,
            part: planned.part.clone(),
        }
    }

    fn bar(&self, job: &Job, plan: &StudyPlan, arms: usize) -> Bar {
        let warm_up = if plan.discard_first { 2 } else { 0 };
        let runs = (u64::from(plan.pairs.next_multiple_of(2)) + warm_up) * arms as u64;
        Bar::of_steps(self.context.json, job.entry().name, runs)
    }
}

fn show_progress(bar: &Bar, step: &Step<'_>) {
    match step {
        Step::Preparing(side) => bar.note(format!("preparing {side}")),
        Step::Calibrated(times) => bar.note(format!("{times} iterations per run")),
        Step::Ran { side, figure, .. } => {
            // There are more pairs than planned while the intervals are wide.
            let figure = figure.as_ref();
            bar.step(figure.map(|(value, unit)| format!("{side} {value:.1} {unit}")));
        }
    }
}

/// Document with the content of `result.json`.
pub const RESULTS: Document<Results> = Document::new(RESULT_SCHEMA);

/// Prints results.
pub fn show(context: &Context, results: &Results) {
    output::show(context.json, &RESULTS, results, || results.text());
}
