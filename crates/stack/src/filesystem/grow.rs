//! Growing: a disk, an image file or a LUN that has become larger, the volume on it, and its file
//! system, which may be in use.
//!
//! **Invariant:** everything is checked before the first change. The steps follow the stack upward,
//! and each is durable before the next one: an interruption leaves an upper layer with its old size on
//! a larger lower one, which is how a grow begins. So the command can be repeated.

use super::{Target, options};
use crate::control::{self, ControlRequest, GrowRequest, Run};
use crate::device::Disk;
use crate::handle::served_as;
use crate::signature;
use crate::text::json_of;
use crate::volume::{Cipher, OpenOptions, OpenedDevice};
use crate::{Error, Result};
use ::fs::{Fs, Superblock};
use block::{Access, BlockDevice, size_text};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;

/// Size of a layer before and after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Resized {
    /// Size before, in bytes.
    pub before: u64,
    /// Size now, in bytes.
    pub after: u64,
}

/// Result of a grow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Grown {
    /// File, disk or LUN.
    pub device: Resized,
    /// Data of the encrypted volume; `None` for a plaintext device.
    pub volume: Option<Resized>,
    /// File system; `None` if the volume contains none of EVFS.
    pub file_system: Option<Resized>,
    /// Remaining steps of the user.
    pub notes: Vec<String>,
}

/// Layers below a file system or an export.
pub(crate) struct Layers<'a> {
    /// Name of the device or service in messages.
    pub(crate) name: &'a str,
    pub(crate) disk: &'a Disk,
    /// Device with plaintext data.
    pub(crate) device: &'a Arc<dyn BlockDevice>,
    pub(crate) cipher: Option<&'a Cipher>,
}

/// Layer above the device.
pub(crate) enum Upper<'a> {
    FileSystem(&'a Fs),
    /// Data of others: notifies them of the new size, and returns what they have to do.
    Others(&'a dyn Fn() -> Result<Vec<String>>),
}

impl<'a> Layers<'a> {
    pub(crate) fn of(name: &'a str, open: &'a OpenedDevice) -> Layers<'a> {
        Layers {
            name,
            disk: &open.disk,
            device: &open.device,
            cipher: open.cipher.as_ref(),
        }
    }

    /// Grows all layers to `size`, or to the current size of the device. A dry run only checks.
    pub(crate) fn grow(&self, upper: &Upper<'_>, size: Option<u64>, run: Run) -> Result<Grown> {
        let name = self.name;
        if self.device.info().read_only {
            return Err(Error::Usage(format!(
                "cannot grow {name}: it is open read-only; detach it, and grow it then"
            )));
        }
        if let Some(bytes) = self.cipher.and_then(|cipher| cipher.fixed_bytes) {
            return Err(Error::Usage(format!(
                "cannot grow {name}: the header of its volume fixes the size of the data to {}; copy \
                 the data to a new volume",
                size_text(bytes)
            )));
        }
        let device = self.plan_device(size)?;
        let volume = self.cipher.map(|cipher| {
            let sector = u64::from(self.device.info().logical_block_size);
            let after = device.after.saturating_sub(cipher.data_offset);
            Resized {
                before: self.device.info().size,
                after: after - after % sector,
            }
        });
        let failed = |e| Error::files(format!("cannot grow the file system on {name}"))(e);
        let above = volume.unwrap_or(device).after;
        let mut file_system = match upper {
            Upper::FileSystem(fs) => Some(Resized {
                before: fs.superblock().device_blocks * super::BLOCK_BYTES,
                after: fs.plan_growth(above).map_err(failed)?,
            }),
            Upper::Others(_) => None,
        };
        let mut notes = Vec::new();
        if run == Run::Real {
            if let (Some(size), Disk::File(file)) = (size, self.disk) {
                file.file().enlarge(size)?;
            }
            if self.device.info().size < above {
                self.device.update_size()?;
            }
            match upper {
                Upper::FileSystem(fs) => {
                    let after = fs.grow().map_err(failed)?;
                    file_system.iter_mut().for_each(|fs| fs.after = after);
                }
                Upper::Others(tell) => notes = tell()?,
            }
        }
        Ok(Grown {
            device,
            volume,
            file_system,
            notes,
        })
    }

    /// Finds the size of the device before and after.
    fn plan_device(&self, size: Option<u64>) -> Result<Resized> {
        let name = self.name;
        // A device of a dry run has the size of the file below.
        let (before, found) = match self.disk {
            Disk::File(file) => (file.file().info().size, file.file().storage_size()?),
            Disk::Lun(lun) => (lun.lun().info().size, lun.lun().storage_size()?),
        };
        if found < before {
            return Err(Error::Failed(format!(
                "cannot grow {name}: its device has become smaller: it has {found} bytes, and had \
                 {before}; restore its size"
            )));
        }
        if self.disk.lun().is_some() && found > before {
            return Err(Error::Busy(format!(
                "cannot grow {name} while it is in use: the connections to a LUN keep its size, {}, and \
                 it now has {}; detach it, and grow it then",
                size_text(before),
                size_text(found)
            )));
        }
        let Some(size) = size else {
            return Ok(Resized {
                before,
                after: found,
            });
        };
        let is_regular = match self.disk {
            Disk::File(file) => file.file().resolved_path().is_some(),
            Disk::Lun(_) => false,
        };
        if !is_regular {
            return Err(Error::Usage(format!(
                "cannot set the size of {name}: --size enlarges image files only; enlarge the disk or \
                 the LUN where it is defined, and omit --size to use all of it"
            )));
        }
        if size < found {
            return Err(Error::Usage(format!(
                "cannot grow {name} to {}: it already has {}; use a larger --size, omit it to use the \
                 whole file, or shrink it with `evfs shrink`",
                size_text(size),
                size_text(found)
            )));
        }
        Ok(Resized {
            before,
            after: size,
        })
    }
}

