//! The race hunt: plain stores through pointers against an evictor, a flusher, and reads and writes
//! of sessions in the same few pages. Every store is verified; a missing one was lost.
//!
//! Each slot in a page has one writer, which stores the numbers 1, 2, 3, ... there and so knows the
//! expected value. Readers only know that a number never decreases.
//!
//! The ground is the cache itself ([`real`]), or a small one ([`small`]) that violates a rule on
//! request, which proves that the hunt detects losses.

pub mod real;
pub mod small;

use block_testing::Random;
use cache::Mapping;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

pub const PAGE: u64 = 4096;
pub const PAGES: u64 = 16;
const POINTER_WRITERS: u64 = 2;
/// The slot of the session writer, after those of the pointer writers.
const SESSION: u64 = POINTER_WRITERS;
/// Slots are a cache line apart.
const PLACE_BYTES: u64 = 64;
/// Stores of a pointer writer through one mapping.
const STORES: u64 = 1 << 16;

/// A file of [`PAGES`] pages of zeros in a cache that moves its pages.
pub trait Ground: Sync {
    /// Maps some pages.
    fn map(&self, pages: Range<u64>) -> Mapping;

    /// Returns an actor for one thread.
    fn actor(&self) -> Box<dyn Actor + '_>;

    /// Returns the number of pages removed from the window so far.
    fn evictions(&self) -> u64;

    /// Writes everything back, and returns the contents of the device.
    fn finish(&self) -> Vec<u8>;
}

/// One thread's access to the file.
pub trait Actor {
    fn read(&mut self, at: u64, out: &mut [u8]);
    fn write(&mut self, at: u64, data: &[u8]);
    /// Evicts any number of pages.
    fn evict(&mut self, random: &mut Random);
    fn flush(&mut self, from_page: u64);
}

/// Counters of a hunt.
#[derive(Debug, Default)]
pub struct Counts {
    /// Stores through pointers, each verified before the next one in its slot.
    pub stores: AtomicU64,
    /// Mappings created and dropped.
    pub mappings: AtomicU64,
    /// Writes and reads of sessions.
    pub writes: AtomicU64,
    pub reads: AtomicU64,
    pub flushes: AtomicU64,
    pub evictions: AtomicU64,
    /// Stores and writes that were missing later.
    pub lost: AtomicU64,
    /// Numbers that decreased between two reads.
    pub backwards: AtomicU64,
}

impl Counts {
    pub fn wrong(&self) -> u64 {
        self.lost.load(Relaxed) + self.backwards.load(Relaxed)
    }
}

/// When a hunt ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// After the given time.
    Time,
    /// At the first finding, or after the given time.
    FirstFinding,
}

/// Hunts for at most `time`. Calls `look` about once a second.
pub fn hunt(
    ground: &dyn Ground,
    time: Duration,
    until: Until,
    seed: u64,
    look: &mut dyn FnMut(&Counts),
) -> Counts {
    let counts = Counts::default();
    let end = AtomicBool::new(false);
    let mut last = vec![[0u64; PAGES as usize]; SESSION as usize + 1];
    std::thread::scope(|scope| {
        let (counts, end) = (&counts, &end);
        for (place, mine) in last.iter_mut().enumerate() {
            let place = place as u64;
            let random = Random::new(seed.wrapping_add(place));
            scope.spawn(move || match place {
                SESSION => write(&mut *ground.actor(), random, mine, counts, end),
                _ => store(ground, place, random, mine, counts, end),
            });
        }
        scope.spawn(move || evict(&mut *ground.actor(), Random::new(seed ^ 1), counts, end));
        scope.spawn(move || read(&mut *ground.actor(), Random::new(seed ^ 2), counts, end));
        let start = Instant::now();
        let stop_at_first = until == Until::FirstFinding;
        let step = Duration::from_millis(if stop_at_first { 20 } else { 1000 });
        while start.elapsed() < time && !(stop_at_first && counts.wrong() > 0) {
            let left = time.saturating_sub(start.elapsed());
            std::thread::sleep(left.min(step));
            counts.evictions.store(ground.evictions(), Relaxed);
            look(counts);
        }
        end.store(true, Relaxed);
    });
    count_on_device(&ground.finish(), &last, &counts);
    counts
}

