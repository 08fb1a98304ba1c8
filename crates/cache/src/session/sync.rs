//! Writing back dirty pages and waiting for completion.
//!
//! A sync writes the pages that were dirty when it began, each once; pages dirtied later are left
//! to a later sync. A page that is under write-back and dirty again waits for the first write to
//! complete, because two concurrent writes of one page could reach the device in either order.

use super::io::{Durability, Io, Store, bufs_over};
use super::job::Job;
use super::{PAGE, Session};
use crate::flushes::Turn;
use crate::frames::ones;
use crate::leaf::{LEAF_PAGES, LeafAt, LeafNo};
use crate::policy::FrameNo;
use crate::stats::EvictReason;
use crate::tree::Vnode;
use block::{Error, Op, Result, Wait};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Frames that are taken at a time as copies of window pages.
const COPIES: usize = 16;
/// Concurrent writes of one sync.
const STORES_MAX: usize = 32;

/// A sync in progress.
pub(super) struct SyncWork {
    leaves: Vec<LeafWork>,
    /// Requested through the open file, which reports errors.
    reports_errors: bool,
    /// Force unit access with each write.
    fua: bool,
    /// Remaining flush after all pages have been written.
    flush: Flush,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flush {
    No,
    /// Only if pages were written by another sync, without FUA.
    IfOthers,
    Yes,
    /// Waits for the flush of this number.
    Shared(u64),
    Sent,
}

/// Remaining work on one leaf.
struct LeafWork {
    number: LeafNo,
    at: LeafAt,
    /// Pages to write.
    send: u64,
    /// Pages that others are writing.
    wait: u64,
}

impl SyncWork {
    /// Creates a sync of the whole file, with a flush.
    pub(super) fn whole_file(vnode: &Vnode) -> SyncWork {
        SyncWork::range(vnode, 0..u64::MAX)
    }

    /// Creates a sync of a range of pages, with a flush, that reports the open file's errors.
    pub(super) fn range(vnode: &Vnode, pages: Range<u64>) -> SyncWork {
        SyncWork {
            reports_errors: true,
            flush: Flush::Yes,
            ..SyncWork::pages(vnode, pages)
        }
    }

    /// Creates a sync of a range of pages that are on stable storage at the end.
    pub(super) fn durable_pages(vnode: &Vnode, pages: Range<u64>) -> SyncWork {
        SyncWork {
            fua: true,
            flush: Flush::IfOthers,
            ..SyncWork::pages(vnode, pages)
        }
    }

    /// Creates a sync of no pages, with a flush.
    pub(super) fn pager(vnode: &Vnode) -> SyncWork {
        SyncWork {
            flush: Flush::Yes,
            ..SyncWork::pages(vnode, 0..0)
        }
    }

    /// Creates a sync of a range of pages, which a later flush makes durable.
    pub(super) fn pages(vnode: &Vnode, pages: Range<u64>) -> SyncWork {
        let leaves = if pages.is_empty() {
            Vec::new()
        } else {
            vnode.dirty_leaves(LeafNo::of_pages(&pages))
        };
        let work = |(number, at): (LeafNo, LeafAt)| {
            let leaf = vnode.index().leaf(at);
            let wanted = mask_of(number, &pages);
            let send = leaf.dirty() & wanted;
            LeafWork {
                number,
                at,
                send,
                wait: leaf.writeback() & wanted & !send,
            }
        };
        SyncWork {
            leaves: leaves.into_iter().map(work).collect(),
            reports_errors: false,
            fua: false,
            flush: Flush::No,
        }
    }
}

/// Computes the pages of a leaf that lie in a range.
pub(super) fn mask_of(number: LeafNo, pages: &Range<u64>) -> u64 {
    let first = number.page(0);
    let from = pages.start.saturating_sub(first).min(LEAF_PAGES);
    let to = pages.end.saturating_sub(first).min(LEAF_PAGES);
    if from >= to {
        return 0;
    }
    (u64::MAX >> (64 - (to - from))) << from
}

/// Consecutive pages that are about to be written.
#[derive(Default)]
struct Run {
    first: u64,
    pages: Vec<(LeafAt, FrameNo)>,
}

impl Run {
    fn end(&self) -> u64 {
        self.first + self.pages.len() as u64
    }
}

impl Session {
    pub(super) fn step_sync(&mut self, id: usize, job: &mut Job, sync: &mut SyncWork) -> bool {
        let vnode = Arc::clone(&job.open.vnode);
        if !sync.leaves.is_empty() {
            self.send_dirty(id, job, sync, &vnode);
            if !sync.leaves.is_empty() && job.in_flight < STORES_MAX {
                vnode.write_back.waiters.register(&self.sleeper.waker);
                self.jobs.park(id);
                let starved = self.send_dirty(id, job, sync, &vnode);
                if starved && self.park_for_frame(id, job) {
                    sync.leaves.clear();
                }
            }
        }
        if !sync.leaves.is_empty() || job.in_flight > 0 {
            return false;
        }
        match sync.flush {
            Flush::Yes if job.error.is_none() => {
                sync.flush = Flush::Shared(vnode.write_back.flushes.next());
                self.step_sync(id, job, sync)
            }
            Flush::Shared(number) => match self.turn_to_flush(id, &vnode, number) {
                Turn::Begin => {
                    sync.flush = Flush::Sent;
                    job.in_flight += 1;
                    let io = Io::Flush(id, Arc::clone(&vnode));
                    self.pager.submit(vnode.file(), io, Op::Flush);
                    false
                }
                Turn::Wait => false,
                Turn::Over(result) => {
                    sync.flush = Flush::Sent;
                    if let Err(error) = result {
                        job.fail(error);
                    }
                    self.step_sync(id, job, sync)
                }
            },
            Flush::Yes | Flush::Sent => {
                // Reports every error of the open file once; this job's errors are among them.
                if sync.reports_errors {
                    let told = vnode.write_back.errors.check(&job.open.cursor).err();
                    job.error = told.or(job.error.take());
                }
                true
            }
            Flush::No | Flush::IfOthers => true,
        }
    }

