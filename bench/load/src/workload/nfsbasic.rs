//! `nfsbasic`, modeled on the basic tests of the Connectathon suite (2004): nine small tests of a
//! file server's operations, with the counts of 1990, which the suite still uses.
//!
//! Each test creates its files outside the timed section, performs its operations within it, checks
//! every result, and removes its files. Differences from the original: times are in nanoseconds
//! (the original prints hundredths without leading zeros, so 0.02 appears as 0.2), the mean per
//! operation is shown, and the counts are those of calls, not of loop iterations.

use bench_core::files::{Files, Open};
use bench_core::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::io;
use std::time::Instant;

/// Bytes of a read or write of test 5.
const BLOCK: usize = 8192;
/// Length of the file of test 5 in bytes.
const FILE: usize = 1 << 20;

/// Counts of the tests. The default is the suite's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Tests 1 and 2: levels of the tree, files per directory, directories per directory.
    pub tree: (u32, u32, u32),
    /// Test 3: number of `getcwd` and `stat` pairs.
    pub getcwd: u64,
    /// Test 4: number of files, and repetitions for each.
    pub chmod: (u64, u64),
    /// Test 5: number of times that the file is written and read.
    pub rewrite: u64,
    /// Test 6: number of files, and passes over the directory.
    pub readdir: (u64, u64),
    /// Test 7: number of files, and repetitions for each.
    pub rename: (u64, u64),
    /// Test 8: number of files, and repetitions for each.
    pub symlink: (u64, u64),
    /// Test 9: number of calls.
    pub statfs: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            tree: (5, 5, 2),
            getcwd: 250,
            chmod: (10, 50),
            rewrite: 10,
            readdir: (200, 200),
            rename: (10, 10),
            symlink: (10, 20),
            statfs: 1500,
        }
    }
}

impl Config {
    /// Multiplies the suite's counts by `k`, for file systems too fast for the clock.
    pub fn scaled(k: u64) -> Config {
        let own = Config::default();
        Config {
            tree: own.tree,
            getcwd: own.getcwd * k,
            chmod: (own.chmod.0, own.chmod.1 * k),
            rewrite: own.rewrite * k,
            readdir: own.readdir,
            rename: (own.rename.0, own.rename.1 * k),
            symlink: (own.symlink.0, own.symlink.1 * k),
            statfs: own.statfs * k,
        }
    }
}

/// Result of one test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TestResult {
    /// Number of the test, `1` to `9`; `5a` writes and `5b` reads.
    pub test: String,
    /// Description in the words of the original.
    pub what: String,
    /// Calls within the timed section; `None` if the target does not support the test.
    pub operations: Option<u64>,
    /// Bytes transferred within the timed section.
    pub bytes: u64,
    /// Duration in seconds.
    pub secs: f64,
}

/// Runs the nine tests on an empty target and leaves it empty.
///
/// # Errors
/// [`Error::Files`] for errors of the target and for wrong results.
pub fn run(files: &dyn Files, config: &Config) -> Result<Vec<TestResult>> {
    let tests = Tests { files };
    let mut outcomes = Vec::new();
    outcomes.extend(tests.trees(config.tree)?);
    outcomes.push(tests.getcwd(config.getcwd)?);
    outcomes.push(tests.chmod(config.chmod)?);
    outcomes.extend(tests.rewrite(config.rewrite)?);
    outcomes.push(tests.readdir(config.readdir)?);
    outcomes.push(tests.rename(config.rename)?);
    outcomes.push(tests.symlink(config.symlink)?);
    outcomes.push(tests.statfs(config.statfs)?);
    Ok(outcomes)
}

struct Tests<'a> {
    files: &'a dyn Files,
}

