//! A path to a disk: an export of an NBD server, over TCP or a Unix socket, with or without TLS.
//!
//! ```text
//!   NbdUri ──► NbdPath (Lunpath) ──connect──► NbdConnection ──open──► NbdQueue, on its thread
//! ```
//!
//! **Invariant:** the kernel never holds memory of a request: all transfers use non-blocking calls,
//! so a request can be taken back at any time, and a late response touches no buffer. A lost
//! connection stays lost; the upper layer opens another one.
//!
//! Deliberately absent: reconnecting, path selection, deadlines. A path reports; the upper layer
//! decides.

mod connect;
mod message;
mod options;
mod path;
mod queue;
mod uri;
mod wire;

pub use options::Options;
pub use path::{NbdDevice, NbdPath};
pub use uri::{NbdUri, Server};
