//! Mixed mode: a program writes a page with `write` and at once reads it through a mapping, one
//! page after the other, repeatedly over a file of a few MiB.
//!
//! ```text
//! cargo run --release -p evfs-cache --example mixed -- [--dir DIR] [--mib 4] [--rounds 15]
//! ```
//!
//! With a unified cache, the load finds the written page. With two caches, one for `read` and
//! `write` and one for mappings, as systems had before caches were unified, written data must be
//! flushed from the one and dropped from the other before it becomes visible. The rows:
//!
//! * `unified`: this cache; a session's write, then loads through a mapping of the same file.
//! * `split, disk in memory`: two of these caches on one device, so that both sides run the same
//!   code: a session of the first writes the page to the device, a session of the second drops it,
//!   and the load through a mapping of the second fetches it. No step sleeps, and the device takes
//!   no time: this is the software's own cost of the split.
//! * `split, file`: the same on a file, bypassing the kernel's cache, with or without a flush of
//!   the device for each page.
//! * `kernel, unified`: pwrite and a load through mmap, both with the kernel's page cache.
//! * `kernel, split`: pwrite to a descriptor with O_DIRECT and O_DSYNC, or O_DIRECT alone, in place
//!   of the separate cache, then a load through mmap, whose page the kernel has dropped.
//!
//! Each round measures every row once, so that background load affects all of them. Prints medians,
//! and the median of the rounds' ratios to `unified` with a confidence interval of at least 95 %,
//! by order statistics.

use block::BlockDevice;
use block_testing::Mem;
use cache::{Access, Cache, Config, DEVICE_FILE, DevicePager, Mapping, OpenFile, Session, Volume};
use clap::Parser;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::time::Instant;

const PAGE: usize = 4096;

#[derive(Parser)]
#[command(about = "Compare a write and a mapped read of each page, unified against split")]
struct Args {
    /// Directory for the files; must be on a disk, not in memory
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Size of the file in MiB
    #[arg(long, default_value_t = 4)]
    mib: usize,
    /// Number of rounds
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Number of pages per round for rows with a disk; other rows process the whole file
    #[arg(long, default_value_t = 128)]
    disk_pages: usize,
}

/// A way to write a page and make its mapped bytes current.
trait Way {
    fn name(&self) -> &'static str;
    /// Returns whether each page accesses a disk.
    fn is_slow(&self) -> bool;
    fn write(&mut self, page: usize, data: &[u8; PAGE]);
    fn mapped(&self) -> NonNull<u8>;
}

fn main() {
    let args = Args::parse();
    let bytes = args.mib << 20;
    let temp = tempfile::tempdir_in(&args.dir).expect("a directory to write in");
    let file = |name| new_file(&temp.path().join(name), bytes);
    let memory = || Arc::new(Mem::new(bytes as u64, 4096)) as Arc<dyn BlockDevice>;
    let disk = |path: &Path| {
        let options = path_file::Options::default();
        path_file::FileDevice::open(path, &options).expect("the file opens") as Arc<dyn BlockDevice>
    };
    let (one, two) = (file("one"), file("two"));
    let (kernel, split) = (file("kernel"), file("split"));
    let mut ways: Vec<Box<dyn Way>> = vec![
        Box::new(Unified::new(memory())),
        Box::new(Split::new("split, disk in memory", memory()).flushing()),
        Box::new(Split::new("split, file", disk(&one)).slow()),
        Box::new(
            Split::new("split, file, flushed", disk(&two))
                .flushing()
                .slow(),
        ),
        Box::new(Kernel::new("kernel, unified", &kernel, 0)),
        Box::new(Kernel::new("kernel, split", &split, libc::O_DIRECT)),
        Box::new(Kernel::new(
            "kernel, split, flushed",
            &split,
            libc::O_DIRECT | libc::O_DSYNC,
        )),
    ];
    let mut rows: Vec<Vec<Cost>> = ways.iter().map(|_| Vec::new()).collect();
    for round in 0..=args.rounds {
        for (way, row) in ways.iter_mut().zip(&mut rows) {
            let pages = bytes / PAGE;
            let pages = if way.is_slow() {
                pages.min(args.disk_pages)
            } else {
                pages
            };
            let cost = round_of(&mut **way, pages, round as u8 + 1);
            // The first round creates pages and faults that later rounds reuse.
            if round > 0 {
                row.push(cost);
            }
        }
    }
    print(&ways, &rows);
}

