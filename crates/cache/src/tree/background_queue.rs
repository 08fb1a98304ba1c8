//! Jobs for the background thread of one volume.

use super::open_state::OpenState;
use super::vnode::Vnode;
use crate::dirty_vnodes::DirtyVnodes;
use crate::stream::ReadAhead;
use block::{Error, Result, Waker};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, Weak};

/// Job queues of a volume's background thread.
pub(crate) struct BackgroundQueue {
    waker: Arc<Waker>,
    pub(crate) dirty: DirtyVnodes,
    /// The shortest sync interval that was ever set on a vnode.
    own_sync_ms: AtomicU64,
    /// Vnodes with completed writes that no flush has covered.
    unflushed: Mutex<BTreeSet<u64>>,
    ahead: Mutex<VecDeque<LoadRequest>>,
    behind: Mutex<VecDeque<(Weak<Vnode>, Range<u64>)>>,
    /// Vnodes of which a mapping was removed.
    unmapped: Mutex<BTreeSet<u64>>,
    /// A session waits for a clean page.
    clean: AtomicBool,
    /// The number of dirty pages exceeds the background threshold.
    write_out: AtomicBool,
    stop: AtomicBool,
}

/// Pages to load.
pub(crate) enum LoadRequest {
    /// Requested explicitly.
    Pages(Weak<Vnode>, Range<u64>, Option<u32>),
    /// Read-ahead for a stream of this open file, whose thread runs on this node.
    Ahead(Weak<OpenState>, ReadAhead, Option<u32>),
}

/// Queued jobs of one kind; further ones are dropped, since they are only hints.
const JOBS_MAX: usize = 1024;

impl BackgroundQueue {
    pub(crate) fn new() -> Result<BackgroundQueue> {
        Ok(BackgroundQueue {
            waker: Arc::new(Waker::new().map_err(|e| Error::from_io("cache", e))?),
            dirty: DirtyVnodes::default(),
            own_sync_ms: AtomicU64::new(u64::MAX),
            unflushed: Mutex::default(),
            ahead: Mutex::default(),
            behind: Mutex::default(),
            unmapped: Mutex::default(),
            clean: AtomicBool::new(false),
            write_out: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        })
    }

    pub(crate) fn waker(&self) -> &Arc<Waker> {
        &self.waker
    }

    /// Records a sync interval that was set on a vnode.
    pub(crate) fn sync_within(&self, ms: u64) {
        self.own_sync_ms.fetch_min(ms, Relaxed);
    }

    /// Returns the shortest sync interval that was ever set on a vnode, in milliseconds.
    pub(crate) fn own_sync_ms(&self) -> u64 {
        self.own_sync_ms.load(Relaxed)
    }

    /// Records a completed write of a vnode that no pending request is going to flush.
    pub(crate) fn unflushed(&self, number: u64) {
        add_to(&self.unflushed, number);
    }

    pub(crate) fn take_unflushed(&self) -> BTreeSet<u64> {
        take_all(&self.unflushed)
    }

    /// Requests that pages of a vnode that are no longer mapped return to the pool.
    pub(crate) fn unmapped(&self, number: u64) {
        self.still_unmapped(number);
        self.waker.wake();
    }

    /// Repeats such a request without waking the background thread, which makes it.
    pub(crate) fn still_unmapped(&self, number: u64) {
        add_to(&self.unmapped, number);
    }

    pub(crate) fn take_unmapped(&self) -> BTreeSet<u64> {
        take_all(&self.unmapped)
    }

    /// Requests write-back, because the number of dirty pages exceeds the threshold.
    pub(crate) fn write_out(&self) {
        self.write_out.store(true, Release);
        self.waker.wake();
    }

    pub(crate) fn take_write_out(&self) -> bool {
        self.write_out.swap(false, AcqRel)
    }

    /// Requests clean pages.
    pub(crate) fn clean(&self) {
        self.clean.store(true, Release);
        self.waker.wake();
    }

    /// Checks whether clean pages are requested.
    pub(crate) fn wants_clean(&self) -> bool {
        self.clean.load(Acquire)
    }

    pub(crate) fn take_clean(&self) -> bool {
        self.clean.swap(false, AcqRel)
    }

    /// Requests that pages be loaded.
    pub(crate) fn prefetch(&self, vnode: &Arc<Vnode>, pages: Range<u64>) {
        let here = vnode.shared().core.here();
        let request = LoadRequest::Pages(Arc::downgrade(vnode), pages, here);
        self.add(&self.ahead, request);
    }

    /// Requests that pages be loaded ahead of a stream.
    pub(crate) fn read_ahead(&self, open: &Arc<OpenState>, ahead: ReadAhead) {
        // Counted before the background thread can take the job.
        open.asked.fetch_add(1, Relaxed);
        let here = open.vnode.shared().core.here();
        let request = LoadRequest::Ahead(Arc::downgrade(open), ahead, here);
        if !self.add(&self.ahead, request) {
            open.asked.fetch_sub(1, Relaxed);
        }
    }

    pub(crate) fn next_load(&self) -> Option<LoadRequest> {
        next(&self.ahead)
    }

    /// Requests early write-back of sequentially written pages.
    pub(crate) fn write_behind(&self, vnode: &Arc<Vnode>, pages: Range<u64>) {
        self.add(&self.behind, (Arc::downgrade(vnode), pages));
    }

    pub(crate) fn next_write_behind(&self) -> Option<(Weak<Vnode>, Range<u64>)> {
        next(&self.behind)
    }

    /// Adds a job, if there is room, and wakes the background thread.
    fn add<T>(&self, queue: &Mutex<VecDeque<T>>, job: T) -> bool {
        let mut queue = queue.lock().expect("no panic under this lock");
        let room = queue.len() < JOBS_MAX;
        if room {
            queue.push_back(job);
        }
        drop(queue);
        self.waker.wake();
        room
    }

    /// Asks the background thread to exit.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Release);
        self.waker.wake();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Acquire)
    }
}

fn next<T>(queue: &Mutex<VecDeque<T>>) -> Option<T> {
    queue.lock().expect("no panic under this lock").pop_front()
}

fn add_to(numbers: &Mutex<BTreeSet<u64>>, number: u64) {
    let mut numbers = numbers.lock().expect("no panic under this lock");
    numbers.insert(number);
}

fn take_all(numbers: &Mutex<BTreeSet<u64>>) -> BTreeSet<u64> {
    std::mem::take(&mut *numbers.lock().expect("no panic under this lock"))
}
