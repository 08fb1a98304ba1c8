//! The process that rolls a fileset back, or that takes and removes snapshots by the clock, is
//! killed: the file system opens and is clean, and each tree is as before or as after.
//!
//! | variable | effect |
//! |---|---|
//! | `EVFS_TEST_KILLS=200` | number of kills of each test (default: 8) |
//! | `EVFS_SEED=N` | repeats the same moments, as far as timing permits |

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tests::mounts::{Disk, Mounted, On, is_mounted, take_away};
use tests::{Random, Sandbox, needs_root, wait_until};

/// Files of the tree; enough that a rollback or a removal takes several commits.
const FILES: usize = 900;

/// Image that a test copies for each kill.
const BASE: &str = "clear.img";

/// Copy of [`BASE`].
const WORK: &str = "work.img";

/// Content of each file of a tree.
type Content = BTreeMap<String, Vec<u8>>;

fn content(dir: &Path) -> Content {
    let listed = fs::read_dir(dir).unwrap().map(Result::unwrap);
    let read = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        (name, fs::read(entry.path()).unwrap())
    };
    listed.map(read).collect()
}

/// Rewrites, removes and creates files: a third of all each.
fn change(dir: &Path, round: usize) {
    for n in 0..FILES {
        let path = dir.join(n.to_string());
        if (n + round).is_multiple_of(3) {
            let _ = fs::remove_file(path);
        } else if (n + round) % 3 == 1 {
            fs::write(path, format!("{n} {round}").repeat(500 + n)).unwrap();
        }
    }
}

fn kills() -> u64 {
    std::env::var("EVFS_TEST_KILLS").map_or(8, |n| n.parse().expect("a number"))
}

/// Starts a command whose output is not needed.
fn start(command: &mut Command) -> Child {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null());
    quiet.stderr(Stdio::null()).spawn().expect("it starts")
}

/// Chooses moments to kill a process that takes about `whole`.
fn moment(random: &mut Random, whole: Duration) -> Duration {
    Duration::from_micros(random.below(whole.as_micros() as u64))
}

/// Process that rolls back.
enum By {
    /// The command itself, on an image that is not mounted.
    Command,
    /// The server of a mount of another fileset.
    Server,
}

fn a_killed_rollback_is_complete_or_has_no_effect(by: By) {
    needs_root("killing a process in the middle of a rollback");
    let s = Sandbox::new();
    let mut random = Random::from_environment();
    let disk = Disk::new(&s, On::Clear, "64M");
    s.run(&["fileset", "create", BASE, "other"]).ok();
    let mounted = disk.mount(&[]);
    change(mounted.dir(), 0);
    s.run(&["fileset", "snapshot", "mnt", "main", "then"]).ok();
    let then = content(mounted.dir());
    change(mounted.dir(), 1);
    let before = content(mounted.dir());
    mounted.unmount(&s);
    assert_ne!(then, before);

    let disk = Disk::existing(&s, WORK);
    let rollback = |device: &str| {
        let mut command = s.evfs();
        command.args(["fileset", "rollback", device, "main", "then"]);
        command.args(["--keep", "kept", "--yes"]);
        start(&mut command)
    };
    let begin = || -> (Option<Mounted>, Child) {
        fs::copy(s.path(BASE), s.path(WORK)).unwrap();
        match by {
            By::Command => (None, rollback(WORK)),
            By::Server => {
                let mounted = disk.mount(&["--fileset", "other"]);
                (Some(mounted), rollback("mnt"))
            }
        }
    };
    let (mounted, mut command) = begin();
    let started = Instant::now();
    assert!(command.wait().unwrap().success());
    let whole = started.elapsed();
    if let Some(mounted) = mounted {
        mounted.unmount(&s);
    }
    let mounted = disk.mount(&[]);
    assert!(content(mounted.dir()) == then, "without a kill");
    assert!(content(&mounted.path(".snapshots/kept")) == before);
    mounted.unmount(&s);
    let (mut as_before, mut as_then) = (0, 0);
    for kill in 0..kills() {
        let (mounted, mut command) = begin();
        std::thread::sleep(moment(&mut random, whole));
        match mounted {
            Some(mounted) => mounted.kill(),
            None => command.kill().unwrap(),
        }
        command.wait().unwrap();
        disk.check();
        let mounted = disk.mount(&[]);
        let now = content(mounted.dir());
        let snapshots = mounted.path(".snapshots");
        assert!(content(&snapshots.join("then")) == then, "kill {kill}");
        let kept = snapshots.join("kept");
        if kept.exists() {
            assert!(content(&kept) == before, "kill {kill}");
        }
        if now == then {
            as_then += 1;
            assert!(kept.exists(), "kill {kill}");
        } else {
            as_before += 1;
            assert!(now == before, "kill {kill}: a mixture");
        }
        mounted.unmount(&s);
        disk.check();
    }
    eprintln!("{as_before} as before, {as_then} as the snapshot");
    assert_eq!(as_before + as_then, kills());
}

