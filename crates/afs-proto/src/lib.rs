//! The AFS-3 file server protocol, both sides, without I/O: bytes in, values out, and back.
//!
//! ```text
//!   pieces of a call ──► Gather ──► fs::Request  vl::Request  cb::Request ──► service
//!   bytes of the reply ◄── write() ◄── fs::Reply  vl::Reply  cb::Reply ◄────┘
//!
//!   entries ──► dir::Layout ──► any range of the directory's pages ──► dir::Directory ──► entries
//! ```
//!
//! A call is one stream in each direction; the transport (Rx) is not part of this crate. Each
//! service is one table (`fs.rs`, `vl.rs`, `cb.rs`): a line lists opcode, arguments and
//! results in wire order, and macros generate the code that reads and writes them. A server reads a
//! `Request` and writes a `Reply`; a client writes a `Request` and reads a `Reply`.
//!
//! **Invariant:** no file data is buffered here: a request states the number of data bytes that
//! follow it, a reply is written as the part before the data and the part after it. Untrusted bytes
//! never panic, and every length in them is bounded: no message exceeds
//! [`gather::REQUEST_BYTES_MAX`] or [`gather::REPLY_BYTES_MAX`] on the wire, nor takes much more
//! than that in memory.
//!
//! Deliberately absent: sockets, Rx, time, permissions, the volume and protection services, the
//! statistics collections of `xstat`, cache manager debugging, AuriStorFS's own procedures.
//!
//! Sources are the interface definitions that OpenAFS publishes (`src/fsint/common.xg`,
//! `afsint.xg`, `afscbint.xg`, `src/vlserver/vldbint.xg`), XDR (RFC 4506), and observations of the
//! two clients (`docs/protocol/afs.md`).

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
pub mod vl;
pub mod xdr;

pub use abort::{Abort, uae};
pub use rights::Rights;
pub use types::{
    AfsCallBack, AfsCbFids, AfsCbs, AfsFid, AfsVolSync, CallBackType, Capabilities, FIDS_MAX, Fid,
    Message, Name, Opaque, Path, Uuid, capability,
};
pub use xdr::{List, Reader, Text, WireError, Xdr, from_bytes, prefix, to_bytes};

/// Result of decoding bytes from the wire.
pub type Result<T> = std::result::Result<T, WireError>;
