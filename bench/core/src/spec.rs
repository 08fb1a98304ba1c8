//! Specification of one run: a workload, its sizes, and the region of the device for each thread.

use crate::rng::Rng;
use crate::{Direction, Error, Result};
use block::DeviceInfo;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Access pattern. Modeled on the throughput mode of IOzone 3.489: each thread has its own part of
/// the device and works through all of it, record by record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Records in order.
    SeqRead,
    /// Records in order; a flush at the end is part of the run.
    SeqWrite,
    /// Every record once, in an order drawn from the seed.
    RandRead,
    /// Every record once, in an order drawn from the seed; a flush at the end is part of the run.
    RandWrite,
}

impl Workload {
    /// All workloads in the order of reports.
    pub const ALL: [Workload; 4] = [
        Workload::SeqRead,
        Workload::SeqWrite,
        Workload::RandRead,
        Workload::RandWrite,
    ];

    /// Returns the name used on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Workload::SeqRead => "seq-read",
            Workload::SeqWrite => "seq-write",
            Workload::RandRead => "rand-read",
            Workload::RandWrite => "rand-write",
        }
    }

    /// Returns the direction of the workload's transfers.
    pub fn direction(self) -> Direction {
        match self {
            Workload::SeqRead | Workload::RandRead => Direction::Read,
            Workload::SeqWrite | Workload::RandWrite => Direction::Write,
        }
    }

    /// Reports whether the workload writes.
    pub fn writes(self) -> bool {
        self.direction() == Direction::Write
    }

    /// Reports whether the order is a random permutation.
    pub fn random(self) -> bool {
        matches!(self, Workload::RandRead | Workload::RandWrite)
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Workload {
    type Err = Error;

    fn from_str(text: &str) -> Result<Workload> {
        Workload::ALL
            .into_iter()
            .find(|w| w.name() == text)
            .ok_or_else(|| {
                let names = Workload::ALL.map(Workload::name).join(", ");
                Error::Spec(format!(
                    "unknown access pattern {text}; expected one of {names}"
                ))
            })
    }
}

/// Complete specification of a run: two runs of one `Spec` do the same work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// Access pattern.
    pub workload: Workload,
    /// Request size in bytes, a multiple of the device's logical block size; the largest if there
    /// are several sizes.
    pub block: u32,
    /// Sizes mixed in one run, drawn with equal probability; a record has the same size in all
    /// runs. Empty: `block` alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<u32>,
    /// Number of threads, each with its own queue.
    pub threads: u32,
    /// Requests that each thread keeps in flight.
    pub depth: u32,
    /// Bytes that each thread covers in a pass, at most its share of the device; `None`: all of its
    /// share.
    pub bytes_per_thread: Option<u64>,
    /// Number of times each thread covers its bytes.
    pub passes: u32,
    /// Number of bytes used from the start of the device; `None`: all.
    pub span: Option<u64>,
    /// Requests per second of all threads together, at times fixed beforehand; `None`: closed loop,
    /// each request follows a completion.
    pub rate: Option<u32>,
    /// Whether reads check that each request begins with the stamp that a run of the same seed
    /// wrote.
    pub verify: bool,
    /// Seed of the data and the orders.
    pub seed: u64,
}

impl Default for Spec {
    /// Creates a run of sequential reads of 64 KiB by one thread, one request at a time, 100 MiB
    /// per pass.
    fn default() -> Spec {
        Spec {
            workload: Workload::SeqRead,
            block: 64 << 10,
            sizes: Vec::new(),
            threads: 1,
            depth: 1,
            bytes_per_thread: Some(100 << 20),
            passes: 1,
            span: None,
            rate: None,
            verify: false,
            seed: 1,
        }
    }
}

/// First of the random streams that are reserved for sizes.
const SIZES: u64 = 1 << 56;

/// Region of each thread: thread `i` has `records` records of `block` bytes from `i * region` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    pub region: u64,
    pub records: u32,
}

impl Spec {
    /// Computes the number of bytes that a run transfers.
    pub fn bytes(&self, layout: &Layout) -> u64 {
        let records = u64::from(layout.records);
        let pass = match self.sizes.len() {
            0 | 1 => records * u64::from(self.block) * u64::from(self.threads),
            _ => (0..self.threads)
                .flat_map(|thread| (0..layout.records).map(move |record| (thread, record)))
                .map(|(thread, record)| u64::from(self.length(thread, record)))
                .sum(),
        };
        pass * u64::from(self.passes)
    }

    /// Computes the number of reads or writes of a run.
    pub fn requests(&self, layout: &Layout) -> u64 {
        u64::from(layout.records) * u64::from(self.threads) * u64::from(self.passes)
    }