#[test]
fn a_killed_command_has_rolled_back_or_not() {
    a_killed_rollback_is_complete_or_has_no_effect(By::Command);
}

#[test]
fn a_killed_server_has_rolled_back_or_not() {
    a_killed_rollback_is_complete_or_has_no_effect(By::Server);
}

#[test]
fn a_killed_schedule_goes_on_at_the_next_start() {
    needs_root("killing a process that takes snapshots");
    let s = Sandbox::new();
    let mut random = Random::from_environment();
    let disk = Disk::new(&s, On::Clear, "64M");
    let mounted = disk.mount(&[]);
    let mut old = BTreeMap::new();
    for round in 0..3 {
        change(mounted.dir(), round);
        let name = format!("main-hourly-2020010{}T0000Z", round + 1);
        s.run(&["fileset", "snapshot", "mnt", "main", &name]).ok();
        old.insert(name, content(mounted.dir()));
    }
    change(mounted.dir(), 3);
    let now = content(mounted.dir());
    mounted.unmount(&s);
    let table =
        format!("[mount.data]\ndevice = \"{WORK}\"\nat = \"mnt\"\nkeep-snapshots.hourly = 1\n");
    fs::write(s.path("up.toml"), table).unwrap();
    let disk = Disk::existing(&s, WORK);
    let up = || start(s.evfs().args(["up", "up.toml"]));
    let at = s.path("mnt");
    let names = || -> Vec<String> {
        let listed = s.json(&["fileset", "list", WORK]);
        let all = listed["filesets"].as_array().unwrap().iter();
        let snapshots = all.filter(|one| !one["snapshot_of"].is_null());
        let name = |one: &serde_json::Value| one["name"].as_str().unwrap().to_owned();
        snapshots.map(name).collect()
    };
    let is_done = || {
        let all = names();
        all.len() == 1 && !old.contains_key(&all[0])
    };
    // Returns once the snapshots are those that the table asks for.
    let run = || {
        let started = Instant::now();
        let mut up = up();
        wait_until("it is mounted", || is_mounted(&at));
        wait_until("one new snapshot remains", is_done);
        let whole = started.elapsed();
        s.run(&["down"]).ok();
        assert!(up.wait().unwrap().success());
        whole
    };
    fs::copy(s.path(BASE), s.path(WORK)).unwrap();
    let whole = run();
    for kill in 0..kills() {
        fs::copy(s.path(BASE), s.path(WORK)).unwrap();
        let mut up = up();
        std::thread::sleep(moment(&mut random, whole));
        up.kill().unwrap();
        up.wait().unwrap();
        take_away(&at);
        disk.check();
        let mounted = disk.mount(&[]);
        assert!(content(mounted.dir()) == now, "kill {kill}");
        let all = names();
        assert!(!all.is_empty(), "kill {kill}: no snapshot is left");
        for name in all {
            let found = content(&mounted.path(".snapshots").join(&name));
            assert!(found == *old.get(&name).unwrap_or(&now), "{kill}: {name}");
        }
        mounted.unmount(&s);
        if kill.is_multiple_of(4) {
            run();
            disk.check();
        }
    }
}
