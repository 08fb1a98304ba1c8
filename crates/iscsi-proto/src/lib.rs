//! The initiator side of the iSCSI protocol (RFC 7143) and the SCSI commands it carries. The crate
//! does no I/O: it consumes bytes and produces bytes and events.
//!
//! ```text
//!   Login::take_output() ──► socket ──► Login::handle_input(bytes) ──► outcome(): session | redirect
//!   Session::command(cdb) ──► next_pdu() ──► socket ──► handle_input(bytes) ──► Event
//! ```
//!
//! **Invariant:** command data is never buffered here. The core names the task, the offset and the
//! length; the driver moves the bytes between socket and buffer. Input from the network never
//! causes a panic, and every length in it is bounded.
//!
//! Deliberately absent: sockets, time, random numbers, multiple connections per session, error
//! recovery above level 0 (a faulty connection is closed), bidirectional commands.
//!
//! Section numbers without a document refer to RFC 7143.

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

mod bytes;
mod chap;
mod discovery;
mod framer;
mod login;
mod params;
mod pdu;
pub mod scsi;
mod serial;
mod session;
mod task;
mod text;

pub use discovery::{Target, parse_targets};
pub use login::{Credentials, Kind, Login, LoginConfig, LoginResult, Mutual};
pub use params::{DigestPolicy, OfferedParams, Params};
pub use pdu::{BHS_BYTES, Bhs};
pub use session::{Direct, Event, OutPdu, Payload, Session, Taken};
pub use task::{Function, TaskId, Transfer, slot_of};

/// Reason why a connection cannot continue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The target violates the protocol.
    #[error("iSCSI protocol error: {0}")]
    Broken(String),
    /// A digest does not match its data (section 7.8): bytes were corrupted in transit.
    #[error("CRC32C digest mismatch in a {0}: the data was corrupted in transit")]
    Digest(&'static str),
    /// The target rejected the login (section 11.13.5).
    #[error("the target refuses the login: {text} (class {class}, detail {detail})")]
    Refused {
        /// Status class.
        class: u8,
        /// Status detail.
        detail: u8,
        /// Meaning of class and detail.
        text: &'static str,
    },
    /// The target did not prove knowledge of the mutual CHAP secret, or chose a name, digest or
    /// authentication method that was not offered.
    #[error("the target is not trusted: {0}")]
    Untrusted(String),
}

/// Result of processing input from a target.
pub type Result<T> = std::result::Result<T, ProtocolError>;

pub(crate) fn broken<T>(why: impl Into<String>) -> Result<T> {
    Err(ProtocolError::Broken(why.into()))
}
