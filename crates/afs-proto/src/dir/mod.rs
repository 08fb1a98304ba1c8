//! Directories: what `FetchData` of a directory gives (`src/dir/dir.h` and `dir.c` of OpenAFS).
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
//! A number of an entry is `page * 64 + blob`, in two bytes, big endian as all numbers. An entry never
//! crosses a page. The limits follow: 1,023 pages; 64,435 entries beside the two if no name is longer
//! than 15 bytes, 31,706 if all have 16 to 47.
//!
//! [`Plan`] and [`Pages`] write, [`Directory`] reads and verifies, [`Image`] changes: clients change
//! their own copy of a directory after each of their calls, and fetch the pages again when the data
//! version does not follow by 1. A server that changes its own in the same way has pages as long as theirs.

mod image;
mod layout;
mod read;

pub use image::Image;
pub use layout::{Layout, LayoutError, Pages, Plan};
pub use read::{Directory, DirectoryError, Entries};

/// Bytes of a page (`AFS_PAGESIZE`).
pub const PAGE_BYTES: usize = 2048;
/// Pages of a directory at most (`BIGMAXPAGES`).
pub const PAGES_MAX: usize = 1023;
/// Bytes of a name at most. Calls may have 256; the salvager takes 255 (`MAXENAME` counts the zero
/// byte), and so does Linux.
pub const NAME_BYTES_MAX: usize = 255;

/// Blobs that entries may take in all so that they fit in any order: in each page up to eight stay
/// free, because the largest entry has nine. With more, only a [`Plan`] tells.
pub const BLOBS_SURE: usize = PAGES_MAX * (BLOBS - 1 - 8) - (FIRST_BLOB_OF_FIRST - 1) - 2;

/// Blobs of a page (`EPP`).
const BLOBS: usize = 64;
const BLOB_BYTES: usize = 32;
/// First blob of an entry in a page.
const FIRST_BLOB: usize = 1;
/// First blob of an entry in the first page (`DHE` + 1).
const FIRST_BLOB_OF_FIRST: usize = 13;
/// Pages whose free blobs are counted in the first page (`MAXPAGES`).
const COUNTED_PAGES: usize = 128;
/// Hash chains (`NHASHENT`).
const CHAINS: usize = 128;
/// What each page begins with, behind the number of pages.
const TAG: u16 = 1234;
/// What each entry begins with (`FFIRST`).
const ENTRY_FLAG: u8 = 1;

/// Where the parts of the first page begin, in bytes.
const COUNTS_AT: usize = 32;
const HASHES_AT: usize = COUNTS_AT + COUNTED_PAGES;
/// Where the name of an entry begins, in bytes.
const NAME_AT: usize = 12;

const _: () = assert!(HASHES_AT + 2 * CHAINS == FIRST_BLOB_OF_FIRST * BLOB_BYTES);
const _: () = assert!(PAGES_MAX * BLOBS <= u16::MAX as usize);

/// A file in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its name: 1 to [`NAME_BYTES_MAX`] bytes, no zero byte, no slash.
    pub name: &'a [u8],
    /// Its vnode.
    pub vnode: u32,
    /// Its uniquifier.
    pub unique: u32,
}

/// Blobs of an entry with a name of that many bytes: one for the numbers and the first 15 bytes, and
/// one for each further 32 (`NameBlobs`).
pub const fn blobs(name_bytes: usize) -> usize {
    1 + ((name_bytes + 16) >> 5)
}

/// The chain of a name (`DirHash`).
fn chain_of(name: &[u8]) -> usize {
    let step = |hash: u32, byte: &u8| hash.wrapping_mul(173).wrapping_add(u32::from(*byte));
    let hash = name.iter().fold(0, step);
    let chain = hash as usize % CHAINS;
    match chain {
        // The reference takes the number for a signed one.
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

/// A bit for each of `count` blobs from `blob` on, all within one page; bit 0 is its first blob.
fn blob_bits(blob: usize, count: usize) -> u64 {
    (blob..blob + count).fold(0, |bits, blob| bits | 1 << blob)
}
