//! Measures the purely computational parts: nanoseconds per page for each policy, and per access
//! for stream detection. The rounds of all are interleaved. Batches of 64 are timed; prints the
//! median batch and the tenth percentile, which is little affected by other load on the machine.
//!
//! `cargo run --release -p evfs-cache --example policy_cost`

use block_testing::Random;
use cache::policy::{
    Clock, Entry, FrameNo, Lru, PageKey, Policy, SeqLimits, Stealback, Stealing, Touched, Ufc,
};
use cache::stream::{Access, Limits, Streams};
use std::hint::black_box;
use std::time::{Duration, Instant};

const ROUNDS: usize = 9;
const PAGES: usize = 1 << 19;
const BATCH: usize = 64;

fn main() {
    for frames in [1 << 16, 1 << 20] {
        println!("\n{frames} frames, ns a page: median (tenth percentile)\n");
        println!("| policy | inserted | victims + removed |");
        println!("|---|---|---|");
        let limit = frames as u32;
        let on = SeqLimits {
            system: 20,
            file: 5,
        };
        let before = |inner, limits| -> Box<dyn Policy> {
            Box::new(Stealback::new(
                inner,
                limit,
                frames,
                limits,
                Stealing::BehindCursor,
            ))
        };
        let mut rivals: [(&str, Churn); 5] = [
            ("LRU", Churn::new(Box::new(Lru::new(limit)), frames)),
            ("CLOCK", Churn::new(Box::new(Clock::new(limit)), frames)),
            (
                "ours",
                Churn::new(Box::new(Ufc::new(limit, frames)), frames),
            ),
            (
                "ours behind stealback, off",
                Churn::new(
                    before(Box::new(Ufc::new(limit, frames)), SeqLimits::OFF),
                    frames,
                ),
            ),
            (
                "ours behind stealback, 20/5",
                Churn::new(before(Box::new(Ufc::new(limit, frames)), on), frames),
            ),
        ];
        for _ in 0..ROUNDS {
            rivals.iter_mut().for_each(|(_, churn)| churn.round());
        }
        for (name, churn) in &mut rivals {
            println!(
                "| {name} | {} | {} |",
                shown(&mut churn.inserting),
                shown(&mut churn.evicting)
            );
        }
    }
    println!("\nstream recognition, ns an access: median (tenth percentile)\n");
    println!("| accesses | |");
    println!("|---|---|");
    let kinds: [(&str, Next); 4] = [
        ("sequential, 4 KiB, hits", |n, _| hit(n * 4096)),
        ("sequential, 4 KiB, misses", |n, _| miss(n * 4096)),
        (
            "random, hits",
            |_, random| hit(random.below(1 << 28) * 4096),
        ),
        ("random, misses", |_, random| {
            miss(random.below(1 << 28) * 4096)
        }),
    ];
    for (name, next) in kinds {
        println!("| {name} | {} |", shown(&mut recognition(next)));
    }
}

/// Returns the n-th access.
type Next = fn(u64, &mut Random) -> Access;

/// A full cache with a flow of pages: every second one of a stream, every fourth referenced once.
struct Churn {
    policy: Box<dyn Policy>,
    noted: Vec<u8>,
    free: Vec<FrameNo>,
    random: Random,
    inserting: Vec<f64>,
    evicting: Vec<f64>,
    page: u64,
}

impl Churn {
    fn new(policy: Box<dyn Policy>, frames: usize) -> Churn {
        let mut churn = Churn {
            policy,
            noted: vec![0; frames],
            free: (0..frames as u32).map(FrameNo).collect(),
            random: Random::new(1),
            inserting: Vec::new(),
            evicting: Vec::new(),
            page: 0,
        };
        churn.insert();
        // Fill queues and histories completely.
        (0..frames * 3 / PAGES + 1).for_each(|_| churn.round());
        churn.inserting.clear();
        churn.evicting.clear();
        churn
    }

    fn insert(&mut self) {
        while let Some(frame) = self.free.pop() {
            self.page += 1;
            let (vnode, entry) = match self.page % 2 {
                0 => (1, Entry::Stream),
                _ => (2, Entry::Read),
            };
            let page = if vnode == 1 {
                self.page
            } else {
                self.random.below(1 << 22)
            };
            self.policy.inserted(frame, PageKey { vnode, page }, entry);
            self.noted[frame.0 as usize] = u8::from(self.page % 4 == 1);
        }
    }

    fn round(&mut self) {
        for _ in 0..PAGES / BATCH {
            let start = Instant::now();
            let noted = &mut self.noted;
            let mut touched = |frame: FrameNo| Touched {
                frequency: std::mem::take(&mut noted[frame.0 as usize]),
                ..Touched::default()
            };
            self.policy.victims(BATCH, &mut touched, &mut self.free);
            self.free
                .iter()
                .for_each(|frame| self.policy.removed(*frame));
            let evicted = Instant::now();
            self.insert();
            let inserted = Instant::now();
            self.evicting.push(each(evicted - start));
            self.inserting.push(each(inserted - evicted));
        }
    }
}

/// Returns the nanoseconds per element of a batch.
fn each(batch: Duration) -> f64 {
    batch.as_nanos() as f64 / BATCH as f64
}

fn hit(offset: u64) -> Access {
    Access {
        offset,
        len: 4096,
        file_size: 1 << 40,
        hit: true,
    }
}

fn miss(offset: u64) -> Access {
    Access {
        hit: false,
        ..hit(offset)
    }
}

fn recognition(next: Next) -> Vec<f64> {
    let mut random = Random::new(7);
    let mut streams = Streams::new(Limits::default());
    (0..PAGES / BATCH)
        .map(|batch| {
            let first = (batch * BATCH) as u64;
            let accesses: [Access; BATCH] =
                std::array::from_fn(|n| next(first + n as u64, &mut random));
            let start = Instant::now();
            for access in accesses {
                black_box(streams.accessed(black_box(access)));
            }
            each(start.elapsed())
        })
        .collect()
}

fn shown(samples: &mut [f64]) -> String {
    samples.sort_by(f64::total_cmp);
    format!(
        "{:.1} ({:.1})",
        samples[samples.len() / 2],
        samples[samples.len() / 10]
    )
}
