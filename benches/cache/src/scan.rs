//! A scan through a hot set: the hit rate of the hot set before, during and after the scan.
//!
//! Exact: counts hits and measures no times. Policies are driven directly, which makes LRU exact
//! and tells stealback which accesses belong to a stream; the cache itself, foyer and moka see the
//! same accesses.

use crate::Args;
use crate::peers::{self, Foyer, Moka};
use crate::rounds::median;
use crate::table::Table;
use block_testing::{Mem, Random};
use cache::policy::{
    Clock, Entry, FrameNo, Lru, PageKey, Policy, SeqLimits, Stealback, Stealing, Touched, Ufc,
};
use cache::{Cache, Config, DEVICE_FILE, DevicePager, OpenFile, Session, Volume};
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;

/// Pages of the cache: 64 MiB.
const FRAMES: usize = 16_384;
/// Pages of the hot set, accessed with a Zipf distribution.
const HOT_PAGES: usize = 50_000;
const EXPONENT: f64 = 0.9;
/// Pages of the scan, each touched after one access to the hot set.
const SCAN_PAGES: u64 = 4 * FRAMES as u64;
/// Accesses that fill the cache, and those that are counted before and after.
const WARM: usize = 400_000;
const COUNTED: usize = FRAMES;
const SEEDS: u64 = 3;

/// The two files.
#[derive(Clone, Copy, PartialEq)]
enum File {
    Hot = 1,
    Scan = 2,
}

/// A cache or policy under test.
trait Pages {
    /// Accesses a page, and returns whether it was resident.
    fn touch(&mut self, file: File, page: u64) -> bool;
}

type Make = fn() -> Box<dyn Pages>;

const RIVALS: [(&str, Make); 9] = [
    ("this cache", || Box::new(Real::new())),
    ("its policy, driven directly", || {
        Box::new(Driven::new(Box::new(Ufc::new(FRAMES as u32, FRAMES))))
    }),
    ("LRU, exact", || {
        Box::new(Driven::new(Box::new(Lru::new(FRAMES as u32))))
    }),
    ("CLOCK", || {
        Box::new(Driven::new(Box::new(Clock::new(FRAMES as u32))))
    }),
    ("LRU + stealback 20/5, as documented", || {
        Box::new(Driven::new(stealback(Box::new(Lru::new(FRAMES as u32)))))
    }),
    ("its policy + stealback 20/5", || {
        Box::new(Driven::new(stealback(Box::new(Ufc::new(
            FRAMES as u32,
            FRAMES,
        )))))
    }),
    ("foyer, S3-FIFO", || {
        Box::new(peers::foyer(FRAMES, foyer_memory::S3FifoConfig::default()))
    }),
    ("foyer, LRU", || {
        Box::new(peers::foyer(FRAMES, foyer_memory::LruConfig::default()))
    }),
    ("moka, TinyLFU", || Box::new(peers::moka(FRAMES))),
];

fn stealback(inner: Box<dyn Policy>) -> Box<dyn Policy> {
    let limits = SeqLimits {
        system: 20,
        file: 5,
    };
    let how = Stealing::AsDocumented;
    Box::new(Stealback::new(inner, FRAMES as u32, FRAMES, limits, how))
}

pub fn run(_args: &Args) -> Vec<Table> {
    let hot = Zipf::new(HOT_PAGES, EXPONENT);
    let hot = &hot;
    let scan = |touches| move |pages: &mut dyn Pages, seed| one(hot, pages, touches, seed);
    let phases = ["before", "during", "after"];
    let passes = LOOP_PASSES.map(|pass| format!("pass {pass}"));
    let passes = Vec::from_iter(passes.iter().map(String::as_str));
    vec![
        table(
            "hot set, and a scan by whole pages: hits in percent",
            &phases,
            scan(1),
        ),
        table(
            "hot set, and a scan by 1 KiB: hits in percent",
            &phases,
            scan(4),
        ),
        table(
            "a file of half the cache, read again and again after random reads: hits in percent",
            &passes,
            loops,
        ),
    ]
}

