//! Random direct reads of a file: N in flight on one ring compared with N blocking threads, run
//! alternately.
//!
//! Prints a Markdown table: for each block size and N, the requests per second and the CPU time per
//! request of both, and the median of the paired ratios.
//!
//! ```text
//! cargo run --release -p evfs-path-file --example ring_against_threads [FILE]
//! ```

use block::{BlockDevice, BufPool, Op, Request, Wait};
use block_testing::Random;
use path_file::{Engine, FileDevice, Options};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const FILE_BYTES: u64 = 1 << 30;
const ROUNDS: usize = 7;

/// Requests per second, and CPU seconds of the process per request.
struct Cost {
    rate: f64,
    cpu: f64,
}

fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn measure(requests: u64, work: impl FnOnce()) -> Cost {
    let (start, cpu) = (Instant::now(), cpu_seconds());
    work();
    let cpu = cpu_seconds() - cpu;
    Cost {
        rate: requests as f64 / start.elapsed().as_secs_f64(),
        cpu: cpu / requests as f64,
    }
}

fn ring(device: &FileDevice, block: usize, depth: usize, requests: u64, registered: bool) {
    let pool = BufPool::new(block, depth);
    let mut queue = device.queue().expect("a queue");
    if registered {
        queue.register(&pool);
    }
    let mut random = Random::new(1);
    let (mut sent, mut done) = (0, Vec::new());
    let mut reaped = 0;
    while reaped < requests {
        while sent < requests
            && let Some(buf) = pool.take(block)
        {
            let offset = random.below(FILE_BYTES / block as u64) * block as u64;
            let op = Op::Read {
                offset,
                bufs: buf.into(),
            };
            queue.submit(Request { tag: 0, op }).expect("room");
            sent += 1;
        }
        reaped += queue.reap(Wait::Block, &mut done).expect("the queue works") as u64;
        done.drain(..).for_each(|d| d.result.expect("a read"));
    }
}

fn threads(device: &Arc<FileDevice>, block: usize, count: usize, requests: u64) {
    let left = AtomicU64::new(requests);
    std::thread::scope(|scope| {
        for seed in 0..count as u64 {
            let (device, left) = (Arc::clone(device), &left);
            scope.spawn(move || {
                let pool = BufPool::new(block, 1);
                let mut queue = device.queue().expect("a queue");
                let mut random = Random::new(seed);
                let mut done = Vec::new();
                while left
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                    .is_ok()
                {
                    let offset = random.below(FILE_BYTES / block as u64) * block as u64;
                    let bufs = pool.take(block).expect("the only buffer").into();
                    queue
                        .submit(Request {
                            tag: 0,
                            op: Op::Read { offset, bufs },
                        })
                        .expect("room");
                    queue.reap(Wait::Block, &mut done).expect("the queue works");
                    done.drain(..).for_each(|d| d.result.expect("a read"));
                }
            });
        }
    });
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let path = std::env::args()
        .nth(1)
        .map_or_else(|| std::env::temp_dir().join("evfs-ring"), PathBuf::from);
    let _ = std::fs::remove_file(&path);
    let options = |engine| Options {
        engine,
        lock: path_file::Lock::None,
        ..Options::default()
    };
    let by_ring = FileDevice::create(&path, FILE_BYTES, &options(Engine::IoUring)).expect("a file");
    let by_calls = FileDevice::open(&path, &options(Engine::Psync)).expect("the same file");
    let mut fill = block::Blocking::open(&by_ring).expect("a queue");
    let data = vec![0x5a; 4 << 20];
    (0..FILE_BYTES / data.len() as u64)
        .for_each(|i| fill.write_at(i * data.len() as u64, &data).expect("fill"));
    fill.flush().expect("flush");
    println!("direct: {}\n", by_ring.direct());
    println!(
        "| block | in flight | ring, requests/s | CPU us each | threads, requests/s | CPU us each | ring/threads CPU | registered/plain CPU |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (block, requests) in [(4096, 16_000), (65536, 4_000)] {
        for depth in [1, 8, 32] {
            let rounds: Vec<[Cost; 3]> = (0..ROUNDS)
                .map(|_| {
                    [
                        measure(requests, || ring(&by_ring, block, depth, requests, true)),
                        measure(requests, || threads(&by_calls, block, depth, requests)),
                        measure(requests, || ring(&by_ring, block, depth, requests, false)),
                    ]
                })
                .collect();
            let of = |f: &dyn Fn(&[Cost; 3]) -> f64| median(rounds.iter().map(f).collect());
            println!(
                "| {block} | {depth} | {:.0} | {:.1} | {:.0} | {:.1} | {:.2} | {:.2} |",
                of(&|r| r[0].rate),
                of(&|r| r[0].cpu * 1e6),
                of(&|r| r[1].rate),
                of(&|r| r[1].cpu * 1e6),
                of(&|r| r[0].cpu / r[1].cpu),
                of(&|r| r[0].cpu / r[2].cpu),
            );
        }
    }
    let _ = std::fs::remove_file(&path);
}
