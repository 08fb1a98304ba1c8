//! Changes of metadata that are not durable yet, in order: a ring of entries.
//!
//! ```text
//!   header │ ... durable, free ... │ entry │ entry │ entry │ ... free ...
//!                                  start                   end
//! ```
//!
//! The server appends an entry with each operation, and moves the start when the disk has the changes.
//! An entry counts once the end includes it, which one store does after all others. If there is no
//! room for an entry, the log is broken: a successor refuses it, until the disk has all that is missing.
//!
//! **Invariant:** a successor sees all entries from the start to the end, or an error. Each word of the
//! header and each entry has a checksum that covers its meaning and its place, so damage is an error,
//! too. A position is a number of words modulo twice the capacity, so that full differs from empty.

use crate::check::Check;
use crate::memory::{Memory, WORD_BYTES};
use crate::requests;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard};

/// First word: the magic, and the version in the last byte.
const MAGIC: u64 = u64::from_le_bytes(*b"EVFSlog\x02");

/// Words before the ring; the last ones are spare.
pub const HEADER_WORDS: usize = 16;
/// Words of an entry before its payload.
const ENTRY_WORDS: u32 = 3;
/// Most words of a ring, so that twice the number is a position.
const RING_WORDS_MAX: usize = 1 << 30;

/// Words of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Field {
    Magic,
    /// Bits of features that a reader must know.
    Features,
    Identity,
    IdentityEnd,
    Capacity,
    Start,
    End,
    Broken,
    Mark,
}

/// What the server knows about the disk below the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Mark {
    /// Epoch of the last commit that is durable.
    Committed,
    /// Epoch of the last commit that has begun.
    Begun,
    /// Number of times that the file system was opened.
    Opened,
    /// The same, including an opening that has begun.
    Opening,
}

/// Why a successor cannot use a log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// The content is not what a server has written.
    #[error("the log in memory is damaged: {0}")]
    Damaged(&'static str),
    /// The log is of another file system.
    #[error("the log in memory belongs to another file system")]
    Foreign,
    /// The log did not have room for a change that the disk may lack.
    #[error("the log in memory is incomplete: it had no room for a change")]
    Broken,
    /// The memory cannot be mapped or created.
    #[error("the memory of the log cannot be used: {0}")]
    Memory(io::ErrorKind),
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Number of the change; never smaller than that of the entry before.
    pub sequence: u64,
    /// Request that the change carried out; 0 for none.
    pub request: u64,
    pub payload: Vec<u8>,
}

/// Place and number of an entry whose length is sound.
struct Place {
    sequence: u64,
    len: u32,
    next: u32,
}

/// The writer's view of the ring.
struct Ring {
    start: u32,
    end: u32,
    /// Number of the last change that the log lacks.
    missing: Option<u64>,
    /// Number of the last change that it has.
    last: u64,
    /// While the log is broken: what it has to contain once it is repaired.
    first: Option<(u64, Vec<u8>)>,
}

/// Changes that are not durable yet. See the module.
pub struct Log {
    memory: Memory,
    identity: [u8; 16],
    capacity: u32,
    /// Checksum of the identity, which all others continue.
    seed: Check,
    ring: Mutex<Ring>,
    /// Words that are free; 0 while the log is broken.
    free: AtomicU32,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Log")
            .field("capacity", &self.capacity)
            .finish()
    }
}

impl Log {
    /// Creates an empty log of `words` words of 8 bytes for the file system with this UUID.
    ///
    /// # Errors
    /// [`Unusable::Memory`]: too few or too many words, or the system has no memory.
    pub fn create(words: usize, identity: [u8; 16]) -> Result<Log, Unusable> {
        let capacity = capacity(words).ok_or(Unusable::Memory(io::ErrorKind::InvalidInput))?;
        let memory = Memory::create("evfs-log", words);
        let memory = memory.map_err(|error| Unusable::Memory(error.kind()))?;
        let log = Log::of(memory, identity, capacity);
        let (low, high) = halves(identity);
        for (field, value) in [
            (Field::Features, 0),
            (Field::Identity, low),
            (Field::IdentityEnd, high),
        ] {
            log.memory.words()[field as usize].store(value, Relaxed);
        }
        log.set(Field::Capacity as u32, capacity);
        for field in Field::Start as u32..=Field::Mark as u32 + Mark::Opening as u32 {
            log.set(field, 0);
        }
        log.memory.words()[Field::Magic as usize].store(MAGIC, Release);
        Ok(log)
    }

