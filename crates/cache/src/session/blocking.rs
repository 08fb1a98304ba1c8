//! Blocking calls, on top of the queue.

use super::direct::DirectIo;
use super::job::{Job, Pages, Target};
use super::sync::SyncWork;
use super::work::{Task, Work};
use super::write::Write;
use super::{CacheMode, PAGE, Session};
use crate::latch::PageRef;
use crate::open::{OpenFile, Pinned, pages_of};
use crate::policy::Entry;
use crate::tree::OpenState;
use crate::window;
use block::{Bufs, Error, ErrorKind, Op, Result, Wait};
use layer_cpu::{Layer, within};
use std::ops::Range;
use std::sync::Arc;

impl Session {
    /// Reads from any byte `offset` on, and returns the number of bytes read, which is less than
    /// requested only at the end of the file.
    ///
    /// # Errors
    /// A page could not be loaded.
    pub fn read(&mut self, open: &mut OpenFile, offset: u64, out: &mut [u8]) -> Result<usize> {
        let _here = within(Layer::Cache);
        if window::covers(out.as_ptr(), out.len()) {
            return self.read_into_mapping(open, offset, out);
        }
        loop {
            let (cuts, size) = (open.vnode().truncations(), open.vnode().size());
            let len = size.saturating_sub(offset).min(out.len() as u64) as usize;
            let part = &mut out[..len];
            let done = open.copy_hits(offset, part);
            let hit = done == len || !open.is_absent(offset + done as u64);
            let entry = open.accessed(offset, len as u64, hit);
            if done < len {
                let rest = &mut part[done..];
                let (at, rest_len) = (rest.as_mut_ptr(), rest.len());
                let from = offset + done as u64;
                let job = Job::of_memory(&open.state, from, at, rest_len);
                let work = Work::Read(Pages::of(job.pages()));
                self.run(Job { entry, ..job }, work)?;
            }
            if open.vnode().drops_behind() {
                open.vnode().drop_behind(offset, len as u64);
            }
            // If the file was truncated during the read, the copied bytes may be zeros of the
            // truncation.
            if open.vnode().truncations() == cuts {
                return Ok(len);
            }
        }
    }

    /// Writes from any byte `offset` on, extending the file if necessary.
    ///
    /// # Errors
    /// A page could not be loaded, or the pager refuses the range. Data written before the error
    /// stays.
    pub fn write(&mut self, open: &mut OpenFile, offset: u64, data: &[u8]) -> Result<()> {
        let _here = within(Layer::Cache);
        if data.is_empty() {
            return Ok(());
        }
        if window::covers(data.as_ptr(), data.len()) {
            return self.write_from_mapping(open, offset, data);
        }
        let at = data.as_ptr().cast_mut();
        let entry = open.writes(offset, data.len() as u64);
        let job = Job::of_memory(&open.state, offset, at, data.len());
        let work = Work::Write(Write::new(open.vnode(), job.pages()));
        self.run(Job { entry, ..job }, work).map(drop)
    }

    /// Writes zeros, like [`Session::write`].
    fn write_zeros(&mut self, open: &OpenFile, offset: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let pages = pages_of(offset, len);
        let work = Work::Write(Write::new(open.vnode(), pages));
        let job = Job {
            offset,
            len,
            entry: Entry::Written,
            ..Job::new(&open.state, Target::Nothing)
        };
        self.run(job, work).map(drop)
    }

    /// Makes everything written to the file so far durable.
    ///
    /// # Errors
    /// A write error, of this flush or of background write-back since the last. The pages stay
    /// dirty.
    pub fn flush(&mut self, open: &mut OpenFile) -> Result<()> {
        let _here = within(Layer::Cache);
        let work = Work::Sync(SyncWork::whole_file(open.vnode()));
        self.run_without_data(&open.state, work)
    }

    /// Flushes the pager, without pages of the file, and without telling the file's earlier errors.
    pub(crate) fn flush_pager(&mut self, open: &OpenFile) -> Result<()> {
        let work = Work::Sync(SyncWork::pager(open.vnode()));
        self.run_without_data(&open.state, work)
    }

    /// Makes a range of bytes durable, for the open file of a mapping.
    pub(crate) fn flush_range(&mut self, open: &Arc<OpenState>, bytes: Range<u64>) -> Result<()> {
        let pages = pages_of(bytes.start, bytes.end.saturating_sub(bytes.start));
        let work = Work::Sync(SyncWork::range(&open.vnode, pages));
        self.run_without_data(open, work)
    }

