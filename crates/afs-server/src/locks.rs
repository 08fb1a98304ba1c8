//! File locks, which expire unless they are extended.
//!
//! AFS locks whole files without naming the holder: a client that shares a file among its own
//! programs requests one lock. A lock therefore has an expiry and, for readers, a count; as in
//! OpenAFS, any caller with the lock right may release one.
//!
//! **Invariant:** a file is locked by one writer or by readers, and not beyond the expiry.

use crate::lock_table::{KEPT_MAX, KeptLock, LockTable};
use crate::survival::machine_seconds;
use crate::volume::VolumeId;
use afs_proto::fs::{LOCK_SECONDS, LockType};
use fs::Ino;
use rx::Keep;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Maximum number of locked files.
const LOCKS_MAX: usize = 1 << 20;

const HOLDS: Duration = Duration::from_secs(LOCK_SECONDS as u64);

/// All locks of a server. They are not persistent, but another server has those of a killed one.
#[derive(Default)]
pub(crate) struct Locks {
    files: Mutex<HashMap<(VolumeId, Ino), Lock>>,
    table: Option<LockTable>,
}

/// State of a locked file.
struct Lock {
    /// Number of readers; -1 for a writer, as in a status; 0 after the last release.
    count: i32,
    until: Instant,
    /// The call that changed it last, 0 if it has no number.
    by: u64,
    slot: Option<usize>,
}

/// Reason why a lock is not granted or not extended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockError {
    /// A conflicting lock is held, or there are too many locks.
    Busy,
    /// The file is not locked, or the lock has expired.
    NotLocked,
}

impl Locks {
    /// Creates the table of locks for another server, or takes over that of a killed one.
    ///
    /// # Errors
    /// The table cannot be created or kept, or is damaged.
    pub(crate) fn open(keep: &dyn Keep) -> io::Result<Locks> {
        let (table, left) = LockTable::open(keep)?;
        let (now, machine) = (Instant::now(), machine_seconds());
        let lock = |left: KeptLock| {
            let rest = left.until.saturating_sub(machine);
            let lock = Lock {
                count: left.count,
                until: now + Duration::from_secs(rest),
                by: left.by,
                slot: Some(left.slot),
            };
            (left.file, lock)
        };
        Ok(Locks {
            files: Mutex::new(left.into_iter().map(lock).collect()),
            table: Some(table),
        })
    }

