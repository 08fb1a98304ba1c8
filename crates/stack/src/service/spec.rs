//! The service to start.

use super::{AttachSpec, MountSpec, ServeSpec};
use crate::device::Disk;
use crate::filesystem::Target;
use crate::opener::{KeyFrom, KeySource};
use crate::volume::{self, OpenOptions, OpenedDevice, or_read_only};
use crate::{Error, Result};
use secret::SecretBytes;
use std::path::Path;

/// A service: its DEVICE, its exports and their options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceSpec {
    /// A volume to attach.
    Attach(AttachSpec),
    /// A file system to mount.
    Mount(MountSpec),
    /// A cell to serve.
    Serve(ServeSpec),
}

impl ServiceSpec {
    /// Returns the name of the service.
    pub fn name(&self) -> &str {
        match self {
            ServiceSpec::Attach(spec) => &spec.name,
            ServiceSpec::Mount(spec) => &spec.name,
            ServiceSpec::Serve(spec) => &spec.name,
        }
    }

    /// Returns the DEVICE.
    pub fn device(&self) -> &Path {
        match self {
            ServiceSpec::Attach(spec) => &spec.device,
            ServiceSpec::Mount(spec) => &spec.device,
            ServiceSpec::Serve(spec) => &spec.device,
        }
    }

    /// Reports whether another process is to continue the service if this one dies.
    pub fn survives(&self) -> bool {
        match self {
            ServiceSpec::Attach(spec) => spec.survives,
            ServiceSpec::Mount(spec) => spec.survives,
            ServiceSpec::Serve(spec) => spec.survives,
        }
    }

    /// Validates the fields before a device is opened, and fills in the default export.
    ///
    /// # Errors
    /// [`crate::Error::Usage`]; a mount point is not accessible.
    pub fn complete(self, run_dir: &Path) -> Result<ServiceSpec> {
        match self {
            ServiceSpec::Attach(spec) => spec.complete(run_dir).map(ServiceSpec::Attach),
            ServiceSpec::Mount(spec) => spec.check().map(|()| ServiceSpec::Mount(spec)),
            ServiceSpec::Serve(spec) => spec.check().map(|()| ServiceSpec::Serve(spec)),
        }
    }

    /// Fills in the default export, for a process that continues another one: it must not look at
    /// mounts, as it would wait for itself.
    #[must_use]
    pub fn continued(self, run_dir: &Path) -> ServiceSpec {
        match self {
            ServiceSpec::Attach(spec) => ServiceSpec::Attach(spec.with_default_export(run_dir)),
            other => other,
        }
    }

    /// Opens the DEVICE for its data.
    pub(super) fn open(&self, target: &Target<'_>) -> Result<OpenedDevice> {
        let options = |read_only, allow_discards| OpenOptions {
            read_only,
            allow_discards,
            keep_key: target.settings.succession().is_some(),
        };
        match self {
            ServiceSpec::Attach(spec) => {
                let options = options(spec.read_only, spec.allow_discards);
                let open = |source: &Source<'_>| {
                    let (path, opener, settings) = (target.path, target.opener, target.settings);
                    volume::open(path, opener, &source()?, options, settings)
                };
                surviving(target, open)
                    .map_err(|e| or_read_only(e, &spec.device, spec.config.is_some()))
            }
            ServiceSpec::Mount(spec) => {
                let options = options(spec.read_only, spec.allow_discards);
                let open = |source: &Source<'_>| Target { source, ..*target }.open(options);
                surviving(target, open)
                    .map_err(|e| or_read_only(e, &spec.device, spec.config.is_some()))
            }
            ServiceSpec::Serve(spec) => {
                let options = options(false, spec.allow_discards);
                let open = |source: &Source<'_>| Target { source, ..*target }.open(options);
                surviving(target, open)
            }
        }
    }
}

/// Finds the key of the DEVICE.
type Source<'a> = dyn Fn() -> Result<KeySource> + 'a;

/// Opens the DEVICE by `open`, with the key that the user names. If the service may have a successor,
/// uses the key that a predecessor left, and leaves the key and the lock.
fn surviving(
    target: &Target<'_>,
    open: impl FnOnce(&Source<'_>) -> Result<OpenedDevice>,
) -> Result<OpenedDevice> {
    let Some(succession) = target.settings.succession() else {
        return open(target.source);
    };
    let kept = succession.key()?;
    let source = || match &kept {
        Some(key) => Ok(KeySource {
            from: KeyFrom::Kept(SecretBytes::from_slice(key)),
            keyslot: None,
        }),
        None => (target.source)(),
    };
    let open = open(&source)?;
    let Disk::File(file) = &open.disk else {
        return Err(Error::Usage(String::from(
            "--survive needs a file or a disk, and this is a LUN; omit --survive",
        )));
    };
    if !succession.is_successor() {
        let lock: Vec<_> = file.file().lock_holder().into_iter().collect();
        succession.keep("lock", &lock)?;
        if let Some(key) = &open.kept_key {
            succession.keep_key(key)?;
        }
    }
    Ok(open)
}