    /// Determines the state of a flush of the file; parks the job while another flush runs.
    fn turn_to_flush(&mut self, id: usize, vnode: &Vnode, number: u64) -> Turn {
        let turn = vnode.write_back.flushes.next_step(number);
        if !matches!(turn, Turn::Wait) {
            return turn;
        }
        vnode.write_back.waiters.register(&self.sleeper.waker);
        self.jobs.park(id);
        vnode.write_back.flushes.next_step(number)
    }

    /// Completes a job's flush.
    pub(super) fn flushed(&mut self, id: usize, vnode: &Vnode, result: Result<()>) {
        vnode.write_back.flush_ended(&result);
        self.jobs.io_done(Some(id), result);
    }

    /// Submits the writes that are possible now, and drops completed pages from the work list.
    /// Returns whether a window page could not be copied for lack of a frame.
    fn send_dirty(
        &mut self,
        id: usize,
        job: &mut Job,
        sync: &mut SyncWork,
        vnode: &Arc<Vnode>,
    ) -> bool {
        let mut run = Run::default();
        let mut starved = false;
        let durability = match (sync.fua, sync.reports_errors) {
            (true, _) => Durability::ByFua,
            (false, true) => Durability::ByFlush,
            (false, false) => Durability::Later,
        };
        for work in &mut sync.leaves {
            let leaf = vnode.index().leaf(work.at);
            if !leaf.is(vnode.number(), work.number) {
                (work.send, work.wait) = (0, 0);
                continue;
            }
            let arrived = work.wait & !leaf.writeback();
            if arrived != 0 {
                work.wait &= !arrived;
                // Pages whose write by another sync failed are still dirty, and only that sync got
                // the error.
                work.send |= arrived & leaf.dirty();
                if sync.flush == Flush::IfOthers {
                    sync.flush = Flush::Yes;
                }
            }
            for index in ones(work.send) {
                if job.in_flight >= STORES_MAX {
                    break;
                }
                let page = work.number.page(index);
                match self.begin_store(vnode, page, Initiator::Caller) {
                    StoreStart::Frame(frame) => {
                        job.starved_since = None;
                        work.send &= !(1 << index);
                        let full = run.pages.len() >= self.shared.cluster_pages();
                        if !run.pages.is_empty() && (run.end() != page || full) {
                            let run = std::mem::take(&mut run);
                            self.store(Some(id), vnode, run, durability);
                            job.in_flight += 1;
                        }
                        if run.pages.is_empty() {
                            run.first = page;
                        }
                        run.pages.push((work.at, frame));
                    }
                    StoreStart::Clean => work.send &= !(1 << index),
                    StoreStart::ByOthers => {
                        work.send &= !(1 << index);
                        work.wait |= 1 << index;
                    }
                    StoreStart::NotYet => {}
                    StoreStart::NoFrame => starved = true,
                }
            }
        }
        if !run.pages.is_empty() {
            self.store(Some(id), vnode, run, durability);
            job.in_flight += 1;
        }
        sync.leaves.retain(|work| work.send | work.wait != 0);
        starved
    }

