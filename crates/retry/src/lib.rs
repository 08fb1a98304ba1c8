//! Time-outs, retries with jitter, and a circuit breaker.
//!
//! - [`Backoff`] says how long to pause after a failure.
//! - [`Breaker`] says whether to try at all: it counts the failures of one peer.
//! - [`Deadline`] divides the time of an operation among its attempts.
//!
//! The caller passes the time, as the time since any fixed point of a monotonic clock, and the seed
//! of random numbers. Results follow from the arguments alone, so that simulations can be repeated.
//!
//! Deliberately absent: clocks, threads, locks, and loops around operations. Pauses that do not
//! follow a failure (polling, pacing) are constants where they are used.

#![forbid(unsafe_code)]

mod backoff;
mod breaker;
mod deadline;

pub use backoff::{Backoff, Jitter, random_seed};
pub use breaker::{Breaker, State};
pub use deadline::Deadline;
