//! I/O on the pager: requests in flight, and the handling of their completions.

use super::Session;
use super::job::Target;
use crate::copy;
use crate::frames::{PAGE_BYTES, Pool};
use crate::leaf::LeafAt;
use crate::pager::FileId;
use crate::policy::Entry;
use crate::policy::FrameNo;
use crate::tree::{OpenState, Vnode};
use block::{Buf, Bufs, Completion, Error, Op, Request, Result};
use std::sync::Arc;
use std::time::Instant;

/// A request in flight.
pub(super) enum Io {
    /// A load of pages.
    Load(Load),
    /// A write-back of pages.
    Store(Store),
    /// A flush of this file, for a job.
    Flush(usize, Arc<Vnode>),
    /// A flush of files written by background write-back.
    FlushBehind(Vec<Arc<Vnode>>),
    /// A job's own request, which bypasses the cache.
    Direct(usize),
}

/// A run of pages that the session loads.
pub(super) struct Load {
    pub(super) open: Arc<OpenState>,
    pub(super) first: u64,
    pub(super) pages: Vec<(LeafAt, FrameNo)>,
    /// Size of the file when the load began; bytes beyond it are zeroed.
    pub(super) size: u64,
    /// The job that needs the pages; `None` for read-ahead.
    pub(super) job: Option<usize>,
    pub(super) entry: Entry,
}

/// A run of pages under write-back.
pub(super) struct Store {
    pub(super) vnode: Arc<Vnode>,
    pub(super) first: u64,
    pub(super) pages: Vec<(LeafAt, FrameNo)>,
    pub(super) job: Option<usize>,
    /// The job also makes the pages durable.
    pub(super) durable: bool,
    pub(super) started: Instant,
}

impl Session {
    /// Submits an operation, or queues it until there is room.
    pub(super) fn submit_below(&mut self, file: FileId, io: Io, op: Op) {
        let tag = self.ios.insert(io) as u64;
        self.outgoing.push_back((file, Request { tag, op }));
        self.send();
    }

    /// Submits queued requests as far as there is room.
    pub(super) fn send(&mut self) {
        while let Some((file, request)) = self.outgoing.pop_front() {
            if let Err(request) = self.queue.submit(file, request) {
                self.outgoing.push_front((file, request));
                return;
            }
            self.sent = true;
        }
    }

    /// Counts the pages that are being loaded.
    pub(super) fn pages_under_way(&self) -> u64 {
        let pages = |io: &Io| match io {
            Io::Load(load) => load.pages.len() as u64,
            _ => 0,
        };
        self.ios.slots.iter().flatten().map(pages).sum()
    }

    /// Counts the loads and the write-backs in flight, in runs of pages.
    pub(crate) fn runs_in_flight(&self) -> (usize, usize) {
        let ios = self.ios.slots.iter().flatten();
        ios.fold((0, 0), |(loads, stores), io| match io {
            Io::Load(_) => (loads + 1, stores),
            Io::Store(_) => (loads, stores + 1),
            _ => (loads, stores),
        })
    }

    pub(super) fn completed(&mut self, completion: Completion) {
        let Completion { tag, op, result } = completion;
        let io = self.ios.remove(tag as usize);
        match io.expect("each tag below stands for one I/O") {
            Io::Load(load) => {
                if cfg!(evfs_tsan) && result.is_ok() {
                    fill_frames(&self.shared.core.pool, &load.pages, &op);
                }
                // The buffers release the frames before any other thread may read them.
                drop(op);
                self.loaded(load, result);
            }
            Io::Store(store) => {
                drop(op);
                self.stored(store, result);
            }
            Io::Flush(id, vnode) => self.flushed(id, &vnode, result),
            Io::FlushBehind(vnodes) => self.flushed_behind(&vnodes, &result),
            Io::Direct(id) => {
                let job = self.jobs.get_mut(id).expect("it waits for this");
                job.in_flight -= 1;
                job.target = Target::Op(op);
                if let Err(error) = result {
                    job.fail(error);
                }
                self.runnable.push(id);
            }
        }
    }

    /// Records the end of a job's I/O.
    pub(super) fn job_io_done(&mut self, id: Option<usize>, result: Result<()>) {
        let Some(id) = id else { return };
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        job.in_flight -= 1;
        if let Err(error) = result {
            job.fail(error);
        }
        self.runnable.push(id);
    }

    /// Fails all I/O and jobs after a fatal error of the pager's queue: no completion will follow.
    /// The frames are not reused, because the device may still write to them.
    pub(super) fn fail_everything(&mut self, error: &Error) {
        self.outgoing.clear();
        for id in 0..self.ios.slots.len() {
            match self.ios.remove(id) {
                Some(Io::Load(load)) => self.load_lost(load, error),
                Some(Io::Store(store)) => self.store_lost(store, error),
                Some(Io::Flush(job, vnode)) => self.flushed(job, &vnode, Err(error.clone())),
                Some(Io::Direct(job)) => self.job_io_done(Some(job), Err(error.clone())),
                Some(Io::FlushBehind(vnodes)) => self.flushed_behind(&vnodes, &Err(error.clone())),
                None => {}
            }
        }
        let jobs = (0..self.jobs.slots.len()).filter(|id| self.jobs.slots[*id].is_some());
        for id in jobs.collect::<Vec<_>>() {
            let job = self.jobs.get_mut(id).expect("it is there");
            job.fail(error.clone());
            self.runnable.push(id);
        }
    }
}

/// Builds the buffers of a read into frames.
///
/// A reader that copied from a frame while it belonged to another page, and has not yet found out,
/// may still read it while the device writes to it; that copy is discarded. A race checker cannot
/// know this of a device, so under one the device writes to a separate buffer and [`fill_frames`]
/// copies it.
///
/// # Safety
/// Like [`Pool::buf`], for each frame.
pub(super) unsafe fn bufs_to_fill(pool: &Arc<Pool>, pages: &[(LeafAt, FrameNo)]) -> Bufs {
    if cfg!(evfs_tsan) {
        return Buf::zeroed(pages.len() * PAGE_BYTES).into();
    }
    // SAFETY: as required of the caller.
    unsafe { bufs_over(pool, pages) }
}

fn fill_frames(pool: &Pool, pages: &[(LeafAt, FrameNo)], op: &Op) {
    let Op::Read { bufs, .. } = op else { return };
    let bytes = bufs.iter().flat_map(|buf| buf.chunks(PAGE_BYTES));
    for ((_, frame), page) in pages.iter().zip(bytes) {
        // SAFETY: the session is loading the page, so it alone uses the frame.
        unsafe { copy::into_page(page.as_ptr(), pool.at(*frame).as_ptr(), page.len()) };
    }
}

/// Builds buffers over frames, one for each run of contiguous frames.
///
/// # Safety
/// Like [`Pool::buf`], for each frame.
pub(super) unsafe fn bufs_over(pool: &Arc<Pool>, pages: &[(LeafAt, FrameNo)]) -> Bufs {
    let mut rows = pages.chunk_by(|a, b| a.1.0 + 1 == b.1.0);
    let one = |row: &[(LeafAt, FrameNo)]| {
        // SAFETY: as required of the caller.
        unsafe { pool.buf(row[0].1, row.len()) }
    };
    let first = rows.next().map(one).expect("there is a page");
    let rest: Vec<_> = rows.map(one).collect();
    if rest.is_empty() {
        return first.into();
    }
    let mut all = Vec::with_capacity(rest.len() + 1);
    all.push(first);
    all.extend(rest);
    all.into()
}
