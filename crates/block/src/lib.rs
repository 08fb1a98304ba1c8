//! The waist of EVFS: every layer from a path to a disk up to the cache is a [`BlockDevice`], and
//! work on it is done through a [`Queue`] that one thread opens.
//!
//! ```text
//!   submit(request) ──► staged ──kick──► in flight ──reap──► completion (the request comes back)
//! ```
//!
//! **Invariant:** a buffer belongs to exactly one side at a time. It moves into the queue with the
//! request and comes back with the completion, so nothing in flight can touch freed memory, and
//! nobody can look at a buffer that a disk is still writing.
//!
//! Absent on purpose: callbacks, async runtimes, locks on the data path, and any knowledge of what
//! lies below or above.

mod blocking;
mod buf;
pub mod conformance;
mod device;
mod devices;
mod error;
pub mod layer;
mod lunpath;
mod pool;
mod random;
mod request;
pub mod topology;

pub use blocking::Blocking;
pub use buf::{BUF_ALIGN, Buf, Bufs};
pub use device::{BlockDevice, DeviceInfo, Queue, Wait};
pub use devices::{
    Crash, Delay, DelayConfig, ErrorDevice, ErrorHandle, Failure, KindStats, Mem, MemConfig,
    PowerCut, Rate, RateConfig, ReadOnlyMem, Replay, Snapshot, Stats, StatsHandle, StickyFlush,
    Tear, Volatile,
};
pub use error::{Error, ErrorKind, Result};
pub use lunpath::{Access, AccessSign, Connection, Identity, Lunpath, Transport};
pub use pool::BufPool;
pub use random::Random;
pub use request::{Completion, Op, OpKind, Request};
