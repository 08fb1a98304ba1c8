//! The laboratory's measuring core: what does a layer cost, measured so that the answer can be
//! believed on a machine that is not idle.
//!
//! ```text
//!   Arm (a device and its facts)      Spec (one run)        Plan (how many, in what order)
//!        └──────────────┬──────────────────┘                        │
//!                    engine ── Sample ──► compare ── pairs ──► stats ──► report, JSON
//!                      │                     │
//!                    meter: CPU, device bytes, and who else was on the machine
//! ```
//!
//! **Invariant:** two arms are only ever compared by runs that did the same work (the same bytes in
//! the same order), stood next to each other in time, and are all in the result, raw. A number that
//! cannot be had (no interval from five pairs, no device bytes on this kernel) is absent, never
//! made up.
//!
//! Absent on purpose: building volumes (the caller hands in devices), the page cache (whether a
//! device is direct is its own matter, and is passed in and printed), and throwing out outliers.
#![forbid(unsafe_code)]

mod compare;
mod engine;
mod environment;
mod error;
pub mod files;
mod gate;
mod histogram;
mod meter;
mod report;
mod result;
mod rng;
mod series;
mod spec;
mod stats;
pub mod workload;

pub use compare::{Arm, ArmFacts, Plan, Probe, Progress, compare};
pub use engine::{Latency, Sample, run};
pub use environment::Environment;
pub use error::{Error, Result};
pub use meter::{CpuTime, DeviceBytes, Noise, ProofSource, process_cpu};
pub use report::{SCHEMA, from_json, table};
pub use result::{ArmRuns, Comparison, End, Floor, Run, Summary, Versus};
pub use spec::{Spec, Workload};
pub use stats::{
    Interval, Ratio, Verdict, geometric_mean, median, order_statistic_ranks, paired, verdict,
};
