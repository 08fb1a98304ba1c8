//! A job: one request in progress in a session.

use super::PAGE;
use crate::copy;
use crate::frames::PAGE_BYTES;
use crate::open::pages_of;
use crate::policy::Entry;
use crate::tree::OpenState;
use block::{Bufs, Error, Op, Result};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

/// One request in progress.
pub(super) struct Job {
    /// Tag of a submitted request; `None` for a blocking call.
    pub(super) tag: Option<u64>,
    pub(super) open: Arc<OpenState>,
    pub(super) target: Target,
    /// First byte in the file, and length in bytes.
    pub(super) offset: u64,
    pub(super) len: u64,
    /// How the policy is to classify pages that this job loads or creates.
    pub(super) entry: Entry,
    /// Number of the job's I/Os in flight.
    pub(super) in_flight: usize,
    pub(super) error: Option<Error>,
    /// The job is done and its completion is delayed.
    pub(super) delayed: bool,
    /// Since when the job has been waiting for a frame.
    pub(super) starved_since: Option<Instant>,
    /// Number of failed loads of the vnode when the job was created.
    pub(super) failed_loads: u64,
}

/// Source or destination of a job's data.
pub(super) enum Target {
    /// A request with its buffers.
    Op(Op),
    /// Memory of a blocking caller, which outlives the call; a null pointer is never dereferenced.
    Memory(*mut u8),
    /// No data.
    Nothing,
}

/// Pages that are not done: those from `next` to `end`, and earlier ones that are to be retried.
pub(super) struct Pages {
    pub(super) next: u64,
    pub(super) end: u64,
    pub(super) again: Vec<u64>,
}

impl Pages {
    pub(super) fn of(range: Range<u64>) -> Pages {
        Pages {
            next: range.start,
            end: range.end,
            again: Vec::new(),
        }
    }

    pub(super) fn are_done(&self) -> bool {
        self.next == self.end && self.again.is_empty()
    }

    /// Cancels the remaining pages.
    pub(super) fn stop(&mut self) {
        self.next = self.end;
        self.again.clear();
    }
}

impl Job {
    pub(super) fn new(open: &Arc<OpenState>, target: Target) -> Job {
        Job {
            tag: None,
            open: Arc::clone(open),
            target,
            offset: 0,
            len: 0,
            entry: Entry::Read,
            in_flight: 0,
            error: None,
            delayed: false,
            starved_since: None,
            failed_loads: open.vnode.failed_loads.count(),
        }
    }

    /// Creates the job of a request.
    pub(super) fn of_request(open: &Arc<OpenState>, tag: Option<u64>, op: Op) -> Job {
        let (offset, len) = op.range().unwrap_or((0, 0));
        Job {
            tag,
            offset,
            len,
            ..Job::new(open, Target::Op(op))
        }
    }

    /// Creates the job of a blocking caller, on its memory.
    pub(super) fn of_memory(open: &Arc<OpenState>, offset: u64, at: *mut u8, len: usize) -> Job {
        Job {
            offset,
            len: len as u64,
            ..Job::new(open, Target::Memory(at))
        }
    }

    /// Computes the pages that the job's bytes touch.
    pub(super) fn pages(&self) -> Range<u64> {
        pages_of(self.offset, self.len)
    }

    pub(super) fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }

    /// Returns the first error of the job, if it has failed.
    pub(super) fn result(&self) -> Result<()> {
        self.error.clone().map_or(Ok(()), Err)
    }

    /// Computes the part of a page that the job covers: first byte in the page, and length.
    pub(super) fn part_of(&self, page: u64) -> (usize, usize) {
        let from = self.offset.max(page * PAGE);
        let to = (self.offset + self.len).min((page + 1) * PAGE);
        debug_assert!(from < to);
        ((from - page * PAGE) as usize, (to - from) as usize)
    }

    /// Computes the file offset at which the job's part of a page ends.
    pub(super) fn end_in(&self, page: u64) -> u64 {
        (self.offset + self.len).min((page + 1) * PAGE)
    }

    /// Checks whether the job covers the whole page.
    pub(super) fn covers(&self, page: u64) -> bool {
        self.part_of(page) == (0, PAGE_BYTES)
    }

    /// Copies the job's part of a page, which lies at `from`, to the caller's memory. The session
    /// is loading the page, so no other thread changes it.
    pub(super) fn copy_out(&mut self, page: u64, from: NonNull<u8>) {
        let (within, len) = self.part_of(page);
        let at = (page * PAGE + within as u64 - self.offset) as usize;
        let mut from = from.as_ptr().wrapping_add(within);
        let each = |to: *mut u8, len: usize| {
            // SAFETY: `from` is inside a page, and the parts are the caller's buffers.
            unsafe { copy::out_of_page(from, to, len) };
            from = from.wrapping_add(len);
        };
        match &mut self.target {
            Target::Op(Op::Read { bufs, .. }) => parts_mut(bufs, at, len, each),
            Target::Memory(base) => parts_of_memory(*base, at, len, each),
            Target::Op(_) | Target::Nothing => {}
        }
    }

    /// Copies the job's part of a page from the caller's memory to the page at `to`, which this
    /// session has latched or is loading. Without data, writes zeros.
    pub(super) fn take(&self, page: u64, to: NonNull<u8>) {
        let (within, len) = self.part_of(page);
        let at = (page * PAGE + within as u64 - self.offset) as usize;
        let mut to = to.as_ptr().wrapping_add(within);
        let each = |from: *mut u8, len: usize| {
            // SAFETY: the parts are the caller's buffers, `to` is inside a page that is the
            // session's.
            unsafe { copy::into_page(from, to, len) };
            to = to.wrapping_add(len);
        };
        match &self.target {
            Target::Op(Op::Write { bufs, .. }) => parts(bufs, at, len, each),
            Target::Memory(base) => parts_of_memory(*base, at, len, each),
            // SAFETY: as above.
            Target::Op(_) | Target::Nothing => unsafe { copy::zero_page(to, len) },
        }
    }
}

/// Calls `each` for the segments of `len` bytes at offset `at` in a list of buffers.
fn parts(bufs: &Bufs, at: usize, len: usize, mut each: impl FnMut(*mut u8, usize)) {
    let mut skip = at;
    let mut left = len;
    for buf in bufs.iter() {
        if skip >= buf.len() {
            skip -= buf.len();
            continue;
        }
        let step = left.min(buf.len() - skip);
        each(buf[skip..].as_ptr().cast_mut(), step);
        left -= step;
        skip = 0;
        if left == 0 {
            return;
        }
    }
}

fn parts_mut(bufs: &mut Bufs, at: usize, len: usize, mut each: impl FnMut(*mut u8, usize)) {
    let mut skip = at;
    let mut left = len;
    for buf in bufs.iter_mut() {
        if skip >= buf.len() {
            skip -= buf.len();
            continue;
        }
        let step = left.min(buf.len() - skip);
        each(buf[skip..].as_mut_ptr(), step);
        left -= step;
        skip = 0;
        if left == 0 {
            return;
        }
    }
}

fn parts_of_memory(base: *mut u8, at: usize, len: usize, mut each: impl FnMut(*mut u8, usize)) {
    each(base.wrapping_add(at), len);
}
