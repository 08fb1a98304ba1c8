//! Runs studies: from the command line to a directory of results.

use super::guest::{GuestArgs, Guests};
use super::sides::{Builder, Built, assignment, folder, machine};
use super::written::{duration, part, seconds};
use super::{CompareArgs, wrong};
use cli::Context;
use cli::output;
use indicatif::{ProgressBar, ProgressStyle};
use lab::study::{self, Caches, Journal, Results, Side, Step, Study, StudyPlan, journal_path};
use lab::suite::{Axis, Columns, Part, SUITES, Suite};
use lab::workload::{devmix, mailmix};
use lab::{Extent, Job, Needs, Processors, RunEnvironment, Workload};
use stack::StopSignals;
use stack::{Error, Result, exit};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Maximum bytes that a thread processes in a pass: as in the published runs, or few, as many short
/// runs detect a difference sooner.
const PASS_BYTES: u64 = 100 << 20;
const QUICK_PASS_BYTES: u64 = 8 << 20;

/// Default bytes of a device.
const DEVICE_BYTES: u64 = 1 << 30;
/// Default bytes under a file system: room for the files of all workloads.
const FILES_BYTES: u64 = 6 << 30;
/// A file under a file system grows up to its size, and a suite uses several at once: each may take
/// at most this part of the free space, so that they do not fill the disk.
const FILES_OF_FREE: u64 = 8;

#[derive(clap::Args)]
pub struct MeasureArgs {
    /// Set a parameter of the workloads that have it; may be repeated; see `evfs lab list WORKLOAD`
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Use small sizes and counts; a study or suite takes less than two minutes
    #[arg(long, conflicts_with = "faithful")]
    quick: bool,
    /// Use the sizes and counts of the originals, which takes long
    #[arg(long)]
    faithful: bool,
    /// Save every run and the report in this directory; an interrupted study resumes there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Number of pairs of runs [default: 6, and up to 1000 while intervals are wide]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: Option<u32>,
    /// Maximum number of pairs of runs
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    max_runs: Option<u32>,
    /// Half-width at which an interval is narrow enough
    #[arg(long, default_value = "2%", value_parser = part)]
    width: f64,
    /// Largest difference that counts as no difference
    #[arg(long, default_value = "5%", value_parser = part)]
    threshold: f64,
    /// Maximum duration of each study or suite, in seconds or with the suffix m or h [default: 10m;
    /// with --quick 110s]
    #[arg(long, value_parser = duration)]
    budget: Option<Duration>,
    /// Minimum duration of a run in seconds, until which the work is repeated [default: 0.1; with
    /// --quick none]
    #[arg(long, value_parser = seconds)]
    seconds: Option<f64>,
    /// Write back and drop the kernel's caches before each run (requires root)
    #[arg(long)]
    drop_caches: bool,
    /// Environment of the work: idle, loaded, loaded-io or loaded-build, each also with the prefix
    /// shared- or partitioned-, or guest- to run the work in a guest; or guest, without load. If
    /// repeated, `run` compares with the first, and `compare` compares in each
    #[arg(long, value_name = "ENV")]
    env: Vec<RunEnvironment>,
    /// Measure the CPU time of each layer of the stacks in this process; this costs CPU time itself
    #[arg(long)]
    layers: bool,
    /// Random seed for the order of runs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// PostMark configuration file for the mailmix workload
    #[arg(long, value_name = "FILE")]
    postmark: Option<PathBuf>,
    /// File, disk or LUN under the stacks, whose content is destroyed, or a directory for such
    /// files [default: the directory for temporary files]
    #[arg(long, value_name = "FILE")]
    device: Option<PathBuf>,
    /// Number of bytes of the device to use [default: 1G; under a file system 6G, but at most an
    /// eighth of the free space]
    #[arg(long, value_parser = output::parse_size)]
    size: Option<u64>,
    /// Request size in bytes, for seq-read and similar workloads
    #[arg(long, default_value = "64k", value_parser = output::parse_size)]
    block: u64,
    /// Number of threads, for seq-read and similar workloads
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Number of requests in flight per thread, for seq-read and similar workloads
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    depth: u32,
    /// Overwrite a device that is not empty; this cannot be undone
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    guest: GuestArgs,
}

