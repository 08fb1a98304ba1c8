//! The log in memory for the server that takes over when this one is killed.
//!
//! Each operation appends what it has changed while it still holds the lock, so the order of the log
//! is that of the changes. Entries are dropped when the disk has them. The successor opens the disk,
//! which has all changes up to one that is not before the start of the log, and replays the log on
//! top of it; see [`crate::metadata::saved`] for why it may begin too early.
//!
//! **Invariant:** the log is used only on the disk that its server left. So it states how often the file
//! system was opened, which every server counts up on the disk before it changes anything, and the
//! epochs of the last commit: the one that has ended, and the one that may not have. Whatever does not
//! fit is refused, and the disk alone counts. What changes the state without an operation marks the
//! log as incomplete, until a commit covers it.

use crate::format::record::Run;
use crate::metadata::database::{Epoch, SpaceChange};
use crate::metadata::journal::Delta;
use crate::metadata::saved::{Replayed, Saved};
use crate::metadata::shared::FsShared;
use crate::metadata::state::State;
use crate::metadata::survivor::Survival;
use crate::space::Space;
use std::collections::HashSet;
use std::ops::Range;
use survival::Log;
use survival::log::{Mark, Unusable};

/// Part of the log that is free when a commit is begun, and when operations wait for it.
const FREE_PARTS: (u32, u32) = (2, 8);

/// The disk, as far as a log depends on it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Disk {
    pub uuid: [u8; 16],
    pub openings: u32,
    /// The last commit.
    pub epoch: Epoch,
}

/// Decoded log.
#[derive(Default)]
pub(crate) struct Heritage {
    pub deltas: Vec<Delta>,
    pub replayed: Replayed,
    pub requests: HashSet<u64>,
    /// Number of the last change.
    pub changes: u64,
}

/// Returns the part of an epoch that the log states.
fn low(epoch: Epoch) -> u32 {
    epoch.number() as u32
}

impl Survival {
    /// Reads the log of a predecessor.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(crate) fn heritage(&self, disk: &Disk) -> Result<Heritage, String> {
        let text = |error: Unusable| error.to_string();
        if self.log.identity() != disk.uuid {
            return Err(text(Unusable::Foreign));
        }
        let marked = |mark| self.log.marked(mark).map_err(text);
        let openings = [marked(Mark::Opened)?, marked(Mark::Opening)?];
        let epochs = [marked(Mark::Committed)?, marked(Mark::Begun)?];
        if !openings.contains(&disk.openings) {
            let was = openings[0];
            let now = disk.openings;
            return Err(format!(
                "it ends at opening {was} of the file system, and the disk is at {now}"
            ));
        }
        if !epochs.contains(&low(disk.epoch)) {
            let was = epochs[0];
            return Err(format!(
                "it is based on commit {was}, and the disk has commit {}",
                disk.epoch
            ));
        }
        let mut heritage = Heritage::default();
        for entry in self.log.entries().map_err(text)? {
            let saved = Saved::decode(&entry.payload).map_err(|error| error.to_string())?;
            heritage.deltas.push(saved.replay(&mut heritage.replayed));
            heritage.changes = entry.sequence;
            if entry.request != 0 {
                heritage.requests.insert(entry.request);
            }
        }
        Ok(heritage)
    }

    /// Begins to use the log for the file system as it is on the disk. Without `keeps`, entries are
    /// dropped.
    pub(crate) fn begin(&self, disk: &Disk, keeps: bool) {
        if !keeps {
            self.log.reset();
        }
        self.log.mark(Mark::Committed, low(disk.epoch));
        self.log.mark(Mark::Begun, low(disk.epoch));
    }

    /// Keeps the requests that predecessors have carried out, those in the log and those in the table.
    pub(crate) fn inherit(&self, logged: &HashSet<u64>) {
        if let Some(requests) = &self.requests {
            let mut done = requests.done();
            done.extend(logged);
            requests.inherit(&done);
        }
    }

    /// Records that the number of openings is about to change on the disk.
    pub(crate) fn opening(&self, openings: u32) {
        self.log.mark(Mark::Opening, openings);
    }

    /// Records that the disk has the number of openings.
    pub(crate) fn opened(&self, openings: u32) {
        self.log.mark(Mark::Opened, openings);
        self.log.mark(Mark::Opening, openings);
    }
}

impl Replayed {
    /// Makes the blocks free or used that the log states. `data` are the blocks that may hold data.
    /// Returns `false` if it states others.
    pub fn load_space(&self, data: Range<u64>, space: &Space) -> bool {
        let is_inside = |run: &Run| data.start <= run.start && run.end() <= data.end;
        if !self.space.iter().all(|change| is_inside(&change.run)) {
            return false;
        }
        for change in &self.space {
            space.set_use(change.run, change.used);
        }
        true
    }
}

impl FsShared {
    /// Appends what was changed since the last call to the log, as part of the last change.
    pub fn save(&self, state: &mut State, space: &[SpaceChange]) {
        let Some(survival) = &self.options.survival else {
            return;
        };
        let log = &survival.log;
        let changes = state.changes;
        let had_room = !log.is_short(FREE_PARTS.0);
        state.save(space, |bytes| self.append(log, changes, bytes));
        if had_room && log.is_short(FREE_PARTS.0) {
            self.wake.set(|wanted| wanted.commit = true);
        }
    }

    /// Appends what the disk will lack when it has all changes so far, as a change of its own.
    pub fn save_ahead(&self, state: &mut State) {
        if let Some(survival) = &self.options.survival {
            state.save_ahead(|state, bytes| {
                state.changes += 1;
                if !survival.log.append_rest(state.changes, bytes) {
                    self.warn_of_room();
                }
            });
        }
    }

    fn append(&self, log: &Log, changes: u64, bytes: &[u8]) {
        if !log.append(changes, bytes) {
            self.warn_of_room();
        }
    }

    fn warn_of_room(&self) {
        {
            tracing::warn!(
                name: "EVFS-0210",
                "{}: the log in memory has no room; changes until the next commit survive no crash of \
                 the server",
                self.name
            );
        }
    }

    /// Records that the operation that was just finished has carried out the request of this thread.
    pub fn carried_out(&self) {
        let survival = self.options.survival.as_ref();
        if let Some(requests) = survival.and_then(|survival| survival.requests.as_ref()) {
            requests.carried_out();
        }
    }

    /// Marks the log as incomplete until a commit has the next change: it will change what the log
    /// cannot express.
    pub fn leave_log(&self, state: &State) {
        if let Some(survival) = &self.options.survival {
            survival.log.lacks(state.changes + 1);
        }
    }

    /// Reports whether the log needs a commit before it can take more changes.
    pub fn needs_commit_for_log(&self) -> bool {
        let survival = self.options.survival.as_ref();
        survival.is_some_and(|survival| survival.log.is_short(FREE_PARTS.1))
    }

    /// Records that the disk has all changes up to a number.
    pub fn log_durable(&self, changes: u64) {
        if let Some(survival) = &self.options.survival {
            survival.log.durable(changes);
        }
    }

    /// Records that a commit begins.
    pub fn commit_begins(&self, epoch: Epoch) {
        if let Some(survival) = &self.options.survival {
            survival.log.mark(Mark::Begun, low(epoch));
        }
    }

    /// Records that a commit is durable.
    pub fn commit_ended(&self, epoch: Epoch) {
        if let Some(survival) = &self.options.survival {
            survival.log.mark(Mark::Committed, low(epoch));
        }
    }
}
