//! The settings in force, which change while the cache runs.
//!
//! **Invariant:** a set of settings takes effect as a whole before the next begins. A reader of one
//! setting loads one number; a reader of two may see an old and a new one, which is harmless.

use crate::attributes::FlushBehind;
use crate::config::Config;
use crate::frames::{EvictionBatch, PAGE_BYTES, Pool};
use crate::policy::SeqLimits;
use crate::tunables::{Error, ErrorKind, Name, Settings, Tunables, Value};
use std::sync::Mutex;
use std::sync::atomic::{
    AtomicU8, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, Release},
};

/// Current settings of a cache.
pub(crate) struct RuntimeSettings {
    given: Mutex<(Tunables, Settings)>,
    /// Memory in bytes that percentages refer to.
    memory: u64,
    /// Upper limit of `filecache_max` in bytes.
    reserve: u64,
    /// Number of dirty pages above which the background threads write back.
    pub(crate) background_pages: AtomicUsize,
    /// Number of dirty pages above which writers are throttled.
    pub(crate) throttle_pages: AtomicUsize,
    pub(crate) sync_ms: AtomicU64,
    flush_behind: AtomicU8,
    /// Size of the largest read-ahead window in bytes.
    pub(crate) read_ahead_max: AtomicU64,
    /// Bytes that are not evicted under memory pressure.
    pub(crate) min_bytes: AtomicU64,
    /// Number of mapped pages above which those not recently used are evicted.
    pub(crate) mapped_pages: AtomicUsize,
}

impl RuntimeSettings {
    /// Creates the initial settings, which [`RuntimeSettings::begin`] puts in force.
    pub(crate) fn new(config: &Config) -> RuntimeSettings {
        let memory = config.memory_bytes;
        let given = config.tunables.clone();
        let given = given.unwrap_or_else(|| config.as_tunables());
        let settings = given.effective(config.min_bytes, config.max_bytes, memory);
        RuntimeSettings {
            given: Mutex::new((given, settings)),
            memory,
            reserve: config.reserve_bytes,
            background_pages: AtomicUsize::new(0),
            throttle_pages: AtomicUsize::new(0),
            sync_ms: AtomicU64::new(0),
            flush_behind: AtomicU8::new(0),
            read_ahead_max: AtomicU64::new(0),
            min_bytes: AtomicU64::new(0),
            mapped_pages: AtomicUsize::new(usize::MAX),
        }
    }

    /// Applies the initial settings, except for the limit, which the pool already has.
    pub(crate) fn begin(&self, pool: &Pool) {
        let given = self.given.lock().expect("no panic under this lock");
        self.apply(&given.1, pool);
    }

    /// Returns the settings as specified, and as resolved.
    pub(crate) fn get(&self) -> (Tunables, Settings) {
        self.given.lock().expect("no panic under this lock").clone()
    }

    /// Applies settings: all of them, or none and an error. Evicts pages as far as possible.
    pub(crate) fn set(
        &self,
        tunables: &Tunables,
        pool: &Pool,
        emptied: &mut EvictionBatch,
    ) -> Result<Settings, Error> {
        let settings = tunables.resolve(self.memory)?;
        if settings.filecache_max > self.reserve {
            let what = format!("filecache_max={}", block::size_text(settings.filecache_max));
            let why = format!(
                "this cache can grow to at most {}",
                block::size_text(self.reserve)
            );
            let next = "use a smaller value, or restart with more memory reserved";
            return Err(Error::new(ErrorKind::OutOfBounds, what, why, next));
        }
        let mut given = self.given.lock().expect("no panic under this lock");
        *given = (tunables.clone(), settings);
        self.apply(&settings, pool);
        pool.set_limit(settings.filecache_max as usize / PAGE_BYTES, emptied);
        Ok(settings)
    }

    /// Sets `filecache_max`, and lowers `filecache_min` if necessary.
    pub(crate) fn set_max(&self, bytes: u64, pool: &Pool, emptied: &mut EvictionBatch) {
        let mut given = self.given.lock().expect("no panic under this lock");
        let bytes = bytes.min(self.reserve);
        let tunables = given
            .0
            .clone()
            .with_value(Name::FilecacheMax, Value::Bytes(bytes));
        let min = given.1.filecache_min.min(bytes);
        let settings = tunables.effective(min, bytes, self.memory);
        *given = (tunables, settings);
        self.apply(&settings, pool);
        pool.set_limit(bytes as usize / PAGE_BYTES, emptied);
    }

    fn apply(&self, settings: &Settings, pool: &Pool) {
        let pages = |bytes: u64| bytes as usize / PAGE_BYTES;
        let set = |one: &AtomicUsize, bytes| one.store(pages(bytes), Relaxed);
        set(&self.background_pages, settings.dirty_background);
        set(&self.throttle_pages, settings.dirty_limit);
        set(&self.mapped_pages, settings.mapped_max);
        self.sync_ms.store(settings.sync_interval_ms, Relaxed);
        self.flush_behind.store(settings.fb_policy, Relaxed);
        self.read_ahead_max.store(settings.read_ahead_max, Relaxed);
        self.min_bytes.store(settings.filecache_min, Release);
        let limits = SeqLimits {
            system: settings.seqlimit_system,
            file: settings.seqlimit_file,
        };
        let metadata = pages(settings.metadata_max);
        pool.set_shares(metadata, limits, pages(settings.filecache_min));
    }

    /// Returns when written pages of files without their own policy are sent to the pager.
    pub(crate) fn flush_behind(&self) -> FlushBehind {
        FlushBehind::of(self.flush_behind.load(Relaxed))
    }
}
