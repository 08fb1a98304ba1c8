//! Studies of stacks alone, for other commands that report the cost of encryption.

use crate::device::{BenchDevice, StackKind};
use crate::error::program_error;
use crate::sides::over;
use bench_load::Job;
use bench_load::workload::devmix;
use bench_study::{
    Finding, Journal, Kind, Side, Step, Study, StudyPlan, findings, journal_path, study,
};
use schemars::JsonSchema;
use serde::Serialize;
use stack::Result;
use std::ops::ControlFlow;
use std::path::Path;
use std::rc::Rc;

/// Runs a job alternately on the stacks over a bench. The journal stays in `folder`.
pub fn by_turns(
    bench: Rc<BenchDevice>,
    kinds: &[StackKind],
    job: &Job,
    plan: &StudyPlan,
    folder: &Path,
    progress: &mut dyn FnMut(Step<'_>) -> ControlFlow<()>,
) -> Result<Study> {
    let side = |kind: &StackKind| -> Result<Side> {
        let built = over(Rc::clone(&bench), *kind)?;
        Ok(Side {
            facts: built.facts,
            ..Side::new(built.name, built.target, job.clone())
        })
    };
    let sides: Vec<Side> = kinds.iter().map(side).collect::<Result<_>>()?;
    let path = journal_path(folder, job.entry().name);
    let mut journal = Journal::open(&path).map_err(program_error)?;
    study(&sides, plan, &mut journal, progress).map_err(program_error)
}

/// Cost of a stack, relative to the first one, for a kind of work.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct StackCost {
    /// Kind of work.
    pub work: String,
    /// Name of the stack.
    pub stack: String,
    /// Throughput relative to that of the first stack.
    pub throughput_of_clear: Option<f64>,
    /// 95 % confidence interval of `throughput_of_clear`.
    pub throughput_interval: Option<[f64; 2]>,
    /// Conclusion about the throughput.
    pub throughput_judgement: &'static str,
    /// CPU time relative to that of the first stack.
    pub cpu_of_clear: Option<f64>,
    /// 95 % confidence interval of `cpu_of_clear`.
    pub cpu_interval: Option<[f64; 2]>,
    /// Conclusion about the CPU time.
    pub cpu_judgement: Option<&'static str>,
}

/// Measures the rate of each further stack relative to the first one, and its CPU time for the same
/// work; returns the cost for each stack and point of `config`. The journal stays in `folder`.
pub fn costs(
    bench: BenchDevice,
    kinds: &[StackKind],
    config: devmix::Config,
    plan: &StudyPlan,
    folder: &Path,
    progress: &mut dyn FnMut(Step<'_>) -> ControlFlow<()>,
) -> Result<Vec<StackCost>> {
    let job = Job::Devmix(config);
    let done = by_turns(Rc::new(bench), kinds, &job, plan, folder, progress)?;
    let (found, _) = findings(&done);
    let median = |f: &Finding| f.ratio.map(|r| r.median);
    let interval = |f: &Finding| f.ratio?.interval.map(|i| [i.low, i.high]);
    let headlines = found.iter().filter(|f| f.kind == Kind::Headline);
    let rows = headlines.map(|f| {
        let is_its = |c: &&Finding| c.kind == Kind::Cpu && c.side == f.side && c.phase == f.phase;
        let cpu = found.iter().find(is_its);
        StackCost {
            work: f.phase.clone(),
            stack: f.side.clone(),
            throughput_of_clear: median(f),
            throughput_interval: interval(f),
            throughput_judgement: f.judgement.name(),
            cpu_of_clear: cpu.and_then(median),
            cpu_interval: cpu.and_then(interval),
            cpu_judgement: cpu.map(|c| c.judgement.name()),
        }
    });
    Ok(rows.collect())
}
