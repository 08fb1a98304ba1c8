//! Running studies: from the command line to a folder of results.

use super::sides::{Builder, Built, assignment, folder, machine};
use super::{CompareArgs, wrong};
use crate::commands::Context;
use crate::commands::attach::install_signals;
use crate::output;
use indicatif::{ProgressBar, ProgressStyle};
use lab::study::{self, Caches, Journal, Results, Side, Step, Study, StudyPlan, journal_path};
use lab::workload::{devmix, mailmix};
use lab::{Extent, Job, Needs, Surroundings, Workload};
use stack::StopSignals;
use stack::{Error, Result, exit};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

/// Bytes that a thread goes over in a pass, at most: those of the published runs.
const PASS_BYTES: u64 = 100 << 20;

#[derive(clap::Args)]
pub struct MeasureArgs {
    /// Parameter of the workloads that have it, see `evfs lab list WORKLOAD`; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Seconds a run instead of half a minute
    #[arg(long, conflicts_with = "faithful")]
    quick: bool,
    /// Sizes and counts of the originals, which take long
    #[arg(long)]
    faithful: bool,
    /// Keep every run in this folder, and write the report there; an interrupted study goes on
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Pairs of runs [default: 6, and up to 20 while intervals are wide]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: Option<u32>,
    /// Pairs of runs at most
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    max_runs: Option<u32>,
    /// An interval that reaches no further to either side is narrow enough
    #[arg(long, default_value = "5%", value_parser = part)]
    width: f64,
    /// A difference that does not matter
    #[arg(long, default_value = "5%", value_parser = part)]
    threshold: f64,
    /// Longest time of each study: seconds, or with m or h
    #[arg(long, default_value = "30m", value_parser = duration)]
    budget: Duration,
    /// Shortest run in seconds; the work is repeated until then
    #[arg(long)]
    seconds: Option<f64>,
    /// Write back and drop the kernel's caches before each run (root)
    #[arg(long)]
    drop_caches: bool,
    /// What runs beside the work: idle, loaded, loaded-io or loaded-build, each also with shared- or
    /// partitioned- before it; repeated, `run` compares with the first, and `compare` compares in each
    #[arg(long, value_name = "ENV")]
    env: Vec<Surroundings>,
    /// Where the order of runs is drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Configuration file of PostMark for mailmix
    #[arg(long, value_name = "FILE")]
    postmark: Option<PathBuf>,
    /// File or disk under stacks; its content is destroyed [default: a file of its own]
    #[arg(long, value_name = "FILE")]
    device: Option<PathBuf>,
    /// Bytes of a device that are used
    #[arg(long, default_value = "1G", value_parser = output::parse_size)]
    size: u64,
    /// Bytes of a request, for seq-read and the like
    #[arg(long, default_value = "64k", value_parser = output::parse_size)]
    block: u64,
    /// Threads, for seq-read and the like
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Requests in flight of each thread, for seq-read and the like
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    depth: u32,
    /// Overwrite a device that carries a known signature
    #[arg(long)]
    force: bool,
}

/// A part of one: `5%` or `0.05`.
pub fn part(text: &str) -> std::result::Result<f64, String> {
    let value = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse().map(|v: f64| v / 100.0),
        None => text.parse(),
    };
    value
        .ok()
        .filter(|v| *v > 0.0 && *v < 1.0)
        .ok_or_else(|| format!("`{text}` is no part of one, like 5%"))
}

fn duration(text: &str) -> std::result::Result<Duration, String> {
    let (number, factor) = match text.chars().last() {
        Some('h') => (&text[..text.len() - 1], 3600),
        Some('m') => (&text[..text.len() - 1], 60),
        Some('s') => (&text[..text.len() - 1], 1),
        _ => (text, 1),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| format!("`{text}` is no time, like 90 or 10m"))?;
    Ok(Duration::from_secs(
        number.saturating_mul(factor).min(30 * 86_400),
    ))
}

/// `evfs lab run`.
pub fn run(
    context: &Context,
    workloads: &[String],
    target: Option<&str>,
    how: &MeasureArgs,
) -> Result<u8> {
    let mut builder = how.builder();
    let mut studies = Vec::new();
    // Kept until all studies are done: the folder goes with it.
    let mut temporary = None;
    let jobs = how.jobs(workloads)?;
    let needs = |job: &Job| job.entry().needs;
    let scratch = match target {
        None if jobs.iter().any(|job| needs(job) == Needs::Device) => builder.build("clear")?,
        None => {
            let dir = temporary.insert(
                tempfile::tempdir()
                    .map_err(|e| Error::Failed(format!("no temporary folder: {e}")))?,
            );
            vec![folder(dir.path())?]
        }
        Some(text) => builder.build(text)?,
    };
    let [target] = scratch.as_slice() else {
        return Err(Error::Usage("one target, not two".into()));
    };
    let none = machine();
    for job in jobs {
        let on = match needs(&job) {
            Needs::Machine => &none,
            _ => target,
        };
        let mut own = Vec::new();
        for surroundings in how.environments(on.surroundings) {
            let mut side = side(on, &job, how, &[])?;
            side.surroundings = surroundings;
            if how.env.len() > 1 {
                side.name = surroundings.to_string();
            }
            own.push(side);
        }
        studies.push((own, job));
    }
    let control = how.env.len() > 1;
    Session::new(context, how, control)?.all(studies)
}

