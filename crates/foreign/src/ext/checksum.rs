//! The checksum of ext4's metadata.

/// Continues a CRC32C, without the inversions at its start and end that other formats have.
pub(super) fn crc(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}
