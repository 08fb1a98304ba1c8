//! A cache of 5 % of the data against one of 50 %, with 1 to 100 threads, unencrypted and
//! encrypted: the measurement of "HP-UX Encrypted Volume and File System Performance and Tuning"
//! for `dbc_max` of 5 % (figures 20 to 26), with the same program: 64 KiB records, a part of the
//! data for each thread, sequential writes, random writes, sequential and random reads, and reads
//! of cached data.
//!
//! The disk is memory with a latency and a rate limit, so that the cache is measured and not other
//! load on the machine's disk.

use crate::Args;
use crate::cipher::enciphered;
use crate::peers::Cached;
use crate::rounds::estimate;
use crate::table::{Table, interval, number};
use block::{BlockDevice, Buf};
use block_testing::{Delay, Mem, Random, Rate};
use cache::{OpenFile, Session};
use serde_json::json;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const SIZE: u64 = 128 << 20;
const RECORD: u64 = 64 << 10;
const RECORDS: u64 = SIZE / RECORD;
const LATENCY: Duration = Duration::from_micros(100);
const BYTES_PER_SECOND: u64 = 512 << 20;
const THREADS: [usize; 5] = [1, 10, 25, 50, 100];
/// Maximum number of rounds of this group: a run takes seconds.
const ROUNDS_MAX: usize = 7;

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Write,
    RandomWrite,
    Read,
    RandomRead,
    /// A part that fits the smaller cache, loaded before the clock starts.
    CachedRead,
}

const PHASES: [(Phase, &str); 5] = [
    (Phase::Write, "sequential write"),
    (Phase::RandomWrite, "random write"),
    (Phase::Read, "sequential read"),
    (Phase::RandomRead, "random read"),
    (Phase::CachedRead, "cached read"),
];

/// Result of a phase.
#[derive(Clone, Copy, Default)]
struct Outcome {
    mib_per_s: f64,
    hit_percent: f64,
}

/// Cache size in percent of the data, and the bits of the cipher's key.
const CELLS: [(u64, usize); 4] = [(5, 0), (50, 0), (5, 128), (50, 128)];

pub fn run(args: &Args) -> Vec<Table> {
    let columns = [
        "threads",
        "",
        "5 %, MiB/s",
        "hits, 5 %",
        "hits, 50 %",
        "50 % / 5 %",
        "AES-128 / clear, 5 %",
        "AES-128 / clear, 50 %",
    ];
    let title = "a cache of 5 % and of 50 % of the data, 64 KiB records, time by the clock";
    let mut table = Table::new(title, &columns);
    for threads in THREADS {
        let rounds = args.rounds.min(ROUNDS_MAX);
        let mut outcomes: Vec<[[Outcome; PHASES.len()]; CELLS.len()]> = Vec::new();
        for round in 0..=rounds {
            let mut of_round = [[Outcome::default(); PHASES.len()]; CELLS.len()];
            for step in 0..CELLS.len() {
                let at = match round % 2 {
                    0 => step,
                    _ => CELLS.len() - 1 - step,
                };
                of_round[at] = one_run(CELLS[at], threads, round as u64);
            }
            // The first round is discarded.
            if round > 0 {
                outcomes.push(of_round);
            }
        }
        for (phase, (_, name)) in PHASES.iter().enumerate() {
            add_row(&mut table, threads, phase, name, &outcomes);
        }
    }
    vec![table]
}

fn add_row(
    table: &mut Table,
    threads: usize,
    phase: usize,
    name: &str,
    outcomes: &[[[Outcome; PHASES.len()]; CELLS.len()]],
) {
    let column = |cell: usize, of: fn(&Outcome) -> f64| -> Vec<f64> {
        outcomes.iter().map(|o| of(&o[cell][phase])).collect()
    };
    let speed: [Vec<f64>; 4] = std::array::from_fn(|cell| column(cell, |o| o.mib_per_s));
    let ratio = |a: usize, b: usize| {
        let ratios = speed[a].iter().zip(&speed[b]).map(|(a, b)| a / b);
        interval(estimate(&ratios.collect::<Vec<_>>()), 2)
    };
    let hits = |cell| number(estimate(&column(cell, |o| o.hit_percent)).median);
    let writes = name.ends_with("write");
    let cells = vec![
        threads.to_string(),
        name.to_string(),
        number(estimate(&speed[0]).median),
        if writes { String::new() } else { hits(0) },
        if writes { String::new() } else { hits(1) },
        ratio(1, 0),
        ratio(2, 0),
        ratio(3, 1),
    ];
    let raw = json!({ "threads": threads, "phase": name, "cells": CELLS, "mib_per_s": speed });
    table.push(cells, raw);
}

