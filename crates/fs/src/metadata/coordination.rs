//! Coordination of the threads that make changes durable: the write end of the journal, the election
//! of the thread that writes for all waiters, and the signal to the commit thread.

use crate::metadata::database::Epoch;
use crate::metadata::journal::Writer;
use std::sync::{Condvar, Mutex, MutexGuard};

/// Write end of the journal.
pub(crate) struct Log {
    pub writer: Writer,
    /// Whether the last commit could not be logged first and is not durable yet, so that no record
    /// may follow.
    pub blocked: bool,
}

impl Log {
    pub fn new(writer: Writer) -> Log {
        Log {
            writer,
            blocked: false,
        }
    }

    /// Returns the epoch for a commit that supersedes all records so far.
    pub fn epoch_after_all(&self) -> Epoch {
        self.writer.epoch().next()
    }

    /// Moves on to the epoch after the commit of [`Log::epoch_after_all`], which is durable.
    pub fn skip_all(&mut self) {
        self.writer.next_epoch();
        self.writer.next_epoch();
        self.blocked = false;
    }
}

/// Elects the thread that writes for all waiters, and tracks the changes that are durable. Its lock
/// is never held during a write, so a caller whose changes are durable does not wait for later
/// ones.
#[derive(Default)]
pub(crate) struct Group {
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Default)]
struct Progress {
    /// Number of the last durable change.
    durable: u64,
    /// Whether a thread is writing.
    busy: bool,
}

/// Exclusive right to write; released on drop.
pub(crate) struct CommitPermit<'g>(&'g Group);

impl Group {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().expect("no panic under this lock")
    }

    /// Waits until the changes up to `wanted` are durable, or until the caller may write them.
    pub fn acquire(&self, wanted: u64) -> Option<CommitPermit<'_>> {
        let waits = |progress: &mut Progress| progress.busy && progress.durable < wanted;
        let mut progress = self.lock();
        if waits(&mut progress) {
            block::about_to_sleep();
        }
        let progress = self.changed.wait_while(progress, waits);
        let mut progress = progress.expect("no panic under this lock");
        if progress.durable >= wanted {
            return None;
        }
        progress.busy = true;
        Some(CommitPermit(self))
    }

    pub fn is_durable(&self, wanted: u64) -> bool {
        self.lock().durable >= wanted
    }

    /// Records that the changes up to `changes` are durable, and wakes the waiters.
    pub fn done(&self, changes: u64) {
        let mut progress = self.lock();
        progress.durable = progress.durable.max(changes);
        drop(progress);
        self.changed.notify_all();
    }
}

impl Drop for CommitPermit<'_> {
    fn drop(&mut self) {
        self.0.lock().busy = false;
        self.0.changed.notify_all();
    }
}

/// Wakes the commit thread.
#[derive(Default)]
pub(crate) struct Wake {
    pub wanted: Mutex<Wanted>,
    pub changed: Condvar,
}

#[derive(Default)]
pub(crate) struct Wanted {
    pub commit: bool,
    pub stop: bool,
}

impl Wake {
    /// Changes the wishes, and wakes the thread.
    pub fn set(&self, change: impl FnOnce(&mut Wanted)) {
        change(&mut self.wanted.lock().expect("no panic under this lock"));
        self.changed.notify_all();
    }
}
