//! The NBD protocol, server and client side, without I/O: bytes in, bytes and decisions out.
//!
//! ```text
//!   Handshake::handle_input(bytes) ──► take_output() ──► outcome(): StartTls | Transmission | Close | Fence
//!   ClientHandshake: the same for the client side (module `client`)
//!   RequestHeader::parse(28 bytes) ──► the driver moves the payload ──► reply headers
//! ```
//!
//! **Invariant:** no payload is buffered here: this crate parses lengths, the driver moves the
//! bytes between socket and device buffer. Untrusted input never panics, and every length in it is
//! bounded.
//!
//! Deliberately absent: sockets, TLS, time, devices. Section names are those of the protocol
//! document (`doc/proto.md` of the NetworkBlockDevice project).

#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation
)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::indexing_slicing,
        clippy::cast_possible_truncation
    )
)]

pub mod client;
pub mod constants;
mod handshake;
mod transmission;

pub use handshake::{ExportInfo, Handshake, Outcome, TlsPolicy};
pub use transmission::{
    Command, Errno, REQUEST_BYTES, RequestHeader, simple_reply, structured_data, structured_done,
    structured_error,
};

/// Protocol violation by the peer; the connection is closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("NBD protocol error: {0}")]
pub struct ProtocolError(pub String);

/// Result of parsing bytes from a peer.
pub type Result<T> = std::result::Result<T, ProtocolError>;
