//! Shared by the examples: parsing the arguments, and printing a line for each measurement.

use block::BlockDevice;
use block_testing::Mem;
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::time::Instant;

/// Parses `[FILES] [FILE_OR_DEVICE]`: the number of files and the device; by default in memory.
pub fn arguments(files: u64, memory_bytes: u64) -> (u64, Arc<dyn BlockDevice>) {
    let mut args = std::env::args().skip(1);
    let files = args
        .next()
        .map_or(files, |n| n.parse().expect("a number of files"));
    let device: Arc<dyn BlockDevice> = match args.next() {
        None => Arc::new(Mem::new(memory_bytes, 4096)),
        Some(path) => {
            let options = path_file::Options::default();
            path_file::FileDevice::open(path.as_ref(), &options).expect("the file opens")
        }
    };
    (files, device)
}

/// Runs `work`, which consists of `count` operations, and prints the elapsed time and the CPU time
/// of all threads (including commits) per operation, and the resident memory afterwards and at most.
pub fn rate<T>(what: &str, count: u64, work: impl FnOnce() -> T) -> T {
    // Forgets the largest resident memory so far.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let (start, before) = (Instant::now(), cpu_seconds());
    let result = work();
    let each = start.elapsed().as_secs_f64() / count as f64;
    let busy = (cpu_seconds() - before) / count as f64;
    println!(
        "{what:50} {:10.0} a second, {:9.2} us each, {:9.2} us of CPU, {:6} MiB, at most {}",
        1.0 / each,
        each * 1e6,
        busy * 1e6,
        resident_kib("VmRSS:") >> 10,
        resident_kib("VmHWM:") >> 10,
    );
    result
}

/// Returns the CPU time of all threads so far.
pub fn cpu_seconds() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

fn resident_kib(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0)
}
