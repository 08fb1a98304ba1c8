//! A simulated cache over a `Policy`, and the traces of the policy comparison.
//!
//! Exact and repeatable: a seed yields one trace. The hot set is `Hot`: one page after another from
//! a Zipf distribution. The disturbing load is interleaved with it one access to one. Pages are
//! counted, not timed; written pages are clean when they are evicted, as if write-behind were
//! always in time; nothing is read ahead.

use block_testing::Random;
use cache::policy::{
    Clock, Entry, FrameNo, Lru, PageKey, Policy, SeqLimits, Stealback, Stealing, Touched, Ufc,
};
use cache::stream::{Access, Limits, Streams};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

const PAGE: u64 = 4096;
const HOT: u64 = 1;
/// Frames evicted at a time; a miss first uses the rest of the last batch.
const BATCH: usize = 64;

/// The policies that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rival {
    Lru,
    Clock,
    /// LRU with limits of 20 % and 5 %, as documented for HP-UX.
    LruStealback,
    /// The same limits, clean pages behind the cursor only.
    LruStealbackBehind,
    /// Ours, counting each reference.
    UfcUnfiltered,
    Ufc,
    /// Ours with limits of 20 % and 5 %, clean pages behind the cursor only.
    UfcStealbackBehind,
}

impl Rival {
    pub const ALL: [Rival; 7] = [
        Rival::Lru,
        Rival::Clock,
        Rival::LruStealback,
        Rival::LruStealbackBehind,
        Rival::UfcUnfiltered,
        Rival::Ufc,
        Rival::UfcStealbackBehind,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Rival::Lru => "LRU",
            Rival::Clock => "CLOCK",
            Rival::LruStealback => "LRU + stealback 20/5, as documented",
            Rival::LruStealbackBehind => "LRU + stealback 20/5, clean behind the cursor",
            Rival::UfcUnfiltered => "ours without the repeat filter",
            Rival::Ufc => "**ours**",
            Rival::UfcStealbackBehind => "ours + stealback 20/5, clean behind the cursor",
        }
    }

    pub fn policy(self, frames: usize) -> Box<dyn Policy> {
        let limit = frames as u32;
        let limits = SeqLimits {
            system: 20,
            file: 5,
        };
        let stealback = |inner, how| -> Box<dyn Policy> {
            Box::new(Stealback::new(inner, limit, frames, limits, how))
        };
        match self {
            Rival::Lru => Box::new(Lru::new(limit)),
            Rival::Clock => Box::new(Clock::new(limit)),
            Rival::LruStealback => stealback(Box::new(Lru::new(limit)), Stealing::AsDocumented),
            Rival::LruStealbackBehind => {
                stealback(Box::new(Lru::new(limit)), Stealing::BehindCursor)
            }
            Rival::UfcUnfiltered | Rival::Ufc => Box::new(Ufc::new(limit, frames)),
            Rival::UfcStealbackBehind => {
                stealback(Box::new(Ufc::new(limit, frames)), Stealing::BehindCursor)
            }
        }
    }

    /// Returns whether repeated accesses of a stream to its own page are ignored. The policies from
    /// the literature do not do this.
    fn filters(self) -> bool {
        matches!(self, Rival::Ufc | Rival::UfcStealbackBehind)
    }
}

/// A hash for trusted keys.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("keys are numbers");
    }
    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 29);
    }
}

/// A cache of pages without their contents.
pub struct Sim {
    policy: Box<dyn Policy>,
    filters: bool,
    wants_hits: bool,
    frame_of: HashMap<PageKey, FrameNo, BuildHasherDefault<Mix>>,
    key_of: Vec<PageKey>,
    noted: Vec<u8>,
    free: Vec<FrameNo>,
}

impl Sim {
    pub fn new(rival: Rival, frames: usize) -> Sim {
        let policy = rival.policy(frames);
        Sim {
            filters: rival.filters(),
            wants_hits: policy.wants_hits(),
            policy,
            frame_of: HashMap::default(),
            key_of: vec![PageKey { vnode: 0, page: 0 }; frames],
            noted: vec![0; frames],
            free: (0..frames as u32).rev().map(FrameNo).collect(),
        }
    }

    /// Simulates one access to one page, which enters as `entry` if it is absent; returns whether
    /// it was a hit.
    fn access(&mut self, key: PageKey, entry: Entry, reference: Reference) -> bool {
        if let Some(&frame) = self.frame_of.get(&key) {
            if reference == Reference::New || !self.filters {
                let noted = &mut self.noted[frame.0 as usize];
                *noted = (*noted + 1).min(3);
            }
            if self.wants_hits {
                self.policy.hit(frame);
            }
            return true;
        }
        if self.free.is_empty() {
            self.evict();
        }
        let frame = self.free.pop().expect("a frame was evicted");
        self.noted[frame.0 as usize] = 0;
        self.key_of[frame.0 as usize] = key;
        self.frame_of.insert(key, frame);
        self.policy.inserted(frame, key, entry);
        false
    }

