//! The iSCSI protocol (RFC 7143), initiator side, and the SCSI commands it carries, without any input
//! or output: bytes in, bytes and events out.
//!
//! ```text
//!   Login::take_output() ──► socket ──► Login::handle_input(bytes) ──► outcome(): session | redirect
//!   Session::command(cdb) ──► next_pdu() ──► socket ──► handle_input(bytes) ──► Event
//! ```
//!
//! **Invariant:** the data of commands is never held here: the core names the task, the offset and
//! the length, the driver moves the bytes between socket and buffer. Bytes from outside never panic,
//! and every length in them has a limit.
//!
//! Absent on purpose: sockets, time, random numbers, more than one connection in a session, error
//! recovery above level 0 (a connection with a fault is given up), bidirectional commands.
//!
//! Section numbers without a name are those of RFC 7143.

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
#[cfg(test)]
mod login_tests;
mod params;
mod pdu;
pub mod scsi;
mod serial;
mod session;
#[cfg(test)]
mod session_tests;
mod task;
mod text;

pub use discovery::{Target, parse_targets};
pub use login::{Credentials, Kind, Login, LoginConfig, Mutual, Outcome};
pub use params::{DigestPolicy, Params, Wanted};
pub use pdu::{BHS_BYTES, Bhs};
pub use session::{Direct, Event, OutPdu, Payload, Session, Taken};
pub use task::{Function, TaskId, Transfer, slot_of};

/// Why a connection cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The target does not speak the protocol as it should.
    #[error("the target does not speak iSCSI as it should: {0}")]
    Broken(String),
    /// A digest does not fit its data (section 7.8): bytes were changed on their way.
    #[error("the CRC32C digest of a {0} is wrong: bytes were changed on their way")]
    Digest(&'static str),
    /// The target refuses the login (section 11.13.5).
    #[error("the target refuses the login: {text} (class {class}, detail {detail})")]
    Refused {
        /// Status class.
        class: u8,
        /// Status detail.
        detail: u8,
        /// What the two stand for.
        text: &'static str,
    },
    /// The target could not prove that it knows the secret of mutual CHAP, or gives a name, digest
    /// or method that was not agreed to.
    #[error("the target is not accepted: {0}")]
    Untrusted(String),
}

/// What reading from a target gives.
pub type Result<T> = std::result::Result<T, ProtocolError>;

pub(crate) fn broken<T>(why: impl Into<String>) -> Result<T> {
    Err(ProtocolError::Broken(why.into()))
}
