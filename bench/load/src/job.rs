//! A job: a workload with its parameters, ready to run on a target, and stored with every result.
//!
//! **Invariant:** a job determines the work completely: two runs of one job on two targets do the
//! same work. Parameters have the names of the fields of the workloads' configurations and are set
//! by these names.

mod catalogue;
mod runner;
mod scratch_directory;

pub use catalogue::{CATALOGUE, Entry, Needs};

use crate::workload::{
    build, clientload, coherence, devmix, dhrystone, fio, mailmix, mounts, packets, scriptmix,
    sendfile, seqrand, solver,
};
use bench_core::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Fraction of the machine's memory that all files of a run together may use, so that a cached run
/// stays cached: the published runs used 10 GB on a machine with 64 GB.
const MEMORY_PART: f64 = 0.16;
const MIB: u64 = 1 << 20;

/// Amount of work per run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Seconds per run: for trials and tests.
    Quick,
    /// Half a minute per run: for measurements.
    Standard,
    /// Sizes and counts of the original benchmark.
    Faithful,
}

/// A workload and its parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "workload", rename_all = "kebab-case")]
pub enum Job {
    /// Sequential and random file I/O by number of threads.
    Seqrand(Throughput),
    /// Sequential and random file I/O by file and record size.
    Sweep(Sweep),
    /// Small files of a mail server.
    Mailmix(mailmix::Config),
    /// Nine metadata tests.
    Nfsbasic(Scaled),
    /// System calls, context switches, small files.
    Micro(Timed),
    /// IOPS of a device.
    Devmix(devmix::Config),
    /// Scripts per hour.
    Scriptmix(scriptmix::Config),
    /// Mounts and unmounts.
    Mounts(mounts::Config),
    /// Clients that read one file concurrently.
    Clientload(clientload::Config),
    /// UDP request/response exchanges.
    Packets(packets::Config),
    /// CPU speed.
    Dhrystone(dhrystone::Config),
    /// Compilation of a source tree.
    Build(build::Config),
    /// The program fio.
    Fio(fio::Config),
    /// Alternating system calls and mapped access.
    Coherence(coherence::Config),
    /// Transfer of a file to a socket.
    Sendfile(sendfile::Config),
    /// Linear equations with a scratch file.
    Solver(solver::Config),
}

/// `seqrand` by number of threads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Throughput {
    /// Numbers of threads, one data point each.
    pub threads: Vec<usize>,
    /// Phases; the first must create the files.
    pub phases: Vec<seqrand::Phase>,
    /// Maximum bytes of all files together; files are shortened to fit. 0: no limit.
    #[serde(default)]
    pub total: u64,
    /// Further options; the number of threads is taken from `threads`.
    pub options: seqrand::Config,
}

impl Throughput {
    /// Returns the bytes per file with the given number of threads: whole records, and at least
    /// one.
    pub fn file(&self, threads: usize) -> u64 {
        let (file, record) = (self.options.file, self.options.record.max(1));
        let share = self.total / threads.max(1) as u64 / record * record;
        match self.total {
            0 => file,
            _ => file.min(share.max(record)),
        }
    }
}

/// `seqrand` by sizes, like IOzone's automatic mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sweep {
    /// Smallest and largest file in bytes; sizes in between double.
    pub files: (u64, u64),
    /// Smallest and largest record in bytes, likewise; no record is longer than its file.
    pub records: (u64, u64),
    /// Whether to include small records (less than 64 KiB) on large files (more than 16 MiB), which
    /// take long.
    pub all: bool,
    /// Phases; the first must create the file.
    pub phases: Vec<seqrand::Phase>,
    /// Whether to add buffered phases: write, rewrite, read, reread.
    pub buffered: bool,
    /// Further options; the sizes are taken from the fields above.
    pub options: seqrand::Config,
}

