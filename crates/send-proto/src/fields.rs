//! Little-endian fields.

use crate::{Error, Result};

/// Rest of the bytes of a structure.
pub(crate) struct In<'a>(pub &'a [u8]);

impl<'a> In<'a> {
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let split = self.0.split_at_checked(len);
        let (bytes, rest) = split.ok_or(Error::Damaged("a structure is too short"))?;
        self.0 = rest;
        Ok(bytes)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.bytes(N)?;
        <[u8; N]>::try_from(bytes).map_err(|_| Error::Damaged("a structure is too short"))
    }

    pub fn u8(&mut self) -> Result<u8> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub fn i64(&mut self) -> Result<i64> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    /// Returns all bytes that are left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// Checks that no bytes are left.
    pub fn end(&self) -> Result<()> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Error::Damaged("a structure is too long"))
        }
    }
}
