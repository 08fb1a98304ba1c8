//! Workloads. Each has the phases, the timed sections and the units of the program that it models.
//!
//! All are closed loops, whose latencies are service times, except [`devmix`] with a rate. All
//! counts follow from the seed alone, so two targets do the same work in the same order.

pub mod build;
pub mod clientload;
pub mod coherence;
pub mod devmix;
pub mod dhrystone;
pub mod fio;
pub mod mailmix;
pub mod mersenne;
pub mod micro;
pub mod mounts;
pub mod nfsbasic;
pub mod packets;
mod programs;
pub mod scriptmix;
pub mod sendfile;

pub use programs::shell;
pub mod seqrand;
pub mod solver;
