//! `evfs plan`: the cost of encrypting a device, measured in advance.

use bench_core::Direction;
use bench_report::notes;
use bench_study::price::{Half, MIXES, Mix, Price, prices};
use bench_study::{Judgement, Step, Study, StudyPlan, findings};
use bench_targets::{BenchDevice, StackKind, by_turns};
use cli::Context;
use cli::document::Document;
use cli::output;
use indicatif::{ProgressBar, ProgressStyle};
use schemars::JsonSchema;
use serde::Serialize;
use stack::{Error, Existing, Result, Settings, StopSignals, exit, signature};
use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// Bytes of the target of writes, in memory or in a scratch file.
const SCRATCH_BYTES: u64 = 64 << 20;
/// The stacks, in the order of the tables.
const KINDS: [StackKind; 3] = [
    StackKind::Clear,
    StackKind::Encrypted(128),
    StackKind::Encrypted(256),
];

#[derive(clap::Args)]
#[command(after_help = "\
Nothing is written to DEVICE, which may stay in use. Reads of it are measured alternately without and with \
decryption (decrypting data that was never encrypted takes as long). Writes are measured in memory, or with \
--scratch in a file that is removed afterwards. Encrypting a device replaces its content: existing data must \
be copied off and back.

Examples:
  evfs plan /dev/sdb
  evfs plan /dev/sdb --workload database
  evfs plan disk.img --workload mail --scratch /var/tmp")]
pub struct Args {
    /// Disk, file or LUN to evaluate; it is only read
    device: PathBuf,
    /// Type of workload: general, mail, database, build or media
    #[arg(long, value_name = "KIND", default_value = MIXES[0].name, value_parser = kind)]
    workload: Mix,
    /// Measure writes in a 64 MiB file in this directory, preferably on a disk of the same type
    /// [default: in memory]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Duration of each run in seconds; there are at least 64 runs
    #[arg(long, default_value_t = 0.2, value_parser = crate::units::seconds)]
    seconds: f64,
}

fn kind(text: &str) -> std::result::Result<Mix, String> {
    let names: Vec<&str> = MIXES.iter().map(|mix| mix.name).collect();
    let found = MIXES.iter().find(|mix| mix.name == text);
    found
        .copied()
        .ok_or_else(|| format!("expected one of {}", names.join(", ")))
}

/// Estimated cost of encrypting a device.
#[derive(Serialize, JsonSchema)]
pub struct Estimate {
    /// The device, as the user named it.
    device: String,
    /// Size of the device in bytes.
    size: u64,
    /// Known content of the device.
    holds: Option<&'static str>,
    /// Type of workload.
    workload: Mix,
    /// Place at which writes were measured: `memory`, or a file.
    writes_measured_in: String,
    /// Cost of each cipher.
    prices: Vec<Price>,
    /// Caveats.
    notes: Vec<String>,
}

pub const ESTIMATE: Document<Estimate> = Document::new("evfs/plan/1");

pub fn run(context: &Context, args: &Args) -> Result<u8> {
    let disk = Rc::new(BenchDevice::only_read(&args.device, &context.settings)?);
    let info = disk.lower().info().clone();
    let holds = signature::find(&**disk.lower())?;
    let measuring = Measuring {
        signals: StopSignals::install()?,
        quiet: output::hides_progress(context.json),
        plan: StudyPlan {
            min_wall: Duration::from_secs_f64(args.seconds),
            max_pairs: 10,
            budget: Duration::from_secs(120),
            ..StudyPlan::default()
        },
    };
    let Some((reads, writes)) = measuring.both(args, disk, &context.settings)? else {
        output::say(context.json, "stopped; nothing was changed");
        return Ok(128 + measuring.signals.stop_asked().unwrap_or_default() as u8);
    };
    let content = Estimate {
        device: args.device.display().to_string(),
        size: info.size,
        holds,
        workload: args.workload,
        writes_measured_in: place(args),
        prices: prices(&args.workload, &reads, &writes),
        notes: against(&reads, &writes),
    };
    output::show(context.json, &ESTIMATE, &content, || {
        let mut text = format!(
            "{}: {}, {}; it was only read\n",
            args.device.display(),
            output::size(info.size),
            holds.map_or("no known signature".to_owned(), |found| format!(
                "holds {found}"
            )),
        );
        describe(&mut text, args, &content.prices);
        for note in &content.notes {
            let _ = writeln!(text, "- {note}");
        }
        text
    });
    Ok(exit::OK)
}

/// Parameters of the measurement.
struct Measuring {
    signals: StopSignals,
    quiet: bool,
    plan: StudyPlan,
}

impl Measuring {
    /// Measures reads of the device, and writes elsewhere; `None` if a signal has stopped it.
    fn both(
        &self,
        args: &Args,
        disk: Rc<BenchDevice>,
        settings: &Settings,
    ) -> Result<Option<(Study, Study)>> {
        let mix = &args.workload;
        let Some(reads) = self.one("reads", disk, &mix.job(Direction::Read, 0))? else {
            return Ok(None);
        };
        let scratch = match &args.scratch {
            Some(folder) => scratch_file(folder, settings)?,
            None => BenchDevice::in_memory(SCRATCH_BYTES),
        };
        let job = mix.job(Direction::Write, SCRATCH_BYTES);
        let writes = self.one("writes", Rc::new(scratch), &job)?;
        Ok(writes.map(|writes| (reads, writes)))
    }