    /// Takes over the log of a predecessor. [`Log::entries`] checks the entries.
    ///
    /// # Errors
    /// [`Unusable`]: the header is damaged, or of another file system.
    pub fn adopt(memory: Memory, identity: [u8; 16]) -> Result<Log, Unusable> {
        let capacity = capacity(memory.words().len()).ok_or(Unusable::Damaged("size"))?;
        let word = |field: Field| memory.words()[field as usize].load(Acquire);
        if word(Field::Magic) != MAGIC || word(Field::Features) != 0 {
            return Err(Unusable::Damaged("magic, version or features"));
        }
        if (word(Field::Identity), word(Field::IdentityEnd)) != halves(identity) {
            return Err(Unusable::Foreign);
        }
        let log = Log::of(memory, identity, capacity);
        if log.value(Field::Capacity as u32)? != capacity {
            return Err(Unusable::Damaged("capacity"));
        }
        let (start, end) = (
            log.value(Field::Start as u32)?,
            log.value(Field::End as u32)?,
        );
        if start >= 2 * capacity || end >= 2 * capacity || log.between(start, end) > capacity {
            return Err(Unusable::Damaged("positions"));
        }
        let broken = log.value(Field::Broken as u32)? != 0;
        *log.ring() = Ring {
            start,
            end,
            missing: broken.then_some(u64::MAX),
            last: 0,
            first: None,
        };
        log.count(&log.ring());
        Ok(log)
    }

    fn of(memory: Memory, identity: [u8; 16], capacity: u32) -> Log {
        let (low, high) = halves(identity);
        Log {
            memory,
            identity,
            capacity,
            seed: Check::new().with([low, high]),
            ring: Mutex::new(Ring {
                start: 0,
                end: 0,
                missing: None,
                last: 0,
                first: None,
            }),
            free: AtomicU32::new(capacity),
        }
    }

    /// Returns the UUID of the file system.
    pub fn identity(&self) -> [u8; 16] {
        self.identity
    }