/// Cost in microseconds per page.
#[derive(Clone, Copy)]
struct Cost {
    wall: f64,
    /// Of all threads of this process.
    cpu: f64,
}

/// Returns the CPU time that the process has used, in microseconds.
fn cpu_us() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

fn round_of(way: &mut dyn Way, pages: usize, fill: u8) -> Cost {
    let mut data = Box::new([fill; PAGE]);
    let mut out = vec![0u8; PAGE];
    let (started, cpu) = (Instant::now(), cpu_us());
    for page in 0..pages {
        data[..8].copy_from_slice(&(page as u64).to_ne_bytes());
        way.write(page, &data);
        // SAFETY: the page lies in the mapping, and no thread writes to it now.
        unsafe {
            let from = way.mapped().add(page * PAGE);
            std::ptr::copy_nonoverlapping(from.as_ptr(), out.as_mut_ptr(), PAGE);
        }
        assert!(out == *data, "{}: page {page} is an old one", way.name());
    }
    let wall = started.elapsed().as_secs_f64() * 1e6 / pages as f64;
    let cpu = (cpu_us() - cpu) / pages as f64;
    Cost { wall, cpu }
}

fn print(ways: &[Box<dyn Way>], rows: &[Vec<Cost>]) {
    println!(
        "{:24} {:>9} {:>9} {:>8} {:>18} {:>9} {:>8} {:>18}",
        "per page, medians", "us", "least", "ratio", "95 %", "CPU us", "ratio", "95 %"
    );
    for (way, row) in ways.iter().zip(rows) {
        let wall = Column::of(row, &rows[0], |cost| cost.wall);
        let cpu = Column::of(row, &rows[0], |cost| cost.cpu);
        println!(
            "{:24} {:9.2} {:9.2} {:8.1} [{:7.1}, {:7.1}] {:9.2} {:8.1} [{:7.1}, {:7.1}]",
            way.name(),
            wall.median,
            wall.least,
            wall.ratio,
            wall.low,
            wall.high,
            cpu.median,
            cpu.ratio,
            cpu.low,
            cpu.high,
        );
    }
}

struct Column {
    median: f64,
    least: f64,
    ratio: f64,
    low: f64,
    high: f64,
}

impl Column {
    /// Returns the statistics of one figure over all rounds, and of its ratios to that of `unified`
    /// in the same round.
    fn of(row: &[Cost], unified: &[Cost], figure: impl Fn(&Cost) -> f64) -> Column {
        let ratios = row
            .iter()
            .zip(unified)
            .map(|(us, one)| figure(us) / figure(one));
        let mut ratios: Vec<f64> = ratios.collect();
        let (low, high) = interval(&mut ratios);
        let mut sorted: Vec<f64> = row.iter().map(figure).collect();
        sorted.sort_by(f64::total_cmp);
        Column {
            median: sorted[sorted.len() / 2],
            least: sorted[0],
            ratio: ratios[ratios.len() / 2],
            low,
            high,
        }
    }
}

/// Sorts the values, and returns two of them, symmetric in rank, that enclose the median with 95 %.
fn interval(values: &mut [f64]) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    let (mut below, mut term, mut rank) = (0.0, 0.5f64.powi(n as i32), 0);
    // The probability that at most `rank` of the values lie below the median, at both ends.
    while 2.0 * (below + term) <= 0.05 {
        below += term;
        term *= (n - rank) as f64 / (rank + 1) as f64;
        rank += 1;
    }
    let rank = rank.saturating_sub(1);
    (values[rank], values[n - 1 - rank])
}

/// A file in one cache.
struct Side {
    _volume: Arc<Volume>,
    session: Session,
    open: OpenFile,
}

impl Side {
    fn new(device: &Arc<dyn BlockDevice>) -> Side {
        let size = device.info().size;
        // Large enough that dirty pages never reach a threshold.
        let cache = Cache::new(Config::new(16 * size.max(4 << 20))).expect("a cache");
        let pager = DevicePager::new(Arc::clone(device)).expect("pages fit");
        let volume = cache.volume(Arc::new(pager)).expect("a volume");
        Side {
            session: volume.session().expect("a session"),
            open: volume.open(&volume.vnode(DEVICE_FILE, size)),
            _volume: volume,
        }
    }

    fn write(&mut self, page: usize, data: &[u8]) {
        let at = (page * PAGE) as u64;
        self.session
            .write(&mut self.open, at, data)
            .expect("nothing fails here");
    }

    fn map(&self) -> Mapping {
        let all = 0..self.open.vnode().size();
        self.open.map(all, Access::Read).expect("userfaultfd")
    }
}

