//! An NBD server over block devices: fixed newstyle, structured replies, several connections to one
//! export, FUA, trim, write-zeroes, Unix sockets, TCP and TLS.
//!
//! ```text
//!   acceptor ──► worker thread 1..n: epoll over its connections and its device queues
//!                 socket ─ header ─ payload straight into pool buffers ─ queue ─ writev ─ socket
//! ```
//!
//! A connection belongs to one worker for its life, so a request never changes threads. A flush
//! covers the writes of all connections, because a flush of the device below does.
//!
//! **Invariant:** a write reaches the device only when all of its payload has arrived; a reply leaves
//! only when the device has answered. A connection that was fenced is never read from again, and the
//! fence is answered only when its last request has ended (module `session`).
//!
//! Connections have limits of number and of time ([`Limits`]): one that has not chosen an export may be
//! asked to leave for another, and one whose payload or reply stands still is closed. Buffers are for
//! payload that arrives, and some are kept for connections that hold none.
//!
//! Memory: [`WORKER_MEMORY_BYTES`] for each worker at most, mapped when the worker starts and taken
//! from the system as it is used. A client that sends requests faster than they are served is not
//! read from until there are buffers again.
//!
//! Absent on purpose: block status, resizing, and exports that come and go.

pub mod client;
mod config;
mod connection;
mod door;
mod engine;
mod error;
mod peer;
mod server;
mod session;
mod socket;
mod tls;
mod worker;

pub use config::{Config, Export, Limits, Listen, Tls};
pub use engine::WORKER_MEMORY_BYTES;
pub use error::Error;
pub use server::Server;
