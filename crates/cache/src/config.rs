//! What a cache is made with.

use crate::policy::{Policy, Ufc};
use block::{Error, ErrorKind, Result};
use std::time::Duration;

/// Makes a policy for frames numbered below the first, of which the second number may be in use.
pub type MakePolicy = Box<dyn FnOnce(u32, usize) -> Box<dyn Policy> + Send>;

/// Settings of a cache. Sizes are bytes.
pub struct Config {
    /// Most bytes in pages; `filecache_max`.
    pub max_bytes: u64,
    /// Bytes in pages that memory pressure leaves alone; `filecache_min`.
    pub min_bytes: u64,
    /// Addresses to reserve, beyond which `max_bytes` cannot be raised later. Takes no memory.
    pub reserve_bytes: u64,
    /// Dirty pages are written out in the background above this percentage of `max_bytes`.
    pub dirty_background_percent: u8,
    /// Writers are held back above this percentage of `max_bytes`, more the higher it gets.
    pub dirty_throttle_percent: u8,
    /// How old a dirty page may get where a file says nothing else.
    pub sync_interval: Duration,
    /// How often the background looks for what is due.
    pub tick: Duration,
    /// After a failed write-behind of a file the next attempt comes this much later, and twice as
    /// late each time, up to a hundred times.
    pub retry: Duration,
    /// How long a request waits for a page to go when none can, before it ends in
    /// [`ErrorKind::Busy`].
    pub patience: Duration,
    /// Order in which pages leave.
    pub policy: MakePolicy,
}

/// Age at which a dirty page is written out, as the `syncer` of HP-UX had it.
const SYNC_INTERVAL: Duration = Duration::from_secs(30);

impl Config {
    /// A cache of `max_bytes` that cannot grow beyond that.
    pub fn new(max_bytes: u64) -> Config {
        Config {
            max_bytes,
            min_bytes: max_bytes / 10,
            reserve_bytes: max_bytes,
            dirty_background_percent: 10,
            dirty_throttle_percent: 20,
            sync_interval: SYNC_INTERVAL,
            tick: Duration::from_millis(500),
            retry: Duration::from_millis(100),
            patience: Duration::from_secs(30),
            policy: Box::new(|limit, frames| Box::new(Ufc::new(limit, frames))),
        }
    }

    /// Refuses settings that make no sense.
    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |detail: &str| Err(Error::new(ErrorKind::Invalid, "cache", detail));
        if self.max_bytes < 1 << 20 {
            return refuse("a cache has at least 1 MiB");
        }
        if self.min_bytes > self.max_bytes || self.max_bytes > self.reserve_bytes {
            return refuse("not in order: min_bytes, max_bytes, reserve_bytes");
        }
        if self.reserve_bytes > u64::from(crate::word::FRAMES_MAX) << 12 {
            return refuse("a cache has at most 4 TiB");
        }
        if self.dirty_background_percent > self.dirty_throttle_percent
            || self.dirty_throttle_percent > 80
        {
            return refuse("not in order: dirty_background_percent, dirty_throttle_percent, 80");
        }
        Ok(())
    }
}