fn base(mapping: &Mapping) -> NonNull<u8> {
    NonNull::new(mapping.as_ptr()).expect("an address")
}

struct Unified {
    side: Side,
    mapping: Mapping,
}

impl Unified {
    fn new(device: Arc<dyn BlockDevice>) -> Unified {
        let side = Side::new(&device);
        let mapping = side.map();
        Unified { side, mapping }
    }
}

impl Way for Unified {
    fn name(&self) -> &'static str {
        "unified"
    }

    fn is_slow(&self) -> bool {
        false
    }

    fn write(&mut self, page: usize, data: &[u8; PAGE]) {
        self.side.write(page, data);
    }

    fn mapped(&self) -> NonNull<u8> {
        base(&self.mapping)
    }
}

/// One cache for writes, another for mappings.
struct Split {
    name: &'static str,
    flushes: bool,
    slow: bool,
    writes: Side,
    maps: Side,
    mapping: Mapping,
}

impl Split {
    fn new(name: &'static str, device: Arc<dyn BlockDevice>) -> Split {
        let (writes, maps) = (Side::new(&device), Side::new(&device));
        // Each page is requested individually, so loading others with it would only cost time.
        let mut attributes = maps.open.vnode().attributes();
        attributes.no_read_ahead = true;
        maps.open.vnode().set_attributes(attributes);
        let mapping = maps.map();
        Split {
            name,
            flushes: false,
            slow: false,
            writes,
            maps,
            mapping,
        }
    }

    /// Flushes after each write, instead of writing the page out.
    fn flushing(self) -> Split {
        Split {
            flushes: true,
            ..self
        }
    }

    /// Marks each page as one that accesses a disk.
    fn slow(self) -> Split {
        Split { slow: true, ..self }
    }
}

impl Way for Split {
    fn name(&self) -> &'static str {
        self.name
    }

    fn is_slow(&self) -> bool {
        self.slow
    }

    fn write(&mut self, page: usize, data: &[u8; PAGE]) {
        self.writes.write(page, data);
        let range = (page * PAGE) as u64..((page + 1) * PAGE) as u64;
        let Side { session, open, .. } = &mut self.writes;
        let sent = if self.flushes {
            session.flush(open)
        } else {
            session.write_out(open, range.clone())
        };
        sent.expect("nothing fails here");
        let Side { session, open, .. } = &mut self.maps;
        session.invalidate(open, range).expect("nothing fails here");
    }

    fn mapped(&self) -> NonNull<u8> {
        base(&self.mapping)
    }
}

/// The kernel's page cache.
struct Kernel {
    name: &'static str,
    file: File,
    slow: bool,
    at: NonNull<u8>,
    bytes: usize,
    /// A page buffer with the alignment of O_DIRECT.
    aligned: block::Buf,
}

impl Kernel {
    fn new(name: &'static str, path: &Path, flags: i32) -> Kernel {
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(path);
        let file = file.expect("the file opens");
        let bytes = file.metadata().expect("it is open").len() as usize;
        // SAFETY: a new mapping at a free address aliases nothing.
        let at = unsafe {
            let (read, shared) = (libc::PROT_READ, libc::MAP_SHARED);
            libc::mmap(null_mut(), bytes, read, shared, file.as_raw_fd(), 0)
        };
        assert!(at != libc::MAP_FAILED, "no memory to map");
        let pool = block::BufPool::new(PAGE, 1);
        Kernel {
            name,
            file,
            slow: flags != 0,
            at: NonNull::new(at.cast()).expect("an address"),
            bytes,
            aligned: pool.take(PAGE).expect("there is one"),
        }
    }
}

impl Way for Kernel {
    fn name(&self) -> &'static str {
        self.name
    }

    fn is_slow(&self) -> bool {
        self.slow
    }

    fn write(&mut self, page: usize, data: &[u8; PAGE]) {
        self.aligned.copy_from_slice(data);
        let written = self.file.write_all_at(&self.aligned, (page * PAGE) as u64);
        written.expect("the file has room");
    }

    fn mapped(&self) -> NonNull<u8> {
        self.at
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: its own mapping, which is no longer used.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

/// Creates a file of zeros with allocated space.
fn new_file(path: &Path, bytes: usize) -> PathBuf {
    let file = File::create(path).expect("a file");
    file.write_all_at(&vec![0; bytes], 0).expect("space");
    file.sync_all().expect("a disk");
    path.to_owned()
}
