//! The FUSE protocol of the Linux kernel, server side, without I/O: bytes in, requests out; values
//! in, replies and notifications out.
//!
//! ```text
//!   message of /dev/fuse ──► parse() ──► Request { header, operation } ──► file system
//!   writev(/dev/fuse) ◄── reply::entry() reply::attr() … ◄───────────────┘
//!   writev(/dev/fuse) ◄── notify::inval_inode() …
//!   the first message: Operation::Init ──► negotiate() ──► Session, InitReply ──► reply::init()
//! ```
//!
//! Versions 7.31 and newer. [`abi`] contains the constants and structures under the names of
//! `<linux/fuse.h>`. A reply is an array with the header first; data that follows it (of a read, a
//! link, an attribute) is not copied: [`reply::data_header`] precedes it in a `writev`.
//!
//! **Invariant:** no file data is buffered here. A message of any content is parsed or refused with
//! [`Malformed`]; no length in it is trusted, nothing is allocated for it.
//!
//! # Example
//!
//! The kernel starts a session and looks up a name that does not exist:
//!
//! ```
//! use fuse_proto::{Operation, Session, Wanted, abi, negotiate, parse, reply};
//! use std::time::Duration;
//!
//! # fn message(opcode: u32, unique: u64, node: u64, body: &[u8]) -> Vec<u8> {
//! #     let mut bytes = Vec::new();
//! #     bytes.extend((40 + body.len() as u32).to_ne_bytes());
//! #     bytes.extend(opcode.to_ne_bytes());
//! #     bytes.extend(unique.to_ne_bytes());
//! #     bytes.extend(node.to_ne_bytes());
//! #     bytes.extend([0; 16]);
//! #     bytes.extend(body);
//! #     bytes
//! # }
//! # let mut body = Vec::new();
//! # for word in [7, 36, 131_072, abi::FUSE_MAX_PAGES as u32] { body.extend(u32::to_ne_bytes(word)); }
//! # let first = message(abi::FUSE_INIT, 1, 0, &body);
//! # let second = message(abi::FUSE_LOOKUP, 2, abi::FUSE_ROOT_ID, b"hello\0");
//! // `first` and `second` are messages that a real driver has read from /dev/fuse.
//! let request = parse(&first, &Session::new())?;
//! let Operation::Init(init) = request.operation else { panic!() };
//! let wanted = Wanted { flags: abi::FUSE_MAX_PAGES, max_write: 1 << 20, ..Wanted::default() };
//! let (session, answer) = negotiate(&init, &wanted)?;
//! assert_eq!((session.minor(), session.max_write()), (36, 1 << 20));
//! let _written = reply::init(request.header.unique, &answer);
//!
//! let request = parse(&second, &session)?;
//! assert_eq!(request.header.node, abi::FUSE_ROOT_ID);
//! assert!(matches!(request.operation, Operation::Lookup { name: b"hello" }));
//! let written = reply::negative_entry(request.header.unique, Duration::from_secs(60));
//! assert_eq!(written.len(), 16 + 128);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Deliberately absent: descriptors, threads, mounting, handles, permissions, DAX mappings
//! (`FUSE_SETUPMAPPING`), CUSE, 32-bit servers of 64-bit kernels.

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

pub mod abi;
mod extensions;
pub mod notify;
mod operation;
mod parse;
mod read;
pub mod reply;
mod session;
mod values;

pub use extensions::{Extensions, SecurityContexts};
pub use operation::{
    CopyFileRange, Create, Forgets, Header, Ioctl, Lock, Operation, Read, Request, SetAttr, Write,
};
pub use parse::{parse, parse_ring};
pub use read::{Malformed, NAME_BYTES_MAX};
pub use session::{InitReply, InitRequest, Refusal, Session, Wanted, negotiate};
pub use values::{Attr, Entry, IoctlReply, Opened, SetTime, StatFs, Statx, Time};
