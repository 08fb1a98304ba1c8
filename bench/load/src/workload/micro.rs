//! `micro`, modeled on Ousterhout, "Why Aren't Operating Systems Getting Faster As Fast as
//! Hardware?" (USENIX Summer 1990), as far as it concerns storage: the cost of one system call, one
//! context switch and one small file.
//!
//! Each row is repeated until its duration is long enough for the clock, and reports means: wall
//! time and CPU time (user and system, of this process and of the child that takes part). The
//! switch row measures a round trip of one byte through two pipes: two switches, and a read and a
//! write on each side.
//!
//! Differences from the original: the system call is `getppid`, which no library caches; pinning to
//! one CPU and to two are separate rows, because the two differ more than machines do.

use bench_core::files::{Files, Open};
use bench_core::{Error, Result};
use rustix::process::{Pid, getppid};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Sizes of the small and the large file in bytes.
const SMALL: usize = 1 << 10;
const LARGE: usize = 10 << 20;
/// Size of one read or write in bytes.
const BLOCK: usize = 64 << 10;

/// Cost of one operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the operation.
    pub what: String,
    /// Number of repetitions.
    pub count: u64,
    /// Mean wall time in microseconds.
    pub wall_us: f64,
    /// Mean user and system time together, in microseconds.
    pub cpu_us: f64,
}

/// Runs every row for at least `long_enough` each; files are created on `files` and removed.
///
/// # Errors
/// [`Error::Files`] for errors of the target, [`Error::Worker`] if the child does not start.
pub fn run(files: &dyn Files, long_enough: Duration) -> Result<Vec<Row>> {
    let mut rows = vec![repeated("system call", long_enough, || {
        std::hint::black_box(getppid());
        Ok(())
    })?];
    rows.extend(switches(long_enough)?);
    rows.extend(open_close(files, long_enough)?);
    for (what, bytes) in [
        ("create-delete 1 KiB", SMALL),
        ("create-delete 10 MiB", LARGE),
    ] {
        rows.push(create_delete(files, what, bytes, long_enough)?);
    }
    Ok(rows)
}

/// Repeats `work` in growing batches until `long_enough` has passed.
fn repeated(
    what: &str,
    long_enough: Duration,
    mut work: impl FnMut() -> Result<()>,
) -> Result<Row> {
    work()?;
    let (began, cpu) = (Instant::now(), cpu_ns(None));
    let (mut count, mut batch) = (0, 1);
    // At least one batch, even if the machine descheduled this thread for longer than that.
    loop {
        for _ in 0..batch {
            work()?;
        }
        count += batch;
        batch = (batch * 2).min(10_000);
        if began.elapsed() >= long_enough {
            break;
        }
    }
    let wall = began.elapsed().as_nanos() as f64;
    let cpu = (cpu_ns(None) - cpu) as f64;
    Ok(Row {
        what: what.to_owned(),
        count,
        wall_us: wall / count as f64 / 1e3,
        cpu_us: cpu / count as f64 / 1e3,
    })
}

/// Reads the CPU time of this process or of another.
fn cpu_ns(of: Option<Pid>) -> u64 {
    match of {
        None => {
            let now = clock_gettime(ClockId::ProcessCPUTime);
            now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
        }
        // The first field of schedstat is the CPU time of the only thread, in nanoseconds.
        Some(pid) => std::fs::read_to_string(format!("/proc/{pid}/schedstat"))
            .ok()
            .and_then(|text| text.split(' ').next()?.parse().ok())
            .unwrap_or(0),
    }
}

/// Measures a byte's round trip to a child, on one CPU and on two.
fn switches(long_enough: Duration) -> Result<Vec<Row>> {
    let allowed = sched_getaffinity(None).map_err(|e| worker(e.into()))?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let Some(first) = cpus.next() else {
        return Ok(Vec::new());
    };
    let mut rows = vec![ping_pong(
        "round trip, one processor",
        first,
        first,
        long_enough,
    )];
    if let Some(second) = cpus.next() {
        rows.push(ping_pong(
            "round trip, two processors",
            first,
            second,
            long_enough,
        ));
    }
    sched_setaffinity(None, &allowed).map_err(|e| worker(e.into()))?;
    rows.into_iter().collect()
}

