//! Options of `evfs bench run` and `compare`, and the jobs that they describe.

use crate::guest::GuestArgs;
use crate::units::{duration, part, seconds};
use bench_core::Workload;
use bench_load::workload::{devmix, mailmix};
use bench_load::{Extent, Job, Processors, RunEnvironment};
use bench_report::suite::Part;
use bench_targets::{Builder, assignment, program_error};
use cli::Context;
use stack::{Error, Result};
use std::path::PathBuf;
use std::time::Duration;

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

/// Treatment of a parameter that no job has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmatched {
    /// It is an error.
    Refuse,
    /// It is for other jobs.
    Skip,
}

impl Unmatched {
    /// Chooses [`Unmatched::Skip`] if there are parts of suites, which have jobs of their own.
    pub fn with_suites(suites: &[String]) -> Unmatched {
        if suites.is_empty() {
            Unmatched::Refuse
        } else {
            Unmatched::Skip
        }
    }
}

#[derive(clap::Args)]
pub struct MeasureArgs {
    /// Set a parameter of the workloads that have it; may be repeated; see `evfs bench list WORKLOAD`
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Use small sizes and counts; a study or suite takes less than two minutes
    #[arg(long, conflicts_with = "faithful")]
    pub quick: bool,
    /// Use the sizes and counts of the originals, which takes long
    #[arg(long)]
    pub faithful: bool,
    /// Save every run and the report in this directory; an interrupted study resumes there
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Number of pairs of runs [default: 6, and up to 1000 while intervals are wide]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: Option<u32>,
    /// Maximum number of pairs of runs
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub max_runs: Option<u32>,
    /// Half-width at which an interval is narrow enough
    #[arg(long, default_value = "2%", value_parser = part)]
    pub width: f64,
    /// Largest difference that counts as no difference
    #[arg(long, default_value = "5%", value_parser = part)]
    pub threshold: f64,
    /// Maximum duration of each study or suite, in seconds or with the suffix m or h [default: 10m;
    /// with --quick 110s]
    #[arg(long, value_parser = duration)]
    pub budget: Option<Duration>,
    /// Minimum duration of a run in seconds, until which the work is repeated [default: 0.1; with
    /// --quick none]
    #[arg(long, value_parser = seconds)]
    pub seconds: Option<f64>,
    /// Write back and drop the kernel's caches before each run (requires root)
    #[arg(long)]
    pub drop_caches: bool,
    /// Environment of the work: idle, loaded, loaded-io or loaded-build, each also with the prefix
    /// shared- or partitioned-, or guest- to run the work in a guest; or guest, without load. If
    /// repeated, `run` compares with the first, and `compare` compares in each
    #[arg(long, value_name = "ENV")]
    pub env: Vec<RunEnvironment>,
    /// Measure the CPU time of each layer of the stacks in this process; this costs CPU time itself
    #[arg(long)]
    pub layers: bool,
    /// Random seed for the order of runs
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// PostMark configuration file for the mailmix workload
    #[arg(long, value_name = "FILE")]
    pub postmark: Option<PathBuf>,
    /// File, disk or LUN under the stacks, whose content is destroyed, or a directory for such
    /// files [default: the directory for temporary files]
    #[arg(long, value_name = "FILE")]
    pub device: Option<PathBuf>,
    /// Number of bytes of the device to use [default: 1G; under a file system 6G, but at most an
    /// eighth of the free space]
    #[arg(long, value_parser = stack::parse_size)]
    pub size: Option<u64>,
    /// Request size in bytes, for seq-read and similar workloads
    #[arg(long, default_value = "64k", value_parser = stack::parse_size)]
    pub block: u64,
    /// Number of threads, for seq-read and similar workloads
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: u32,
    /// Number of requests in flight per thread, for seq-read and similar workloads
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub depth: u32,
    /// Overwrite a device that is not empty; this cannot be undone
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub guest: GuestArgs,
}