    fn evict(&mut self) {
        let noted = &mut self.noted;
        let wants_hits = self.wants_hits;
        let mut touched = |frame: FrameNo| Touched {
            frequency: match std::mem::take(&mut noted[frame.0 as usize]) {
                _ if wants_hits => 0,
                noted => noted,
            },
            ..Touched::default()
        };
        // A full batch would be a large part of the small caches of tests.
        let want = BATCH.min(self.key_of.len() / 64);
        self.policy.victims(want, &mut touched, &mut self.free);
        for frame in &self.free {
            self.frame_of.remove(&self.key_of[frame.0 as usize]);
            self.policy.removed(*frame);
        }
    }
}

/// Whether an access to a page counts as a use of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reference {
    New,
    /// Part of the use that the previous access of the stream began.
    Repeated,
}

/// Hit ratio of accesses.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ratio {
    hits: u64,
    of: u64,
}

impl Ratio {
    fn note(&mut self, hit: bool) {
        self.hits += u64::from(hit);
        self.of += 1;
    }

    pub fn percent(self) -> f64 {
        self.hits as f64 * 100.0 / self.of.max(1) as f64
    }
}

/// An open file with stream detection.
struct Opener {
    vnode: u64,
    streams: Streams,
}

impl Opener {
    fn new(vnode: u64) -> Opener {
        Opener {
            vnode,
            streams: Streams::new(Limits::default()),
        }
    }

    fn read(&mut self, sim: &mut Sim, offset: u64, len: u64) -> bool {
        self.access(sim, offset, len, [Entry::Read, Entry::Stream])
    }

    fn write(&mut self, sim: &mut Sim, offset: u64, len: u64) -> bool {
        self.access(sim, offset, len, [Entry::Written, Entry::WrittenStream])
    }

    /// Simulates an access whose page, if it is absent, enters as `alone` or as `in_stream`.
    fn access(
        &mut self,
        sim: &mut Sim,
        offset: u64,
        len: u64,
        [alone, in_stream]: [Entry; 2],
    ) -> bool {
        let key = PageKey {
            vnode: self.vnode,
            page: offset / PAGE,
        };
        let advice = self.streams.accessed(Access {
            offset,
            len,
            file_size: 1 << 40,
            hit: sim.frame_of.contains_key(&key),
        });
        let entry = if advice.in_stream { in_stream } else { alone };
        let reference = if advice.repeat == Some(key.page) {
            Reference::Repeated
        } else {
            Reference::New
        };
        sim.access(key, entry, reference)
    }
}

/// The hot set: Zipf distribution over pages whose order is unrelated to their popularity.
#[derive(Clone)]
pub struct Hot {
    cumulative: std::rc::Rc<Vec<f64>>,
    random: Random,
}

impl Hot {
    /// Creates a hot set of `pages` pages with exponent 0.9.
    pub fn new(pages: usize) -> Hot {
        let mut sum = 0.0;
        let weights = (1..=pages).map(|rank| {
            sum += (rank as f64).powf(-0.9);
            sum
        });
        Hot {
            cumulative: std::rc::Rc::new(weights.collect()),
            random: Random::new(0x407),
        }
    }

    fn access(&mut self, sim: &mut Sim) -> bool {
        let total = self.cumulative[self.cumulative.len() - 1];
        let at = (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * total;
        let rank = self.cumulative.partition_point(|sum| *sum <= at) as u64;
        let key = PageKey {
            vnode: HOT,
            // An odd factor permutes: popular pages are not adjacent.
            page: rank.wrapping_mul(0x9e37_79b9) & 0xffff_ffff,
        };
        sim.access(key, Entry::Read, Reference::New)
    }
}

/// One row of the table, in percent.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    pub hot_alone: f64,
    pub scan: f64,
    pub scan_4_refs: f64,
    pub loop_cold: f64,
    pub loop_warm: f64,
    pub temp: f64,
    pub temp_hot: f64,
    pub flood: f64,
    pub random_cold: f64,
    /// Hit ratio of the hot set in the first accesses after the flood of writes, one per frame.
    pub after_flood: f64,
}

