//! Writing into the cache.
//!
//! A resident page is changed under its latch; if its frame is held, it first moves to another
//! frame. An absent page is loaded only if part of it is preserved. The file grows page by page,
//! atomically with the data, so that there is never data behind its end. A write that ends after a
//! concurrent truncation restarts, so that it counts as one that followed it.

use super::job::{Job, Pages};
use super::load::LoadStart;
use super::sync::SyncWork;
use super::{PAGE, Session};
use crate::attributes::FlushBehind;
use crate::copy;
use crate::frames::PAGE_BYTES;
use crate::latch::{Content, Latch, pause};
use crate::leaf::FILE_BYTES_MAX;
use crate::stats::add;
use crate::tree::Vnode;
use block::{Error, ErrorKind, Result};
use std::ops::Range;

/// A write in progress.
pub(super) struct Write {
    pages: Pages,
    all: Range<u64>,
    /// The pager has accepted the range.
    announced: bool,
    /// Number of truncations of the file when the write began.
    cuts: u64,
    fua: bool,
    /// Write-back of the written range with waiting, after all pages are done.
    sync: Option<SyncWork>,
}

impl Write {
    pub(super) fn new(vnode: &Vnode, pages: Range<u64>) -> Write {
        Write {
            pages: Pages::of(pages.clone()),
            all: pages,
            announced: false,
            cuts: vnode.truncations(),
            fua: false,
            sync: None,
        }
    }

    /// Returns the same write, with the flag of its request that it is durable when it completes.
    pub(super) fn with_fua(self, fua: bool) -> Write {
        Write { fua, ..self }
    }

    /// Checks whether the write waits for its write-back, and so leaves no backlog.
    pub(super) fn is_durable(&self) -> bool {
        self.sync.is_some()
    }
}

/// Result of an attempt at one page.
enum WriteProgress {
    Done,
    /// The page is being loaded for this job.
    OnItsWay,
    /// The page waits for another session.
    Later,
    NoFrame,
    Failed,
}

impl Session {
    pub(super) fn step_write(&mut self, id: usize, job: &mut Job, write: &mut Write) -> bool {
        if let Some(sync) = &mut write.sync {
            return self.step_sync(id, job, sync);
        }
        if job.offset.saturating_add(job.len) > FILE_BYTES_MAX {
            let name = &self.shared.info.name;
            job.fail(Error::new(
                ErrorKind::OutOfRange,
                name,
                "the maximum file size is 14 PiB",
            ));
        }
        for page in std::mem::take(&mut write.pages.again) {
            self.write_or_keep(id, job, write, page);
        }
        while write.pages.next < write.pages.end && job.error.is_none() {
            let page = write.pages.next;
            match self.write_page(id, job, write, page) {
                WriteProgress::NoFrame => break,
                WriteProgress::Later => write.pages.again.push(page),
                WriteProgress::Done | WriteProgress::OnItsWay | WriteProgress::Failed => {}
            }
            write.pages.next += 1;
        }
        if job.error.is_some() {
            write.pages.stop();
            return true;
        }
        if !write.pages.are_done() || job.in_flight > 0 {
            return false;
        }
        self.all_written(id, job, write)
    }

    fn write_or_keep(&mut self, id: usize, job: &mut Job, write: &mut Write, page: u64) {
        if job.error.is_none()
            && let WriteProgress::Later | WriteProgress::NoFrame =
                self.write_page(id, job, write, page)
        {
            write.pages.again.push(page);
        }
    }

    /// Continues when all data is in its pages.
    fn all_written(&mut self, id: usize, job: &mut Job, write: &mut Write) -> bool {
        let vnode = std::sync::Arc::clone(&job.open.vnode);
        if vnode.truncations() != write.cuts {
            *write = Write::new(&vnode, write.all.clone()).with_fua(write.fua);
            return self.step_write(id, job, write);
        }
        add(&job.open.counters.writes, write.all.end - write.all.start);
        let Some(mut sync) = self.behind(&vnode, job, write) else {
            return true;
        };
        let done = self.step_sync(id, job, &mut sync);
        write.sync = Some(sync);
        done
    }

    /// Creates the write-back that a finished write waits for: its own range with FUA, or, by the
    /// file's attribute, the clusters that it has completed.
    fn behind(&self, vnode: &std::sync::Arc<Vnode>, job: &Job, write: &Write) -> Option<SyncWork> {
        if write.fua {
            return Some(SyncWork::durable_pages(vnode, write.all.clone()));
        }
        let policy = vnode.flush_behind();
        if policy == FlushBehind::None {
            return None;
        }
        let cluster = self.shared.cluster_pages() as u64;
        let end = (job.offset + job.len) / PAGE / cluster * cluster;
        if end <= write.all.start {
            return None;
        }
        let done = (write.all.start / cluster * cluster)..end;
        if policy == FlushBehind::Inline {
            return Some(SyncWork::pages(vnode, done));
        }
        self.shared.background.write_behind(vnode, done);
        None
    }

