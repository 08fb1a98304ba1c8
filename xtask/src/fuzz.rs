//! Fuzzing: runs each target for a while on its corpus. Needs a nightly toolchain and `cargo-fuzz`.

use crate::Outcome;
use std::path::Path;
use std::process::{Command, Stdio};

/// Names of the targets' files.
pub const TARGETS: &[&str] = &[
    "afs_directory",
    "afs_requests",
    "fs_image",
    "fuse_requests",
    "iscsi_pdus",
    "luks2_header",
    "luks2_json",
    "nbd_handshake",
    "nbd_replies",
    "rx_packets",
    "scsi_data",
    "send_stream",
];

/// Version that is installed if `cargo-fuzz` is missing.
const CARGO_FUZZ: &str = "0.13.2";

/// Runs the named targets, or all, for `--seconds N` each (default: 20). With `--seed N` the inputs
/// are the same in every run, so that a change is not refused for a defect that it did not make.
pub fn run(root: &Path, args: &[String]) -> Outcome {
    let (mut seconds, mut seed) = (20, 0);
    let mut targets = Vec::new();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let mut number = || {
            let value = rest.next().and_then(|v| v.parse().ok());
            value.ok_or(format!("{arg} takes a whole number"))
        };
        match arg.as_str() {
            "--seconds" => seconds = number()?,
            "--seed" => seed = number()?,
            target => targets.push(target),
        }
    }
    if targets.is_empty() {
        targets.extend(TARGETS);
    }
    install()?;
    for target in targets {
        fuzz_one(root, target, seconds, seed)?;
    }
    Ok(())
}

/// Runs one target. Seed 0 stands for a random one.
fn fuzz_one(root: &Path, target: &str, seconds: u32, seed: u32) -> Outcome {
    println!("fuzzing {target} for {seconds} s");
    // A damaged metadata page may claim a length of up to 4 GiB, which `redb` allocates.
    let [rss, timeout] = match target {
        "fs_image" => ["-rss_limit_mb=9000", "-timeout=120"],
        _ => ["-rss_limit_mb=2048", "-timeout=10"],
    };
    // New inputs are stored outside of the corpus, which remains as committed.
    let found = root.join("fuzz/target/found").join(target);
    if seed != 0 && found.exists() {
        std::fs::remove_dir_all(&found).map_err(|e| format!("{found:?}: {e}"))?;
    }
    std::fs::create_dir_all(&found).map_err(|e| format!("{found:?}: {e}"))?;
    crate::run(
        Command::new("cargo")
            .args(["+nightly", "fuzz", "run", target])
            .arg(&found)
            .arg(format!("fuzz/corpus/{target}"))
            .arg("--")
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-seed={seed}"))
            .args([rss, timeout, "-print_final_stats=1", "-verbosity=0"])
            .current_dir(root),
    )
}

fn install() -> Outcome {
    let there = Command::new("cargo")
        .args(["fuzz", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success());
    if there {
        return Ok(());
    }
    crate::run(Command::new("cargo").args([
        "install",
        "cargo-fuzz",
        "--locked",
        "--version",
        CARGO_FUZZ,
    ]))
}
