//! Builds the program so that the result does not depend on the directories of the machine.

use super::{Outcome, copy, create, failed, output, remove, run_command};
use crate::cargo_in;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Directory of the sources, and that of cargo, as the program and its debug symbols name them.
const SOURCES: &str = "/usr/src/evfs";
const CARGO: &str = "/usr/src/cargo";

/// Profile of the program that users install, with the symbols that are packed separately.
const PROFILE: &str = "dist";

/// Builds the program from the sources in `root`, with the registry in `cargo_home`, and returns its
/// path. Code that contains the date of its build gets `date`.
pub fn program(root: &Path, cargo_home: &Path, date: u64) -> Result<PathBuf, String> {
    let target = root.join("target/dist-build");
    let maps = maps(root, cargo_home)?;
    // The build ID connects the program and its symbols.
    let mut rust = vec!["-Clink-arg=-Wl,--build-id=sha1".to_owned()];
    rust.extend(
        maps.iter()
            .map(|(from, to)| format!("--remap-path-prefix={from}={to}")),
    );
    let c = maps
        .iter()
        .map(|(from, to)| format!("'-ffile-prefix-map={from}={to}'"));
    let c: Vec<String> = c.collect();
    run_command(
        cargo_in(root)
            .args(["build", "--locked", "--package", "evfs", "--bin", "evfs"])
            .args(["--profile", PROFILE, "--target-dir"])
            .arg(&target)
            .env("CARGO_HOME", cargo_home)
            // Cargo separates these flags by this character, so paths may contain blanks.
            .env("CARGO_ENCODED_RUSTFLAGS", rust.join("\x1f"))
            .env("CFLAGS", c.join(" "))
            .env("CC_SHELL_ESCAPED_FLAGS", "1")
            .env("SOURCE_DATE_EPOCH", date.to_string()),
    )?;
    Ok(target.join(PROFILE).join("evfs"))
}

/// Returns the directories that must not appear in the program, and their replacements. Of two that
/// match, the last one counts.
fn maps(root: &Path, cargo_home: &Path) -> Result<Vec<(String, String)>, String> {
    let mut maps = vec![
        (root.to_owned(), SOURCES.to_owned()),
        (cargo_home.to_owned(), CARGO.to_owned()),
    ];
    // A C compiler sees its working directory without links.
    let registry = cargo_home.join("registry").canonicalize();
    if let Ok(registry) = registry
        && let Some(real) = registry.parent()
        && real != cargo_home
    {
        maps.push((real.to_owned(), CARGO.to_owned()));
    }
    // The compiler names the sources of the standard library by this directory if they are
    // installed, and otherwise by the commit.
    let sysroot = rustc(&["--print", "sysroot"])?;
    let about = rustc(&["--version", "--verbose"])?;
    let commit = field(&about, "commit-hash")?;
    let library = Path::new(sysroot.trim()).join("lib/rustlib/src/rust");
    maps.push((library, format!("/rustc/{commit}")));
    let text = |(from, to): (PathBuf, String)| {
        let from = from.to_str().map(str::to_owned);
        Some((from?, to))
    };
    let maps: Option<Vec<_>> = maps.into_iter().map(text).collect();
    maps.ok_or_else(|| format!("{}: the path is not UTF-8", root.display()))
}

/// Returns the platform of this machine.
pub fn host() -> Result<String, String> {
    field(&rustc(&["--version", "--verbose"])?, "host")
}

/// Returns the version of the compiler.
pub fn compiler() -> Result<String, String> {
    field(&rustc(&["--version", "--verbose"])?, "release")
}

/// Reads the value of a line `NAME: VALUE`.
fn field(text: &str, name: &str) -> Result<String, String> {
    let values = text.lines().filter_map(|line| line.split_once(": "));
    let mut values = values.filter(|(key, _)| *key == name);
    let value = values.next().map(|(_, value)| value.to_owned());
    value.ok_or_else(|| format!("rustc does not print its {name}"))
}

/// Runs the compiler that belongs to this cargo.
fn rustc(args: &[&str]) -> Result<String, String> {
    let rustc = Path::new(env!("CARGO")).with_file_name("rustc");
    output(Command::new(rustc).args(args))
}

/// Returns the directory of cargo's registry.
pub fn cargo_home() -> Result<PathBuf, String> {
    let set = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo"));
    set.or_else(home)
        .ok_or_else(|| "neither CARGO_HOME nor HOME is set".into())
}

/// A copy of the sources and of cargo's directory, with other paths.
pub struct Elsewhere {
    /// Directory that contains both.
    pub dir: PathBuf,
    pub root: PathBuf,
    pub cargo_home: PathBuf,
}

impl Elsewhere {
    /// Copies the files that git tracks, and links the entries of cargo's directory.
    pub fn prepare(root: &Path) -> Result<Elsewhere, String> {
        let dir = root.join("target/dist-verify");
        let elsewhere = Elsewhere {
            root: dir.join("sources"),
            cargo_home: dir.join("cargo-home"),
            dir,
        };
        remove(&elsewhere.dir)?;
        let mut tracked = Command::new("git");
        let tracked = output(tracked.arg("-C").arg(root).args(["ls-files", "-z"]))?;
        for name in tracked.split_terminator('\0') {
            copy(&root.join(name), &elsewhere.root.join(name))?;
        }
        create(&elsewhere.cargo_home)?;
        for entry in super::list(&cargo_home()?)? {
            let name = entry.file_name().unwrap_or_default();
            // Locks and databases are private to a directory.
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let link = elsewhere.cargo_home.join(name);
            std::os::unix::fs::symlink(&entry, &link)
                .map_err(|e| failed("cannot create", &link, &e))?;
        }
        Ok(elsewhere)
    }

    /// Removes the copy.
    pub fn remove(&self) -> Outcome {
        remove(&self.dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_compilers_version_are_found() {
        let text = "rustc 1.95.0 (5 2026)\nbinary: rustc\nhost: x86_64-unknown-linux-gnu\n";
        assert_eq!(field(text, "host").unwrap(), "x86_64-unknown-linux-gnu");
        assert!(field(text, "release").unwrap_err().contains("release"));
        assert!(host().is_ok() && compiler().is_ok());
    }

    #[test]
    fn directories_of_the_machine_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        create(&real.join("registry")).unwrap();
        create(&link).unwrap();
        std::os::unix::fs::symlink(real.join("registry"), link.join("registry")).unwrap();
        let maps = maps(Path::new("/s"), &link).unwrap();
        let to = |from: &Path| {
            let found = maps.iter().find(|(path, _)| Path::new(path) == from);
            found.map(|(_, to)| to.as_str())
        };
        assert_eq!(to(Path::new("/s")), Some(SOURCES));
        assert_eq!(to(&link), Some(CARGO));
        assert_eq!(to(&real.canonicalize().unwrap()), Some(CARGO));
        assert!(maps.iter().any(|(_, to)| to.starts_with("/rustc/")));
    }
}