/// A planned study.
struct Planned {
    sides: Sides,
    job: Job,
    /// Key of the part, for a study that is part of a suite.
    part: Option<String>,
}

/// Default maximum time of a study by itself, or of a suite. All suites together take an hour, or
/// eight minutes.
const BUDGET: Duration = Duration::from_secs(600);
const QUICK_BUDGET: Duration = Duration::from_secs(110);
/// Maximum time of a part, as a multiple of its share of its suite's time.
const LONG_PART: u32 = 3;
/// Default maximum number of pairs of a part of a suite.
const SUITE_PAIRS: u32 = 20;

/// Default minimum seconds of a run, for each point of a grid: clock resolution and startup then
/// matter little, and many such pairs are more certain than few long ones.
const SHORTEST_RUN: f64 = 0.1;

/// Maximum time of a study, and of its pairs beyond the planned ones.
type Budget = (Duration, Duration);

/// The compared sides of a study.
enum Sides {
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

/// Runs `evfs lab run`.
pub fn run(context: &Context, names: &[String], on: Option<&str>, how: &MeasureArgs) -> Result<u8> {
    let mut builder = how.builder(context);
    // Kept until all studies are done: dropping it removes the directory.
    let mut temporary = None;
    let (suites, workloads): (Vec<String>, Vec<String>) = names
        .iter()
        .cloned()
        .partition(|name| Suite::named(name).is_some());
    let jobs = how.jobs(&workloads, !suites.is_empty())?;
    let needs = |job: &Job| job.entry().needs;
    let scratch = match on {
        None if jobs.iter().any(|job| needs(job) == Needs::Device) => builder.build("clear")?,
        None if jobs.is_empty() && own_side(&suites).is_some() => {
            builder.build(own_side(&suites).expect("checked by the guard"))?
        }
        None => vec![temporary_folder(&mut temporary)?],
        Some(text) => builder.build(text)?,
    };
    let [target] = scratch.as_slice() else {
        return Err(Error::Usage("--target names two sides; choose one".into()));
    };
    let guests = Guests::new(&how.guest, how.builder(context), context.json);
    let mut own_machine = None;
    if !suites.is_empty() && target.target.server.is_some() {
        own_machine = Some(temporary_folder(&mut temporary)?);
    }
    let mut studies = Vec::new();
    for job in jobs {
        let environments = how.environments(target.surroundings);
        studies.push(beside(target, job, how, &environments, &guests)?);
    }
    for name in &suites {
        let suite = Suite::named(name).expect("the suite was found above");
        if !how.env.is_empty() {
            return Err(Error::Usage(format!(
                "{name} defines its own environments; remove --env"
            )));
        }
        studies.extend(match suite.axis {
            Axis::Environments => in_environments(suite, target, own_machine.as_ref(), how, &guests)?,
            Axis::Sides if on.is_some() && workloads.is_empty() => {
                return Err(Error::Usage(format!(
                    "{name} has its own sides; remove --target, or choose two sides: evfs lab compare A B --suite {name}"
                )));
            }
            Axis::Sides => between_own(suite, how)?,
        });
    }
    let control = how.env.len() > 1 || !suites.is_empty();
    Session::new(context, how, control)?.all(studies)
}

/// Finds the default side of suites, if one of them has one.
fn own_side(suites: &[String]) -> Option<&'static str> {
    suites.iter().find_map(|name| Suite::named(name)?.on)
}

/// Plans a study of one target in one or more environments.
fn beside(
    target: &Built,
    job: Job,
    how: &MeasureArgs,
    environments: &[RunEnvironment],
    guests: &Guests<'_>,
) -> Result<Planned> {
    let none = machine();
    let on = match job.entry().needs {
        Needs::Machine => &none,
        _ => target,
    };
    let one = |surroundings: &RunEnvironment| {
        let mut side = side(on, &job, how, &[])?;
        side.surroundings = *surroundings;
        if environments.len() > 1 {
            side.name = surroundings.to_string();
        }
        guests.place(&mut side, on)?;
        Ok(side)
    };
    Ok(Planned {
        sides: Sides::Built(environments.iter().map(one).collect::<Result<_>>()?),
        job,
        part: None,
    })
}

