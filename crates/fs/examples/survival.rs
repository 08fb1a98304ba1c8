//! What the log for a successor costs: CPU time of operations with and without it, in turns.
//!
//! `cargo run --release -p evfs-fs --example survival [ROUNDS]`

use block::BlockDevice;
use block_testing::Mem;
use fs::{FIRST_FILESET, FileType, Fs, New, Options, ROOT, Stamp, Survival};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::time::Duration;
use survival::{Log, Requests};

const NEW: New = New::of_root(FileType::File, 0o644);
const FILES: u64 = 20_000;
const WRITES: u64 = 100_000;
/// Words of the log: 64 MiB.
const LOG_WORDS: usize = 8 << 20;

/// Returns the CPU time of this thread.
fn thread_seconds() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Runs each kind of operation on a new file system. Returns nanoseconds of CPU
/// time per operation, without the commits, which another thread makes.
fn measure(with_log: bool) -> [f64; 2] {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(1 << 30, 512));
    Fs::format(Arc::clone(&device), "").expect("it formats");
    let probe = Options {
        read_only: true,
        ..Options::default()
    };
    let probe = Fs::open(Arc::clone(&device), probe).expect("it opens");
    let uuid = probe.superblock().uuid;
    drop(probe);
    let survival = with_log.then(|| Survival {
        log: Arc::new(Log::create(LOG_WORDS, uuid).expect("a log")),
        requests: Some(Arc::new(Requests::create().expect("a table"))),
        adopt: false,
    });
    if let Some(survival) = &survival {
        // As after the first lap of the ring: its pages exist.
        for word in survival.log.memory().words().iter().skip(16).step_by(512) {
            word.store(1, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let options = Options {
        commit_interval: Duration::from_secs(3600),
        survival,
        ..Options::default()
    };
    let fs = Fs::open(device, options).expect("it opens");
    let main = fs.fileset_named(FIRST_FILESET).expect("the first fileset");
    let names: Vec<Vec<u8>> = (0..FILES).map(|i| format!("file-{i}").into()).collect();
    let per = |count: u64, start: f64| (thread_seconds() - start) * 1e9 / count as f64;

    let start = thread_seconds();
    for name in &names {
        main.create(ROOT, name, &NEW).expect("created");
    }
    let create = per(FILES, start);

    let ino = main.lookup(ROOT, &names[0]).expect("there").ino;
    let start = thread_seconds();
    for i in 0..WRITES {
        let at = i % 1000 * 4096;
        main.prepare_write(ino, at..at + 4096, Stamp::Change)
            .expect("prepared");
    }
    let write = per(WRITES, start);
    [create, write]
}

fn main() {
    let rounds = std::env::args()
        .nth(1)
        .map_or(9, |n| n.parse().expect("a number"));
    let mut all: [[Vec<f64>; 2]; 2] = Default::default();
    for _ in 0..rounds {
        for with_log in [false, true] {
            for (list, ns) in all[usize::from(with_log)].iter_mut().zip(measure(with_log)) {
                list.push(ns);
            }
        }
    }
    let median = |list: &mut Vec<f64>| {
        list.sort_by(f64::total_cmp);
        list[list.len() / 2]
    };
    let [mut without, mut with] = all;
    for (at, what) in ["create", "metadata of a write of 4 KiB"]
        .into_iter()
        .enumerate()
    {
        let (without, with) = (median(&mut without[at]), median(&mut with[at]));
        let percent = (with / without - 1.0) * 100.0;
        println!("{what}: {without:.0} ns without, {with:.0} ns with the log: {percent:+.1} %");
    }
}
