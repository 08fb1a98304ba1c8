//! `fio`, by Jens Axboe: runs the program and reads its JSON output. A cross-check of this crate's
//! workloads on the same target, and a workload for users who know fio.
//!
//! Amounts are fixed, not durations: with a small file, a fixed duration changes the state of
//! caches halfway.

use super::programs::output;
use bench_core::{Error, Latency, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Options passed to fio.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// `read`, `write`, `randread`, `randwrite`, `rw`, `randrw`.
    pub rw: String,
    /// Request size in bytes.
    pub block: u64,
    /// Bytes per job.
    pub size: u64,
    /// Requests in flight per job.
    pub depth: u32,
    /// Number of jobs, each with its own file.
    pub jobs: u32,
    /// Whether to bypass the page cache.
    pub direct: bool,
    /// `psync`, `libaio`, `io_uring`, ...
    pub engine: String,
    /// Whether each job ends with a timed fsync.
    pub fsync: bool,
    /// Whether every write has new random bytes, generated within the timed section; by fio's
    /// default only eight bytes in every 512 change.
    #[serde(default)]
    pub refill: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            rw: "randread".into(),
            block: 4096,
            size: 64 << 20,
            depth: 1,
            jobs: 1,
            direct: false,
            engine: "psync".into(),
            fsync: true,
            refill: false,
        }
    }
}

/// Results of one direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// Bytes transferred.
    pub bytes: u64,
    /// Number of requests.
    pub requests: u64,
    /// Duration of the longest job in seconds.
    pub secs: f64,
    /// Completion latency.
    pub latency: Latency,
}

/// Results reported by fio.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FioResult {
    /// Version of fio.
    pub version: String,
    /// Reads, if any.
    pub read: Option<Side>,
    /// Writes, if any.
    pub write: Option<Side>,
}

/// Runs fio in `folder` and removes its files.
///
/// # Errors
/// [`Error::Program`] if fio is not installed, fails, or prints unexpected output.
pub fn run(folder: &Path, config: &Config) -> Result<FioResult> {
    check(config)?;
    let mut fio = Command::new("fio");
    fio.args(arguments(config))
        .arg(format!("--directory={}", folder.display()));
    let printed = output(&mut fio, "fio");
    for job in 0..config.jobs {
        // The file is missing if fio failed early; fio's error is more useful than this one.
        let _ = std::fs::remove_file(folder.join(format!("evfs-bench.{job}.0")));
    }
    parse(&printed?)
}

fn check(config: &Config) -> Result<()> {
    let known = ["read", "write", "randread", "randwrite", "rw", "randrw"];
    let word = |text: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    if known.contains(&config.rw.as_str()) && word(&config.engine) && config.jobs <= 1024 {
        return Ok(());
    }
    Err(Error::Spec(format!(
        "rw must be one of {}; engine must be a plain name, and jobs at most 1024",
        known.join(", ")
    )))
}

fn arguments(c: &Config) -> Vec<String> {
    vec![
        "--output-format=json".into(),
        "--name=evfs-bench".into(),
        "--group_reporting".into(),
        format!("--rw={}", c.rw),
        format!("--bs={}", c.block),
        format!("--size={}", c.size),
        format!("--iodepth={}", c.depth),
        format!("--numjobs={}", c.jobs),
        format!("--direct={}", u8::from(c.direct)),
        format!("--ioengine={}", c.engine),
        format!("--end_fsync={}", u8::from(c.fsync)),
        "--randrepeat=1".into(),
        format!("--refill_buffers={}", u8::from(c.refill)),
        // Do not reserve space beforehand, like the workloads of this crate.
        "--fallocate=none".into(),
        "--invalidate=0".into(),
        "--thread".into(),
    ]
}

/// Parses the JSON. Lines before it are warnings of fio.
fn parse(printed: &[u8]) -> Result<FioResult> {
    let wrong = |what: &str| Error::Program {
        what: "fio".into(),
        detail: format!("its JSON output has no {what}"),
    };
    let start = printed
        .iter()
        .position(|b| *b == b'{')
        .ok_or_else(|| wrong("opening brace"))?;
    let value: Value = serde_json::from_slice(&printed[start..])
        .map_err(|e| Error::Format(format!("cannot parse the JSON output of fio: {e}")))?;
    let job = value["jobs"].get(0).ok_or_else(|| wrong("jobs"))?;
    let side = |name: &str| -> Result<Option<Side>> {
        let side = &job[name];
        let number = |key: &str| side[key].as_u64().ok_or_else(|| wrong(key));
        if number("total_ios")? == 0 {
            return Ok(None);
        }
        if number("runtime")? == 0 {
            return Err(Error::Program {
                what: "fio".into(),
                detail: "it took less than a millisecond; increase size".into(),
            });
        }
        let clat = &side["clat_ns"];
        let nanos = |v: &Value| v.as_f64().unwrap_or(0.0) as u64;
        Ok(Some(Side {
            bytes: number("io_bytes")?,
            requests: number("total_ios")?,
            secs: number("runtime")? as f64 / 1e3,
            latency: Latency {
                mean_ns: nanos(&clat["mean"]),
                p50_ns: nanos(&clat["percentile"]["50.000000"]),
                p99_ns: nanos(&clat["percentile"]["99.000000"]),
                max_ns: nanos(&clat["max"]),
            },
        }))
    };
    Ok(FioResult {
        version: value["fio version"]
            .as_str()
            .unwrap_or("unknown")
            .to_owned(),
        read: side("read")?,
        write: side("write")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shortened output of fio 3.33, `--rw=randread --bs=4096 --size=1M`.
    const PRINTED: &str = r#"note: both iodepth >= 1 and synchronous I/O engine are selected
{ "fio version" : "fio-3.33", "jobs" : [ { "jobname" : "evfs-bench",
  "read" : { "io_bytes" : 1048576, "total_ios" : 256, "runtime" : 12, "bw_bytes" : 87381333,
    "clat_ns" : { "min" : 1000, "max" : 90000, "mean" : 4321.5, "percentile" : { "50.000000" : 4000, "99.000000" : 60000 } } },
  "write" : { "io_bytes" : 0, "total_ios" : 0, "runtime" : 0 } } ] }"#;

    #[test]
    fn its_json_is_read() {
        let outcome = parse(PRINTED.as_bytes()).unwrap();
        let read = outcome.read.unwrap();
        assert_eq!(outcome.version, "fio-3.33");
        assert_eq!(
            (read.bytes, read.requests, read.secs),
            (1 << 20, 256, 0.012)
        );
        assert_eq!((read.latency.p50_ns, read.latency.p99_ns), (4000, 60000));
        assert_eq!(outcome.write, None);
    }

    #[test]
    fn what_is_no_json_of_fio_is_an_error() {
        for text in ["", "fio: failed", "{", "{}", r#"{"jobs":[{"read":{}}]}"#] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn words_that_are_none_of_fios_are_refused() {
        let config = Config {
            engine: "psync --rw=write".into(),
            ..Config::default()
        };
        assert!(matches!(check(&config), Err(Error::Spec(_))));
    }
}