/// Reports whether the report of 1990 ran this job on the server's machine; its other measurements
/// used the served file system.
fn is_of_the_machine(job: &Job) -> bool {
    matches!(job, Job::Micro(_) | Job::Build(_))
}

/// Plans the studies of a suite whose columns are environments. `own_machine`: a directory for jobs
/// of the server's own machine, if the target is a server.
fn in_environments(
    suite: &Suite,
    target: &Built,
    own_machine: Option<&Built>,
    how: &MeasureArgs,
    guests: &Guests<'_>,
) -> Result<Vec<Planned>> {
    let mut studies = Vec::new();
    for (part, columns) in parts(suite) {
        let job = how.part(part)?;
        let environments = columns.surroundings().map_err(wrong)?;
        let on = match own_machine {
            Some(folder) if is_of_the_machine(&job) => folder,
            _ => target,
        };
        let mut study = beside(on, job, how, &environments, guests)?;
        study.part = Some(suite.key(part, columns));
        studies.push(study);
    }
    Ok(studies)
}

/// Plans the studies of a suite between the sides that it names itself.
fn between_own(suite: &Suite, how: &MeasureArgs) -> Result<Vec<Planned>> {
    let mut studies = Vec::new();
    for (part, columns) in parts(suite) {
        if columns.sides.is_empty() {
            let name = suite.name;
            return Err(Error::Usage(format!(
                "{name} compares two sides of your choice: evfs lab compare A B --suite {name}"
            )));
        }
        studies.push(Planned {
            sides: Sides::Named(columns.sides),
            job: how.part(part)?,
            part: Some(suite.key(part, columns)),
        });
    }
    Ok(studies)
}

fn parts(suite: &Suite) -> impl Iterator<Item = (&Part, &Columns)> {
    let parts = suite.parts.iter();
    parts.flat_map(|part| part.columns.iter().map(move |columns| (part, columns)))
}

/// Runs `evfs lab compare`.
pub fn compare(context: &Context, args: &CompareArgs) -> Result<u8> {
    let how = &args.how;
    let mut builder = how.builder(context);
    let base = builder.build(&args.base)?;
    let mut sides = vec![
        base.into_iter()
            .next()
            .expect("a text names at least one side"),
    ];
    sides.extend(builder.build(&args.other)?);
    for n in 1..sides.len() {
        if sides[..n].iter().any(|s| s.name == sides[n].name) {
            // The same place with other parameters.
            sides[n].name = format!("{} ({})", sides[n].name, n + 1);
        }
    }
    let control = !args.no_control;
    let again = builder.again(&sides[0], &args.base, control)?;
    let more = [assignments(&args.set_a)?, assignments(&args.set_b)?];
    let all = |job: &Job| {
        let own = sides.iter().enumerate();
        let own = own.map(|(n, built)| side(built, job, how, &more[n.min(1)]));
        let mut own = own.collect::<Result<Vec<Side>>>()?;
        own[0].again = again.as_ref().map(|built| built.target.clone());
        Ok::<_, Error>(own)
    };
    let guests = Guests::new(&how.guest, how.builder(context), context.json);
    let placed = |mut own: Vec<Side>| {
        let mut each = own.iter_mut().zip(&sides);
        each.try_for_each(|(side, built)| guests.place(side, built))?;
        Ok::<_, Error>(own)
    };
    let mut studies = Vec::new();
    for name in &args.suite {
        let suite = Suite::named(name).ok_or_else(|| unknown_suite(name))?;
        if suite.axis != Axis::Sides {
            return Err(Error::Usage(format!(
                "{name} has one side: evfs lab run {name}"
            )));
        }
        for (part, columns) in parts(suite).filter(|(_, columns)| columns.choice) {
            let job = how.part(part)?;
            studies.push(Planned {
                sides: Sides::Built(placed(all(&job)?)?),
                job,
                part: Some(suite.key(part, columns)),
            });
        }
    }
    for job in how.jobs(&wanted(args, &sides), !args.suite.is_empty())? {
        let own = all(&job)?;
        for surroundings in &how.env {
            let mut own = own.clone();
            let around = |side: &mut Side| side.surroundings = *surroundings;
            own.iter_mut().for_each(around);
            studies.push(Planned {
                sides: Sides::Built(placed(own)?),
                job: job.clone(),
                part: None,
            });
        }
        if how.env.is_empty() {
            studies.push(Planned {
                sides: Sides::Built(placed(own)?),
                job,
                part: None,
            });
        }
    }
    Session::new(context, how, control)?.all(studies)
}

