//! The checks that a change must pass, in tiers.
//!
//! | command | needs | runs |
//! |---|---|---|
//! | `cargo xtask check` | Rust and a C compiler | format, style, structure, dependencies, lints, documentation, and every test that needs neither root nor a peer |
//! | `cargo xtask check --full` | root | the same with all tests, against real peers, interleavings and fuzz targets |
//! | `cargo xtask check --full --after-plain` | root, and that the first has passed in this clone | the second without what the first has run; tests of memory, of the cipher and of the file system run again, as release builds |
//! | `cargo xtask check --soak HOURS` | root | random, fault and fuzz suites with new seeds ([`crate::soak`]) |

use crate::{Outcome, cargo, cargo_in, fuzz, layers, run, setup, site, soak, suite, tidy};
use std::path::Path;

/// Seconds for each fuzz target in a full check.
const FUZZ_SECONDS: &str = "10";

/// Seed of the fuzz targets in a full check, so that no change fails for an older defect.
const FUZZ_SEED: &str = "1";

/// Runs the tier that `args` select.
///
/// # Errors
/// A check failed, or `args` name no tier.
pub fn check(root: &Path, args: &[String]) -> Outcome {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        [] => plain(root),
        ["--full"] => full(root, Since::Nothing),
        ["--full", "--after-plain"] => full(root, Since::Plain),
        ["--soak", hours] => soak::run(root, hours),
        _ => Err("usage: cargo xtask check [--full [--after-plain] | --soak HOURS]".into()),
    }
}

/// Runs the checks that need nothing but Rust and a C compiler, then names what was left out.
fn plain(root: &Path) -> Outcome {
    structure(root)?;
    at_once(setup::subcommands, || {
        lints(root)?;
        suite::build_plain(root)
    })?;
    dependencies(root)?;
    // Many of these tests wait most of the time.
    let threads = threads(3);
    let args = ["--profile", suite::PLAIN, "--test-threads", &threads];
    let mut left_out = String::new();
    let outcome = at_once(
        || {
            left_out = suite::left_out(root)?;
            cargo(root, &["test", "--workspace", "--quiet", "--doc"])
        },
        || suite::run(root, &args.map(String::from)),
    );
    print!("{left_out}");
    println!(
        "not run either: interleavings of the cache (loom) and fuzz targets\n\
         all of it, as root: cargo xtask check --full"
    );
    outcome
}

/// Returns the number of tests to run at once: `per_cpu` tests for each CPU.
fn threads(per_cpu: usize) -> String {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    (per_cpu * cpus).to_string()
}

/// Runs two tasks at the same time, because each leaves a CPU idle at times.
fn at_once(one: impl FnOnce() -> Outcome + Send, other: impl FnOnce() -> Outcome) -> Outcome {
    std::thread::scope(|scope| {
        let one = scope.spawn(one);
        let other = other();
        other.and(one.join().expect("a task returns its errors"))
    })
}

/// The checks that have passed in this clone before a full one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Since {
    Nothing,
    /// The tests that need neither root nor a peer.
    Plain,
}

/// Runs all tests against real peers, and what only root or another compiler can; without those that
/// have passed.
fn full(root: &Path, since: Since) -> Outcome {
    setup::needs_root()?;
    structure(root)?;
    setup::require(root)?;
    site::build(root)?;
    lints(root)?;
    dependencies(root)?;
    suite::build(root, &["--release"])?;
    let threads = threads(2);
    let mut args = vec!["--release", "--test-threads", &threads];
    let rest = suite::not_plain(root)?;
    match since {
        // nextest does not run documentation examples. They are fast, so a broken one shows early.
        Since::Nothing => cargo(root, &["test", "--workspace", "--release", "--doc"])?,
        Since::Plain => args.extend(["-E", &rest]),
    }
    let args: Vec<String> = args.into_iter().map(String::from).collect();
    suite::run(root, &args)?;
    against_openssl(root)?;
    interleavings(root)?;
    let fuzz = ["--seconds", FUZZ_SECONDS, "--seed", FUZZ_SEED];
    fuzz::run(root, &fuzz.map(String::from))
}

/// Checks what needs no compiled code.
fn structure(root: &Path) -> Outcome {
    tidy::check(root)?;
    layers::check(root)?;
    cargo(root, &["fmt", "--all", "--", "--check"])
}

/// Checks dependencies. Not advisories: their database is on GitHub, which not every machine can
/// reach.
fn dependencies(root: &Path) -> Outcome {
    cargo(root, &["deny", "check", "bans", "licenses", "sources"])
}

/// Checks lints and documentation.
fn lints(root: &Path) -> Outcome {
    let clippy = ["clippy", "--workspace", "--all-targets", "--quiet"];
    cargo(root, &[&clippy[..], &["--", "-D", "warnings"]].concat())?;
    // All items, so that a broken link in a private comment fails too.
    run(cargo_in(root)
        .args(["doc", "--workspace", "--no-deps", "--quiet"])
        .arg("--document-private-items")
        .env("RUSTDOCFLAGS", "-D warnings"))
}

/// Compares the cipher kernels with OpenSSL, whose headers only a full check needs.
fn against_openssl(root: &Path) -> Outcome {
    let feature = ["--package", "evfs-xts", "--features", "openssl"];
    let clippy = ["clippy", "--all-targets", "--quiet"];
    let clippy = [&clippy[..], &feature, &["--", "-D", "warnings"]].concat();
    cargo(root, &clippy)?;
    cargo(root, &[&["test", "--release"], &feature[..]].concat())
}

/// Tests every interleaving of the lock-free shared state with loom, which replaces the standard
/// library's atomics and so needs a build of its own.
fn interleavings(root: &Path) -> Outcome {
    run(cargo_in(root)
        .args(["test", "--release", "--package", "evfs-cache"])
        .args(["--test", "loom"])
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", root.join("target/loom")))
}