    /// Returns the request size for a record of a thread, in bytes.
    pub fn length(&self, thread: u32, record: u32) -> u32 {
        match self.sizes.as_slice() {
            [] | [_] => self.block,
            sizes => {
                let place = (u64::from(thread) << 32 | u64::from(record)) + SIZES;
                let drawn = Rng::stream(self.seed, place).below(sizes.len() as u32);
                sizes[drawn as usize]
            }
        }
    }

    /// Validates the specification against a device and assigns a region to each thread.
    pub fn layout(&self, info: &DeviceInfo) -> Result<Layout> {
        let refuse = |text: String| Err(Error::Spec(format!("{}: {text}", info.name)));
        if self.threads == 0 || self.depth == 0 || self.passes == 0 {
            return refuse("threads, depth and passes must be at least 1".into());
        }
        if self.rate == Some(0) {
            return refuse("the rate must be at least 1 request per second".into());
        }
        if self.threads > 4096 || self.depth > 65_536 {
            return refuse("threads must not exceed 4096, and depth must not exceed 65536".into());
        }
        let block = u64::from(self.block);
        if block == 0 || !block.is_multiple_of(u64::from(info.logical_block_size)) {
            return refuse(format!(
                "the block size of {block} bytes is not a multiple of the device's logical block \
                 size of {}",
                info.logical_block_size
            ));
        }
        let aligned = |size: &u32| *size > 0 && size.is_multiple_of(info.logical_block_size);
        if !self
            .sizes
            .iter()
            .all(|size| *size <= self.block && aligned(size))
        {
            return refuse(format!(
                "mixed sizes must be multiples of the device's logical block size of {}, and at \
                 most {block}",
                info.logical_block_size
            ));
        }
        if self.block > info.max_transfer {
            return refuse(format!(
                "the block size of {block} bytes exceeds the device's largest transfer of {}",
                info.max_transfer
            ));
        }
        if self.workload.writes() && info.read_only {
            return refuse(format!(
                "{} writes, and the device is read-only",
                self.workload
            ));
        }
        let span = self.span.unwrap_or(info.size);
        if span > info.size {
            return refuse(format!(
                "the span of {span} bytes exceeds the device size of {}",
                info.size
            ));
        }
        let region = span / u64::from(self.threads) / block * block;
        let records = self.bytes_per_thread.unwrap_or(region).min(region) / block;
        match u32::try_from(records) {
            Ok(0) => refuse(format!(
                "{span} bytes are too few for {} threads: each needs at least one block of \
                 {block} bytes",
                self.threads
            )),
            Ok(records) => Ok(Layout { region, records }),
            Err(_) => refuse("more than 2^32 records per thread; use a larger block".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> DeviceInfo {
        DeviceInfo {
            name: "disk".into(),
            wwid: "disk".into(),
            size: 10 << 20,
            logical_block_size: 512,
            optimal_io_size: 4096,
            max_transfer: 1 << 20,
            volatile_write_cache: false,
            read_only: false,
            discard: false,
            numa_node: None,
        }
    }

    #[test]
    fn threads_get_equal_regions_that_do_not_overlap() {
        for threads in [1, 3, 7, 10, 25] {
            let spec = Spec {
                threads,
                bytes_per_thread: None,
                ..Spec::default()
            };
            let layout = spec.layout(&info()).unwrap();
            assert_eq!(
                layout.region,
                u64::from(layout.records) * u64::from(spec.block)
            );
            assert!(layout.region * u64::from(threads) <= info().size);
            assert!((layout.region + u64::from(spec.block)) * u64::from(threads) > info().size);
        }
    }

    #[test]
    fn refuses_what_a_device_cannot_do() {
        let with = |change: fn(&mut Spec)| {
            let mut spec = Spec::default();
            change(&mut spec);
            spec.layout(&info()).unwrap_err().to_string()
        };
        assert!(with(|s| s.block = 100).contains("multiple"));
        assert!(with(|s| s.block = 0).contains("multiple"));
        assert!(with(|s| s.block = 2 << 20).contains("largest transfer"));
        assert!(with(|s| s.threads = 0).contains("at least 1"));
        assert!(with(|s| s.threads = 1000).contains("at least one block"));
        assert!(with(|s| s.span = Some(11 << 20)).contains("exceeds the device size"));
        let mut read_only = info();
        read_only.read_only = true;
        let write = Spec {
            workload: Workload::RandWrite,
            ..Spec::default()
        };
        assert!(
            write
                .layout(&read_only)
                .unwrap_err()
                .to_string()
                .contains("read-only")
        );
        assert!(Spec::default().layout(&read_only).is_ok());
    }

    #[test]
    fn names_are_read_back() {
        for workload in Workload::ALL {
            assert_eq!(workload.name().parse::<Workload>().unwrap(), workload);
            let json = serde_json::to_string(&workload).unwrap();
            assert_eq!(json, format!("\"{workload}\""));
        }
        assert!(
            "read"
                .parse::<Workload>()
                .unwrap_err()
                .to_string()
                .contains("seq-read, ")
        );
    }
}
