//! The background thread of one volume: writes back dirty pages that are due, reads ahead, and
//! releases memory.
//!
//! **Invariant:** pages that have reached their maximum age are written and flushed, so that a
//! power cut loses no more than the sync interval. Failed write-back is retried indefinitely: an
//! error keeps the page dirty, is recorded for the open files, and lengthens the delay until the
//! next attempt. Writing back a page of the pool takes no frame, so the thread can always make
//! room, and then there are frames for writing back mapped pages.

use crate::frames::EvictionBatch;
use crate::leaf::LEAF_PAGES;
use crate::mapped::ReclaimResult;
use crate::open::{OpenState, pages_of};
use crate::policy::FrameNo;
use crate::session::Session;
use crate::shared::{CacheShared, VolumeShared};
use crate::stats::EvictReason;
use crate::stream::ReadAhead;
use crate::vnode::Vnode;
use crate::wait::Waker;
use block::Result;
use block::layer::{Layer, home};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Instant;

/// Job queues of a volume's background thread.
pub(crate) struct BackgroundQueue {
    waker: Arc<Waker>,
    dirty: Mutex<DirtyVnodes>,
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

/// Vnodes with dirty pages, ordered so that those that are due are found without scanning the
/// others. The time is when the oldest of a vnode's pages became dirty, or earlier.
#[derive(Default)]
struct DirtyVnodes {
    by_age: BTreeSet<(u64, u64)>,
    since: HashMap<u64, u64>,
}

impl DirtyVnodes {
    fn insert(&mut self, number: u64, since: u64) {
        if let Entry::Vacant(place) = self.since.entry(number) {
            place.insert(since);
            self.by_age.insert((since, number));
        }
    }