    fn one(
        &self,
        what: &'static str,
        bench: Rc<BenchDevice>,
        job: &bench_load::Job,
    ) -> Result<Option<Study>> {
        let folder = tempfile::tempdir()
            .map_err(|e| Error::Failed(format!("cannot create a temporary directory: {e}")))?;
        let bar = if self.quiet {
            ProgressBar::hidden()
        } else {
            bar(&self.plan).with_prefix(what)
        };
        let progress = &mut |step: Step<'_>| {
            if let Step::Ran { side, .. } = step {
                bar.inc(1);
                bar.set_message(side.to_owned());
            }
            match self.signals.stop_asked() {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            }
        };
        let done = by_turns(bench, &KINDS, job, &self.plan, folder.path(), progress);
        bar.finish_and_clear();
        let done = done?;
        Ok(self.signals.stop_asked().is_none().then_some(done))
    }
}

fn bar(plan: &StudyPlan) -> ProgressBar {
    // A warm-up block and the planned pairs, of the stacks and the control.
    let runs = (u64::from(plan.pairs) + 2) * (KINDS.len() as u64 + 1);
    let style = ProgressStyle::with_template("{prefix:<8} [{bar:30}] {pos}/{len} {eta} {msg}")
        .expect("the template is valid");
    ProgressBar::new(runs).with_style(style)
}

/// Creates a file in a directory that is removed when the bench is dropped.
fn scratch_file(folder: &Path, settings: &Settings) -> Result<BenchDevice> {
    let name = format!(".evfs-plan-{}", std::process::id());
    BenchDevice::open(
        Some(&folder.join(name)),
        SCRATCH_BYTES,
        Existing::Keep,
        settings,
    )
}

fn place(args: &Args) -> String {
    match &args.scratch {
        Some(folder) => format!("a file in {}", folder.display()),
        None => "memory".into(),
    }
}

/// Collects the caveats of both studies, each once.
fn against(reads: &Study, writes: &Study) -> Vec<String> {
    let of = |study: &Study| notes(study, &findings(study).0);
    let (of_reads, of_writes) = (of(reads), of(writes));
    let common = |note: &&String| of_reads.contains(note) && of_writes.contains(note);
    let mut all: Vec<String> = of_reads.iter().filter(common).cloned().collect();
    for (what, own) in [("reads", &of_reads), ("writes", &of_writes)] {
        let alone = own.iter().filter(|note| !common(note));
        all.extend(alone.map(|note| format!("{what}: {note}")));
    }
    all
}

fn describe(text: &mut String, args: &Args, prices: &[Price]) {
    let mix = &args.workload;
    let _ = writeln!(text, "{}: {}\n", mix.name, mix.what);
    for price in prices {
        let _ = writeln!(text, "{}:", price.side);
        half(text, "reads of the device", &price.reads, Medium::Disk);
        let medium = match args.scratch {
            Some(_) => Medium::Disk,
            None => Medium::Memory,
        };
        half(
            text,
            &format!("writes in {}", place(args)),
            &price.writes,
            medium,
        );
        let _ = writeln!(
            text,
            "  encryption adds {:.2} CPU seconds per GiB: one CPU sustains {:.1} GiB/s, and {:.2} CPUs are busy at the \
             read rate of the device ({:.0} MiB/s)",
            price.cpu_more_s_gib.max(0.0),
            price.gib_s_of_a_core.min(999.0),
            price.cores_at_full_rate,
            price.reads.clear_mib_s,
        );
    }
    if let [first, .., last] = prices {
        let more = last.cpu_more_s_gib - first.cpu_more_s_gib;
        let _ = writeln!(
            text,
            "\n{} instead of {}: {:+.2} CPU seconds per GiB.",
            last.side, first.side, more
        );
    }
    let _ = writeln!(
        text,
        "To encrypt it: copy its content elsewhere, then run `evfs volume create {} --owner NAME --force`.\n\nNotes:",
        args.device.display()
    );
}

/// Place of the measured bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Medium {
    Disk,
    Memory,
}

/// Formats one line; a rate in memory says nothing about a disk, and is omitted.
fn half(text: &mut String, what: &str, half: &Half, medium: Medium) {
    let rate = match (half.rate, medium) {
        (Some(rate), Medium::Disk) => {
            let between = half.rate_interval.map_or("no interval".into(), |i| {
                format!("between {:.3} and {:.3}", i.low, i.high)
            });
            format!(
                "{:.0} MiB/s instead of {:.0}, ratio {rate:.3} ({between}): {}; ",
                half.mib_s,
                half.clear_mib_s,
                words(half.judgement)
            )
        }
        _ => String::new(),
    };
    let between = half.cpu_more_interval.map_or(String::new(), |(low, high)| {
        format!(" (between {low:.3} and {high:.3})")
    });
    let _ = writeln!(
        text,
        "  {what}: {rate}{:.3} CPU seconds per GiB instead of {:.3}, {:+.3}{between}",
        half.clear_cpu_s_gib + half.cpu_more_s_gib,
        half.clear_cpu_s_gib,
        half.cpu_more_s_gib,
    );
}

fn words(judgement: Judgement) -> &'static str {
    match judgement {
        Judgement::Better => "faster",
        Judgement::Worse => "slower",
        Judgement::Same => "no relevant difference",
        Judgement::Noise => "within the noise of this machine",
        Judgement::Undecided | Judgement::NoInterval => "undecided on this machine now",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_found_by_name() {
        assert_eq!(kind("mail").unwrap().name, "mail");
        assert!(kind("games").unwrap_err().contains("database"));
    }
}
