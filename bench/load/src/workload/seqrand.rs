//! `seqrand`, modeled on IOzone 3.489 in its throughput mode: threads with a file each, or with one
//! shared file, write it, rewrite it, read it, reread it, and read and write it at random.
//!
//! ```text
//!   open, fill buffers ──barrier──► records ──► first thread done stops others ──► rest, untimed
//!                          │ each thread's own time │
//!                          │ from the release to the last end, with close and sync if requested │
//! ```
//!
//! Two sums, which differ and are both correct: **children** is the sum of the threads' rates by
//! their own clocks; **parent** is the number of bytes moved when the first thread was done, over
//! the duration of the whole phase. Random phases access every record exactly once, in an order
//! from the seed that is the same in every thread and every run.
//!
//! Differences from the original: threads instead of processes, times in nanoseconds, data that is
//! incompressible and differs in every block, and no pause of seconds between phases.

mod access;

use super::mersenne::Mersenne;
use access::Way;
use bench_core::files::{Files, Open};
use bench_core::rng::Rng;
use bench_core::{Direction, Error, Result};
use serde::{Deserialize, Serialize};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Distance in records of the stride phase, as in the original.
const STRIDE: u64 = 17;
const RECORD_MAX: u64 = 64 << 20;
const THREADS_MAX: usize = 1024;

/// One pass over the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Creates the files.
    Write,
    /// Overwrites the files sequentially.
    Rewrite,
    /// Reads the files sequentially.
    Read,
    /// Reads the files sequentially again.
    Reread,
    /// Reads every record once, in an order from the seed.
    RandomRead,
    /// Overwrites every record once, in an order from the seed.
    RandomWrite,
    /// Reads the records from last to first.
    BackwardRead,
    /// Reads every 17th record, then their successors, until all records were read.
    StrideRead,
    /// Odd threads write and even ones read, at random.
    Mixed,
}

impl Phase {
    /// All phases in the order of the original.
    pub const ALL: [Phase; 9] = [
        Phase::Write,
        Phase::Rewrite,
        Phase::Read,
        Phase::Reread,
        Phase::RandomRead,
        Phase::BackwardRead,
        Phase::StrideRead,
        Phase::Mixed,
        Phase::RandomWrite,
    ];

    /// Returns the name for tables.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Write => "write",
            Phase::Rewrite => "rewrite",
            Phase::Read => "read",
            Phase::Reread => "reread",
            Phase::RandomRead => "random-read",
            Phase::RandomWrite => "random-write",
            Phase::BackwardRead => "backward-read",
            Phase::StrideRead => "stride-read",
            Phase::Mixed => "mixed",
        }
    }

    fn in_order(self) -> bool {
        use Phase::{Read, Reread, Rewrite, Write};
        matches!(self, Write | Rewrite | Read | Reread)
    }

    /// Reports whether all threads read.
    pub fn all_read(self) -> bool {
        !self.all_write() && self != Phase::Mixed
    }

    /// Reports whether all threads write.
    pub fn all_write(self) -> bool {
        self.writes(0)
    }

    fn writes(self, thread: usize) -> bool {
        match self {
            Phase::Write | Phase::Rewrite | Phase::RandomWrite => true,
            Phase::Mixed => thread % 2 == 1,
            _ => false,
        }
    }

    /// Returns the records of a file in the order of this phase.
    fn order(self, records: u64, seed: u32) -> Vec<u64> {
        match self {
            Phase::RandomRead | Phase::RandomWrite | Phase::Mixed => permutation(records, seed),
            Phase::BackwardRead => (0..records).rev().collect(),
            Phase::StrideRead => (0..STRIDE)
                .flat_map(|first| (first..records).step_by(STRIDE as usize))
                .collect(),
            _ => (0..records).collect(),
        }
    }
}

fn permutation(records: u64, seed: u32) -> Vec<u64> {
    let mut order: Vec<u64> = (0..records).collect();
    let mut numbers = Mersenne::new(seed);
    for i in (1..records).rev() {
        let wide = u64::from(numbers.draw()) << 32 | u64::from(numbers.draw());
        order.swap(i as usize, (wide % (i + 1)) as usize);
    }
    order
}

/// Method of transferring records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// `pread` and `pwrite` of one record each.
    #[default]
    Calls,
    /// Copies to and from a shared mapping.
    Mapped,
    /// Like `Mapped`, with an asynchronous msync after each written record.
    MappedAsync,
    /// Like `Mapped`, with a synchronous msync after each written record.
    MappedSync,
    /// Sequential access through a user-space buffer, like the original's fwrite and fread.
    Buffered,
}

