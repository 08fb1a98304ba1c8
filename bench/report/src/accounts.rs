//! Machine resources used by the runs of each side, and service times if they were measured.
//!
//! All values are medians over the counted runs. The named kernel threads are those with the most
//! CPU time over all runs.

use crate::label::readable;
use bench_core::account::Account;
use bench_core::columns::align;
use bench_core::figures::number;
use bench_core::record::{Phase, Record};
use bench_study::Study;
use std::collections::BTreeMap;

const MIB: f64 = 1_048_576.0;
/// Number of kernel threads that are named.
const NAMED: usize = 3;

/// A table: a title, and rows of which the first is the header.
pub(crate) struct Shown {
    pub(crate) title: &'static str,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Shown {
    /// Returns the rows with the names of phases as readers see them.
    pub(crate) fn readable(&self) -> Vec<Vec<String>> {
        let mut rows = self.rows.clone();
        for name in rows.iter_mut().filter_map(|row| row.first_mut()) {
            *name = readable(name);
        }
        rows
    }
}

/// Builds the tables of a study that have at least one row.
pub(crate) fn shown(study: &Study) -> Vec<Shown> {
    let all = [
        Shown {
            title: "What a run took",
            rows: accounts(study),
        },
        Shown {
            title: "Service times, µs",
            rows: latencies(study),
        },
    ];
    all.into_iter()
        .filter(|shown| shown.rows.len() > 1)
        .collect()
}

/// Formats the tables as text for a terminal.
pub(crate) fn text(study: &Study) -> String {
    let one = |shown: Shown| format!("\n{}:\n\n{}", shown.title, align(&shown.readable()));
    shown(study).into_iter().map(one).collect()
}

fn counted(study: &Study, side: usize) -> impl Iterator<Item = &Record> {
    let runs = study.runs[side].iter().filter(|run| !run.warm_up);
    runs.map(|run| &run.sample)
}

/// Computes the median over the runs of a side, `-` if no run has the value.
fn middle(study: &Study, side: usize, of: impl Fn(&Record) -> Option<f64>) -> String {
    let values: Vec<f64> = counted(study, side).filter_map(of).collect();
    let middle = bench_core::median(&values).filter(|v| v.is_finite());
    middle.map_or("-".into(), number)
}

fn accounts(study: &Study) -> Vec<Vec<String>> {
    let head = [
        "side",
        "s",
        "user CPU s",
        "system CPU s",
        "others' CPU s",
        "kernel threads' CPU s",
        "machine busy %",
        "memory MiB",
        "daemons' MiB",
        "MiB read",
        "MiB written",
        "most of the kernel threads'",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for (n, side) in study.sides.iter().enumerate() {
        if !counted(study, n).any(|record| record.account.is_some()) {
            continue;
        }
        let account = |of: fn(&Account) -> Option<f64>| {
            middle(study, n, |record| record.account.as_ref().and_then(of))
        };
        let phases = |of: fn(&Phase) -> Option<f64>| {
            middle(study, n, |record| record.phases.iter().map(of).sum())
        };
        rows.push(vec![
            side.name.clone(),
            account(|a| Some(a.wall_ns as f64 / 1e9)),
            phases(|p| Some(p.cpu.user_ns as f64 / 1e9)),
            phases(|p| Some(p.cpu.system_ns as f64 / 1e9)),
            phases(|p| Some(p.others.total_ns() as f64 / 1e9)),
            account(|a| Some(a.kernel_total_ns() as f64 / 1e9)),
            account(|a| Some(a.busy() * 100.0)),
            account(|a| Some(a.memory? as f64 / MIB)),
            account(|a| Some(a.daemons_memory? as f64 / MIB)),
            phases(|p| Some(p.device?.read as f64 / MIB)),
            phases(|p| Some(p.device?.written as f64 / MIB)),
            busiest(study, n),
        ]);
    }
    rows
}

/// Lists the busiest kernel threads with their share of all kernel threads' CPU time.
fn busiest(study: &Study, side: usize) -> String {
    let mut all = Account::default();
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for account in counted(study, side).filter_map(|r| r.account.as_ref()) {
        for (name, ns) in &account.kernel_ns {
            let sum = sums.entry(name.clone()).or_default();
            *sum = sum.saturating_add(*ns);
        }
    }
    all.kernel_ns = sums;
    let total = all.kernel_total_ns().max(1) as f64;
    let part = |(name, ns): (&str, u64)| format!("{name} {:.0} %", ns as f64 / total * 100.0);
    let parts: Vec<String> = all.busiest(NAMED).into_iter().map(part).collect();
    if parts.is_empty() {
        "-".into()
    } else {
        parts.join(", ")
    }
}

fn latencies(study: &Study) -> Vec<Vec<String>> {
    let head = ["phase", "side", "mean", "p50", "p99", "max"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let Some(first) = study.runs.first().and_then(|runs| runs.first()) else {
        return rows;
    };
    for (index, phase) in first.sample.phases.iter().enumerate() {
        if phase.latency.is_none() {
            continue;
        }
        for (n, side) in study.sides.iter().enumerate() {
            let time = |of: fn(bench_core::Latency) -> u64| {
                let one = |record: &Record| {
                    let latency = record.phases.get(index)?.latency?;
                    Some(of(latency) as f64 / 1e3)
                };
                middle(study, n, one)
            };
            rows.push(vec![
                phase.name.clone(),
                side.name.clone(),
                time(|l| l.mean_ns),
                time(|l| l.p50_ns),
                time(|l| l.p99_ns),
                time(|l| l.max_ns),
            ]);
        }
    }
    rows
}

/// Formats the tables as comma-separated values: one line per study, table row and figure.
pub(crate) fn csv(studies: &[Study]) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let mut out = String::from("workload,table,of,figure,median\n");
    for study in studies {
        for shown in shown(study) {
            let Some((head, rows)) = shown.rows.split_first() else {
                continue;
            };
            let names = head
                .iter()
                .take_while(|h| matches!(&***h, "side" | "phase"));
            let front = names.count();
            for row in rows {
                let of = row[..front].join(", ");
                for (figure, value) in head.iter().zip(row).skip(front) {
                    let fields = [&study.key(), shown.title, &of, figure, value].map(quoted);
                    out.push_str(&fields.join(","));
                    out.push('\n');
                }
            }
        }
    }
    out
}
