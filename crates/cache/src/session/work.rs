//! The work of a job, by kind.

use super::CacheMode;
use super::direct::DirectIo;
use super::job::{Job, Pages};
use super::sync::SyncWork;
use super::truncate::Truncation;
use super::write::Write;
use crate::open::pages_of;
use crate::tree::Vnode;
use block::Op;
use std::ptr::NonNull;

/// A job and its remaining work.
pub(super) struct Task {
    pub(super) job: Job,
    pub(super) work: Work,
}

/// Remaining work of a job.
pub(super) enum Work {
    Read(Pages),
    Write(Write),
    Sync(SyncWork),
    Direct(DirectIo),
    Truncate(Truncation),
}

impl Work {
    /// Creates the work of a request.
    pub(super) fn of(op: &Op, vnode: &Vnode, mode: CacheMode) -> Work {
        let direct = mode == CacheMode::Direct;
        let (offset, len) = op.range().unwrap_or((0, 0));
        let pages = pages_of(offset, len);
        match op {
            Op::Flush => Work::Sync(SyncWork::whole_file(vnode)),
            Op::Read { .. } if direct => Work::Direct(DirectIo::read(pages)),
            Op::Write { .. } if direct => Work::Direct(DirectIo::change(pages)),
            Op::Discard { .. } | Op::WriteZeroes { .. } => Work::Direct(DirectIo::change(pages)),
            Op::Read { .. } => Work::Read(Pages::of(pages)),
            Op::Write { fua, .. } => Work::Write(Write::new(vnode, pages).with_fua(*fua)),
        }
    }
}

impl Task {
    /// Applies the job to a page that was loaded for it and lies at `data`; returns whether the
    /// page changed.
    pub(super) fn apply(&mut self, page: u64, data: NonNull<u8>) -> bool {
        match self.work {
            Work::Read(_) => {
                self.job.copy_out(page, data);
                false
            }
            Work::Write(_) => {
                self.job.take(page, data);
                true
            }
            _ => false,
        }
    }

    /// Returns the number of pages that a finished write has made dirty.
    pub(super) fn pages_written(&self) -> Option<usize> {
        match &self.work {
            Work::Write(write) if !write.is_durable() => Some(self.job.pages().count()),
            _ => None,
        }
    }

    /// Releases the job's range locks, because the session is dropped before the job is done.
    pub(super) fn abort(self) {
        let vnode = &self.job.open.vnode;
        match &self.work {
            Work::Direct(direct) => direct.abort(vnode),
            Work::Truncate(truncation) => truncation.abort(vnode),
            _ => {}
        }
    }
}
