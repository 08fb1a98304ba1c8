//! The unified file cache: pages of file data found by (vnode, offset), one set of them for reads and
//! writes, mappings, block exports and sends.
//!
//! ```text
//!   Session (one thread)    CachedDevice    Mapping (faults)    keeper (background)
//!          \____________________|_______________|___________________/
//!                                      |
//!   Vnode ── Index ── Leaf ── Word {state, version, frame}      where a page is, who may touch it
//!                                      |
//!                Pool of frames, Policy;  Window                what lies in memory, what leaves
//!                                      |
//!                              Pager, PagerQueue                getpage, putpage, sync
//! ```
//!
//! **Invariant:** a page is in one place, a frame of the pool or the window of a file that programs
//! have mapped, and everybody sees that one. A reader takes no lock: it copies, and looks at the page's
//! word before and after, or counts itself in where programs store as they like. What is dirty stays until it is below, and
//! an error on the way is reported to everybody who has the file open, once.
//!
//! Absent on purpose: knowledge of what is below (a device, an encrypted volume, a file system are
//! pagers) and of who is above; a lock that is held over I/O; an allocation or a shared counter on a
//! hit.

mod attributes;
mod config;
mod copy;
mod core;
mod device;
mod device_pager;
mod errors;
mod flushes;
mod frames;
mod index;
mod keeper;
mod latch;
mod leaf;
mod live;
mod loan;
mod machine;
mod mapped;
mod memory;
mod open;
mod pager;
pub mod policy;
mod pressure;
mod ranges;
pub mod send;
mod session;
mod stats;
pub mod stream;
pub mod tunables;
mod vnode;
mod volume;
mod wait;
pub mod window;
#[doc(hidden)]
pub mod word;

pub use attributes::{ATTRIBUTES, Attributes, FlushBehind};
pub use config::{Config, MakePolicy};
pub use device::CachedDevice;
pub use device_pager::{DEVICE_FILE, DevicePager};
pub use frames::PAGE_BYTES;
pub use latch::PageRef;
pub use loan::Loan;
pub use machine::memory_bytes;
pub use memory::Backing;
pub use open::OpenFile;
pub use pager::{FileId, Pager, PagerInfo, PagerQueue};
pub use pressure::PressureWatch;
pub use session::Session;
pub use stats::{CacheStats, Counts, FileStats};
pub use vnode::Vnode;
pub use volume::{Cache, Volume};
pub use window::{Access, Lease, Mapping};
