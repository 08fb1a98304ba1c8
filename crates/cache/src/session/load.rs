//! Loading pages.

use super::io::{Io, Load, bufs_to_fill};
use super::{PAGE, Session};
use crate::copy;
use crate::frames::PAGE_BYTES;
use crate::leaf::LeafNo;
use crate::page_state::PageLocation;
use crate::policy::Entry;
use crate::policy::FrameNo;
use crate::stats::add;
use crate::tree::{OpenState, Vnode};
use block::{Error, ErrorKind, Op, Result};
use std::sync::Arc;

/// Most pages in one read: keeps buffer lists well within the limits of a system call.
const RUN_MAX: u64 = 512;

/// Result of an attempt to start loading pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoadStart {
    /// The load of this number of pages has started, from the first one on.
    Pages(u64),
    /// No frame is available.
    NoFrame,
    /// The range is locked.
    Locked,
    /// Another thread was faster; the caller tries again.
    Raced,
}

impl Session {
    /// Loads absent pages from `first` on, up to the first that is not absent, or `end`.
    pub(super) fn load(
        &mut self,
        open: &Arc<OpenState>,
        first: u64,
        end: u64,
        job: Option<usize>,
        entry: Entry,
    ) -> LoadStart {
        let vnode = &open.vnode;
        let longest = u64::from(self.shared.info.max_transfer) / PAGE;
        let want = absent_from(vnode, first, end.min(first + longest.min(RUN_MAX)));
        if want == 0 {
            return LoadStart::Raced;
        }
        let mut frames = std::mem::take(&mut self.spare);
        if frames.len() < want {
            let missing = want - frames.len();
            let core = &self.shared.core;
            let node = vnode.attributes().numa_node;
            match entry {
                Entry::Prefetched => {
                    core.take_frames_lightly(node.or(self.near), missing, &mut frames)
                }
                _ => core.take_frames_near(node, missing, &mut frames),
            };
            frames.sort_unstable();
        }
        if frames.is_empty() {
            self.spare = frames;
            return LoadStart::NoFrame;
        }
        let mut pages = Vec::with_capacity(want.min(frames.len()));
        let mut begun = LoadStart::Raced;
        for (page, frame) in (first..).zip(frames.iter().copied()).take(want) {
            begun = self.begin(vnode, page, frame, &mut pages);
            if begun != LoadStart::Pages(1) {
                break;
            }
        }
        frames.drain(..pages.len());
        self.spare = frames;
        if pages.is_empty() {
            return begun;
        }
        let count = pages.len() as u64;
        // SAFETY: the words say that the session is loading the pages, so no other thread touches
        // their frames before it publishes them, which it does after the buffers have been dropped.
        let bufs = unsafe { bufs_to_fill(&self.shared.core.pool, &pages) };
        let load = Load {
            open: Arc::clone(open),
            first,
            pages,
            size: vnode.size(),
            job,
            entry,
        };
        let op = Op::Read {
            offset: first * PAGE,
            bufs,
        };
        self.pager.submit(vnode.file(), Io::Load(load), op);
        LoadStart::Pages(count)
    }

    /// Reads absent pages ahead, unless frames are short.
    pub(crate) fn load_ahead(
        &mut self,
        open: &Arc<OpenState>,
        pages: std::ops::Range<u64>,
        near: Option<u32>,
    ) {
        let core = &self.shared.core;
        let many = pages.end.saturating_sub(pages.start);
        if core.pool.waiters.any() || !core.may_read_ahead(many, self.pager.pages_under_way()) {
            return;
        }
        self.near = near;
        let mut next = pages.start;
        while next < pages.end && !open.vnode.is_dead() {
            match self.load(open, next, pages.end, None, Entry::Prefetched) {
                LoadStart::Pages(count) => next += count,
                // Pages that are resident, being loaded or locked are skipped.
                LoadStart::Raced | LoadStart::Locked => next += 1,
                LoadStart::NoFrame => break,
            }
        }
        if !self.spare.is_empty() {
            self.shared.core.pool.put(self.spare.drain(..));
        }
    }

    /// Parks a job until a page of a locked range may be loaded. `false`: it may be already.
    pub(super) fn waits_for_range(&mut self, id: usize, vnode: &Vnode, page: u64) -> bool {
        vnode.ranges.wait(&self.sleeper.waker);
        let locked = !vnode.ranges.admits(page);
        if locked {
            self.jobs.park(id);
        }
        locked
    }

    /// Marks an absent page as being loaded by this session.
    fn begin(
        &self,
        vnode: &Vnode,
        page: u64,
        frame: FrameNo,
        pages: &mut Vec<(crate::leaf::LeafAt, FrameNo)>,
    ) -> LoadStart {
        let (number, index) = LeafNo::of_page(page);
        let at = vnode.index().acquire(number);
        let word = vnode.index().leaf(at).word(index);
        if !word.begin_load(word.load(), frame.0) {
            vnode.index().release(number, at);
            return LoadStart::Raced;
        }
        if !vnode.ranges.admits(page) {
            if word.abort_load() {
                self.wake_loads(word);
            }
            vnode.index().release(number, at);
            return LoadStart::Locked;
        }
        self.shared.core.pool.assign(frame, at, index);
        pages.push((at, frame));
        LoadStart::Pages(1)
    }

    /// Marks an absent page as being created by this session, in one of its spare frames. On
    /// [`LoadStart::Pages`] the caller fills the frame and calls [`Session::publish_written`].
    pub(super) fn begin_alone(&mut self, vnode: &Vnode, page: u64) -> (LoadStart, Option<FrameNo>) {
        if self.spare.is_empty() && self.shared.core.take_frames(1, &mut self.spare) == 0 {
            return (LoadStart::NoFrame, None);
        }
        let frame = self.spare[0];
        let begun = self.begin(vnode, page, frame, &mut Vec::with_capacity(1));
        if begun == LoadStart::Pages(1) {
            self.spare.swap_remove(0);
            return (begun, Some(frame));
        }
        (begun, None)
    }

