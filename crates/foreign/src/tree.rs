//! The interface of a file system's format: a tree of files. A format that can be written also
//! implements [`crate::Changes`].

use crate::disk::Disk;
use crate::error::{Error, Kind, Result};
use std::ops::Range;

/// Number by which a tree names a file: stable while the tree is open, and chosen by the tree so
/// that it finds the file without a table in memory. A file with several names has one.
pub type Node = u64;

/// The root directory of every tree.
pub const ROOT: Node = 1;

/// A point in time: seconds since 1970, which may be negative, and nanoseconds after them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Time {
    /// Whole seconds, rounded down.
    pub seconds: i64,
    /// Nanoseconds after `seconds`, less than one billion.
    pub nanos: u32,
}

/// Attributes of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attr {
    /// Inode number that programs see.
    pub ino: u64,
    /// Type (`S_IFMT`) and permissions.
    pub mode: u32,
    /// Number of names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Major and minor number of a device node.
    pub device: (u32, u32),
    /// Size in bytes.
    pub size: u64,
    /// Allocated space, in units of 512 bytes.
    pub blocks: u64,
    /// Time of the last access.
    pub accessed: Time,
    /// Time of the last change of the data.
    pub modified: Time,
    /// Time of the last change of the attributes.
    pub changed: Time,
    /// Time of creation, if the format has it.
    pub created: Option<Time>,
}

impl Attr {
    /// Returns the type, one of the `S_IF` constants.
    pub fn kind(&self) -> u32 {
        self.mode & libc::S_IFMT
    }

    /// Reports whether this is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == libc::S_IFDIR
    }

    /// Reports whether this is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind() == libc::S_IFREG
    }
}

/// Name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name: 1 to 255 bytes, without a slash or a zero byte.
    pub name: Vec<u8>,
    /// The file; 0 for `.` and `..`.
    pub node: Node,
    /// Inode number that programs see.
    pub ino: u64,
    /// Type (`S_IFMT`), or 0 if it is known only by the attributes.
    pub kind: u32,
    /// Position after this entry, more than that before it.
    pub next: u64,
}

/// Storage of a part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Bytes of the device from this offset on.
    Device(u64),
    /// A hole.
    Zeros,
    /// Bytes that only [`Tree::compute`] yields: compressed, or stored in an inode.
    Computed,
}

/// Part of a file with one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Length in bytes, not zero.
    pub len: u64,
    /// Its storage.
    pub place: Place,
}

/// Capacity of a file system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Space {
    /// Unit of the counts below, in bytes.
    pub block_bytes: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Free blocks for ordinary users.
    pub available: u64,
    /// Number of inodes; 0 if the format has none.
    pub files: u64,
    /// Free inodes.
    pub free_files: u64,
}

/// A format's view of a device. Every method may be called by several threads at the same time, each
/// with its own [`Disk`].
///
/// The bytes are hostile: a method returns an error for whatever contradicts the format, and its
/// time and memory are bounded by the size of the structure that it reads, not by numbers in it.
pub trait Tree: Send + Sync {
    /// Returns the name of the format, such as `ext4`.
    fn format(&self) -> &'static str;

    /// Returns the label of the file system; empty if it has none.
    fn label(&self) -> String {
        String::new()
    }

    /// Returns the UUID or serial number of the file system; empty if it has none.
    fn uuid(&self) -> String {
        String::new()
    }

    /// Returns the capacity.
    fn space(&self) -> Space;

    /// Reads the attributes of a file.
    fn attr(&self, disk: &mut Disk, node: Node) -> Result<Attr>;

    /// Reads at most `count` entries of a directory from the position `from` on, 0 at first. The
    /// first two are `.` and `..`. No entries mean the end.
    fn read_dir(&self, disk: &mut Disk, dir: Node, from: u64, count: usize) -> Result<Vec<Entry>>;

    /// Finds a name in a directory. By default, reads all of its entries.
    ///
    /// # Errors
    /// [`Kind::NotFound`], [`Kind::NotDirectory`].
    fn lookup(&self, disk: &mut Disk, dir: Node, name: &[u8]) -> Result<Node> {
        let mut from = 0;
        loop {
            let entries = self.read_dir(disk, dir, from, 1024)?;
            let Some(last) = entries.last() else {
                return Err(Kind::NotFound.into());
            };
            if last.next <= from {
                return Err(Error::corrupt("a directory does not end"));
            }
            from = last.next;
            let found = entries.iter().find(|e| e.node != 0 && e.name == name);
            if let Some(found) = found {
                return Ok(found.node);
            }
        }
    }

    /// Reads the target of a symbolic link.
    fn read_link(&self, disk: &mut Disk, node: Node) -> Result<Vec<u8>>;

    /// Reads the names of the extended attributes of a file, as listxattr(2) returns them.
    fn xattrs(&self, disk: &mut Disk, node: Node) -> Result<Vec<Vec<u8>>> {
        let (_, _) = (disk, node);
        Ok(Vec::new())
    }

    /// Reads an extended attribute of a file.
    ///
    /// # Errors
    /// [`Kind::NoAttribute`].
    fn xattr(&self, disk: &mut Disk, node: Node, name: &[u8]) -> Result<Vec<u8>> {
        let (_, _, _) = (disk, node, name);
        Err(Kind::NoAttribute.into())
    }

    /// Finds the storage of the bytes `range` of a regular file, which end at its size at the
    /// latest. The pieces cover the range in order.
    fn map(&self, disk: &mut Disk, node: Node, range: Range<u64>) -> Result<Vec<Piece>>;

    /// Fills `out` with the bytes of a regular file from `offset` on, for a piece of
    /// [`Place::Computed`].
    fn compute(&self, disk: &mut Disk, node: Node, offset: u64, out: &mut [u8]) -> Result<()> {
        let (_, _, _, _) = (disk, node, offset, out);
        Err(Kind::Invalid.into())
    }
}

/// Reports whether a directory may contain this name: a program would take a slash for the start of
/// another name.
pub fn is_name(name: &[u8]) -> bool {
    (1..=255).contains(&name.len()) && !name.contains(&b'/') && !name.contains(&0)
}

/// Adds a piece to a list, to the last one if it continues that.
pub fn add(pieces: &mut Vec<Piece>, piece: Piece) {
    if let Some(last) = pieces.last_mut() {
        let continues = match (last.place, piece.place) {
            (Place::Device(at), Place::Device(next)) => at.checked_add(last.len) == Some(next),
            (one, other) => one == other,
        };
        if continues {
            last.len += piece.len;
            return;
        }
    }
    pieces.push(piece);
}
