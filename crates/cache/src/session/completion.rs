//! Handling of completions of the pager.

use super::Session;
use super::io::{Io, fill_frames};
use super::job::Target;
use block::{Completion, Error};

impl Session {
    pub(super) fn completed(&mut self, completion: Completion) {
        let Completion { tag, op, result } = completion;
        match self.pager.end(tag) {
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
                let task = self.jobs.get_mut(id).expect("it waits for this");
                task.job.target = Target::Op(op);
                self.jobs.io_done(Some(id), result);
            }
        }
    }

    /// Fails all I/O and jobs after a fatal error of the pager's queue: no completion will follow.
    /// The frames are not reused, because the device may still write to them.
    pub(super) fn fail_everything(&mut self, error: &Error) {
        for (_, io) in self.pager.end_all() {
            match io {
                Io::Load(load) => self.load_lost(load, error),
                Io::Store(store) => self.store_lost(store, error),
                Io::Flush(job, vnode) => self.flushed(job, &vnode, Err(error.clone())),
                Io::Direct(job) => self.jobs.io_done(Some(job), Err(error.clone())),
                Io::FlushBehind(vnodes) => self.flushed_behind(&vnodes, &Err(error.clone())),
            }
        }
        self.jobs.fail_all(error);
    }
}
