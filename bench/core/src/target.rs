//! Targets of jobs: a directory, a device, or only this machine.

use crate::files::{Files, HostDirectory};
use crate::meter::Edge;
use crate::path_io::{Carried, Paths};
use crate::record::Record;
use crate::{Error, Result};
use block::BlockDevice;
use serde_json::Value;
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
    Guest(Arc<dyn Guest>),
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
    pub competitors: Vec<u32>,
}

/// A guest that contains a place and runs jobs there. Jobs are passed as JSON, in which they reach
/// it.
pub trait Guest: Send + Sync {
    /// Returns the directory that the host shares with the guest.
    fn folder(&self) -> Option<&Path>;

    /// Prepares the place for a job.
    ///
    /// # Errors
    /// Any error of the job; the guest has ended.
    fn prepare(&self, job: &Value) -> Result<()>;

    /// Runs a job `times` times.
    ///
    /// # Errors
    /// Any error of the job; the guest has ended.
    fn run(&self, job: &Value, times: u32, competitors: &[u32]) -> Result<Record>;

    /// Drops the caches of the guest's kernel; the host's caches are the caller's task.
    ///
    /// # Errors
    /// The guest has ended.
    fn drop_caches(&self) -> Result<()>;
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

    /// Creates a target in a guest.
    pub fn guest(name: String, guest: Arc<dyn Guest>) -> Target {
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

    pub fn edge(&self) -> Edge {
        Edge::now(&self.daemons, &self.competitors)
    }

    /// Returns the totals that the paths have carried so far.
    pub fn carried(&self) -> Vec<Carried> {
        let paths = self.paths.as_ref();
        paths.map_or_else(Vec::new, |paths| paths.carried())
    }

    /// Completes work that a run has left to a file system of this process. The kernel's dirty
    /// pages stay.
    pub fn sync(&self) -> Result<()> {
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
    pub fn drop_caches(&self) -> Result<()> {
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

    pub fn require_files(&self) -> Result<&dyn Files> {
        match &self.place {
            TargetKind::Files(files, _) => Ok(&**files),
            _ => Err(self.unfit("a directory")),
        }
    }

    pub fn path(&self) -> Result<&Path> {
        match &self.place {
            TargetKind::Files(_, Some(path)) => Ok(path),
            _ => Err(self.unfit("a directory that programs can use")),
        }
    }

    pub fn block(&self) -> Result<&Arc<dyn BlockDevice>> {
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
