//! The unified file cache: pages of file data, looked up by (vnode, offset). Reads and writes,
//! mappings, block exports and sends share one copy of each page.
//!
//! ```text
//!   Session (one thread)    CachedDevice    Mapping (faults)    background thread
//!          \____________________|_______________|___________________/
//!                                      |
//!   Vnode ── Index ── Leaf ── PageState {state, version, frame} page location and access state
//!                                      |
//!                Pool of frames, Policy;  Window                residency and eviction
//!                                      |
//!                     Pager, Queue<FileRequest>                 getpage, putpage, sync
//! ```
//!
//! **Invariant:** a page is in one place, either a frame of the pool or the window of a file that
//! programs have mapped, and every user sees that copy. A reader takes no lock: it copies, and
//! checks the page's word before and after. In a window, where programs may store at any time, it
//! registers as a reader for the duration of the copy instead. A dirty page stays in memory until
//! it has been written to the pager, and every open file receives a write-back error once.
//!
//! # Example
//!
//! A block device behind a cache of 16 MiB:
//!
//! ```
//! use block::{BlockDevice, Blocking};
//! use block_testing::Mem;
//! use cache::{Cache, CachedDevice, Config};
//! use std::sync::Arc;
//!
//! let cache = Cache::new(Config::new(16 << 20))?;
//! let disk: Arc<dyn BlockDevice> = Arc::new(Mem::new(64 << 20, 512));
//! let cached = CachedDevice::new(&cache, disk)?;
//! let mut queue = Blocking::open(&cached)?;
//! queue.write_at(0, &[1; 4096])?; // a dirty page; a background thread writes it back
//! queue.flush()?; // written back, and on stable storage
//! let mut page = [0; 4096];
//! queue.read_at(0, &mut page)?; // copied from memory
//! assert_eq!(page, [1; 4096]);
//! drop(queue);
//! cached.volume().close()?;
//! # Ok::<(), block::Error>(())
//! ```
//!
//! Deliberately absent: knowledge of the pager (a device, an encrypted volume or a file system) and
//! of the cache's users; a lock that is held over I/O; an allocation or a shared counter on a hit.

mod attributes;
mod background;
mod config;
mod copy;
mod device;
mod device_pager;
mod dirty_leaves;
mod dirty_vnodes;
mod errors;
mod failed_loads;
mod faults;
mod flushes;
mod frames;
mod index;
mod latch;
mod leaf;
mod loan;
mod machine;
mod mapped;
mod memory;
mod open;
#[doc(hidden)]
pub mod page_state;
mod pager;
mod pages;
pub mod policy;
mod predecessor;
mod pressure;
mod ranges;
mod reclaim;
mod runtime_settings;
pub mod send;
mod session;
mod stats;
pub mod stream;
mod tree;
pub mod tunables;
mod volume;
mod wait;
pub mod window;
mod write_back;

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
pub use pager::{FileId, FileRequest, Pager, PagerInfo, PagerQueue, Tree};
pub use predecessor::{LostPage, Predecessor};
pub use pressure::PressureWatch;
pub use session::{CacheMode, Session};
pub use stats::{CacheStats, Counts, DirtyData, FileActivity, FileStats};
pub use tree::Vnode;
pub use volume::{Cache, Volume};
pub use window::{Access, Lease, Mapping};
