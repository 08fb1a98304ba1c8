//! File locks, which expire unless they are extended.
//!
//! AFS locks whole files without naming the holder: a client that shares a file among its own
//! programs requests one lock. A lock therefore has an expiry and, for readers, a count; as in
//! OpenAFS, any caller with the lock right may release one.
//!
//! **Invariant:** a file is locked by one writer or by readers, and not beyond the expiry.

use crate::volume::VolumeId;
use afs_proto::fs::{LOCK_SECONDS, LockType};
use fs::Ino;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Maximum number of locked files.
const LOCKS_MAX: usize = 1 << 20;

const HOLDS: Duration = Duration::from_secs(LOCK_SECONDS as u64);

/// All locks of a server. They are not persistent.
#[derive(Default)]
pub(crate) struct Locks {
    files: Mutex<HashMap<(VolumeId, Ino), Lock>>,
}

/// State of a locked file.
struct Lock {
    /// Number of readers; -1 for a writer, as in a status.
    count: i32,
    until: Instant,
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
    fn files(&self) -> std::sync::MutexGuard<'_, HashMap<(VolumeId, Ino), Lock>> {
        self.files.lock().expect("no panic under this lock")
    }

    pub(crate) fn set(
        &self,
        now: Instant,
        file: (VolumeId, Ino),
        kind: LockType,
    ) -> Result<(), LockError> {
        let mut files = self.files();
        if files.len() >= LOCKS_MAX {
            files.retain(|_, lock| lock.until > now);
        }
        let full = files.len() >= LOCKS_MAX;
        let wanted = if kind == LockType::Write { -1 } else { 1 };
        let until = now + HOLDS;
        match files.entry(file) {
            Entry::Vacant(_) if full => Err(LockError::Busy),
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
                    return Err(LockError::Busy);
                }
                lock.until = until;
                Ok(())
            }
        }
    }

    pub(crate) fn extend(&self, now: Instant, file: (VolumeId, Ino)) -> Result<(), LockError> {
        match self.files().get_mut(&file).filter(|lock| lock.until > now) {
            Some(lock) => {
                lock.until = now + HOLDS;
                Ok(())
            }
            None => Err(LockError::NotLocked),
        }
    }

    /// Releases one lock.
    pub(crate) fn release(&self, now: Instant, file: (VolumeId, Ino)) -> Result<(), LockError> {
        let mut files = self.files();
        let Entry::Occupied(mut there) = files.entry(file) else {
            return Err(LockError::NotLocked);
        };
        let lock = there.get_mut();
        let was_over = lock.until <= now;
        lock.count -= lock.count.signum();
        if was_over || lock.count == 0 {
            there.remove();
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
        assert_eq!(locks.release(now, file), Err(LockError::NotLocked));
        assert_eq!(locks.extend(now, file), Err(LockError::NotLocked));
        assert_eq!(locks.set(now, file, LockType::Read), Ok(()));
        assert_eq!(locks.set(now, file, LockType::Read), Ok(()));
        assert_eq!(locks.count(now, file), 2);
        assert_eq!(locks.set(now, file, LockType::Write), Err(LockError::Busy));
        assert_eq!(locks.release(now, file), Ok(()));
        assert_eq!(locks.release(now, file), Ok(()));
        assert_eq!(locks.set(now, file, LockType::Write), Ok(()));
        assert_eq!(locks.count(now, file), -1);
        assert_eq!(locks.set(now, file, LockType::Read), Err(LockError::Busy));
        assert_eq!(locks.set(now, (1, 4), LockType::Read), Ok(()));
        assert_eq!(locks.extend(late, file), Ok(()));
        assert_eq!(locks.count(now + HOLDS, file), -1);
        assert_eq!(locks.extend(lapsed, file), Err(LockError::NotLocked));
        assert_eq!(locks.set(lapsed, file, LockType::Read), Ok(()));
        assert_eq!(locks.count(lapsed, file), 1);
        locks.forget(file);
        assert_eq!(locks.count(lapsed, file), 0);
    }
}