/// Parameters of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Number of threads.
    pub threads: usize,
    /// Bytes per file.
    pub file: u64,
    /// Bytes per record.
    pub record: u64,
    /// Whether all threads use one file.
    pub shared: bool,
    /// Whether to bypass every cache above the device.
    pub direct: bool,
    /// Whether every write is on stable storage when it returns.
    pub sync_writes: bool,
    /// Like `sync_writes`, except for the times of the file.
    pub data_sync_writes: bool,
    /// Method of transferring records.
    pub access: Access,
    /// Whether the time of a writing phase includes a sync at its end.
    pub with_sync: bool,
    /// Whether the time of a phase includes closing its files.
    pub with_close: bool,
    /// Whether the first thread to finish stops the clocks of the others. They write their
    /// remaining records untimed, so files are always complete.
    pub stonewall: bool,
    /// Whether to drop the files' cached data before each reading phase, so that reads reach the
    /// device.
    #[serde(default)]
    pub cold: bool,
    /// Whether reads are compared with the written data; the comparison is timed.
    pub verify: bool,
    /// Seed of the random phases' order and of the data.
    pub seed: u32,
}

impl Default for Config {
    /// Returns the size of the published runs: one thread, 100 MiB in records of 64 KiB.
    fn default() -> Config {
        Config {
            threads: 1,
            file: 100 << 20,
            record: 64 << 10,
            shared: false,
            direct: false,
            sync_writes: false,
            data_sync_writes: false,
            access: Access::Calls,
            with_sync: false,
            with_close: false,
            stonewall: true,
            cold: false,
            verify: false,
            seed: 42,
        }
    }
}

impl Config {
    /// Checks whether the parameters are within their limits.
    ///
    /// # Errors
    /// [`Error::Spec`] with the value and its bounds.
    pub fn check(&self) -> Result<()> {
        let refuse = |why: String| Err(Error::Spec(why));
        if !(1..=THREADS_MAX).contains(&self.threads) {
            return refuse(format!(
                "threads is {}, but must be 1 to {THREADS_MAX}",
                self.threads
            ));
        }
        if !(512..=RECORD_MAX).contains(&self.record) || !self.record.is_multiple_of(512) {
            return refuse(format!(
                "record is {} bytes, but must be a multiple of 512 up to {RECORD_MAX}",
                self.record
            ));
        }
        if self.file < self.record || !self.file.is_multiple_of(self.record) {
            return refuse(format!(
                "file is {} bytes, but must be one or more whole records of {}",
                self.file, self.record
            ));
        }
        if self.access != Access::Calls && self.direct {
            return refuse("direct=true needs access=calls".into());
        }
        if self.access == Access::Buffered && self.shared {
            return refuse(
                "access=buffered needs a file that no other thread writes; omit shared=true".into(),
            );
        }
        Ok(())
    }
}

/// Result of one phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseResult {
    pub phase: Phase,
    /// Bytes that each thread had moved when its clock stopped.
    pub bytes: Vec<u64>,
    /// Seconds on each thread's clock.
    pub secs: Vec<f64>,
    /// Seconds from the release to the end of the last thread.
    pub parent_secs: f64,
}

impl PhaseResult {
    /// Sums the threads' rates by their own clocks, in bytes per second.
    pub fn children(&self) -> f64 {
        let rate = |(bytes, secs): (&u64, &f64)| *bytes as f64 / secs;
        self.bytes.iter().zip(&self.secs).map(rate).sum()
    }

    /// Computes the bytes of all threads over the duration of the phase, in bytes per second.
    pub fn parent(&self) -> f64 {
        self.bytes.iter().sum::<u64>() as f64 / self.parent_secs
    }
}

/// Runs phases in the given order. The first must be [`Phase::Write`] unless the files exist. The
/// files remain; [`remove`] removes them.
///
/// # Errors
/// [`Error::Spec`] for invalid parameters, [`Error::Files`] for errors of the target,
/// [`Error::Verify`] for wrong data. Files of a failed phase are left behind.
pub fn run(files: &dyn Files, config: &Config, phases: &[Phase]) -> Result<Vec<PhaseResult>> {
    config.check()?;
    if config.access == Access::Buffered
        && let Some(phase) = phases.iter().find(|p| !p.in_order())
    {
        return Err(Error::Spec(format!(
            "access=buffered needs sequential phases; {} is not sequential",
            phase.name()
        )));
    }
    phases
        .iter()
        .map(|phase| run_phase(files, config, *phase))
        .collect()
}

/// Drops cached data of a run's files, as far as the target can.
///
/// # Errors
/// [`Error::Files`] for any error but `Unsupported`.
pub fn drop_caches(files: &dyn Files, config: &Config) -> Result<()> {
    all_names(config).try_for_each(|name| {
        let forgotten = files
            .open(&name, Open::READ)
            .and_then(|file| file.drop_cache());
        match forgotten {
            Err(e) if e.kind() != std::io::ErrorKind::Unsupported => {
                Err(failed(files, "drop the cache of", &name, e))
            }
            _ => Ok(()),
        }
    })
}