    fn write_page(
        &mut self,
        id: usize,
        job: &mut Job,
        write: &mut Write,
        page: u64,
    ) -> WriteProgress {
        let open = std::sync::Arc::clone(&job.open);
        let vnode = &*open.vnode;
        let whole = job.covers(page);
        let mut turn = 0;
        loop {
            if vnode.is_dead() {
                job.fail(self.removed_error());
                return WriteProgress::Failed;
            }
            if vnode.size() < page * PAGE {
                if let Err(error) = announce(vnode, write) {
                    job.fail(error);
                    return WriteProgress::Failed;
                }
                vnode.extend(page * PAGE);
            }
            if let Some(latch) = vnode.latch(page) {
                match self.write_latched(job, write, latch, page, whole) {
                    Ok(Some(tried)) => {
                        if let WriteProgress::NoFrame = tried {
                            self.park_for_frame(id, job);
                        }
                        return tried;
                    }
                    Ok(None) => continue,
                    Err(error) => {
                        job.fail(error);
                        return WriteProgress::Failed;
                    }
                }
            }
            if self.await_load(vnode, page) {
                add(&open.counters.joins, 1);
                self.jobs.park(id);
                return WriteProgress::Later;
            }
            if let Err(error) = announce(vnode, write) {
                job.fail(error);
                return WriteProgress::Failed;
            }
            let begun = if whole || page * PAGE >= vnode.size() {
                let (begun, frame) = self.begin_alone(vnode, page);
                if let Some(frame) = frame {
                    self.fill(job, page, frame, whole);
                    let end = job.end_in(page);
                    self.publish_written(vnode, page, frame, job.entry, end);
                    job.starved_since = None;
                    return WriteProgress::Done;
                }
                begun
            } else {
                if let Some(error) = vnode.failed_loads.why(page, job.failed_loads) {
                    job.fail(error);
                    return WriteProgress::Failed;
                }
                self.load(&open, page, page + 1, Some(id), job.entry)
            };
            match begun {
                LoadStart::Pages(_) => {
                    job.in_flight += 1;
                    job.starved_since = None;
                    return WriteProgress::OnItsWay;
                }
                LoadStart::NoFrame => {
                    self.park_for_frame(id, job);
                    return WriteProgress::NoFrame;
                }
                LoadStart::Locked => {
                    if self.waits_for_range(id, vnode, page) {
                        return WriteProgress::Later;
                    }
                }
                LoadStart::Raced => pause(&mut turn),
            }
        }
    }

    /// Writes into a resident page. `None`: the caller tries again.
    fn write_latched(
        &mut self,
        job: &mut Job,
        write: &mut Write,
        mut latch: Latch<'_>,
        page: u64,
        whole: bool,
    ) -> Result<Option<WriteProgress>> {
        let vnode = &*job.open.vnode;
        if !write.announced && !latch.is_dirty() {
            drop(latch);
            announce(vnode, write)?;
            return Ok(None);
        }
        if vnode.size() < page * PAGE {
            // The file was truncated: the page is being dropped, or this write extends the file
            // again.
            return Ok(None);
        }
        let content = if whole {
            Content::Replaced
        } else {
            Content::Kept
        };
        let Some(copied) = latch.make_private(&mut self.spare, content) else {
            drop(latch);
            let taken = self.shared.core.take_frames(1, &mut self.spare);
            return Ok((taken == 0).then_some(WriteProgress::NoFrame));
        };
        job.take(page, latch.data());
        let (within, len) = job.part_of(page);
        let is_new = latch.written(within..within + len);
        latch.note_use();
        drop(latch);
        if is_new {
            vnode.unpoison();
        }
        add(&job.open.counters.copies_on_write, copied.into());
        job.starved_since = None;
        Ok(Some(WriteProgress::Done))
    }

    /// Fills the frame of a page that the session creates: the job's part, and zeros.
    fn fill(&self, job: &Job, page: u64, frame: crate::policy::FrameNo, whole: bool) {
        let data = self.shared.core.pool.at(frame);
        if !whole {
            // SAFETY: the session creates the page, so it alone uses the frame.
            unsafe { copy::zero_page(data.as_ptr(), PAGE_BYTES) };
        }
        job.take(page, data);
    }
}

/// Notifies the pager, once, that the pages of a write become dirty.
fn announce(vnode: &Vnode, write: &mut Write) -> Result<()> {
    if !write.announced {
        let bytes = write.all.start * PAGE..write.all.end * PAGE;
        vnode.shared().pager.will_write(vnode.file(), bytes)?;
        write.announced = true;
    }
    Ok(())
}
