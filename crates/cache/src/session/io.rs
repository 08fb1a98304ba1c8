//! I/O on the pager: requests in flight and their buffers.

use crate::copy;
use crate::frames::{PAGE_BYTES, Pool};
use crate::leaf::LeafAt;
use crate::pager::{FileId, FileRequest, PagerInfo, PagerQueue};
use crate::policy::{Entry, FrameNo};
use crate::tree::{OpenState, Vnode};
use block::{Backlog, Buf, Bufs, Completion, Op, Request, Result, Wait};
use slab::Slab;
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

/// How the pages of a write-back become durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Durability {
    /// By a later flush, which background write-back sends if no caller does.
    Later,
    /// By the flush that ends the job.
    ByFlush,
    /// By the write itself, with FUA.
    ByFua,
}

/// A run of pages under write-back.
pub(super) struct Store {
    pub(super) vnode: Arc<Vnode>,
    pub(super) first: u64,
    pub(super) pages: Vec<(LeafAt, FrameNo)>,
    pub(super) job: Option<usize>,
    pub(super) durability: Durability,
    pub(super) started: Instant,
}

/// A session's queue to the pager, and the requests in flight.
pub(super) struct PagerLink {
    queue: Backlog<FileRequest, PagerInfo>,
    ios: Slab<Io>,
    /// A request was submitted to the queue since the last reap.
    sent: bool,
}

impl PagerLink {
    pub(super) fn new(queue: Box<PagerQueue>) -> PagerLink {
        PagerLink {
            queue: Backlog::new(queue),
            ios: Slab::new(),
            sent: false,
        }
    }

    /// Submits an operation, or queues it until there is room.
    pub(super) fn submit(&mut self, file: FileId, io: Io, op: Op) {
        let tag = self.ios.insert(io) as u64;
        let request = Request { tag, op };
        self.queue.submit(FileRequest { file, request });
        self.sent = true;
    }

    /// Submits queued requests as far as there is room.
    pub(super) fn send(&mut self) {
        if self.queue.is_waiting() {
            let before = self.queue.queue().in_flight();
            self.queue.resume();
            self.sent |= self.queue.queue().in_flight() > before;
        }
    }

    /// Checks whether a request was submitted since the last reap.
    pub(super) fn has_sent(&self) -> bool {
        self.sent
    }

    pub(super) fn kick(&mut self) -> Result<()> {
        self.queue.kick()
    }

    /// Submits queued requests, then reaps.
    pub(super) fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        self.sent = false;
        self.queue.reap(wait, done)
    }

    /// Ends the request of a completion.
    pub(super) fn end(&mut self, tag: u64) -> Io {
        self.ios.remove(tag as usize)
    }

    /// Ends all requests, after a fatal error of the queue: no completion will follow.
    pub(super) fn end_all(&mut self) -> Slab<Io> {
        self.queue.clear();
        std::mem::take(&mut self.ios)
    }

    /// Checks whether the queue has requests to complete.
    pub(super) fn in_flight(&self) -> bool {
        self.queue.queue().in_flight() > 0
    }

    /// Checks whether requests are in flight or queued.
    pub(super) fn is_busy(&self) -> bool {
        self.in_flight() || self.queue.is_waiting()
    }

    /// Checks whether completions make no descriptor readable.
    pub(super) fn is_deaf(&self) -> bool {
        self.queue.queue().wait_fd().is_none() && self.in_flight()
    }

    /// Checks whether a request waits for room in the queue, which makes no descriptor readable.
    pub(super) fn is_full(&self) -> bool {
        self.queue.is_waiting()
    }

    /// Counts the pages that are being loaded.
    pub(super) fn pages_under_way(&self) -> u64 {
        let pages = |(_, io): (usize, &Io)| match io {
            Io::Load(load) => load.pages.len() as u64,
            _ => 0,
        };
        self.ios.iter().map(pages).sum()
    }

    /// Counts the loads and the write-backs in flight, in runs of pages.
    pub(super) fn runs(&self) -> (usize, usize) {
        let ios = self.ios.iter();
        ios.fold((0, 0), |(loads, stores), (_, io)| match io {
            Io::Load(_) => (loads + 1, stores),
            Io::Store(_) => (loads, stores + 1),
            _ => (loads, stores),
        })
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

/// Copies data from separate buffers into frames, under a race checker.
pub(super) fn fill_frames(pool: &Pool, pages: &[(LeafAt, FrameNo)], op: &Op) {
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
