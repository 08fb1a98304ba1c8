//! A LUN over multiple paths: path identification, path selection, and failover.
//!
//! ```text
//!            Lun ── LunQueue (a thread) ── Link ── queue of path-nbd, path-iscsi, path-file
//!             │         ▲ mailbox
//!          Monitor ─────┘  connects, proves, fences; never on an I/O thread
//! ```
//!
//! **Invariant:** no acknowledged write is undone: a write that a path left unanswered blocks every
//! later write to the same blocks until it is answered, fenced, or its quiesce time has passed; and
//! no path carries I/O before it is proven to lead to this LUN.
//!
//! Deliberately absent: encryption, caching, protocols, and the names of the registry.

mod access;
pub mod advise;
pub mod attributes;
mod contact;
pub mod identity;
mod link;
mod lun;
mod monitor;
pub mod policy;
mod queue;
mod state;
mod status;
pub mod trace;
mod unanswered;
pub mod virtual_time;

pub use attributes::{ATTRIBUTES, Attributes};
pub use contact::identify;
pub use identity::Proof;
pub use lun::{Config, LegacyLun, Lun, PathSpec};
pub use state::{Event, PATHS_MAX, PathState, WaitingIo};
pub use status::{LunStatus, PathStatus};