    /// Starts write-back of a dirty page. A leased page, which may be dirty again right after, is
    /// written only if a caller waits for it, or when it is due.
    fn begin_store(&mut self, vnode: &Vnode, page: u64, initiator: Initiator) -> StoreStart {
        let background = initiator == Initiator::Background;
        loop {
            let Some(mut latch) = vnode.latch(page) else {
                return StoreStart::Clean;
            };
            match (latch.is_dirty(), latch.is_in_writeback()) {
                (false, false) => return StoreStart::Clean,
                (false, true) => return StoreStart::ByOthers,
                (true, true) => return StoreStart::NotYet,
                (true, false) if background && latch.is_leased() && !latch.is_due() => {
                    return StoreStart::NotYet;
                }
                (true, false) => {}
            }
            if let Some(frame) = latch.begin_writeback(&mut self.spare) {
                return StoreStart::Frame(frame);
            }
            drop(latch);
            let core = &self.shared.core;
            if core.take_frames_lightly(None, COPIES, &mut self.spare) == 0 {
                if !background {
                    core.request_clean();
                }
                return StoreStart::NoFrame;
            }
        }
    }

    fn store(&mut self, job: Option<usize>, vnode: &Arc<Vnode>, run: Run, durability: Durability) {
        // SAFETY: the frames are held, so they are not written before `stored` releases them, and
        // the device only reads.
        let bufs = unsafe { bufs_over(&self.shared.core.pool, &run.pages) };
        let op = Op::Write {
            offset: run.first * PAGE,
            bufs,
            fua: durability == Durability::ByFua,
        };
        let store = Store {
            vnode: Arc::clone(vnode),
            first: run.first,
            pages: run.pages,
            job,
            durability,
            started: Instant::now(),
        };
        self.pager.submit(vnode.file(), Io::Store(store), op);
    }

    /// Starts background write-back of dirty pages of some leaves, and returns the number of pages.
    pub(crate) fn store_leaves(
        &mut self,
        vnode: &Arc<Vnode>,
        leaves: &[(LeafNo, LeafAt)],
        most: usize,
    ) -> usize {
        let mut run = Run::default();
        let mut count = 0;
        for (number, at) in leaves {
            let leaf = vnode.index().leaf(*at);
            if !leaf.is(vnode.number(), *number) {
                continue;
            }
            for index in ones(leaf.dirty() & !leaf.writeback()) {
                if count >= most {
                    break;
                }
                let page = number.page(index);
                let frame = match self.begin_store(vnode, page, Initiator::Background) {
                    StoreStart::Frame(frame) => frame,
                    // Other pages, in frames of their own, may still be written.
                    StoreStart::Clean
                    | StoreStart::ByOthers
                    | StoreStart::NotYet
                    | StoreStart::NoFrame => continue,
                };
                count += 1;
                let full = run.pages.len() >= self.shared.cluster_pages();
                if !run.pages.is_empty() && (run.end() != page || full) {
                    self.store(None, vnode, std::mem::take(&mut run), Durability::Later);
                }
                if run.pages.is_empty() {
                    run.first = page;
                }
                run.pages.push((*at, frame));
            }
        }
        if !run.pages.is_empty() {
            self.store(None, vnode, run, Durability::Later);
        }
        if !self.spare.is_empty() {
            self.shared.core.pool.put(self.spare.drain(..));
        }
        count
    }

    /// Starts write-back of many files, with requests of several in flight at once. Pages that
    /// cannot be submitted now, or exceed one cluster of a large file, are left; so is waiting for
    /// completion.
    pub(crate) fn store_many(&mut self, vnodes: &[Arc<Vnode>]) -> Result<()> {
        for vnode in vnodes {
            while self.runs_in_flight().1 >= STORES_MAX {
                self.poll(Wait::Block)?;
            }
            let leaves = vnode.dirty_leaves(LeafNo::all());
            self.store_leaves(vnode, &leaves, self.shared.cluster_pages());
        }
        Ok(())
    }

