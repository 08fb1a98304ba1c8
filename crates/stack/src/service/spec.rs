//! The service to start.

use super::{AttachSpec, MountSpec, ServeSpec};
use crate::Result;
use crate::filesystem::Target;
use crate::volume::{self, OpenOptions, OpenedDevice, or_read_only};
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
            ServiceSpec::Mount(spec) => target
                .open(options(spec.read_only, spec.allow_discards))
                .map_err(|e| or_read_only(e, &spec.device, spec.config.is_some())),
            ServiceSpec::Serve(spec) => target.open(options(false, spec.allow_discards)),
        }
    }
}
