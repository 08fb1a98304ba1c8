//! Shrinking: the file system, the volume that it is in, and the image file. None of them is in use.
//!
//! **Invariant:** everything is checked before the first change. The steps follow the stack downward,
//! and each is durable before the next one: an interruption leaves an upper layer that is smaller than
//! the lower one, which is how a grow ends. So the command can be repeated.

use super::grow::Resized;
use super::{Progress, Target, changeable, mounted_as, open_fs, options};
use crate::device::Disk;
use crate::volume::OpenOptions;
use crate::{Error, Result};
use ::fs::BLOCK_BYTES;
use block::{Access, BlockDevice, size_text};
use schemars::JsonSchema;
use serde::Serialize;

/// Size to shrink to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShrinkTo {
    /// Nothing: the smallest possible size is to be found.
    Minimum,
    /// Bytes of the device.
    Size {
        bytes: u64,
        /// Whether an image file keeps its length.
        keep_file: bool,
    },
}

/// Result of a shrink, or of the search for the smallest size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Shrunk {
    /// Size that the file system states.
    pub file_system: Resized,
    /// Data of the encrypted volume; `None` for a plaintext device.
    pub volume: Option<Resized>,
    /// File, disk or LUN.
    pub device: Resized,
    /// Bytes of file data that were moved.
    pub moved_bytes: u64,
    /// Smallest possible size of the device before the shrink, in bytes.
    pub minimum_bytes: u64,
    /// Remaining steps of the user.
    pub notes: Vec<String>,
}

/// Shrinks a file system that is not in use, the volume around it, and the image file.
///
/// # Errors
/// The size is too small or not smaller; the device is in use, or holds no file system of EVFS; a
/// device fails. An interrupted shrink can be repeated.
pub fn shrink(target: &Target<'_>, to: ShrinkTo, progress: Progress<'_>) -> Result<Shrunk> {
    let name = target.name();
    if let Some(mount) = mounted_as(target.path, target.settings) {
        return Err(Error::Busy(format!(
            "cannot shrink {name}: it is mounted or served as `{mount}`; run `evfs detach {mount}` first"
        )));
    }
    let access = Access::read_only_if(to == ShrinkTo::Minimum);
    let open = target.open(OpenOptions {
        read_only: access.is_read_only(),
        ..OpenOptions::default()
    })?;
    let cipher = open.cipher.as_ref();
    if let Some(bytes) = cipher.and_then(|cipher| cipher.fixed_bytes) {
        return Err(Error::Usage(format!(
            "cannot shrink {name}: the header of its volume fixes the size of the data to {}; copy \
             the data to a new volume",
            size_text(bytes)
        )));
    }
    let fs = open_fs(&open.device, &name, options(target.settings, access))?;
    let offset = cipher.map_or(0, |cipher| cipher.data_offset);
    let device = match &open.disk {
        Disk::File(file) => file.file().info().size,
        Disk::Lun(lun) => lun.lun().info().size,
    };
    let file = match &open.disk {
        Disk::File(file) => Some(file.file()).filter(|file| file.resolved_path().is_some()),
        Disk::Lun(_) => None,
    };
    let same = |bytes| Resized {
        before: bytes,
        after: bytes,
    };
    let mut shrunk = Shrunk {
        file_system: same(fs.superblock().device_blocks * BLOCK_BYTES),
        volume: cipher.map(|_| same(open.device.info().size)),
        device: same(device),
        moved_bytes: 0,
        minimum_bytes: fs.minimum_bytes() + offset,
        notes: Vec::new(),
    };
    let failed = || Error::files(format!("cannot shrink the file system on {name}"));
    let closed = || Error::files(format!("cannot close {name}"));
    let ShrinkTo::Size { bytes, keep_file } = to else {
        fs.close().map_err(closed())?;
        return Ok(shrunk);
    };
    changeable(&fs, &name)?;
    // An equal size: an interrupted shrink has come that far.
    if bytes > device {
        return Err(Error::Usage(format!(
            "cannot shrink {name} to {}: it has {}; use a smaller --size, or `evfs grow`",
            size_text(bytes),
            size_text(device)
        )));
    }
    if bytes < shrunk.minimum_bytes {
        return Err(Error::Usage(format!(
            "cannot shrink {name} to {} bytes: its content does not fit; the smallest possible size is \
             {} bytes",
            bytes, shrunk.minimum_bytes
        )));
    }
    let data = bytes - offset;
    let wanted = data.min(shrunk.file_system.before);
    let (after, blocks) = fs.plan_shrink(wanted).map_err(failed())?;
    shrunk.file_system.after = after;
    shrunk.moved_bytes = blocks * BLOCK_BYTES;
    if !target.settings.is_dry_run() {
        fs.shrink(wanted, progress).map_err(failed())?;
    }
    fs.close().map_err(closed())?;
    match file {
        Some(file) if !keep_file => {
            if !target.settings.is_dry_run() {
                file.shorten(bytes)?;
            }
            shrunk.device.after = bytes;
            let sector = u64::from(open.device.info().logical_block_size);
            if let Some(volume) = &mut shrunk.volume {
                volume.after = data - data % sector;
            }
        }
        _ => shrunk.notes.push(
            "the device keeps its size: make it smaller before the next mount for writing, which uses \
             all of it again"
                .into(),
        ),
    }
    Ok(shrunk)
}
