//! What a cache is made with.

use crate::policy::{Policy, Ufc};
use crate::tunables::{self, Tunables};
use crate::window;
use block::topology::Topology;
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
    /// Memory of the machine, which percentages are of.
    pub memory_bytes: u64,
    /// The settings that sizes and percentages came from, so that they can be shown as they were
    /// given; `None`: from nothing but this.
    pub tunables: Option<Tunables>,
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
    /// How faults in mappings are served, for each volume that has some.
    pub windows: window::Config,
    /// Order in which pages leave.
    pub policy: MakePolicy,
    /// Nodes that memory lies on. Without any, or with one, all memory is the same.
    pub topology: Topology,
}

/// Age at which a dirty page is written out, as the `syncer` of HP-UX had it.
const SYNC_INTERVAL: Duration = Duration::from_secs(30);

impl Config {
    /// A cache of `max_bytes` that cannot grow beyond that.
    pub fn new(max_bytes: u64) -> Config {
        Config {
            max_bytes,
            min_bytes: max_bytes / 10,
            memory_bytes: crate::machine::memory_bytes(),
            tunables: None,
            reserve_bytes: max_bytes,
            dirty_background_percent: 10,
            dirty_throttle_percent: 20,
            sync_interval: SYNC_INTERVAL,
            tick: Duration::from_millis(500),
            retry: Duration::from_millis(100),
            patience: Duration::from_secs(30),
            topology: Topology::default(),
            windows: window::Config::default(),
            policy: Box::new(|limit, frames| Box::new(Ufc::new(limit, frames))),
        }
    }

    /// A cache as `tunables` say, on a machine with `memory` bytes, of which it may be given as many
    /// later as the settings allow.
    ///
    /// # Errors
    /// As [`Tunables::resolve`].
    pub fn of(tunables: &Tunables, memory: u64) -> std::result::Result<Config, tunables::Error> {
        let settings = tunables.resolve(memory)?;
        let most = tunables::largest(tunables::Name::FilecacheMax, memory);
        Ok(Config {
            min_bytes: settings.filecache_min,
            memory_bytes: memory,
            tunables: Some(tunables.clone()),
            reserve_bytes: most,
            ..Config::new(settings.filecache_max)
        })
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
