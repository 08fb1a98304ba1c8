//! The race hunt: plain stores through pointers against an evictor, a flusher, and latched reads and
//! writes of the same few pages. Every store is looked for; one that is not there is lost.
//!
//! Each place in a page has one writer, which stores the numbers 1, 2, 3, ... there and so knows what
//! it must find. Readers only know that a number never becomes smaller.

use crate::small::{File, Flaw, Options, PAGE};
use block::{Blocking, Mem, Random};
use cache::window::{Config, Home, Mapping, Windows};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const PAGES: u64 = 16;
const POINTER_WRITERS: u64 = 2;
/// The latched writer's place, after those of the pointer writers.
const LATCHED: u64 = POINTER_WRITERS;
/// Places are a cache line apart and begin anywhere in the page.
const PLACE_BYTES: u64 = 64;

/// What a hunt has counted.
#[derive(Debug, Default)]
pub struct Counts {
    /// Stores through pointers, each looked for before the next one in its place.
    pub stores: AtomicU64,
    /// Latched writes and latched reads.
    pub writes: AtomicU64,
    pub reads: AtomicU64,
    pub flushes: AtomicU64,
    pub evictions: AtomicU64,
    /// Stores and writes that were not there any more.
    pub lost: AtomicU64,
    /// Numbers that became smaller between two latched reads.
    pub backwards: AtomicU64,
}

impl Counts {
    pub fn wrong(&self) -> u64 {
        self.lost.load(Relaxed) + self.backwards.load(Relaxed)
    }
}

/// Hunts for `time`, or until something `wrong` has been found if `stop_at_first` is set. `look` is
/// called about once a second.
pub fn hunt(
    flaw: Option<Flaw>,
    time: Duration,
    stop_at_first: bool,
    seed: u64,
    look: &mut dyn FnMut(&Counts),
) -> Counts {
    let windows = Windows::start(&Config::default()).unwrap();
    let device = Arc::new(Mem::new(PAGES * PAGE, 4096));
    let mut options = Options::new(PAGES);
    options.flaw = flaw;
    options.frames = 4;
    let file = File::new(&windows, Arc::clone(&device) as _, options);
    let mapping = file.all();
    let counts = Counts::default();
    let end = AtomicBool::new(false);
    let mut last = vec![[0u64; PAGES as usize]; LATCHED as usize + 1];
    std::thread::scope(|scope| {
        let (file, mapping, counts, end) = (&file, &mapping, &counts, &end);
        for (place, mine) in last.iter_mut().enumerate() {
            let place = place as u64;
            let random = Random::new(seed.wrapping_add(place));
            scope.spawn(move || match place {
                LATCHED => write_latched(file, random, mine, counts, end),
                _ => store(mapping, place, random, mine, counts, end),
            });
        }
        scope.spawn(move || evict(file, Random::new(seed ^ 1), counts, end));
        scope.spawn(move || read(file, Random::new(seed ^ 2), counts, end));
        let start = Instant::now();
        while start.elapsed() < time && !(stop_at_first && counts.wrong() > 0) {
            let left = time.saturating_sub(start.elapsed());
            std::thread::sleep(left.min(Duration::from_millis(if stop_at_first {
                20
            } else {
                1000
            })));
            counts
                .evictions
                .store(file.evictions.load(Relaxed), Relaxed);
            look(counts);
        }
        end.store(true, Relaxed);
    });
    drop(mapping);
    file.evict(PAGES as usize);
    file.drain_pool().unwrap();
    file.flush(0..PAGES * PAGE).unwrap();
    count_on_device(&device, &last, &counts);
    counts
}

fn byte(page: u64, place: u64) -> u64 {
    page * PAGE + place * PLACE_BYTES
}

fn store(
    mapping: &Mapping,
    place: u64,
    mut random: Random,
    mine: &mut [u64],
    counts: &Counts,
    end: &AtomicBool,
) {
    let (mut stores, mut lost) = (0u64, 0);
    while !end.load(Relaxed) {
        for _ in 0..64 {
            let page = random.below(PAGES);
            let last = &mut mine[page as usize];
            // SAFETY: the place lies in the mapping, is aligned, and no other thread stores there.
            unsafe {
                let at = mapping
                    .as_ptr()
                    .add(byte(page, place) as usize)
                    .cast::<u64>();
                let found = at.read_volatile();
                lost += u64::from(found != *last);
                *last = found.max(*last) + 1;
                at.write_volatile(*last);
            }
            stores += 1;
        }
        counts
            .stores
            .fetch_add(std::mem::take(&mut stores), Relaxed);
        counts.lost.fetch_add(std::mem::take(&mut lost), Relaxed);
    }
}

fn write_latched(
    file: &File,
    mut random: Random,
    mine: &mut [u64],
    counts: &Counts,
    end: &AtomicBool,
) {
    while !end.load(Relaxed) {
        let page = random.below(PAGES);
        let last = &mut mine[page as usize];
        let found = number(file, page, LATCHED);
        counts.lost.fetch_add(u64::from(found != *last), Relaxed);
        *last = found.max(*last) + 1;
        file.write(byte(page, LATCHED), &last.to_ne_bytes())
            .unwrap();
        counts.writes.fetch_add(1, Relaxed);
        if random.below(4) == 0 {
            std::thread::yield_now();
        }
    }
}

fn read(file: &File, mut random: Random, counts: &Counts, end: &AtomicBool) {
    let mut seen = vec![[0u64; PAGES as usize]; LATCHED as usize + 1];
    while !end.load(Relaxed) {
        let (page, place) = (random.below(PAGES), random.below(LATCHED + 1));
        let seen = &mut seen[place as usize][page as usize];
        let found = number(file, page, place);
        counts
            .backwards
            .fetch_add(u64::from(found < *seen), Relaxed);
        *seen = found;
        counts.reads.fetch_add(1, Relaxed);
        std::thread::yield_now();
    }
}

fn evict(file: &File, mut random: Random, counts: &Counts, end: &AtomicBool) {
    while !end.load(Relaxed) {
        if random.below(8) == 0 {
            file.sweep();
        }
        if file.evict(1 + random.below(PAGES) as usize) == 0 {
            std::thread::yield_now();
            continue;
        }
        if random.below(8) == 0 {
            file.drain_pool().unwrap();
        }
        if random.below(8) == 0 {
            let page = random.below(PAGES);
            file.flush(page * PAGE..PAGES * PAGE).unwrap();
            counts.flushes.fetch_add(1, Relaxed);
        }
    }
}

fn number(file: &File, page: u64, place: u64) -> u64 {
    let mut bytes = [0; 8];
    file.read(byte(page, place), &mut bytes).unwrap();
    u64::from_ne_bytes(bytes)
}

fn count_on_device(device: &Mem, last: &[[u64; PAGES as usize]], counts: &Counts) {
    let mut all = vec![0; (PAGES * PAGE) as usize];
    Blocking::open(device)
        .unwrap()
        .read_at(0, &mut all)
        .unwrap();
    for (place, last) in last.iter().enumerate() {
        for (page, last) in last.iter().enumerate() {
            let at = byte(page as u64, place as u64) as usize;
            let found = u64::from_ne_bytes(all[at..at + 8].try_into().unwrap());
            counts.lost.fetch_add(u64::from(found != *last), Relaxed);
        }
    }
}