    /// Returns the memfd, for a successor.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.memory.file()
    }

    /// Returns the memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Appends a change, with the request of the calling thread (see [`requests`]). `sequence` is the
    /// number of changes including this one. Returns `false` if there is no room, or was none for an
    /// earlier one: the log is broken then, until [`Log::durable`] covers what is missing.
    pub fn append(&self, sequence: u64, payload: &[u8]) -> bool {
        let mut ring = self.ring();
        let request = requests::current();
        self.push(&mut ring, (sequence, request), payload)
    }

    fn push(&self, ring: &mut Ring, (sequence, request): (u64, u64), payload: &[u8]) -> bool {
        let words = words_of(payload.len());
        let fits = words.is_some_and(|words| words <= self.capacity - self.used(ring));
        let Some(words) = words.filter(|_| fits && ring.missing.is_none()) else {
            self.break_off(ring, sequence);
            return false;
        };
        let len = payload.len() as u32;
        let mut check = self.check(ring.end, len, (sequence, request));
        self.store_payload(self.plus(ring.end, ENTRY_WORDS), payload, &mut check);
        let first = u64::from(len) | u64::from(check.value()) << 32;
        for (at, word) in (0..).zip([first, sequence, request]) {
            self.word_at(self.plus(ring.end, at)).store(word, Relaxed);
        }
        ring.end = self.plus(ring.end, words);
        self.set(Field::End as u32, ring.end);
        ring.last = sequence;
        self.count(ring);
        true
    }

    /// Appends what the disk will lack even if it has all changes before `sequence`. If the log is
    /// broken, its repair appends it.
    pub fn append_rest(&self, sequence: u64, payload: &[u8]) -> bool {
        {
            let mut ring = self.ring();
            if ring.missing.is_some_and(|missing| missing < sequence) {
                ring.first = Some((sequence, payload.to_vec()));
                return true;
            }
        }
        self.append(sequence, payload)
    }

    /// Records that a change could not be appended: a successor must not use the log until the disk
    /// has it.
    pub fn lacks(&self, sequence: u64) {
        self.break_off(&mut self.ring(), sequence);
    }

    fn break_off(&self, ring: &mut Ring, sequence: u64) {
        let missing = ring.missing.unwrap_or(0);
        ring.missing = Some(missing.max(sequence));
        self.set(Field::Broken as u32, 1);
        self.count(ring);
    }

    fn count(&self, ring: &Ring) {
        let free = self.capacity - self.used(ring);
        let free = if ring.missing.is_some() { 0 } else { free };
        self.free.store(free, Relaxed);
    }

    /// Records that the disk has all changes up to this one, so that the log need not keep them.
    pub fn durable(&self, sequence: u64) {
        let mut ring = self.ring();
        match ring.missing {
            Some(missing) if missing <= sequence => {
                ring.start = ring.end;
                self.set(Field::Start as u32, ring.start);
                ring.missing = None;
                // Before the log counts as whole; if there is no room, it does not.
                let first = ring.first.take();
                let fits = first.filter(|first| first.0 > sequence);
                if fits.is_none_or(|(number, rest)| self.push(&mut ring, (number, 0), &rest)) {
                    self.set(Field::Broken as u32, 0);
                }
                self.count(&ring);
                return;
            }
            _ => {}
        }
        let mut at = ring.start;
        while at != ring.end {
            match self.place(at, ring.end) {
                Ok(place) if place.sequence <= sequence => at = place.next,
                Ok(_) => break,
                Err(_) => {
                    let last = ring.last;
                    return self.break_off(&mut ring, last);
                }
            }
        }
        if at != ring.start {
            ring.start = at;
            self.set(Field::Start as u32, at);
            self.count(&ring);
        }
    }

    /// Drops all entries, and marks the log as whole: the disk is all there is.
    pub fn reset(&self) {
        let mut ring = self.ring();
        self.set(Field::Broken as u32, 1);
        self.set(Field::Start as u32, 0);
        self.set(Field::End as u32, 0);
        *ring = Ring {
            start: 0,
            end: 0,
            missing: None,
            last: 0,
            first: None,
        };
        self.set(Field::Broken as u32, 0);
        self.count(&ring);
    }

    /// Returns the changes that the disk may lack, in order.
    ///
    /// # Errors
    /// [`Unusable::Broken`], [`Unusable::Damaged`].
    pub fn entries(&self) -> Result<Vec<Entry>, Unusable> {
        let ring = self.ring();
        if ring.missing.is_some() || self.value(Field::Broken as u32)? != 0 {
            return Err(Unusable::Broken);
        }
        let mut entries: Vec<Entry> = Vec::new();
        let mut at = ring.start;
        while at != ring.end {
            let place = self.place(at, ring.end)?;
            let checksum = (self.word_at(at).load(Relaxed) >> 32) as u32;
            let request = self.word_at(self.plus(at, 2)).load(Relaxed);
            let mut check = self.check(at, place.len, (place.sequence, request));
            let entry = Entry {
                sequence: place.sequence,
                request,
                payload: self.load_payload(self.plus(at, ENTRY_WORDS), place.len, &mut check),
            };
            let is_right = check.value() == checksum;
            let follows = entries
                .last()
                .is_none_or(|last| last.sequence <= entry.sequence);
            if !is_right || !follows {
                return Err(Unusable::Damaged("entry"));
            }
            entries.push(entry);
            at = place.next;
        }
        Ok(entries)
    }

    /// Reports whether an entry with a payload of `bytes` fits.
    pub fn has_room(&self, bytes: usize) -> bool {
        let ring = self.ring();
        let free = self.capacity - self.used(&ring);
        ring.missing.is_none() && words_of(bytes).is_some_and(|words| words <= free)
    }

    /// Reports whether the log cannot take another change, or less than one part in `parts` is free.
    #[inline]
    pub fn is_short(&self, parts: u32) -> bool {
        let free = u64::from(self.free.load(Relaxed));
        free == 0 || free * u64::from(parts) < u64::from(self.capacity)
    }

    /// Records what the server knows about the disk.
    pub fn mark(&self, mark: Mark, value: u32) {
        self.set(Field::Mark as u32 + mark as u32, value);
    }

    /// Returns what the server knew about the disk.
    ///
    /// # Errors
    /// [`Unusable::Damaged`].
    pub fn marked(&self, mark: Mark) -> Result<u32, Unusable> {
        self.value(Field::Mark as u32 + mark as u32)
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().expect("no panic under this lock")
    }

    /// Returns the number of words from one position to another.
    fn between(&self, from: u32, to: u32) -> u32 {
        if to >= from {
            to - from
        } else {
            2 * self.capacity - from + to
        }
    }

    fn used(&self, ring: &Ring) -> u32 {
        self.between(ring.start, ring.end)
    }

    fn plus(&self, position: u32, words: u32) -> u32 {
        let sum = position + words;
        if sum >= 2 * self.capacity {
            sum - 2 * self.capacity
        } else {
            sum
        }
    }

    fn index(&self, position: u32) -> usize {
        let beyond = position >= self.capacity;
        (position - if beyond { self.capacity } else { 0 }) as usize
    }

    fn cells(&self) -> &[AtomicU64] {
        &self.memory.words()[HEADER_WORDS..]
    }

    fn word_at(&self, position: u32) -> &AtomicU64 {
        &self.cells()[self.index(position)]
    }

    /// Returns the two pieces of the ring that `words` words from a position fill.
    fn pieces(&self, position: u32, words: usize) -> (&[AtomicU64], &[AtomicU64]) {
        let (before, from) = self.cells().split_at(self.index(position));
        let first = words.min(from.len());
        (&from[..first], &before[..words - first])
    }

    fn store_payload(&self, position: u32, payload: &[u8], check: &mut Check) {
        let (first, second) = self.pieces(position, payload.len().div_ceil(WORD_BYTES));
        let split = payload.len().min(first.len() * WORD_BYTES);
        store(first, &payload[..split], check);
        store(second, &payload[split..], check);
    }

    fn load_payload(&self, position: u32, len: u32, check: &mut Check) -> Vec<u8> {
        let len = len as usize;
        let words = len.div_ceil(WORD_BYTES);
        let mut payload = Vec::with_capacity(words * WORD_BYTES);
        let (first, second) = self.pieces(position, words);
        for cell in first.iter().chain(second) {
            let word = cell.load(Relaxed);
            check.add(word);
            payload.extend_from_slice(&word.to_le_bytes());
        }
        payload.truncate(len);
        payload
    }

    /// Reads the place of the entry at a position, which must end before `end`.
    fn place(&self, at: u32, end: u32) -> Result<Place, Unusable> {
        let len = self.word_at(at).load(Acquire) as u32;
        let words = words_of(len as usize).filter(|words| *words <= self.between(at, end));
        let words = words.ok_or(Unusable::Damaged("length of an entry"))?;
        Ok(Place {
            sequence: self.word_at(self.plus(at, 1)).load(Relaxed),
            len,
            next: self.plus(at, words),
        })
    }

    /// Begins the checksum of an entry, which its payload continues.
    fn check(&self, at: u32, len: u32, (sequence, request): (u64, u64)) -> Check {
        let place = u64::from(at) | u64::from(len) << 32;
        self.seed.with([place, sequence, request])
    }

    /// Computes the word of the header that holds a value.
    fn guarded(&self, field: u32, value: u32) -> u64 {
        let check = self.seed.with([u64::from(field) << 32 | u64::from(value)]);
        u64::from(value) | u64::from(check.value()) << 32
    }

    /// Stores a value in the header, after everything that was stored before.
    fn set(&self, field: u32, value: u32) {
        let word = self.guarded(field, value);
        self.memory.words()[field as usize].store(word, Release);
    }

    fn value(&self, field: u32) -> Result<u32, Unusable> {
        let word = self.memory.words()[field as usize].load(Acquire);
        if self.guarded(field, word as u32) == word {
            Ok(word as u32)
        } else {
            Err(Unusable::Damaged("header"))
        }
    }
}

/// Stores bytes into as many words, the last one filled up with zeros.
fn store(cells: &[AtomicU64], bytes: &[u8], check: &mut Check) {
    let (whole, rest) = bytes.as_chunks::<WORD_BYTES>();
    for (cell, part) in cells.iter().zip(whole) {
        let word = u64::from_le_bytes(*part);
        check.add(word);
        cell.store(word, Relaxed);
    }
    if !rest.is_empty() {
        let word = rest
            .iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u64::from(*byte));
        check.add(word);
        cells[whole.len()].store(word, Relaxed);
    }
}

fn capacity(words: usize) -> Option<u32> {
    let ring = words.checked_sub(HEADER_WORDS)?;
    (ring > ENTRY_WORDS as usize && ring <= RING_WORDS_MAX).then_some(ring as u32)
}

/// Returns the words of an entry with a payload of `bytes`.
fn words_of(bytes: usize) -> Option<u32> {
    let words = u32::try_from(bytes.div_ceil(WORD_BYTES)).ok()?;
    words.checked_add(ENTRY_WORDS)
}

fn halves(identity: [u8; 16]) -> (u64, u64) {
    let number = u128::from_le_bytes(identity);
    (number as u64, (number >> 64) as u64)
}

#[cfg(test)]
mod tests;
