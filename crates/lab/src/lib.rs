//! The laboratory's measuring core: what does a layer cost, measured so that the answer can be
//! believed on a machine that is not idle.
//!
//! ```text
//!   Side (a target and a job) ──► study ──► Record ──► journal ──► analysis ──► tables, HTML, regressions
//!                                   │         ▲
//!                       order by turns        meter: CPU, device bytes, and who else was on the machine
//! ```
//!
//! **Invariant:** two sides are only ever compared by runs that did the same work (the same bytes in
//! the same order), stood next to each other in time, and are all in the result, raw. A number that
//! cannot be had (no interval from five pairs, no device bytes on this kernel) is absent, never
//! made up.
//!
//! Absent on purpose: building volumes (the caller hands in devices), the page cache (whether a
//! device is direct is its own matter, and is passed in and printed), and throwing out outliers.
#![deny(unsafe_code)]

mod account;
mod carried;
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
pub mod price;
mod record;
mod result;
mod rng;
mod series;
mod server_cpu;
mod spec;
mod stats;
pub mod study;
pub mod suite;
mod surroundings;
mod target;
mod unpaired;
pub mod workload;

pub use account::Account;
pub use carried::{Carried, Paths};
pub use engine::{Latency, Sample, run};
pub use environment::Environment;
pub use error::{Error, Result};
pub use job::{CATALOGUE, Entry, Extent, Job, Needs};
pub use meter::{CpuTime, DeviceBytes, Layers, Noise, Others, process_cpu};
pub use record::{Better, Cell, Phase, Point, Record};
pub use result::{End, Run};
pub use spec::{Spec, Workload};
pub use stats::{Interval, Ratio, Verdict, median, order_statistic_ranks, paired, verdict};
pub use surroundings::{Load, Processors, Surroundings};
pub use target::{Facts, Place, Remount, Server, Target};
pub use unpaired::unpaired;
