//! Big-endian integers and text in byte slices. No function here panics.

/// Reads the two bytes at offset `at`.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_be_bytes)
}

/// Reads the four bytes at offset `at`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_be_bytes)
}

/// Reads the eight bytes at offset `at`.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_be_bytes)
}

/// Reads the `N` bytes at offset `at`; `None` if the slice is too short.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Copies `value` to offset `at`. Does nothing if it does not fit.
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = at
        .checked_add(value.len())
        .and_then(|end| bytes.get_mut(at..end))
    {
        place.copy_from_slice(value);
    }
}

/// Extracts the ASCII text of a fixed-size field without surrounding spaces and trailing zeros.
/// Bytes that are not printable ASCII become `?`.
pub(crate) fn text(bytes: &[u8]) -> String {
    let show = |b: &u8| match b {
        0x20..=0x7e => char::from(*b),
        _ => '?',
    };
    let end = bytes
        .iter()
        .rposition(|b| *b != 0 && *b != b' ')
        .map_or(0, |at| at + 1);
    let trimmed = bytes.get(..end).unwrap_or_default();
    let text: String = trimmed.iter().map(show).collect();
    text.trim_start().into()
}

/// Formats the bytes as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(out, "{byte:02x}");
    }
    out
}
