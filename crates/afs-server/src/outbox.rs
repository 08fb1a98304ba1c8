//! The notifications that wait for one client, and the exclusive right to call it.

use afs_proto::AfsFid;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Changed file, and the era of the broken promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) era: u32,
    pub(crate) fid: AfsFid,
}

/// Queue of the notifications for one client.
#[derive(Default)]
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    pub(crate) changed: Condvar,
}

/// Notifications that wait, and the call under way.
#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) waiting: VecDeque<Broken>,
    /// Number of files ever queued, and of those completed; files of a call under way are not.
    put: u64,
    pub(crate) done: u64,
    pub(crate) call: CallPhase,
}

/// State of the calls to a client.
#[derive(Default)]
pub(crate) enum CallPhase {
    /// No call is under way; the next thread starts one.
    #[default]
    Free,
    /// A thread is starting a call or waiting for its answer.
    Taken,
    /// A call is under way; the next thread waits for its answer.
    Started(Started),
}

/// Call that is under way.
pub(crate) struct Started {
    /// Era in which it was started.
    pub(crate) era: u32,
    pub(crate) files: u64,
    /// `None` if the call could not be started.
    pub(crate) call: Option<rx::Call>,
}

/// Exclusive turn of this thread. Dropping it, whatever the outcome, completes the files and wakes
/// all waiting threads.
pub(crate) struct Taken<'t> {
    pub(crate) outbox: &'t Outbox,
    pub(crate) files: u64,
}

impl Outbox {
    /// Locks the queue.
    pub(crate) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues files and returns the value of `done` at which they are completed.
    pub(crate) fn put(&self, files: &[Broken]) -> u64 {
        let mut queue = self.queue();
        queue.waiting.extend(files);
        queue.put += files.len() as u64;
        queue.put
    }
}

impl Taken<'_> {
    /// Publishes the started call, so that other threads can wait for its answer.
    pub(crate) fn started(self, started: Started) {
        self.outbox.queue().call = CallPhase::Started(started);
        self.outbox.changed.notify_all();
        std::mem::forget(self);
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut queue = self.outbox.queue();
        queue.call = CallPhase::Free;
        queue.done += self.files;
        drop(queue);
        self.outbox.changed.notify_all();
    }
}
