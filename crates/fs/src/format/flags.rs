//! Flags of files and directories.

use crate::error::{Error, Kind, Result};

/// Flags of a file or a directory, with the bits of `FS_IOC_GETFLAGS`. Bits that this code does not
/// know are kept, and have no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct InodeFlags(pub u32);

impl InodeFlags {
    /// New content is compressed; files and directories that are created in a directory inherit it.
    pub const COMPRESS: InodeFlags = InodeFlags(0x4);
    /// Nothing about the inode changes, and no entries of a directory.
    pub const IMMUTABLE: InodeFlags = InodeFlags(0x10);
    /// A file grows at its end only; a directory gets new entries only.
    pub const APPEND_ONLY: InodeFlags = InodeFlags(0x20);
    /// Programs for backups skip the file. EVFS only stores it.
    pub const NO_DUMP: InodeFlags = InodeFlags(0x40);
    /// Reads do not update the access time.
    pub const NO_ACCESS_TIME: InodeFlags = InodeFlags(0x80);
    /// New content is not compressed, whatever the fileset's method; inherited as well.
    pub const NO_COMPRESS: InodeFlags = InodeFlags(0x400);
    /// Flags that new files and directories inherit from their directory.
    pub const INHERITED: InodeFlags = InodeFlags::COMPRESS.with(InodeFlags::NO_COMPRESS);
    /// Flags that statx(2) reports as well, by the same bits.
    pub const IN_STATX: InodeFlags = InodeFlags(0xf4);
    /// All flags that this code knows.
    pub const KNOWN: InodeFlags = InodeFlags(0x4f4);

    /// Reports whether any of the given flags is set.
    pub fn has(self, flags: InodeFlags) -> bool {
        self.0 & flags.0 != 0
    }

    /// Returns those of these flags that the other ones have.
    #[must_use]
    pub const fn only(self, flags: InodeFlags) -> InodeFlags {
        InodeFlags(self.0 & flags.0)
    }

    /// Returns the bits that this code does not know.
    pub const fn unknown(self) -> u32 {
        self.0 & !InodeFlags::KNOWN.0
    }

    /// Returns these flags and the given ones.
    #[must_use]
    pub const fn with(self, flags: InodeFlags) -> InodeFlags {
        InodeFlags(self.0 | flags.0)
    }
}

impl InodeFlags {
    /// Checks that names, attributes and content that exists may change.
    ///
    /// # Errors
    /// [`Kind::NotPermitted`]: the inode is immutable or append-only.
    pub(crate) fn check_unlocked(self) -> Result<()> {
        if self.has(InodeFlags::APPEND_ONLY) {
            return Err(Error::new(
                Kind::NotPermitted,
                "append-only: `chattr -a` permits other changes",
            ));
        }
        self.check_mutable()
    }

    /// Checks that content or entries may be added.
    ///
    /// # Errors
    /// [`Kind::NotPermitted`]: the inode is immutable.
    pub(crate) fn check_mutable(self) -> Result<()> {
        if self.has(InodeFlags::IMMUTABLE) {
            return Err(Error::new(
                Kind::NotPermitted,
                "immutable: `chattr -i` permits changes",
            ));
        }
        Ok(())
    }
}
