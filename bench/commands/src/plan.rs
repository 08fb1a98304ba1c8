//! `evfs plan`: the cost of encrypting a device, measured in advance.

mod text;

use bench_core::Direction;
use bench_report::notes;
use bench_study::price::{MIXES, Mix, Price, prices};
use bench_study::{Step, Study, StudyPlan, findings};
use bench_targets::{BenchDevice, StackKind, by_turns};
use cli::Context;
use cli::document::Document;
use cli::output;
use cli::progress::Bar;
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
    /// The cost of the strongest cipher in one sentence.
    verdict: String,
    /// Time and machine of the measurement.
    measured: Option<String>,
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
        json: context.json,
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
    let prices = prices(&args.workload, &reads, &writes);
    let device = args.device.display().to_string();
    let sessions = reads.sessions.first();
    let content = Estimate {
        verdict: text::verdict(&device, &prices, measuring.plan.theta),
        device,
        size: info.size,
        holds,
        measured: sessions.map(|session| format!("{} on {}", session.started(), session.line())),
        workload: args.workload,
        writes_measured_in: place(args),
        prices,
        notes: against(&reads, &writes),
    };
    output::show(context.json, &ESTIMATE, &content, || {
        let Estimate {
            verdict, device, ..
        } = &content;
        let mut text = format!(
            "{verdict}\n\n{device}: {}, {}; it was only read\n",
            output::size(info.size),
            holds.map_or("no known signature".to_owned(), |found| format!(
                "holds {found}"
            )),
        );
        text::describe(&mut text, args, &content.prices, holds);
        if let Some(measured) = &content.measured {
            let _ = writeln!(text, "\nMeasured {measured}");
        }
        text.push_str("\nNotes:\n");
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
    json: bool,
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
        // A warm-up block and the planned pairs, of the stacks and the control.
        let runs = (u64::from(self.plan.pairs) + 2) * (KINDS.len() as u64 + 1);
        let bar = Bar::of_steps(self.json, what, runs);
        let progress = &mut |step: Step<'_>| {
            if let Step::Ran { side, .. } = step {
                bar.step(Some(side.to_owned()));
            }
            match self.signals.stop_asked() {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            }
        };
        let done = by_turns(bench, &KINDS, job, &self.plan, folder.path(), progress);
        bar.end();
        let done = done?;
        Ok(self.signals.stop_asked().is_none().then_some(done))
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_found_by_name() {
        assert_eq!(kind("mail").unwrap().name, "mail");
        assert!(kind("games").unwrap_err().contains("database"));
    }
}