/// Selects the requested workloads, or those that fit the sides.
fn wanted(args: &CompareArgs, sides: &[Built]) -> Vec<String> {
    let fitting = || {
        if sides[0].is_device() {
            Workload::ALL.map(|w| w.name().to_owned()).to_vec()
        } else {
            ["seqrand", "mailmix", "nfsbasic"]
                .map(str::to_owned)
                .to_vec()
        }
    };
    if args.workload.is_empty() && args.suite.is_empty() {
        fitting()
    } else {
        args.workload.clone()
    }
}

fn unknown_suite(name: &str) -> Error {
    let names: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
    Error::Usage(format!(
        "unknown suite {name}; expected one of {}",
        names.join(", ")
    ))
}

fn assignments(texts: &[String]) -> Result<Vec<(String, String)>> {
    texts.iter().map(|text| assignment(text)).collect()
}

/// Builds a side of a study; its own parameters override the common ones.
fn side(built: &Built, job: &Job, how: &MeasureArgs, more: &[(String, String)]) -> Result<Side> {
    let mut job = job.clone();
    for (name, value) in built.set.iter().chain(more) {
        job.set(name, value).map_err(wrong)?;
    }
    if let Job::Devmix(config) = &mut job
        && config.span == 0
    {
        config.span = how.size();
    }
    Ok(Side {
        name: built.name.clone(),
        target: built.target.clone(),
        again: None,
        job,
        facts: built.facts.clone(),
        before: built.before.clone(),
        after: built.after.clone(),
        surroundings: built.surroundings,
    })
}

impl MeasureArgs {
    fn builder<'a>(&'a self, context: &'a Context) -> Builder<'a> {
        Builder {
            settings: &context.settings,
            device: self.device.as_deref(),
            size: self.size(),
            files_size: self.size.unwrap_or_else(|| self.files_room()),
            force: self.force,
            bench: None,
            for_guests: !self.env.is_empty()
                && self.env.iter().all(|e| e.processors == Processors::Guest),
        }
    }

    /// Returns the default bytes under a file system.
    fn files_room(&self) -> u64 {
        let given = self.device.clone().filter(|path| path.is_dir());
        let folder = given.unwrap_or_else(std::env::temp_dir);
        match rustix::fs::statvfs(&folder) {
            Ok(stat) => {
                let free = stat.f_bavail.saturating_mul(stat.f_frsize);
                FILES_BYTES
                    .min(free / FILES_OF_FREE)
                    .next_multiple_of(1 << 20)
            }
            // An error of the directory is reported when the file is created.
            Err(_) => FILES_BYTES,
        }
    }

    fn size(&self) -> u64 {
        self.size.unwrap_or(DEVICE_BYTES)
    }

    fn extent(&self) -> Extent {
        match (self.quick, self.faithful) {
            (true, _) => Extent::Quick,
            (_, true) => Extent::Faithful,
            _ => Extent::Standard,
        }
    }

    /// Selects the requested environments, or the target's own.
    fn environments(&self, own: RunEnvironment) -> Vec<RunEnvironment> {
        if self.env.is_empty() {
            vec![own]
        } else {
            self.env.clone()
        }
    }

