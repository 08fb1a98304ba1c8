//! The NBD protocol, both sides, without any input or output: bytes in, bytes and decisions out.
//!
//! ```text
//!   Handshake::handle_input(bytes) ──► take_output() ──► outcome(): StartTls | Transmission | Close | Fence
//!   ClientHandshake the same, from the other side (module `client`)
//!   RequestHeader::parse(28 bytes) ──► the driver moves the payload ──► reply headers
//! ```
//!
//! **Invariant:** payload is never held here: the core names lengths, the driver moves the bytes
//! between socket and device buffer. Bytes from outside never panic, and every length in them has
//! a limit.
//!
//! Absent on purpose: sockets, TLS, time, devices. Section names are those of the protocol document
//! (`doc/proto.md` of the NetworkBlockDevice project).

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

/// A peer that does not speak the protocol; its connection is closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the other side does not speak NBD as it should: {0}")]
pub struct ProtocolError(pub String);

/// What reading from a peer gives.
pub type Result<T> = std::result::Result<T, ProtocolError>;
