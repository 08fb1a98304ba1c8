//! Packs the program under test with `xtask dist`, for the tests of packages and guests.

use crate::{Ran, Sandbox, program};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Date of all packages, in seconds since 1970.
const DATE: &str = "1750000000";

/// Returns a command that packs the program under test into the directory `out`.
pub fn dist(s: &Sandbox, out: &str) -> Command {
    let xtask = program().with_file_name("xtask");
    assert!(
        xtask.is_file(),
        "needs xtask: cargo build --workspace --bins, with the profile of the tests"
    );
    let mut dist = Command::new(xtask);
    dist.args(["dist", "--level", "0", "--binary"])
        .arg(program())
        .arg("--out")
        .arg(s.path(out))
        .env("SOURCE_DATE_EPOCH", DATE)
        .current_dir(s.path("."));
    dist
}

/// Packs the program under test into the directory `dist`.
pub fn packages(s: &Sandbox) -> PathBuf {
    Ran::of(&mut dist(s, "dist")).ok();
    s.path("dist")
}

/// Returns the only file of a directory whose name has this end.
pub fn file(dir: &Path, end: &str) -> PathBuf {
    let entries = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let is_it = |path: &PathBuf| path.to_str().unwrap().ends_with(end);
    let mut found: Vec<PathBuf> = entries.filter(is_it).collect();
    assert_eq!(found.len(), 1, "*{end} in {}: {found:?}", dir.display());
    found.remove(0)
}

/// Makes a package of an older version, with a file that the newer one does not have.
pub fn older(s: &Sandbox, package: &Path) -> PathBuf {
    let tree = s.path("older");
    let mut unpack = Command::new("dpkg-deb");
    Ran::of(unpack.arg("--raw-extract").arg(package).arg(&tree)).ok();
    let control = tree.join("DEBIAN/control");
    let text = fs::read_to_string(&control).unwrap();
    let lines = text.lines().map(|line| match line.split_once(": ") {
        Some(("Version", _)) => "Version: 0.0.1-1\n".to_owned(),
        _ => format!("{line}\n"),
    });
    fs::write(&control, lines.collect::<String>()).unwrap();
    fs::write(tree.join("usr/share/evfs/of-the-past"), "").unwrap();
    let older = s.path("evfs_0.0.1-1_older.deb");
    let mut pack = Command::new("dpkg-deb");
    pack.args(["-Zgzip", "-z1", "--root-owner-group", "--build"]);
    Ran::of(pack.arg(tree).arg(&older)).ok();
    older
}
