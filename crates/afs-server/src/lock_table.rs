//! File locks in memory that outlives the server.
//!
//! ```text
//!   slot:   checksum, 0 for none │ volume │ inode │ which state counts │ two states
//!   state:  count and end in seconds of the machine's clock │ the call that set it
//! ```
//!
//! A state and its call are replaced by one store, so a successor knows whether a call that it repeats
//! has set the lock.

use crate::volume::VolumeId;
use fs::Ino;
use rx::Keep;
use std::collections::HashSet;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};
use survival::Memory;
use survival::sealed::checksum;

/// Name of the table.
const NAME: &str = "afs-locks";

/// Maximum number of locks that are kept.
pub(crate) const KEPT_MAX: usize = 65_536;

const SLOT_WORDS: usize = 8;
const SELECTOR: usize = 3;
const STATES: usize = 4;

/// See the module.
pub(crate) struct LockTable {
    memory: Memory,
    free: Mutex<Vec<usize>>,
}

/// A lock of a killed server.
pub(crate) struct KeptLock {
    pub(crate) slot: usize,
    pub(crate) file: (VolumeId, Ino),
    pub(crate) count: i32,
    /// End in seconds of the machine's clock.
    pub(crate) until: u64,
    pub(crate) by: u64,
}

impl LockTable {
    /// Creates the table, or takes over that of a killed server with its locks.
    pub(crate) fn open(keep: &dyn Keep) -> io::Result<(LockTable, Vec<KeptLock>)> {
        let words = KEPT_MAX * SLOT_WORDS;
        let memory = match keep.take(NAME).pop() {
            Some(file) => Memory::adopt(file)?,
            None => Memory::create(NAME, words)?,
        };
        if memory.words().len() != words {
            return Err(damaged());
        }
        keep.keep(NAME, &[memory.file().as_fd()])?;
        let table = LockTable {
            memory,
            free: Mutex::default(),
        };
        let left: Vec<KeptLock> = (0..KEPT_MAX)
            .filter_map(|slot| table.read(slot).transpose())
            .collect::<io::Result<_>>()?;
        let used: HashSet<usize> = left.iter().map(|lock| lock.slot).collect();
        let free = (0..KEPT_MAX).rev().filter(|slot| !used.contains(slot));
        *table.free() = free.collect();
        Ok((table, left))
    }

    fn free(&self) -> MutexGuard<'_, Vec<usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn words(&self, slot: usize) -> &[AtomicU64] {
        &self.memory.words()[slot * SLOT_WORDS..][..SLOT_WORDS]
    }

    fn read(&self, slot: usize) -> io::Result<Option<KeptLock>> {
        let word = |at: usize| self.words(slot)[at].load(Acquire);
        let (check, volume, ino) = (word(0), word(1), word(2));
        if check == 0 {
            return Ok(None);
        }
        if check != checksum(&[volume, ino]).max(1) {
            return Err(damaged());
        }
        let at = STATES + 2 * (word(SELECTOR) & 1) as usize;
        let (state, by) = (word(at), word(at + 1));
        Ok(Some(KeptLock {
            slot,
            file: (volume as VolumeId, ino),
            count: (state >> 32) as u32 as i32,
            until: u64::from(state as u32),
            by,
        }))
    }

    /// Enters a file, not locked yet; `None` if there is no room.
    pub(crate) fn enter(&self, (volume, ino): (VolumeId, Ino)) -> Option<usize> {
        let slot = self.free().pop()?;
        let words = self.words(slot);
        words[1].store(volume.into(), Relaxed);
        words[2].store(ino, Relaxed);
        self.note(slot, (0, 0), 0);
        words[0].store(checksum(&[volume.into(), ino]).max(1), Release);
        Some(slot)
    }

    /// Stores the state of a lock: its count and its end, and the call that set it.
    pub(crate) fn note(&self, slot: usize, (count, until): (i32, u64), by: u64) {
        let words = self.words(slot);
        let other = words[SELECTOR].load(Relaxed) ^ 1;
        let at = STATES + 2 * (other & 1) as usize;
        let until = until.min(u64::from(u32::MAX));
        words[at].store(u64::from(count as u32) << 32 | until, Relaxed);
        words[at + 1].store(by, Relaxed);
        words[SELECTOR].store(other, Release);
    }

    /// Removes a file.
    pub(crate) fn remove(&self, slot: usize) {
        self.words(slot)[0].store(0, Release);
        self.free().push(slot);
    }
}

fn damaged() -> io::Error {
    let text = "the table of locks of the previous server is damaged";
    io::Error::new(io::ErrorKind::InvalidData, text)
}
