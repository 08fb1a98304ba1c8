//! Reads and verifies directory pages received from a server.
//!
//! **Invariant:** a [`Directory`] value is verified: it has passed the checks of OpenAFS's salvager
//! (`DirOK` in `src/dir/salvage.c`). Lookup and iteration therefore need no checks of their own,
//! take time bounded by the size of the directory, and agree with each other.

use super::{
    BLOB_BYTES, BLOBS, CHAINS, COUNTED_PAGES, COUNTS_AT, ENTRY_FLAG, Entry, FIRST_BLOB_OF_FIRST,
    HASHES_AT, NAME_AT, NAME_BYTES_MAX, PAGE_BYTES, PAGES_MAX, TAG, blob_bits, blobs, chain_of,
    first_blob,
};
use crate::Fid;

/// Defect found in directory pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryError {
    /// Not a whole number of pages, none, too many, or not the number in the first page's header.
    #[error("the size of {0} bytes does not match the page count of the directory")]
    Size(usize),
    /// Malformed header of a page.
    #[error("page {0} of the directory has a bad header")]
    Header(usize),
    /// Invalid entry in a hash chain.
    #[error("chain {chain} of the directory has a bad entry at {entry}")]
    Entry {
        /// Index of the hash chain.
        chain: usize,
        /// Number of the entry.
        entry: u16,
    },
    /// The page's map of used blobs, or its free count, does not match its entries.
    #[error("page {0} of the directory has a bad allocation map")]
    Map(usize),
    /// The first two entries are not `.` and `..`.
    #[error("the directory does not begin with \".\" and \"..\"")]
    Dots,
}

/// Verified pages of a directory.
#[derive(Debug, Clone, Copy)]
pub struct Directory<'a> {
    first: &'a [u8; PAGE_BYTES],
    pages: &'a [[u8; PAGE_BYTES]],
}

impl<'a> Directory<'a> {
    /// Verifies all pages of a directory.
    pub fn verify(bytes: &'a [u8]) -> Result<Directory<'a>, DirectoryError> {
        let bad_size = DirectoryError::Size(bytes.len());
        let (pages, rest) = bytes.as_chunks();
        let first = pages.first().ok_or(bad_size)?;
        if !rest.is_empty() || pages.len() > PAGES_MAX {
            return Err(bad_size);
        }
        let directory = Directory { first, pages };
        directory.check_headers()?;
        let used = directory.check_chains()?;
        directory.check_maps(&used)?;
        directory.check_dots()?;
        Ok(directory)
    }

    /// Looks up the file that a name refers to; `.` and `..` are ordinary names.
    pub fn lookup(&self, name: &[u8]) -> Option<Fid> {
        let mut entries = self
            .chain(chain_of(name))
            .filter_map(|number| self.entry(number));
        let found = entries.find(|found| found.entry.name == name)?;
        Some(found.entry.fid)
    }

    /// Iterates over all entries in page order, `.` and `..` first.
    pub fn entries(&self) -> Entries<'a> {
        Entries {
            directory: *self,
            page: 0,
            blob: 0,
        }
    }

    fn check_headers(&self) -> Result<(), DirectoryError> {
        if let Some(page) = self.pages.iter().position(|page| number16(page, 2) != TAG) {
            return Err(DirectoryError::Header(page));
        }
        // The older directory format has 0 here; it never exceeded 128 pages.
        match usize::from(number16(self.first, 0)) {
            0 if self.pages.len() <= COUNTED_PAGES => Ok(()),
            count if count == self.pages.len() => Ok(()),
            _ => Err(DirectoryError::Size(self.pages.len() * PAGE_BYTES)),
        }
    }

    /// Follows all chains and returns the used blobs of each page. A blob used twice is an error,
    /// so an entry cannot overlap a page header, and a cyclic chain is detected where it closes.
    fn check_chains(&self) -> Result<Vec<u64>, DirectoryError> {
        let headers = (0..self.pages.len()).map(|page| blob_bits(0, first_blob(page)));
        let mut used: Vec<u64> = headers.collect();
        for chain in 0..CHAINS {
            for entry in self.chain(chain) {
                let bad = DirectoryError::Entry { chain, entry };
                let found = self.entry(entry).ok_or(bad)?;
                let page = used.get_mut(usize::from(entry) / BLOBS).ok_or(bad)?;
                if chain_of(found.entry.name) != chain || *page & found.bits != 0 {
                    return Err(bad);
                }
                *page |= found.bits;
            }
        }
        Ok(used)
    }

