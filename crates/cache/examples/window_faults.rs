//! Measures the cost of a fault in a mapping of a cached file, next to faults of the kernel in the
//! same run. The device is memory, so the cost is that of the cache.
//!
//! Each round measures every row once, so that background load affects all of them; prints the
//! medians of all rounds, and their ratio to a minor fault of the kernel.
//!
//! `cargo run --release -p evfs-cache --example window_faults -- [--one-cpu]`

use block_testing::Mem;
use cache::{Access, Cache, Config, DEVICE_FILE, DevicePager, Mapping, OpenFile, Session, Volume};
use clap::Parser;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::time::Instant;

const PAGE_BYTES: usize = 4096;
/// Pages accessed per row and round.
const PAGES: u64 = 512;

#[derive(Parser)]
#[command(about = "Compare the cost of faults in cache windows with faults of the kernel")]
struct Args {
    /// Number of rounds
    #[arg(long, default_value_t = 21)]
    rounds: usize,
    /// Run everything on one CPU, so that a fault costs no wake-up across CPUs
    #[arg(long)]
    one_cpu: bool,
}

/// Name, and nanoseconds per page in each round: elapsed time, and CPU time of all threads of the
/// process.
type Row = (&'static str, Vec<f64>, Vec<f64>);

fn main() {
    let args = Args::parse();
    if args.one_cpu {
        let mut one = rustix::thread::CpuSet::new();
        one.set(0);
        rustix::thread::sched_setaffinity(None, &one).expect("a processor 0");
    }
    let mut bench = Bench::new();
    let mut rows: Vec<Row> = Vec::new();
    for _ in 0..args.rounds {
        kernel(&mut rows);
        bench.alone(&mut rows);
        bench.clusters(&mut rows);
        bench.whole(&mut rows);
    }
    let is_minor = |row: &&Row| row.0 == MINOR;
    let minor = median(&rows.iter().find(is_minor).expect("a row").1);
    println!(
        "{:48} {:>8} {:>8} {:>8} {:>8}",
        "per page, medians", "us", "least", "ratio", "CPU us"
    );
    for (name, wall, cpu) in &rows {
        let us = median(wall) / 1000.0;
        let least = wall.iter().copied().fold(f64::INFINITY, f64::min) / 1000.0;
        let (ratio, cpu) = (median(wall) / minor, median(cpu) / 1000.0);
        println!("{name:48} {us:8.2} {least:8.2} {ratio:8.1} {cpu:8.2}");
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
    touch(rows, "kernel: mapped: store", anonymous.0, Access::Store);
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

/// A file that fits into its cache.
struct Bench {
    cache: Arc<Cache>,
    _volume: Arc<Volume>,
    session: Session,
    open: OpenFile,
}

impl Bench {
    fn new() -> Bench {
        let bytes = PAGES * PAGE_BYTES as u64;
        let cache = Cache::new(Config::new(64 << 20)).expect("a cache");
        let disk = Arc::new(Mem::new(bytes, 4096));
        let pager = DevicePager::new(disk).expect("pages fit");
        let volume = cache.volume(Arc::new(pager)).expect("a volume");
        let vnode = volume.vnode(DEVICE_FILE, bytes);
        Bench {
            session: volume.session().expect("a session"),
            open: volume.open(&vnode),
            _volume: volume,
            cache,
        }
    }

    /// Accesses each page individually, as in random access.
    fn alone(&mut self, rows: &mut Vec<Row>) {
        self.set_read_ahead(false);
        self.empty();
        let mapping = self.map();
        let at = base(&mapping);
        touch(rows, "first load, page on the device", at, Access::Read);
        touch(
            rows,
            "first store, page mapped for loads",
            at,
            Access::Store,
        );
        touch(rows, "mapped: store", at, Access::Store);
        let second = self.map();
        touch(
            rows,
            "refault: load, page in the window",
            base(&second),
            Access::Read,
        );
        drop((mapping, second));
        self.fill();
        let mapping = self.map();
        touch(
            rows,
            "first load, page in the pool",
            base(&mapping),
            Access::Read,
        );
        drop(mapping);
        self.fill();
        let mapping = self.map();
        touch(
            rows,
            "first store, page in the pool",
            base(&mapping),
            Access::Store,
        );
    }

    /// Accesses the pages in order, so that 16 are loaded at a time.
    fn clusters(&mut self, rows: &mut Vec<Row>) {
        self.set_read_ahead(true);
        self.empty();
        let mapping = self.map();
        let name = "loads in order, pages on the device";
        touch(rows, name, base(&mapping), Access::Read);
        drop(mapping);
        self.fill();
        let mapping = self.map();
        touch(
            rows,
            "loads in order, pages in the pool",
            base(&mapping),
            Access::Read,
        );
    }

    /// Handles many pages in one call.
    fn whole(&mut self, rows: &mut Vec<Row>) {
        self.empty();
        let mapping = self.map();
        let prefault = |access| mapping.prefault(0..mapping.len(), access).expect("memory");
        time(rows, "prefault for loads, pages on the device", || {
            prefault(Access::Read)
        });
        time(rows, "prefault for stores, pages mapped for loads", || {
            prefault(Access::Store)
        });
        self.session.flush(&mut self.open).expect("memory");
        time(rows, "evict clean pages", || {
            while self.cache.shrink(0) > 0 {
                std::thread::yield_now();
            }
        });
    }

    fn map(&self) -> Mapping {
        let bytes = 0..PAGES * PAGE_BYTES as u64;
        self.open.map(bytes, Access::Store).expect("userfaultfd")
    }

    fn set_read_ahead(&self, on: bool) {
        let mut attributes = self.open.vnode().attributes();
        attributes.no_read_ahead = !on;
        self.open.vnode().set_attributes(attributes);
    }

    /// Evicts all pages.
    fn empty(&mut self) {
        self.session.flush(&mut self.open).expect("memory");
        while self.cache.shrink(0) > 0 {
            std::thread::yield_now();
        }
    }

    /// Loads every page into the pool.
    fn fill(&mut self) {
        self.empty();
        let mut all = vec![0; PAGES as usize * PAGE_BYTES];
        self.session
            .read(&mut self.open, 0, &mut all)
            .expect("memory");
    }
}

fn base(mapping: &Mapping) -> NonNull<u8> {
    NonNull::new(mapping.as_ptr()).expect("an address")
}

fn touch(rows: &mut Vec<Row>, name: &'static str, base: NonNull<u8>, access: Access) {
    time(rows, name, || {
        for page in 0..PAGES as usize {
            // SAFETY: both kinds of mapping have `PAGES` pages.
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
    let (start, cpu) = (Instant::now(), cpu_ns());
    work();
    let wall = start.elapsed().as_nanos() as f64 / PAGES as f64;
    let cpu = (cpu_ns() - cpu) / PAGES as f64;
    match rows.iter_mut().find(|(known, ..)| *known == name) {
        Some((_, walls, cpus)) => {
            walls.push(wall);
            cpus.push(cpu);
        }
        None => rows.push((name, vec![wall], vec![cpu])),
    }
}

/// Returns the CPU time that the process has used, in nanoseconds.
fn cpu_ns() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// A mapping whose faults the kernel serves.
struct Kernel(NonNull<u8>, usize);

impl Kernel {
    fn map(file: Option<&std::os::fd::OwnedFd>, bytes: usize) -> Kernel {
        use std::os::fd::AsRawFd;
        let (flags, fd) = match file {
            Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
        };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping aliases nothing; large pages are disabled so that each page faults.
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
        // SAFETY: its own mapping, which is no longer used.
        unsafe { libc::munmap(self.0.as_ptr().cast(), self.1) };
    }
}
