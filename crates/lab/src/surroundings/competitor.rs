//! Competitors: shells that do the same again and again until they are killed, or nobody is there to kill them.
//!
//! **Invariant:** none outlives this process for longer than one turn of its loop, also when this process is
//! killed: each turn begins with a look whether it is still there.

use super::Load;
use crate::target::{Place, Target};
use crate::workload::build::{Config, Part, Tree};
use crate::{Error, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const BURN: &str =
    "while kill -0 $PPID; do i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; done";
const WRITE: &str = "while kill -0 $PPID; do dd if=/dev/zero of=competitor bs=1M count=64 conv=fsync || exit 1; done";
const BUILD: &str = "while kill -0 $PPID; do make clean || exit 1; make || exit 1; done";
/// Sources of the program that is built: a turn is a second or two.
const SOURCES: usize = 30;

/// Processes that compete, with the folder they work in.
pub(super) struct Competitor {
    children: Vec<Child>,
    folder: Option<PathBuf>,
}

impl Competitor {
    /// Starts what a load asks for; `None` where it asks for nothing.
    pub(super) fn start(load: Load, target: &Target) -> Result<Option<Competitor>> {
        let (script, count) = match load {
            Load::Idle => return Ok(None),
            Load::Processor => (BURN, processors()),
            Load::Writes => (WRITE, 1),
            Load::Build => (BUILD, processors()),
        };
        let mut competitor = Competitor {
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
                // Unpacking makes the folder itself.
                Tree::new(&config)?.part(&at.join("tree"), Part::Unpack)?;
                competitor.spawn(script, &at.join("tree"))?;
            } else {
                competitor.spawn(script, &at)?;
            }
        }
        Ok(Some(competitor))
    }

    /// A folder for competitor number `n`: beside the work's files, or with other temporary files.
    fn make_folder(&mut self, target: &Target, n: usize) -> Result<PathBuf> {
        let root = self.folder.get_or_insert_with(|| {
            let name = format!("evfs-lab.competitor.{}", std::process::id());
            match &target.place {
                Place::Files(_, Some(path)) => path.join(name),
                Place::Guest(guest) if let Some(path) = guest.folder() => path.join(name),
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
            // A group of its own: what the shell starts ends with it.
            .process_group(0)
            .spawn()
            .map_err(|e| failed(e.to_string()))?;
        self.children.push(child);
        Ok(())
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        self.children.iter().map(Child::id).collect()
    }

    /// Whether all still run.
    pub(super) fn still_there(&mut self) -> Result<()> {
        for child in &mut self.children {
            if let Some(status) = child.try_wait().map_err(|e| failed(e.to_string()))? {
                return Err(failed(format!("it ended during the run: {status}")));
            }
        }
        Ok(())
    }
}

impl Drop for Competitor {
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
