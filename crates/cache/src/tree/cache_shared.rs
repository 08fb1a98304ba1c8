//! State shared by all volumes of a cache.

use super::vnode_table::VnodeTable;
use super::volume_shared::VolumeShared;
use crate::config::Config;
use crate::frames::{EvictionBatch, PAGE_BYTES, Pool};
use crate::leaf::Slab;
use crate::mapped::WindowTotals;
use crate::policy::FrameNo;
use crate::runtime_settings::RuntimeSettings;
use crate::stats::{Counters, Counts};
use crate::wait::WaitTable;
use crate::window;
use block::Result;
use numa::Topology;
use retry::{Backoff, Jitter};
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Relaxed},
};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// Longest pause after failed writes, as a multiple of the first.
const RETRY_MAX: u32 = 64;

/// State of one cache.
pub(crate) struct CacheShared {
    pub(crate) pool: Arc<Pool>,
    pub(crate) slab: Arc<Slab>,
    /// NUMA nodes that memory is allocated from.
    topology: Topology,
    /// Sessions that wait for another session's load, by the address of the page's word.
    pub(crate) loads: WaitTable,
    pub(crate) limits: Limits,
    pub(crate) settings: RuntimeSettings,
    /// Pages that are dirty or under write-back.
    dirty_pages: AtomicUsize,
    /// All vnodes, among others to find the one whose leaf became empty.
    pub(crate) vnodes: VnodeTable,
    volumes: Mutex<Vec<Weak<VolumeShared>>>,
    started: Instant,
    /// Counters accumulated from vnodes that have been dropped.
    pub(crate) gone: Counters,
    /// Upper bound of the number of unused read-ahead pages.
    ahead: AtomicU64,
    pub(crate) windows: Arc<WindowTotals>,
}

/// Settings that are fixed when the cache is created.
pub(crate) struct Limits {
    pub(crate) tick: Duration,
    /// Pauses after failed writes in the background.
    pub(crate) retries: Backoff,
    pub(crate) frame_timeout: Duration,
    pub(crate) windows: window::Config,
}

impl CacheShared {
    pub(crate) fn new(config: Config) -> Result<CacheShared> {
        config.check()?;
        let slab = Arc::new(Slab::default());
        let limit = config.max_bytes as usize / PAGE_BYTES;
        let reserve = config.reserve_bytes as usize;
        let live = RuntimeSettings::new(&config);
        let limits = Limits {
            tick: config.tick,
            retries: Backoff::new(
                config.retry,
                config.retry.saturating_mul(RETRY_MAX),
                Jitter::Equal,
            ),
            frame_timeout: config.frame_timeout,
            windows: config.windows,
        };
        let nodes = config.topology.nodes().collect();
        let pool = Pool::new(
            reserve,
            limit,
            config.policy,
            Arc::clone(&slab),
            nodes,
            config.surviving,
        )?;
        live.begin(&pool);
        Ok(CacheShared {
            settings: live,
            pool,
            topology: config.topology,
            slab,
            loads: WaitTable::default(),
            limits,
            dirty_pages: AtomicUsize::new(0),
            vnodes: VnodeTable::default(),
            volumes: Mutex::default(),
            started: Instant::now(),
            gone: Counters::default(),
            ahead: AtomicU64::new(0),
            windows: Arc::default(),
        })
    }

    /// Reads the time since the cache was created.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Reads the time since the cache was created, in milliseconds.
    pub(crate) fn now_ms(&self) -> u64 {
        self.now().as_millis() as u64
    }

    /// Checks whether `pages` more pages may be read ahead; `under_way` pages are requested but
    /// not loaded yet. Unused read-ahead is limited to an eighth of the cache, so that streams do
    /// not displace everything else.
    pub(crate) fn may_read_ahead(&self, pages: u64, under_way: u64) -> bool {
        let room = self.pool.limit() as u64 / AHEAD_SHARE;
        let mut unused = self.ahead.load(Relaxed);
        if unused + pages > room {
            // The bound only rises, so that a hit need not lower it; the exact number, without
            // pages used or evicted since, is summed over all open files.
            unused = self.counts().read_ahead_unused() + under_way;
        }
        let may = unused + pages <= room;
        self.ahead
            .store(unused + if may { pages } else { 0 }, Relaxed);
        may
    }

    /// Finds when the oldest dirty page of the cache became dirty, in milliseconds of the cache's
    /// clock.
    pub(crate) fn oldest_dirty_ms(&self) -> Option<u64> {
        let live = self.vnodes.live();
        let dirty = live.iter().filter(|vnode| vnode.dirty_pages() > 0);
        dirty.filter_map(|vnode| vnode.oldest_dirty_ms()).min()
    }

    /// Computes the number of frames that the state of files takes the place of.
    pub(crate) fn file_frames(&self) -> usize {
        let files = self.vnodes.len().saturating_sub(FILES_FREE);
        (files * FILE_BYTES).div_ceil(PAGE_BYTES)
    }

    /// Takes up to `want` frames and returns their number. If none is available, asks the
    /// background threads to clean pages.
    pub(crate) fn take_frames(&self, want: usize, out: &mut Vec<FrameNo>) -> usize {
        self.take_frames_near(None, want, out)
    }