fn one_run((percent, bits): (u64, usize), threads: usize, round: u64) -> [Outcome; PHASES.len()] {
    let memory = Arc::new(Mem::new(SIZE, 4096));
    let slow = Arc::new(Delay::new(memory, LATENCY, LATENCY));
    let disk: Arc<dyn BlockDevice> = Arc::new(Rate::new(slow, Some(BYTES_PER_SECOND), None));
    let disk = match bits {
        0 => disk,
        bits => enciphered(disk, bits),
    };
    let cached = Cached::over(disk, SIZE * percent / 100);
    let both = Barrier::new(threads + 1);
    let work = |thread: u64| {
        let (mut session, mut open) = cached.open();
        let mut random = Random::new(round * 1000 + thread);
        let part = RECORDS / threads as u64;
        let mut buf = Buf::copy_of(&vec![thread as u8 + 1; RECORD as usize]);
        for (phase, _) in PHASES {
            if phase == Phase::CachedRead {
                for record in cached_part(threads) {
                    let at = (thread * part + record) * RECORD;
                    read(&mut session, &mut open, at, &mut buf);
                }
            }
            both.wait();
            work_phase(
                phase,
                (&mut session, &mut open),
                thread * part..(thread + 1) * part,
                threads,
                &mut random,
                &mut buf,
            );
            both.wait();
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..threads as u64 {
            let work = &work;
            scope.spawn(move || work(thread));
        }
        PHASES.map(|(phase, _)| {
            if phase == Phase::Read {
                // Writes back the data of the write phases before reads are timed.
                cached.volume.flush().expect("the disk works");
            }
            both.wait();
            let (started, before) = (Instant::now(), cached.cache.stats().counts);
            both.wait();
            let seconds = started.elapsed().as_secs_f64();
            let after = cached.cache.stats().counts;
            let bytes = match phase {
                Phase::CachedRead => {
                    PASSES * cached_part(threads).count() as u64 * threads as u64 * RECORD
                }
                _ => RECORDS / threads as u64 * threads as u64 * RECORD,
            };
            let missed = (after.misses - before.misses + after.joins - before.joins) as f64;
            let pages = (bytes / 4096) as f64;
            Outcome {
                mib_per_s: bytes as f64 / seconds / (1 << 20) as f64,
                hit_percent: 100.0 * (1.0 - missed / pages).max(0.0),
            }
        })
    })
}

/// Number of passes over the cached data.
const PASSES: u64 = 20;

/// Returns the records of each thread; those of all threads together fit the smaller cache.
fn cached_part(threads: usize) -> std::ops::Range<u64> {
    0..(RECORDS * 5 / 100 / 2 / threads as u64).max(1)
}

fn work_phase(
    phase: Phase,
    (session, open): (&mut Session, &mut OpenFile),
    part: std::ops::Range<u64>,
    threads: usize,
    random: &mut Random,
    buf: &mut Buf,
) {
    let records = part.end - part.start;
    let passes = if phase == Phase::CachedRead {
        PASSES
    } else {
        1
    };
    let count = match phase {
        Phase::CachedRead => cached_part(threads).end,
        _ => records,
    };
    for record in (0..passes).flat_map(|_| 0..count) {
        let record = match phase {
            Phase::RandomWrite | Phase::RandomRead => random.below(records),
            _ => record,
        };
        let at = (part.start + record) * RECORD;
        match phase {
            Phase::Write | Phase::RandomWrite => {
                session.write(open, at, buf).expect("the disk works");
            }
            _ => read(session, open, at, buf),
        }
    }
}

fn read(session: &mut Session, open: &mut OpenFile, at: u64, buf: &mut Buf) {
    session.read(open, at, buf).expect("the disk works");
}