    /// Builds the job of a part of a suite, with those of the given parameters that it has.
    fn part(&self, part: &Part) -> Result<Job> {
        let mut job = [part.job(self.extent()).map_err(wrong)?];
        self.configure(&mut job, true)?;
        let [job] = job;
        Ok(job)
    }

    /// Builds the jobs of these names; those of the block engine are combined into one.
    /// `elsewhere`: parameters may be for other jobs.
    fn jobs(&self, names: &[String], elsewhere: bool) -> Result<Vec<Job>> {
        let mut jobs: Vec<Job> = Vec::new();
        let mut patterns = Vec::new();
        for name in names {
            match name.parse::<Workload>() {
                Ok(pattern) => patterns.push(pattern),
                Err(_) => jobs.push(Job::named(name, self.extent()).map_err(wrong)?),
            }
        }
        if !patterns.is_empty() {
            jobs.push(Job::Devmix(self.grid(patterns)));
        }
        for (n, job) in jobs.iter().enumerate() {
            let name = job.entry().name;
            if jobs[..n].iter().any(|other| other.entry().name == name) {
                return Err(Error::Usage(format!("{name} is named twice")));
            }
        }
        self.configure(&mut jobs, elsewhere)?;
        Ok(jobs)
    }

    /// Builds the configuration of the block engine, with one point for each pattern.
    fn grid(&self, patterns: Vec<Workload>) -> devmix::Config {
        let most = if self.quick {
            QUICK_PASS_BYTES
        } else {
            PASS_BYTES
        };
        let each = (self.size() / u64::from(self.threads)).min(most);
        devmix::Config {
            patterns,
            blocks: vec![u32::try_from(self.block).unwrap_or(u32::MAX)],
            depths: vec![self.depth],
            threads: vec![self.threads],
            requests: (each / self.block.max(1)).max(1) * u64::from(self.threads),
            ..devmix::Config::default()
        }
    }

    fn configure(&self, jobs: &mut [Job], elsewhere: bool) -> Result<()> {
        for job in jobs.iter_mut() {
            if let (Job::Mailmix(config), Some(path)) = (job, &self.postmark) {
                let text =
                    std::fs::read_to_string(path).map_err(|e| Error::io("cannot read", path, e))?;
                *config = mailmix::Config::parse(&text).map_err(wrong)?;
            }
        }
        for text in &self.set {
            let (name, value) = assignment(text)?;
            let having = |job: &&mut Job| job.parameters().iter().any(|(own, _)| *own == name);
            let mut fitting: Vec<&mut Job> = jobs.iter_mut().filter(having).collect();
            if fitting.is_empty() && !elsewhere {
                return Err(Error::Usage(format!(
                    "none of the workloads has a parameter {name}"
                )));
            }
            fitting
                .iter_mut()
                .try_for_each(|job| job.set(&name, &value))
                .map_err(wrong)?;
        }
        Ok(())
    }

    /// Computes the time budget of all suites among the studies.
    fn suites_budget(&self, studies: &[Planned]) -> Duration {
        let suite =
            |planned: &Planned| Some(planned.part.as_deref()?.split('.').next()?.to_owned());
        let suites: BTreeSet<String> = studies.iter().filter_map(suite).collect();
        self.budget() * suites.len() as u32
    }

    fn budget(&self) -> Duration {
        self.budget
            .unwrap_or(if self.quick { QUICK_BUDGET } else { BUDGET })
    }

    fn plan(&self, planned: &Planned, control: bool, (budget, extra): Budget) -> StudyPlan {
        let job = &planned.job;
        let own = StudyPlan::default();
        let most = match (self.max_runs, self.runs) {
            (Some(most), _) => most,
            (None, Some(runs)) => runs,
            (None, None) if planned.part.is_some() && self.quick => own.pairs,
            (None, None) if planned.part.is_some() => SUITE_PAIRS,
            (None, None) if control => own.max_pairs,
            (None, None) => own.pairs,
        };
        let points = match job {
            Job::Devmix(config) => config.points().map_or(1, |points| points.len()) as f64,
            _ => 1.0,
        };
        let shortest = if self.quick { 0.0 } else { SHORTEST_RUN };
        let seconds = self.seconds.unwrap_or(shortest);
        StudyPlan {
            pairs: self.runs.unwrap_or(own.pairs),
            max_pairs: most,
            width: self.width,
            theta: self.threshold,
            min_wall: Duration::from_secs_f64((seconds * points).clamp(0.0, 3600.0)),
            budget,
            extra,
            discard_first: !self.quick || control && planned.part.is_none(),
            control,
            caches: if self.drop_caches {
                Caches::Dropped
            } else {
                Caches::AsTheyAre
            },
            seed: self.seed,
            layers: self.layers,
            part: planned.part.clone(),
        }
    }
}

