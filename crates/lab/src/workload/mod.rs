//! Workloads, each with the phases, the timed part and the units of the program it follows.
//!
//! Every one is a closed loop: its latencies are service times. All counts follow from the seed
//! alone, so two targets do the same work in the same order.

mod access;
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

pub(crate) use programs::shell;
pub mod seqrand;
pub mod solver;
