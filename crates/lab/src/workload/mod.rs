//! Workloads on files, each with the phases, the timed part and the units of the program it follows.
//!
//! Every one is a closed loop: its latencies are service times. All counts follow from the seed
//! alone, so two targets do the same work in the same order.

pub mod mailmix;
pub mod mersenne;
pub mod micro;
pub mod nfsbasic;
pub mod seqrand;
