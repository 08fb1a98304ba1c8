//! Rx over UDP: incoming calls served by a pool of threads, and outgoing calls.
//!
//! ```text
//!   Port ── socket 1..n ── thread: receive in batches ─┐
//!                                                      ├─ rx_proto::Endpoint behind a lock ── send in batches
//!   Handler ── worker threads ── Call ─────────────────┤
//!   Connection ── callers' threads ── Call ────────────┘
//! ```
//!
//! A server passes a [`Handler`] for each service to its [`Port`]; a client makes a [`Connection`]
//! and calls on it. A port does both: a file server makes callbacks from the port that its clients
//! call.
//!
//! **Invariant:** resources used on behalf of unauthenticated peers are bounded: connections, calls
//! and received bytes by [`rx_proto::Config`], receive buffers, threads and inboxes here. Data is
//! not copied on its way from the program to the kernel, nor, in long runs, from the kernel to the
//! program.
//!
//! The protocol itself, its timers and its limits are in `rx-proto`. Deliberately absent: security
//! classes other than rxnull, encoding of arguments, an async runtime.

mod bytes;
mod call;
mod client;
mod error;
mod handler;
mod inbox;
mod intake;
mod keep;
mod ledger;
mod link;
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
pub use handler::Handler;
pub use keep::Keep;
pub use ledger::Entry;
pub use port::{Port, PortStats};
pub use rx_proto::{Config, DebugAccess, DebugPolicy, End, Stats, Timeouts, code};
pub use settings::{Service, Settings};