    fn files(&self) -> std::sync::MutexGuard<'_, HashMap<(VolumeId, Ino), Lock>> {
        self.files.lock().expect("no panic under this lock")
    }

    /// Notes the state of a lock for another server.
    fn note(&self, now: Instant, lock: &Lock) {
        if let (Some(table), Some(slot)) = (&self.table, lock.slot) {
            let rest = lock.until.saturating_duration_since(now).as_secs();
            table.note(slot, (lock.count, machine_seconds() + rest), lock.by);
        }
    }

    fn remove(&self, lock: &Lock) {
        if let (Some(table), Some(slot)) = (&self.table, lock.slot) {
            table.remove(slot);
        }
    }

    /// Locks a file for the call `by`, once.
    pub(crate) fn set(
        &self,
        now: Instant,
        file: (VolumeId, Ino),
        kind: LockType,
        by: u64,
    ) -> Result<(), LockError> {
        let mut files = self.files();
        let most = self.table.as_ref().map_or(LOCKS_MAX, |_| KEPT_MAX);
        if files.len() >= most {
            files
                .extract_if(|_, lock| lock.until <= now)
                .for_each(|(_, lock)| self.remove(&lock));
        }
        let full = files.len() >= most;
        let wanted = if kind == LockType::Write { -1 } else { 1 };
        let until = now + HOLDS;
        match files.entry(file) {
            Entry::Vacant(_) if full => Err(LockError::Busy),
            Entry::Vacant(place) => {
                let lock = place.insert(Lock {
                    count: wanted,
                    until,
                    by,
                    slot: self.table.as_ref().and_then(|table| table.enter(file)),
                });
                self.note(now, lock);
                Ok(())
            }
            Entry::Occupied(mut there) => {
                let lock = there.get_mut();
                if lock.by == by && by != 0 {
                    return Ok(());
                }
                if lock.until <= now || lock.count == 0 {
                    lock.count = wanted;
                } else if wanted == 1 && lock.count > 0 && lock.count < i32::MAX {
                    lock.count += 1;
                } else {
                    return Err(LockError::Busy);
                }
                (lock.until, lock.by) = (until, by);
                self.note(now, lock);
                Ok(())
            }
        }
    }

    pub(crate) fn extend(&self, now: Instant, file: (VolumeId, Ino)) -> Result<(), LockError> {
        let mut files = self.files();
        let held = |lock: &&mut Lock| lock.until > now && lock.count != 0;
        match files.get_mut(&file).filter(held) {
            Some(lock) => {
                lock.until = now + HOLDS;
                self.note(now, lock);
                Ok(())
            }
            None => Err(LockError::NotLocked),
        }
    }

    /// Releases one lock for the call `by`, once.
    pub(crate) fn release(
        &self,
        now: Instant,
        file: (VolumeId, Ino),
        by: u64,
    ) -> Result<(), LockError> {
        let mut files = self.files();
        let Entry::Occupied(mut there) = files.entry(file) else {
            return Err(LockError::NotLocked);
        };
        let lock = there.get_mut();
        if lock.by == by && by != 0 {
            return Ok(());
        }
        let was_over = lock.until <= now || lock.count == 0;
        lock.count -= lock.count.signum();
        lock.by = by;
        if was_over || lock.count == 0 && lock.slot.is_none() {
            self.remove(&there.remove());
        } else {
            // An entry without holders tells a repetition of this call that it was carried out.
            self.note(now, there.get());
        }
        if was_over {
            Err(LockError::NotLocked)
        } else {
            Ok(())
        }
    }

    /// Returns the lock count for a status: the number of readers, or -1 for a writer.
    pub(crate) fn count(&self, now: Instant, file: (VolumeId, Ino)) -> i32 {
        let files = self.files();
        let lock = files.get(&file).filter(|lock| lock.until > now);
        lock.map_or(0, |lock| lock.count)
    }

    /// Drops the lock of a removed file.
    pub(crate) fn forget(&self, file: (VolumeId, Ino)) {
        if let Some(lock) = self.files().remove(&file) {
            self.remove(&lock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{BorrowedFd, OwnedFd};

    #[test]
    fn one_writer_or_readers_and_not_beyond_their_time() {
        let (locks, now, file) = (Locks::default(), Instant::now(), (1, 2));
        let (late, lapsed) = (now + HOLDS / 2, now + 2 * HOLDS);
        assert_eq!(locks.release(now, file, 0), Err(LockError::NotLocked));
        assert_eq!(locks.extend(now, file), Err(LockError::NotLocked));
        assert_eq!(locks.set(now, file, LockType::Read, 0), Ok(()));
        assert_eq!(locks.set(now, file, LockType::Read, 0), Ok(()));
        assert_eq!(locks.count(now, file), 2);
        assert_eq!(
            locks.set(now, file, LockType::Write, 0),
            Err(LockError::Busy)
        );
        assert_eq!(locks.release(now, file, 0), Ok(()));
        assert_eq!(locks.release(now, file, 0), Ok(()));
        assert_eq!(locks.set(now, file, LockType::Write, 0), Ok(()));
        assert_eq!(locks.count(now, file), -1);
        assert_eq!(
            locks.set(now, file, LockType::Read, 0),
            Err(LockError::Busy)
        );
        assert_eq!(locks.set(now, (1, 4), LockType::Read, 0), Ok(()));
        assert_eq!(locks.extend(late, file), Ok(()));
        assert_eq!(locks.count(now + HOLDS, file), -1);
        assert_eq!(locks.extend(lapsed, file), Err(LockError::NotLocked));
        assert_eq!(locks.set(lapsed, file, LockType::Read, 0), Ok(()));
        assert_eq!(locks.count(lapsed, file), 1);
        locks.forget(file);
        assert_eq!(locks.count(lapsed, file), 0);
    }
    /// What a keeper has.
    #[derive(Default)]
    struct Left(Mutex<Vec<OwnedFd>>);

    impl Keep for Left {
        fn take(&self, _name: &str) -> Vec<OwnedFd> {
            std::mem::take(&mut self.0.lock().unwrap())
        }

        fn keep(&self, _name: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
            let all = descriptors.iter().map(|fd| fd.try_clone_to_owned());
            *self.0.lock().unwrap() = all.collect::<io::Result<_>>()?;
            Ok(())
        }
    }

    #[test]
    fn another_server_has_the_locks_and_repeats_no_call() {
        let (left, now) = (Left::default(), Instant::now());
        let (read, write, gone) = ((1, 2), (1, 4), (1, 6));
        let locks = Locks::open(&left).unwrap();
        for by in [10, 11, 11] {
            assert_eq!(locks.set(now, read, LockType::Read, by), Ok(()));
        }
        assert_eq!(locks.set(now, write, LockType::Write, 12), Ok(()));
        assert_eq!(locks.set(now, gone, LockType::Write, 13), Ok(()));
        assert_eq!(locks.release(now, gone, 14), Ok(()));
        let locks = Locks::open(&left).unwrap();
        let now = Instant::now();
        assert_eq!(locks.count(now, read), 2);
        assert_eq!(locks.count(now, write), -1);
        assert_eq!(locks.count(now, gone), 0);
        // Calls that the server before has carried out.
        assert_eq!(locks.set(now, write, LockType::Write, 12), Ok(()));
        assert_eq!(locks.release(now, gone, 14), Ok(()));
        let busy = Err(LockError::Busy);
        assert_eq!(locks.set(now, write, LockType::Write, 15), busy);
        assert_eq!(locks.release(now, gone, 16), Err(LockError::NotLocked));
        assert_eq!(locks.extend(now, write), Ok(()));
        assert_eq!(locks.release(now, write, 17), Ok(()));
        assert_eq!(locks.set(now, write, LockType::Read, 18), Ok(()));
        locks.forget(read);
        assert_eq!(Locks::open(&left).unwrap().count(now, read), 0);
    }
}
