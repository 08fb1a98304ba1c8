//! Tests of environments: names, simulated hierarchies, and this machine.

use super::groups::Hierarchy;
use super::*;
use rustix::thread::sched_getaffinity;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Serializes the tests: processes, groups and CPU affinity belong to the whole process.
static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ONE.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn named(name: &str) -> RunEnvironment {
    name.parse().unwrap()
}

#[test]
fn names_are_read_back() {
    let all: Vec<RunEnvironment> = RunEnvironment::all().collect();
    assert_eq!(all.len(), 16);
    assert!(all.iter().any(|s| s.to_string() == "guest"));
    for surroundings in all {
        assert_eq!(named(&surroundings.to_string()), surroundings);
        let json = serde_json::to_string(&surroundings).unwrap();
        let back: RunEnvironment = serde_json::from_str(&json).unwrap();
        assert_eq!(back, surroundings);
    }
    assert_eq!(RunEnvironment::default().to_string(), "idle");
    let unknown = "busy".parse::<RunEnvironment>().unwrap_err().to_string();
    assert!(unknown.contains("partitioned-loaded-build"), "{unknown}");
}

const V1: &str = "\
34 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
41 31 0:38 / /nowhere/unified rw,relatime - cgroup2 cgroup2 rw
";
const CONTAINED: &str = "9 8 0:30 /pod/one /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n";

#[test]
fn the_hierarchy_with_the_controller_is_found_and_the_own_group_in_it() {
    let v1 = Hierarchy::find(V1).unwrap();
    let own = "3:cpuset:/other\n2:cpu,cpuacct:/user/me\n0::/unified\n";
    let group = PathBuf::from("/sys/fs/cgroup/cpu,cpuacct/user/me");
    assert_eq!(v1.group(own), Some(group));
    assert_eq!(v1.group("3:cpuset:/other\n"), None);
    // In a container the mount shows a part of the hierarchy, and the path is that of the whole.
    let part = Hierarchy::find(CONTAINED).unwrap();
    let group = PathBuf::from("/sys/fs/cgroup/cpu/below");
    assert_eq!(part.group("1:cpu:/pod/one/below\n"), Some(group));
    assert!(Hierarchy::find("1 2 0:3 / /proc rw - proc proc rw\n").is_none());
    assert!(Hierarchy::find("rubbish\n - \n").is_none());
}

#[test]
fn a_v2_mount_counts_where_it_has_the_controller() {
    let dir = tempfile::tempdir().unwrap();
    let mount = dir.path().display();
    let mounts = format!("41 31 0:38 / {mount} rw - cgroup2 cgroup2 rw\n");
    assert!(Hierarchy::find(&mounts).is_none(), "no controllers at all");
    std::fs::write(dir.path().join("cgroup.controllers"), "cpuset cpu io\n").unwrap();
    let v2 = Hierarchy::find(&mounts).unwrap();
    let group = dir.path().join("user/me.scope");
    assert_eq!(v2.group("1:cpu:/v1\n0::/user/me.scope\n"), Some(group));
}

/// Sums the CPU ticks that processes have used so far.
fn ticks(pids: &[u32]) -> u64 {
    let of = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let mut fields = stat.rsplit_once(')').unwrap().1.split_whitespace().skip(11);
        let mut next = || fields.next().unwrap().parse::<u64>().unwrap();
        next() + next() + next() + next()
    };
    pids.iter().map(of).sum()
}

fn eventually(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < deadline, "{what}: not within 30 s");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_competitor_uses_the_processor_and_is_gone_afterwards() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let target = Target::folder(dir.path()).unwrap();
    for name in ["loaded", "loaded-io"] {
        let beside = named(name).begin(&target).unwrap();
        let pids = beside.pids();
        assert!(!pids.is_empty());
        eventually(name, || ticks(&pids) >= 2);
        beside.end().unwrap();
        for pid in pids {
            assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{name}");
    }
}

#[test]
fn a_competitor_that_ended_fails_the_run() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let target = Target::folder(dir.path()).unwrap();
    let beside = named("loaded-io").begin(&target).unwrap();
    let pid = beside.pids()[0];
    let process = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    eventually("killed", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.contains(") Z ")
    });
    let error = beside.end().unwrap_err().to_string();
    assert!(error.contains("ended during the run"), "{error}");
}

#[test]
fn halves_are_apart_and_everything_is_put_back() {
    let _alone = alone();
    let before = sched_getaffinity(None).unwrap();
    let mut daemon = Command::new("sleep")
        .arg("600")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let daemon_pid = rustix::process::Pid::from_raw(daemon.id().cast_signed());
    let mut target = Target::machine();
    target.daemons = vec![daemon.id()];
    if before.count() < 2 {
        let refused = named("partitioned-loaded").begin(&target).err().unwrap();
        assert!(refused.to_string().contains("two CPUs"));
    } else {
        let beside = named("partitioned-loaded").begin(&target).unwrap();
        let work = sched_getaffinity(None).unwrap();
        assert_eq!(sched_getaffinity(daemon_pid).unwrap(), work);
        let competitor = rustix::process::Pid::from_raw(beside.pids()[0].cast_signed());
        let load = sched_getaffinity(competitor).unwrap();
        let both = |n: usize| work.is_set(n) && load.is_set(n);
        assert!(!(0..1024).any(both), "{work:?} {load:?}");
        assert_eq!(work.count() + load.count(), before.count());
        beside.end().unwrap();
    }
    assert_eq!(sched_getaffinity(None).unwrap(), before);
    assert_eq!(sched_getaffinity(daemon_pid).unwrap(), before);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

#[test]
fn groups_are_made_and_removed_where_they_may_be() {
    let _alone = alone();
    let own = || std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let before = own();
    match named("shared-loaded").begin(&Target::machine()) {
        Ok(beside) => {
            assert!(own().contains("/work\n"), "{}", own());
            let of = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
            assert!(beside.pids().iter().all(|pid| of(pid).contains("/load\n")));
            beside.end().unwrap();
        }
        Err(e) => {
            eprintln!("no groups may be made here: {e}");
            assert!(e.to_string().contains("needs control groups"), "{e}");
        }
    }
    assert_eq!(own(), before);
}
