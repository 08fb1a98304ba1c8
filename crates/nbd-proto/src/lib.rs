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
//! # Example
//!
//! A client and a server negotiate; a real driver moves the bytes through a socket:
//!
//! ```
//! use nbd_proto::client::{ClientHandshake, ClientStep, ClientOptions};
//! use nbd_proto::{ExportInfo, Handshake, ServerStep, TlsPolicy};
//!
//! let export = ExportInfo {
//!     name: "disk".into(),
//!     description: String::new(),
//!     size: 1 << 30,
//!     flags: nbd_proto::constants::FLAG_HAS_FLAGS,
//!     block_min: 512,
//!     block_preferred: 4096,
//!     block_max: 32 << 20,
//! };
//! let mut server = Handshake::new([export].into(), TlsPolicy::Never);
//! let wish = ClientOptions { export: "disk".into(), ..ClientOptions::default() };
//! let mut client = ClientHandshake::new(wish);
//! let (mut to_client, mut to_server) = (Vec::new(), Vec::new());
//! while client.outcome().is_none() {
//!     to_client.extend(server.take_output());
//!     let taken = client.handle_input(&to_client)?;
//!     to_client.drain(..taken);
//!     to_server.extend(client.take_output());
//!     let taken = server.handle_input(&to_server)?;
//!     to_server.drain(..taken);
//! }
//! let Some(ClientStep::Transmission(export)) = client.outcome() else { panic!() };
//! assert_eq!(export.size, 1 << 30);
//! assert!(matches!(server.outcome(), Some(ServerStep::Transmission { export: 0, .. })));
//! # Ok::<(), nbd_proto::ProtocolError>(())
//! ```
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

pub use handshake::{ExportInfo, FenceResult, Handshake, ServerStep, TlsPolicy};
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
