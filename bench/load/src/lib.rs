//! Workloads modeled on published programs, jobs that run them on targets, and the environments in
//! which they run.
//!
//! **Invariant:** two runs of a job do the same work: the same bytes in the same order.
//!
//! Deliberately absent: comparisons.
#![deny(unsafe_code)]

mod job;
mod run_environment;
pub mod workload;

pub use job::{CATALOGUE, Entry, Extent, Job, Needs};
pub use run_environment::{Load, Processors, RunEnvironment};
