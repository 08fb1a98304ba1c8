//! Making a file shorter.
//!
//! First the range beyond the new end is locked against loads and its pages are dropped; then,
//! atomically under the latch of the new last page, the rest of that page is zeroed and the size
//! changes. So every reader and writer sees the file either before or after the change, and a write
//! that raced with the change restarts as one that follows it.

use super::direct::{DropCause, Dropped};
use super::job::Job;
use super::load::LoadStart;
use super::{PAGE, Session};
use crate::copy;
use crate::latch::{Content, pause};
use crate::policy::Entry;
use crate::tree::Vnode;
use std::ops::Range;
use std::sync::Arc;

/// A truncation in progress.
pub(super) struct Truncation {
    size: u64,
    locked: bool,
    dropped: bool,
    announced: bool,
}

impl Truncation {
    pub(super) fn to(size: u64) -> Truncation {
        Truncation {
            size,
            locked: false,
            dropped: false,
            announced: false,
        }
    }

    /// Computes the pages to drop.
    fn pages(&self) -> Range<u64> {
        self.size.div_ceil(PAGE)..u64::MAX / PAGE
    }

    fn unlock(&mut self, vnode: &Vnode) {
        if std::mem::take(&mut self.locked) {
            vnode.ranges.unlock(&self.pages());
        }
    }

    pub(super) fn abort(&self, vnode: &Vnode) {
        if self.locked {
            vnode.ranges.unlock(&self.pages());
        }
    }
}

impl Session {
    pub(super) fn step_truncate(
        &mut self,
        id: usize,
        job: &mut Job,
        truncation: &mut Truncation,
    ) -> bool {
        let vnode = Arc::clone(&job.open.vnode);
        if job.in_flight > 0 {
            return false;
        }
        if !truncation.locked {
            vnode.ranges.lock(truncation.pages());
            truncation.locked = true;
        }
        if job.error.is_none() && !truncation.dropped {
            let pages = truncation.pages();
            if self.drop_range(id, &vnode, &pages, DropCause::Cut) == Dropped::Later {
                return false;
            }
            truncation.dropped = true;
        }
        if job.error.is_none() && !self.cut_last_page(id, job, truncation, &vnode) {
            return false;
        }
        truncation.unlock(&vnode);
        true
    }

    /// Zeroes the end of the last page and changes the size. `false`: the job has to wait.
    fn cut_last_page(
        &mut self,
        id: usize,
        job: &mut Job,
        truncation: &mut Truncation,
        vnode: &Arc<Vnode>,
    ) -> bool {
        let (page, keep) = (truncation.size / PAGE, (truncation.size % PAGE) as usize);
        if keep == 0 || truncation.size >= vnode.size() {
            vnode.shrink(truncation.size);
            return true;
        }
        if !std::mem::replace(&mut truncation.announced, true) {
            let bytes = page * PAGE..(page + 1) * PAGE;
            if let Err(error) = vnode.shared().pager.will_write(vnode.file(), bytes) {
                job.fail(error);
                return true;
            }
        }
        let mut turn = 0;
        loop {
            if let Some(mut latch) = vnode.latch(page) {
                if latch.make_private(&mut self.spare, Content::Kept).is_none() {
                    drop(latch);
                    if self.shared.core.take_frames(1, &mut self.spare) == 0 {
                        return self.park_for_frame(id, job);
                    }
                    continue;
                }
                // SAFETY: the page is latched, and its frame is not held.
                unsafe {
                    let end = latch.data().as_ptr().add(keep);
                    copy::zero_page(end, PAGE as usize - keep);
                }
                latch.mark_dirty();
                vnode.shrink(truncation.size);
                return true;
            }
            if self.await_load(vnode, page) {
                self.jobs.park(id);
                return false;
            }
            let open = Arc::clone(&job.open);
            match self.load(&open, page, page + 1, Some(id), Entry::Read) {
                LoadStart::Pages(_) => {
                    job.in_flight += 1;
                    return false;
                }
                LoadStart::NoFrame => return self.park_for_frame(id, job),
                LoadStart::Locked => {
                    if self.waits_for_range(id, vnode, page) {
                        return false;
                    }
                }
                LoadStart::Raced => pause(&mut turn),
            }
        }
    }
}
