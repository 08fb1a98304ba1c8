//! The tree of shared state: a cache has volumes, a volume has vnodes, a vnode has open files.
//!
//! ```text
//!   CacheShared ◄── VolumeShared ◄── Vnode ◄── OpenState
//!       │ VnodeTable ··············► ▲  │ ·······► ▲
//!       │ BackgroundQueue ┘ ·········│·············│      ──► owns    ···► weak
//! ```
//!
//! One engine: a node owns its parent, for the memory, the settings and the pager that it uses, and
//! refers weakly to its children. The eviction of a frame releases a leaf of the vnode that the
//! frame belonged to, whichever that is; the limit on read-ahead is compared with the counters of
//! all open files; a vnode that becomes dirty, and an open file that reads a stream, queue a job
//! for the background thread of their volume. Breaking the circle by events would put a virtual
//! call where a page becomes dirty.
//!
//! The tree is data: nothing in it takes a latch, submits I/O or waits.

mod background_queue;
mod cache_shared;
mod open_state;
mod vnode;
mod vnode_table;
mod volume_shared;

pub(crate) use background_queue::{BackgroundQueue, LoadRequest};
pub(crate) use cache_shared::CacheShared;
pub(crate) use open_state::OpenState;
pub use vnode::Vnode;
pub(crate) use vnode::{Death, FileClass};
pub(crate) use volume_shared::VolumeShared;
