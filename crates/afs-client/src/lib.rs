//! A small AFS-3 client, for laboratory and tests: a thousand of them fit one process.
//!
//! ```text
//!   Net ── line (one UDP port, one thread) ──┬── Client 127.0.0.1 ── cache ── file server
//!    │                                       ├── Client 127.0.0.2 ── cache
//!    │                                       └── …
//!    └── line …                CallBack, InitCallBackState3 ──► the cache of the client that was called
//! ```
//!
//! To a server a client is an address and a port. So clients share ports, each with an address of its
//! own out of 127/8, and have no thread: their calls run on the threads of those who make them.
//!
//! **Invariant:** what is given from the cache is covered by a promise that holds, and is of one data
//! version with the status beside it. A promise is kept only if nothing was broken while it was on its
//! way.
//!
//! Deliberately absent: a kernel's interface, writing behind, symbolic links and mount points in paths,
//! tokens, locks that are extended by themselves, more than one server.

mod cache;
mod calls;
mod client;
mod error;
mod location;
mod net;

pub use calls::ANY;
pub use client::{Client, Options};
pub use error::{Error, Result};
pub use location::{Found, locate};
pub use net::{Ear, Net};
