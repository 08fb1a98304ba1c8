//! Competitors: shell loops that run until they are killed or this process is gone.
//!
//! **Invariant:** no competitor outlives this process by more than one iteration of its loop, even
//! if this process is killed: each iteration first checks that this process still exists.

use super::Load;
use crate::workload::build::{Config, Part, Tree};
use bench_core::target::{Target, TargetKind};
use bench_core::{Error, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const BURN: &str =
    "while kill -0 $PPID; do i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; done";
const WRITE: &str = "while kill -0 $PPID; do dd if=/dev/zero of=competitor bs=1M count=64 conv=fsync || exit 1; done";
const BUILD: &str = "while kill -0 $PPID; do make clean || exit 1; make || exit 1; done";
/// Number of source files of the program that is built: an iteration takes a second or two.
const SOURCES: usize = 30;

/// Competing processes and their working directory.
pub(super) struct LoadGenerator {
    children: Vec<Child>,
    folder: Option<PathBuf>,
}

impl LoadGenerator {
    /// Starts the competitors of a load; `None` for [`Load::Idle`].
    pub(super) fn start(load: Load, target: &Target) -> Result<Option<LoadGenerator>> {
        let (script, count) = match load {
            Load::Idle => return Ok(None),
            Load::Processor => (BURN, processors()),
            Load::Writes => (WRITE, 1),
            Load::Build => (BUILD, processors()),
        };
        let mut competitor = LoadGenerator {
            children: Vec::new(),
            folder: None,
        };
        for n in 0..count {
            let at = match load {
                Load::Processor => PathBuf::from("/"),
                _ => competitor.make_folder(target, n)?,
            };
            if load == Load::Build {
                let config = Config {
                    files: SOURCES,
                    ..Config::default()
                };
                // Unpacking creates the directory itself.
                Tree::new(&config)?.part(&at.join("tree"), Part::Unpack)?;
                competitor.spawn(script, &at.join("tree"))?;
            } else {
                competitor.spawn(script, &at)?;
            }
        }
        Ok(Some(competitor))
    }

    /// Creates a directory for competitor number `n`: next to the workload's files, or in the
    /// directory for temporary files.
    fn make_folder(&mut self, target: &Target, n: usize) -> Result<PathBuf> {
        let root = self.folder.get_or_insert_with(|| {
            let name = format!("evfs-bench.competitor.{}", std::process::id());
            match &target.place {
                TargetKind::Files(_, Some(path)) => path.join(name),
                TargetKind::Guest(guest) if let Some(path) = guest.folder() => path.join(name),
                _ => std::env::temp_dir().join(name),
            }
        });
        let at = root.join(n.to_string());
        std::fs::create_dir_all(&at).map_err(|e| failed(format!("{}: {e}", at.display())))?;
        Ok(at)
    }

    fn spawn(&mut self, script: &str, at: &Path) -> Result<()> {
        let child = Command::new("sh")
            .args(["-c", script])
            .current_dir(at)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A separate process group: processes started by the shell are killed with it.
            .process_group(0)
            .spawn()
            .map_err(|e| failed(e.to_string()))?;
        self.children.push(child);
        Ok(())
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        self.children.iter().map(Child::id).collect()
    }

    /// Checks that all competitors still run.
    pub(super) fn still_there(&mut self) -> Result<()> {
        for child in &mut self.children {
            if let Some(status) = child.try_wait().map_err(|e| failed(e.to_string()))? {
                return Err(failed(format!("it ended during the run: {status}")));
            }
        }
        Ok(())
    }
}

impl Drop for LoadGenerator {
    fn drop(&mut self) {
        for child in &mut self.children {
            if let Some(group) = Pid::from_raw(child.id().cast_signed()) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = child.wait();
        }
        if let Some(folder) = &self.folder {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn failed(detail: String) -> Error {
    Error::Program {
        what: "the competitor".into(),
        detail,
    }
}
