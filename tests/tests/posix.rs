//! Independent test suites on a mounted file system: all of pjdfstest checks POSIX semantics; fsx
//! changes a file in every possible way and compares it with the expected content; stress-ng uses
//! every system call of file systems and verifies the results; dbench replays the load of a file
//! server.
//!
//! `EVFS_FSX_RUNS` and `EVFS_FSX_OPS` make fsx run longer; it slows down with the length of a run,
//! so prefer more runs to longer ones. `EVFS_STRESS_SECONDS` is the time of each of the stressors
//! and of dbench. `EVFS_SEED` repeats a run.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tests::mounts::{Disk, Mounted, On};
use tests::{Ran, Random, Sandbox, needs_root, program};

/// The guide, which lists the deviations from POSIX.
const GUIDE: &str = include_str!("../../docs/guide/filesystem.md");

/// Beginning of that list.
const LIST: &str = "| case of pjdfstest | ends | why |";

/// Returns the path of a program that `cargo xtask setup` has built.
fn tool(name: &str) -> PathBuf {
    let built = program();
    let target = built.ancestors().nth(2).expect("target/PROFILE/evfs");
    target.join("tools/bin").join(name)
}

/// Creates a world-writable directory.
fn open_folder(path: PathBuf) -> PathBuf {
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    path
}

/// Runs pjdfstest, and returns the result of each case: `ok`, `skipped`, `FAILED`.
fn pjdfstest(
    s: &Sandbox,
    mounted: &Mounted,
    remount: bool,
    cases: &[&str],
) -> BTreeMap<String, String> {
    // Two users that every Debian has; and the granularity of our times is a nanosecond.
    let config = format!(
        "[features]\nposix_fallocate = {{}}\nrename_ctime = {{}}\nutime_now = {{}}\nutimensat = {{}}\n\
         [settings]\nnaptime = 0.02\nallow_remount = {remount}\n\
         [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"games\", \"games\"]]\n"
    );
    fs::write(s.path("pjdfstest.toml"), config).unwrap();
    let mut suite = Command::new(tool("pjdfstest"));
    suite.arg("-c").arg(s.path("pjdfstest.toml"));
    suite.arg("-p").arg(mounted.path("suite"));
    // Another file system: that of the sandbox.
    suite.arg("-s").arg(s.path("second")).args(cases);
    let path = std::env::var("PATH").unwrap_or_default();
    suite.env("PATH", format!("{}:{path}", s.path("bin").display()));
    let ran = Ran::of(&mut suite);
    let outcome = |line: &str| {
        let mut words = line.split_whitespace();
        let (name, outcome) = (words.next()?, words.next()?);
        let is_case = words.next().is_none() && name.contains("::") && !line.starts_with('\t');
        is_case.then(|| (name.to_owned(), outcome.to_owned()))
    };
    let ended: BTreeMap<_, _> = ran.stdout.lines().filter_map(outcome).collect();
    let summed = format!("{} total", ended.len());
    assert!(ran.stdout.contains(&summed), "not understood: {ran:?}");
    for line in ran.stdout.lines() {
        if line.contains("FAILED") || line.starts_with('\t') {
            eprintln!("{line}");
        }
    }
    ended
}

#[test]
fn pjdfstest_finds_nothing_but_what_the_guide_says() {
    needs_root("pjdfstest, which acts as several users");
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Clear, "1G");
    let mounted = disk.mount(&["--suid", "--dev"]);
    // The users of the suite need access.
    fs::set_permissions(s.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    open_folder(mounted.path("suite"));
    open_folder(s.path("second"));
    // mount(8) would use a FUSE helper program to remount read-only.
    fs::create_dir(s.path("bin")).unwrap();
    let plain = "#!/bin/sh\nexec /bin/mount -i \"$@\"\n";
    fs::write(s.path("bin/mount"), plain).unwrap();
    fs::set_permissions(s.path("bin/mount"), fs::Permissions::from_mode(0o755)).unwrap();

    // The suite leaves files open, which prevents later read-only remounts; so the cases with
    // remounts have a run of their own.
    let mut ended = pjdfstest(&s, &mounted, false, &[]);
    ended.extend(pjdfstest(&s, &mounted, true, &["erofs"]));
    let count = |what: &str| ended.values().filter(|ended| *ended == what).count();
    eprintln!(
        "pjdfstest: {} ok, {} failed, {} skipped",
        count("ok"),
        count("FAILED"),
        count("skipped")
    );
    assert!(count("ok") > 350, "{ended:#?}");
    let mut others = ended.clone();
    others.retain(|_, ended| ended != "ok");
    assert_eq!(others, published(), "the guide's list says something else");
    mounted.unmount(&s);
    disk.check();
}

/// Returns the list of the guide.
fn published() -> BTreeMap<String, String> {
    let (_, list) = GUIDE.split_once(LIST).expect("the guide has the list");
    let rows = list.trim_start().lines().skip(1);
    let row = |line: &str| {
        let mut cells = line.strip_prefix('|')?.split('|');
        let case = cells.next()?.trim().trim_matches('`').to_owned();
        Some((case, cells.next()?.trim().to_owned()))
    };
    rows.map_while(row).collect()
}

