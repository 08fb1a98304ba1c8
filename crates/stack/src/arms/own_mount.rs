//! A file system over a stack, mounted by this process for as long as it is measured.
//!
//! **Invariant:** it is unmounted, and its folder gone, when this is dropped, whoever still uses it. Clients and the
//! server are one process; what each takes of its CPU, the counters of layers tell.

use crate::cache::ProcessCache;
use crate::filesystem::{open_fs, options, own_root};
use crate::{Error, Result, Settings};
use ::fs::{FIRST_FILESET, Files, Fs};
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
    open: Mutex<Option<Opened>>,
}

/// Fields are dropped in this order.
struct Opened {
    mount: Mount,
    files: Arc<Files>,
    fs: Fs,
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
        let failed = |what: &str| Error::files(format!("cannot {what} {name}"));
        let own = OwnMount {
            device,
            name: name.to_owned(),
            folder: folder.to_owned(),
            settings: settings.clone(),
            cache: Arc::clone(cache),
            open: Mutex::default(),
        };
        Fs::format(Arc::clone(&own.device), name).map_err(failed("format"))?;
        let fs = own.open_fs()?;
        own_root(&fs, FIRST_FILESET).map_err(failed("format"))?;
        fs.close().map_err(failed("format"))?;
        own.mount()?;
        Ok(own)
    }

    /// Where it is mounted.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn open_fs(&self) -> Result<Fs> {
        open_fs(&self.device, &self.name, options(&self.settings, false))
    }

    fn opened(&self) -> MutexGuard<'_, Option<Opened>> {
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
        let failed = Error::files(format!("cannot mount {}", self.name));
        let fs = self.open_fs()?;
        let cache = self.cache.cache()?;
        let files = fs
            .fileset_named(FIRST_FILESET)
            .and_then(|fileset| Files::new(&fileset, &cache))
            .map_err(failed)?;
        let mount = Mount::start_tree(TreeConfig::new(self.folder.clone()), Arc::clone(&files))?;
        *opened = Some(Opened { mount, files, fs });
        Ok(())
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
        let Some(Opened { mount, files, fs }) = opened.take() else {
            return Ok(());
        };
        match mount.unmount(force) {
            Ok(_) => {}
            Err(kept) => {
                let (mount, error) = *kept;
                *opened = Some(Opened { mount, files, fs });
                return Err(error.into());
            }
        }
        let failed = || Error::files(format!("cannot close {}", self.name));
        files.close().map_err(failed())?;
        fs.close().map_err(failed())
    }
}

impl Drop for OwnMount {
    fn drop(&mut self) {
        // What is on it is thrown away in any case.
        let _ = self.take_away(true);
        let _ = std::fs::remove_dir(&self.folder);
    }
}
