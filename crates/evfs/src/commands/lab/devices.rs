//! A comparison of stacks by the block engine alone, for who shows it among other things.

use indicatif::{ProgressBar, ProgressStyle};
use lab::{Comparison, Plan, Progress, Spec};
use stack::arms::{ArmKind, Bench};
use stack::{Error, Result};
use std::ops::ControlFlow;

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
