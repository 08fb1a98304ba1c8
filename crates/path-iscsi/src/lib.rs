//! A path to a LUN: an iSCSI initiator over TCP.
//!
//! ```text
//!   IscsiPath ──connect──► Link (login, identity, reservation) ──open──► queue, one session each
//!   queue: submit ──► waiting ──► command PDUs, one writev ──► recv ──► buffers ──► reap
//! ```
//!
//! **Invariant:** every PDU is sent completely: a request that is taken back leaves a copy of the
//! data that its command still needs. A late response to it is discarded. The socket of a closed
//! connection is reset, so that no data of it stays queued on this machine.
//!
//! Deliberately absent: reconnecting, moving requests to another path, request timeouts (the
//! multipath layer does all three), and multiple connections per session.

mod address;
mod connect;
mod device;
mod errors;
mod job;
mod link;
mod nexus;
mod options;
mod path;
mod queue;
mod reserve;
mod unit;
mod wire;

pub use connect::{Target, discover, luns};
pub use device::IscsiDevice;
pub use iscsi_proto::DigestPolicy;
pub use options::Options;
pub use path::IscsiPath;
