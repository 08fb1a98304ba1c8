//! An NBD server over block devices: fixed newstyle, structured replies, several connections per
//! export, FUA, trim, write-zeroes, Unix sockets, TCP and TLS.
//!
//! ```text
//!   acceptor ──► worker thread 1..n: epoll over its connections and its device queues
//!                 socket ─ header ─ payload straight into pool buffers ─ queue ─ writev ─ socket
//! ```
//!
//! A connection stays with one worker for its lifetime, so a request never changes threads. A flush
//! covers the writes of all connections, because a flush of the device does.
//!
//! **Invariant:** a write is submitted to the device only once all of its payload has arrived; a
//! reply is sent only once the device has answered. A fenced connection is never read again, and
//! the fence is answered only once the last request of that connection has ended (module
//! `session`).
//!
//! Connections are limited in number and in time ([`Limits`]): one that has not chosen an export
//! may have to make room for another, and one whose payload or reply stalls is closed. Buffers are
//! allocated for payload that arrives, and a reserve is kept for connections that hold none.
//!
//! Memory: at most [`WORKER_MEMORY_BYTES`] per worker, mapped when the worker starts and populated
//! on use. A client that sends requests faster than they are served is not read until buffers are
//! available again.
//!
//! Deliberately absent: block status, resizing, and adding or removing exports at run time.

mod admission;
mod config;
mod connection;
mod engine;
mod error;
mod hub;
mod kept;
mod peer;
mod request;
mod server;
mod session;
mod socket;
mod step;
mod tls;
mod wakers;
mod worker;

pub use config::{Config, Export, Limits, Listen, Tls};
pub use engine::WORKER_MEMORY_BYTES;
pub use error::Error;
pub use kept::Keep;
pub use peer::{Stranger, check_own_user};
pub use server::Server;