    /// Writes the dirty pages in a range of bytes to the pager, without flushing the pager.
    ///
    /// # Errors
    /// The write error.
    pub fn write_out(&mut self, open: &mut OpenFile, range: Range<u64>) -> Result<()> {
        let _here = within(Layer::Cache);
        let pages = pages_of(range.start, range.end.saturating_sub(range.start));
        let work = Work::Sync(SyncWork::pages(open.vnode(), pages));
        self.run_without_data(&open.state, work)
    }

    /// Reads bypassing the cache. Offset and length must be multiples of the pager's block size.
    ///
    /// # Errors
    /// Those of the pager's read, or of writing back dirty pages in the range.
    pub fn read_direct(&mut self, open: &mut OpenFile, offset: u64, bufs: Bufs) -> Result<Bufs> {
        let _here = within(Layer::Cache);
        match self.run_op(open, Op::Read { offset, bufs }, CacheMode::Direct)? {
            Some(Op::Read { bufs, .. }) => Ok(bufs),
            _ => unreachable!("the same operation comes back"),
        }
    }

    /// Writes bypassing the cache, which drops its pages of the range. Offset and length must be
    /// multiples of the pager's block size.
    ///
    /// # Errors
    /// Those of the pager's write, or of writing back dirty pages in the range.
    pub fn write_direct(&mut self, open: &mut OpenFile, offset: u64, bufs: Bufs) -> Result<()> {
        let _here = within(Layer::Cache);
        let end = offset + bufs.total_len() as u64;
        let fua = false;
        let op = Op::Write { offset, bufs, fua };
        self.run_op(open, op, CacheMode::Direct)?;
        open.vnode().extend(end);
        Ok(())
    }

    /// Sets the size. Data cut off is dropped, dirty or not; an added range reads as zeros,
    /// provided that the pager discards data cut off.
    ///
    /// # Errors
    /// The new last page could not be loaded, or its space not be reserved. The size is then
    /// unchanged, but dirty pages beyond the new size may be lost.
    pub fn truncate(&mut self, open: &mut OpenFile, size: u64) -> Result<()> {
        let _here = within(Layer::Cache);
        if size >= open.vnode().size() {
            open.vnode().extend(size);
            return Ok(());
        }
        let work = Work::Truncate(super::truncate::Truncation::to(size));
        self.run_without_data(&open.state, work)
    }

    /// Makes a range of bytes read as zeros; whole pages of it are zeroed by the pager, which may
    /// free their space.
    ///
    /// # Errors
    /// Those of the pager's request, or of loading a page at the edge.
    pub fn punch(&mut self, open: &mut OpenFile, range: Range<u64>) -> Result<()> {
        let _here = within(Layer::Cache);
        let end = range.end.min(open.vnode().size());
        let (first, last) = (range.start.next_multiple_of(PAGE), end / PAGE * PAGE);
        if range.start >= end {
            return Ok(());
        }
        if first >= last {
            let middle = first.min(end);
            self.write_zeros(open, range.start, middle - range.start)?;
            return self.write_zeros(open, middle, end - middle);
        }
        self.write_zeros(open, range.start, first - range.start)?;
        self.write_zeros(open, last, end - last)?;
        let op = Op::WriteZeroes {
            offset: first,
            len: last - first,
            fua: false,
            unmap: true,
        };
        self.run_op(open, op, CacheMode::Cached).map(drop)
    }

    /// Drops the pages of a range of bytes, because the data in the pager was changed by other
    /// means. Dirty pages are written back first.
    ///
    /// # Errors
    /// The write error; the pages may not have been dropped then.
    pub fn invalidate(&mut self, open: &mut OpenFile, range: Range<u64>) -> Result<()> {
        let _here = within(Layer::Cache);
        let pages = pages_of(range.start, range.end.saturating_sub(range.start));
        let work = Work::Direct(DirectIo::change(pages));
        self.run_without_data(&open.state, work)
    }

    /// Drops the pages of a range of bytes as [`Session::invalidate`], and keeps pages from being
    /// loaded into it until `change` has changed the data in the pager. `change` must not use the
    /// range through a session, nor wait for a thread that does.
    ///
    /// # Errors
    /// As [`Session::invalidate`]; nothing was changed.
    pub fn replace<T>(
        &mut self,
        open: &mut OpenFile,
        range: Range<u64>,
        change: impl FnOnce() -> T,
    ) -> Result<T> {
        let pages = pages_of(range.start, range.end.saturating_sub(range.start));
        let vnode = Arc::clone(open.vnode());
        let _locked = vnode.ranges.lock_until_drop(pages);
        self.invalidate(open, range)?;
        Ok(change())
    }

