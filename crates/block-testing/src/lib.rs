//! Tests of the block interface: devices that delay, limit, fail and lose power, and the
//! conformance suite that every device passes.
//!
//! ```
//! use block::{BlockDevice, Blocking, ErrorKind};
//! use block_testing::{ErrorDevice, Failure, Mem};
//! use std::sync::Arc;
//!
//! let (device, errors) = ErrorDevice::new(Arc::new(Mem::new(1 << 20, 512)));
//! errors.set(Some(Failure::nth(2, ErrorKind::Media)));
//! let mut queue = Blocking::open(&device)?;
//! queue.write_at(0, &[7; 512])?;
//! assert_eq!(queue.flush().unwrap_err().kind(), ErrorKind::Media);
//! # Ok::<(), block::Error>(())
//! ```
//!
//! For tests and benchmarks only; no product crate depends on it except for its tests.

pub mod conformance;
mod devices;
mod random;

pub use devices::{
    Crash, Delay, DelayConfig, ErrorDevice, ErrorHandle, Failure, Mem, MemConfig, PowerCut, Rate,
    RateConfig, ReadOnlyMem, Replay, Resizable, Tear, Volatile,
};
pub use random::Random;