/// Returns the whole comparison for one policy.
pub fn row(rival: Rival, frames: usize, hot: &Hot) -> Row {
    let (temp, temp_hot) = temp_file(rival, frames, hot);
    let (flood, after_flood) = flood(rival, frames, hot);
    Row {
        hot_alone: hot_alone(rival, frames, hot),
        scan: scan(rival, frames, hot, 1),
        scan_4_refs: scan(rival, frames, hot, 4),
        loop_cold: looping(rival, frames, None),
        loop_warm: looping(rival, frames, Some(hot)),
        temp,
        temp_hot,
        flood,
        random_cold: random_cold(rival, frames, hot),
        after_flood,
    }
}

/// Returns a cache that has seen enough accesses to the hot set and no others.
fn warm(rival: Rival, frames: usize, hot: &Hot) -> (Sim, Hot) {
    let mut sim = Sim::new(rival, frames);
    let mut hot = hot.clone();
    for _ in 0..frames * 20 {
        hot.access(&mut sim);
    }
    (sim, hot)
}

fn hot_alone(rival: Rival, frames: usize, hot: &Hot) -> f64 {
    let (mut sim, mut hot) = warm(rival, frames, hot);
    let mut ratio = Ratio::default();
    for _ in 0..frames * 15 {
        ratio.note(hot.access(&mut sim));
    }
    ratio.percent()
}

/// Reads a file of 15 times the cache once, in records of a page divided by `refs`.
fn scan(rival: Rival, frames: usize, hot: &Hot, refs: u64) -> f64 {
    let (mut sim, mut hot) = warm(rival, frames, hot);
    let mut reader = Opener::new(2);
    let mut ratio = Ratio::default();
    for record in 0..frames as u64 * 15 * refs {
        reader.read(&mut sim, record * PAGE / refs, PAGE / refs);
        ratio.note(hot.access(&mut sim));
    }
    ratio.percent()
}

/// Reads a file of 1.25 times the cache repeatedly; rounds 11 to 20 count. Starts with an empty
/// cache, or one full of pages that were hot and are not accessed any more.
fn looping(rival: Rival, frames: usize, once_hot: Option<&Hot>) -> f64 {
    let mut sim = match once_hot {
        Some(hot) => warm(rival, frames, hot).0,
        None => Sim::new(rival, frames),
    };
    let mut reader = Opener::new(2);
    let mut ratio = Ratio::default();
    for lap in 0..20 {
        for page in 0..frames as u64 * 5 / 4 {
            let hit = reader.read(&mut sim, page * PAGE, PAGE);
            if lap >= 10 {
                ratio.note(hit);
            }
        }
    }
    ratio.percent()
}

/// Writes files of half the cache, reads them back and never uses them again, 20 times; returns the
/// hit ratios of the temporary files' reads and of the hot set.
fn temp_file(rival: Rival, frames: usize, hot: &Hot) -> (f64, f64) {
    let (mut sim, mut hot) = warm(rival, frames, hot);
    let (mut temp, mut hots) = (Ratio::default(), Ratio::default());
    for file in 0..20 {
        let mut writer = Opener::new(2 + file);
        for page in 0..frames as u64 / 2 {
            writer.write(&mut sim, page * PAGE, PAGE);
            hots.note(hot.access(&mut sim));
        }
        let mut reader = Opener::new(2 + file);
        for page in 0..frames as u64 / 2 {
            temp.note(reader.read(&mut sim, page * PAGE, PAGE));
            hots.note(hot.access(&mut sim));
        }
    }
    (temp.percent(), hots.percent())
}

/// Writes 15 times the cache and never reads it; returns the hit ratios of the hot set during and
/// after.
fn flood(rival: Rival, frames: usize, hot: &Hot) -> (f64, f64) {
    let (mut sim, mut hot) = warm(rival, frames, hot);
    let mut writer = Opener::new(2);
    let (mut during, mut after) = (Ratio::default(), Ratio::default());
    for page in 0..frames as u64 * 15 {
        writer.write(&mut sim, page * PAGE, PAGE);
        during.note(hot.access(&mut sim));
    }
    for _ in 0..frames {
        after.note(hot.access(&mut sim));
    }
    (during.percent(), after.percent())
}

/// Reads random pages from a file of 64 times the cache, each four times in a row.
fn random_cold(rival: Rival, frames: usize, hot: &Hot) -> f64 {
    let (mut sim, mut hot) = warm(rival, frames, hot);
    let mut reader = Opener::new(2);
    let mut random = Random::new(0xc01d);
    let mut ratio = Ratio::default();
    for _ in 0..frames * 15 {
        let page = random.below(frames as u64 * 64);
        for _ in 0..4 {
            reader.read(&mut sim, page * PAGE, PAGE);
            ratio.note(hot.access(&mut sim));
        }
    }
    ratio.percent()
}
