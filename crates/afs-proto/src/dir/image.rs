//! Directory pages that support insertion and removal of names.
//!
//! Clients update their own copy after each of their calls, and take the length of the directory
//! from the reply. Both copies match only if the server places a name where clients place it: in
//! the first page with room, in the first gap that is long enough, at the front of its hash chain.
//! [`Image`] does that. The pages it starts from may have another layout ([`super::Plan`]); all
//! changes to them follow the clients' rules.
//!
//! **Invariant:** the pages pass [`Directory::verify`] after every operation.

use super::{
    BLOB_BYTES, BLOBS, COUNTED_PAGES, COUNTS_AT, Directory, DirectoryError, ENTRY_FLAG, Entry,
    HASHES_AT, LayoutError, NAME_AT, NAME_BYTES_MAX, PAGE_BYTES, PAGES_MAX, Plan, TAG, blob_bits,
    blobs, chain_of, first_blob,
};
use crate::Fid;

/// Mutable pages of a directory.
#[derive(Debug, Clone)]
pub struct Image {
    bytes: Vec<u8>,
}

impl Image {
    /// Creates an empty directory; `own` and `parent` are the files of `.` and `..`.
    pub fn new(own: Fid, parent: Fid) -> Image {
        let layout = Plan::new(own, parent).finish();
        let mut bytes = Vec::with_capacity(PAGE_BYTES);
        let written = layout.pages(0..PAGE_BYTES).finish(&mut bytes);
        debug_assert!(written.is_ok(), "a directory without entries has no others");
        Image { bytes }
    }

    /// Creates an image from existing pages, which are verified.
    pub fn from_pages(bytes: Vec<u8>) -> Result<Image, DirectoryError> {
        Directory::verify(&bytes)?;
        Ok(Image { bytes })
    }

    /// Returns the pages.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Looks up the file that a name refers to.
    pub fn find(&self, name: &[u8]) -> Option<Fid> {
        let at = self.locate(name)?.entry;
        Some(Fid {
            vnode: self.word(at + 4),
            unique: self.word(at + 8),
        })
    }

    /// Checks whether there is room for a name; one that is too long counts as the longest.
    pub fn fits(&self, name: &[u8]) -> bool {
        self.room(blobs(name.len().min(NAME_BYTES_MAX))).is_some()
    }

    /// Adds a name, which must not exist yet; this is not checked.
    ///
    /// # Errors
    /// [`LayoutError::Name`], [`LayoutError::Full`]: the pages are unchanged.
    pub fn insert(&mut self, entry: Entry<'_>) -> Result<(), LayoutError> {
        let Entry { name, fid } = entry;
        let sound = (1..=NAME_BYTES_MAX).contains(&name.len());
        if !sound || name.iter().any(|byte| [0, b'/'].contains(byte)) {
            return Err(LayoutError::Name);
        }
        let wanted = blobs(name.len());
        let (page, blob) = self.room(wanted).ok_or(LayoutError::Full)?;
        if page * PAGE_BYTES == self.bytes.len() {
            self.add_page(page);
        }
        self.set_map(page, self.map(page) | blob_bits(blob, wanted));
        let number = u16::try_from(page * BLOBS + blob).map_err(|_| LayoutError::Full)?;
        let chain_at = HASHES_AT + 2 * chain_of(name);
        let next = self.number(chain_at);
        self.put(chain_at, &number.to_be_bytes());
        let at = usize::from(number) * BLOB_BYTES;
        self.clear(at, wanted * BLOB_BYTES);
        self.put(at, &[ENTRY_FLAG, 0]);
        self.put(at + 2, &next.to_be_bytes());
        self.put_fid(at, fid);
        self.put(at + NAME_AT, name);
        Ok(())
    }

