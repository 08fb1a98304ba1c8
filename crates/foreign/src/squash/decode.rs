//! Decompression. Memory is bounded by the length of the output and the limits below.

use crate::bytes::le16;
use crate::error::{Error, Result};
use std::io::Read;

/// Largest dictionary of xz, in KiB, and window of zstd, in bytes. SquashFS uses no more than the
/// size of a block for either, at most 1 MiB.
const XZ_KIB: u32 = 8 << 10;
const ZSTD_BYTES: u64 = 2 << 20;

/// Method of compression, for a whole file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    Gzip,
    Xz,
    Lz4,
    Zstd,
}

impl Method {
    /// Decodes the number in the superblock.
    pub fn of(number: u16) -> Result<Method> {
        let unknown = |name: &str| {
            Err(Error::unsupported(format!(
                "it is compressed by {name}, which EVFS does not know; use mount(8)"
            )))
        };
        match number {
            1 => Ok(Method::Gzip),
            2 => unknown("lzma"),
            3 => unknown("lzo"),
            4 => Ok(Method::Xz),
            5 => Ok(Method::Lz4),
            6 => Ok(Method::Zstd),
            other => unknown(&format!("method {other}")),
        }
    }

    /// Decompresses to at most `most` bytes.
    pub fn decode(self, bytes: &[u8], most: usize) -> Result<Vec<u8>> {
        let failed = || Error::corrupt("compressed data is damaged");
        match self {
            Method::Gzip => miniz_oxide::inflate::decompress_to_vec_zlib_with_limit(bytes, most)
                .map_err(|_| failed()),
            Method::Xz => {
                let mut out = Vec::with_capacity(most);
                let reader = lzma_rust2::XzReader::new_mem_limit(bytes, false, XZ_KIB);
                let read = reader.take(most as u64 + 1).read_to_end(&mut out);
                match read {
                    Ok(len) if len <= most => Ok(out),
                    _ => Err(failed()),
                }
            }
            Method::Lz4 => {
                let mut out = vec![0; most];
                let len = lz4_flex::block::decompress_into(bytes, &mut out);
                out.truncate(len.map_err(|_| failed())?);
                Ok(out)
            }
            Method::Zstd => {
                let mut decoder = ruzstd::decoding::FrameDecoder::new();
                decoder.set_max_window_size(ZSTD_BYTES);
                let mut out = vec![0; most];
                let len = decoder.decode_all(bytes, &mut out);
                out.truncate(len.map_err(|_| failed())?);
                Ok(out)
            }
        }
    }
}

/// Longest content of a block of structures.
pub(super) const BLOCK_BYTES: usize = 8192;

/// Length of the header of a block of structures.
pub(super) const HEADER_BYTES: u64 = 2;

/// Decodes the header of a block of structures: its length, and whether it is compressed.
pub(super) fn header(bytes: &[u8]) -> Result<(usize, bool)> {
    let raw = le16(bytes, 0)?;
    let len = usize::from(raw & 0x7fff);
    match len {
        1..=BLOCK_BYTES => Ok((len, raw & 0x8000 == 0)),
        _ => Err(Error::corrupt("a block of structures has a wrong length")),
    }
}
