//! A small AFS-3 client for benchmarks and tests: a thousand clients fit in one process.
//!
//! ```text
//!   PortSet ── line (one UDP port, one thread) ──┬── Client 127.0.0.1 ── cache ── file server
//!      │                                           ├── Client 127.0.0.2 ── cache
//!      │                                           └── …
//!      └── line …        CallBack, InitCallBackState3 ──► the cache of the client that was called
//! ```
//!
//! To a server, a client is an address and a port. So clients share ports, each with an address of
//! its own in 127/8, and have no thread: their calls run on the threads of their callers.
//!
//! **Invariant:** data returned from the cache is covered by a valid promise, and has the data
//! version of the status returned with it. A promise is recorded only if none was broken while it
//! was in flight.
//!
//! Deliberately absent: a kernel interface, write-behind, symbolic links and mount points in paths,
//! tokens, automatic extension of locks, more than one server.

mod cache;
mod calls;
mod client;
mod error;
mod location;
mod net;
mod port_set;

pub use calls::ANY;
pub use client::{Client, Options};
pub use error::{Error, Result};
pub use location::{VolumeLocation, locate};
pub use net::CallbackObserver;
pub use port_set::PortSet;
