//! Recognition of formats.

use crate::disk::Disk;
use crate::error::Result;
use crate::ext;
use crate::fat;
use crate::iso;
use crate::squash;
use crate::tree::Tree;

/// Opens a file system of a format.
type Open = fn(&mut Disk) -> Result<Box<dyn Tree>>;

/// A format that EVFS mounts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Format {
    /// Name in messages.
    pub name: &'static str,
    /// Reports whether a device contains this format, by its magic numbers.
    is_there: fn(&mut Disk) -> Result<bool>,
    pub open: Open,
}

/// All formats, those with the stronger magic numbers first.
const FORMATS: &[Format] = &[
    Format {
        name: "SquashFS",
        is_there: squash::is_there,
        open: |disk| Ok(Box::new(squash::Squash::open(disk)?)),
    },
    Format {
        name: "ISO 9660",
        is_there: iso::is_there,
        open: |disk| Ok(Box::new(iso::Iso::open(disk)?)),
    },
    Format {
        name: "ext2/ext3/ext4",
        is_there: ext::is_there,
        open: |disk| Ok(Box::new(ext::Ext::open(disk)?)),
    },
    Format {
        name: "FAT",
        is_there: fat::is_there,
        open: |disk| Ok(Box::new(fat::Fat::open(disk)?)),
    },
];

/// Finds the format of a device.
pub(crate) fn find(disk: &mut Disk) -> Result<Option<&'static Format>> {
    for format in FORMATS {
        if (format.is_there)(disk)? {
            return Ok(Some(format));
        }
    }
    Ok(None)
}

/// Returns the name of the format on a device, if it is one that EVFS mounts.
///
/// # Errors
/// The device cannot be read.
pub fn probe(device: &dyn block::BlockDevice) -> Result<Option<&'static str>> {
    let mut disk = Disk::open(device, &std::sync::Arc::default())?;
    Ok(find(&mut disk)?.map(|format| format.name))
}