    /// Removes a name and returns whether it existed.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let Some(found) = self.locate(name) else {
            return false;
        };
        let next = self.number(found.entry + 2);
        self.put(found.link, &next.to_be_bytes());
        let number = found.entry / BLOB_BYTES;
        let (page, blob) = (number / BLOBS, number % BLOBS);
        let used = blobs(name.len());
        self.set_map(page, self.map(page) & !blob_bits(blob, used));
        // Free blobs are kept zeroed.
        self.clear(found.entry, used * BLOB_BYTES);
        true
    }

    /// Points an existing name at another file and returns whether the name exists.
    pub fn replace(&mut self, name: &[u8], fid: Fid) -> bool {
        let Some(found) = self.locate(name) else {
            return false;
        };
        self.put_fid(found.entry, fid);
        true
    }

    /// Writes the file of the entry at offset `entry`.
    fn put_fid(&mut self, entry: usize, fid: Fid) {
        self.put(entry + 4, &fid.vnode.to_be_bytes());
        self.put(entry + 8, &fid.unique.to_be_bytes());
    }

    /// Finds page and blob for an entry of `wanted` blobs: in the first page with room, or in a
    /// new page. `None` if the directory is full.
    fn room(&self, wanted: usize) -> Option<(usize, usize)> {
        let pages = self.bytes.len() / PAGE_BYTES;
        for page in 0..pages {
            let counted = (page < COUNTED_PAGES).then(|| self.byte(COUNTS_AT + page));
            if counted.is_some_and(|free| usize::from(free) < wanted) {
                continue;
            }
            let map = self.map(page);
            let free = |blob: &usize| map & blob_bits(*blob, wanted) == 0;
            if let Some(blob) = (0..=BLOBS - wanted).find(free) {
                return Some((page, blob));
            }
        }
        (pages < PAGES_MAX).then_some((pages, first_blob(pages)))
    }

    fn add_page(&mut self, page: usize) {
        self.bytes.resize((page + 1) * PAGE_BYTES, 0);
        let at = page * PAGE_BYTES;
        self.put(at + 2, &TAG.to_be_bytes());
        let free = u8::try_from(BLOBS - first_blob(page)).unwrap_or(u8::MAX);
        self.put(at + 4, &[free]);
        let pages = u16::try_from(page + 1).unwrap_or(u16::MAX);
        self.put(0, &pages.to_be_bytes());
        self.set_map(page, blob_bits(0, first_blob(page)));
    }

    /// Reads the bit map of a page's used blobs; bit 0 is its first blob.
    fn map(&self, page: usize) -> u64 {
        let bytes = self.bytes.get(page * PAGE_BYTES + 5..);
        let map = bytes.and_then(<[u8]>::first_chunk);
        map.map_or(u64::MAX, |map| u64::from_le_bytes(*map))
    }

    /// Sets the bit map of a page and the page's free count in the first page.
    fn set_map(&mut self, page: usize, map: u64) {
        self.put(page * PAGE_BYTES + 5, &map.to_le_bytes());
        if page < COUNTED_PAGES {
            let free = u8::try_from(map.count_zeros()).unwrap_or(u8::MAX);
            self.put(COUNTS_AT + page, &[free]);
        }
    }

    fn locate(&self, name: &[u8]) -> Option<Found> {
        let mut link = HASHES_AT + 2 * chain_of(name);
        // Verified chains end. The number of blobs bounds the number of steps anyway.
        for _ in 0..self.bytes.len() / BLOB_BYTES {
            let number = self.number(link);
            if number == 0 {
                return None;
            }
            let entry = usize::from(number) * BLOB_BYTES;
            let there = self.bytes.get(entry + NAME_AT..)?;
            if there.starts_with(name) && there.get(name.len()) == Some(&0) {
                return Some(Found { link, entry });
            }
            link = entry + 2;
        }
        None
    }

    fn byte(&self, at: usize) -> u8 {
        self.bytes.get(at).copied().unwrap_or_default()
    }

    fn number(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.byte(at), self.byte(at + 1)])
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes([0, 1, 2, 3].map(|byte| self.byte(at + byte)))
    }

    /// Overwrites bytes at offset `at`.
    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.bytes.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    fn clear(&mut self, at: usize, len: usize) {
        if let Some(place) = self.bytes.get_mut(at..at + len) {
            place.fill(0);
        }
    }
}

/// Byte offsets of an entry and of the link that refers to it.
struct Found {
    link: usize,
    entry: usize,
}
