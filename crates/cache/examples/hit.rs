//! Measures the cost of a hit and of a miss, next to their lower bounds.
//!
//! ```text
//! cargo run --release -p evfs-cache --example hit [--file PATH]
//! ```
//!
//! All rows are measured in one process in alternation, so that background load affects all of
//! them; the figures are the median of the rounds, in nanoseconds of the thread's CPU time per
//! operation, and the ratio to the row of comparison. Pages are chosen at random among `RESIDENT`
//! bytes or, for a miss, of a device eight times the cache. A CPU executes several independent
//! accesses at once, and a bare load leaves it the most room for that; so in the rows marked "each
//! waits for the last" the result of an access determines the next page, as in a program that
//! follows pointers.

use block::{BlockDevice, Buf, Op, Request, Wait};
use block_testing::{Mem, Random};
use cache::{Cache, CacheMode, CachedDevice, Config, DEVICE_FILE, DevicePager, OpenFile, Session};
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Size of the data that hits access, in bytes.
const RESIDENT: u64 = 256 << 20;
const PAGE: u64 = 4096;
const ROUNDS: usize = 9;
/// Operations of each kind per round.
const OPS: usize = 100_000;
/// Misses per round.
const MISSES: usize = 20_000;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let file = args
        .iter()
        .position(|a| a == "--file")
        .map(|at| args[at + 1].clone());
    for threads in [1, 2] {
        println!(
            "hits, {threads} thread(s), random pages of {} MiB",
            RESIDENT >> 20
        );
        hits(threads);
    }
    println!("misses of 4 KiB over a disk in memory");
    misses(Arc::new(Mem::new(256 << 20, 4096)));
    if let Some(path) = file {
        println!("misses of 4 KiB over {path}");
        let options = path_file::Options::default();
        misses(path_file::FileDevice::open(path.as_ref(), &options).expect("the file opens"));
    }
}

