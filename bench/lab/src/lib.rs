//! The measuring core of `evfs bench`: measures the cost of a layer reliably on a machine that is not
//! idle.
//!
//! ```text
//!   Side (target, job) ──► study ──► Record ──► journal ──► analysis ──► tables, HTML, regressions
//!                            │          ▲
//!                      interleaved    meter: CPU, device bytes, background load
//! ```
//!
//! **Invariant:** two sides are compared only by runs that did the same work (the same bytes in the
//! same order) and ran next to each other in time. Every raw run is part of the result. A number
//! that is not available (no interval from five pairs, no device bytes on this kernel) is absent,
//! never estimated.
//!
//! Deliberately absent: building volumes (the caller passes devices), the page cache (the caller
//! states whether a device bypasses it; the report prints this), and the removal of outliers.
#![deny(unsafe_code)]

mod account;
mod engine;
mod environment;
mod error;
mod figures;
pub mod files;
mod gate;
pub mod guest;
mod histogram;
mod html;
mod job;
#[allow(unsafe_code)]
mod map;
mod meter;
mod path_io;
pub mod price;
mod record;
mod result;
mod rng;
mod run_environment;
mod series;
mod server_cpu;
mod spec;
mod stats;
pub mod study;
pub mod suite;
mod target;
mod unpaired;
pub mod workload;

pub use account::Account;
pub use engine::{Latency, Sample, run};
pub use environment::Environment;
pub use error::{Error, Result};
pub use job::{CATALOGUE, Entry, Extent, Job, Needs};
pub use meter::{CpuTime, DeviceBytes, Layers, Noise, Others, process_cpu};
pub use path_io::{Carried, Paths};
pub use record::{Better, Phase, PhaseFigure, Point, Record};
pub use result::{End, Run};
pub use run_environment::{Load, Processors, RunEnvironment};
pub use spec::{Spec, Workload};
pub use stats::{Interval, Ratio, Verdict, median, order_statistic_ranks, paired, verdict};
pub use target::{Facts, Remount, Server, Target, TargetKind};
pub use unpaired::unpaired;
