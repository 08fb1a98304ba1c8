//! Memory that outlives the server: what the disk does not have yet, and what the kernel believes to
//! be open, for the server that takes over after a crash.
//!
//! ```text
//!   memory     one sealed memfd of 64-bit words, shared by a server and its successor
//!   log        changes of metadata that are not durable yet, in order
//!   pages      the frames of the cache that hold data that is not on the disk
//!   open_files files that the kernel has open, by handle
//!   requests   requests that were carried out and perhaps not answered
//!   addresses  addresses of peers as words
//!   area       parts of a memory with one owner each, for bytes that the kernel writes
//!   sealed     words that state a value and prove it
//!   sockets    what the kernel has received and sent
//!   check      the checksum of words
//! ```
//!
//! A process that dies leaves every store it made. So a table is whole after each single store, and a
//! successor sees either all of a change or none. **Invariant:** a reader treats the words as hostile:
//! any content yields a table or an error, never a panic, and never more than the words hold.

pub mod addresses;
mod area;
mod check;
pub mod log;
pub mod memory;
mod open_files;
pub mod pages;
pub mod requests;
pub mod sealed;
pub mod sockets;

pub use area::Area;
pub use log::Log;
pub use memory::Memory;
pub use open_files::{OPEN_FILES_MAX, OpenFile, OpenFiles};
pub use pages::Pages;
pub use requests::Requests;

/// The memory of a predecessor is damaged, so that none of it can be trusted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} in the memory of the previous server is damaged")]
pub struct Damaged(
    /// The table.
    pub &'static str,
);
