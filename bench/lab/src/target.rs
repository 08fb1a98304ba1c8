//! Targets of jobs: a directory, a device, or only this machine.

use crate::files::{Files, HostDirectory};
use crate::guest::{Guest, GuestFacts, shared};
use crate::meter::Edge;
use crate::{Carried, Error, Paths, Result};
use block::BlockDevice;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Place where a job runs.
#[derive(Clone)]
pub enum TargetKind {
    /// Files, with the path of the directory if the kernel has one; programs can run only there.
    Files(Arc<dyn Files>, Option<PathBuf>),
    /// A device. **Its contents are overwritten.**
    Device(Arc<dyn BlockDevice>),
    /// Only the machine itself.
    Machine,
    /// A guest that contains one of the other places.
    Guest(Arc<Guest>),
}

/// A place, with the processes whose CPU time belongs to it.
#[derive(Clone)]
pub struct Target {
    /// Name for errors and reports.
    pub name: String,
    /// Place where the job runs.
    pub place: TargetKind,
    /// Processes behind the target, for example the daemon that serves a mounted directory.
    pub daemons: Vec<u32>,
    /// Mounts and unmounts the directory, if its file system is in this process.
    pub remount: Option<Arc<dyn Remount>>,
    /// Server behind the files, if it is in this process.
    pub server: Option<Arc<dyn Server>>,
    /// Paths that carry the target's I/O, if known.
    pub paths: Option<Arc<dyn Paths>>,
    /// Processes that compete with a run; their CPU time counts neither as the run's nor as
    /// foreign.
    pub(crate) competitors: Vec<u32>,
}

/// A file system that this process mounts on the directory of a target. It is mounted when a study
/// begins.
pub trait Remount: Send + Sync {
    /// Opens the device and mounts the file system.
    ///
    /// # Errors
    /// The reason as text.
    fn mount(&self) -> std::result::Result<(), String>;

    /// Unmounts the file system and closes everything on the device.
    ///
    /// # Errors
    /// The reason as text.
    fn unmount(&self) -> std::result::Result<(), String>;

    /// Writes all changes to the device, so that no write of a run is deferred into the next run.
    ///
    /// # Errors
    /// The reason as text.
    fn sync(&self) -> std::result::Result<(), String>;

    /// Drops file data cached by this process, as opposed to the kernel's caches.
    ///
    /// # Errors
    /// The reason as text.
    fn drop_caches(&self) -> std::result::Result<(), String>;
}

/// A file server in this process, whose clients are in this process as well.
pub trait Server: Send + Sync {
    /// Returns the names of the server's threads, or prefixes of them. Their CPU time is the
    /// server's.
    fn threads(&self) -> &'static [&'static str];

    /// Creates `count` clients, each with its own address and cache.
    ///
    /// # Errors
    /// The error of the system if a client cannot be created.
    fn clients(&self, count: usize) -> std::io::Result<Vec<Arc<dyn Files>>>;
}

/// Properties of a target that a reader must know; printed and stored with its figures.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Facts {
    /// Whether the page cache is bypassed; `None`: unknown.
    pub direct: Option<bool>,
    /// Cipher, or `none`.
    pub cipher: Option<String>,
    /// Cipher implementation in use on this machine.
    pub cipher_kernel: Option<String>,
    /// Any other difference.
    pub note: Option<String>,
    /// Guest that contains the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<GuestFacts>,
}

impl Target {
    /// Creates a target for a directory of this machine.
    ///
    /// # Errors
    /// [`Error::Files`] if it does not exist.
    pub fn folder(path: &Path) -> Result<Target> {
        let name = path.display().to_string();
        let files = HostDirectory::later(path)
            .map_err(|source| Error::on_files(name.clone(), "open", ".", source))?;
        // Commands and programs run in other directories, so they get an absolute path.
        let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let place = TargetKind::Files(Arc::new(files), Some(whole));
        Ok(Target::new(name, place))
    }

    /// Creates the target for the directory that the host shares, within a guest's agent; `name` is
    /// its path on the host.
    ///
    /// # Errors
    /// The kernel refuses the mount.
    pub fn shared(name: String) -> Result<Target> {
        let target = Target::folder(shared()?)?;
        Ok(Target { name, ..target })
    }

    /// Creates a target in a guest.
    pub fn guest(name: String, guest: Arc<Guest>) -> Target {
        Target::new(name, TargetKind::Guest(guest))
    }

    /// Creates a target for files that only this process can reach.
    pub fn files(name: &str, files: Arc<dyn Files>) -> Target {
        Target::new(name.to_owned(), TargetKind::Files(files, None))
    }

    /// Creates a target for a device, which is overwritten.
    pub fn device(name: impl Into<String>, device: Arc<dyn BlockDevice>) -> Target {
        Target::new(name.into(), TargetKind::Device(device))
    }

    /// Creates a target for the machine itself.
    pub fn machine() -> Target {
        Target::new("this machine".into(), TargetKind::Machine)
    }

    fn new(name: String, place: TargetKind) -> Target {
        Target {
            name,
            place,
            daemons: Vec::new(),
            remount: None,
            server: None,
            paths: None,
            competitors: Vec::new(),
        }
    }

    pub(crate) fn edge(&self) -> Edge {
        Edge::now(&self.daemons, &self.competitors)
    }

    /// Returns the totals that the paths have carried so far.
    pub(crate) fn carried(&self) -> Vec<Carried> {
        let paths = self.paths.as_ref();
        paths.map_or_else(Vec::new, |paths| paths.carried())
    }

    /// Completes work that a run has left to a file system of this process. The kernel's dirty
    /// pages stay.
    pub(crate) fn sync(&self) -> Result<()> {
        let failed = |detail: String| Error::Program {
            what: format!("{}: sync", self.name),
            detail,
        };
        match (&self.remount, &self.place) {
            (Some(own), _) => own.sync().map_err(failed),
            (None, TargetKind::Files(files, None)) => {
                files.sync().map_err(|e| failed(e.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Drops file data cached by this process; [`crate::files::OpenFile::drop_cache`] drops the
    /// kernel's cache of a file.
    pub(crate) fn drop_caches(&self) -> Result<()> {
        let failed = |detail: String| Error::Program {
            what: format!("{}: drop cached data", self.name),
            detail,
        };
        match (&self.remount, &self.place) {
            (Some(own), _) => own.drop_caches().map_err(failed),
            (None, TargetKind::Files(files, None)) => {
                files.drop_caches().map_err(|e| failed(e.to_string()))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn require_files(&self) -> Result<&dyn Files> {
        match &self.place {
            TargetKind::Files(files, _) => Ok(&**files),
            _ => Err(self.unfit("a directory")),
        }
    }

    pub(crate) fn path(&self) -> Result<&Path> {
        match &self.place {
            TargetKind::Files(_, Some(path)) => Ok(path),
            _ => Err(self.unfit("a directory that programs can use")),
        }
    }

    pub(crate) fn block(&self) -> Result<&Arc<dyn BlockDevice>> {
        match &self.place {
            TargetKind::Device(device) => Ok(device),
            _ => Err(self.unfit("a device")),
        }
    }

    fn unfit(&self, wanted: &str) -> Error {
        Error::Spec(format!(
            "this workload needs {wanted}; {} is not one",
            self.name
        ))
    }
}
