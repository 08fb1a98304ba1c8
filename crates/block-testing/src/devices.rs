//! Devices for tests: in memory, slow, limited, failing, and with a volatile write cache.

mod delay;
mod error;
mod hold;
mod mem;
mod powercut;
mod rate;
mod resizable;

pub use delay::{Delay, DelayConfig};
pub use error::{ErrorDevice, ErrorHandle, Failure};
pub use mem::{Mem, MemConfig, ReadOnlyMem};
pub use powercut::{Crash, PowerCut, Replay, Tear, Volatile};
pub use rate::{Rate, RateConfig};
pub use resizable::Resizable;

use block::{Bufs, Completion};
use std::collections::VecDeque;

/// Copies the bytes of a request out of its buffers.
fn gather(bufs: &Bufs) -> Vec<u8> {
    let mut all = Vec::with_capacity(bufs.total_len());
    bufs.iter().for_each(|b| all.extend_from_slice(b));
    all
}

/// Appends all ready completions to `done` and returns their number.
fn drain(ready: &mut VecDeque<Completion>, done: &mut Vec<Completion>) -> usize {
    let count = ready.len();
    done.extend(ready.drain(..));
    count
}
