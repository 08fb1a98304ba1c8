//! The settings in force, which change while the cache runs.
//!
//! **Invariant:** a set of settings takes effect as a whole before the next begins. Who reads one
//! setting reads one number; a reader that needs two may see an old and a new one, which does no harm.

use crate::attributes::FlushBehind;
use crate::config::Config;
use crate::frames::{Emptied, PAGE_BYTES, Pool};
use crate::policy::SeqLimits;
use crate::tunables::{Error, ErrorKind, Settings, Tunables};
use std::sync::Mutex;
use std::sync::atomic::{
    AtomicU8, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, Release},
};

/// The settings of a cache.
pub(crate) struct Live {
    given: Mutex<(Tunables, Settings)>,
    /// Memory that percentages are of, in bytes.
    memory: u64,
    /// Most bytes that `filecache_max` can be.
    reserve: u64,
    /// Dirty pages above which the background writes out.
    pub(crate) background_pages: AtomicUsize,
    /// Dirty pages above which writers are held back.
    pub(crate) throttle_pages: AtomicUsize,
    pub(crate) sync_ms: AtomicU64,
    flush_behind: AtomicU8,
    /// Bytes of the largest window of read-ahead.
    pub(crate) read_ahead_max: AtomicU64,
    /// Bytes that memory pressure leaves alone.
    pub(crate) min_bytes: AtomicU64,
    /// Mapped pages above which those that were not touched of late leave.
    pub(crate) mapped_pages: AtomicUsize,
}

impl Live {
    /// Those that the cache is made with, which [`Live::begin`] puts in force.
    pub(crate) fn new(config: &Config) -> Live {
        let memory = config.memory_bytes;
        let given = config.tunables.clone();
        let given = given.unwrap_or_else(|| Tunables::of(config));
        let settings = given.settle(config.min_bytes, config.max_bytes, memory);
        Live {
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

    /// Puts the first settings in force; the pool has its limit.
    pub(crate) fn begin(&self, pool: &Pool) {
        let given = self.given.lock().expect("no panic under this lock");
        self.apply(&given.1, pool);
    }

    /// What was given, and what it means.
    pub(crate) fn get(&self) -> (Tunables, Settings) {
        self.given.lock().expect("no panic under this lock").clone()
    }

    /// Puts settings in force: all of them, or an error and nothing. Pages leave as far as they can.
    pub(crate) fn set(
        &self,
        tunables: &Tunables,
        pool: &Pool,
        emptied: &mut Emptied,
    ) -> Result<Settings, Error> {
        let settings = tunables.resolve(self.memory)?;
        if settings.filecache_max > self.reserve {
            let what = format!("filecache_max={}", settings.filecache_max);
            let why = format!("this cache can grow to {} bytes", self.reserve);
            let next = "give less, or start with more reserved";
            return Err(Error::new(ErrorKind::OutOfBounds, what, why, next));
        }
        let mut given = self.given.lock().expect("no panic under this lock");
        *given = (tunables.clone(), settings);
        self.apply(&settings, pool);
        pool.set_limit(settings.filecache_max as usize / PAGE_BYTES, emptied);
        Ok(settings)
    }

    /// Sets `filecache_max`; `filecache_min` follows it down.
    pub(crate) fn set_max(&self, bytes: u64, pool: &Pool, emptied: &mut Emptied) {
        let mut given = self.given.lock().expect("no panic under this lock");
        let bytes = bytes.min(self.reserve);
        let tunables = given.0.with_max(bytes);
        let min = given.1.filecache_min.min(bytes);
        let settings = tunables.settle(min, bytes, self.memory);
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

    /// When written pages of a file that says nothing else go below.
    pub(crate) fn flush_behind(&self) -> FlushBehind {
        FlushBehind::of(self.flush_behind.load(Relaxed))
    }
}
