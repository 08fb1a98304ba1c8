//! Development tasks: `cargo xtask check` is the command that CI runs.
//!
//! ```text
//!   cargo xtask check            format, lints, tidy, layers, docs, all tests, interleavings (as root)
//!   cargo xtask setup            install the programs that the tests use (apt, as root; cargo),
//!                                download the kernels of the guests
//!   cargo xtask test [ARG...]    the tests alone; ARG is passed to `cargo nextest run`
//!   cargo xtask fuzz [--seconds N] [--seed N] [TARGET...]
//!   cargo xtask layers | tidy    one part of check
//! ```

mod fuzz;
mod layers;
mod modules;
mod setup;
mod suite;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Result of a task, with a message if it failed.
type Outcome = Result<(), String>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match args.first().map(String::as_str) {
        Some("check") => check(),
        Some("setup") => setup::require(&root()),
        Some("layers") => layers::check(&root()),
        Some("tidy") => tidy::check(&root()),
        Some("fuzz") => fuzz::run(&root(), &args[1..]),
        Some("test") => suite::run(&root(), &args[1..]),
        _ => Err(
            "usage: cargo xtask check | setup | test [ARG...] | layers | tidy | fuzz [--seconds N] [--seed N] [TARGET...]"
                .into(),
        ),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Runs all checks that a change must pass, cheapest first.
fn check() -> Outcome {
    setup::needs_root()?;
    let root = root();
    tidy::check(&root)?;
    layers::check(&root)?;
    cargo(&root, &["fmt", "--all", "--", "--check"])?;
    setup::require(&root)?;
    dependencies(&root)?;
    cargo(
        &root,
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ],
    )?;
    documentation(&root)?;
    // The tests start the program as a user would, so the release build runs first.
    cargo(&root, &["build", "--release", "--package", "evfs"])?;
    // nextest does not run documentation examples. They are fast, so a broken one shows early.
    cargo(&root, &["test", "--workspace", "--release", "--doc"])?;
    suite::run(&root, &[])?;
    interleavings(&root)
}

/// Checks dependencies against `deny.toml`, except for advisories: their database is on GitHub,
/// which not every machine that runs the check can reach.
fn dependencies(root: &Path) -> Outcome {
    cargo(root, &["deny", "check", "bans", "licenses", "sources"])
}

/// Builds the documentation of all items; a broken link fails.
fn documentation(root: &Path) -> Outcome {
    run(Command::new(env!("CARGO"))
        .args([
            "doc",
            "--workspace",
            "--no-deps",
            "--document-private-items",
        ])
        .arg("--quiet")
        .env("RUSTDOCFLAGS", "-D warnings")
        .current_dir(root))
}

/// Tests every interleaving of the lock-free shared state with loom, which replaces the standard
/// library's atomics and so needs a build of its own.
fn interleavings(root: &Path) -> Outcome {
    run(Command::new(env!("CARGO"))
        .args([
            "test",
            "--release",
            "--package",
            "evfs-cache",
            "--test",
            "loom",
        ])
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", root.join("target/loom"))
        .current_dir(root))
}

/// Finds the directory of the workspace.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent()
        .expect("xtask lies in the workspace")
        .to_owned()
}

/// Runs cargo in `root`; the error contains its command line.
fn cargo(root: &Path, args: &[&str]) -> Outcome {
    run(Command::new(env!("CARGO")).args(args).current_dir(root))
}

/// Runs a command to its end; the error contains its command line.
fn run(command: &mut Command) -> Outcome {
    let shown = format!("{command:?}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{shown}: {status}")),
        Err(e) => Err(format!("{shown}: {e}")),
    }
}
