//! Adding checksums of file data to a file system that was made without.

use crate::error::Result;
use crate::fs::Fs;

/// Result of [`Fs::add_checksums`], in blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Upgraded {
    /// Blocks of file data that got a checksum.
    pub added: u64,
    /// Blocks that the device cannot read, and which have none.
    pub unreadable: u64,
}

impl Fs {
    /// Computes the missing checksums of all file data from the data as it is. Files must not be in
    /// use. `progress` is called with the blocks done and their number. From the first moment on,
    /// the file system is one with checksums; if this is interrupted, blocks are left without, and
    /// the next call continues with them. Durable when this returns.
    ///
    /// # Errors
    /// [`crate::Kind::ReadOnly`]; [`crate::Kind::Busy`]: files are in use. The device failed.
    pub fn add_checksums(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Upgraded> {
        let fs = self.inner();
        fs.check_writable()?;
        fs.write().refuse_use()?;
        fs.superblock.need_checksums()?;
        fs.write().checksums = true;
        let done = fs.add_missing_sums(progress)?;
        fs.checkpoint()?;
        Ok(done)
    }
}
