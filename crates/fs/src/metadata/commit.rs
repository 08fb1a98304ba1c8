//! Durability: writing the journal, and committing the tree.
//!
//! ```text
//!   fsync:    state ──changed since the last record──► journal            one write, made durable
//!   commit:   state ──freeze──► tree (redb, two phases)                   every few seconds
//! ```
//!
//! Group commit: one thread writes the journal on behalf of all waiters. A waiter returns once a
//! completed write covers its changes; later arrivals join the next write. A commit first logs all
//! changes that the journal does not have yet as its last record, freezes, and continues in the
//! other half of the journal, so that no fsync waits for the tree. Only if that record does not fit
//! does the next fsync wait.
//!
//! **Invariant:** file data is durable before the first record or commit that refers to it. A
//! commit of the tree includes every record of its epoch.

use crate::device_io::Barrier;
use crate::error::{Error, Kind, Result};
use crate::format::superblock::SEGMENTS_MAX;
use crate::metadata::coordination::{Log, Wanted};
use crate::metadata::database::{Db, Epoch};
use crate::metadata::item_map::Frozen;
use crate::metadata::journal::Delta;
use crate::metadata::shared::FsShared;
use crate::metadata::state::State;
use crate::space::{ChangeSet, Writes};
use layer_cpu::{Layer, home};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard};
use std::thread::JoinHandle;
use survival::requests::aside;

/// Multiple of the backlog limit beyond which callers wait for a commit.
const BACKLOGS_MAX: usize = 2;

/// Number of changed keys below which no commit is forced.
const BACKLOG_MIN: usize = 8;

/// Pages of the tree to be set aside for each changed key.
const PAGES_PER_KEY: usize = 8;

/// Segments of the metadata that are left unused, for the next open.
const SEGMENTS_SPARE: usize = 4;

/// Content of one record, taken from the state at one moment.
struct Taken {
    delta: Delta,
    keys: Vec<crate::format::key::Key>,
    changes: u64,
    set: ChangeSet,
    /// Writes of file data that had completed before that moment.
    written: Writes,
}

