//! State shared by the vnodes of one volume.

use super::background_queue::BackgroundQueue;
use super::cache_shared::CacheShared;
use crate::frames::PAGE_BYTES;
use crate::pager::{Pager, PagerInfo};
use crate::window::Windows;
use block::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use survival::Pages;

/// The pager of one volume, with the state that its vnodes share.
pub(crate) struct VolumeShared {
    pub(crate) core: Arc<CacheShared>,
    pub(crate) pager: Arc<dyn Pager>,
    pub(crate) info: PagerInfo,
    /// Number that tells this volume's files apart from others in the table of surviving pages.
    pub(crate) tree: u64,
    /// Jobs for the background thread.
    pub(crate) background: BackgroundQueue,
    /// The error of the last write-behind, while none has succeeded since.
    failing: Mutex<Option<Error>>,
    /// The error of the last write-behind that failed, and its time in milliseconds of the cache's
    /// clock.
    failed: Mutex<Option<(Error, u64)>>,
    /// Measured write speed of the device, in pages per second.
    speed: AtomicU64,
    /// Fault handlers of mappings, while a vnode has a window.
    windows: Mutex<Weak<Windows>>,
}

impl VolumeShared {
    pub(crate) fn new(
        core: Arc<CacheShared>,
        pager: Arc<dyn Pager>,
        errands: BackgroundQueue,
    ) -> Result<VolumeShared> {
        let tree = match &core.pool.surviving {
            Some(pages) => surviving_tree(&*pager, pages)?,
            None => 0,
        };
        Ok(VolumeShared {
            core,
            info: pager.info().clone(),
            tree,
            pager,
            background: errands,
            failing: Mutex::default(),
            failed: Mutex::default(),
            speed: AtomicU64::new(SPEED_AT_FIRST),
            windows: Mutex::default(),
        })
    }

    /// Returns the fault handlers for mappings of this volume, starting them if necessary. Their
    /// threads have sessions of the volume, so the vnodes with windows own them, not the volume.
    pub(crate) fn windows(&self) -> Result<Arc<Windows>> {
        let mut windows = self.windows.lock().expect("no panic under this lock");
        if let Some(windows) = windows.upgrade() {
            return Ok(windows);
        }
        let started = Windows::start(&self.core.limits.windows)?;
        *windows = Arc::downgrade(&started);
        Ok(started)
    }

    /// Computes the number of pages in an efficient transfer: the larger of 1 MiB and the optimal
    /// size, limited by the longest transfer.
    pub(crate) fn cluster_pages(&self) -> usize {
        // Of a file on a file system the optimal size is often one block, which is too short.
        const CLUSTER_MIN: usize = 1 << 20;
        let best = (self.info.optimal_io_size as usize).max(CLUSTER_MIN);
        (best.min(self.info.max_transfer as usize) / PAGE_BYTES).max(1)
    }

    /// Returns the error of the last write-behind, if none has succeeded since.
    pub(crate) fn failing(&self) -> Option<Error> {
        let failing = self.failing.lock().expect("no panic under this lock");
        failing.clone()
    }

    /// Returns the last write-behind error and its time in milliseconds of the cache's clock.
    pub(crate) fn failed(&self) -> Option<(Error, u64)> {
        let failed = self.failed.lock().expect("no panic under this lock");
        failed.clone()
    }

    pub(crate) fn set_failing(&self, error: Option<Error>) {
        if let Some(error) = &error {
            let failed = Some((error.clone(), self.core.now_ms()));
            *self.failed.lock().expect("no panic under this lock") = failed;
        }
        *self.failing.lock().expect("no panic under this lock") = error;
    }

    pub(crate) fn pages_per_second(&self) -> f64 {
        self.speed.load(Relaxed) as f64
    }

    /// Records that the device wrote `pages` pages in `time`; keeps a moving average.
    pub(crate) fn record_write_speed(&self, pages: usize, time: Duration) {
        let now = pages as f64 / time.as_secs_f64().max(1e-6);
        let mixed = self.pages_per_second() * 0.9 + now * 0.1;
        self.speed.store(mixed.max(1.0) as u64, Relaxed);
    }
}

/// Returns the number of a pager's tree in the table of surviving pages.
fn surviving_tree(pager: &dyn Pager, pages: &Pages) -> Result<u64> {
    let info = pager.info();
    let refuse = |detail| Err(Error::new(ErrorKind::Invalid, &info.name, detail));
    match pager.tree() {
        Some(tree) if pages.claim(tree.file_system) => Ok(tree.number),
        Some(_) => refuse("the cache lists the surviving pages of another file system"),
        None if info.read_only => Ok(0),
        None => refuse("its dirty pages could not survive, as the cache's pages are to"),
    }
}

/// Assumed write speed in pages per second before any measurement: 100 MiB/s.
const SPEED_AT_FIRST: u64 = 25_600;
