//! The price of encrypting a device, before it is done: what reads and writes of a kind of work cost through the
//! cipher, from a study of reads of the device itself and one of writes somewhere else.
//!
//! **Invariant:** nothing here writes to the device that is asked about: [`Mix::job`] for reads only reads, and
//! deciphering what was never enciphered takes as long as deciphering what was.
//!
//! CPU carries over from one place to another, because it depends on bytes alone; a rate does not, so that of
//! writes counts only where they went to the same kind of disk.

use crate::study::{Finding, Judgement, Study, findings};
use crate::workload::devmix;
use crate::{Interval, Job, Workload};
use serde::Serialize;

const GIB: f64 = 1_073_741_824.0;
/// Bytes of one repetition of a job, about; a run repeats it until it is long enough.
const BYTES: u64 = 16 << 20;

/// A kind of work, as a device sees it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Mix {
    /// Its name.
    pub name: &'static str,
    /// In words.
    pub what: &'static str,
    /// Bytes of a request.
    pub block: u32,
    /// Whether places are drawn.
    pub random: bool,
    /// Threads.
    pub threads: u32,
    /// Requests in flight of each.
    pub depth: u32,
    /// Part of the bytes that are read.
    pub reads: f64,
}

/// The kinds of work; the first is for who does not say.
pub const MIXES: [Mix; 5] = [
    Mix {
        name: "general",
        what: "requests of 64 KiB in any place, as many writes as reads",
        block: 64 << 10,
        random: true,
        threads: 2,
        depth: 2,
        reads: 0.5,
    },
    // The mail profile of the published runs reads 27 GB and writes 87.
    Mix {
        name: "mail",
        what: "many small files: requests of 8 KiB in any place, three quarters of the bytes written",
        block: 8 << 10,
        random: true,
        threads: 4,
        depth: 2,
        reads: 0.25,
    },
    Mix {
        name: "database",
        what: "pages of 8 KiB in any place, many at once, seven in ten read",
        block: 8 << 10,
        random: true,
        threads: 4,
        depth: 8,
        reads: 0.7,
    },
    Mix {
        name: "build",
        what: "sources read and objects written, 32 KiB at a time, as many writes as reads",
        block: 32 << 10,
        random: true,
        threads: 2,
        depth: 1,
        reads: 0.5,
    },
    Mix {
        name: "media",
        what: "long files from begin to end, 1 MiB at a time, nine in ten read",
        block: 1 << 20,
        random: false,
        threads: 2,
        depth: 2,
        reads: 0.9,
    },
];

impl Mix {
    /// The reads of it, or the writes, on the first `span` bytes of a device; 0: all.
    pub fn job(&self, reads: bool, span: u64) -> Job {
        let pattern = match (reads, self.random) {
            (true, true) => Workload::RandRead,
            (true, false) => Workload::SeqRead,
            (false, true) => Workload::RandWrite,
            (false, false) => Workload::SeqWrite,
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

/// Reads or writes through one cipher.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Half {
    /// MiB a second in the clear.
    pub clear_mib_s: f64,
    /// MiB a second through the cipher.
    pub mib_s: f64,
    /// Part of the clear rate that is left.
    pub rate: Option<f64>,
    /// Its interval of 95 %.
    pub rate_interval: Option<Interval>,
    /// What may be said about the rate.
    pub judgement: Judgement,
    /// CPU seconds for each GiB in the clear.
    pub clear_cpu_s_gib: f64,
    /// CPU seconds that each GiB takes more.
    pub cpu_more_s_gib: f64,
    /// Between these, 95 %.
    pub cpu_more_interval: Option<(f64, f64)>,
}

/// The price of one cipher.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Price {
    /// The stack with it.
    pub side: String,
    /// Reads of the device.
    pub reads: Half,
    /// Writes elsewhere.
    pub writes: Half,
    /// CPU seconds that a GiB of the mix takes more.
    pub cpu_more_s_gib: f64,
    /// GiB of the mix that one processor enciphers and deciphers in a second.
    pub gib_s_of_a_core: f64,
    /// Processors that the cipher takes when the mix moves as many bytes as the device gives to reads in the clear.
    pub cores_at_full_rate: f64,
}

/// What each further stack costs more than the first, from a study of the reads of a mix and one of its writes.
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
    // µs for a request, as seconds for a GiB.
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
    use crate::study::{Journal, Side, StudyPlan, study};
    use crate::{Facts, Surroundings, Target};
    use block::{BlockDevice, Mem, Rate};
    use std::ops::ControlFlow;
    use std::sync::Arc;

    /// A device that is no faster than this.
    fn limited(mib_s: u64) -> Arc<dyn BlockDevice> {
        let mem: Arc<dyn BlockDevice> = Arc::new(Mem::new(64 << 20, 512));
        Arc::new(Rate::new(mem, Some(mib_s << 20), None))
    }

    fn measured(mix: &Mix, reads: bool) -> Study {
        let side = |name: &str, mib_s| Side {
            name: name.into(),
            target: Target::device(name, limited(mib_s)),
            again: None,
            job: mix.job(reads, 0),
            facts: Facts::default(),
            before: None,
            after: None,
            surroundings: Surroundings::default(),
        };
        let plan = StudyPlan {
            // The interval of sixteen leaves the three farthest of either side out: so many may stray, on a machine that has
            // other things to do.
            pairs: 16,
            max_pairs: 16,
            control: false,
            discard_first: false,
            ..StudyPlan::default()
        };
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(&dir.path().join("j")).unwrap();
        let sides = [side("clear", 400), side("cipher", 200)];
        let go_on = &mut |_: crate::study::Step<'_>| ControlFlow::Continue(());
        study(&sides, &plan, &mut journal, go_on).unwrap()
    }

    #[test]
    fn a_stack_of_half_the_speed_is_priced_as_one() {
        let mix = MIXES.iter().find(|mix| mix.name == "media").unwrap();
        let (reads, writes) = (measured(mix, true), measured(mix, false));
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
            let Job::Devmix(config) = mix.job(true, 0) else {
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
