//! Two control groups of equal weight, one for the workload and one for its competitor.
//!
//! ```text
//!   HERE/evfs-bench-PID/work    this process and the daemons of the target
//!                    /load    the competitor
//! ```
//!
//! HERE is this process's own group of the v1 controller `cpu`, whose groups may contain both
//! processes and groups. In v2 it is the parent of that group, because a group that delegates
//! controllers may contain no process (cgroups(7), "no internal processes" rule). New groups have
//! the default weight, so the two are equal.
//!
//! **Invariant:** every moved process is moved back before a group is removed. Groups of a killed
//! benchmark are removed by the next one.

use bench_core::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const PREFIX: &str = "evfs-bench-";
/// Maximum time that a group may stay busy with killed processes.
const EMPTIED_WITHIN: Duration = Duration::from_secs(5);

/// The hierarchy with the CPU controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hierarchy {
    v2: bool,
    /// Mount point of the hierarchy.
    mount: PathBuf,
    /// Path of the mounted group, `/` except in containers.
    root: String,
}

impl Hierarchy {
    /// Finds the first hierarchy in `mountinfo` (proc_pid_mountinfo(5)) that controls CPUs: v2
    /// only if it has the controller, which a hybrid machine assigns to v1.
    pub(super) fn find(mountinfo: &str) -> Option<Hierarchy> {
        let parse = |line: &str| {
            let (left, right) = line.split_once(" - ")?;
            let left: Vec<&str> = left.split(' ').collect();
            let right: Vec<&str> = right.split(' ').collect();
            let v2 = match *right.first()? {
                "cgroup2" => true,
                "cgroup" if right.last()?.split(',').any(|option| option == "cpu") => false,
                _ => return None,
            };
            Some(Hierarchy {
                v2,
                mount: PathBuf::from(left.get(4)?),
                root: (*left.get(3)?).to_owned(),
            })
        };
        let all: Vec<Hierarchy> = mountinfo.lines().filter_map(parse).collect();
        let controls = |h: &&Hierarchy| !h.v2 || lists_cpu(&h.mount.join("cgroup.controllers"));
        all.iter().find(controls).cloned()
    }

    /// Finds the directory of the group that `cgroup`, the text of /proc/PID/cgroup, names in
    /// this hierarchy.
    pub(super) fn group(&self, cgroup: &str) -> Option<PathBuf> {
        let line = cgroup.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            let mine = if self.v2 {
                controllers.is_empty()
            } else {
                controllers.split(',').any(|c| c == "cpu")
            };
            mine.then_some(path)
        })?;
        let below = line.strip_prefix(&self.root).unwrap_or(line);
        Some(self.mount.join(below.trim_start_matches('/')))
    }

    /// Finds the directory where groups can be created, given this process's own group.
    fn here(&self, own: &Path) -> Result<PathBuf> {
        if !self.v2 {
            return Ok(own.to_owned());
        }
        let here = if own == self.mount {
            own
        } else {
            own.parent().unwrap_or(own)
        };
        if lists_cpu(&here.join("cgroup.subtree_control")) {
            Ok(here.to_owned())
        } else {
            Err(refused(
                here,
                "its cgroup.subtree_control does not enable cpu; try `systemd-run --scope -p \
                 Delegate=yes evfs bench ...`",
            ))
        }
    }
}

fn lists_cpu(path: &Path) -> bool {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace()
        .any(|controller| controller == "cpu")
}

/// The two control groups.
pub(super) struct Groups {
    hierarchy: Hierarchy,
    /// Group of this process before the move.
    own: PathBuf,
    base: PathBuf,
    /// Moved daemons with their previous groups.
    moved: Vec<(u32, PathBuf)>,
}

impl Groups {
    /// Creates both groups, after removing stale ones.
    pub(super) fn make() -> Result<Groups> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let Some(hierarchy) = Hierarchy::find(&mounts) else {
            let why = "no cgroup hierarchy with the cpu controller is mounted";
            return Err(Error::Spec(format!(
                "a shared environment needs control groups: {why}"
            )));
        };
        let pid = std::process::id();
        let own = home(&hierarchy, pid)?;
        let here = hierarchy.here(&own)?;
        remove_stale(&here, &own);
        let base = here.join(format!("{PREFIX}{pid}"));
        let groups = Groups {
            hierarchy,
            own,
            base,
            moved: Vec::new(),
        };
        groups.create(&groups.base)?;
        if groups.hierarchy.v2 {
            write(&groups.base.join("cgroup.subtree_control"), "+cpu")?;
        }
        groups.create(&groups.base.join("work"))?;
        groups.create(&groups.base.join("load"))?;
        Ok(groups)
    }

    fn create(&self, group: &Path) -> Result<()> {
        match fs::create_dir(group) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                Err(refused(group, &e.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Moves this process into the competitor's group, which competitors then inherit.
    pub(super) fn load(&self) -> Result<()> {
        let procs = self.base.join("load/cgroup.procs");
        write(&procs, &std::process::id().to_string())
    }

    /// Moves this process and `daemons` into the workload's group.
    pub(super) fn work(&mut self, daemons: &[u32]) -> Result<()> {
        let procs = self.base.join("work/cgroup.procs");
        write(&procs, &std::process::id().to_string())?;
        for pid in daemons {
            let before = home(&self.hierarchy, *pid)?;
            write(&procs, &pid.to_string())?;
            self.moved.push((*pid, before));
        }
        Ok(())
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for (pid, before) in &self.moved {
            let _ = write(&before.join("cgroup.procs"), &pid.to_string());
        }
        let _ = write(
            &self.own.join("cgroup.procs"),
            &std::process::id().to_string(),
        );
        let deadline = Instant::now() + EMPTIED_WITHIN;
        // Killed processes leave their group with a delay.
        while !remove(&self.base) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Removes the two groups and their parent; returns whether all were removed.
fn remove(base: &Path) -> bool {
    for group in [base.join("work"), base.join("load"), base.to_owned()] {
        let _ = fs::remove_dir(group);
    }
    !base.exists()
}

/// Removes groups of labs that no longer exist. Surviving daemons in them are moved to `own`.
fn remove_stale(here: &Path, own: &Path) {
    for entry in fs::read_dir(here).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            for group in ["work", "load"] {
                let left = entry.path().join(group).join("cgroup.procs");
                for pid in fs::read_to_string(left).unwrap_or_default().lines() {
                    let _ = write(&own.join("cgroup.procs"), pid);
                }
            }
            remove(&entry.path());
        }
    }
}

/// Looks up the group of a process.
fn home(hierarchy: &Hierarchy, pid: u32) -> Result<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    hierarchy.group(&text).ok_or_else(|| {
        Error::Spec(format!(
            "process {pid} is in no control group of {}",
            hierarchy.mount.display()
        ))
    })
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|e| refused(path, &e.to_string()))
}

fn refused(path: &Path, why: &str) -> Error {
    Error::Spec(format!(
        "a shared environment needs control groups, but {} is not usable: {why}",
        path.display()
    ))
}
