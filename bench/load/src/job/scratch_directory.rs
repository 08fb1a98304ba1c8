//! A private working directory for each run within the target's directory.
//!
//! **Invariant:** leftovers of a killed run are removed before the next run begins, so the same
//! command can always be repeated. A run that succeeds leaves nothing behind, or reports its
//! leftovers as an error.

use super::Job;
use bench_core::files::HostDirectory;
use bench_core::target::{Target, TargetKind};
use bench_core::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the directory. Any directory of this name belongs to a benchmark and is removed.
pub(super) const NAME: &str = "evfs-bench.work";

/// The directory; removed with its contents on drop.
pub(super) struct ScratchDirectory {
    target: String,
    path: PathBuf,
}

impl ScratchDirectory {
    /// Creates the directory for a job that works in a directory of this machine, and returns it
    /// with the target inside it.
    pub(super) fn make(job: &Job, target: &Target) -> Result<Option<(ScratchDirectory, Target)>> {
        let (TargetKind::Files(_, Some(path)), false) =
            (&target.place, matches!(job, Job::Mounts(_)))
        else {
            // A mount needs the directory itself.
            return Ok(None);
        };
        let own = ScratchDirectory {
            target: target.name.clone(),
            path: path.join(NAME),
        };
        match std::fs::remove_dir_all(&own.path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(own.failed("remove", e));
            }
            _ => {}
        }
        std::fs::create_dir(&own.path).map_err(|e| own.failed("mkdir", e))?;
        let files = HostDirectory::open(&own.path).map_err(|e| own.failed("open", e))?;
        let inside = Target {
            place: TargetKind::Files(Arc::new(files), Some(own.path.clone())),
            ..target.clone()
        };
        Ok(Some((own, inside)))
    }

    /// Removes the directory after a successful run; fails if the run left files behind.
    pub(super) fn close(self) -> Result<()> {
        std::fs::remove_dir(&self.path).map_err(|e| self.failed("rmdir", e))
    }

    fn failed(&self, call: &'static str, source: std::io::Error) -> Error {
        Error::on_files(self.target.clone(), call, NAME, source)
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Returns the path of the same directory through another mount of the target's file system.
pub(super) fn through(other: &Path) -> PathBuf {
    other.join(NAME)
}
