//! Recognition of formats.

use crate::changes::Changes;
use crate::disk::Disk;
use crate::error::Result;
use crate::ext;
use crate::fat;
use crate::iso;
use crate::squash;
use crate::tree::Tree;
use block::Access;
use std::sync::Arc;

/// An open file system of a format.
pub(crate) struct Opened {
    pub tree: Arc<dyn Tree>,
    /// Its writes, if it was opened for them.
    pub changes: Option<Arc<dyn Changes>>,
}

impl Opened {
    fn read_only(tree: impl Tree + 'static) -> Opened {
        Opened {
            tree: Arc::new(tree),
            changes: None,
        }
    }
}

/// A format that EVFS mounts.
pub(crate) struct Format {
    /// Name in messages.
    pub name: &'static str,
    /// Reports whether a device contains this format, by its magic numbers.
    is_there: fn(&mut Disk) -> Result<bool>,
    /// Opens it to read, or to write if that is asked and the format can.
    pub open: fn(&mut Disk, Access) -> Result<Opened>,
}

/// All formats, those with the stronger magic numbers first.
const FORMATS: &[Format] = &[
    Format {
        name: "SquashFS",
        is_there: squash::is_there,
        open: |disk, _| Ok(Opened::read_only(squash::Squash::open(disk)?)),
    },
    Format {
        name: "ISO 9660",
        is_there: iso::is_there,
        open: |disk, _| Ok(Opened::read_only(iso::Iso::open(disk)?)),
    },
    Format {
        name: "ext2/ext3/ext4",
        is_there: ext::is_there,
        open: |disk, _| Ok(Opened::read_only(ext::Ext::open(disk)?)),
    },
    Format {
        name: "FAT",
        is_there: fat::is_there,
        open: open_fat,
    },
];

fn open_fat(disk: &mut Disk, access: Access) -> Result<Opened> {
    if access == Access::ReadOnly {
        return Ok(Opened::read_only(fat::Fat::open(disk)?));
    }
    let fat = Arc::new(fat::Writable::open(disk)?);
    Ok(Opened {
        tree: Arc::clone(&fat) as Arc<dyn Tree>,
        changes: Some(fat),
    })
}

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