    /// Publishes a page that the session has filled, as dirty; extends the file to `end`.
    pub(super) fn publish_written(
        &mut self,
        vnode: &Vnode,
        page: u64,
        frame: FrameNo,
        entry: Entry,
        end: u64,
    ) {
        let (at, index) = vnode.find_exact(page).expect("the page keeps its leaf");
        let leaf = vnode.index().leaf(at);
        let key = leaf.key(index);
        self.shared
            .core
            .pool
            .inserted([(frame, key)], vnode.entry(entry));
        vnode.extend(end);
        vnode.mark_dirty(at, page, PageLocation::Frame(frame.0));
        let word = leaf.word(index);
        if word.publish() {
            self.wake_loads(word);
        }
        if vnode.is_dead() {
            vnode.drop_dead(page..page + 1);
        }
    }

    /// Completes the read of a run.
    pub(super) fn loaded(&mut self, load: Load, result: Result<()>) {
        if let Err(error) = &result {
            self.give_up_load(&load, error);
            let frames = load.pages.iter().map(|(_, frame)| *frame);
            self.shared.core.pool.put(frames);
            return self.jobs.io_done(load.job, result);
        }
        let mut task = load.job.and_then(|id| self.jobs.take(id));
        let vnode = &load.open.vnode;
        let pool = &self.shared.core.pool;
        let mut dirty = false;
        for (page, (_, frame)) in (load.first..).zip(&load.pages) {
            let data = pool.at(*frame);
            if (page + 1) * PAGE > load.size {
                let keep = load.size.saturating_sub(page * PAGE) as usize;
                // SAFETY: the session is loading the page, so it alone uses the frame.
                unsafe { copy::zero_page(data.as_ptr().add(keep), PAGE_BYTES - keep) };
            }
            if let Some(task) = &mut task
                && task.apply(page, data)
            {
                dirty = true;
                vnode.extend(task.job.end_in(page));
            }
        }
        let keyed = load
            .pages
            .iter()
            .zip(load.first..)
            .map(|((at, frame), page)| {
                let leaf = vnode.index().leaf(*at);
                (*frame, leaf.key(LeafNo::index_of(page)))
            });
        pool.inserted(keyed, vnode.entry(load.entry));
        let ahead = load.entry == Entry::Prefetched;
        if ahead {
            add(&load.open.counters.read_ahead, load.pages.len() as u64);
        }
        for (page, (at, frame)) in (load.first..).zip(&load.pages) {
            if dirty {
                vnode.mark_dirty(*at, page, PageLocation::Frame(frame.0));
            }
            let word = vnode.index().leaf(*at).word(LeafNo::index_of(page));
            let awaited = if ahead {
                word.publish_ahead()
            } else {
                word.publish()
            };
            if awaited {
                self.wake_loads(word);
            }
        }
        let range = load.first..load.first + load.pages.len() as u64;
        if vnode.is_dead() {
            vnode.drop_dead(range);
        }
        if let (Some(id), Some(task)) = (load.job, task) {
            add(&load.open.counters.misses, load.pages.len() as u64);
            self.jobs.restore(id, task);
        }
        self.jobs.io_done(load.job, result);
    }

    /// Aborts the load of a run that failed; its frames are left to the caller.
    fn give_up_load(&self, load: &Load, error: &Error) {
        let vnode = &load.open.vnode;
        let range = load.first..load.first + load.pages.len() as u64;
        vnode.failed_loads.record(range.clone(), error.clone());
        for (page, (at, _)) in range.zip(&load.pages) {
            let (number, index) = LeafNo::of_page(page);
            let word = vnode.index().leaf(*at).word(index);
            if word.abort_load() {
                self.wake_loads(word);
            }
            vnode.index().release(number, *at);
        }
    }

    pub(super) fn load_lost(&mut self, load: Load, error: &Error) {
        // The device may still write to the frames, so they are not reused.
        self.give_up_load(&load, error);
        self.jobs.io_done(load.job, Err(error.clone()));
    }

    pub(super) fn wake_loads(&self, word: &crate::page_state::PageState) {
        let address = std::ptr::from_ref(word) as usize;
        self.shared.core.loads.of(address).wake_all();
    }

    /// Registers for the end of a page's load; returns whether the page is still being loaded.
    pub(super) fn await_load(&self, vnode: &Vnode, page: u64) -> bool {
        let Some((at, index)) = vnode.find_exact(page) else {
            return false;
        };
        let word = vnode.index().leaf(at).word(index);
        self.shared
            .core
            .loads
            .of(std::ptr::from_ref(word) as usize)
            .register(&self.sleeper.waker);
        word.await_load(word.load())
    }

    /// Creates the error for accesses to a removed file.
    pub(super) fn removed_error(&self) -> Error {
        Error::new(
            ErrorKind::NotFound,
            &self.shared.info.name,
            "the file was removed",
        )
    }
}

/// Counts the consecutive absent pages from `first` on, up to `end`.
fn absent_from(vnode: &Vnode, first: u64, end: u64) -> usize {
    let absent = |page: &u64| match vnode.find_exact(*page) {
        Some((at, index)) => {
            let leaf = vnode.index().leaf(at);
            !vnode.owns(leaf, *page) || leaf.word(index).load().is_empty()
        }
        None => true,
    };
    (first..end).take_while(absent).count()
}