impl FsShared {
    pub fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().expect("no panic under this lock")
    }

    /// Makes everything that has happened so far durable.
    pub fn sync(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        let written = self.space.written();
        let wanted = {
            let state = self.read();
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            state.changes
        };
        while let Some(turn) = self.group.acquire(wanted) {
            let mut log = self.log();
            // A commit may have been faster.
            if self.group.is_durable(wanted) {
                break;
            }
            if !log.blocked && self.write_record(&mut log)? {
                return Ok(());
            }
            drop(log);
            drop(turn);
            self.checkpoint()?;
        }
        self.flush_data(written)
    }

    /// Makes the first `written` writes of file data durable.
    fn flush_data(&self, written: Writes) -> Result<()> {
        if !self.space.needs_flush_of(written) {
            return Ok(());
        }
        let written = self.space.written();
        self.io.flush()?;
        self.space.set_flushed(written);
        Ok(())
    }

    /// Takes all changes that the journal does not have. A failure makes the file system read-only: a
    /// change that could not be taken may be missing from all later records.
    fn take(&self, state: &mut State) -> Result<Taken> {
        let written = self.space.written();
        if let Err(error) = state.materialize() {
            state.commit_steps();
            return Err(self.fail_in(state, error));
        }
        // The thread may wait for room before it carries out a request, which this is not.
        let changes = aside(|| {
            self.save(state, &[]);
            let changes = state.changes;
            self.save_ahead(state);
            changes
        });
        let (delta, keys) = state.items.take_delta();
        Ok(Taken {
            delta,
            keys,
            changes,
            set: self.space.close_set(),
            written,
        })
    }

    /// Writes all outstanding changes as one record. Returns `false` if it does not fit.
    fn write_record(&self, log: &mut Log) -> Result<bool> {
        let mut taken = self.take(&mut self.write())?;
        let written = match self.log_taken(log, &taken) {
            Ok(true) => return Ok(true),
            other => other,
        };
        let space = std::mem::take(&mut taken.delta.space);
        self.write().items.restore_delta(space, taken.keys);
        written
    }

    fn log_taken(&self, log: &mut Log, taken: &Taken) -> Result<bool> {
        if taken.delta.is_empty() {
            self.flush_data(taken.written)?;
        } else {
            let Some(record) = log.writer.prepare(&taken.delta) else {
                return Ok(false);
            };
            let barrier = if self.space.needs_flush_of(taken.written) {
                Barrier::Flush
            } else {
                Barrier::None
            };
            log.writer.write(&self.io, record, barrier)?;
            self.space.set_flushed(taken.written);
        }
        self.done(taken);
        Ok(true)
    }

    /// Records that changes are durable.
    fn done(&self, taken: &Taken) {
        // Before a block that they freed can be used again: an entry that the log still had would
        // say that it is free.
        self.log_durable(taken.changes);
        self.space.set_durable(taken.set);
        self.group.done(taken.changes);
    }

    /// Commits everything to the tree. A failure makes the file system read-only; durable data
    /// stays durable.
    pub fn checkpoint(&self) -> Result<()> {
        self.view.wait_for_end();
        let db = self.db.lock().expect("no panic under this lock");
        let db = db.as_ref().ok_or_else(crate::error::closed)?;
        let (frozen, epoch, taken) = {
            let mut log = self.log();
            let (frozen, taken) = {
                let mut state = self.write();
                if let Some(error) = &state.failed {
                    return Err(error.clone());
                }
                let taken = self.take(&mut state)?;
                if !state.items.is_changed() {
                    drop(state);
                    return self.log_taken(&mut log, &taken).map(drop);
                }
                (state.items.freeze(), taken)
            };
            self.backlog.store(0, Relaxed);
            let epoch = log.writer.epoch();
            // A record that does not fit is no loss: the commit contains it. A record that could
            // not be written makes the commit fail too, because no flush succeeds after one has
            // failed.
            let logged = !log.blocked && self.log_taken(&mut log, &taken).unwrap_or(false);
            log.blocked = !logged;
            log.writer.next_epoch();
            (frozen, epoch, taken)
        };
        match self.commit(db, &frozen, epoch, &taken) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.fail(error)),
        }
    }

    fn commit(&self, db: &Db, frozen: &Frozen, epoch: Epoch, taken: &Taken) -> Result<()> {
        self.commit_begins(epoch);
        db.commit(&frozen.items, &frozen.space, epoch)?;
        self.commit_ended(epoch);
        let base = db.base()?;
        self.note_slack(db)?;
        self.limit_view();
        let mut log = self.log();
        log.blocked = false;
        // The commit flushed the device before it became the current one.
        self.space.set_flushed(taken.written);
        self.done(taken);
        let old = self.write().items.committed(base);
        drop(log);
        drop(old);
        Ok(())
    }

    /// Updates the allocator's estimate of the unused space within the metadata.
    pub fn note_slack(&self, db: &Db) -> Result<()> {
        let segments = self.superblock.lock().segments.clone();
        let blocks: u64 = segments.iter().map(|s| u64::from(s.blocks)).sum();
        // A commit writes changed pages to new places, so the items need twice their space.
        let slack = blocks.saturating_sub(2 * db.item_pages()? + self.kept_for_view());
        let runs = SEGMENTS_MAX.saturating_sub(segments.len() + SEGMENTS_SPARE);
        self.space.set_slack(slack, runs);
        Ok(())
    }

    /// Commits the replayed journal. The commit takes the second of the two replayed epochs, so
    /// that no record of either is ever replayed again.
    pub fn commit_replayed(&self) -> Result<()> {
        {
            let mut log = self.log();
            log.writer.next_epoch();
            // A record would overwrite those that were replayed, which are needed until the commit
            // is durable.
            log.blocked = true;
        }
        self.checkpoint()
    }

    /// Makes the file system read-only until it is reopened.
    fn fail(&self, error: Error) -> Error {
        self.fail_in(&mut self.write(), error)
    }

    fn fail_in(&self, state: &mut State, error: Error) -> Error {
        let text = format!("the file system is read-only after an error: {error}");
        tracing::error!(name: "EVFS-0201", "{}: {text}", self.name);
        state.failed.get_or_insert(Error::new(Kind::ReadOnly, text));
        error
    }

    /// Runs `attempt`. If the device is full but freed blocks become usable once the change that
    /// freed them is durable, makes it durable and runs `attempt` again.
    pub fn with_room<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        match attempt() {
            Err(error) if error.kind() == Kind::NoSpace && self.space.has_quarantined() => {
                self.sync()?;
                attempt()
            }
            result => result,
        }
    }

    /// Updates the backlog of uncommitted changes, and wakes the commit thread if it exceeds the
    /// limit.
    pub fn note_backlog(&self, state: &State) {
        let now = state
            .items
            .active
            .len()
            .max(state.items.active.bytes() / 1024);
        // An inode that is not in the item map yet adds one record there, and another for a snapshot.
        let now = now + 2 * state.dirty_cores.len() + state.pending_sums.len();
        let before = self.backlog.swap(now, Relaxed);
        let most = self.backlog_max.load(Relaxed);
        if now > most && before <= most {
            self.wake.set(|wanted| wanted.commit = true);
        }
    }

    /// Commits first if the backlog is too large: more than memory should hold, or more than the
    /// space left can take.
    pub fn wait_for_room(&self) -> Result<()> {
        if self.needs_commit_for_log() {
            return self.checkpoint();
        }
        let backlog = self.backlog.load(Relaxed);
        if backlog <= BACKLOG_MIN {
            return Ok(());
        }
        // Each changed key may take a page of the tree, and as much again for the path to it and
        // until the pages of the previous commit can be reused. So the fuller the device, the
        // smaller the commits, and a tree on a device with only the reserve left can still be
        // changed.
        let enough = (backlog * PAGES_PER_KEY) as u64;
        let room = self.space.metadata_room(enough) as usize / PAGES_PER_KEY;
        let most = self.backlog_max.load(Relaxed);
        if backlog > (most * BACKLOGS_MAX).min(room.max(BACKLOG_MIN)) {
            self.checkpoint()
        } else {
            Ok(())
        }
    }
}