impl Sweep {
    /// Lists the pairs of file size and record size, in order.
    ///
    /// # Errors
    /// [`Error::Spec`] for bounds that leave no pair.
    pub fn cells(&self) -> Result<Vec<(u64, u64)>> {
        let powers = |(low, high): (u64, u64)| {
            std::iter::successors(Some(low), |n| n.checked_mul(2)).take_while(move |n| *n <= high)
        };
        if self.files.0 == 0 || self.records.0 == 0 {
            return Err(Error::Spec(
                "file and record sizes of a sweep must be greater than 0".into(),
            ));
        }
        let cells: Vec<(u64, u64)> = powers(self.files)
            .flat_map(|file| powers(self.records).map(move |record| (file, record)))
            .filter(|(file, record)| record <= file)
            .filter(|(file, record)| self.all || *file <= 16 * MIB || *record >= 64 << 10)
            .collect();
        if cells.is_empty() {
            Err(Error::Spec(
                "the file and record sizes of the sweep leave no pair to measure".into(),
            ))
        } else {
            Ok(cells)
        }
    }
}

/// A workload whose counts are scaled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scaled {
    /// Factor for the original's counts.
    pub scale: u64,
}

/// A workload whose rows have a minimum duration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timed {
    /// Minimum duration of a row in milliseconds.
    pub millis: u64,
}

impl Job {
    /// Creates the workload of this name with the default parameters of an extent.
    ///
    /// # Errors
    /// [`Error::Spec`] with the list of names if the name is unknown.
    pub fn named(name: &str, extent: Extent) -> Result<Job> {
        use Extent::{Faithful, Quick, Standard};
        let pick = |quick: u64, standard: u64, faithful: u64| match extent {
            Quick => quick,
            Standard => standard,
            Faithful => faithful,
        };
        Ok(match name {
            "seqrand" => Job::Seqrand(throughput(extent)),
            "sweep" => Job::Sweep(sweep(extent)),
            "mailmix" => Job::Mailmix(mail(extent)),
            "nfsbasic" => Job::Nfsbasic(Scaled {
                scale: pick(1, 10, 1),
            }),
            "micro" => Job::Micro(Timed {
                millis: pick(50, 500, 1000),
            }),
            "devmix" => Job::Devmix(devices(extent)),
            "scriptmix" => Job::Scriptmix(scriptmix::Config {
                users: match extent {
                    Quick => vec![1, 2, 4],
                    _ => vec![1, 2, 4, 8, 16],
                },
                scripts: pick(1, 5, 20),
                ..scriptmix::Config::default()
            }),
            "mounts" => Job::Mounts(mounts::Config {
                times: pick(5, 20, 100) as u32,
                ..mounts::Config::default()
            }),
            "clientload" => Job::Clientload(clientload::Config::default()),
            "packets" => Job::Packets(packets::Config {
                exchanges: pick(1000, 10_000, 10_000),
                rx_exchanges: pick(100, 1000, 1000),
                ..packets::Config::default()
            }),
            "dhrystone" => Job::Dhrystone(dhrystone::Config {
                millis: pick(200, 2000, 2000),
            }),
            "build" => Job::Build(build::Config {
                files: pick(30, 300, 300) as usize,
                ..build::Config::default()
            }),
            "fio" => Job::Fio(fio::Config {
                size: pick(16, 64, 1024) * MIB,
                ..fio::Config::default()
            }),
            "coherence" => Job::Coherence(coherence::Config::default()),
            "solver" => Job::Solver(solver::Config {
                order: pick(512, 1536, 8192) as usize,
                ..solver::Config::default()
            }),
            "sendfile" => Job::Sendfile(sendfile::Config {
                passes: pick(1, 4, 16),
                ..sendfile::Config::default()
            }),
            _ => {
                let names: Vec<&str> = CATALOGUE.iter().map(|entry| entry.name).collect();
                return Err(Error::Spec(format!(
                    "unknown workload `{name}`; expected one of {}",
                    names.join(", ")
                )));
            }
        })
    }

