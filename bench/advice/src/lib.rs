//! Policies of a LUN in virtual time: the performance of simulated paths under each, and advice from
//! the recorded I/O of a real LUN.
//!
//! **Invariant:** a run follows from its seed alone; no clock is read.

mod advice;
pub mod virtual_time;

pub use advice::{Advice, AdviseError, Agreement, Expected, Fit, RECORDS_MIN, Row, advise};