    /// Verifies that both maps match the entries: each page's own, and the counts of the first.
    fn check_maps(&self, used: &[u64]) -> Result<(), DirectoryError> {
        let counts: [u8; COUNTED_PAGES] = part(self.first, COUNTS_AT);
        for (page, count) in counts.iter().enumerate() {
            let in_use = used.get(page).map_or(0, |bits| bits.count_ones()) as usize;
            if usize::from(*count) + in_use != BLOBS {
                return Err(DirectoryError::Map(page));
            }
        }
        let maps = self.pages.iter().map(map).zip(used);
        match maps.enumerate().find(|(_, (map, used))| map != *used) {
            Some((page, _)) => Err(DirectoryError::Map(page)),
            None => Ok(()),
        }
    }

    fn check_dots(&self) -> Result<(), DirectoryError> {
        let mut entries = self.entries();
        let begins = entries.next().is_some_and(|entry| entry.name == b".")
            && entries.next().is_some_and(|entry| entry.name == b"..")
            && entries.blob == FIRST_BLOB_OF_FIRST + 2;
        if begins {
            Ok(())
        } else {
            Err(DirectoryError::Dots)
        }
    }

    /// Iterates over the entry numbers of a chain. Ends after the first number that is not a valid
    /// entry.
    fn chain(&self, chain: usize) -> impl Iterator<Item = u16> {
        let some = |number: u16| (number != 0).then_some(number);
        let first = some(number16(self.first, HASHES_AT + 2 * chain));
        std::iter::successors(first, move |number| some(self.entry(*number)?.next))
    }

    /// Reads entry `number`, or `None` if it is not well-formed.
    fn entry(&self, number: u16) -> Option<Found<'a>> {
        let (page, blob) = (usize::from(number) / BLOBS, usize::from(number) % BLOBS);
        let bytes = self.pages.get(page)?.get(blob * BLOB_BYTES..)?;
        let name = bytes.get(NAME_AT..)?;
        let name = name.get(..name.iter().position(|byte| *byte == 0)?)?;
        // A 16-byte name at the end of a page would fit into the page, but not into its blobs.
        let sound = bytes.first() == Some(&ENTRY_FLAG)
            && (1..=NAME_BYTES_MAX).contains(&name.len())
            && blob + blobs(name.len()) <= BLOBS;
        sound.then(|| Found {
            next: number16(bytes, 2),
            bits: blob_bits(blob, blobs(name.len())),
            entry: Entry {
                name,
                fid: Fid {
                    vnode: u32::from_be_bytes(part(bytes, 4)),
                    unique: u32::from_be_bytes(part(bytes, 8)),
                },
            },
        })
    }
}

struct Found<'a> {
    entry: Entry<'a>,
    next: u16,
    /// Mask of the blobs it uses.
    bits: u64,
}

/// Iterator over the entries of a directory in page order.
#[derive(Debug, Clone)]
pub struct Entries<'a> {
    directory: Directory<'a>,
    page: usize,
    /// First blob of the page that is not visited yet.
    blob: usize,
}

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        loop {
            let page = self.directory.pages.get(self.page)?;
            let from = self.blob.max(first_blob(self.page));
            let Some(in_use @ 1..) = map(page).checked_shr(u32::try_from(from).ok()?) else {
                (self.page, self.blob) = (self.page + 1, 0);
                continue;
            };
            let blob = from + in_use.trailing_zeros() as usize;
            let number = u16::try_from(self.page * BLOBS + blob).ok()?;
            let found = self.directory.entry(number)?.entry;
            self.blob = blob + blobs(found.name.len());
            return Some(found);
        }
    }
}

/// Reads the page's map of used blobs.
fn map(page: &[u8; PAGE_BYTES]) -> u64 {
    u64::from_le_bytes(part(page, 5))
}

fn number16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(part(bytes, at))
}

/// Copies `N` bytes at offset `at`, or zeros if they are out of range.
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let there = bytes.get(at..).and_then(<[u8]>::first_chunk);
    there.copied().unwrap_or([0; N])
}