/// Removes the files of a run.
///
/// # Errors
/// [`Error::Files`] for errors of the target.
pub fn remove(files: &dyn Files, config: &Config) -> Result<()> {
    all_names(config).try_for_each(|name| {
        files
            .unlink(&name)
            .map_err(|e| failed(files, "unlink", &name, e))
    })
}

fn all_names(config: &Config) -> impl Iterator<Item = String> {
    let count = if config.shared { 1 } else { config.threads };
    (0..count).map(|n| name(config, n))
}

fn name(config: &Config, thread: usize) -> String {
    if config.shared {
        "seqrand.shared".to_owned()
    } else {
        format!("seqrand.{thread}")
    }
}

fn failed(files: &dyn Files, call: &'static str, path: &str, source: std::io::Error) -> Error {
    Error::on_files(files.name(), call, path, source)
}

/// State shared by the threads of a phase.
struct Shared<'a> {
    files: &'a dyn Files,
    config: &'a Config,
    phase: Phase,
    order: Vec<u64>,
    gate: Barrier,
    /// Set when a thread has finished or failed: the clocks of the others stop.
    stop: AtomicBool,
    began_ns: AtomicU64,
    zero: Instant,
}

fn run_phase(files: &dyn Files, config: &Config, phase: Phase) -> Result<PhaseResult> {
    if config.shared && phase == Phase::Write {
        // A shared file is created once, so that no thread truncates another's data.
        let name = name(config, 0);
        files
            .open(&name, Open::CREATE)
            .map_err(|e| failed(files, "creat", &name, e))?;
    }
    let shared = Shared {
        files,
        config,
        phase,
        order: phase.order(config.file / config.record, config.seed),
        gate: Barrier::new(config.threads),
        stop: AtomicBool::new(false),
        began_ns: AtomicU64::new(0),
        zero: Instant::now(),
    };
    let done: Vec<Result<Clocked>> = std::thread::scope(|scope| {
        let spawn = |n| {
            scope.spawn({
                let shared = &shared;
                move || shared.thread(n)
            })
        };
        let threads: Vec<_> = (0..config.threads).map(spawn).collect();
        let join = |t: std::thread::ScopedJoinHandle<'_, Result<Clocked>>| {
            t.join().unwrap_or_else(|_| {
                Err(Error::Worker {
                    arm: files.name(),
                    detail: format!("it panicked in phase {}", phase.name()),
                })
            })
        };
        threads.into_iter().map(join).collect()
    });
    let done = done.into_iter().collect::<Result<Vec<_>>>()?;
    let last = done.iter().map(|c| c.end_ns).max().unwrap_or(0);
    Ok(PhaseResult {
        phase,
        bytes: done.iter().map(|c| c.bytes).collect(),
        secs: done.iter().map(|c| c.secs).collect(),
        parent_secs: (last - shared.began_ns.load(Relaxed)) as f64 / 1e9,
    })
}

/// Measurements of one thread.
struct Clocked {
    bytes: u64,
    secs: f64,
    end_ns: u64,
}