fn number(variable: &str, default: u64) -> u64 {
    let set = std::env::var(variable);
    set.map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn fsx_finds_no_byte_that_differs() {
    fsx_on(None);
}

#[test]
fn fsx_finds_no_byte_that_differs_while_the_server_is_killed() {
    fsx_on(Some(Duration::from_millis(500)));
}

fn fsx_on(kills: Option<Duration>) {
    // posix_fallocate(3) refuses a length of 0, so no operation has it.
    const CONFIG: &str = "flen = 1048576\n[opsize]\nmin = 1\nmax = 65536\n[weights]\nclose_open = 1\nread = 10\n\
         write = 10\nmapread = 10\nmapwrite = 10\ninvalidate = 1\ntruncate = 3\nfsync = 0.3\n\
         fdatasync = 0.3\nposix_fallocate = 3\npunch_hole = 3\nsendfile = 3\nposix_fadvise = 1\n\
         copy_file_range = 3\n";
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Clear, "1G").killed_every(kills);
    let mounted = disk.mount(&[]);
    let config = s.path("fsx.toml");
    fs::write(&config, CONFIG).unwrap();
    // Most time passes while no server runs.
    let fewer = if kills.is_some() { 5 } else { 1 };
    let ops = number("EVFS_FSX_OPS", 20_000 / fewer);
    let runs = number("EVFS_FSX_RUNS", 2);
    let mut random = Random::from_environment();
    for run in 0..runs {
        let seed = random.below(1 << 31).to_string();
        fsx(&config, &mounted.path(&format!("file {run}")), ops, &seed);
    }
    mounted.unmount(&s);
    disk.check();
}

fn fsx(config: &Path, file: &Path, ops: u64, seed: &str) {
    let mut fsx = Command::new(tool("fsx"));
    fsx.arg("-f").arg(config).args(["-N", &ops.to_string()]);
    // fsx stores artifacts here for the analysis of a difference.
    let kept = config.with_file_name("differs");
    fs::create_dir_all(&kept).unwrap();
    fsx.args(["-S", seed, "-P"]).arg(kept).arg(file);
    let ran = Ran::of(fsx.env("RUST_LOG", "error")).ok();
    let said = ran.stdout + &ran.stderr;
    assert!(said.contains("All operations completed"), "{said}");
    fs::remove_file(file).unwrap();
}

#[test]
fn stress_ng_verifies_what_every_stressor_of_file_systems_does() {
    /// Removes the mounts of other tests from its namespace, those on top first, and runs a command:
    /// all of FUSE but its own, and all on loop devices, over which a server may have been killed.
    const ALONE: &str = r#"
        own=$(realpath "$0")
        tac /proc/self/mounts |
            awk -v own="$own" '($3 ~ /^fuse/ && $2 != own) || $1 ~ /^.dev.loop/ { print $2 }' |
            xargs -r -n 1 umount --lazy
        exec "$@"
    "#;
    /// Stressors of what the kernel does not pass to a FUSE server.
    const SKIPPED: [&str; 2] = ["fiemap", "verity"];
    needs_root("stressors that make device nodes and set privileged attributes");
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Clear, "2G");
    let mounted = disk.mount(&[]);
    let seconds = number("EVFS_STRESS_SECONDS", 1).to_string();
    // One stressor syncs all mounts. Those of other tests end at any moment, so it sees none.
    let mut stress = Command::new("unshare");
    stress.args(["--mount", "--propagation", "private", "sh", "-euc", ALONE]);
    stress.arg(mounted.path(""));
    stress.args(["stress-ng", "--class", "filesystem", "--sequential", "1"]);
    stress.arg("--verify");
    // This one needs another file system of the kernel.
    stress.args(["--exclude", "binderfs"]);
    stress.args(["--timeout", &seconds, "--temp-path"]);
    let ran = Ran::of(stress.arg(mounted.path(""))).ok();
    let said = ran.stdout + &ran.stderr;
    assert!(said.contains("successful run completed"), "{said}");
    for line in said.lines().filter(|line| line.contains("skipping")) {
        let known = |name: &&str| line.contains(&format!(" {name}: "));
        assert!(SKIPPED.iter().any(known), "{line}");
    }
    mounted.unmount(&s);
    disk.check();
}

#[test]
fn dbench_replays_four_clients_of_a_file_server() {
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Clear, "1G");
    let mounted = disk.mount(&[]);
    let seconds = number("EVFS_STRESS_SECONDS", 5).to_string();
    let mut dbench = Command::new("dbench");
    dbench
        .args(["-t", &seconds, "-D"])
        .arg(mounted.path(""))
        .arg("4");
    let ran = Ran::of(&mut dbench).ok();
    assert!(ran.stdout.contains("Throughput"), "{ran:?}");
    assert!(!ran.stdout.contains("ERROR"), "{ran:?}");
    mounted.unmount(&s);
    disk.check();
}