/// Creates a directory for jobs that need nothing else. Its name is constant, so that an
/// interrupted study can be resumed.
fn temporary_folder(kept: &mut Option<tempfile::TempDir>) -> Result<Built> {
    let dir = tempfile::tempdir()
        .map_err(|e| Error::Failed(format!("cannot create a temporary directory: {e}")))?;
    let mut built = folder(kept.insert(dir).path())?;
    built.name = "a temporary folder".into();
    built.target.name.clone_from(&built.name);
    Ok(built)
}

/// Runs studies one after the other, until all are done or a signal stops them.
struct Session<'a> {
    context: &'a Context,
    how: &'a MeasureArgs,
    control: bool,
    signals: StopSignals,
    /// Directory of the journals.
    folder: PathBuf,
    _temporary: Option<tempfile::TempDir>,
}

impl<'a> Session<'a> {
    fn new(context: &'a Context, how: &'a MeasureArgs, control: bool) -> Result<Session<'a>> {
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

    fn all(&self, studies: Vec<Planned>) -> Result<u8> {
        let mut done = Vec::new();
        let mut failed = None;
        let mut builder = self.how.builder(self.context);
        let mut left = self.how.suites_budget(&studies);
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
        let results = Results::read(&self.folder).map_err(wrong)?;
        results.write(&self.folder).map_err(wrong)?;
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
        let plan = self.how.plan(planned, self.control, budget);
        let path = journal_path(&self.folder, &planned.key());
        let mut journal = Journal::open(&path).map_err(wrong)?;
        let arms = sides.len() + usize::from(self.control && sides.len() > 1);
        let bar = self.bar(job, &plan, arms);
        let done = study::study(sides, &plan, &mut journal, &mut |step| {
            show_progress(&bar, &step);
            match self.signals.stop_asked() {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            }
        });
        bar.finish_and_clear();
        done.map_err(wrong)
    }

    /// Creates a progress bar on standard error; indicatif hides it without a terminal.
    fn bar(&self, job: &Job, plan: &StudyPlan, arms: usize) -> ProgressBar {
        if self.context.json {
            return ProgressBar::hidden();
        }
        let warm_up = if plan.discard_first { 2 } else { 0 };
        let runs = (u64::from(plan.pairs.next_multiple_of(2)) + warm_up) * arms as u64;
        let style = ProgressStyle::with_template("{prefix:<12} [{bar:30}] {pos}/{len} {eta} {msg}")
            .expect("the template is valid");
        ProgressBar::new(runs)
            .with_style(style)
            .with_prefix(job.entry().name)
    }
}

fn show_progress(bar: &ProgressBar, step: &Step<'_>) {
    match step {
        Step::Preparing(side) => bar.set_message(format!("preparing {side}")),
        Step::Calibrated(times) => bar.set_message(format!("{times} iterations per run")),
        Step::Ran { side, figure, .. } => {
            bar.inc(1);
            // More pairs than planned: the intervals are still wide.
            if bar.position() > bar.length().unwrap_or(0) {
                bar.set_length(bar.position());
            }
            if let Some((value, unit)) = figure {
                bar.set_message(format!("{side} {value:.1} {unit}"));
            }
        }
    }
}

/// Prints results.
pub fn show(context: &Context, results: &Results) {
    let value = serde_json::to_value(results).expect("plain data serializes");
    output::show(context.json, &value, || results.text());
}
