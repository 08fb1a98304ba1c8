//! One LUN over many paths: who answers on each, which takes the next I/O, and what becomes of it
//! when a path is lost.
//!
//! ```text
//!            Lun ── LunQueue (a thread) ── Link ── queue of path-nbd, path-iscsi, path-file
//!             │         ▲ mailbox
//!          Monitor ─────┘  connects, proves, fences; never on a thread that carries I/O
//! ```
//!
//! **Invariant:** nothing that was acknowledged is undone: a write that a path left unanswered holds
//! up every later write over the same blocks until it is answered, fenced, or waited out; and no path
//! carries I/O before it is proven to lead to this LUN.
//!
//! Absent on purpose: encryption, caching, protocols, and the names of the registry.

mod access;
pub mod advise;
pub mod attributes;
mod contact;
mod ghosts;
pub mod identity;
mod link;
mod lun;
mod monitor;
pub mod policy;
mod queue;
mod state;
mod status;
pub mod trace;
pub mod virtual_time;

pub use attributes::{ATTRIBUTES, Attributes};
pub use contact::identify;
pub use identity::Proof;
pub use lun::{Config, LegacyLun, Lun, PathSpec};
pub use state::{Event, PATHS_MAX, PathState, WaitingIo};
pub use status::{LunStatus, PathStatus};
