//! Rx over UDP: calls that are served by a pool of threads, and calls that are made.
//!
//! ```text
//!   Port ── socket 1..n ── thread: receive in batches ─┐
//!                                                      ├─ rx_proto::Endpoint behind a lock ── send in batches
//!   Handler ── worker threads ── Call ─────────────────┤
//!   Connection ── callers' threads ── Call ────────────┘
//! ```
//!
//! A server gives a [`Port`] a [`Handler`] for each service; a client makes a [`Connection`] and calls on
//! it. A port does both: a file server calls its clients back from the port that they call.
//!
//! **Invariant:** what a stranger can make us hold has a limit: connections, calls and received bytes by
//! [`rx_proto::Config`], receive buffers, threads and inboxes here. Data is not copied on its way, neither
//! from the program to the kernel, nor, in runs of some length, from the kernel to the program.
//!
//! The protocol itself, its timers and its limits are `rx-proto`. Absent on purpose: security classes
//! other than rxnull, encoding of arguments, an async runtime.

mod bytes;
mod call;
mod client;
mod error;
mod inbox;
mod pool;
mod port;
mod settings;
mod shard;
mod socket;
mod sys;
mod worker;

pub use bytes::Bytes;
pub use call::Call;
pub use client::Connection;
pub use error::{Abort, Error};
pub use port::{Port, PortStats};
pub use rx_proto::{Answers, Config, End, Questions, Stats, Timeouts, code};
pub use settings::{Service, Settings};
pub use worker::Handler;
