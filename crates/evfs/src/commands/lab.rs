//! `evfs lab`: what encryption costs, measured so that the answer can be believed.

use super::Context;
use crate::output;
use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use lab::{Comparison, Plan, Progress, Spec, Workload};
use serde_json::json;
use stack::arms::{ArmKind, Bench};
use stack::{Error, Result, exit};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Subcommand)]
pub enum Command {
    /// Run the same work on two stacks side by side and compare
    #[command(after_help = "\
Builds the stacks in one process over the same bytes of one device, runs the workload on them in
turn (A B B A), past the page cache where the file system allows it, and prints the median of the
paired ratios with a 95 % interval. `encrypted` stands for both key lengths.

Examples:
  evfs lab compare clear encrypted
  evfs lab compare clear encrypted-256 --workload rand-write --block 4k --threads 10
  evfs lab compare clear encrypted --device /mnt/fast/scratch --runs 20 --json")]
    Compare(CompareArgs),
}

#[derive(clap::Args)]
pub struct CompareArgs {
    /// What the others are compared with
    #[arg(value_parser = arm)]
    base: ArmKinds,
    /// What is compared with it
    #[arg(value_parser = arm)]
    other: ArmKinds,
    /// File or disk to measure on; its content is destroyed [default: a file of its own]
    #[arg(long, value_name = "FILE")]
    device: Option<PathBuf>,
    /// What is done; may be repeated [default: all four]
    #[arg(long, value_parser = workload)]
    workload: Vec<Workload>,
    /// Bytes of a request
    #[arg(long, default_value = "64k", value_parser = output::parse_size)]
    block: u64,
    /// Threads, each with one request in flight
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Requests that each thread keeps in flight
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    depth: u32,
    /// Pairs of runs
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Shortest run in seconds
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Bytes of the device that are used
    #[arg(long, default_value = "1G", value_parser = output::parse_size)]
    size: u64,
    /// Overwrite a device that carries a known signature
    #[arg(long)]
    force: bool,
}

type ArmKinds = Vec<ArmKind>;

fn arm(text: &str) -> std::result::Result<ArmKinds, String> {
    match text {
        "clear" => Ok(vec![ArmKind::Clear]),
        "encrypted" => Ok(vec![ArmKind::Encrypted(128), ArmKind::Encrypted(256)]),
        "encrypted-128" => Ok(vec![ArmKind::Encrypted(128)]),
        "encrypted-256" => Ok(vec![ArmKind::Encrypted(256)]),
        _ => Err("one of clear, encrypted, encrypted-128, encrypted-256".into()),
    }
}

fn workload(text: &str) -> std::result::Result<Workload, String> {
    text.parse().map_err(|e: lab::Error| e.to_string())
}

pub fn run(context: &Context, command: Command) -> Result<u8> {
    let Command::Compare(args) = command;
    let workloads = match args.workload.as_slice() {
        [] => Workload::ALL.to_vec(),
        some => some.to_vec(),
    };
    let kinds: Vec<ArmKind> = args
        .base
        .iter()
        .take(1)
        .chain(&args.other)
        .copied()
        .collect();
    let bench = Bench::open(args.device.as_deref(), args.size, args.force)?;
    let plan = Plan {
        pairs: args.runs,
        max_pairs: args.runs,
        min_wall: Duration::from_secs_f64(args.seconds.clamp(0.0, 3600.0)),
        budget: Duration::from_secs(24 * 3600),
        shared: true,
        ..Plan::default()
    };
    let comparisons = workloads
        .into_iter()
        .map(|workload| {
            let spec = Spec {
                workload,
                block: u32::try_from(args.block).unwrap_or(u32::MAX),
                threads: args.threads,
                depth: args.depth,
                span: Some(args.size),
                ..Spec::default()
            };
            measure(&bench, &kinds, &spec, &plan, !context.json)
        })
        .collect::<Result<Vec<_>>>()?;
    let value = json!({ "comparisons": comparisons });
    output::show(context.json, &value, || lab::table(&comparisons));
    Ok(exit::OK)
}

/// Measures one workload on fresh stacks.
pub fn measure(
    bench: &Bench,
    kinds: &[ArmKind],
    spec: &Spec,
    plan: &Plan,
    show: bool,
) -> Result<Comparison> {
    let arms = kinds
        .iter()
        .map(|kind| {
            let built = bench.build(*kind)?;
            let mut arm = lab::Arm::new(built.name, built.device);
            arm.facts.direct = Some(built.direct);
            arm.facts.cipher = Some(built.cipher);
            arm.facts.cipher_kernel = built.kernel;
            Ok(arm)
        })
        .collect::<Result<Vec<_>>>()?;
    let (base, others) = arms
        .split_first()
        .ok_or_else(|| Error::Usage("nothing to compare".into()))?;
    let bar = if show {
        progress_bar(spec, plan, arms.len())
    } else {
        ProgressBar::hidden()
    };
    let result = lab::compare(base, others, spec, plan, &mut |step| {
        if let Progress::Ran { arm, mib_per_s, .. } = step {
            bar.inc(1);
            bar.set_message(format!("{arm} {mib_per_s:.0} MiB/s"));
        }
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    result.map_err(|e| Error::Failed(chain(&e)))
}

/// The error and what caused it, in one line.
fn chain(error: &lab::Error) -> String {
    let cause = std::error::Error::source(error);
    cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

/// A bar on standard error; indicatif hides it where that is no terminal.
fn progress_bar(spec: &Spec, plan: &Plan, arms: usize) -> ProgressBar {
    let runs = u64::from(plan.pairs + 2) * arms as u64;
    let style = ProgressStyle::with_template("{prefix:<12} [{bar:30}] {pos}/{len} {msg}")
        .expect("the template is well formed");
    ProgressBar::new(runs)
        .with_style(style)
        .with_prefix(spec.workload.name())
}