/// `evfs lab compare`.
pub fn compare(context: &Context, args: &CompareArgs) -> Result<u8> {
    let how = &args.how;
    let mut builder = how.builder();
    let base = builder.build(&args.base)?;
    let mut sides = vec![
        base.into_iter()
            .next()
            .expect("a text stands for a side or more"),
    ];
    sides.extend(builder.build(&args.other)?);
    for n in 1..sides.len() {
        if sides[..n].iter().any(|s| s.name == sides[n].name) {
            // The same place with other parameters.
            sides[n].name = format!("{} ({})", sides[n].name, n + 1);
        }
    }
    let defaults = match sides[0].is_device() {
        true => Workload::ALL.map(|w| w.name().to_owned()).to_vec(),
        false => ["seqrand", "mailmix", "nfsbasic"]
            .map(str::to_owned)
            .to_vec(),
    };
    let wanted = if args.workload.is_empty() {
        &defaults
    } else {
        &args.workload
    };
    let (set_a, set_b) = (assignments(&args.set_a)?, assignments(&args.set_b)?);
    let mut studies = Vec::new();
    for job in how.jobs(wanted)? {
        let own = sides.iter().enumerate().map(|(n, built)| {
            let more = if n == 0 { &set_a } else { &set_b };
            side(built, &job, how, more)
        });
        let own = own.collect::<Result<Vec<Side>>>()?;
        for surroundings in &how.env {
            let mut beside = own.clone();
            beside
                .iter_mut()
                .for_each(|side| side.surroundings = *surroundings);
            studies.push((beside, job.clone()));
        }
        if how.env.is_empty() {
            studies.push((own, job));
        }
    }
    let control = !args.no_control;
    Session::new(context, how, control)?.all(studies)
}

fn assignments(texts: &[String]) -> Result<Vec<(String, String)>> {
    texts.iter().map(|text| assignment(text)).collect()
}

/// A side of a study: its own parameters over those of all.
fn side(built: &Built, job: &Job, how: &MeasureArgs, more: &[(String, String)]) -> Result<Side> {
    let mut job = job.clone();
    for (name, value) in built.set.iter().chain(more) {
        job.set(name, value).map_err(wrong)?;
    }
    if let Job::Devmix(config) = &mut job
        && config.span == 0
    {
        config.span = how.size;
    }
    Ok(Side {
        name: built.name.clone(),
        target: built.target.clone(),
        job,
        facts: built.facts.clone(),
        before: built.before.clone(),
        after: built.after.clone(),
        surroundings: built.surroundings,
    })
}

impl MeasureArgs {
    fn builder(&self) -> Builder<'_> {
        Builder {
            device: self.device.as_deref(),
            size: self.size,
            force: self.force,
            bench: None,
        }
    }

    fn extent(&self) -> Extent {
        match (self.quick, self.faithful) {
            (true, _) => Extent::Quick,
            (_, true) => Extent::Faithful,
            _ => Extent::Standard,
        }
    }

    /// The environments asked for, or the target's own.
    fn environments(&self, own: Surroundings) -> Vec<Surroundings> {
        match self.env.is_empty() {
            true => vec![own],
            false => self.env.clone(),
        }
    }

    /// The jobs of these names; those of the block engine become one.
    fn jobs(&self, names: &[String]) -> Result<Vec<Job>> {
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
                return Err(Error::Usage(format!("{name} is there twice")));
            }
        }
        self.configure(&mut jobs)?;
        Ok(jobs)
    }

    /// One point for each pattern.
    fn grid(&self, patterns: Vec<Workload>) -> devmix::Config {
        let each = (self.size / u64::from(self.threads)).min(PASS_BYTES);
        devmix::Config {
            patterns,
            blocks: vec![u32::try_from(self.block).unwrap_or(u32::MAX)],
            depths: vec![self.depth],
            threads: vec![self.threads],
            requests: (each / self.block.max(1)).max(1) * u64::from(self.threads),
            ..devmix::Config::default()
        }
    }

    fn configure(&self, jobs: &mut [Job]) -> Result<()> {
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
            if fitting.is_empty() {
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

    fn plan(&self, job: &Job, control: bool) -> StudyPlan {
        let own = StudyPlan::default();
        let most = match (self.max_runs, self.runs) {
            (Some(most), _) => most,
            (None, Some(runs)) => runs,
            (None, None) if control => own.max_pairs,
            (None, None) => own.pairs,
        };
        let points = match job {
            Job::Devmix(config) => config.points().map_or(1, |points| points.len()) as f64,
            _ => 1.0,
        };
        let seconds = match (self.seconds, job) {
            (Some(seconds), _) => seconds,
            (None, Job::Devmix(_)) if !self.quick => 1.0,
            (None, _) => 0.0,
        };
        StudyPlan {
            pairs: self.runs.unwrap_or(own.pairs),
            max_pairs: most,
            width: self.width,
            theta: self.threshold,
            min_wall: Duration::from_secs_f64((seconds * points).clamp(0.0, 3600.0)),
            budget: self.budget,
            discard_first: !(self.quick && !control),
            control,
            caches: match self.drop_caches {
                true => Caches::Dropped,
                false => Caches::AsTheyAre,
            },
            seed: self.seed,
        }
    }
}

/// Studies one after the other, until all are done or somebody stops it.
struct Session<'a> {
    context: &'a Context,
    how: &'a MeasureArgs,
    control: bool,
    signals: StopSignals,
    /// Where journals are, and whether they stay.
    folder: PathBuf,
    _temporary: Option<tempfile::TempDir>,
}