/// Grows the device, the volume on it and its file system, in use or not.
///
/// # Errors
/// The device holds neither a volume nor a file system of EVFS; its size cannot be set or used; a
/// device fails. An interrupted grow can be repeated.
pub fn grow(target: &Target<'_>, size: Option<u64>) -> Result<Grown> {
    if let Some(name) = served_as(target.path, target.settings) {
        let run_dir = target.settings.run_dir();
        let ask = GrowRequest { size };
        let answer = if target.settings.is_dry_run() {
            control::send_query(&run_dir, &name, &ControlRequest::PlanGrow(ask))?
        } else {
            control::send_request(&run_dir, &name, &ControlRequest::Grow(ask))?
        };
        let invalid = |e| Error::Failed(format!("invalid answer of `{name}`: {e}"));
        return serde_json::from_value(answer).map_err(invalid);
    }
    let name = target.name();
    let run = if target.settings.is_dry_run() {
        Run::Dry
    } else {
        Run::Real
    };
    let open = target.open(OpenOptions::default())?;
    let layers = Layers::of(&name, &open);
    let found = signature::find(&*open.device)?;
    let is_ours = Superblock::on(&*open.device).is_some() || found.is_some_and(signature::is_ours);
    if open.cipher.is_some() && !is_ours {
        let notes = || {
            Ok(vec![match found {
                Some(found) => format!("the volume contains {found}, which grows by its own tools"),
                None => "the volume contains no file system that EVFS knows".into(),
            }])
        };
        return layers.grow(&Upper::Others(&notes), size, run);
    }
    let access = Access::ReadWrite;
    let fs = super::open_fs(&open.device, &name, options(target.settings, access))?;
    super::changeable(&fs, &name)?;
    let grown = layers.grow(&Upper::FileSystem(&fs), size, run)?;
    fs.close()
        .map_err(Error::files(format!("cannot close {name}")))?;
    Ok(grown)
}

/// Answers a request to a service.
pub(crate) fn answer(
    layers: &Layers<'_>,
    upper: &Upper<'_>,
    ask: &GrowRequest,
    run: Run,
) -> Result<Value> {
    Ok(json_of(&layers.grow(upper, ask.size, run)?))
}
