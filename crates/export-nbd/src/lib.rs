//! An NBD server over block devices: fixed newstyle, structured replies, several connections to one
//! export, FUA, trim, write-zeroes, Unix sockets, TCP and TLS.
//!
//! ```text
//!   acceptor ──► worker 1..n: epoll over its connections and its device queues, one for each export
//!                 socket ─ headers ─ payload straight into pool buffers ─ queue ─ sendmsg ─ socket
//! ```
//!
//! A connection belongs to one worker for its life, so a request never changes threads. A flush on
//! any connection covers the writes that were answered on all of them (`NBD_FLAG_CAN_MULTI_CONN`):
//! it becomes a flush of the device, which covers every write that any queue had reaped before,
//! and a write is answered only after it was reaped.
//!
//! **Invariant:** a write reaches the device only when all of its payload has arrived; a reply leaves
//! only when the device has answered; a bad peer loses its own connection and nothing else.
//!
//! Requests have to be multiples of the announced smallest block (the sector size of the device) and
//! end in EINVAL otherwise, whether the client asked for block sizes or not. The largest request is
//! 32 MiB, split as the device needs.
//!
//! Memory: [`WORKER_MEMORY_BYTES`] for each worker at most. A connection can hold no more of it than
//! it leaves to others; one that sends faster than it is served is not read from until there is
//! room, and neither is one that does not take its replies.
//!
//! Absent on purpose: block status, resizing, and exports that come and go.

pub mod client;
mod config;
mod connection;
mod engine;
mod error;
mod hub;
mod listen;
mod memory;
mod out;
mod server;
mod socket;
mod tls;
mod worker;

pub use config::{Config, Export, Listen, Stats, Tls};
pub use error::Error;
pub use memory::WORKER_MEMORY_BYTES;
pub use server::Server;
