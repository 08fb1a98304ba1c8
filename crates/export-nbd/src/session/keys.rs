//! The keys of sessions in memory that a successor finds: a fence that was confirmed stays in force.
//!
//! ```text
//!   words of an entry    state and time | key | address of the client, two words | checksum
//! ```
//!
//! The first word is stored last, and is 0 while an entry is unused. The time is that of
//! `CLOCK_MONOTONIC`, which all processes share.

use super::{KEYS_MAX, UNKNOWN_MAX};
use crate::kept::Keep;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};
use survival::Memory;
use survival::sealed::{checksum, seal, unseal};

const ENTRY_WORDS: usize = 5;
const ENTRIES: usize = KEYS_MAX + UNKNOWN_MAX;

/// Bits of the first word, below the time in seconds.
const IS_USED: u64 = 1;
const IS_FENCED: u64 = 2;
const HAD_SESSION: u64 = 4;
const TIME_SHIFT: u32 = 3;

/// A key that was remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Saved {
    pub(super) entry: u32,
    pub(super) key: u64,
    pub(super) client: Option<IpAddr>,
    pub(super) fenced: bool,
    /// A connection has had a session with it.
    pub(super) had_session: bool,
    /// When its state last changed.
    pub(super) since: Instant,
}

/// See the module.
pub(super) struct Keys {
    memory: Memory,
    free: Vec<u32>,
}

impl Keys {
    /// Creates an empty table, or takes over that of a predecessor with its keys. Entries that are
    /// damaged are left out.
    ///
    /// # Errors
    /// The system has no memory; the table is missing.
    pub(super) fn new(keep: &dyn Keep) -> io::Result<(Keys, Vec<Saved>)> {
        let memory = match keep.take("nbd-keys").pop() {
            Some(file) if keep.is_successor() => Memory::adopt(file)?,
            None if !keep.is_successor() => Memory::create("evfs-nbd-keys", ENTRIES * ENTRY_WORDS)?,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        if memory.words().len() != ENTRIES * ENTRY_WORDS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        keep.keep("nbd-keys", &[memory.file()])?;
        let mut keys = Keys {
            memory,
            free: Vec::new(),
        };
        let mut saved = Vec::new();
        for entry in (0..ENTRIES as u32).rev() {
            match keys.read(entry) {
                Some(one) => saved.push(one),
                None => keys.free.push(entry),
            }
        }
        Ok((keys, saved))
    }

    fn read(&self, entry: u32) -> Option<Saved> {
        let first = entry as usize * ENTRY_WORDS;
        let words = &self.memory.words()[first..first + ENTRY_WORDS];
        let state = unseal(words[0].load(Acquire), first as u64)?;
        let [key, high, low, sum] = [1, 2, 3, 4].map(|at: usize| words[at].load(Relaxed));
        if state & IS_USED == 0 || sum != checksum(&[key, high, low]) {
            return None;
        }
        let address = u128::from(high) << 64 | u128::from(low);
        let address = (address != 0).then(|| Ipv6Addr::from(address).to_canonical());
        let age = seconds().saturating_sub(state >> TIME_SHIFT);
        let now = Instant::now();
        Some(Saved {
            entry,
            key,
            client: address,
            fenced: state & IS_FENCED != 0,
            had_session: state & HAD_SESSION != 0,
            since: now.checked_sub(Duration::from_secs(age)).unwrap_or(now),
        })
    }

    /// Remembers a key; `None` if the table is full.
    pub(super) fn add(
        &mut self,
        key: u64,
        client: Option<IpAddr>,
        (fenced, had_session): (bool, bool),
    ) -> Option<u32> {
        let entry = self.free.pop()?;
        let address = client.map_or(0, |client| match client {
            IpAddr::V4(client) => client.to_ipv6_mapped().to_bits(),
            IpAddr::V6(client) => client.to_bits(),
        });
        let content = [key, (address >> 64) as u64, address as u64];
        let first = entry as usize * ENTRY_WORDS;
        let words = &self.memory.words()[first..first + ENTRY_WORDS];
        for (word, value) in words[1..].iter().zip(content) {
            word.store(value, Relaxed);
        }
        words[ENTRY_WORDS - 1].store(checksum(&content), Relaxed);
        self.set(entry, (fenced, had_session));
        Some(entry)
    }

    /// States what is known of a key, and that it has changed now.
    pub(super) fn set(&self, entry: u32, (fenced, had_session): (bool, bool)) {
        let mut state = IS_USED | seconds() << TIME_SHIFT;
        state |= if fenced { IS_FENCED } else { 0 };
        state |= if had_session { HAD_SESSION } else { 0 };
        let first = entry as usize * ENTRY_WORDS;
        self.memory.words()[first].store(seal(state, first as u64), Release);
    }

    /// Forgets a key.
    pub(super) fn remove(&mut self, entry: u32) {
        let first = entry as usize * ENTRY_WORDS;
        self.memory.words()[first].store(0, Release);
        self.free.push(entry);
    }
}

/// Returns the seconds of the clock that all processes share.
fn seconds() -> u64 {
    rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_sec as u64
}