    /// Returns the catalogue entry of the workload.
    pub fn entry(&self) -> &'static Entry {
        let value = serde_json::to_value(self).expect("plain data has a JSON form");
        let name = value["workload"].as_str().unwrap_or_default();
        CATALOGUE
            .iter()
            .find(|entry| entry.name == name)
            .expect("every workload is in the catalogue")
    }

    /// Sets a parameter, for example `record` to `4k` or `phases` to `write,read`.
    ///
    /// # Errors
    /// [`Error::Spec`] with the list of parameters if the workload does not have this one, or for
    /// an invalid value.
    pub fn set(&mut self, key: &str, text: &str) -> Result<()> {
        let mut value = serde_json::to_value(&*self).expect("plain data has a JSON form");
        let known = names(&value);
        let place = find(&mut value, key).ok_or_else(|| {
            Error::Spec(format!(
                "{} has no parameter `{key}`; its parameters are {}",
                self.entry().name,
                known.join(", ")
            ))
        })?;
        *place = parse(place, text);
        *self = serde_json::from_value(value)
            .map_err(|e| Error::Spec(format!("{}: {key}={text}: {e}", self.entry().name)))?;
        Ok(())
    }

    /// Lists the parameters by name.
    pub fn parameters(&self) -> Vec<(String, Value)> {
        let mut value = serde_json::to_value(self).expect("plain data has a JSON form");
        names(&value)
            .into_iter()
            .filter_map(|name| {
                let found = find(&mut value, &name)?.clone();
                Some((name, found))
            })
            .collect()
    }
}

/// Lists names that cannot be set: structural ones, and those that a sweep replaces for each of
/// its cells.
fn hidden(value: &Value) -> &'static [&'static str] {
    match value["workload"].as_str() {
        Some("sweep") => &["workload", "options", "threads", "file", "record"],
        _ => &["workload", "options"],
    }
}

/// Lists names that can be set: those of the job, which take precedence, and those of `options`.
fn names(value: &Value) -> Vec<String> {
    let own = value.as_object().into_iter().flatten();
    let inner = value["options"].as_object().into_iter().flatten();
    let mut names: Vec<String> = Vec::new();
    for (name, _) in own.chain(inner) {
        if !hidden(value).contains(&name.as_str()) && !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

fn find<'a>(value: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    if hidden(value).contains(&key) {
        return None;
    }
    if value.get(key).is_some() {
        return value.get_mut(key);
    }
    value.get_mut("options")?.get_mut(key)
}

/// Parses `text` as a value of the same kind as `old`: a list stays a list, and a size may have a
/// unit.
fn parse(old: &Value, text: &str) -> Value {
    match old {
        Value::Array(items) => {
            let like = items.first().cloned().unwrap_or(Value::Null);
            let parts = text.split(',').map(str::trim).filter(|p| !p.is_empty());
            Value::Array(parts.map(|part| parse(&like, part)).collect())
        }
        Value::String(_) if text != "none" => Value::String(text.to_owned()),
        _ => match text {
            "true" | "false" => Value::Bool(text == "true"),
            "none" => Value::Null,
            _ => match block::parse_size(text) {
                Ok(number) => Value::from(number),
                Err(_) => Value::String(text.to_owned()),
            },
        },
    }
}

fn throughput(extent: Extent) -> Throughput {
    use seqrand::Phase::{RandomRead, RandomWrite, Read, Reread, Rewrite, Write};
    let (threads, wanted) = match extent {
        Extent::Quick => (vec![1, 4], 8 * MIB),
        Extent::Standard => (vec![1, 10, 25], 100 * MIB),
        Extent::Faithful => (vec![1, 10, 25, 50, 100], 100 * MIB),
    };
    let most = threads.iter().copied().max().unwrap_or(1) as u64;
    Throughput {
        threads,
        phases: vec![Write, Rewrite, Read, Reread, RandomRead, RandomWrite],
        total: 0,
        options: seqrand::Config {
            file: fit(wanted, most),
            ..seqrand::Config::default()
        },
    }
}

/// Returns `wanted`, or less if the files of all `threads` would not fit in memory, in whole MiB.
fn fit(wanted: u64, threads: u64) -> u64 {
    let memory = bench_core::Environment::capture()
        .memory_mib
        .unwrap_or(1024);
    let room = (memory as f64 * MEMORY_PART / threads as f64) as u64;
    wanted.min(room.max(1) * MIB)
}

fn sweep(extent: Extent) -> Sweep {
    let (files, records) = match extent {
        Extent::Quick => ((256 << 10, MIB), (4 << 10, 64 << 10)),
        // 56 combinations of file and record size.
        Extent::Standard => ((64 << 10, 4 * MIB), (4 << 10, 4 * MIB)),
        Extent::Faithful => ((64 << 10, 512 * MIB), (4 << 10, 16 * MIB)),
    };
    let mut phases = seqrand::Phase::ALL.to_vec();
    phases.retain(|phase| *phase != seqrand::Phase::Mixed);
    Sweep {
        files,
        records,
        all: false,
        phases,
        buffered: true,
        options: seqrand::Config::default(),
    }
}