    /// Flushes background write-back to stable storage: of one file, or of several where the flush
    /// of one covers all.
    pub(crate) fn flush_behind(&mut self, vnodes: Vec<Arc<Vnode>>) {
        let Some(vnode) = vnodes.first() else { return };
        let file = vnode.file();
        if vnodes.len() == 1
            && !matches!(
                vnode
                    .write_back
                    .flushes
                    .next_step(vnode.write_back.flushes.next()),
                Turn::Begin
            )
        {
            // Another flush is running; retried at the next tick.
            self.shared.background.unflushed(vnode.number());
            return;
        }
        self.pager.submit(file, Io::FlushBehind(vnodes), Op::Flush);
    }

    pub(super) fn flushed_behind(&self, vnodes: &[Arc<Vnode>], result: &Result<()>) {
        if let [vnode] = vnodes {
            vnode.write_back.flush_ended(result);
        }
        if let Err(error) = result {
            for vnode in vnodes {
                vnode.write_back.errors.record(error.clone());
                self.shared.background.unflushed(vnode.number());
            }
        }
    }

    /// Completes the write of a run.
    pub(super) fn stored(&mut self, store: Store, result: Result<()>) {
        let vnode = &store.vnode;
        if result.is_ok() {
            self.shared
                .record_write_speed(store.pages.len(), store.started.elapsed());
            if store.durability == Durability::Later {
                self.shared.background.unflushed(vnode.number());
            }
        }
        self.arrived(&store, &result);
        self.note_store(vnode, &result);
        self.jobs.io_done(store.job, result);
    }

    /// Ends write-back of the pages of a run.
    fn arrived(&self, store: &Store, result: &Result<()>) {
        let vnode = &store.vnode;
        let good = result.is_ok();
        for (page, (_, frame)) in (store.first..).zip(&store.pages) {
            let mut latch = vnode.latch(page).expect("a page on its way stays");
            let dead = vnode.is_dead();
            latch.end_writeback(*frame, good || dead);
            if dead {
                latch.drop_page(vnode.drop_reason());
            } else if vnode.drops_behind() && !latch.is_dirty() {
                latch.drop_page(EvictReason::Behind);
            } else {
                drop(latch);
            }
            self.shared.core.pool.release(*frame, 1);
        }
    }

    fn note_store(&self, vnode: &Vnode, result: &Result<()>) {
        let core = &self.shared.core;
        let (volume, file) = (&self.shared.info.name, vnode.file().0);
        let (good, pauses) = (result.is_ok(), &core.limits.retries);
        let news = vnode.write_back.note_result(good, core.now(), pauses, file);
        match result {
            Ok(()) if news => tracing::info!(volume, file, "write-back has recovered"),
            Err(error) if news => {
                tracing::warn!(
                    name: "EVFS-0101",
                    volume, file, %error,
                    "write-back failed: the pages stay in the cache, and write-back is retried"
                );
            }
            Ok(()) | Err(_) => {}
        }
        if let Err(error) = result {
            vnode.write_back.errors.record(error.clone());
        }
        self.shared.set_failing(result.as_ref().err().cloned());
        vnode.write_back.waiters.wake_all();
        self.shared.core.pool.waiters.wake_all();
    }

    pub(super) fn store_lost(&mut self, store: Store, error: &Error) {
        let result = Err(error.clone());
        // The device may still read the frames, which is harmless: they are not written.
        self.arrived(&store, &result);
        self.note_store(&store.vnode, &result);
        self.jobs.io_done(store.job, result);
    }
}

/// Origin of a write-back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Initiator {
    /// A caller that waits for the write.
    Caller,
    /// Background write-back.
    Background,
}

/// Result of an attempt to start write-back of a page.
enum StoreStart {
    /// Started, from this frame.
    Frame(FrameNo),
    /// The page is not dirty.
    Clean,
    /// Another thread is already writing the current content.
    ByOthers,
    /// Another thread is writing older content, or the page is not due.
    NotYet,
    /// The page lies in a window, and there is no frame to copy it to.
    NoFrame,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_a_leaf_has_the_pages_of_the_range() {
        let mask = |number: u64, pages: Range<u64>| {
            mask_of(LeafNo::of_page(number * LEAF_PAGES).0, &pages)
        };
        assert_eq!(mask(0, 0..u64::MAX), u64::MAX >> 8);
        assert_eq!(mask(1, 0..56), 0);
        assert_eq!(mask(1, 0..57), 1);
        assert_eq!(mask(1, 111..500), 1 << 55);
        assert_eq!(mask(2, 114..117), 0b11100);
        assert_eq!(mask(3, 5..5), 0);
    }
}
