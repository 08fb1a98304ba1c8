//! The AFS-3 protocol of a file server, both sides, without any input or output: bytes in, values out,
//! and back.
//!
//! ```text
//!   pieces of a call ──► Gather ──► fs::Request  vl::Request  cb::Request ──► who serves it
//!   bytes of the reply ◄── write() ◄── fs::Reply  vl::Reply  cb::Reply ◄────┘
//!
//!   entries ──► dir::Layout ──► any range of the directory's pages ──► dir::Directory ──► entries
//! ```
//!
//! A call is one stream each way; what carries it (Rx) is not here. Each service is one table
//! (`fs/mod.rs`, `vl/mod.rs`, `cb.rs`): a line has the opcode, the arguments and the results in their
//! order on the wire, and reading and writing are made from it. A server reads a `Request` and writes
//! a `Reply`; a client writes a `Request` and reads a `Reply`.
//!
//! **Invariant:** file data is never held here: a request says how many bytes follow it, a reply is
//! written as what stands before the data and what stands behind. Bytes from outside never panic,
//! and every length in them has a limit: no message takes more of the wire than
//! [`gather::REQUEST_BYTES_MAX`] or [`gather::REPLY_BYTES_MAX`], nor much more than that of memory.
//!
//! Absent on purpose: sockets, Rx, time, permissions, the volume and protection services, the
//! statistics collections of `xstat`, cache manager debugging, AuriStorFS's own procedures.
//!
//! Sources are the interface definitions that OpenAFS publishes (`src/fsint/common.xg`, `afsint.xg`,
//! `afscbint.xg`, `src/vlserver/vldbint.xg`), XDR (RFC 4506), and what the two clients were seen to
//! do (`docs/protocol/afs.md`).

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

#[macro_use]
mod table;

mod abort;
pub mod acl;
pub mod cb;
pub mod dir;
pub mod fs;
pub mod gather;
mod rights;
mod types;
pub mod uae;
pub mod vl;
pub mod xdr;

pub use abort::Abort;
pub use rights::Rights;
pub use types::{
    AfsCallBack, AfsCbFids, AfsCbs, AfsFid, AfsVolSync, CallBackType, Capabilities, FIDS_MAX,
    Message, Name, Opaque, Path, Uuid, capability,
};
pub use xdr::{List, Reader, Text, WireError, Xdr, from_bytes, prefix, to_bytes};

/// What reading from the wire gives.
pub type Result<T> = std::result::Result<T, WireError>;