fn mail(extent: Extent) -> mailmix::Config {
    let (files, low, high) = match extent {
        Extent::Quick => (500, 500, 10_000),
        Extent::Standard => (1_000, 10_240, 1_048_576),
        Extent::Faithful => (100_000, 10_240, 1_048_576),
    };
    mailmix::Config {
        number: files,
        transactions: files,
        size_low: low,
        size_high: high,
        read: 8192,
        write: 8192,
        ..mailmix::Config::default()
    }
}

fn devices(extent: Extent) -> devmix::Config {
    let own = devmix::Config::default();
    match extent {
        Extent::Quick => devmix::Config {
            blocks: vec![4096, 65536],
            depths: vec![1, 8],
            threads: vec![1],
            requests: 2_000,
            ..own
        },
        Extent::Standard => own,
        Extent::Faithful => devmix::Config {
            depths: vec![1, 4, 16, 64],
            threads: vec![1, 4, 16],
            requests: 200_000,
            ..own
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_of_the_catalogue_can_be_named_and_stored() {
        for entry in CATALOGUE {
            for extent in [Extent::Quick, Extent::Standard, Extent::Faithful] {
                let job = Job::named(entry.name, extent).unwrap();
                assert_eq!(job.entry().name, entry.name);
                let text = serde_json::to_string(&job).unwrap();
                assert_eq!(serde_json::from_str::<Job>(&text).unwrap(), job);
                assert!(!job.parameters().is_empty());
            }
        }
        let unknown = Job::named("iozone", Extent::Quick).unwrap_err().to_string();
        assert!(unknown.contains("seqrand, sweep"), "{unknown}");
    }

    #[test]
    fn parameters_are_set_by_name() {
        let mut job = Job::named("seqrand", Extent::Quick).unwrap();
        for (key, text) in [
            ("threads", "1,10"),
            ("record", "4k"),
            ("direct", "true"),
            ("phases", "write,random-read"),
            ("access", "mapped-sync"),
        ] {
            job.set(key, text).unwrap();
        }
        let Job::Seqrand(throughput) = &job else {
            panic!("{job:?}");
        };
        assert_eq!(throughput.threads, [1, 10]);
        assert_eq!(throughput.phases.len(), 2);
        assert!(throughput.options.direct && throughput.options.record == 4096);
        for (key, text) in [("block", "4k"), ("record", "fast"), ("workload", "fio")] {
            assert!(job.set(key, text).is_err(), "{key}={text}");
        }
        let mut sweep = Job::named("sweep", Extent::Quick).unwrap();
        assert!(sweep.set("threads", "4").is_err(), "it has one thread");
        let mut packets = Job::named("packets", Extent::Quick).unwrap();
        packets.set("peer", "10.0.0.1:7").unwrap();
        packets.set("peer", "none").unwrap();
        let mut fio = Job::named("fio", Extent::Quick).unwrap();
        fio.set("rw", "write").unwrap();
        fio.set("size", "1G").unwrap();
        assert!(matches!(fio, Job::Fio(c) if c.size == 1 << 30 && c.rw == "write"));
    }

    #[test]
    fn a_sweep_has_the_cells_of_the_automatic_mode() {
        let Job::Sweep(sweep) = Job::named("sweep", Extent::Standard).unwrap() else {
            panic!("a sweep");
        };
        // Seven file sizes from 64 KiB to 4 MiB, records from 4 KiB up to the file size.
        assert_eq!(sweep.cells().unwrap().len(), 5 + 6 + 7 + 8 + 9 + 10 + 11);
        let mut whole = sweep.clone();
        whole.files = (64 << 10, 512 * MIB);
        whole.records = (4 << 10, 16 * MIB);
        whole.all = true;
        assert_eq!(whole.cells().unwrap().len(), 146);
        whole.files = (2, 1);
        assert!(whole.cells().is_err());
    }
}
