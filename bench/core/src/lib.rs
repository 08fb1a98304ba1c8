//! Measurement: targets of work, counters before and after it, the engine that drives block devices,
//! and statistics of pairs of runs.
//!
//! ```text
//!   target ── engine ──► Sample ─┐
//!      │                         ├─► Record ──► series: runs in turn ──► stats: paired intervals
//!      └───── watch ──► Phase ───┘
//!              │
//!            meter: CPU, device bytes, background load
//! ```
//!
//! **Invariant:** a number that is not available (no interval from five pairs, no device bytes on
//! this kernel) is absent, never estimated.
//!
//! Deliberately absent: workloads, building volumes (the caller passes devices), the page cache (the
//! caller states whether a device bypasses it), and the removal of outliers.
#![deny(unsafe_code)]

pub mod account;
pub mod caches;
pub mod columns;
mod direction;
pub mod engine;
mod environment;
mod error;
pub mod facts;
pub mod figures;
pub mod files;
mod gate;
pub mod meter;
mod path_io;
pub mod record;
pub mod result;
pub mod rng;
pub mod series;
mod server_cpu;
pub mod spec;
pub mod stats;
pub mod target;
mod unpaired;
pub mod watch;

pub use account::Account;
pub use direction::Direction;
pub use engine::{Latency, Sample, run};
pub use environment::Environment;
pub use error::{Error, Result};
pub use facts::Facts;
pub use meter::{CpuTime, DeviceBytes, Layers, Noise, Others, process_cpu};
pub use path_io::{Carried, Paths};
pub use record::{Better, Phase, PhaseFigure, Point, Record};
pub use result::{End, Run};
pub use spec::{Spec, Workload};
pub use stats::{Interval, Ratio, Verdict, median, order_statistic_ranks, paired, verdict};
pub use target::{Remount, Server, Target, TargetKind};
pub use unpaired::unpaired;
