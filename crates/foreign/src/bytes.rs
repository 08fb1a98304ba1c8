//! Numbers in bytes from the device. A number beyond the end of the bytes is an error.

use crate::error::{Error, Result};

/// Returns the bytes `at..at + len`.
///
/// # Errors
/// They reach beyond the end.
pub fn part(bytes: &[u8], at: usize, len: usize) -> Result<&[u8]> {
    at.checked_add(len)
        .and_then(|end| bytes.get(at..end))
        .ok_or_else(|| Error::corrupt("a structure ends early"))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N]> {
    part(bytes, at, N)?
        .try_into()
        .map_err(|_| Error::corrupt("a structure ends early"))
}

/// Reads a byte.
pub fn le8(bytes: &[u8], at: usize) -> Result<u8> {
    array::<1>(bytes, at).map(|[byte]| byte)
}

/// Reads a little-endian number of two bytes.
pub fn le16(bytes: &[u8], at: usize) -> Result<u16> {
    array(bytes, at).map(u16::from_le_bytes)
}

/// Reads a little-endian number of four bytes.
pub fn le32(bytes: &[u8], at: usize) -> Result<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

/// Reads a little-endian number of eight bytes.
pub fn le64(bytes: &[u8], at: usize) -> Result<u64> {
    array(bytes, at).map(u64::from_le_bytes)
}

/// Joins the halves of a number.
pub fn join(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}
