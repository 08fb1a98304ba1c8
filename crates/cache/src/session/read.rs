//! Reading through the cache.

use super::Session;
use super::job::{Job, Pages, Target};
use super::load::LoadStart;
use crate::open::{Last, Lookup, Reference, copy_page};
use crate::stats::add;
use block::Op;

/// Result of trying one page.
enum ReadProgress {
    /// This number of pages are done, or being loaded for this job.
    Pages(u64),
    /// The page has to wait for another session, which will wake this one.
    Later,
    /// No frame is available; the rest of the job has to wait as well.
    NoFrame,
}

impl Session {
    /// Copies resident pages, loads absent ones, and waits for loads of other sessions.
    pub(super) fn step_read(&mut self, id: usize, job: &mut Job, pages: &mut Pages) -> bool {
        if job.error.is_some() {
            pages.stop();
            return true;
        }
        let mut last = Last::default();
        for page in std::mem::take(&mut pages.again) {
            match self.try_page(id, job, &mut last, page, page + 1) {
                ReadProgress::Pages(_) => {}
                ReadProgress::Later | ReadProgress::NoFrame => pages.again.push(page),
            }
        }
        while pages.next < pages.end && job.error.is_none() {
            match self.try_page(id, job, &mut last, pages.next, pages.end) {
                ReadProgress::Pages(count) => pages.next += count,
                ReadProgress::Later => {
                    pages.again.push(pages.next);
                    pages.next += 1;
                }
                ReadProgress::NoFrame => break,
            }
        }
        if job.error.is_some() {
            pages.stop();
        }
        pages.are_done()
    }

    fn try_page(
        &mut self,
        id: usize,
        job: &mut Job,
        last: &mut Last,
        page: u64,
        end: u64,
    ) -> ReadProgress {
        let open = std::sync::Arc::clone(&job.open);
        let vnode = &*open.vnode;
        loop {
            match copy_for(job, last, page) {
                Lookup::Hit => {
                    add(&open.counters.hits, 1);
                    return ReadProgress::Pages(1);
                }
                Lookup::Loading => {
                    if self.await_load(vnode, page) {
                        add(&open.counters.joins, 1);
                        self.jobs.park(id);
                        return ReadProgress::Later;
                    }
                }
                Lookup::Absent => {
                    if vnode.is_dead() {
                        job.fail(self.removed_error());
                        return ReadProgress::Pages(0);
                    }
                    if let Some(error) = vnode.failed_loads.why(page, job.failed_loads) {
                        job.fail(error);
                        return ReadProgress::Pages(0);
                    }
                    match self.load(&open, page, end, Some(id), job.entry) {
                        LoadStart::Pages(count) => {
                            job.in_flight += 1;
                            job.starved_since = None;
                            return ReadProgress::Pages(count);
                        }
                        LoadStart::NoFrame => {
                            self.park_for_frame(id, job);
                            return ReadProgress::NoFrame;
                        }
                        LoadStart::Locked => {
                            if self.waits_for_range(id, vnode, page) {
                                return ReadProgress::Later;
                            }
                        }
                        LoadStart::Raced => {}
                    }
                }
            }
        }
    }
}

/// Copies the job's part of a page, if the page is resident.
fn copy_for(job: &mut Job, last: &mut Last, page: u64) -> Lookup {
    let (within, len) = job.part_of(page);
    let at = ((page * super::PAGE + within as u64) - job.offset) as usize;
    let open = &*job.open;
    match &mut job.target {
        Target::Op(Op::Read { bufs, .. }) => {
            let (mut skip, mut done) = (at, 0);
            for buf in bufs.iter_mut() {
                if skip >= buf.len() {
                    skip -= buf.len();
                    continue;
                }
                let step = (buf.len() - skip).min(len - done);
                let part = &mut buf[skip..skip + step];
                match copy_page(open, last, page, within + done, part, Reference::New) {
                    Lookup::Hit => done += step,
                    other => return other,
                }
                if done == len {
                    break;
                }
                skip = 0;
            }
            Lookup::Hit
        }
        Target::Memory(base) => {
            // SAFETY: the memory is that of a caller blocked on this job, which alone may use it.
            let part = unsafe { std::slice::from_raw_parts_mut(base.add(at), len) };
            copy_page(open, last, page, within, part, Reference::New)
        }
        Target::Op(_) | Target::Nothing => {
            copy_page(open, last, page, 0, &mut [], Reference::Repeated)
        }
    }
}