/// Builds a table of all competitors; `shares` returns the cells of one.
fn table<const N: usize>(
    title: &str,
    columns: &[&str],
    shares: impl Fn(&mut dyn Pages, u64) -> [f64; N],
) -> Table {
    let mut table = Table::new(title, &[&[""], columns].concat());
    for (name, make) in RIVALS {
        let of_seeds = Vec::from_iter((0..SEEDS).map(|seed| shares(&mut *make(), seed)));
        let middle = |i: usize| {
            let mut cell: Vec<f64> = of_seeds.iter().map(|s| s[i]).collect();
            format!("{:.1}", median(&mut cell))
        };
        let mut cells = vec![name.to_string()];
        cells.extend((0..N).map(middle));
        let raw: Vec<&[f64]> = of_seeds.iter().map(|s| &s[..]).collect();
        table.push(cells, json!({ "name": name, "seeds": raw }));
    }
    table
}

/// Passes through the looped file that are shown; the first pass loads it.
const LOOP_PASSES: [u64; 6] = [2, 3, 5, 10, 20, 40];

/// Returns the percentage of hits in passes through a file of half the cache size, after the cache
/// was filled with pages of another file.
fn loops(pages: &mut dyn Pages, seed: u64) -> [f64; LOOP_PASSES.len()] {
    let mut random = Random::new(seed + 1);
    for _ in 0..WARM {
        pages.touch(File::Hot, random.below(HOT_PAGES as u64));
    }
    let len = FRAMES as u64 / 2;
    let mut pass = |_| {
        (0..len)
            .filter(|page| pages.touch(File::Scan, *page))
            .count()
    };
    let hits = Vec::from_iter((1..=40).map(&mut pass));
    LOOP_PASSES.map(|pass| hits[pass as usize - 1] as f64 / len as f64 * 100.0)
}

/// Returns the percentage of hits before, during and after the scan.
fn one(hot: &Zipf, pages: &mut dyn Pages, touches: u32, seed: u64) -> [f64; 3] {
    let mut random = Random::new(seed + 1);
    let mut hit = |pages: &mut dyn Pages| pages.touch(File::Hot, hot.draw(&mut random));
    for _ in 0..WARM {
        hit(pages);
    }
    let percent = |hits: usize, of: usize| hits as f64 / of as f64 * 100.0;
    let before = (0..COUNTED).filter(|_| hit(pages)).count();
    let mut during = 0;
    for page in 0..SCAN_PAGES {
        during += usize::from(hit(pages));
        for _ in 0..touches {
            pages.touch(File::Scan, page);
        }
    }
    let after = (0..COUNTED).filter(|_| hit(pages)).count();
    [
        percent(before, COUNTED),
        percent(during, SCAN_PAGES as usize),
        percent(after, COUNTED),
    ]
}

/// Page numbers with a Zipf distribution.
struct Zipf {
    /// Cumulative weight up to each rank.
    sums: Vec<f64>,
    /// Page of each rank, shuffled so that neighboring pages have unrelated ranks.
    page_of: Vec<u64>,
}

impl Zipf {
    fn new(pages: usize, exponent: f64) -> Zipf {
        let mut sum = 0.0;
        let mut add = |rank: usize| {
            sum += 1.0 / (rank as f64).powf(exponent);
            sum
        };
        let mut page_of: Vec<u64> = (0..pages as u64).collect();
        let mut random = Random::new(0);
        for i in (1..pages).rev() {
            page_of.swap(i, random.below(i as u64 + 1) as usize);
        }
        Zipf {
            sums: (1..=pages).map(&mut add).collect(),
            page_of,
        }
    }

    fn draw(&self, random: &mut Random) -> u64 {
        let share = random.next_u64() as f64 / u64::MAX as f64;
        let at = share * self.sums[self.sums.len() - 1];
        let rank = self.sums.partition_point(|sum| *sum < at);
        self.page_of[rank.min(self.page_of.len() - 1)]
    }
}