impl<'a> Session<'a> {
    fn new(context: &'a Context, how: &'a MeasureArgs, control: bool) -> Result<Session<'a>> {
        let (folder, temporary) = match &how.out {
            Some(out) => {
                std::fs::create_dir_all(out).map_err(|e| Error::io("cannot make", out, e))?;
                (out.clone(), None)
            }
            None => {
                let dir = tempfile::tempdir()
                    .map_err(|e| Error::Failed(format!("no temporary folder: {e}")))?;
                (dir.path().to_owned(), Some(dir))
            }
        };
        Ok(Session {
            context,
            how,
            control,
            signals: install_signals()?,
            folder,
            _temporary: temporary,
        })
    }

    fn all(&self, studies: Vec<(Vec<Side>, Job)>) -> Result<u8> {
        let mut done = Vec::new();
        let mut failed = None;
        for (sides, job) in &studies {
            match self.one(sides, job) {
                Ok(study) => done.push(study),
                // What was run before it stays, and is shown first.
                Err(error) => failed = Some(error),
            }
            if failed.is_some() || self.signals.stop_asked().is_some() {
                break;
            }
        }
        let results = Results::of(done);
        if self.how.out.is_some() {
            self.write()?;
        }
        if failed.is_none() || !results.studies.is_empty() {
            show(self.context, &results);
        }
        match (self.signals.stop_asked(), failed) {
            (Some(signal), _) => {
                let words = match &self.how.out {
                    Some(_) => "stopped; the same command goes on",
                    None => "stopped; with --out it could go on",
                };
                output::say(self.context.json, words);
                Ok(128 + signal as u8)
            }
            (None, Some(error)) => Err(error),
            (None, None) => Ok(exit::OK),
        }
    }

    /// Everything that the folder has, also of earlier commands.
    fn write(&self) -> Result<()> {
        let results = Results::read(&self.folder).map_err(wrong)?;
        results.write(&self.folder).map_err(wrong)?;
        let page = self.folder.join("report.html");
        output::say(self.context.json, &format!("see {}", page.display()));
        Ok(())
    }

    fn one(&self, sides: &[Side], job: &Job) -> Result<Study> {
        let plan = self.how.plan(job, self.control);
        let around = sides.iter().map(|side| side.surroundings);
        let key = study::key(job.entry().name, around);
        let mut journal = Journal::open(&journal_path(&self.folder, &key)).map_err(wrong)?;
        let arms = sides.len() + usize::from(self.control && sides.len() > 1);
        let bar = self.bar(job, &plan, arms);
        let done = study::study(sides, &plan, &mut journal, &mut |step| {
            tell(&bar, &step);
            match self.signals.stop_asked() {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            }
        });
        bar.finish_and_clear();
        done.map_err(wrong)
    }

    /// A bar on standard error; indicatif hides it where that is no terminal.
    fn bar(&self, job: &Job, plan: &StudyPlan, arms: usize) -> ProgressBar {
        if self.context.json {
            return ProgressBar::hidden();
        }
        let warm_up = if plan.discard_first { 2 } else { 0 };
        let runs = (u64::from(plan.pairs.next_multiple_of(2)) + warm_up) * arms as u64;
        let style = ProgressStyle::with_template("{prefix:<12} [{bar:30}] {pos}/{len} {eta} {msg}")
            .expect("the template is well formed");
        ProgressBar::new(runs)
            .with_style(style)
            .with_prefix(job.entry().name)
    }
}

fn tell(bar: &ProgressBar, step: &Step<'_>) {
    match step {
        Step::Preparing(side) => bar.set_message(format!("preparing {side}")),
        Step::Calibrated(times) => bar.set_message(format!("{times} times a run")),
        Step::Ran { side, figure, .. } => {
            bar.inc(1);
            // More pairs than were planned: intervals are still wide.
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
    let value = serde_json::to_value(results).expect("plain data has a JSON form");
    output::show(context.json, &value, || study::tables(&results.studies));
}
