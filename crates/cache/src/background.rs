//! The background thread of one volume: writes back dirty pages that are due, reads ahead, and
//! releases memory.
//!
//! **Invariant:** pages that have reached their maximum age are written and flushed, so that a
//! power cut loses no more than the sync interval. Failed write-back is retried indefinitely: an
//! error keeps the page dirty, is recorded for the open files, and lengthens the delay until the
//! next attempt. Writing back a page of the pool takes no frame, so the thread can always make
//! room, and then there are frames for writing back mapped pages.

use crate::dirty_vnodes::DIRTY_FILES_MAX;
use crate::frames::EvictionBatch;
use crate::leaf::{LeafAt, LeafNo};
use crate::open::pages_of;
use crate::policy::FrameNo;
use crate::reclaim::{self, ReclaimResult};
use crate::session::Session;
use crate::stats::EvictReason;
use crate::tree::{CacheShared, LoadRequest, OpenState, Vnode, VolumeShared};
use block::Result;
use layer_cpu::{Layer, home};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Concurrent reads above which no further load is started.
const LOADS_MAX: usize = 16;
/// Concurrent writes above which no further write-back is started.
const STORES_MAX: usize = 16;
/// Dirty pages written back when a session needs a clean one.
const CLEAN_PAGES: usize = 256;
/// Pages loaded per job.
const LOAD_PAGES_MAX: u64 = 512;

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
            name: "EVFS-0103",
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
    let jobs = &below.background;
    let mut looked = Instant::now();
    let mut more = true;
    while !jobs.is_stopped() {
        while session.runs_in_flight().0 < LOADS_MAX
            && let Some(request) = jobs.next_load()
        {
            load_pages(session, request);
        }
        while session.runs_in_flight().1 < STORES_MAX
            && let Some((vnode, pages)) = jobs.next_write_behind()
        {
            write_behind(session, &vnode, &pages);
        }
        let tick = looked.elapsed() >= core.limits.tick;
        let pressed = jobs.take_write_out() | jobs.wants_clean();
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

fn load_pages(session: &mut Session, request: LoadRequest) {
    match request {
        LoadRequest::Pages(vnode, pages, near) => {
            if let Some(vnode) = vnode.upgrade() {
                let open = OpenState::new(vnode);
                let end = pages.end.min(pages.start + LOAD_PAGES_MAX);
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
        let leaves = vnode.dirty_leaves(LeafNo::of_pages(pages));
        session.store_leaves(&vnode, &leaves, usize::MAX);
    }
}

/// Writes back pages that are due, the oldest first. Returns whether some could not be submitted
/// yet.
fn write_due(below: &VolumeShared, session: &mut Session) -> bool {
    let core = &below.core;
    let jobs = &below.background;
    let clean = jobs.take_clean();
    let now = core.now_ms();
    let soonest = core.settings.sync_ms.load(Relaxed);
    let soonest = soonest.min(jobs.own_sync_ms());
    let mut forced = core.dirty_pages().saturating_sub(core.background_pages());
    if clean {
        forced = forced.max(CLEAN_PAGES);
    }
    let mut files = jobs.dirty.len().saturating_sub(DIRTY_FILES_MAX);
    let mut from = (0, 0);
    while let Some((since, number)) = jobs.dirty.oldest(from) {
        if forced == 0 && files == 0 && since + soonest > now {
            break;
        }
        let too_many = files > 0;
        files = files.saturating_sub(1);
        from = (since, number + 1);
        let found = core.vnodes.get(number);
        let is_dirty = || found.as_ref().is_some_and(|vnode| vnode.dirty_pages() > 0);
        let Some(vnode) = found.as_ref().filter(|_| is_dirty()) else {
            jobs.dirty.remove_unless(number, is_dirty);
            continue;
        };
        let oldest = vnode.oldest_dirty_ms().unwrap_or(since);
        if oldest > since {
            // The vnode is visited again in order of its new age.
            jobs.dirty.set_since(number, oldest);
            continue;
        }
        if !vnode.write_back.may_retry(core.now()) {
            continue;
        }
        let due = |number_at: &(LeafNo, LeafAt)| {
            let leaf = vnode.index().leaf(number_at.1);
            leaf.dirty() != 0 && leaf.dirty_since_ms() + vnode.sync_ms() <= now
        };
        let mut leaves = vnode.dirty_leaves(LeafNo::all());
        let most = if too_many {
            usize::MAX
        } else if forced > 0 {
            forced
        } else {
            leaves.retain(due);
            usize::MAX
        };
        let room = STORES_MAX.saturating_sub(session.runs_in_flight().1);
        let most = most.min(room * below.cluster_pages());
        let sent = session.store_leaves(vnode, &leaves, most);
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
        let Some(vnode) = below.core.vnodes.get(number) else {
            continue;
        };
        let Some(mapped) = vnode.mapped() else {
            continue;
        };
        match reclaim::reclaim(&vnode, mapped) {
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
    let vnodes: Vec<Arc<Vnode>> = numbers.filter_map(|n| below.core.vnodes.get(n)).collect();
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
    core.pool.charge(core.file_frames(), &mut emptied);
    let limit = core.pool.limit();
    core.pool.shrink_to(limit, EvictReason::Limit, &mut emptied);
    core.give_up_leaves(emptied);
    let most = core.settings.mapped_pages.load(Relaxed);
    reclaim::evict_mapped(core, core.windows.pages().saturating_sub(most));
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
    let Some(vnode) = core.vnodes.get(number) else {
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
