//! A file system over a stack, opened by this process while it is measured.

use ::fs::{FIRST_FILESET, Files, Fs};
use block::BlockDevice;
use stack::filesystem::{open_fs, options, own_root};
use stack::{Access, Error, ProcessCache, Result, Settings};
use std::sync::Arc;

/// An open file system. Dropping it writes out as much as possible.
pub struct OwnFs {
    name: String,
    files: Arc<Files>,
    fs: Option<Fs>,
}

impl OwnFs {
    /// Formats `device` with a file system whose root belongs to the user of this process.
    ///
    /// # Errors
    /// The device fails.
    pub fn format(device: &Arc<dyn BlockDevice>, name: &str, settings: &Settings) -> Result<()> {
        let failed = || Error::files(format!("cannot format {name}"));
        Fs::format(Arc::clone(device), name).map_err(failed())?;
        let fs = open_fs(device, name, options(settings, Access::ReadWrite))?;
        own_root(&fs, FIRST_FILESET).map_err(failed())?;
        fs.close().map_err(failed())
    }

    /// Opens the file system on `device`.
    ///
    /// # Errors
    /// The device fails; no memory for a cache is available.
    pub fn open(
        device: &Arc<dyn BlockDevice>,
        name: &str,
        settings: &Settings,
        cache: &Arc<ProcessCache>,
    ) -> Result<OwnFs> {
        let fs = open_fs(device, name, options(settings, Access::ReadWrite))?;
        let cache = cache.cache()?;
        let files = fs
            .fileset_named(FIRST_FILESET)
            .and_then(|fileset| Files::new(&fileset, &cache))
            .map_err(Error::files(format!("cannot open {name}")))?;
        Ok(OwnFs {
            name: name.to_owned(),
            files,
            fs: Some(fs),
        })
    }

    /// Returns the files.
    pub fn files(&self) -> &Arc<Files> {
        &self.files
    }

    /// Writes everything out, so that no work is deferred.
    ///
    /// # Errors
    /// Some data could not be written.
    pub fn sync(&self) -> Result<()> {
        let failed = || Error::files(format!("cannot write back {}", self.name));
        self.files.sync().map_err(failed())?;
        self.fs
            .as_ref()
            .map_or(Ok(()), |fs| fs.commit().map_err(failed()))
    }

    /// Writes everything out and drops the cached pages of files, except pages in use.
    ///
    /// # Errors
    /// Some data could not be written.
    pub fn drop_caches(&self) -> Result<()> {
        self.sync()?;
        Ok(self.files.volume().drop_pages()?)
    }

    /// Writes everything out and closes the device. The files must no longer be in use.
    ///
    /// # Errors
    /// Some data could not be written.
    pub fn close(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let Some(fs) = self.fs.take() else {
            return Ok(());
        };
        let failed = || Error::files(format!("cannot close {}", self.name));
        self.files.close().map_err(failed())?;
        fs.close().map_err(failed())
    }
}

impl Drop for OwnFs {
    fn drop(&mut self) {
        // A caller that needs the error calls `close`.
        let _ = self.end();
    }
}
