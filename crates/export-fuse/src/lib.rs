//! A fileset, or a file system of another program, as a mounted file system ([`Mount`]).
//!
//! ```text
//!   application ── kernel ── /dev/fuse ──► thread 1..n, each with its lane ──► cache ──► device
//! ```
//!
//! The kernel checks permissions (`default_permissions`, with access lists), caches names,
//! attributes and pages, and fetches them again when its own requests have changed them.
//! **Invariant:** changes by another client of the files, such as another mount or a server, are
//! invalidated in the kernel (see `tree/invalidation.rs`); and no request waits while it holds a lock that
//! another one needs, except that of its file.
//!
//! I/O of files opened with O_DIRECT bypasses the kernel's page cache and the EVFS cache; both
//! first write back dirty data in the range, and invalidate what the I/O changes.
//!
//! A write is in the EVFS cache when write(2) returns, so that other front ends see it, unless the
//! mount is configured to be the only client. An append that crosses pages arrives in several
//! requests; other clients append before or after it.
//!
//! Out of scope: locks, which the kernel manages per mount; and FUSE_PASSTHROUGH, by which the
//! kernel would read the pages of the EVFS cache itself. A mapping made that way outlives the open
//! file, so the cache could not tell when its pages may be evicted; a program that opens the file
//! for writing could not map it; and reading pages from the kernel's own cache costs the same.

mod config;
mod foreign;
mod mount;
mod survival;
mod tree;

pub use config::{DEFAULT_SYNC_TIMEOUT, MountConfig};
pub use fuse_mount::{Users, WhenBusy};
pub use mount::Mount;
pub use survival::{HoldMount, Predecessor, SURVIVING_THREADS_MAX, Survival};
