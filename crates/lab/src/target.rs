//! What a job runs on: a folder, a device, or only this machine.

use crate::files::{Files, Folder};
use crate::guest::{Guest, GuestFacts, shared};
use crate::meter::Edge;
use crate::{Carried, Error, Paths, Result};
use block::BlockDevice;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where the work is done.
#[derive(Clone)]
pub enum Place {
    /// Files, with the folder's path where the kernel has one: programs can only be run there.
    Files(Arc<dyn Files>, Option<PathBuf>),
    /// A device. **What is on it is overwritten.**
    Device(Arc<dyn BlockDevice>),
    /// Nothing but the machine.
    Machine,
    /// A guest that has any of these in it.
    Guest(Arc<Guest>),
}

/// A place, and whose CPU belongs to it.
#[derive(Clone)]
pub struct Target {
    /// What it is called in errors and reports.
    pub name: String,
    /// Where.
    pub place: Place,
    /// Processes behind it, for example the one that serves a mounted folder.
    pub daemons: Vec<u32>,
    /// What mounts and unmounts the folder, if that is in this process.
    pub remount: Option<Arc<dyn Remount>>,
    /// The server behind the files, if that is in this process.
    pub server: Option<Arc<dyn Server>>,
    /// The paths that its bytes go over, if they are known.
    pub paths: Option<Arc<dyn Paths>>,
    /// Processes that compete with a run, whose CPU is neither its own nor foreign.
    pub(crate) competitors: Vec<u32>,
}

/// A file system that this process mounts on the folder of a target. It is mounted when a study begins.
pub trait Remount: Send + Sync {
    /// Mounts it, from the device on.
    ///
    /// # Errors
    /// Why not, in words.
    fn mount(&self) -> std::result::Result<(), String>;

    /// Unmounts it, with everything on the device.
    ///
    /// # Errors
    /// Why not, in words.
    fn unmount(&self) -> std::result::Result<(), String>;

    /// Brings everything to the device, so that nothing of a run is written in the time of the next.
    ///
    /// # Errors
    /// Why not, in words.
    fn sync(&self) -> std::result::Result<(), String>;

    /// Lets go what it holds of files by itself, beside what the kernel holds.
    ///
    /// # Errors
    /// Why not, in words.
    fn forget(&self) -> std::result::Result<(), String>;
}

/// A file server in this process, whose clients are in it, too.
pub trait Server: Send + Sync {
    /// Names of the threads that work for it, or beginnings of them. Their CPU is that of the server.
    fn threads(&self) -> &'static [&'static str];

    /// So many clients, each with an address and a cache of its own.
    ///
    /// # Errors
    /// What the system says of another one.
    fn clients(&self, count: usize) -> std::io::Result<Vec<Arc<dyn Files>>>;
}

/// What a reader has to know about a target, printed and stored beside its figures.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Facts {
    /// Whether the page cache is passed by; `None`: not known.
    pub direct: Option<bool>,
    /// Cipher, or `none`.
    pub cipher: Option<String>,
    /// Implementation of the cipher that runs on this machine.
    pub cipher_kernel: Option<String>,
    /// Anything else that differs.
    pub note: Option<String>,
    /// The guest that it is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<GuestFacts>,
}

impl Target {
    /// A folder of this machine.
    ///
    /// # Errors
    /// [`Error::Files`] when it is not there.
    pub fn folder(path: &Path) -> Result<Target> {
        let name = path.display().to_string();
        let files = Folder::later(path)
            .map_err(|source| Error::on_files(name.clone(), "open", ".", source))?;
        // Commands and programs run elsewhere: for them the path is a whole one.
        let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let place = Place::Files(Arc::new(files), Some(whole));
        Ok(Target::new(name, place))
    }

    /// The folder that a guest shares with its machine, in the agent of the guest; `name` is its path outside.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn shared(name: String) -> Result<Target> {
        let target = Target::folder(shared()?)?;
        Ok(Target { name, ..target })
    }

    /// What a guest has in it.
    pub fn guest(name: String, guest: Arc<Guest>) -> Target {
        Target::new(name, Place::Guest(guest))
    }

    /// Files that only this process can reach.
    pub fn files(name: &str, files: Arc<dyn Files>) -> Target {
        Target::new(name.to_owned(), Place::Files(files, None))
    }

    /// A device, which is overwritten.
    pub fn device(name: impl Into<String>, device: Arc<dyn BlockDevice>) -> Target {
        Target::new(name.into(), Place::Device(device))
    }

    /// This machine.
    pub fn machine() -> Target {
        Target::new("this machine".into(), Place::Machine)
    }

    fn new(name: String, place: Place) -> Target {
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

    /// What its paths have carried so far.
    pub(crate) fn carried(&self) -> Vec<Carried> {
        let paths = self.paths.as_ref();
        paths.map_or_else(Vec::new, |paths| paths.carried())
    }

    /// Ends what a run has left a file system of this process to do later. What the kernel keeps is its own.
    pub(crate) fn settle(&self) -> Result<()> {
        let failed = |detail: String| Error::Program {
            what: format!("{}: sync", self.name),
            detail,
        };
        match (&self.remount, &self.place) {
            (Some(own), _) => own.sync().map_err(failed),
            (None, Place::Files(files, None)) => files.sync().map_err(|e| failed(e.to_string())),
            _ => Ok(()),
        }
    }

    /// Drops what this process holds of files; what the kernel holds of one, [`crate::files::OpenFile::forget`] drops.
    pub(crate) fn forget(&self) -> Result<()> {
        let failed = |detail: String| Error::Program {
            what: format!("{}: drop what is cached", self.name),
            detail,
        };
        match (&self.remount, &self.place) {
            (Some(own), _) => own.forget().map_err(failed),
            (None, Place::Files(files, None)) => files.forget().map_err(|e| failed(e.to_string())),
            _ => Ok(()),
        }
    }

    pub(crate) fn reach(&self) -> Result<&dyn Files> {
        match &self.place {
            Place::Files(files, _) => Ok(&**files),
            _ => Err(self.unfit("a folder")),
        }
    }

    pub(crate) fn path(&self) -> Result<&Path> {
        match &self.place {
            Place::Files(_, Some(path)) => Ok(path),
            _ => Err(self.unfit("a folder that programs can use")),
        }
    }

    pub(crate) fn block(&self) -> Result<&Arc<dyn BlockDevice>> {
        match &self.place {
            Place::Device(device) => Ok(device),
            _ => Err(self.unfit("a device")),
        }
    }

    fn unfit(&self, wanted: &str) -> Error {
        Error::Spec(format!(
            "this workload needs {wanted}; {} is none",
            self.name
        ))
    }
}
