//! Estimates the cost of encrypting a device beforehand: the cost of reads and writes of a mix
//! through the cipher, from a study of reads of the device itself and a study of writes elsewhere.
//!
//! **Invariant:** nothing here writes to the examined device: [`Mix::job`] for reads only reads,
//! and decrypting data that was never encrypted takes as long as decrypting data that was.
//!
//! CPU cost carries over from one device to another, because it depends on bytes alone. A rate does
//! not: the write rate is valid only if the writes went to the same kind of disk.

use crate::analysis::{Finding, Judgement, findings};
use crate::study::Study;
use bench_core::{Direction, Interval, Workload};
use bench_load::Job;
use bench_load::workload::devmix;
use schemars::JsonSchema;
use serde::Serialize;

const GIB: f64 = 1_073_741_824.0;
/// Approximate bytes per repetition of a job; a run repeats it until it is long enough.
const BYTES: u64 = 16 << 20;

/// An I/O mix at device level.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Mix {
    /// Name on the command line.
    pub name: &'static str,
    /// Description for the user.
    pub what: &'static str,
    /// Request size in bytes.
    pub block: u32,
    /// Whether offsets are random.
    pub random: bool,
    /// Number of threads.
    pub threads: u32,
    /// Requests in flight per thread.
    pub depth: u32,
    /// Fraction of the bytes that are read.
    pub reads: f64,
}

/// All mixes; the first is the default.
pub const MIXES: [Mix; 5] = [
    Mix {
        name: "general",
        what: "random requests of 64 KiB, as many writes as reads",
        block: 64 << 10,
        random: true,
        threads: 2,
        depth: 2,
        reads: 0.5,
    },
    // The mail profile of the published runs reads 27 GB and writes 87 GB.
    Mix {
        name: "mail",
        what: "many small files: random requests of 8 KiB, three quarters of the bytes written",
        block: 8 << 10,
        random: true,
        threads: 4,
        depth: 2,
        reads: 0.25,
    },
    Mix {
        name: "database",
        what: "random pages of 8 KiB, many requests in flight, 70 % reads",
        block: 8 << 10,
        random: true,
        threads: 4,
        depth: 8,
        reads: 0.7,
    },
    Mix {
        name: "build",
        what: "sources read and objects written in requests of 32 KiB, as many writes as reads",
        block: 32 << 10,
        random: true,
        threads: 2,
        depth: 1,
        reads: 0.5,
    },
    Mix {
        name: "media",
        what: "long files, sequential requests of 1 MiB, 90 % reads",
        block: 1 << 20,
        random: false,
        threads: 2,
        depth: 2,
        reads: 0.9,
    },
];

impl Mix {
    /// Creates the job with the mix's reads or writes on the first `span` bytes of a device; 0
    /// means the whole device.
    pub fn job(&self, direction: Direction, span: u64) -> Job {
        let pattern = match (direction, self.random) {
            (Direction::Read, true) => Workload::RandRead,
            (Direction::Read, false) => Workload::SeqRead,
            (Direction::Write, true) => Workload::RandWrite,
            (Direction::Write, false) => Workload::SeqWrite,
        };
        let in_flight = u64::from(self.threads) * u64::from(self.depth);
        Job::Devmix(devmix::Config {
            patterns: vec![pattern],
            blocks: vec![self.block],
            depths: vec![self.depth],
            threads: vec![self.threads],
            requests: (BYTES / u64::from(self.block)).max(4 * in_flight),
            span,
            ..devmix::Config::default()
        })
    }
}

/// Results for reads or for writes through one cipher.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Half {
    /// Throughput without encryption in MiB/s.
    pub clear_mib_s: f64,
    /// Throughput through the cipher in MiB/s.
    pub mib_s: f64,
    /// Throughput relative to that without encryption.
    pub rate: Option<f64>,
    /// 95 % confidence interval of `rate`.
    pub rate_interval: Option<Interval>,
    /// Conclusion about the rate.
    pub judgement: Judgement,
    /// CPU seconds per GiB without encryption.
    pub clear_cpu_s_gib: f64,
    /// Additional CPU seconds per GiB.
    pub cpu_more_s_gib: f64,
    /// 95 % confidence interval of `cpu_more_s_gib`.
    pub cpu_more_interval: Option<(f64, f64)>,
}

/// Cost of one cipher.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Price {
    /// Name of the stack with this cipher.
    pub side: String,
    /// Reads of the device.
    pub reads: Half,
    /// Writes elsewhere.
    pub writes: Half,
    /// Additional CPU seconds per GiB of the mix.
    pub cpu_more_s_gib: f64,
    /// GiB of the mix that one CPU encrypts and decrypts per second.
    pub gib_s_of_a_core: f64,
    /// CPUs that the cipher needs when the mix runs at the rate of unencrypted reads.
    pub cores_at_full_rate: f64,
}

