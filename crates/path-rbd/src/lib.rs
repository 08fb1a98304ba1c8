//! A path to a LUN: an RBD image of a Ceph cluster, by `librbd`.
//!
//! ```text
//!   RbdPath ──connect──► Session (client of the cluster, image, lock) ──open──► queue, many each
//!   queue: submit ──► rbd_aio_… ──► eventfd ──► rbd_poll_io_events ──► the queue of the request
//! ```
//!
//! All queues of a path share one session: an image has one exclusive lock, which the clients of a
//! cluster hand to each other. `librbd` reports completions through one descriptor; the thread that
//! sees it readable takes all of them and passes on those of other queues.
//!
//! The libraries are loaded when the first path is used ([`require_library`]), so that the program
//! also runs on machines without Ceph.
//!
//! **Invariant:** the buffers of a request belong to its queue or its session until `librbd` has
//! completed it. A queue that is dropped earlier leaves them to the session.
//!
//! Deliberately absent: the cache of `librbd` (pages are cached above), retries and timeouts (those
//! of Ceph and of the multipath layer suffice), and encryption by `librbd`.

mod address;
mod api;
mod errors;
mod handle;
mod identity;
mod job;
mod options;
mod path;
mod queue;
mod session;

pub use address::RbdAddress;
pub use api::{PACKAGE, require_library};
pub use options::{Lock, Options};
pub use path::{RbdDevice, RbdPath};
