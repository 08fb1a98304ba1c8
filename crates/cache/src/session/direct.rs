//! Requests that bypass the cache: direct reads and writes, holes.
//!
//! A read first writes back the dirty pages in its range. A change also locks the range against
//! loads and drops its pages, so that no reader finds old data in the cache, and no old page is
//! written over the change later.

use super::Session;
use super::io::Io;
use super::job::{Job, Target};
use super::sync::{SyncWork, mask_of};
use crate::frames::ones;
use crate::latch::pause;
use crate::leaf::LeafNo;
use crate::stats::{EvictReason, add};
use crate::tree::Vnode;
use block::{Error, ErrorKind, Op};
use std::ops::Range;
use std::sync::Arc;

/// A bypassing request in progress.
pub(super) struct DirectIo {
    pages: Range<u64>,
    changes: bool,
    locked: bool,
    phase: Phase,
}

enum Phase {
    Begin,
    Sync(SyncWork),
    Drop,
    Sent,
    Done,
}

impl DirectIo {
    pub(super) fn read(pages: Range<u64>) -> DirectIo {
        DirectIo {
            pages,
            changes: false,
            locked: false,
            phase: Phase::Begin,
        }
    }

    pub(super) fn change(pages: Range<u64>) -> DirectIo {
        DirectIo {
            changes: true,
            ..DirectIo::read(pages)
        }
    }

    fn unlock(&mut self, vnode: &Vnode) {
        if std::mem::take(&mut self.locked) {
            vnode.ranges.unlock(&self.pages);
        }
    }

    pub(super) fn abort(&self, vnode: &Vnode) {
        if self.locked {
            vnode.ranges.unlock(&self.pages);
        }
    }
}

impl Session {
    pub(super) fn step_direct(&mut self, id: usize, job: &mut Job, direct: &mut DirectIo) -> bool {
        let vnode = Arc::clone(&job.open.vnode);
        loop {
            if job.error.is_some() && job.in_flight == 0 {
                direct.phase = Phase::Done;
            }
            match &mut direct.phase {
                Phase::Begin => {
                    if direct.changes && !direct.pages.is_empty() {
                        vnode.ranges.lock(direct.pages.clone());
                        direct.locked = true;
                    }
                    direct.phase = Phase::Sync(SyncWork::pages(&vnode, direct.pages.clone()));
                }
                Phase::Sync(sync) => {
                    if !self.step_sync(id, job, sync) {
                        return false;
                    }
                    direct.phase = match (job.error.is_some(), direct.changes) {
                        (true, _) => Phase::Done,
                        (false, true) => Phase::Drop,
                        (false, false) => self.send_direct(id, job),
                    };
                }
                Phase::Drop => {
                    match self.drop_range(id, &vnode, &direct.pages, DropCause::Replaced) {
                        Dropped::All => direct.phase = self.send_direct(id, job),
                        Dropped::Later => return false,
                        Dropped::Dirty => {
                            let sync = SyncWork::pages(&vnode, direct.pages.clone());
                            direct.phase = Phase::Sync(sync);
                        }
                        Dropped::Leased => {
                            let detail = "the range has leased pages, which cannot be replaced";
                            job.fail(Error::new(ErrorKind::Busy, &self.shared.info.name, detail));
                            direct.phase = Phase::Done;
                        }
                    }
                }
                Phase::Sent => {
                    if job.in_flight > 0 {
                        return false;
                    }
                    direct.phase = Phase::Done;
                }
                Phase::Done => {
                    direct.unlock(&vnode);
                    return true;
                }
            }
        }
    }

    /// Submits the request itself.
    fn send_direct(&mut self, id: usize, job: &mut Job) -> Phase {
        let Target::Op(op) = std::mem::replace(&mut job.target, Target::Nothing) else {
            return Phase::Done;
        };
        match &op {
            Op::Read { .. } => add(&job.open.counters.direct_bytes_read, job.len),
            Op::Write { .. } => add(&job.open.counters.direct_bytes_written, job.len),
            _ => {}
        }
        job.in_flight += 1;
        self.pager.submit(job.open.vnode.file(), Io::Direct(id), op);
        Phase::Sent
    }

    /// Drops the pages of a locked range.
    pub(super) fn drop_range(
        &mut self,
        id: usize,
        vnode: &Arc<Vnode>,
        pages: &Range<u64>,
        cause: DropCause,
    ) -> Dropped {
        if pages.is_empty() {
            return Dropped::All;
        }
        let mut dropped = Dropped::All;
        for (number, _) in vnode.index().range(LeafNo::of_pages(pages)) {
            for index in ones(mask_of(number, pages)) {
                let page = number.page(index);
                match self.drop_page(vnode, page, cause) {
                    Dropped::All => {}
                    Dropped::Leased => return Dropped::Leased,
                    Dropped::Later => {
                        self.jobs.park(id);
                        dropped = Dropped::Later;
                    }
                    Dropped::Dirty if dropped == Dropped::All => dropped = Dropped::Dirty,
                    Dropped::Dirty => {}
                }
            }
        }
        dropped
    }

    fn drop_page(&mut self, vnode: &Vnode, page: u64, cause: DropCause) -> Dropped {
        let mut turn = 0;
        loop {
            let Some((at, index)) = vnode.find_exact(page) else {
                return Dropped::All;
            };
            let leaf = vnode.index().leaf(at);
            let snap = leaf.word(index).load();
            if !vnode.owns(leaf, page) || snap.is_empty() {
                return Dropped::All;
            }
            if snap.is_loading() {
                if self.await_load(vnode, page) {
                    return Dropped::Later;
                }
                continue;
            }
            let Some(latch) = vnode.latch(page) else {
                pause(&mut turn);
                continue;
            };
            if latch.is_in_writeback() {
                drop(latch);
                vnode.write_back.waiters.register(&self.sleeper.waker);
                if leaf.writeback() & 1 << index != 0 {
                    return Dropped::Later;
                }
                continue;
            }
            let reason = match cause {
                DropCause::Replaced if latch.is_leased() => return Dropped::Leased,
                DropCause::Replaced if latch.is_dirty() => return Dropped::Dirty,
                DropCause::Replaced => EvictReason::Dropped,
                DropCause::Cut => EvictReason::Cut,
            };
            latch.drop_page(reason);
            return Dropped::All;
        }
    }
}

/// Reason for which the pages of a range are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DropCause {
    /// The request changes their data in the pager; dirty and leased ones stay.
    Replaced,
    /// They are no longer part of the file; dirty and leased ones are dropped too.
    Cut,
}

/// Result of an attempt to drop pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dropped {
    /// All pages were dropped.
    All,
    /// Some are being loaded or written back, and the session will be woken.
    Later,
    /// Some are dirty.
    Dirty,
    /// Some are leased.
    Leased,
}
