//! A folder of its own for each run, in the target's.
//!
//! **Invariant:** what a run that was killed left behind is gone before the next begins, so the same command can
//! always be given again; and a run that ends well leaves nothing, or says what it left.

use super::Job;
use crate::files::Folder;
use crate::target::{Place, Target};
use crate::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Its name. What has it belongs to the laboratory, and is removed.
pub(super) const NAME: &str = "evfs-lab.work";

/// The folder, removed with what is in it when this goes.
pub(super) struct OwnFolder {
    target: String,
    path: PathBuf,
}

impl OwnFolder {
    /// Makes one for a job that works in a folder of this machine, with the target to run it on.
    pub(super) fn make(job: &Job, target: &Target) -> Result<Option<(OwnFolder, Target)>> {
        let (Place::Files(_, Some(path)), false) = (&target.place, matches!(job, Job::Mounts(_)))
        else {
            // A mount has to see the folder itself.
            return Ok(None);
        };
        let own = OwnFolder {
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
        let files = Folder::open(&own.path).map_err(|e| own.failed("open", e))?;
        let inside = Target {
            place: Place::Files(Arc::new(files), Some(own.path.clone())),
            ..target.clone()
        };
        Ok(Some((own, inside)))
    }

    /// Removes it after a run that ended well, which has left nothing.
    pub(super) fn close(self) -> Result<()> {
        std::fs::remove_dir(&self.path).map_err(|e| self.failed("rmdir", e))
    }

    fn failed(&self, call: &'static str, source: std::io::Error) -> Error {
        Error::on_files(self.target.clone(), call, NAME, source)
    }
}

impl Drop for OwnFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// The same folder, seen through another mount of the target's file system.
pub(super) fn through(other: &Path) -> PathBuf {
    other.join(NAME)
}
