//! When changes become durable.
//!
//! ```text
//!   fsync:    state ──changed since the last record──► journal            one write, made durable
//!   commit:   state ──freeze──► tree (redb, two phases)                   every few seconds
//! ```
//!
//! A thread that wants its changes durable does it for everybody (group commit), or waits while another
//! one does, and goes on as soon as what that one wrote includes them; whoever else comes meanwhile is
//! with the next. A commit
//! writes what the journal does not have yet as its last record, freezes, and goes on in the other
//! half, so that nobody waits for the tree; only if that record does not fit, the next fsync does.
//!
//! **Invariant:** file data is durable before the first record or commit that names it. A commit of
//! the tree includes every record of its epoch.

use crate::db::Db;
use crate::error::{Error, Kind, Result};
use crate::fs::Inner;
use crate::journal::{Delta, Writer};
use crate::state::State;
use crate::store::Frozen;
use crate::superblock::SEGMENTS_MAX;
use block::layer::{Layer, home};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// Backlogs after which callers wait for the commit.
const BACKLOGS_MAX: usize = 2;

/// Changed keys that need no commit whatever happens.
const BACKLOG_MIN: usize = 32;

/// Pages that are put aside for each changed key.
const PAGES_PER_KEY: usize = 8;

/// Segments of the metadata that nobody counts on: for the next opening.
const SEGMENTS_SPARE: usize = 4;

/// The end of the journal.
pub(crate) struct Log {
    writer: Writer,
    /// The last commit could not be logged first, and is not durable yet: no record may follow.
    blocked: bool,
}

impl Log {
    pub fn new(writer: Writer) -> Log {
        Log {
            writer,
            blocked: false,
        }
    }

    /// The epoch of a commit that makes every record so far a thing of the past.
    pub fn epoch_after_all(&self) -> u64 {
        self.writer.epoch() + 1
    }

    /// That commit is there.
    pub fn skip_all(&mut self) {
        self.writer.next_epoch();
        self.writer.next_epoch();
        self.blocked = false;
    }
}

/// Who writes for everybody. Its lock is never held during a write, so that those whose changes are
/// durable do not wait for the next ones to be.
#[derive(Default)]
pub(crate) struct Group {
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Default)]
struct Progress {
    /// Changes up to this one are durable.
    durable: u64,
    /// Somebody writes.
    busy: bool,
}

/// The turn of one who writes; it is over when this is dropped.
struct Turn<'g>(&'g Group);

impl Group {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().expect("no panic under this lock")
    }

    /// Waits until changes are durable, or for a turn to make them so.
    fn turn(&self, wanted: u64) -> Option<Turn<'_>> {
        let waits = |progress: &mut Progress| progress.busy && progress.durable < wanted;
        let progress = self.changed.wait_while(self.lock(), waits);
        let mut progress = progress.expect("no panic under this lock");
        if progress.durable >= wanted {
            return None;
        }
        progress.busy = true;
        Some(Turn(self))
    }

    fn is_durable(&self, wanted: u64) -> bool {
        self.lock().durable >= wanted
    }

    /// Changes up to this one are durable.
    fn done(&self, changes: u64) {
        let mut progress = self.lock();
        progress.durable = progress.durable.max(changes);
        drop(progress);
        self.changed.notify_all();
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.lock().busy = false;
        self.0.changed.notify_all();
    }
}

/// Wakes the thread that commits.
#[derive(Default)]
pub(crate) struct Wake {
    wanted: Mutex<Wanted>,
    changed: Condvar,
}

#[derive(Default)]
struct Wanted {
    commit: bool,
    stop: bool,
}

/// What a record has to hold, taken from the state at one moment.
struct Taken {
    delta: Delta,
    keys: Vec<crate::key::Key>,
    changes: u64,
    set: u64,
    /// Writes of file data that had ended before that moment.
    written: u64,
}

