//! Directories in the format that `FetchData` returns (`src/dir/dir.h` and `dir.c` of OpenAFS).
//!
//! ```text
//!   a page: 2,048 bytes, 64 blobs of 32
//!
//!   blob        page 0                                        every other page
//!   0           page header                                   page header
//!   1 - 4       free blobs of each of the first 128 pages     entries
//!   5 - 12      128 hash chains: first entry, two bytes each  entries
//!   13 -        entries, "." and ".." first                   entries
//!
//!   page header                              entry
//!    0  2  number of pages (page 0 only)      0  1  1
//!    2  2  1234                               1  1  0
//!    4  1  free blobs of an empty page        2  2  next entry of its chain, or 0
//!    5  8  blobs in use, bit 0 first          4  4  vnode
//!   13 19  0                                  8  4  uniquifier
//!                                            12     name, a zero byte, zeros to the blob's end
//! ```
//!
//! Entry numbers are `page * 64 + blob`, two bytes, big endian like all numbers. An entry never
//! crosses a page. The resulting limits: 1,023 pages; besides `.` and `..`, 64,435 entries if no
//! name is longer than 15 bytes, 31,706 if all have 16 to 47.
//!
//! [`Plan`] and [`Pages`] write, [`Directory`] reads and verifies, [`Image`] changes: clients
//! change their own copy of a directory after each of their calls, and fetch the pages again when
//! the data version does not advance by exactly 1. A server that applies the same algorithm has
//! pages of the same length as theirs.

mod image;
mod layout;
mod read;

pub use image::Image;
pub use layout::{Layout, LayoutError, Pages, Plan};
pub use read::{Directory, DirectoryError, Entries};

use crate::Fid;

/// Size of a page in bytes (`AFS_PAGESIZE`).
pub const PAGE_BYTES: usize = 2048;
/// Maximum number of pages of a directory (`BIGMAXPAGES`).
pub const PAGES_MAX: usize = 1023;
/// Longest name, in bytes. Calls can carry 256; the salvager accepts 255 (`MAXENAME` includes the
/// zero byte), and so does Linux.
pub const NAME_BYTES_MAX: usize = 255;

/// Number of entry blobs up to which a directory fits in any order of its entries: up to eight
/// blobs of each page stay free, because the largest entry has nine. Beyond it, only a [`Plan`] can
/// tell.
pub const BLOBS_SURE: usize = PAGES_MAX * (BLOBS - 1 - 8) - (FIRST_BLOB_OF_FIRST - 1) - 2;

/// Number of blobs of a page (`EPP`).
const BLOBS: usize = 64;
const BLOB_BYTES: usize = 32;
/// First blob available to entries in a page other than the first.
const FIRST_BLOB: usize = 1;
/// First blob available to entries in the first page (`DHE` + 1).
const FIRST_BLOB_OF_FIRST: usize = 13;
/// Number of pages whose free blobs are counted in the first page (`MAXPAGES`).
const COUNTED_PAGES: usize = 128;
/// Number of hash chains (`NHASHENT`).
const CHAINS: usize = 128;
/// Magic number of a page, after the number of pages.
const TAG: u16 = 1234;
/// First byte of each entry (`FFIRST`).
const ENTRY_FLAG: u8 = 1;

/// Offsets of the parts of the first page, in bytes.
const COUNTS_AT: usize = 32;
const HASHES_AT: usize = COUNTS_AT + COUNTED_PAGES;
/// Offset of the name within an entry, in bytes.
const NAME_AT: usize = 12;

const _: () = assert!(HASHES_AT + 2 * CHAINS == FIRST_BLOB_OF_FIRST * BLOB_BYTES);
const _: () = assert!(PAGES_MAX * BLOBS <= u16::MAX as usize);

/// Directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Name: 1 to [`NAME_BYTES_MAX`] bytes, no zero byte, no slash.
    pub name: &'a [u8],
    /// File that the name refers to.
    pub fid: Fid,
}

/// Counts the blobs of an entry: one for the header and the first 15 bytes of the name, and one
/// for each further 32 bytes (`NameBlobs`).
pub const fn blobs(name_bytes: usize) -> usize {
    1 + ((name_bytes + 16) >> 5)
}

/// Hashes a name to its chain (`DirHash`).
fn chain_of(name: &[u8]) -> usize {
    let step = |hash: u32, byte: &u8| hash.wrapping_mul(173).wrapping_add(u32::from(*byte));
    let hash = name.iter().fold(0, step);
    let chain = hash as usize % CHAINS;
    match chain {
        // OpenAFS treats the hash as a signed number.
        1.. if hash >= 1 << 31 => CHAINS - chain,
        _ => chain,
    }
}

fn first_blob(page: usize) -> usize {
    match page {
        0 => FIRST_BLOB_OF_FIRST,
        _ => FIRST_BLOB,
    }
}

/// Builds a mask of `count` blobs from `blob`, all within one page; bit 0 is its first blob.
fn blob_bits(blob: usize, count: usize) -> u64 {
    (blob..blob + count).fold(0, |bits, blob| bits | 1 << blob)
}
