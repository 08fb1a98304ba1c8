//! A file system over a stack, mounted by this process while it is measured.
//!
//! **Invariant:** when it is dropped, it is unmounted and its directory removed, even if it is in
//! use. Clients and the server are one process; counters of layers show the CPU time of each.

use crate::own_fs::OwnFs;
use block::BlockDevice;
use export_fuse::{Mount, MountConfig, WhenBusy};
use stack::{ProcessCache, Result, Settings};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A file system mounted by this process.
pub struct OwnMount {
    device: Arc<dyn BlockDevice>,
    name: String,
    folder: PathBuf,
    settings: Settings,
    cache: Arc<ProcessCache>,
    /// The mount drops before the files.
    open: Mutex<Option<(Mount, OwnFs)>>,
}

impl OwnMount {
    /// Formats `device` with a file system and mounts it on an empty directory, removed on drop.
    ///
    /// # Errors
    /// The device fails; errors of the mount, for example for a user without permission to mount.
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

    /// Returns the mount point.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn opened(&self) -> MutexGuard<'_, Option<(Mount, OwnFs)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens and mounts the file system; does nothing if it is mounted.
    ///
    /// # Errors
    /// The device fails; errors of the mount.
    pub fn mount(&self) -> Result<()> {
        let mut opened = self.opened();
        if opened.is_some() {
            return Ok(());
        }
        let fs = OwnFs::open(&self.device, &self.name, &self.settings, &self.cache)?;
        let config = MountConfig::new(self.folder.clone());
        let mount = Mount::start(config, Arc::clone(fs.files()))?;
        *opened = Some((mount, fs));
        Ok(())
    }

    /// Writes everything out; does nothing if it is not mounted.
    ///
    /// # Errors
    /// The device fails.
    pub fn sync(&self) -> Result<()> {
        self.opened().as_ref().map_or(Ok(()), |(_, fs)| fs.sync())
    }

    /// Writes everything out and drops the cached pages of files.
    ///
    /// # Errors
    /// The device fails.
    pub fn drop_caches(&self) -> Result<()> {
        self.opened()
            .as_ref()
            .map_or(Ok(()), |(_, fs)| fs.drop_caches())
    }

    /// Writes everything to the device, unmounts and closes it; does nothing if it is not mounted.
    ///
    /// # Errors
    /// It is in use and stays mounted; the device fails.
    pub fn unmount(&self) -> Result<()> {
        self.take_away(WhenBusy::Refuse)
    }

    fn take_away(&self, when_busy: WhenBusy) -> Result<()> {
        let mut opened = self.opened();
        let Some((mount, fs)) = opened.take() else {
            return Ok(());
        };
        match mount.unmount(when_busy) {
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
        // The content is discarded in any case.
        let _ = self.take_away(WhenBusy::Detach);
        let _ = std::fs::remove_dir(&self.folder);
    }
}