impl Inner {
    pub fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().expect("no panic under this lock")
    }

    /// Makes everything durable that has happened so far.
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
        while let Some(turn) = self.group.turn(wanted) {
            let mut log = self.log();
            // A commit may have come first.
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
    fn flush_data(&self, written: u64) -> Result<()> {
        if !self.space.needs_flush_of(written) {
            return Ok(());
        }
        let written = self.space.written();
        self.io.flush()?;
        self.space.set_flushed(written);
        Ok(())
    }

    /// Takes what the journal does not have.
    fn take(&self, state: &mut State) -> Result<Taken> {
        let written = self.space.written();
        let result = state.materialize();
        if result.is_err() {
            state.settle();
        }
        result?;
        let (delta, keys) = state.store.take_delta();
        Ok(Taken {
            delta,
            keys,
            changes: state.changes,
            set: self.space.close_set(),
            written,
        })
    }

    /// Writes one record with everything that has happened; says no if it does not fit.
    fn write_record(&self, log: &mut Log) -> Result<bool> {
        let mut taken = self.take(&mut self.write())?;
        let written = match self.log_taken(log, &taken) {
            Ok(true) => return Ok(true),
            other => other,
        };
        let space = std::mem::take(&mut taken.delta.space);
        self.write().store.untake_delta(space, taken.keys);
        written
    }

    fn log_taken(&self, log: &mut Log, taken: &Taken) -> Result<bool> {
        if taken.delta.is_empty() {
            self.flush_data(taken.written)?;
        } else {
            let Some(record) = log.writer.prepare(&taken.delta) else {
                return Ok(false);
            };
            let flush = self.space.needs_flush_of(taken.written);
            log.writer.write(&self.io, record, flush)?;
            self.space.set_flushed(taken.written);
        }
        self.space.set_durable(taken.set);
        self.group.done(taken.changes);
        Ok(true)
    }

    /// Commits everything to the tree. A failure ends writing: what is durable stays so.
    pub fn checkpoint(&self) -> Result<()> {
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
                if !state.store.is_changed() {
                    drop(state);
                    return self.log_taken(&mut log, &taken).map(drop);
                }
                (state.store.freeze(), taken)
            };
            self.backlog.store(0, Relaxed);
            let epoch = log.writer.epoch();
            // A record that does not fit is no loss: the commit will have it. One that could not be
            // written makes the commit fail too, because nothing is called durable after that.
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

    fn commit(&self, db: &Db, frozen: &Frozen, epoch: u64, taken: &Taken) -> Result<()> {
        db.commit(&frozen.items, &frozen.space, epoch)?;
        let base = db.base()?;
        self.note_slack(db)?;
        let mut log = self.log();
        log.blocked = false;
        // The commit has flushed the device before it became the current one.
        self.space.set_flushed(taken.written);
        self.space.set_durable(taken.set);
        self.group.done(taken.changes);
        let old = self.write().store.committed(base);
        drop(log);
        drop(old);
        Ok(())
    }

    /// Tells the allocator what room there is within the metadata.
    pub fn note_slack(&self, db: &Db) -> Result<()> {
        let segments = self.superblock.lock().segments.clone();
        let blocks: u64 = segments.iter().map(|s| u64::from(s.blocks)).sum();
        // A commit writes what it changes to other pages, so that the items need twice their room.
        let slack = blocks.saturating_sub(2 * db.item_pages()?);
        let runs = SEGMENTS_MAX.saturating_sub(segments.len() + SEGMENTS_SPARE);
        self.space.set_slack(slack, runs);
        Ok(())
    }

    /// Commits what the journal held when the file system was opened, as the second of its epochs,
    /// so that no record of either is ever played again.
    pub fn commit_replayed(&self) -> Result<()> {
        {
            let mut log = self.log();
            log.writer.next_epoch();
            // A record would go over those that were played, which are needed until the commit is there.
            log.blocked = true;
        }
        self.checkpoint()
    }

    /// Ends writing for good.
    fn fail(&self, error: Error) -> Error {
        let text = format!("the file system can only be read since an error: {error}");
        tracing::error!("{}: {text}", self.name);
        let mut state = self.write();
        state.failed.get_or_insert(Error::new(Kind::ReadOnly, text));
        error
    }

    /// Tries again, if the device is full but for blocks that wait for the change that freed them to be
    /// durable, once it is.
    pub fn with_room<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        match attempt() {
            Err(error) if error.kind() == Kind::NoSpace && self.space.is_resting() => {
                self.sync()?;
                attempt()
            }
            result => result,
        }
    }

    /// Notes how much waits for a commit; much of it wakes the thread that commits.
    pub fn note_backlog(&self, state: &State) {
        let now = state
            .store
            .active
            .len()
            .max(state.store.active.bytes() / 1024);
        // An inode that is not in the store yet becomes a record there, and another one for a snapshot.
        let now = now + 2 * state.dirty_cores.len();
        let before = self.backlog.swap(now, Relaxed);
        if now > self.backlog_max && before <= self.backlog_max {
            self.wake.set(|wanted| wanted.commit = true);
        }
    }

    /// Commits first where too much waits for it: more than memory should hold, or more than there is
    /// room for.
    pub fn wait_for_room(&self) -> Result<()> {
        let backlog = self.backlog.load(Relaxed);
        if backlog <= BACKLOG_MIN {
            return Ok(());
        }
        // Each key changed may take a page of the tree, and as much again on the way to it and until
        // the pages of the commit before can be used again. So the fuller the device, the smaller the
        // commits, and a tree on a device with only the reserve left can still be changed.
        let enough = (backlog * PAGES_PER_KEY) as u64;
        let room = self.space.metadata_room(enough) as usize / PAGES_PER_KEY;
        match backlog > (self.backlog_max * BACKLOGS_MAX).min(room.max(BACKLOG_MIN)) {
            true => self.checkpoint(),
            false => Ok(()),
        }
    }
}

impl Wake {
    fn set(&self, change: impl FnOnce(&mut Wanted)) {
        change(&mut self.wanted.lock().expect("no panic under this lock"));
        self.changed.notify_all();
    }
}

/// The thread that commits every few seconds.
pub(crate) struct Background(Option<JoinHandle<()>>);

impl Background {
    pub fn start(fs: &Arc<Inner>) -> Result<Background> {
        let inner = Arc::clone(fs);
        let thread = std::thread::Builder::new().name("fs-commit".into());
        let thread = thread.spawn(move || commit_from_time_to_time(&inner));
        match thread {
            Ok(thread) => Ok(Background(Some(thread))),
            Err(e) => Err(block::Error::from_io(&fs.name, e).into()),
        }
    }

    pub fn stop(&mut self, fs: &Inner) {
        fs.wake.set(|wanted| wanted.stop = true);
        // If it panicked it has said so; the commit that closes will fail like its own.
        let _ = self.0.take().map(JoinHandle::join);
    }
}

fn commit_from_time_to_time(fs: &Inner) {
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
        // An error has been said and kept; whoever writes next gets it.
        let _ = fs.checkpoint();
        wanted = fs.wake.wanted.lock().expect("no panic under this lock");
    }
}
