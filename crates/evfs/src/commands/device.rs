//! DEVICE options: a device with a file system, and the key to it.

use super::unlock::{UnlockArgs, volume_name};
use super::{handle, names};
use clap::builder::NonEmptyStringValueParser;
use cli::Context;
use stack::filesystem::Target;
use stack::{KeySource, Result};
use std::path::{Path, PathBuf};

/// A DEVICE with a file system, and the key to it.
#[derive(clap::Args, Debug, Clone)]
pub struct DeviceArgs {
    /// Encrypted volume, or unencrypted file, disk or LUN; or the name or mount point of a service
    /// on it
    #[arg(add = names::devices())]
    device: PathBuf,
    #[command(flatten)]
    unlock: UnlockArgs,
    /// Name of the systemd credential, where it is not the device's.
    #[arg(skip)]
    credential: Option<String>,
}

impl DeviceArgs {
    /// Builds the arguments for a DEVICE whose credential has the name of the service.
    pub fn of_service(device: &Path, unlock: UnlockArgs, name: &str) -> DeviceArgs {
        DeviceArgs {
            device: device.to_owned(),
            unlock,
            credential: Some(name.to_owned()),
        }
    }

    /// Builds the arguments for a DEVICE that is optional in a command.
    pub fn of_command(device: &Path, unlock: &UnlockArgs) -> DeviceArgs {
        DeviceArgs {
            device: device.to_owned(),
            unlock: unlock.clone(),
            credential: None,
        }
    }

    /// Finds the DEVICE, if a name or a directory was typed.
    pub fn resolved(&self, context: &Context) -> Result<DeviceArgs> {
        Ok(DeviceArgs {
            device: handle::device(context, &self.device)?,
            ..self.clone()
        })
    }

    /// Same as [`DeviceArgs::resolved`], for a command that creates a file if `size` is set: then a
    /// new name is the path of that file.
    pub fn resolved_or_new(&self, context: &Context, size: Option<u64>) -> Result<DeviceArgs> {
        match size {
            Some(_) => Ok(self.clone()),
            None => self.resolved(context),
        }
    }

    /// Returns the path or address of the device.
    pub fn device(&self) -> &Path {
        &self.device
    }

    /// Runs `work` on the device.
    pub fn with<T>(
        &self,
        context: &Context,
        work: impl FnOnce(&Target<'_>) -> Result<T>,
    ) -> Result<T> {
        let opener = context.opener();
        let source = || self.source();
        work(&Target {
            path: &self.device,
            opener: &opener,
            source: &source,
            key_given: self.unlock.is_given(),
            settings: &context.settings,
        })
    }

    fn source(&self) -> Result<KeySource> {
        let name = self.credential.clone();
        self.unlock
            .source(&name.unwrap_or_else(|| volume_name(&self.device)))
    }
}

/// A DEVICE with a volume, for commands that read or change only its header.
#[derive(clap::Args, Debug, Clone)]
pub struct VolumeArgs {
    /// File, disk or LUN; or the name or mount point of a service on it
    #[arg(add = names::devices())]
    device: PathBuf,
}

impl VolumeArgs {
    /// Finds the DEVICE, if a name or a directory was typed.
    pub fn resolved(&self, context: &Context) -> Result<PathBuf> {
        handle::device(context, &self.device)
    }
}

/// Returns the parser for names of filesets and labels, which must not be empty.
pub fn named() -> NonEmptyStringValueParser {
    NonEmptyStringValueParser::new()
}
