//! A file system over a stack, mounted by this process for as long as it is measured.
//!
//! **Invariant:** it is unmounted, and its folder gone, when this is dropped, whoever still uses it. Clients and the
//! server are one process; what each takes of its CPU, the counters of layers tell.

use super::OwnFs;
use crate::cache::ProcessCache;
use crate::{Result, Settings};
use block::BlockDevice;
use export_fuse::{Mount, TreeConfig};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// See the module.
pub struct OwnMount {
    device: Arc<dyn BlockDevice>,
    name: String,
    folder: PathBuf,
    settings: Settings,
    cache: Arc<ProcessCache>,
    /// The mount goes before the files.
    open: Mutex<Option<(Mount, OwnFs)>>,
}

impl OwnMount {
    /// Makes a file system on `device`, and mounts it on an empty folder, which goes with it.
    ///
    /// # Errors
    /// The device's; those of the mount, for example for a user who may not mount.
    pub fn new(
        device: Arc<dyn BlockDevice>,
        name: &str,
        folder: &Path,
        settings: &Settings,
        cache: &Arc<ProcessCache>,
    ) -> Result<OwnMount> {
        let own = OwnMount {
            device,
            name: name.to_owned(),
            folder: folder.to_owned(),
            settings: settings.clone(),
            cache: Arc::clone(cache),
            open: Mutex::default(),
        };
        OwnFs::format(&own.device, name, settings)?;
        own.mount()?;
        Ok(own)
    }

    /// Where it is mounted.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn opened(&self) -> MutexGuard<'_, Option<(Mount, OwnFs)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens and mounts it; where it is mounted nothing happens.
    ///
    /// # Errors
    /// The device's, and those of the mount.
    pub fn mount(&self) -> Result<()> {
        let mut opened = self.opened();
        if opened.is_some() {
            return Ok(());
        }
        let fs = OwnFs::open(&self.device, &self.name, &self.settings, &self.cache)?;
        let config = TreeConfig::new(self.folder.clone());
        let mount = Mount::start_tree(config, Arc::clone(fs.files()))?;
        *opened = Some((mount, fs));
        Ok(())
    }

    /// Writes everything out; where it is not mounted nothing happens.
    ///
    /// # Errors
    /// The device's.
    pub fn sync(&self) -> Result<()> {
        self.opened().as_ref().map_or(Ok(()), |(_, fs)| fs.sync())
    }

    /// Writes everything out and lets go what is cached of files.
    ///
    /// # Errors
    /// The device's.
    pub fn forget(&self) -> Result<()> {
        self.opened().as_ref().map_or(Ok(()), |(_, fs)| fs.forget())
    }

    /// Unmounts and closes it, with everything on the device; where it is not mounted nothing happens.
    ///
    /// # Errors
    /// Somebody uses it, and it stays mounted; the device's.
    pub fn unmount(&self) -> Result<()> {
        self.take_away(false)
    }

    fn take_away(&self, force: bool) -> Result<()> {
        let mut opened = self.opened();
        let Some((mount, fs)) = opened.take() else {
            return Ok(());
        };
        match mount.unmount(force) {
            Ok(_) => fs.close(),
            Err(kept) => {
                let (mount, error) = *kept;
                *opened = Some((mount, fs));
                Err(error.into())
            }
        }
    }
}

impl Drop for OwnMount {
    fn drop(&mut self) {
        // What is on it is thrown away in any case.
        let _ = self.take_away(true);
        let _ = std::fs::remove_dir(&self.folder);
    }
}
