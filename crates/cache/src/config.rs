//! Configuration of a cache.

use crate::memory::CHUNK_BYTES;
use crate::policy::{Policy, Ufc};
use crate::tunables::{self, Name, Tunables, Value};
use crate::window;
use block::{Error, ErrorKind, Result};
use numa::Topology;
use std::time::Duration;
use survival::Pages;

/// Binary logarithm of the size of a page in bytes.
const PAGE_SHIFT: u32 = 12;

/// Creates a policy; takes the exclusive upper bound of frame numbers, and the number of frames
/// that may be in use.
pub type MakePolicy = Box<dyn FnOnce(u32, usize) -> Box<dyn Policy> + Send>;

/// Settings of a cache. Sizes are bytes.
pub struct Config {
    /// Most bytes in pages; `filecache_max`.
    pub max_bytes: u64,
    /// Bytes in pages that are not evicted under memory pressure; `filecache_min`.
    pub min_bytes: u64,
    /// Memory of the machine in bytes, which percentages refer to.
    pub memory_bytes: u64,
    /// The settings that sizes and percentages were derived from, to be shown as specified; `None`
    /// if there are none.
    pub tunables: Option<Tunables>,
    /// Bytes of address space to reserve: the upper limit for `max_bytes`. Takes no memory.
    pub reserve_bytes: u64,
    /// Percentage of `max_bytes` above which dirty pages are written back in the background.
    pub dirty_background_percent: u8,
    /// Percentage of `max_bytes` above which writers are throttled, increasingly.
    pub dirty_throttle_percent: u8,
    /// Maximum age of a dirty page of a file without its own setting.
    pub sync_interval: Duration,
    /// Interval at which the background thread checks for due work.
    pub tick: Duration,
    /// Longest delay before the first retry after a failed write-behind of a file; doubles with each
    /// failure, up to 64 times. The delay is at least half of it.
    pub retry: Duration,
    /// How long a request waits for an evictable page before it fails with [`ErrorKind::Busy`].
    pub frame_timeout: Duration,
    /// Configuration of fault handling, for each volume with mappings.
    pub windows: window::Config,
    /// Creates the eviction policy.
    pub policy: MakePolicy,
    /// NUMA nodes that memory is spread over. With none or one, all memory is the same.
    pub topology: Topology,
    /// Table of [`Config::frames`] frames in which the cache lists its dirty pages, for a successor
    /// of this process: see [`crate::Predecessor`]. It serves the files of one file system, and
    /// excludes mappings. `None`: dirty pages are lost with the process.
    pub surviving: Option<Pages>,
}

/// Age at which a dirty page is written back, as in the `syncer` of HP-UX.
const SYNC_INTERVAL: Duration = Duration::from_secs(30);

impl Config {
    /// Creates the configuration of a cache of `max_bytes` that cannot grow further.
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
            frame_timeout: Duration::from_secs(30),
            topology: Topology::default(),
            windows: window::Config::default(),
            surviving: None,
            policy: Box::new(|limit, frames| Box::new(Ufc::new(limit, frames))),
        }
    }

    /// Creates the configuration according to `tunables`, for a machine with `memory` bytes; the
    /// cache may later grow as far as the settings allow.
    ///
    /// # Errors
    /// As [`Tunables::resolve`].
    pub fn of(tunables: &Tunables, memory: u64) -> std::result::Result<Config, tunables::Error> {
        let settings = tunables.resolve(memory)?;
        let most = tunables::largest(Name::FilecacheMax, memory);
        Ok(Config {
            min_bytes: settings.filecache_min,
            memory_bytes: memory,
            tunables: Some(tunables.clone()),
            reserve_bytes: most,
            ..Config::new(settings.filecache_max)
        })
    }

    /// Computes the number of frames for `reserve_bytes`.
    pub fn frames(&self) -> usize {
        (self.reserve_bytes as usize).next_multiple_of(CHUNK_BYTES) >> PAGE_SHIFT
    }

    /// Expresses the sizes and percentages as tunables, which may be outside their bounds.
    pub(crate) fn as_tunables(&self) -> Tunables {
        let background = self.dirty_background_percent.into();
        let limit = self.dirty_throttle_percent.into();
        let sync_ms = self.sync_interval.as_millis() as u64;
        Tunables::default()
            .with_value(Name::FilecacheMin, Value::Bytes(self.min_bytes))
            .with_value(Name::FilecacheMax, Value::Bytes(self.max_bytes))
            .with_value(Name::DirtyBackground, Value::Percent(background))
            .with_value(Name::DirtyLimit, Value::Percent(limit))
            .with_value(Name::SyncIntervalMs, Value::Number(sync_ms))
    }

    /// Rejects inconsistent settings.
    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |detail: &str| Err(Error::new(ErrorKind::Invalid, "cache", detail));
        if self.max_bytes < 1 << 20 {
            return refuse("max_bytes must be at least 1 MiB");
        }
        if self.min_bytes > self.max_bytes || self.max_bytes > self.reserve_bytes {
            return refuse("must hold: min_bytes <= max_bytes <= reserve_bytes");
        }
        if self.reserve_bytes > u64::from(crate::page_state::FRAMES_MAX) << PAGE_SHIFT {
            return refuse("reserve_bytes must be at most 4 TiB");
        }
        if self
            .surviving
            .as_ref()
            .is_some_and(|pages| pages.frames() != self.frames())
        {
            return refuse("the table of surviving pages must have an entry for each frame");
        }
        if self.dirty_background_percent > self.dirty_throttle_percent
            || self.dirty_throttle_percent > 80
        {
            return refuse("must hold: dirty_background_percent <= dirty_throttle_percent <= 80");
        }
        Ok(())
    }
}
