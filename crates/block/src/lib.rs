//! The block device interface of EVFS. Every layer from a path to a disk up to the cache implements
//! [`BlockDevice`]; a thread submits requests to it through a [`Queue`] of its own.
//!
//! ```text
//!   submit(request) ──► staged ──kick──► in flight ──reap──► completion (returns the request)
//! ```
//!
//! **Invariant:** a buffer has exactly one owner at a time. It moves into the queue with the
//! request and returns with the completion, so a request in flight cannot touch freed memory, and
//! no thread can read a buffer that a disk is still writing.
//!
//! # Example
//!
//! A device in memory, and a queue whose caller waits for each operation:
//!
//! ```
//! use block::{BlockDevice, Blocking};
//! use block_testing::Mem;
//!
//! let device = Mem::new(1 << 20, 512); // 1 MiB, blocks of 512 bytes
//! let mut queue = Blocking::open(&device)?;
//! queue.write_at(4096, &[7; 512])?;
//! queue.flush()?; // on stable storage from here on
//! let mut block = [0; 512];
//! queue.read_at(4096, &mut block)?;
//! assert_eq!(block, [7; 512]);
//! assert_eq!(device.info().size, 1 << 20);
//! # Ok::<(), block::Error>(())
//! ```
//!
//! Deliberately absent: callbacks, async runtimes, locks on the data path, and any knowledge of the
//! layers above and below.

mod announce;
mod arena;
mod backlog;
mod blocking;
mod buf;
mod device;
mod error;
mod growing;
mod op;
mod pool;
mod request;
mod scratch;
mod size;
mod stats;
mod sticky_flush;
mod sums;
mod wait;

pub use announce::{about_to_sleep, before_sleep};
pub use arena::BUF_ALIGN;
pub use backlog::Backlog;
pub use blocking::Blocking;
pub use buf::{Buf, Bufs};
pub use device::{Access, BlockDevice, DERIVED_KEY_BYTES, DeviceInfo, Queue, Wait};
pub use error::{Error, ErrorKind, Result, without_number};
pub use growing::GrowingInfo;
pub use op::{Op, OpKind};
pub use pool::BufPool;
pub use request::{Completion, Request};
pub use scratch::Scratch;
pub use size::{parse_size, short_size, size_text};
pub use stats::{KindHistogram, KindStats, Snapshot, Stats, StatsHandle};
pub use sticky_flush::StickyFlush;
pub use sums::{SUM_BLOCK_BYTES, SUMS_AT_ONCE, Sum, SumBlock, SumGroup, Summer, sum_block};
pub use wait::{WaitPair, Waker};