impl Tests<'_> {
    /// Tests 1 and 2: creates a tree and removes it.
    fn trees(&self, (levels, files, folders): (u32, u32, u32)) -> Result<[TestResult; 2]> {
        self.files
            .mkdir("tree")
            .map_err(|e| self.failed("mkdir", "tree", e))?;
        let mut counts = (0, 0);
        let began = Instant::now();
        self.grow("tree", levels, files, folders, &mut counts)?;
        let grown = began.elapsed().as_secs_f64();
        let began = Instant::now();
        self.fell("tree", levels, files, folders)?;
        let felled = began.elapsed().as_secs_f64();
        self.files
            .rmdir("tree")
            .map_err(|e| self.failed("rmdir", "tree", e))?;
        let outcome = |test: &str, verb: &str, secs| TestResult {
            test: test.into(),
            what: format!(
                "{verb} {} files {} directories {levels} levels deep",
                counts.0, counts.1
            ),
            operations: Some(counts.0 + counts.1),
            bytes: 0,
            secs,
        };
        Ok([
            outcome("1", "created", grown),
            outcome("2", "removed", felled),
        ])
    }

    fn grow(
        &self,
        at: &str,
        levels: u32,
        files: u32,
        folders: u32,
        counts: &mut (u64, u64),
    ) -> Result<()> {
        if levels == 0 {
            return Ok(());
        }
        for n in 0..files {
            self.create(&format!("{at}/file.{n}"))?;
            counts.0 += 1;
        }
        for n in 0..folders {
            let folder = format!("{at}/dir.{n}");
            self.files
                .mkdir(&folder)
                .map_err(|e| self.failed("mkdir", &folder, e))?;
            counts.1 += 1;
            self.grow(&folder, levels - 1, files, folders, counts)?;
        }
        Ok(())
    }

    fn fell(&self, at: &str, levels: u32, files: u32, folders: u32) -> Result<()> {
        if levels == 0 {
            return Ok(());
        }
        for n in 0..files {
            self.unlink(&format!("{at}/file.{n}"))?;
        }
        for n in 0..folders {
            let folder = format!("{at}/dir.{n}");
            self.fell(&folder, levels - 1, files, folders)?;
            self.files
                .rmdir(&folder)
                .map_err(|e| self.failed("rmdir", &folder, e))?;
        }
        Ok(())
    }

    /// Test 3: looks up the target's own directory from the root and stats it.
    fn getcwd(&self, times: u64) -> Result<TestResult> {
        self.timed(
            "3",
            times * 2,
            0,
            format!("{} getcwd and stat calls", times * 2),
            || {
                for _ in 0..times {
                    self.files
                        .getcwd()
                        .map_err(|e| self.failed("getcwd", ".", e))?;
                    self.files
                        .stat(".")
                        .map_err(|e| self.failed("stat", ".", e))?;
                }
                Ok(())
            },
        )
    }

    /// Test 4: sets permission bits and reads them back.
    fn chmod(&self, (count, times): (u64, u64)) -> Result<TestResult> {
        let names = names("chmod", count);
        names.iter().try_for_each(|name| self.create(name))?;
        // Two calls are counted per iteration, as in the original.
        let what = format!("{} chmods and stats on {count} files", count * times * 2);
        let outcome = self.timed("4", count * times * 4, 0, what, || {
            for (name, mode) in names
                .iter()
                .flat_map(|n| (0..times * 2).map(move |i| (n, [0, 0o666][(i % 2) as usize])))
            {
                self.files
                    .chmod(name, mode)
                    .map_err(|e| self.failed("chmod", name, e))?;
                let found = self
                    .files
                    .stat(name)
                    .map_err(|e| self.failed("stat", name, e))?;
                self.expect(
                    "stat",
                    name,
                    found.mode == mode,
                    "does not have the permission bits that were set",
                )?;
            }
            Ok(())
        })?;
        names.iter().try_for_each(|name| self.unlink(name))?;
        Ok(outcome)
    }

    /// Tests 5a and 5b: writes a file repeatedly, then reads and compares it.
    fn rewrite(&self, times: u64) -> Result<[TestResult; 2]> {
        let name = "bigfile";
        let mut text = vec![0; BLOCK];
        bench_core::rng::Rng::new(5).fill(&mut text);
        let bytes = times * FILE as u64;
        let blocks = (FILE / BLOCK) as u64;
        let what = |verb: &str| format!("{verb} {FILE} byte file {times} times");
        let wrote = self.timed("5a", times * (blocks + 4), bytes, what("wrote"), || {
            for _ in 0..times {
                let file = self
                    .files
                    .open(name, Open::CREATE)
                    .map_err(|e| self.failed("creat", name, e))?;
                let size = file.size().map_err(|e| self.failed("fstat", name, e))?;
                self.expect("fstat", name, size == 0, "is not empty after truncation")?;
                for n in 0..blocks {
                    let at = n * BLOCK as u64;
                    file.write_at(at, &text)
                        .map_err(|e| self.failed("write", name, e))?;
                }
                drop(file);
                let found = self
                    .files
                    .stat(name)
                    .map_err(|e| self.failed("stat", name, e))?;
                self.expect(
                    "stat",
                    name,
                    found.size == FILE as u64,
                    "does not have the length that was written",
                )?;
            }
            Ok(())
        })?;
        let read = self.timed("5b", times * (blocks + 2), bytes, what("read"), || {
            let mut found = vec![0; BLOCK];
            for _ in 0..times {
                let file = self
                    .files
                    .open(name, Open::READ)
                    .map_err(|e| self.failed("open", name, e))?;
                for n in 0..blocks {
                    let at = n * BLOCK as u64;
                    let got = file
                        .read_at(at, &mut found)
                        .map_err(|e| self.failed("read", name, e))?;
                    self.expect(
                        "read",
                        name,
                        got == BLOCK && found == text,
                        "does not contain the data that was written",
                    )?;
                }
            }
            Ok(())
        })?;
        self.unlink(name)?;
        Ok([wrote, read])
    }

    /// Test 6: reads a directory repeatedly while its files are removed one by one.
    fn readdir(&self, (count, passes): (u64, u64)) -> Result<TestResult> {
        let folder = "entries";
        self.files
            .mkdir(folder)
            .map_err(|e| self.failed("mkdir", folder, e))?;
        let names: Vec<String> = (0..count).map(|n| format!("file.{n}")).collect();
        let path = |name: &str| format!("{folder}/{name}");
        names.iter().try_for_each(|name| self.create(&path(name)))?;
        let mut there: HashSet<&str> = names.iter().map(String::as_str).collect();
        let mut entries = 0;
        let began = Instant::now();
        for name in names.iter().take(passes as usize) {
            let found = self
                .files
                .readdir(folder)
                .map_err(|e| self.failed("readdir", folder, e))?;
            entries += found.len() as u64;
            let found: Vec<&str> = found
                .iter()
                .map(String::as_str)
                .filter(|n| !matches!(*n, "." | ".."))
                .collect();
            let once: HashSet<&str> = found.iter().copied().collect();
            let right = once.len() == found.len() && once == there;
            self.expect(
                "readdir",
                folder,
                right,
                "does not list exactly the existing names",
            )?;
            self.unlink(&path(name))?;
            there.remove(name.as_str());
        }
        let secs = began.elapsed().as_secs_f64();
        there.iter().try_for_each(|name| self.unlink(&path(name)))?;
        self.files
            .rmdir(folder)
            .map_err(|e| self.failed("rmdir", folder, e))?;
        Ok(TestResult {
            test: "6".into(),
            what: format!("{entries} entries read, {count} files"),
            operations: Some(entries),
            bytes: 0,
            secs,
        })
    }

    /// Test 7: renames files and creates hard links.
    fn rename(&self, (count, times): (u64, u64)) -> Result<TestResult> {
        let names = names("rename", count);
        names.iter().try_for_each(|name| self.create(name))?;
        let links = |name: &str, count: u64| {
            let found = self
                .files
                .stat(name)
                .map_err(|e| self.failed("stat", name, e))?;
            self.expect("stat", name, found.links == count, "has a wrong link count")
        };
        let gone = |name: &str| {
            let found = self.files.stat(name);
            let gone = found.is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
            self.expect("stat", name, gone, "still exists under its old name")
        };
        let what = format!("{} renames and links on {count} files", count * times * 2);
        let outcome = self.timed("7", count * times * 8, 0, what, || {
            for name in names.iter().flat_map(|n| (0..times).map(move |_| n)) {
                let other = format!("{name}.new");
                self.files
                    .rename(name, &other)
                    .map_err(|e| self.failed("rename", name, e))?;
                gone(name)?;
                links(&other, 1)?;
                self.files
                    .link(&other, name)
                    .map_err(|e| self.failed("link", name, e))?;
                links(name, 2)?;
                links(&other, 2)?;
                self.unlink(&other)?;
                links(name, 1)?;
            }
            Ok(())
        })?;
        names.iter().try_for_each(|name| self.unlink(name))?;
        Ok(outcome)
    }

    /// Test 8: symbolic links; skipped if the target does not support them.
    fn symlink(&self, (count, times): (u64, u64)) -> Result<TestResult> {
        let names = names("symlink", count);
        let what = format!(
            "{} symlinks and readlinks on {count} files",
            count * times * 2
        );
        let done = self.timed("8", count * times * 4, 0, what.clone(), || {
            for (name, turn) in names.iter().flat_map(|n| (0..times).map(move |t| (n, t))) {
                let text = format!("this is a symlink.{turn}");
                self.files
                    .symlink(&text, name)
                    .map_err(|e| self.failed("symlink", name, e))?;
                let link = self
                    .files
                    .is_symlink(name)
                    .map_err(|e| self.failed("lstat", name, e))?;
                self.expect("lstat", name, link, "is not a symbolic link")?;
                let found = self
                    .files
                    .readlink(name)
                    .map_err(|e| self.failed("readlink", name, e))?;
                self.expect(
                    "readlink",
                    name,
                    found == text,
                    "does not contain the text that was set",
                )?;
                self.unlink(name)?;
            }
            Ok(())
        });
        match done {
            Err(Error::Files { source, .. }) if source.kind() == io::ErrorKind::Unsupported => {
                Ok(TestResult {
                    test: "8".into(),
                    what,
                    operations: None,
                    bytes: 0,
                    secs: 0.0,
                })
            }
            done => done,
        }
    }

    /// Test 9: queries the free space.
    fn statfs(&self, times: u64) -> Result<TestResult> {
        self.timed("9", times, 0, format!("{times} statfs calls"), || {
            for _ in 0..times {
                self.files
                    .statfs()
                    .map_err(|e| self.failed("statfs", ".", e))?;
            }
            Ok(())
        })
    }

    fn timed(
        &self,
        test: &str,
        operations: u64,
        bytes: u64,
        what: String,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<TestResult> {
        let began = Instant::now();
        work()?;
        Ok(TestResult {
            test: test.into(),
            what,
            operations: Some(operations),
            bytes,
            secs: began.elapsed().as_secs_f64(),
        })
    }

    fn create(&self, name: &str) -> Result<()> {
        let made = self.files.open(name, Open::CREATE);
        made.map(drop).map_err(|e| self.failed("creat", name, e))
    }

    fn unlink(&self, name: &str) -> Result<()> {
        self.files
            .unlink(name)
            .map_err(|e| self.failed("unlink", name, e))
    }

    fn expect(&self, call: &'static str, path: &str, holds: bool, otherwise: &str) -> Result<()> {
        if holds {
            Ok(())
        } else {
            Err(self.failed(call, path, io::Error::other(format!("{path} {otherwise}"))))
        }
    }

    fn failed(&self, call: &'static str, path: &str, source: io::Error) -> Error {
        Error::on_files(self.files.name(), call, path, source)
    }
}

fn names(stem: &str, count: u64) -> Vec<String> {
    (0..count).map(|n| format!("{stem}.{n}")).collect()
}