/// The cache, with a volume for each file.
struct Real {
    volumes: [(Session, OpenFile); 2],
    _keep: [Arc<Volume>; 2],
}

impl Real {
    fn new() -> Real {
        let cache = Cache::new(Config::new(FRAMES as u64 * 4096)).expect("a cache");
        let volume = |pages: u64| {
            let device = Arc::new(Mem::new(pages * 4096, 4096));
            let pager = Arc::new(DevicePager::new(device).expect("pages fit"));
            let volume = cache.volume(pager).expect("a volume");
            let open = volume.open(&volume.vnode(DEVICE_FILE, pages * 4096));
            ((volume.session().expect("a session"), open), volume)
        };
        let ((hot, one), (scan, two)) = (volume(HOT_PAGES as u64), volume(SCAN_PAGES));
        Real {
            volumes: [hot, scan],
            _keep: [one, two],
        }
    }
}

impl Pages for Real {
    fn touch(&mut self, file: File, page: u64) -> bool {
        let (session, open) = &mut self.volumes[file as usize - 1];
        if open.page(page).is_some() {
            return true;
        }
        let mut out = [0; 8];
        session
            .read(open, page * 4096, &mut out)
            .expect("nothing fails here");
        false
    }
}

/// A policy without page contents.
struct Driven {
    policy: Box<dyn Policy>,
    frame_of: HashMap<PageKey, FrameNo>,
    key_of: Vec<PageKey>,
    noted: Vec<u8>,
    free: Vec<FrameNo>,
}

impl Driven {
    fn new(policy: Box<dyn Policy>) -> Driven {
        Driven {
            policy,
            frame_of: HashMap::new(),
            key_of: vec![PageKey { vnode: 0, page: 0 }; FRAMES],
            noted: vec![0; FRAMES],
            free: (0..FRAMES as u32).map(FrameNo).collect(),
        }
    }

    fn evict(&mut self) {
        let exact = self.policy.wants_hits();
        let noted = &mut self.noted;
        let mut touched = |frame: FrameNo| {
            let noted = std::mem::take(&mut noted[frame.0 as usize]);
            Touched {
                frequency: if exact { 0 } else { noted },
                ..Touched::default()
            }
        };
        self.policy.victims(64, &mut touched, &mut self.free);
        for frame in &self.free {
            self.frame_of.remove(&self.key_of[frame.0 as usize]);
            self.policy.removed(*frame);
        }
    }
}

impl Pages for Driven {
    fn touch(&mut self, file: File, page: u64) -> bool {
        let vnode = file as u64;
        let key = PageKey { vnode, page };
        if let Some(&frame) = self.frame_of.get(&key) {
            let noted = &mut self.noted[frame.0 as usize];
            *noted = (*noted + 1).min(3);
            if self.policy.wants_hits() {
                self.policy.hit(frame);
            }
            return true;
        }
        if self.free.is_empty() {
            self.evict();
        }
        let frame = self.free.pop().expect("a page has left");
        let entry = match file {
            File::Hot => Entry::Read,
            File::Scan => Entry::Stream,
        };
        self.noted[frame.0 as usize] = 0;
        self.key_of[frame.0 as usize] = key;
        self.frame_of.insert(key, frame);
        self.policy.inserted(frame, key, entry);
        false
    }
}

/// Returns a number that is unique over the pages of both files.
fn number(file: File, page: u64) -> u64 {
    (file as u64) << 32 | page
}

impl Pages for Foyer {
    fn touch(&mut self, file: File, page: u64) -> bool {
        let key = number(file, page);
        let hit = self.get(&key).is_some();
        if !hit {
            self.insert(key, peers::a_page());
        }
        hit
    }
}

impl Pages for Moka {
    fn touch(&mut self, file: File, page: u64) -> bool {
        let key = number(file, page);
        let hit = self.get(&key).is_some();
        if !hit {
            self.insert(key, peers::a_page());
        }
        hit
    }
}
