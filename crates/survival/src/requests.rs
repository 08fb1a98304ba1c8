//! Requests of the kernel that were carried out and perhaps not answered.
//!
//! A serving thread has a slot of two words: the request in progress, and a mark that is derived from
//! it once its change is in the log. So one store makes a request count as carried out, and the mark of
//! an earlier request says nothing about the present one.
//!
//! A caller begins only requests that one operation carries out as a whole, such as the creation or
//! the removal of a name. A successor must not repeat those. A request of several steps is repeated
//! as a whole, so its first step must not mark it. If the successor refuses the log, what the table
//! says has no meaning.

use crate::memory::Memory;
use std::cell::Cell;
use std::collections::HashSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Number of slots.
pub const SLOTS: usize = 256;

/// First word: the magic, and the version in the last byte.
const MAGIC: u64 = u64::from_le_bytes(*b"EVFSreq\x01");
/// Words before the slots.
const HEADER_WORDS: usize = 2;
/// Words of a slot.
const SLOT_WORDS: usize = 2;
/// Requests of earlier servers that can be kept. At each death at most [`SLOTS`] are open.
const INHERITED: usize = 4 * SLOTS;
/// Words of each of two areas for them, of which the second word of the table names one.
const AREAS: usize = 2;
const WORDS: usize = HEADER_WORDS + SLOTS * SLOT_WORDS + AREAS * INHERITED;

thread_local! {
    /// Slot and request of this thread; request 0 for none.
    static CURRENT: Cell<(usize, u64)> = const { Cell::new((0, 0)) };
}

/// Returns the request that this thread carries out; 0 for none.
pub fn current() -> u64 {
    CURRENT.get().1
}

/// Carries out work of the file system itself, on a thread that may carry out a request: the work is
/// not that of the request.
pub fn aside<T>(work: impl FnOnce() -> T) -> T {
    let (slot, unique) = CURRENT.replace((0, 0));
    let done = work();
    CURRENT.set((slot, unique));
    done
}

/// Table of the requests in progress. See the module.
pub struct Requests {
    memory: Memory,
}

impl std::fmt::Debug for Requests {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Requests").finish_non_exhaustive()
    }
}

impl Requests {
    /// Creates an empty table.
    ///
    /// # Errors
    /// The system has no memory.
    pub fn create() -> io::Result<Requests> {
        let memory = Memory::create("evfs-requests", WORDS)?;
        memory.words()[0].store(MAGIC, Release);
        Ok(Requests { memory })
    }

    /// Takes over the table of a predecessor.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`]: it is no such table.
    pub fn adopt(memory: Memory) -> io::Result<Requests> {
        let words = memory.words();
        if words.len() != WORDS || words[0].load(Acquire) != MAGIC {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Requests { memory })
    }

    /// Returns the memfd, for a successor.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.memory.file()
    }

    /// Begins a request on this thread. `unique` is the kernel's number of it, never 0. Each thread
    /// has a slot of its own.
    ///
    /// # Panics
    /// There is no such slot.
    pub fn begin(&self, slot: usize, unique: u64) {
        assert!(slot < SLOTS, "slot {slot} of {SLOTS}");
        self.memory.words()[first_word(slot)].store(unique, Release);
        CURRENT.set((slot, unique));
    }

    /// Records that the change of this thread's request is in the log, or on the disk. Does nothing
    /// without a request.
    pub fn carried_out(&self) {
        let (slot, unique) = CURRENT.get();
        if unique != 0 {
            self.memory.words()[first_word(slot) + 1].store(done_mark(unique), Release);
        }
    }

    /// Ends this thread's request, once the kernel has its answer.
    pub fn end(&self) {
        let (slot, unique) = CURRENT.replace((0, 0));
        if unique != 0 {
            self.memory.words()[first_word(slot)].store(0, Release);
        }
    }

    /// Returns the requests that were carried out. The caller adds those of the log's entries: a
    /// server may die after it appended an entry and before it marked the request.
    pub fn done(&self) -> HashSet<u64> {
        let slots = &self.memory.words()[HEADER_WORDS..][..SLOTS * SLOT_WORDS];
        let inherited = self.area(self.memory.words()[1].load(Acquire)).iter();
        let inherited = inherited.map(|word| word.load(Relaxed));
        let slots = slots.chunks_exact(SLOT_WORDS);
        let slots = slots.map(|slot| (slot[0].load(Relaxed), slot[1].load(Acquire)));
        slots
            .filter(|(unique, mark)| *unique != 0 && *mark == done_mark(*unique))
            .map(|(unique, _)| unique)
            .chain(inherited.filter(|unique| *unique != 0))
            .collect()
    }

    /// Keeps requests that a predecessor has carried out, before the slots are used again: a further
    /// successor must know them, too, if this server dies before it has answered them. Those that were
    /// answered do no harm, as the kernel uses no number twice; the oldest of many are forgotten.
    pub fn inherit(&self, done: &HashSet<u64>) {
        let mut newest: Vec<u64> = done.iter().copied().collect();
        newest.sort_unstable_by_key(|unique| std::cmp::Reverse(*unique));
        newest.truncate(INHERITED);
        newest.resize(INHERITED, 0);
        let selector = &self.memory.words()[1];
        let other = selector.load(Relaxed) ^ 1;
        for (word, unique) in self.area(other).iter().zip(newest) {
            word.store(unique, Relaxed);
        }
        selector.store(other, Release);
    }

    /// Returns the words of one of the two areas.
    fn area(&self, which: u64) -> &[AtomicU64] {
        let first = HEADER_WORDS + SLOTS * SLOT_WORDS + (which & 1) as usize * INHERITED;
        &self.memory.words()[first..first + INHERITED]
    }
}

