//! Misses: 4 KiB reads through a full cache, against the same reads of the bare device.

use crate::Args;
use crate::peers::{Cached, PAGE};
use crate::rounds::{Arm, estimate, in_threads, interleave, thread_ns};
use crate::table::{Table, interval, number};
use block::{BlockDevice, Buf, Op, Queue, Request, Wait};
use block_testing::Mem;
use serde_json::json;
use std::sync::Arc;
use std::time::Instant;

/// Bytes of the device; the cache holds an eighth.
const SIZE: u64 = 256 << 20;
const PAGES: u64 = SIZE / PAGE as u64;
/// Reads of a variant in a round, in each thread, from memory and from a disk.
const OPS_MEMORY: usize = 20_000;
const OPS_DISK: usize = 2_000;

pub fn run(args: &Args) -> Vec<Table> {
    let memory: Arc<dyn BlockDevice> = Arc::new(Mem::new(SIZE, 4096));
    let folder = tempfile::tempdir_in(&args.dir).expect("a folder");
    let path = folder.path().join("disk");
    let options = path_file::Options {
        direct: path_file::Direct::Always,
        ..Default::default()
    };
    let disk = path_file::FileDevice::create(&path, SIZE, &options).expect("a file");
    let disk: Arc<dyn BlockDevice> = disk;
    write_all(&disk);
    let mut tables = Vec::new();
    for threads in [1, 2] {
        let title = |of: &str| format!("misses of 4 KiB over {of}, {threads} thread(s)");
        let of_memory = title("a device in memory");
        tables.push(misses(
            &of_memory,
            &memory,
            OPS_MEMORY,
            threads,
            args.rounds,
        ));
        let of_disk = title("a file, past the kernel's page cache");
        tables.push(misses(&of_disk, &disk, OPS_DISK, threads, args.rounds));
    }
    tables
}

/// Fills the device: a read of a hole in a file would not access the disk.
fn write_all(device: &Arc<dyn BlockDevice>) {
    let mut blocking = block::Blocking::open(&**device).expect("a queue");
    for at in (0..SIZE).step_by(1 << 20) {
        let block = vec![at as u8; 1 << 20];
        blocking.write_at(at, &block).expect("the disk works");
    }
    blocking.flush().expect("the disk works");
}

/// Page numbers in pseudo-random order, each once before any repeats.
struct Shuffled(u64);

impl Shuffled {
    /// A linear congruential generator over all pages: its period is their number (Hull, Dobell).
    fn next(&mut self) -> u64 {
        self.0 = (self.0.wrapping_mul(0x9e5) + 0x3039) % PAGES;
        // The low bits of such a number are regular, so its halves are swapped.
        let (high, low) = (self.0 >> 8, self.0 & 0xff);
        low << 8 | high
    }
}

const _: () = assert!(PAGES == 1 << 16, "the halves of a page number are bytes");

/// Measures CPU time and wall-clock time in nanoseconds per read.
fn timed(ops: usize, begin: &dyn Fn(), mut read: impl FnMut()) -> (f64, f64) {
    begin();
    let (started, clock) = (thread_ns(), Instant::now());
    (0..ops).for_each(|_| read());
    let cpu = (thread_ns() - started) as f64;
    let clock = clock.elapsed().as_nanos() as f64;
    (cpu / ops as f64, clock / ops as f64)
}

fn misses(
    title: &str,
    device: &Arc<dyn BlockDevice>,
    ops: usize,
    threads: usize,
    rounds: usize,
) -> Table {
    let cached = Cached::over(Arc::clone(device), SIZE / 8);
    cached.fill();
    let start =
        |round: u64, thread: usize| Shuffled((round * 7919 + thread as u64 * PAGES / 2) % PAGES);
    let clocks = [const { std::sync::Mutex::new(Vec::new()) }; 2];
    let note = |arm: usize, round: u64, clock: f64| {
        if round > 0 {
            clocks[arm].lock().expect("no panic").push(clock);
        }
    };
    let bare = |round| {
        in_threads(threads, |thread, begin| {
            let mut pages = start(round, thread);
            let mut queue = device.queue().expect("a queue");
            let mut buf = Some(Buf::zeroed(PAGE));
            let (cpu, clock) = timed(ops, begin, || {
                bare_read(&mut *queue, &mut buf, pages.next())
            });
            note(0, round, clock);
            cpu
        })
    };
    let counts = || cached.cache.stats().counts;
    let before = counts();
    let through = |round| {
        in_threads(threads, |thread, begin| {
            let mut pages = start(round, thread);
            let (mut session, mut open) = cached.open();
            let mut out = Buf::zeroed(PAGE);
            let (cpu, clock) = timed(ops, begin, || {
                let at = pages.next() * PAGE as u64;
                session
                    .read(&mut open, at, &mut out)
                    .expect("the disk works");
            });
            note(1, round, clock);
            cpu
        })
    };
    let mut arms = [
        Arm::new("bare read", 0, bare),
        Arm::new("miss, in which another page leaves", 0, through),
    ];
    let costs = interleave(&mut arms, rounds);
    let after = counts();
    let missed = (after.misses - before.misses) as f64;
    let hit = (after.hits - before.hits) as f64;
    drop(arms);
    let clocks = clocks.map(|c| c.into_inner().expect("no panic"));
    let mut table = Table::new(title, &["", "bare, us", "miss, us", "adds, us", "ratio"]);
    for (name, [bare, miss]) in [
        ("processor time", [&costs[0], &costs[1]]),
        ("time by the clock", [&clocks[0], &clocks[1]]),
    ] {
        let us = |ns: &[f64]| number(estimate(ns).median / 1000.0);
        let pairs = || miss.iter().zip(bare.iter());
        let adds: Vec<f64> = pairs().map(|(m, b)| (m - b) / 1000.0).collect();
        let ratios: Vec<f64> = pairs().map(|(m, b)| m / b).collect();
        let cells = [us(bare), us(miss), interval(estimate(&adds), 2)];
        let mut row = vec![name.to_string()];
        row.extend(cells);
        row.push(interval(estimate(&ratios), 2));
        table.push(row, json!({ "name": name, "bare": bare, "miss": miss }));
    }
    let share = missed / (missed + hit) * 100.0;
    table.title += &format!(" ({share:.1} % of the reads missed)");
    table
}

fn bare_read(queue: &mut dyn Queue, buf: &mut Option<Buf>, page: u64) {
    let op = Op::Read {
        offset: page * PAGE as u64,
        bufs: buf.take().expect("it came back").into(),
    };
    let mut done = Vec::with_capacity(1);
    queue.submit(Request { tag: 0, op }).expect("there is room");
    while queue.reap(Wait::Block, &mut done).expect("the queue works") == 0 {}
    match done.pop().map(|d| (d.op, d.result)) {
        Some((Op::Read { bufs, .. }, Ok(()))) => *buf = bufs.into_first(),
        _ => panic!("a read comes back"),
    }
}
