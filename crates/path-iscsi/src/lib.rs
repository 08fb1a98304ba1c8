//! One path to a LUN: an iSCSI initiator over TCP.
//!
//! ```text
//!   IscsiPath ──connect──► Link (login, who answers, reservation) ──open──► queue, one session each
//!   queue: submit ──► waiting ──► command PDUs, one writev ──► recv ──► buffers ──► reap
//! ```
//!
//! **Invariant:** what is sent is framed to the end: a request that is taken back leaves a copy of what
//! its command still needs. What comes for it later is thrown away. When a connection is given up its
//! socket is reset, so that nothing of ours stays on its way in this machine.
//!
//! Absent on purpose: connecting again, moving requests to another path, timeouts of requests (all
//! three are the multi-path layer's), more than one connection in a session.

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