fn first_word(slot: usize) -> usize {
    HEADER_WORDS + slot * SLOT_WORDS
}

/// Computes the mark of a request; a different one for each.
fn done_mark(unique: u64) -> u64 {
    // Any odd factor makes different numbers of different requests.
    unique
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn successor(requests: &Requests) -> Requests {
        let file = requests.file().try_clone_to_owned().unwrap();
        Requests::adopt(Memory::adopt(file).unwrap()).unwrap()
    }

    #[test]
    fn a_request_counts_from_the_moment_that_it_is_carried_out_until_it_ends() {
        let requests = Requests::create().unwrap();
        requests.carried_out();
        requests.begin(3, 70);
        assert_eq!((current(), requests.done().len()), (70, 0));
        requests.carried_out();
        assert_eq!(successor(&requests).done(), HashSet::from([70]));
        requests.end();
        assert_eq!((current(), requests.done().len()), (0, 0));
        requests.begin(3, 72);
        assert!(requests.done().is_empty(), "the mark is of request 70");
        requests.carried_out();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(current(), 0);
                requests.begin(255, 74);
                requests.carried_out();
            });
        });
        assert_eq!(successor(&requests).done(), HashSet::from([72, 74]));
        requests.end();
    }

    #[test]
    fn a_further_successor_knows_what_earlier_servers_have_carried_out() {
        let requests = Requests::create().unwrap();
        for generation in 0..10 {
            let (begun, before) = (1000 + generation, successor(&requests).done());
            requests.inherit(&before);
            // The same slot serves another request.
            requests.begin(0, begun);
            requests.carried_out();
            let expected: HashSet<u64> = (1000..=begun).collect();
            assert_eq!(successor(&requests).done(), expected);
        }
        let many: HashSet<u64> = (1..=5000).collect();
        requests.inherit(&many);
        let kept = successor(&requests).done();
        assert!(kept.contains(&5000) && kept.len() <= INHERITED + 1);
        requests.end();
    }

    #[test]
    fn work_beside_a_request_does_not_carry_it_out() {
        let requests = Requests::create().unwrap();
        requests.begin(1, 70);
        aside(|| {
            assert_eq!(current(), 0);
            requests.carried_out();
        });
        assert!(current() == 70 && requests.done().is_empty());
        requests.carried_out();
        assert_eq!(requests.done(), HashSet::from([70]));
        requests.end();
    }

    #[test]
    fn other_memory_is_refused() {
        assert!(Requests::adopt(Memory::create("evfs-test", WORDS).unwrap()).is_err());
        let requests = Requests::create().unwrap();
        let other = Memory::create("evfs-test", WORDS + 1).unwrap();
        other.words()[0].store(requests.memory.words()[0].load(Relaxed), Relaxed);
        assert!(Requests::adopt(other).is_err());
    }
}