/// Computes the additional cost of each stack over the first, from a study of a mix's reads and one
/// of its writes.
pub fn prices(mix: &Mix, reads: &Study, writes: &Study) -> Vec<Price> {
    let (read, written) = (findings(reads).0, findings(writes).0);
    let others = reads.sides.iter().skip(1);
    let price = |side: &str| {
        let reads = half(mix, &read, side)?;
        let writes = half(mix, &written, side)?;
        let more = mix.reads * reads.cpu_more_s_gib + (1.0 - mix.reads) * writes.cpu_more_s_gib;
        let most = more.max(f64::EPSILON);
        Some(Price {
            side: side.to_owned(),
            cpu_more_s_gib: more,
            gib_s_of_a_core: 1.0 / most,
            cores_at_full_rate: reads.clear_mib_s / 1024.0 * more.max(0.0),
            reads,
            writes,
        })
    };
    others.filter_map(|side| price(&side.name)).collect()
}

fn half(mix: &Mix, found: &[Finding], side: &str) -> Option<Half> {
    let cell = |name: &str| found.iter().find(|f| f.side == side && f.cell == name);
    let (requests, cpu) = (cell("requests")?, cell("CPU")?);
    let mib_s = |iops: f64| iops * f64::from(mix.block) / 1_048_576.0;
    // Converts µs per request to seconds per GiB.
    let each = |us: f64| us / 1e6 * GIB / f64::from(mix.block);
    let more = |ratio: f64| (ratio - 1.0) * each(cpu.base);
    let ratio = cpu.ratio?;
    Some(Half {
        clear_mib_s: mib_s(requests.base),
        mib_s: mib_s(requests.value),
        rate: requests.ratio.map(|r| r.median),
        rate_interval: requests.ratio.and_then(|r| r.interval),
        judgement: requests.judgement,
        clear_cpu_s_gib: each(cpu.base),
        cpu_more_s_gib: more(ratio.median),
        cpu_more_interval: ratio.interval.map(|i| (more(i.low), more(i.high))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Journal;
    use crate::session::{Side, study};
    use crate::study::StudyPlan;
    use bench_core::Target;
    use block::BlockDevice;
    use block_testing::{Mem, Rate};
    use std::ops::ControlFlow;
    use std::sync::Arc;

    /// Creates a device limited to the given rate.
    fn limited(mib_s: u64) -> Arc<dyn BlockDevice> {
        let mem: Arc<dyn BlockDevice> = Arc::new(Mem::new(64 << 20, 512));
        Arc::new(Rate::new(mem, Some(mib_s << 20), None))
    }

    fn measured(mix: &Mix, direction: Direction) -> Study {
        let side = |name: &str, mib_s| {
            let target = Target::device(name, limited(mib_s));
            Side::new(name, target, mix.job(direction, 0))
        };
        let plan = StudyPlan {
            // The interval of sixteen pairs excludes the three most extreme values on either side,
            // so that many outliers on a busy machine do no harm.
            pairs: 16,
            max_pairs: 16,
            control: false,
            discard_first: false,
            ..StudyPlan::default()
        };
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(&dir.path().join("j")).unwrap();
        let sides = [side("clear", 400), side("cipher", 200)];
        let go_on = &mut |_: crate::session::Step<'_>| ControlFlow::Continue(());
        study(&sides, &plan, &mut journal, go_on).unwrap()
    }

    #[test]
    fn a_stack_of_half_the_speed_is_priced_as_one() {
        let mix = MIXES.iter().find(|mix| mix.name == "media").unwrap();
        let reads = measured(mix, Direction::Read);
        let writes = measured(mix, Direction::Write);
        let [price] = prices(mix, &reads, &writes).try_into().unwrap();
        assert_eq!(price.side, "cipher");
        for half in [&price.reads, &price.writes] {
            assert_eq!(half.judgement, Judgement::Worse, "{half:?}");
            let (rate, interval) = (half.rate.unwrap(), half.rate_interval.unwrap());
            assert!((0.4..0.7).contains(&rate), "{half:?}");
            assert!(interval.low <= rate && rate <= interval.high, "{half:?}");
            assert!(half.clear_cpu_s_gib > 0.0);
        }
        let mean = 0.9 * price.reads.cpu_more_s_gib + 0.1 * price.writes.cpu_more_s_gib;
        assert!((price.cpu_more_s_gib - mean).abs() < 1e-9);
    }

    #[test]
    fn a_job_for_reads_never_writes() {
        for mix in MIXES {
            let Job::Devmix(config) = mix.job(Direction::Read, 0) else {
                panic!("devices are measured by devmix");
            };
            assert!(
                config
                    .points()
                    .unwrap()
                    .iter()
                    .all(|s| !s.workload.writes())
            );
            let in_flight = u64::from(mix.threads) * u64::from(mix.depth);
            assert!(config.requests >= in_flight);
        }
    }
}