fn byte(page: u64, place: u64) -> u64 {
    page * PAGE + place * PLACE_BYTES
}

/// Stores through one mapping after the other, each of some of the pages.
fn store(
    ground: &dyn Ground,
    place: u64,
    mut random: Random,
    mine: &mut [u64],
    counts: &Counts,
    end: &AtomicBool,
) {
    while !end.load(Relaxed) {
        let first = random.below(PAGES);
        let pages = first..first + 1 + random.below(PAGES - first);
        let mapping = ground.map(pages.clone());
        counts.mappings.fetch_add(1, Relaxed);
        for _ in 0..1 + random.below(STORES / 64) {
            if end.load(Relaxed) {
                break;
            }
            let lost = store_some(&mapping, &pages, place, &mut random, mine);
            counts.stores.fetch_add(64, Relaxed);
            counts.lost.fetch_add(lost, Relaxed);
        }
    }
}

/// Stores 64 times, and returns how many of the previous stores were missing.
fn store_some(
    mapping: &Mapping,
    pages: &Range<u64>,
    place: u64,
    random: &mut Random,
    mine: &mut [u64],
) -> u64 {
    let mut lost = 0;
    for _ in 0..64 {
        let page = random.below(pages.end - pages.start);
        let last = &mut mine[(pages.start + page) as usize];
        // SAFETY: the slot lies in the mapping, is aligned, and no other thread stores there.
        unsafe {
            let at = mapping.as_ptr().add(byte(page, place) as usize);
            let at = at.cast::<u64>();
            let found = at.read_volatile();
            lost += u64::from(found != *last);
            *last = found.max(*last) + 1;
            at.write_volatile(*last);
        }
    }
    lost
}

fn write(
    actor: &mut dyn Actor,
    mut random: Random,
    mine: &mut [u64],
    counts: &Counts,
    end: &AtomicBool,
) {
    while !end.load(Relaxed) {
        let page = random.below(PAGES);
        let last = &mut mine[page as usize];
        let found = number(actor, page, SESSION);
        counts.lost.fetch_add(u64::from(found != *last), Relaxed);
        *last = found.max(*last) + 1;
        actor.write(byte(page, SESSION), &last.to_ne_bytes());
        counts.writes.fetch_add(1, Relaxed);
        if random.below(4) == 0 {
            std::thread::yield_now();
        }
    }
}

fn read(actor: &mut dyn Actor, mut random: Random, counts: &Counts, end: &AtomicBool) {
    let mut seen = vec![[0u64; PAGES as usize]; SESSION as usize + 1];
    while !end.load(Relaxed) {
        let (page, place) = (random.below(PAGES), random.below(SESSION + 1));
        let seen = &mut seen[place as usize][page as usize];
        let found = number(actor, page, place);
        counts
            .backwards
            .fetch_add(u64::from(found < *seen), Relaxed);
        *seen = found;
        counts.reads.fetch_add(1, Relaxed);
        std::thread::yield_now();
    }
}

fn evict(actor: &mut dyn Actor, mut random: Random, counts: &Counts, end: &AtomicBool) {
    while !end.load(Relaxed) {
        actor.evict(&mut random);
        if random.below(8) == 0 {
            actor.flush(random.below(PAGES));
            counts.flushes.fetch_add(1, Relaxed);
        }
    }
}

fn number(actor: &mut dyn Actor, page: u64, place: u64) -> u64 {
    let mut bytes = [0; 8];
    actor.read(byte(page, place), &mut bytes);
    u64::from_ne_bytes(bytes)
}

fn count_on_device(device: &[u8], last: &[[u64; PAGES as usize]], counts: &Counts) {
    for (place, last) in last.iter().enumerate() {
        for (page, last) in last.iter().enumerate() {
            let at = byte(page as u64, place as u64) as usize;
            let found = u64::from_ne_bytes(device[at..at + 8].try_into().unwrap());
            counts.lost.fetch_add(u64::from(found != *last), Relaxed);
        }
    }
}
