//! The service to start.

use super::{AttachSpec, MountSpec, ServeSpec};
use crate::device::Disk;
use crate::filesystem::Target;
use crate::opener::{KeyFrom, KeySource};
use crate::succession::Succession;
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

    /// Opens the DEVICE for its data.
    pub(super) fn open(&self, target: &Target<'_>) -> Result<OpenedDevice> {
        let options = |read_only, allow_discards| OpenOptions {
            read_only,
            allow_discards,
            keep_key: target.settings.succession().is_some(),
        };
        match self {
            ServiceSpec::Attach(spec) => {
                let source = (target.source)()?;
                let options = options(spec.read_only, spec.allow_discards);
                volume::open(
                    target.path,
                    target.opener,
                    &source,
                    options,
                    target.settings,
                )
                .map_err(|e| or_read_only(e, &spec.device, spec.config.is_some()))
            }
            ServiceSpec::Mount(spec) => {
                let options = options(spec.read_only, spec.allow_discards);
                let opened = match target.settings.succession() {
                    Some(succession) => open_surviving(target, options, succession),
                    None => target.open(options),
                };
                opened.map_err(|e| or_read_only(e, &spec.device, spec.config.is_some()))
            }
            ServiceSpec::Serve(spec) => target.open(options(false, spec.allow_discards)),
        }
    }
}

/// Opens the DEVICE with the key of the predecessor, or as the user says, and leaves the key and the
/// lock to a successor.
fn open_surviving(
    target: &Target<'_>,
    options: OpenOptions,
    succession: &Succession,
) -> Result<OpenedDevice> {
    let kept = succession.key()?;
    let source = || match &kept {
        Some(key) => Ok(KeySource {
            from: KeyFrom::Kept(SecretBytes::from_slice(key)),
            keyslot: None,
        }),
        None => (target.source)(),
    };
    let open = Target {
        source: &source,
        ..*target
    }
    .open(options)?;
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