fn ping_pong(what: &str, own: usize, childs: usize, long_enough: Duration) -> Result<Row> {
    let mut child = Echo::start().map_err(worker)?;
    let pin = |pid: Option<Pid>, cpu: usize| {
        let mut one = CpuSet::new();
        one.set(cpu);
        sched_setaffinity(pid, &one).map_err(|e| worker(e.into()))
    };
    let pid = Pid::from_child(&child.0);
    pin(Some(pid), childs)?;
    pin(None, own)?;
    child.round_trip().map_err(worker)?;
    let before = cpu_ns(Some(pid));
    let mut row = repeated(what, long_enough, || child.round_trip().map_err(worker))?;
    row.cpu_us += (cpu_ns(Some(pid)) - before) as f64 / row.count as f64 / 1e3;
    Ok(row)
}

/// A child that echoes its input: `cat`, which does one read and one write per byte.
struct Echo(Child);

impl Echo {
    fn start() -> io::Result<Echo> {
        let mut cat = Command::new("cat");
        cat.stdin(Stdio::piped()).stdout(Stdio::piped());
        Ok(Echo(cat.spawn()?))
    }

    fn round_trip(&mut self) -> io::Result<()> {
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        self.0.stdin.as_mut().ok_or_else(gone)?.write_all(b"x")?;
        self.0
            .stdout
            .as_mut()
            .ok_or_else(gone)?
            .read_exact(&mut [0])
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // The child ends at the end of its input.
        let _ = self.0.wait();
    }
}

fn worker(source: io::Error) -> Error {
    Error::Worker {
        arm: "micro".into(),
        detail: source.to_string(),
    }
}

/// Measures opening and closing a file, with a path of one component and of four.
fn open_close(files: &dyn Files, long_enough: Duration) -> Result<Vec<Row>> {
    let failed = |call, path: &str| {
        let (target, path) = (files.name(), path.to_owned());
        move |source| Error::on_files(target, call, &path, source)
    };
    let folders = ["micro", "micro/a", "micro/a/b"];
    for folder in folders {
        files.mkdir(folder).map_err(failed("mkdir", folder))?;
    }
    let mut rows = Vec::new();
    for (what, path) in [
        ("open-close, 1 component", "micro.file"),
        ("open-close, 4 components", "micro/a/b/file"),
    ] {
        files
            .open(path, Open::CREATE)
            .map_err(failed("creat", path))?;
        rows.push(repeated(what, long_enough, || {
            files
                .open(path, Open::READ)
                .map(drop)
                .map_err(failed("open", path))
        })?);
        files.unlink(path).map_err(failed("unlink", path))?;
    }
    for folder in folders.iter().rev() {
        files.rmdir(folder).map_err(failed("rmdir", folder))?;
    }
    Ok(rows)
}

/// Measures a compiler's temporary file: created and written, opened again and read, removed.
fn create_delete(
    files: &dyn Files,
    what: &str,
    bytes: usize,
    long_enough: Duration,
) -> Result<Row> {
    let path = "micro.temporary";
    let mut text = vec![0; bytes.min(BLOCK)];
    bench_core::rng::Rng::new(bytes as u64).fill(&mut text);
    let mut found = vec![0; text.len()];
    let failed = |call| {
        let (target, path) = (files.name(), path.to_owned());
        move |source| Error::on_files(target, call, &path, source)
    };
    repeated(what, long_enough, || {
        let file = files.open(path, Open::CREATE).map_err(failed("creat"))?;
        for at in (0..bytes).step_by(text.len()) {
            file.write_at(at as u64, &text).map_err(failed("write"))?;
        }
        drop(file);
        let file = files.open(path, Open::READ).map_err(failed("open"))?;
        for at in (0..bytes).step_by(text.len()) {
            let got = file
                .read_at(at as u64, &mut found)
                .map_err(failed("read"))?;
            if got != text.len() || found != text {
                return Err(Error::Verify {
                    arm: files.name(),
                    offset: at as u64,
                });
            }
        }
        drop(file);
        files.unlink(path).map_err(failed("unlink"))
    })
}