/// Returns the CPU time that this thread has used, in nanoseconds.
fn thread_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the CPU time per call in nanoseconds, measured over `count` calls.
fn cost(count: usize, mut act: impl FnMut(u64), pages: u64, seed: u64) -> f64 {
    let mut random = Random::new(seed);
    let started = thread_ns();
    for _ in 0..count {
        act(random.below(pages));
    }
    (thread_ns() - started) as f64 / count as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

const NAMES: [&str; 20] = [
    "raw pointer, 8 bytes",
    "borrow from the cache, 8 bytes",
    "copy from the cache, 8 bytes",
    "memcpy of 4 KiB",
    "copy of 4 KiB from the cache",
    "copy of 4 KiB, as a request through the queue",
    "write of 4 KiB into the cache",
    "pread of 4 KiB from the kernel's page cache",
    "borrow from the cache, sequential, 8 bytes",
    "raw pointer, sequential, 8 bytes",
    "raw pointer, 8 bytes, each waits for the last",
    "borrow, 8 bytes, each waits for the last",
    "copy, 8 bytes, each waits for the last",
    "memcpy of 4 KiB, each waits for the last",
    "copy of 4 KiB, each waits for the last",
    "pread of 4 KiB, each waits for the last",
    "memcpy of 4 KiB out of memory in small pages",
    "copy of 4 KiB from the cache",
    "memcpy of 4 KiB, sequential",
    "copy of 4 KiB from the cache, sequential",
];
/// The row that each row is compared with.
const AGAINST: [usize; 20] = [
    0, 0, 0, 3, 3, 3, 3, 3, 9, 9, 10, 10, 10, 13, 13, 13, 16, 16, 18, 18,
];

fn hits(threads: usize) {
    let cache = Cache::new(Config::new(2 * RESIDENT)).expect("a cache");
    let device = Arc::new(Mem::new(RESIDENT, 4096));
    let volume = cache
        .volume(Arc::new(DevicePager::new(device).expect("pages fit")))
        .expect("a volume");
    let vnode = volume.vnode(DEVICE_FILE, RESIDENT);
    let mut session = volume.session().expect("a session");
    let mut open = volume.open(&vnode);
    let mut block = vec![1; 1 << 20];
    for at in (0..RESIDENT).step_by(1 << 20) {
        session
            .read(&mut open, at, &mut block)
            .expect("nothing fails here");
    }
    // Plain memory, once like the cache's in a mapping with large pages, and once in small pages.
    let flat = block::BufPool::new(RESIDENT as usize, 1).take(RESIDENT as usize);
    let mut flat = flat.expect("there is one");
    flat.fill(1);
    let small = vec![1u8; RESIDENT as usize];
    let kernel = tempfile::tempfile().expect("a file");
    kernel.set_len(RESIDENT).expect("room");
    for at in (0..RESIDENT).step_by(1 << 20) {
        kernel.write_all_at(&block, at).expect("room");
    }
    let results: Vec<Vec<Vec<f64>>> = std::thread::scope(|scope| {
        let run = |thread: usize| {
            let (volume, vnode, kernel) = (&volume, &vnode, &kernel);
            let plain = [&flat[..], &small[..]];
            scope.spawn(move || {
                let mut session = volume.session().expect("a session");
                let mut open = volume.open(vnode);
                let device = |round| (thread * 1000 + round) as u64;
                let rounds = 0..ROUNDS;
                let one = |round| hit_round(&mut session, &mut open, plain, kernel, device(round));
                rounds.map(one).collect()
            })
        };
        let running: Vec<_> = (0..threads).map(run).collect();
        running
            .into_iter()
            .map(|t| t.join().expect("no panic"))
            .collect()
    });
    let all: Vec<&Vec<f64>> = results.iter().flatten().collect();
    let row = |i: usize| median(all.iter().map(|r| r[i]).collect());
    for (i, name) in NAMES.iter().enumerate() {
        println!(
            "  {name:48} {:8.1} ns  {:6.2}",
            row(i),
            row(i) / row(AGAINST[i])
        );
    }
}

fn hit_round(
    session: &mut Session,
    open: &mut OpenFile,
    [flat, small]: [&[u8]; 2],
    kernel: &File,
    seed: u64,
) -> Vec<f64> {
    let pages = RESIDENT / PAGE;
    // Aligned, as the buffers of the data path are: the relative alignment of source and
    // destination affects the cost of a copy more than anything measured here.
    let mut out = Buf::zeroed(PAGE as usize);
    let word = |at: &[u8]| u64::from_le_bytes(at[..8].try_into().expect("eight bytes"));
    let mut sum = 0;
    let mut costs = vec![0.0; NAMES.len()];
    let raw = |page: u64| black_box(word(&flat[(page * PAGE) as usize..]));
    costs[0] = cost(OPS, |page| sum ^= raw(page), pages, seed);
    let mut borrow = |page: u64| {
        let held = open.page(page).expect("it is there");
        black_box(word(&held))
    };
    costs[1] = cost(OPS, |page| sum ^= borrow(page), pages, seed);
    let mut next = 0;
    let mut step = |_| {
        next += 1;
        next % pages
    };
    costs[8] = cost(OPS, |page| sum ^= borrow(step(page)), pages, seed);
    costs[9] = cost(OPS, |page| sum ^= raw(step(page)), pages, seed);
    let mut read = |page: u64, out: &mut [u8]| {
        session.read(open, page * PAGE, out).expect("it is there");
    };
    costs[2] = cost(OPS, |page| read(page, &mut out[..8]), pages, seed);
    let copy = |page: u64, out: &mut [u8]| {
        out.copy_from_slice(black_box(&flat[(page * PAGE) as usize..][..PAGE as usize]));
        black_box(out);
    };
    costs[3] = cost(OPS, |page| copy(page, &mut out), pages, seed);
    costs[4] = cost(OPS, |page| read(page, &mut out), pages, seed);
    costs[5] = through_queue(session, open, pages, seed);
    let data = Buf::copy_of(&out);
    let mut write = |page: u64| {
        session
            .write(open, page * PAGE, &data)
            .expect("it is there")
    };
    costs[6] = cost(OPS / 10, |page| write(page % 1024), pages, seed);
    let mut pread = |page: u64| {
        kernel
            .read_exact_at(&mut out, page * PAGE)
            .expect("it is there")
    };
    costs[7] = cost(OPS, &mut pread, pages, seed);
    let mut pread = |page: u64| {
        kernel
            .read_exact_at(&mut out, page * PAGE)
            .expect("it is there");
        word(&out)
    };
    costs[15] = chained(OPS, &mut pread, pages, seed);
    costs[10] = chained(OPS, raw, pages, seed);
    let borrow = |page: u64| word(&open.page(page).expect("it is there"));
    costs[11] = chained(OPS, borrow, pages, seed);
    let mut read = |page: u64, out: &mut [u8]| {
        session.read(open, page * PAGE, out).expect("it is there");
        word(out)
    };
    costs[12] = chained(OPS, |page| read(page, &mut out[..8]), pages, seed);
    costs[14] = chained(OPS, |page| read(page, &mut out), pages, seed);
    let memcpy = |page: u64| {
        copy(page, &mut out);
        word(&out)
    };
    costs[13] = chained(OPS, memcpy, pages, seed);
    let copy_small = |page: u64, out: &mut [u8]| {
        out.copy_from_slice(black_box(&small[(page * PAGE) as usize..][..PAGE as usize]));
        black_box(out);
    };
    costs[16] = cost(OPS, |page| copy_small(page, &mut out), pages, seed);
    let mut read = |page: u64, out: &mut [u8]| {
        session.read(open, page * PAGE, out).expect("it is there");
    };
    costs[17] = cost(OPS, |page| read(page, &mut out), pages, seed);
    let mut next = 0;
    let mut step = |_| {
        next += 1;
        next % pages
    };
    costs[18] = cost(OPS, |page| copy(step(page), &mut out), pages, seed);
    costs[19] = cost(OPS, |page| read(step(page), &mut out), pages, seed);
    black_box(sum);
    costs
}

/// Returns the same as [`cost`], but the result of each call determines the next page.
fn chained(count: usize, mut act: impl FnMut(u64) -> u64, pages: u64, seed: u64) -> f64 {
    let mut random = Random::new(seed);
    let mut given = 0;
    let started = thread_ns();
    for _ in 0..count {
        given = act((random.next_u64() ^ given) % pages);
    }
    black_box(given);
    (thread_ns() - started) as f64 / count as f64
}

fn through_queue(session: &mut Session, open: &mut OpenFile, pages: u64, seed: u64) -> f64 {
    let mut done = Vec::with_capacity(1);
    let mut buf = Some(Buf::zeroed(PAGE as usize));
    let act = |page: u64| {
        let bufs = buf.take().expect("it came back").into();
        let offset = page * PAGE;
        let op = Op::Read { offset, bufs };
        session
            .submit(open, CacheMode::Cached, Request { tag: 0, op })
            .expect("there is room");
        session
            .reap(Wait::Poll, &mut done)
            .expect("the queue works");
        let Some(Op::Read { bufs, .. }) = done.pop().map(|d| d.op) else {
            panic!("a hit is there at once")
        };
        buf = bufs.into_first();
    };
    cost(OPS, act, pages, seed)
}

fn misses(device: Arc<dyn BlockDevice>) {
    let size = device.info().size / PAGE * PAGE;
    let pages = size / PAGE;
    let cache = Cache::new(Config::new((size / 8).max(1 << 20))).expect("a cache");
    let cached = CachedDevice::new(&cache, device.clone()).expect("a device");
    let mut session = cached.volume().session().expect("a session");
    let mut open = cached.volume().open(cached.vnode());
    let mut out = vec![0u8; PAGE as usize];
    // Fill the cache, so that each miss also evicts a page.
    for at in (0..size).step_by(PAGE as usize) {
        session
            .read(&mut open, at, &mut out)
            .expect("nothing fails here");
    }
    let mut queue = device.queue().expect("a queue");
    let mut done = Vec::with_capacity(1);
    let mut buf = Some(Buf::zeroed(PAGE as usize));
    let mut bare = |page: u64| {
        let bufs = buf.take().expect("it came back").into();
        let offset = page * PAGE;
        let op = Op::Read { offset, bufs };
        queue.submit(Request { tag: 0, op }).expect("there is room");
        while queue.reap(Wait::Block, &mut done).expect("the queue works") == 0 {}
        let Some(Op::Read { bufs, .. }) = done.pop().map(|d| d.op) else {
            panic!("a read comes back")
        };
        buf = bufs.into_first();
    };
    let before = cache.stats().counts;
    let (mut below, mut through) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS as u64 {
        below.push(cost(MISSES, &mut bare, pages, round));
        let mut read = |page: u64| {
            session
                .read(&mut open, page * PAGE, &mut out)
                .expect("nothing fails here");
        };
        through.push(cost(MISSES, &mut read, pages, round));
    }
    let after = cache.stats().counts;
    let share = (after.misses - before.misses) as f64
        / (after.misses + after.hits - before.misses - before.hits) as f64;
    let (below, through) = (median(below), median(through));
    println!("  bare read of the device {below:26.0} ns");
    println!(
        "  read through the cache, {:.0} % of them misses {through:12.0} ns",
        share * 100.0
    );
    println!(
        "  a miss adds {:38.0} ns",
        (through - below * share) / share
    );
}
