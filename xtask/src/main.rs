//! Development tasks.
//!
//! ```text
//!   cargo xtask check            what needs only Rust: format, lints, structure, documentation, tests
//!   cargo xtask check --full     everything, as root, against real peers
//!   cargo xtask check --full --after-plain     what the first has not run in this clone
//!   cargo xtask check --soak H   random, fault and fuzz suites with new seeds for H hours
//!   cargo xtask setup            install the programs that the tests use (apt, as root; cargo),
//!                                download the kernels and the system of the guests
//!   cargo xtask test [ARG...]    the tests alone, as root; ARG is passed to `cargo nextest run`
//!   cargo xtask dist             packages of the program in target/packages
//!   cargo xtask dist --verify    the same, built twice and compared
//!   cargo xtask schemas          write the schemas of JSON documents to docs/schemas
//!   cargo xtask fuzz [--seconds N] [--seed N] [TARGET...]
//!   cargo xtask site             build the site of the guide with mdBook, and check its links
//!   cargo xtask layers | tidy    one part of check
//! ```

mod check;
mod dist;
mod fuzz;
mod layers;
mod links;
mod modules;
mod setup;
mod site;
mod soak;
mod suite;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Result of a task, with a message if it failed.
type Outcome = Result<(), String>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match args.first().map(String::as_str) {
        Some("check") => check::check(&root(), &args[1..]),
        Some("dist") => dist::run(&root(), &args[1..]),
        Some("setup") => setup::require(&root()),
        Some("layers") => layers::check(&root()),
        Some("site") => site::build(&root()),
        Some("tidy") => tidy::check(&root()),
        Some("fuzz") => fuzz::run(&root(), &args[1..]),
        Some("schemas") => schemas(&root()),
        Some("test") => suite::build(&root(), &["--release"]).and_then(|()| {
            let release = ["--release".to_owned()];
            suite::run(&root(), &[&release, &args[1..]].concat())
        }),
        _ => Err(
            "usage: cargo xtask check [--full [--after-plain] | --soak HOURS] | setup | test [ARG...] | dist [ARG...] \
             | schemas | site | layers | tidy | fuzz [--seconds N] [--seed N] [TARGET...]"
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

/// Replaces the published schemas by those of the program.
fn schemas(root: &Path) -> Outcome {
    cargo(root, &["build", "--package", "evfs"])?;
    // A document may have been renamed.
    let directory = root.join("docs/schemas");
    if directory.exists() {
        std::fs::remove_dir_all(&directory).map_err(|e| format!("docs/schemas: {e}"))?;
    }
    let write = ["schema", "--dir", "docs/schemas"];
    let run = ["run", "--quiet", "--package", "evfs", "--"];
    cargo(root, &[&run[..], &write].concat())
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
    run(cargo_in(root).args(args))
}

/// Returns a command that runs cargo in `root`.
///
/// Cargo describes the package that it runs, `xtask`, in variables. Build scripts of dependencies
/// watch some of them, so passing them on would rebuild what `cargo build` has built.
fn cargo_in(root: &Path) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root);
    for (name, _) in std::env::vars_os() {
        let about_xtask = ["CARGO_PKG_", "CARGO_MANIFEST_"];
        if about_xtask
            .iter()
            .any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
        {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a command to its end; the error contains its command line.
fn run(command: &mut Command) -> Outcome {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    let shown = words.join(" ");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{shown}: {status}")),
        Err(e) => Err(format!("{shown}: {e}")),
    }
}