    fn remove(&mut self, number: u64) {
        if let Some(since) = self.since.remove(&number) {
            self.by_age.remove(&(since, number));
        }
    }
}

/// Pages to load.
enum LoadRequest {
    /// Requested explicitly.
    Pages(Weak<Vnode>, Range<u64>, Option<u32>),
    /// Read-ahead for a stream of this open file, whose thread runs on this node.
    Ahead(Weak<OpenState>, ReadAhead, Option<u32>),
}

/// Queued jobs of one kind; further ones are dropped, since they are only hints.
const BACKGROUND_JOBS_MAX: usize = 1024;
/// Concurrent reads above which no further load is started.
const LOADS_MAX: usize = 16;
/// Concurrent writes above which no further write-back is started.
const STORES_MAX: usize = 16;
/// Dirty pages written back when a session needs a clean one.
const CLEAN_PAGES: usize = 256;
/// Pages loaded per job.
const BRING_MAX: u64 = 512;

impl BackgroundQueue {
    pub(crate) fn new() -> Result<BackgroundQueue> {
        Ok(BackgroundQueue {
            waker: Waker::new()?,
            dirty: Mutex::default(),
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

    /// Records that a vnode has dirty pages since `now`, in milliseconds of the cache's clock.
    pub(crate) fn dirty_vnode(&self, number: u64, now: u64) {
        self.lock_dirty().insert(number, now);
    }

    /// Collects the vnodes that have, or had, dirty pages, in ascending order.
    pub(crate) fn dirty_vnodes(&self) -> Vec<u64> {
        let mut numbers: Vec<u64> = self.lock_dirty().since.keys().copied().collect();
        numbers.sort_unstable();
        numbers
    }

    /// Records a sync interval that was set on a vnode.
    pub(crate) fn sync_within(&self, ms: u64) {
        self.own_sync_ms.fetch_min(ms, Relaxed);
    }

    /// Finds the oldest dirty vnode not before `from`: the time it became dirty, and its number.
    fn oldest_dirty(&self, from: (u64, u64)) -> Option<(u64, u64)> {
        self.lock_dirty().by_age.range(from..).next().copied()
    }

    /// Sets the time of a vnode's oldest dirty page.
    fn dirty_since(&self, number: u64, since: u64) {
        let mut dirty = self.lock_dirty();
        dirty.remove(number);
        dirty.insert(number, since);
    }

    fn clean_vnode(&self, number: u64) {
        self.lock_dirty().remove(number);
    }

    fn lock_dirty(&self) -> MutexGuard<'_, DirtyVnodes> {
        self.dirty.lock().expect("no panic under this lock")
    }

    /// Records a completed write of a vnode that no pending request is going to flush.
    pub(crate) fn unflushed(&self, number: u64) {
        let mut unflushed = self.unflushed.lock().expect("no panic under this lock");
        unflushed.insert(number);
    }

    fn take_unflushed(&self) -> BTreeSet<u64> {
        let mut unflushed = self.unflushed.lock().expect("no panic under this lock");
        std::mem::take(&mut *unflushed)
    }

    /// Requests that pages of a vnode that are no longer mapped return to the pool.
    pub(crate) fn unmapped(&self, number: u64) {
        self.still_unmapped(number);
        self.waker.wake();
    }

    fn still_unmapped(&self, number: u64) {
        let mut unmapped = self.unmapped.lock().expect("no panic under this lock");
        unmapped.insert(number);
    }

    fn take_unmapped(&self) -> BTreeSet<u64> {
        let mut unmapped = self.unmapped.lock().expect("no panic under this lock");
        std::mem::take(&mut *unmapped)
    }

    /// Requests write-back, because the number of dirty pages exceeds the threshold.
    pub(crate) fn write_out(&self) {
        self.write_out.store(true, Release);
        self.waker.wake();
    }

    /// Requests clean pages.
    pub(crate) fn clean(&self) {
        self.clean.store(true, Release);
        self.waker.wake();
    }

    /// Requests that pages be loaded.
    pub(crate) fn prefetch(&self, vnode: &Arc<Vnode>, pages: Range<u64>) {
        let here = vnode.shared().core.here();
        self.queue_load(LoadRequest::Pages(Arc::downgrade(vnode), pages, here));
    }

    /// Requests that pages be loaded ahead of a stream.
    pub(crate) fn read_ahead(&self, open: &Arc<OpenState>, ahead: ReadAhead) {
        // Counted before the background thread can take the job.
        open.asked.fetch_add(1, Relaxed);
        let here = open.vnode.shared().core.here();
        if !self.queue_load(LoadRequest::Ahead(Arc::downgrade(open), ahead, here)) {
            open.asked.fetch_sub(1, Relaxed);
        }
    }

    fn queue_load(&self, bring: LoadRequest) -> bool {
        self.add(&self.ahead, bring)
    }

    /// Requests early write-back of sequentially written pages.
    pub(crate) fn write_behind(&self, vnode: &Arc<Vnode>, pages: Range<u64>) {
        self.add(&self.behind, (Arc::downgrade(vnode), pages));
    }

    fn add<T>(&self, queue: &Mutex<VecDeque<T>>, errand: T) -> bool {
        let mut queue = queue.lock().expect("no panic under this lock");
        let room = queue.len() < BACKGROUND_JOBS_MAX;
        if room {
            queue.push_back(errand);
        }
        drop(queue);
        self.waker.wake();
        room
    }

    fn next<T>(&self, queue: &Mutex<VecDeque<T>>) -> Option<T> {
        let mut queue = queue.lock().expect("no panic under this lock");
        queue.pop_front()
    }

    /// Asks the background thread to exit.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Release);
        self.waker.wake();
    }
}

/// Runs the background thread until it is stopped; first reports to `started` whether it has a
/// queue.
pub(crate) fn run(below: Arc<VolumeShared>, started: Sender<Result<()>>) {
    home(Layer::Cache);
    let waker = Arc::clone(below.background.waker());
    let session = Session::with_waker(Arc::clone(&below), waker);
    let mut session = match session {
        Ok(session) => session,
        Err(error) => {
            let _ = started.send(Err(error));
            return;
        }
    };
    let _ = started.send(Ok(()));
    while let Err(error) = work(&below, &mut session) {
        // The queue has failed; a new one may work.
        tracing::warn!(
            volume = below.info.name, %error,
            "the queue of write-behind failed; opening a new one"
        );
        std::thread::sleep(below.core.limits.tick);
        let waker = Arc::clone(below.background.waker());
        match Session::with_waker(Arc::clone(&below), waker) {
            Ok(fresh) => session = fresh,
            Err(error) => below.set_failing(Some(error)),
        }
    }
}

fn work(below: &VolumeShared, session: &mut Session) -> Result<()> {
    let core = &below.core;
    let errands = &below.background;
    let mut looked = Instant::now();
    let mut more = true;
    while !errands.stop.load(Acquire) {
        while session.runs_in_flight().0 < LOADS_MAX
            && let Some(bring) = errands.next(&errands.ahead)
        {
            bring_pages(session, bring);
        }
        while session.runs_in_flight().1 < STORES_MAX
            && let Some((vnode, pages)) = errands.next(&errands.behind)
        {
            write_behind(session, &vnode, &pages);
        }
        let tick = looked.elapsed() >= core.limits.tick;
        let pressed = errands.write_out.swap(false, AcqRel) | errands.clean.load(Acquire);
        // A scan of the dirty pages takes time that read-ahead does not have.
        if tick || pressed || more {
            more = write_due(below, session);
            give_memory_back(core);
        }
        more |= send_back(below);
        if tick {
            looked = Instant::now();
            flush_behind(below, session);
        }
        session.idle(core.limits.tick)?;
    }
    Ok(())
}

fn bring_pages(session: &mut Session, bring: LoadRequest) {
    match bring {
        LoadRequest::Pages(vnode, pages, near) => {
            if let Some(vnode) = vnode.upgrade() {
                let open = OpenState::new(vnode);
                let end = pages.end.min(pages.start + BRING_MAX);
                session.load_ahead(&open, pages.start..end, near);
            }
        }
        LoadRequest::Ahead(open, ahead, near) => {
            if let Some(open) = open.upgrade() {
                for range in ahead.ranges() {
                    let len = range.end - range.start;
                    session.load_ahead(&open, pages_of(range.start, len), near);
                }
                open.asked.fetch_sub(1, Relaxed);
            }
        }
    }
}

fn write_behind(session: &mut Session, vnode: &Weak<Vnode>, pages: &Range<u64>) {
    if let Some(vnode) = vnode.upgrade()
        && !pages.is_empty()
    {
        let numbers = pages.start / LEAF_PAGES..=(pages.end - 1) / LEAF_PAGES;
        let leaves = vnode.dirty_leaves(numbers);
        session.store_leaves(&vnode, &leaves, usize::MAX);
    }
}

/// Writes back pages that are due, the oldest first. Returns whether some could not be submitted
/// yet.
fn write_due(below: &VolumeShared, session: &mut Session) -> bool {
    let core = &below.core;
    let errands = &below.background;
    let clean = errands.clean.swap(false, AcqRel);
    let now = core.now_ms();
    let soonest = core.settings.sync_ms.load(Relaxed);
    let soonest = soonest.min(errands.own_sync_ms.load(Relaxed));
    let mut forced = core.dirty_pages().saturating_sub(core.background_pages());
    if clean {
        forced = forced.max(CLEAN_PAGES);
    }
    let mut from = (0, 0);
    while let Some((since, number)) = errands.oldest_dirty(from) {
        if forced == 0 && since + soonest > now {
            break;
        }
        from = (since, number + 1);
        let vnode = core.vnode(number);
        let Some(vnode) = vnode.filter(|vnode| vnode.dirty_pages() > 0) else {
            errands.clean_vnode(number);
            // It may have become dirty between the lookup and the removal.
            if core.vnode(number).is_some_and(|v| v.dirty_pages() > 0) {
                errands.dirty_vnode(number, now);
            }
            continue;
        };
        let oldest = vnode.oldest_dirty_ms().unwrap_or(since);
        if oldest > since {
            // The vnode is visited again in order of its new age.
            errands.dirty_since(number, oldest);
            continue;
        }
        if !vnode.may_retry() {
            continue;
        }
        let due = |number_at: &(u64, crate::leaf::LeafAt)| {
            let leaf = vnode.index().leaf(number_at.1);
            leaf.dirty() != 0 && leaf.dirty_since_ms() + vnode.sync_ms() <= now
        };
        let mut leaves = vnode.dirty_leaves(0..=u64::MAX);
        let most = if forced > 0 {
            forced
        } else {
            leaves.retain(due);
            usize::MAX
        };
        let room = STORES_MAX.saturating_sub(session.runs_in_flight().1);
        let most = most.min(room * below.cluster_pages());
        let sent = session.store_leaves(&vnode, &leaves, most);
        forced = forced.saturating_sub(sent);
        if session.runs_in_flight().1 >= STORES_MAX {
            return true;
        }
    }
    false
}

/// Releases some unmapped pages to the pool. Returns whether there are more.
fn send_back(below: &VolumeShared) -> bool {
    let mut more = false;
    for number in below.background.take_unmapped() {
        let Some(vnode) = below.core.vnode(number) else {
            continue;
        };
        let Some(mapped) = vnode.mapped() else {
            continue;
        };
        match mapped.reclaim(&vnode) {
            ReclaimResult::All => {}
            sent => {
                below.background.still_unmapped(number);
                more |= sent == ReclaimResult::Some;
            }
        }
    }
    more
}

/// Flushes the files written by background write-back.
fn flush_behind(below: &VolumeShared, session: &mut Session) {
    let numbers = below.background.take_unflushed().into_iter();
    // A vnode that no longer exists was flushed with its volume, or removed.
    let vnodes: Vec<Arc<Vnode>> = numbers.filter_map(|n| below.core.vnode(n)).collect();
    let together = if below.info.flushes_all {
        vnodes.len().max(1)
    } else {
        1
    };
    for some in vnodes.chunks(together) {
        session.flush_behind(some.to_vec());
    }
}

/// Evicts pages beyond the limits, and releases unused memory.
fn give_memory_back(core: &CacheShared) {
    let mut emptied = EvictionBatch::new();
    let limit = core.pool.limit();
    core.pool.shrink_to(limit, EvictReason::Limit, &mut emptied);
    core.give_up_leaves(emptied);
    let mapped = core.window_pages.load(Relaxed);
    core.evict_mapped(mapped.saturating_sub(core.settings.mapped_pages.load(Relaxed)));
    trim(core);
}

/// Releases chunks to the system, after moving pages out of them.
pub(crate) fn trim(core: &CacheShared) {
    core.pool.trim(|from| relocate(core, from));
}

/// Moves the page in a frame to another frame, and returns whether the frame is now free.
fn relocate(core: &CacheShared, from: FrameNo) -> bool {
    let Some((at, index)) = core.pool.page_of(from) else {
        return true;
    };
    let (number, _) = core.slab.get(at).owner();
    let Some(vnode) = core.vnode(number) else {
        return false;
    };
    let mut frames = Vec::new();
    if core.take_frames(1, &mut frames) == 0 {
        return false;
    }
    let moved = vnode.relocate(at, index, from, frames[0]);
    if !moved {
        core.pool.put(frames);
    }
    moved
}
