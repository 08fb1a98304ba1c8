//! A mounted directory with one file for each volume, so that `losetup` can create a block device
//! over it if the kernel has no ublk.
//!
//! ```text
//!   application or loop device ── kernel ── /dev/fuse ──► thread 1..n, each with its own descriptor
//!                                                         of the mount, device queue and buffer
//! ```
//!
//! Files are opened for direct I/O: the upper layer (the file system on the loop device, the
//! application) caches plaintext, and no second copy is cached here.
//!
//! **Invariant:** a write that is not aligned to the blocks of the device excludes every other
//! write during its read-modify-write, so no neighboring byte is lost.
//!
//! A thread processes one request at a time, and [`fuse_mount::REQUESTS_PER_THREAD`] threads are started for
//! each configured one, because most of the time they wait for the disk. Memory: 2 MiB for each,
//! and the buffer for a request.
//!
//! A mount and its loop device can outlive the server ([`Mount::start_held`], [`Mount::resume`],
//! [`Mount::adopt_loop`]): `survival.rs` says why a request may be carried out twice.
//!
//! Out of scope: growing or renaming files, and files other than the given ones.

mod files;
mod holes;
mod io;
pub mod loopdev;
mod mount;
mod survival;

pub use files::Export;
pub use fuse_mount::{Users, WhenBusy};
pub use holes::Holes;
pub use mount::{Config, Mount, clear_dead};
pub use survival::{HeldMount, HoldMount, Predecessor};
