//! A file system over a stack, served as an AFS cell by this process while it is measured.
//!
//! **Invariant:** it listens on the loopback interface only, at ports that the system assigns. Any
//! local user may change the cell, whose content is discarded in any case. The server stops before
//! its file system is closed.

use ::fs::Fs;
use afs_server::{Config, Kind, Server, StartError};
use block::BlockDevice;
use stack::filesystem::{open_fs, options};
use stack::{Access, Error, ProcessCache, Result, Settings};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// Name of the served volume.
const VOLUME: &str = "root.cell";

/// Names of the threads that work for a server: those of its ports, its file system and the cache,
/// and the io_uring workers of the kernel.
const THREADS: &[&str] = &[
    afs_server::THREAD_NAME,
    "fs-commit",
    "fs-metadata",
    "fs-sync",
    "cache",
    "pressure",
    "iou-wrk-",
];

/// A cell served by this process.
pub struct OwnCell {
    name: String,
    volume: u32,
    server: Option<Server>,
    fs: Option<Arc<Fs>>,
}

impl OwnCell {
    /// Formats `device` with a file system and serves it as a cell.
    ///
    /// # Errors
    /// The device fails; no port or no memory for a cache is available.
    pub fn new(
        device: &Arc<dyn BlockDevice>,
        name: &str,
        settings: &Settings,
        cache: &ProcessCache,
    ) -> Result<OwnCell> {
        let failed = || Error::files(format!("cannot format {name}"));
        Fs::format(Arc::clone(device), name).map_err(failed())?;
        let fs = open_fs(device, name, options(settings, Access::ReadWrite))?;
        fs.create_fileset(VOLUME).map_err(failed())?;
        let fs = Arc::new(fs);
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let config = Config {
            file_service: vec![any],
            location_service: vec![any],
            anonymous_write: true,
            ..Config::default()
        };
        let started = Server::start(config, Arc::clone(&fs), cache.cache()?);
        let server = started.map_err(|error| match error {
            StartError::Files(error) => Error::files(format!("cannot open {name}"))(error),
            other => Error::Failed(format!("{name}: {other}")),
        })?;
        let volume = server.volumes().find(VOLUME.as_bytes());
        let volume = volume.filter(|volume| volume.kind == Kind::ReadWrite);
        let volume =
            volume.ok_or_else(|| Error::Failed(format!("{name} has no read-write volume")))?;
        Ok(OwnCell {
            name: name.to_owned(),
            volume: volume.id,
            server: Some(server),
            fs: Some(fs),
        })
    }

    /// Returns the address of its file service.
    pub fn address(&self) -> SocketAddr {
        self.server().file_service()
    }

    /// Returns the number of its volume.
    pub fn volume(&self) -> u32 {
        self.volume
    }

    /// Returns the counters of its server, with which tests prove where an answer came from.
    #[cfg(test)]
    pub(crate) fn stats(&self) -> afs_server::ServerStats {
        self.server().stats()
    }

    /// Returns the names, or prefixes of names, of the threads that work for it.
    pub fn threads() -> &'static [&'static str] {
        THREADS
    }

    /// Writes everything out, so that no work is deferred.
    ///
    /// # Errors
    /// Some data could not be written.
    pub fn sync(&self) -> Result<()> {
        let failed = || Error::files(format!("cannot write back {}", self.name));
        for volume in self.server().volumes().all() {
            volume.files.sync().map_err(failed())?;
        }
        let fs = self.fs.as_ref().expect("present until dropped");
        fs.commit().map_err(failed())
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("present until dropped")
    }
}

impl Drop for OwnCell {
    fn drop(&mut self) {
        let Some(server) = self.server.take() else {
            return;
        };
        let volumes = server.volumes().all();
        drop(server);
        // The content is discarded in any case: errors of the last writes do not matter.
        for volume in &volumes {
            let _ = volume.files.close();
        }
        drop(volumes);
        if let Some(fs) = self.fs.take().and_then(Arc::into_inner) {
            let _ = fs.close();
        }
    }
}
