//! The interface of a format that can be written.

use crate::disk::Disk;
use crate::error::Result;
use crate::tree::{Node, Piece, Time};
use std::ops::Range;

/// Change of the attributes of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Whether the file refuses writes.
    pub read_only: Option<bool>,
    /// Time of the last change of the data.
    pub modified: Option<Time>,
    /// Time of the last access.
    pub accessed: Option<Time>,
}

/// Kind of a file to be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum New {
    /// A regular file without content.
    File,
    /// An empty directory.
    Directory,
}

/// Writes of a [`crate::Tree`]. Changes are in memory until [`Changes::save`] writes them, in an
/// order that leaves a valid file system if the power fails.
///
/// The content of files is in the cache. A writer first calls [`Changes::grow`], then writes to the
/// cache, then calls [`Changes::written`]; the size on the device follows in [`Changes::save`], after
/// the cache has written the content to the device.
pub trait Changes: Send + Sync {
    /// Creates a file.
    fn create(&self, disk: &mut Disk, dir: Node, name: &[u8], kind: New) -> Result<Node>;

    /// Removes a name. Returns the file if nothing uses it, for [`Changes::release`].
    fn remove(&self, disk: &mut Disk, dir: Node, name: &[u8], kind: New) -> Result<Option<Node>>;

    /// Renames a file, and replaces another if `replace` allows it. Returns the replaced file as
    /// [`Changes::remove`] does.
    fn rename(
        &self,
        disk: &mut Disk,
        from: (Node, &[u8]),
        to: (Node, &[u8]),
        replace: bool,
    ) -> Result<Option<Node>>;

    /// Returns the name of a file as it is stored, which can differ from `name` in case.
    fn stored_name(&self, disk: &mut Disk, dir: Node, name: &[u8]) -> Result<Vec<u8>>;

    /// Changes attributes.
    fn set_attr(&self, disk: &mut Disk, node: Node, set: &SetAttr) -> Result<()>;

    /// Allocates space for a file up to `end`.
    fn grow(&self, disk: &mut Disk, node: Node, end: u64) -> Result<()>;

    /// Notes that the cache has the content of a file up to `end`.
    fn written(&self, node: Node, end: u64) -> Result<()>;

    /// Makes a file shorter. The cache has dropped the content behind its new end.
    fn cut(&self, disk: &mut Disk, node: Node, size: u64) -> Result<()>;

    /// Finds the storage to which the content of a range of pages is written. The pieces may end
    /// before the range.
    fn store(&self, node: Node, range: Range<u64>) -> Result<Vec<Piece>>;

    /// Returns the end of the content of a file on the device, which can differ from its size while
    /// it is written.
    fn stored(&self, disk: &mut Disk, node: Node) -> Result<u64>;

    /// Returns the number of calls of [`Changes::written`] for a file.
    fn writes(&self, node: Node) -> Result<u64>;

    /// Returns the files whose content, size or time is not on the device.
    fn unsaved(&self) -> Result<Vec<Node>>;

    /// Reports whether many changes wait to be saved.
    fn is_full(&self, disk: &Disk) -> bool;

    /// Writes all changes to stable storage, and with them the sizes of these files, whose content
    /// was written to the device after they had this number of writes.
    fn save(&self, disk: &mut Disk, files: &[(Node, u64, u64)]) -> Result<()>;

    /// Notes that a file is used by its number, until the same number of calls of
    /// [`Changes::forget`].
    fn remember(&self, node: Node);

    /// Ends uses of a file. Returns true if its name was removed, for [`Changes::release`].
    fn forget(&self, node: Node, count: u64) -> bool;

    /// Frees the space of a removed file, whose pages the cache has dropped.
    fn release(&self, disk: &mut Disk, node: Node) -> Result<()>;

    /// Returns the removed files whose space is not free.
    fn removed(&self) -> Result<Vec<Node>>;

    /// Marks the file system as unmounted.
    fn close(&self, disk: &mut Disk) -> Result<()>;
}
