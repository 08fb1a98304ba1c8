//! What a fault costs, next to the faults of the kernel in the same run.
//!
//! Each round measures every row once, so a noisy neighbour hits all of them; the medians of all
//! rounds are printed, and their ratio to a minor fault of the kernel.
//!
//! `cargo run --release -p cache --example window_faults -- [--one-cpu]`

#[path = "../tests/small/mod.rs"]
#[allow(dead_code, reason = "tests use more of it")]
mod small;

use block::Mem;
use cache::window::{Access, Config, Mapping, PAGE_BYTES, Windows};
use clap::Parser;
use small::{File, Options, PAGE};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::time::Instant;

/// Pages that a row touches in a round.
const PAGES: u64 = 512;

#[derive(Parser)]
#[command(about = "Measures faults of windows against faults of the kernel")]
struct Args {
    /// Rounds
    #[arg(long, default_value_t = 21)]
    rounds: usize,
    /// Run everything on one processor: a fault then costs no wake-up across processors
    #[arg(long)]
    one_cpu: bool,
}

/// Name, and nanoseconds for each page in each round.
type Row = (&'static str, Vec<f64>);

fn main() {
    let args = Args::parse();
    if args.one_cpu {
        let mut one = rustix::thread::CpuSet::new();
        one.set(0);
        rustix::thread::sched_setaffinity(None, &one).expect("a processor 0");
    }
    let windows = Windows::start(&Config::default()).expect("userfaultfd");
    let mut rows: Vec<Row> = Vec::new();
    for _ in 0..args.rounds {
        kernel(&mut rows);
        window(&windows, &mut rows);
        clusters(&windows, &mut rows);
    }
    let minor = median(
        &rows
            .iter()
            .find(|(name, _)| *name == MINOR)
            .expect("a row")
            .1,
    );
    println!("{:48} {:>9} {:>8}", "per page, median", "us", "ratio");
    for (name, samples) in &rows {
        let ns = median(samples);
        println!("{name:48} {:9.2} {:8.1}", ns / 1000.0, ns / minor);
    }
}

const MINOR: &str = "kernel: minor fault, store, page in the file";

fn kernel(rows: &mut Vec<Row>) {
    let bytes = PAGES as usize * PAGE_BYTES;
    let anonymous = Kernel::map(None, bytes);
    touch(
        rows,
        "kernel: first store, anonymous",
        anonymous.0,
        Access::Store,
    );
    touch(rows, "mapped: store", anonymous.0, Access::Store);
    let file = rustix::fs::memfd_create("faults", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
    rustix::fs::ftruncate(&file, bytes as u64).expect("a sparse file");
    let first = Kernel::map(Some(&file), bytes);
    touch(
        rows,
        "kernel: first store, shared memory",
        first.0,
        Access::Store,
    );
    let second = Kernel::map(Some(&file), bytes);
    touch(rows, MINOR, second.0, Access::Store);
}

fn window(windows: &Arc<Windows>, rows: &mut Vec<Row>) {
    let file = file(windows, 1);
    let mut read = vec![0; (PAGES * PAGE) as usize];
    file.read(0, &mut read).expect("memory");
    let mapping = file.all();
    let at = base(&mapping);
    touch(rows, "window: load, page in the pool", at, Access::Read);
    touch(rows, "window: first store, page mapped", at, Access::Store);
    file.sweep();
    touch(rows, "window: load, page in the window", at, Access::Read);
    evict(&file);
    touch(rows, "window: store, page in the pool", at, Access::Store);
    evict(&file);
    file.drain_pool().expect("memory");
    time(rows, "window: prefault, page on the device", || {
        mapping
            .prefault(0..mapping.len(), Access::Read)
            .expect("memory");
    });
    file.sweep();
    time(rows, "window: prefault, page in the window", || {
        mapping
            .prefault(0..mapping.len(), Access::Read)
            .expect("memory");
    });
    time(rows, "window: evict clean pages, 64 at once", || {
        evict(&file)
    });
}

fn clusters(windows: &Arc<Windows>, rows: &mut Vec<Row>) {
    let file = file(windows, 16);
    let mut read = vec![0; (PAGES * PAGE) as usize];
    file.read(0, &mut read).expect("memory");
    let mapping = file.all();
    let name = "window: loads in order, clusters of 16, in the pool";
    touch(rows, name, base(&mapping), Access::Read);
}

fn file(windows: &Arc<Windows>, cluster: u64) -> Arc<File> {
    let mut options = Options::new(PAGES);
    (options.cluster, options.frames) = (cluster, PAGES as usize);
    options.mapped_max = 2 * PAGES as usize;
    File::new(windows, Arc::new(Mem::new(PAGES * PAGE, 4096)), options)
}

/// A latch may be held for a moment after its page can be touched.
fn evict(file: &File) {
    let mut left = PAGES as usize;
    while left > 0 {
        left -= file.evict(left);
    }
}

fn base(mapping: &Mapping) -> NonNull<u8> {
    NonNull::new(mapping.as_ptr()).expect("an address")
}

fn touch(rows: &mut Vec<Row>, name: &'static str, base: NonNull<u8>, access: Access) {
    time(rows, name, || {
        for page in 0..PAGES as usize {
            // SAFETY: both kinds of mapping have that many pages.
            unsafe {
                let at = base.add(page * PAGE_BYTES);
                match access {
                    Access::Read => _ = at.read_volatile(),
                    Access::Store => at.write_volatile(1),
                }
            }
        }
    });
}

fn time(rows: &mut Vec<Row>, name: &'static str, mut work: impl FnMut()) {
    let start = Instant::now();
    work();
    let ns = start.elapsed().as_nanos() as f64 / PAGES as f64;
    match rows.iter_mut().find(|(known, _)| *known == name) {
        Some((_, samples)) => samples.push(ns),
        None => rows.push((name, vec![ns])),
    }
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// A mapping that the kernel serves.
struct Kernel(NonNull<u8>, usize);

impl Kernel {
    fn map(file: Option<&std::os::fd::OwnedFd>, bytes: usize) -> Kernel {
        use std::os::fd::AsRawFd;
        let (flags, fd) = match file {
            Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
        };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping aliases nothing; pages stay small so that each is a fault.
        let at = unsafe {
            let at = libc::mmap(null_mut(), bytes, protection, flags, fd, 0);
            assert!(at != libc::MAP_FAILED, "no memory to map");
            libc::madvise(at, bytes, libc::MADV_NOHUGEPAGE);
            at
        };
        Kernel(NonNull::new(at.cast()).expect("an address"), bytes)
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: its own mapping, not used any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), self.1) };
    }
}
