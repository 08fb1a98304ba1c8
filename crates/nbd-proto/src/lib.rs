//! The NBD protocol, server side, without any input or output: bytes in, bytes and decisions out.
//!
//! ```text
//!   stream ─► Server::handle_input ─► poll_transmit: bytes to send
//!                                 └─► poll_event: StartTls │ Ready │ Request │ Disconnect
//!   device ─► Server::reply ─► the head of a reply
//! ```
//!
//! **Invariant:** payload is never held here: the core names lengths, the driver moves the bytes
//! between socket and device buffer. Bytes from outside never panic, and every length in them has
//! a limit.
//!
//! Absent on purpose: sockets, TLS itself, time, devices, block status (the metadata options are
//! answered as unsupported) and extended headers. Section names are those of the protocol document
//! (`doc/proto.md` of the NetworkBlockDevice project).

#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation
)]

pub mod constants;
mod handshake;
mod server;
mod transmission;

pub use handshake::{ExportInfo, Handshake, Outcome, TlsPolicy};
pub use server::{Event, Server};
pub use transmission::{
    Command, Errno, REPLY_HEAD_BYTES_MAX, REQUEST_BYTES, ReplyHead, RequestHeader,
};

/// A peer that does not speak the protocol; its connection is closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the client does not speak NBD as it should: {0}")]
pub struct ProtocolError(pub String);

/// What reading from a peer gives.
pub type Result<T> = std::result::Result<T, ProtocolError>;
