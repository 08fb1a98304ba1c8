//! One path to a disk: an export of an NBD server, over TCP or a Unix socket, with or without TLS.
//!
//! ```text
//!   NbdUri ──► NbdPath (Lunpath) ──connect──► NbdConnection ──open──► NbdQueue, on its thread
//! ```
//!
//! **Invariant:** the kernel never holds memory of a request: bytes go through non-blocking calls,
//! so a request can be taken back at any moment, and what the server sends late touches no buffer.
//! A connection that is lost stays lost; whoever opened it makes another.
//!
//! Absent on purpose: connecting again, choosing between paths, deadlines. A path reports; the layer
//! above decides.

mod connect;
mod message;
mod path;
mod queue;
mod uri;
mod wire;

pub use path::{NbdDevice, NbdPath, Options};
pub use uri::{NbdUri, Server};