#[derive(clap::Args)]
pub struct CompareArgs {
    /// Side that serves as the baseline
    pub base: String,
    /// Side to compare with the baseline
    pub other: String,
    /// Workload to run, or seq-read, seq-write, rand-read, rand-write on devices; may be repeated
    /// [default: the workloads that fit the sides]
    #[arg(long)]
    pub workload: Vec<String>,
    /// Suite of a published report; shows its values beside the measured ones; see `evfs bench list`
    #[arg(long)]
    pub suite: Vec<String>,
    /// Set a parameter of the first side only
    #[arg(long, value_name = "NAME=VALUE")]
    pub set_a: Vec<String>,
    /// Set a parameter of the other side only
    #[arg(long, value_name = "NAME=VALUE")]
    pub set_b: Vec<String>,
    /// Omit the control arm, which repeats the first side
    #[arg(long)]
    pub no_control: bool,
    #[command(flatten)]
    pub how: MeasureArgs,
}

/// Default maximum time of a study by itself, or of a suite. All suites together take an hour, or
/// eight minutes.
const BUDGET: Duration = Duration::from_secs(600);
const QUICK_BUDGET: Duration = Duration::from_secs(110);

impl MeasureArgs {
    pub fn builder<'a>(&'a self, context: &'a Context) -> Builder<'a> {
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

    pub fn size(&self) -> u64 {
        self.size.unwrap_or(DEVICE_BYTES)
    }

    pub fn extent(&self) -> Extent {
        match (self.quick, self.faithful) {
            (true, _) => Extent::Quick,
            (_, true) => Extent::Faithful,
            _ => Extent::Standard,
        }
    }

    /// Selects the requested environments, or the target's own.
    pub fn environments(&self, own: RunEnvironment) -> Vec<RunEnvironment> {
        if self.env.is_empty() {
            vec![own]
        } else {
            self.env.clone()
        }
    }

    /// Builds the job of a part of a suite, with those of the given parameters that it has.
    pub fn part(&self, part: &Part) -> Result<Job> {
        let mut job = [part.job(self.extent()).map_err(program_error)?];
        self.configure(&mut job, Unmatched::Skip)?;
        let [job] = job;
        Ok(job)
    }

    /// Builds the jobs of these names; those of the block engine are combined into one.
    pub fn jobs(&self, names: &[String], unmatched: Unmatched) -> Result<Vec<Job>> {
        let mut jobs: Vec<Job> = Vec::new();
        let mut patterns = Vec::new();
        for name in names {
            match name.parse::<Workload>() {
                Ok(pattern) => patterns.push(pattern),
                Err(_) => jobs.push(Job::named(name, self.extent()).map_err(program_error)?),
            }
        }
        if !patterns.is_empty() {
            jobs.push(Job::Devmix(self.grid(patterns)));
        }
        for (n, job) in jobs.iter().enumerate() {
            let name = job.entry().name;
            if jobs[..n].iter().any(|other| other.entry().name == name) {
                return Err(Error::Usage(format!(
                    "the workload {name} is named twice; name each workload once"
                )));
            }
        }
        self.configure(&mut jobs, unmatched)?;
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

    fn configure(&self, jobs: &mut [Job], unmatched: Unmatched) -> Result<()> {
        for job in jobs.iter_mut() {
            if let (Job::Mailmix(config), Some(path)) = (job, &self.postmark) {
                let text =
                    std::fs::read_to_string(path).map_err(|e| Error::io("cannot read", path, e))?;
                *config = mailmix::Config::parse(&text).map_err(program_error)?;
            }
        }
        for text in &self.set {
            let (name, value) = assignment(text)?;
            let having = |job: &&mut Job| job.parameters().iter().any(|(own, _)| *own == name);
            let mut fitting: Vec<&mut Job> = jobs.iter_mut().filter(having).collect();
            if fitting.is_empty() && unmatched == Unmatched::Refuse {
                return Err(Error::Usage(format!(
                    "none of the workloads has a parameter `{name}`; `evfs bench list WORKLOAD` lists those of one"
                )));
            }
            fitting
                .iter_mut()
                .try_for_each(|job| job.set(&name, &value))
                .map_err(program_error)?;
        }
        Ok(())
    }

    pub fn budget(&self) -> Duration {
        self.budget
            .unwrap_or(if self.quick { QUICK_BUDGET } else { BUDGET })
    }
}
