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
mod access_query;
pub mod attributes;
mod clock;
mod contact;
mod flaps;
pub mod identity;
mod latency;
mod link;
mod log;
mod lun;
mod mailbox;
mod monitor;
mod path;
pub mod policy;
mod proving;
mod queue;
mod refusal;
mod shared;
mod status;
mod sync;
pub mod trace;
mod unanswered;

pub use attributes::{ATTRIBUTES, Attributes};
pub use contact::identify;
pub use identity::Proof;
pub use log::Event;
pub use lun::{Config, LastPath, Lun, LunView};
pub use mailbox::WaitingIo;
pub use path::{PATHS_MAX, PathState};
pub use shared::PathSpec;
pub use status::{LunStatus, PathStatus};