impl FsShared {
    /// Computes how many keys, up to `most`, one operation may change so that a commit has room
    /// for them.
    pub fn keys_at_once(&self, most: usize) -> usize {
        let enough = (most * PAGES_PER_KEY) as u64;
        let room = self.space.metadata_room(enough) as usize / PAGES_PER_KEY;
        room.clamp(BACKLOG_MIN, most)
    }
}

/// The thread that commits periodically.
pub(crate) struct Background(Option<JoinHandle<()>>);

impl Background {
    pub fn start(fs: &Arc<FsShared>) -> Result<Background> {
        let inner = Arc::clone(fs);
        let thread = std::thread::Builder::new().name("fs-commit".into());
        let thread = thread.spawn(move || commit_from_time_to_time(&inner));
        match thread {
            Ok(thread) => Ok(Background(Some(thread))),
            Err(e) => Err(block::Error::from_io(&fs.name, e).into()),
        }
    }

    pub fn stop(&mut self, fs: &FsShared) {
        fs.wake.set(|wanted| wanted.stop = true);
        // A panic has been reported already, and the final commit fails like those of the thread.
        let _ = self.0.take().map(JoinHandle::join);
    }
}

fn commit_from_time_to_time(fs: &FsShared) {
    home(Layer::Fs);
    let interval = fs.options.commit_interval;
    let mut wanted = fs.wake.wanted.lock().expect("no panic under this lock");
    loop {
        let waiting = |w: &mut Wanted| !w.stop && !w.commit;
        let waited = fs
            .wake
            .changed
            .wait_timeout_while(wanted, interval, waiting);
        wanted = waited.expect("no panic under this lock").0;
        if wanted.stop {
            return;
        }
        wanted.commit = false;
        drop(wanted);
        // The error has been logged and kept; the next caller that writes gets it.
        let _ = fs.checkpoint();
        wanted = fs.wake.wanted.lock().expect("no panic under this lock");
    }
}