    /// Takes frames like [`CacheShared::take_frames`], from the memory of `node`, or of this
    /// thread's node if `None`.
    pub(crate) fn take_frames_near(
        &self,
        node: Option<u32>,
        want: usize,
        out: &mut Vec<FrameNo>,
    ) -> usize {
        let taken = self.take_frames_lightly(node, want, out);
        if taken == 0 {
            self.request_clean();
        }
        taken
    }

    /// Takes frames like [`CacheShared::take_frames_near`], but never asks for page cleaning: for
    /// speculative loads.
    pub(crate) fn take_frames_lightly(
        &self,
        node: Option<u32>,
        want: usize,
        out: &mut Vec<FrameNo>,
    ) -> usize {
        let mut emptied = EvictionBatch::new();
        let node = node.or_else(|| self.here());
        let taken = self.pool.take(want, node, out, &mut emptied);
        self.give_up_leaves(emptied);
        taken
    }

    /// Returns the NUMA node that this thread runs on, or `None` if there is only one node.
    pub(crate) fn here(&self) -> Option<u32> {
        // With one node the answer is not used.
        let several = self.topology.nodes().nth(1).is_some();
        several.then(|| self.topology.current_node()).flatten()
    }

    /// Asks the background thread of every volume to clean pages.
    pub(crate) fn request_clean(&self) {
        self.for_volumes(|below| below.background.clean());
    }

    /// Releases leaves that became empty and adds the evicted pages to the counters.
    pub(crate) fn give_up_leaves(&self, emptied: EvictionBatch) {
        for (vnode, number) in emptied.leaves {
            if let Some(vnode) = self.vnodes.get(vnode) {
                vnode.index().release_if_idle(number);
            }
        }
        for left in emptied.pages {
            let vnode = self.vnodes.get(left.vnode);
            let counters = vnode
                .as_ref()
                .map_or(&self.gone, |vnode| &vnode.opens.closed);
            counters.left(left.reason, left.count, left.wasted);
        }
    }

    /// Sums the counters of all open files, live and closed.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = self.gone.get();
        let live = self.vnodes.live();
        live.iter().for_each(|vnode| counts += vnode.counts());
        counts
    }

    pub(crate) fn add_volume(&self, below: &Arc<VolumeShared>) {
        let mut volumes = self.volumes.lock().expect("no panic under this lock");
        volumes.retain(|v| v.strong_count() > 0);
        volumes.push(Arc::downgrade(below));
    }

    fn for_volumes(&self, act: impl Fn(&VolumeShared)) {
        let volumes = self.volumes.lock().expect("no panic under this lock");
        let live: Vec<Arc<VolumeShared>> = volumes.iter().filter_map(Weak::upgrade).collect();
        drop(volumes);
        live.iter().for_each(|below| act(below));
    }

    /// Returns the number of pages that are dirty or under write-back.
    pub(crate) fn dirty_pages(&self) -> usize {
        self.dirty_pages.load(Relaxed)
    }

    /// Counts a page that became dirty; above the threshold, notifies the background thread.
    pub(crate) fn add_dirty(&self, below: &VolumeShared) {
        let now = self.dirty_pages.fetch_add(1, AcqRel) + 1;
        // An occasional notice is enough: the background thread checks the number itself.
        if now.is_multiple_of(64) && now > self.background_pages() {
            below.background.write_out();
        }
    }

    pub(crate) fn sub_dirty(&self) {
        self.dirty_pages.fetch_sub(1, AcqRel);
    }

    /// Returns the number of dirty pages above which the background thread writes back.
    pub(crate) fn background_pages(&self) -> usize {
        self.settings.background_pages.load(Relaxed)
    }

    /// Computes how long the writer of `pages` pages is throttled: the time the device needs for
    /// them, times a factor that is 0 at the threshold and rises without bound as dirty pages
    /// approach four fifths of the cache. Writers together thus slow down to the device's speed,
    /// whatever their number.
    pub(crate) fn throttle(&self, pages: usize, below: &VolumeShared) -> Duration {
        let limit = self.pool.limit();
        let (dirty, from) = (
            self.dirty_pages(),
            self.settings.throttle_pages.load(Relaxed),
        );
        if dirty <= from {
            return Duration::ZERO;
        }
        let to = (limit * 4 / 5).max(from + 1);
        let factor = (dirty - from) as f64 / to.saturating_sub(dirty).max(1) as f64;
        let seconds = pages as f64 / below.pages_per_second() * factor;
        Duration::from_secs_f64(seconds.min(THROTTLE_SECONDS_MAX))
    }
}

/// Memory that a file with cached pages takes besides its pages, in bytes: its vnode, one leaf, the
/// entries in tables, and the state of the file system above. Measured with files of one dirty page.
const FILE_BYTES: usize = 3072;

/// Number of files whose state is not charged.
const FILES_FREE: usize = 1024;

/// Longest time that a writer is throttled at once.
const THROTTLE_SECONDS_MAX: f64 = 0.2;

/// Unused read-ahead may take up to 1/`AHEAD_SHARE` of the cache.
const AHEAD_SHARE: u64 = 8;
