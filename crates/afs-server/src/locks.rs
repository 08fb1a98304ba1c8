//! Locks of files, which hold for a time unless they are extended.
//!
//! AFS locks whole files and does not say who: a client that shares a file among its own programs
//! asks once. So a lock has an end and, of readers, a number; whoever may lock may end one, as in
//! OpenAFS.
//!
//! **Invariant:** a file is locked by one writer or by readers, and not beyond its time.

use crate::volume::VolumeId;
use afs_proto::fs::{LOCK_SECONDS, LockType};
use fs::Ino;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Locked files at once.
const LOCKS_MAX: usize = 1 << 20;

const HOLDS: Duration = Duration::from_secs(LOCK_SECONDS as u64);

/// All locks of a server. They do not outlive it.
#[derive(Default)]
pub(crate) struct Locks {
    files: Mutex<HashMap<(VolumeId, Ino), Lock>>,
}

/// How a file is locked, until when.
struct Lock {
    /// Readers; -1 for a writer, as in a status.
    count: i32,
    until: Instant,
}

/// Why a lock cannot be had, or not be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Somebody else has it, or there are too many.
    Busy,
    /// It is not locked, or not any more.
    NotLocked,
}

impl Locks {
    fn files(&self) -> std::sync::MutexGuard<'_, HashMap<(VolumeId, Ino), Lock>> {
        self.files.lock().expect("no panic under this lock")
    }

    pub(crate) fn set(
        &self,
        now: Instant,
        file: (VolumeId, Ino),
        kind: LockType,
    ) -> Result<(), Refused> {
        let mut files = self.files();
        if files.len() >= LOCKS_MAX {
            files.retain(|_, lock| lock.until > now);
        }
        let full = files.len() >= LOCKS_MAX;
        let wanted = if kind == LockType::Write { -1 } else { 1 };
        let until = now + HOLDS;
        match files.entry(file) {
            Entry::Vacant(_) if full => Err(Refused::Busy),
            Entry::Vacant(place) => {
                place.insert(Lock {
                    count: wanted,
                    until,
                });
                Ok(())
            }
            Entry::Occupied(mut there) => {
                let lock = there.get_mut();
                if lock.until <= now {
                    lock.count = wanted;
                } else if wanted == 1 && lock.count > 0 && lock.count < i32::MAX {
                    lock.count += 1;
                } else {
                    return Err(Refused::Busy);
                }
                lock.until = until;
                Ok(())
            }
        }
    }

    pub(crate) fn extend(&self, now: Instant, file: (VolumeId, Ino)) -> Result<(), Refused> {
        match self.files().get_mut(&file).filter(|lock| lock.until > now) {
            Some(lock) => {
                lock.until = now + HOLDS;
                Ok(())
            }
            None => Err(Refused::NotLocked),
        }
    }

    /// Ends one lock.
    pub(crate) fn release(&self, now: Instant, file: (VolumeId, Ino)) -> Result<(), Refused> {
        let mut files = self.files();
        let Entry::Occupied(mut there) = files.entry(file) else {
            return Err(Refused::NotLocked);
        };
        let lock = there.get_mut();
        let was_over = lock.until <= now;
        lock.count -= lock.count.signum();
        if was_over || lock.count == 0 {
            there.remove();
        }
        match was_over {
            true => Err(Refused::NotLocked),
            false => Ok(()),
        }
    }

    /// What a status says: how many readers, or -1.
    pub(crate) fn count(&self, now: Instant, file: (VolumeId, Ino)) -> i32 {
        let files = self.files();
        let lock = files.get(&file).filter(|lock| lock.until > now);
        lock.map_or(0, |lock| lock.count)
    }

    /// The file is gone.
    pub(crate) fn forget(&self, file: (VolumeId, Ino)) {
        self.files().remove(&file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_writer_or_readers_and_not_beyond_their_time() {
        let (locks, now, file) = (Locks::default(), Instant::now(), (1, 2));
        let (late, lapsed) = (now + HOLDS / 2, now + 2 * HOLDS);
        assert_eq!(locks.release(now, file), Err(Refused::NotLocked));
        assert_eq!(locks.extend(now, file), Err(Refused::NotLocked));
        assert_eq!(locks.set(now, file, LockType::Read), Ok(()));
        assert_eq!(locks.set(now, file, LockType::Read), Ok(()));
        assert_eq!(locks.count(now, file), 2);
        assert_eq!(locks.set(now, file, LockType::Write), Err(Refused::Busy));
        assert_eq!(locks.release(now, file), Ok(()));
        assert_eq!(locks.release(now, file), Ok(()));
        assert_eq!(locks.set(now, file, LockType::Write), Ok(()));
        assert_eq!(locks.count(now, file), -1);
        assert_eq!(locks.set(now, file, LockType::Read), Err(Refused::Busy));
        assert_eq!(locks.set(now, (1, 4), LockType::Read), Ok(()));
        assert_eq!(locks.extend(late, file), Ok(()));
        assert_eq!(locks.count(now + HOLDS, file), -1);
        assert_eq!(locks.extend(lapsed, file), Err(Refused::NotLocked));
        assert_eq!(locks.set(lapsed, file, LockType::Read), Ok(()));
        assert_eq!(locks.count(lapsed, file), 1);
        locks.forget(file);
        assert_eq!(locks.count(lapsed, file), 0);
    }
}