impl Shared<'_> {
    fn thread(&self, n: usize) -> Result<Clocked> {
        // Every thread must reach the barrier, even after an error: the others wait there.
        let prepared = self.prepare(n);
        self.gate.wait();
        let began = Instant::now();
        let began_ns = began.duration_since(self.zero).as_nanos() as u64;
        // The start time of any thread is good enough, because all are released together.
        let _ = self
            .began_ns
            .compare_exchange(0, began_ns.max(1), Relaxed, Relaxed);
        let done = prepared.and_then(|(way, buffers)| self.records(n, way, buffers, began));
        self.stop.store(true, Relaxed);
        done
    }

    fn prepare(&self, n: usize) -> Result<(Way, Buffers)> {
        let (config, name) = (self.config, name(self.config, n));
        let writes = self.phase.writes(n);
        let how = Open {
            write: writes,
            create: self.phase == Phase::Write && !config.shared,
            truncate: self.phase == Phase::Write && !config.shared,
            direct: config.direct,
            sync: config.sync_writes,
            data_sync: config.data_sync_writes,
            append: false,
        };
        let file = self
            .files
            .open(&name, how)
            .map_err(|e| failed(self.files, "open", &name, e))?;
        let way = Way::new(file, config, Direction::write_if(writes))
            .map_err(|e| failed(self.files, "map", &name, e))?;
        let part = if config.shared { 0 } else { n as u64 };
        Ok((way, Buffers::new(config, part)))
    }

    fn records(
        &self,
        n: usize,
        mut way: Way,
        mut buffers: Buffers,
        began: Instant,
    ) -> Result<Clocked> {
        let (config, name) = (self.config, name(self.config, n));
        let writes = self.phase.writes(n);
        // In a shared file, each thread has its own part of the order, so all records are accessed
        // once.
        let mine = self
            .order
            .iter()
            .enumerate()
            .filter(|(i, _)| !config.shared || i % config.threads == n);
        let mut clocked: Option<(u64, f64)> = None;
        let mut bytes = 0;
        for (_, record) in mine {
            if clocked.is_none() && config.stonewall && self.stop.load(Relaxed) {
                clocked = Some((bytes, began.elapsed().as_secs_f64()));
                if !writes {
                    break;
                }
            }
            let at = record * config.record;
            if writes {
                let data = buffers.data(*record);
                way.write(at, data)
                    .map_err(|e| failed(self.files, "write", &name, e))?;
            } else {
                self.read(&mut way, &name, *record, &mut buffers)?
            }
            bytes += config.record;
        }
        let first = clocked.is_none();
        if writes {
            way.finish(config.with_sync)
                .map_err(|e| failed(self.files, "fsync", &name, e))?;
        }
        if config.with_close {
            drop(way);
        }
        let now = began.elapsed().as_secs_f64();
        // A thread that was not stopped is timed to its end, including sync and close.
        let (bytes, secs) = if first {
            (bytes, now)
        } else {
            clocked.unwrap_or((bytes, now))
        };
        Ok(Clocked {
            bytes,
            secs: secs.max(1e-9),
            end_ns: self.zero.elapsed().as_nanos() as u64,
        })
    }

    fn read(&self, way: &mut Way, name: &str, record: u64, buffers: &mut Buffers) -> Result<()> {
        let at = record * self.config.record;
        let mut have = 0;
        while have < buffers.read().len() {
            let to = &mut buffers.read()[have..];
            match way
                .read(at + have as u64, to)
                .map_err(|e| failed(self.files, "read", name, e))?
            {
                0 => break,
                n => have += n,
            }
        }
        let whole = have == buffers.read().len();
        if !whole || self.config.verify && !buffers.matches(record) {
            return Err(Error::Verify {
                arm: self.files.name(),
                offset: at,
            });
        }
        Ok(())
    }
}

/// A write buffer and a read buffer of one record each, aligned for direct I/O.
struct Buffers {
    write: block::Buf,
    read: block::Buf,
    part: u64,
    seed: u64,
}

impl Buffers {
    fn new(config: &Config, part: u64) -> Buffers {
        let seed = u64::from(config.seed);
        let mut write = block::Buf::zeroed(config.record as usize);
        Rng::stream(seed, part).fill(&mut write);
        Buffers {
            write,
            read: block::Buf::zeroed(config.record as usize),
            part,
            seed,
        }
    }

    /// Builds the record's data: the thread's text with a stamp in each sector, so that no two
    /// records are alike.
    fn data(&mut self, record: u64) -> &[u8] {
        stamp(&mut self.write, self.part, record);
        &self.write
    }

    fn read(&mut self) -> &mut [u8] {
        &mut self.read
    }

    fn matches(&mut self, record: u64) -> bool {
        let mut expected = vec![0; self.read.len()];
        Rng::stream(self.seed, self.part).fill(&mut expected);
        stamp(&mut expected, self.part, record);
        expected[..] == self.read[..]
    }
}

fn stamp(bytes: &mut [u8], part: u64, record: u64) {
    for (n, sector) in bytes.chunks_mut(512).enumerate() {
        sector[..8].copy_from_slice(&part.to_le_bytes());
        sector[8..16].copy_from_slice(&record.to_le_bytes());
        sector[16..24].copy_from_slice(&(n as u64).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_has_every_record_once() {
        for phase in Phase::ALL {
            for records in [1, 2, 16, 17, 18, 1000] {
                let order = phase.order(records, 42);
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..records), "{phase:?} {records}");
            }
        }
        assert_eq!(permutation(50, 1), permutation(50, 1));
        assert_ne!(permutation(50, 1), permutation(50, 2));
        assert_eq!(Phase::StrideRead.order(40, 0)[..4], [0, 17, 34, 1]);
    }

    #[test]
    fn the_two_sums_of_a_phase() {
        let outcome = PhaseResult {
            phase: Phase::Write,
            bytes: vec![100, 60],
            secs: vec![2.0, 2.0],
            parent_secs: 4.0,
        };
        assert_eq!((outcome.children(), outcome.parent()), (80.0, 40.0));
    }
}