    /// Asks the background thread to load a range of bytes.
    pub fn prefetch(&self, open: &OpenFile, range: Range<u64>) {
        let end = range.end.min(open.vnode().size());
        let pages = pages_of(range.start, end.saturating_sub(range.start));
        self.shared.background.prefetch(open.vnode(), pages);
    }

    /// Holds a page in place, loading it if necessary. The page does not change while it is held:
    /// writers continue in a copy.
    ///
    /// # Errors
    /// The page could not be loaded, or lies in a window, where programs may change it at any time.
    pub fn page<'a>(&mut self, open: &'a mut OpenFile, page: u64) -> Result<PageRef<'a>> {
        let _here = within(Layer::Cache);
        if let Some(pinned) = open.pin(page) {
            open.accessed_resident(page);
            return Ok(open.held(pinned));
        }
        let hit = !open.is_absent(page * PAGE);
        open.accessed(page * PAGE, PAGE, hit);
        let pinned = self.pin(open, page)?;
        Ok(open.held(pinned))
    }

    /// Holds the pages of a range of bytes in place, like [`Session::page`].
    ///
    /// # Errors
    /// As [`Session::page`].
    pub fn pages<'a>(
        &mut self,
        open: &'a mut OpenFile,
        range: Range<u64>,
    ) -> Result<Vec<PageRef<'a>>> {
        let len = range.end.saturating_sub(range.start);
        let pages = pages_of(range.start, len);
        let hit = pages.clone().all(|page| !open.is_absent(page * PAGE));
        open.accessed(range.start, len, hit);
        self.load_pages(open, pages.clone())?;
        let mut held = Vec::with_capacity(pages.clone().count());
        for page in pages {
            match self.pin(open, page) {
                Ok(pinned) => held.push(pinned),
                Err(error) => {
                    held.into_iter().for_each(|pinned| drop(open.held(pinned)));
                    return Err(error);
                }
            }
        }
        let open = &*open;
        Ok(held.into_iter().map(|pinned| open.held(pinned)).collect())
    }

    fn pin(&mut self, open: &mut OpenFile, page: u64) -> Result<Pinned> {
        loop {
            if let Some(pinned) = open.pin(page) {
                return Ok(pinned);
            }
            if open.is_in_window(page) {
                let detail = "a page that programs have mapped cannot be pinned";
                return Err(Error::new(ErrorKind::Busy, &self.shared.info.name, detail));
            }
            self.load_pages(open, page..page + 1)?;
        }
    }

    /// Loads absent pages.
    pub(crate) fn load_pages(&mut self, open: &OpenFile, pages: Range<u64>) -> Result<()> {
        if pages.is_empty() {
            return Ok(());
        }
        let job = Job {
            offset: pages.start * PAGE,
            len: (pages.end - pages.start) * PAGE,
            ..Job::new(&open.state, Target::Nothing)
        };
        self.run(job, Work::Read(Pages::of(pages))).map(drop)
    }

    /// Runs an operation to its end, and returns it.
    fn run_op(&mut self, open: &OpenFile, op: Op, mode: CacheMode) -> Result<Option<Op>> {
        let work = Work::of(&op, open.vnode(), mode);
        self.run(Job::of_request(&open.state, None, op), work)
    }

    fn run_without_data(&mut self, open: &Arc<OpenState>, work: Work) -> Result<()> {
        self.run(Job::new(open, Target::Nothing), work).map(drop)
    }

    /// Runs the job of a blocking caller to its end, and returns its operation.
    fn run(&mut self, job: Job, work: Work) -> Result<Option<Op>> {
        self.jobs.add(Task { job, work });
        self.outcome = None;
        self.step_runnable();
        loop {
            if let Some(outcome) = self.outcome.take() {
                return outcome;
            }
            let mut turned = self.poll(Wait::Poll);
            if turned.is_ok() && self.outcome.is_none() {
                turned = self.sleep(None);
            }
            if let Err(error) = turned {
                // The job has its error, and must not outlive the caller's memory.
                self.step_runnable();
                return self.outcome.take().unwrap_or(Err(error));
            }
        }
    }
}
