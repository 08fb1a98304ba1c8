//! Random, fault and fuzz suites with new seeds, for hours: `cargo xtask check --soak HOURS`.
//!
//! Each suite has the same share of the time, and one line in the report. A run with a failure
//! leaves its output in `target/soak/`, and its seed repeats it.

use crate::{Outcome, fuzz, setup, suite};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::path::Path;
use std::time::{Duration, Instant};

/// Suites of tests that take a seed from `EVFS_SEED`, as filters of nextest.
const SUITES: &[(&str, &str)] = &[
    ("hostile headers", "package(evfs-luks2) & binary(hostile)"),
    (
        "encrypted data path",
        "package(evfs-crypt) & binary(data_path)",
    ),
    (
        "cache against a model",
        "package(evfs-cache) & binary(/model|race/)",
    ),
    (
        "file system against a model",
        "package(evfs-fs) & binary(/model|files|grow|full|defrag/)",
    ),
    (
        "power cuts",
        "package(evfs-fs) & binary(/powercut/) | package(tests) & binary(mount_crash) | package(evfs-foreign) & binary(fat_writes)",
    ),
    (
        "damaged images",
        "package(evfs-fs) & (binary(/hostile|faults/) | test(/repair/)) | package(evfs-foreign) & test(/damaged_images/)",
    ),
    (
        "path faults",
        "package(evfs-multipath) & binary(/fault|failover|model/)",
    ),
    (
        "lossy networks",
        "package(evfs-rx-proto) | package(evfs-rx) & kind(test)",
    ),
    (
        "AFS clients",
        "package(evfs-afs-server) & binary(/model|loss|kill|crowd/)",
    ),
    ("POSIX", "package(tests) & binary(posix)"),
];

/// Operations of each test of the file system against its model.
const OPERATIONS: &str = "50000";

/// Result of a suite.
struct Summary {
    runs: u32,
    /// Seeds of the runs that failed.
    failed: Vec<u64>,
}

/// Runs all suites and fuzz targets for `hours` (which may be a fraction) in all.
///
/// # Errors
/// A run failed, or `hours` is not a positive number.
pub fn run(root: &Path, hours: &str) -> Outcome {
    let hours: f64 = hours.parse().unwrap_or_default();
    if !(hours > 0.0 && hours < 10_000.0) {
        return Err("--soak takes a number of hours, for example 8 or 0.5".into());
    }
    setup::needs_root()?;
    setup::require(root)?;
    suite::build(root, &["--release"])?;
    let parts = SUITES.len() + fuzz::TARGETS.len();
    let share = Duration::from_secs_f64(hours * 3600.0).div_f64(parts as f64);
    let mut is_clean = true;
    for (name, filter) in SUITES {
        let summary = repeat(root, name, filter, share)?;
        is_clean &= summary.failed.is_empty();
        println!("{}", line(name, &summary));
    }
    for target in fuzz::TARGETS {
        let seconds = share.as_secs().max(1).to_string();
        let outcome = fuzz::run(root, &["--seconds", &seconds, target].map(String::from));
        is_clean &= outcome.is_ok();
        let verdict = outcome.map_or_else(|why| format!("FAILED: {why}"), |()| "ok".into());
        println!("soak: fuzz {target}: {seconds} s, {verdict}");
    }
    if is_clean {
        Ok(())
    } else {
        Err("a run failed; the seeds above repeat it".into())
    }
}

/// Runs a suite with new seeds until its time is over, at least once.
fn repeat(root: &Path, name: &str, filter: &str, share: Duration) -> Result<Summary, String> {
    let logs = root.join("target/soak");
    std::fs::create_dir_all(&logs).map_err(|e| format!("{}: {e}", logs.display()))?;
    let begin = Instant::now();
    let mut summary = Summary {
        runs: 0,
        failed: Vec::new(),
    };
    while summary.runs == 0 || begin.elapsed() < share {
        let seed = new_seed();
        let output = suite::command(root)
            .args(["--release", "--filterset", filter])
            .env("EVFS_SEED", seed.to_string())
            .env("EVFS_OPERATIONS", OPERATIONS)
            .output()
            .map_err(|e| format!("cargo nextest: {e}"))?;
        summary.runs += 1;
        if !output.status.success() {
            let log = logs.join(format!("{}-{seed}.log", name.replace(' ', "-")));
            let text = [output.stdout, output.stderr].concat();
            std::fs::write(&log, text).map_err(|e| format!("{}: {e}", log.display()))?;
            summary.failed.push(seed);
        }
    }
    Ok(summary)
}

/// Formats the line of a suite in the report.
fn line(name: &str, summary: &Summary) -> String {
    let verdict = if summary.failed.is_empty() {
        "ok".to_owned()
    } else {
        let seeds: Vec<String> = summary.failed.iter().map(u64::to_string).collect();
        format!(
            "{} FAILED, EVFS_SEED={} (target/soak/)",
            summary.failed.len(),
            seeds.join(" ")
        )
    };
    format!("soak: {name}: {} runs, {verdict}", summary.runs)
}

/// Returns a random seed: the standard library's hashers have random keys.
fn new_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_run_is_reported_with_its_seed() {
        let mut summary = Summary {
            runs: 3,
            failed: Vec::new(),
        };
        assert_eq!(line("a b", &summary), "soak: a b: 3 runs, ok");
        summary.failed.push(7);
        assert!(line("a b", &summary).contains("1 FAILED, EVFS_SEED=7"));
    }

    #[test]
    fn hours_are_a_positive_number() {
        for hours in ["", "x", "0", "-1", "inf", "NaN"] {
            let refused = run(Path::new("/nonexistent"), hours).unwrap_err();
            assert!(refused.contains("takes a number"), "{hours}: {refused}");
        }
    }
}
