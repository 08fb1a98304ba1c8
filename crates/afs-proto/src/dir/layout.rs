//! Serialization of directories.
//!
//! The first page holds the head of each hash chain and so depends on all entries; each entry holds
//! the next one of its chain. Writing therefore takes two passes. [`Plan`] receives the names and
//! builds no pages; it records the first entry of each page and the chain heads at that point, 1/8
//! of the size of the pages. From the resulting [`Layout`], [`Pages`] writes any byte range; each
//! page of the range is built once, from its own entries alone.
//!
//! **Invariant:** the same entries in the same order produce the same bytes. Each page holds
//! consecutive entries: an entry that does not fit into its page starts the next one, and later
//! entries do not fill the gap. Each entry is put at the front of its chain, as OpenAFS does.
//!
//! Names that differ from those of the plan are detected if they change an entry's position or
//! chain. Ranges written from one layout therefore always fit together, whenever they are written.

use super::{
    BLOB_BYTES, BLOBS, CHAINS, COUNTED_PAGES, COUNTS_AT, ENTRY_FLAG, Entry, HASHES_AT, NAME_AT,
    NAME_BYTES_MAX, PAGE_BYTES, PAGES_MAX, TAG, blob_bits, blobs, chain_of, first_blob,
};
use crate::Fid;
use std::ops::Range;

/// Error while writing a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Name that no directory can contain.
    #[error("a name in a directory has 1 to {NAME_BYTES_MAX} bytes, no zero byte and no slash")]
    Name,
    /// The directory has the maximum number of pages.
    #[error("the directory is full: it has {PAGES_MAX} pages")]
    Full,
    /// The entries differ from those of the plan.
    #[error("the directory changed while it was read")]
    Changed,
}

/// First entry of each hash chain.
type Chains = [u16; CHAINS];

/// Position of the next entry, and the chain heads before it.
#[derive(Debug, Clone)]
struct Cursor {
    page: usize,
    blob: usize,
    chains: Chains,
}

/// Position of an entry within its page, and its successor in the hash chain.
struct Place {
    blob: usize,
    next: u16,
}

impl Cursor {
    /// Places an entry in the page if there is room.
    fn place(&mut self, name: &[u8]) -> Option<Place> {
        let (blob, end) = (self.blob, self.blob + blobs(name.len()));
        let number = u16::try_from(self.page * BLOBS + blob).ok()?;
        let chain = self.chains.get_mut(chain_of(name))?;
        if end > BLOBS {
            return None;
        }
        self.blob = end;
        let next = std::mem::replace(chain, number);
        Some(Place { blob, next })
    }
}

/// First pass: assigns a position to each entry.
#[derive(Debug)]
pub struct Plan {
    layout: Layout,
    cursor: Cursor,
}

impl Plan {
    /// Creates a plan that contains `.` and `..`; `own` and `parent` are their files.
    pub fn new(own: Fid, parent: Fid) -> Plan {
        let mut cursor = Cursor {
            page: 0,
            blob: first_blob(0),
            chains: [0; CHAINS],
        };
        let first = Page {
            first_entry: 0,
            chains: cursor.chains,
            blobs_end: 0,
        };
        let layout = Layout {
            dots: [(&b"."[..], own), (b"..", parent)],
            pages: vec![first],
            chains: cursor.chains,
            entries: 0,
        };
        for (name, _) in layout.dots {
            let _ = cursor.place(name);
        }
        Plan { layout, cursor }
    }

    /// Adds the next entry. Names must be distinct; this is not checked.
    pub fn push(&mut self, name: &[u8]) -> Result<(), LayoutError> {
        let sound = (1..=NAME_BYTES_MAX).contains(&name.len()) && name != b"." && name != b"..";
        if !sound || name.iter().any(|byte| [0, b'/'].contains(byte)) {
            return Err(LayoutError::Name);
        }
        if self.cursor.place(name).is_none() {
            self.next_page()?;
            self.cursor.place(name).ok_or(LayoutError::Full)?;
        }
        self.layout.entries += 1;
        Ok(())
    }

    fn next_page(&mut self) -> Result<(), LayoutError> {
        if self.layout.pages.len() == PAGES_MAX {
            return Err(LayoutError::Full);
        }
        self.end_page();
        self.cursor.page += 1;
        self.cursor.blob = first_blob(self.cursor.page);
        self.layout.pages.push(Page {
            first_entry: self.layout.entries,
            chains: self.cursor.chains,
            blobs_end: 0,
        });
        Ok(())
    }

    fn end_page(&mut self) {
        if let Some(page) = self.layout.pages.last_mut() {
            page.blobs_end = self.cursor.blob;
        }
    }

    /// Completes the plan.
    pub fn finish(mut self) -> Layout {
        self.end_page();
        self.layout.chains = self.cursor.chains;
        self.layout
    }
}

/// Positions of all entries of a directory.
#[derive(Debug, Clone)]
pub struct Layout {
    dots: [(&'static [u8], Fid); 2],
    pages: Vec<Page>,
    /// Chain heads after the last entry.
    chains: Chains,
    entries: usize,
}

/// State at the beginning of a page.
#[derive(Debug, Clone)]
struct Page {
    /// Index in the plan of the page's first entry.
    first_entry: usize,
    /// Chain heads before the page's first entry.
    chains: Chains,
    /// End of the used blobs, exclusive.
    blobs_end: usize,
}

impl Layout {
    /// Returns the size of the directory in bytes, which is also the length in its status.
    pub fn length(&self) -> usize {
        self.pages.len() * PAGE_BYTES
    }

    /// Returns the number of entries, not counting `.` and `..`.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Creates a writer for the bytes of `range`, clamped to the directory.
    pub fn pages(&self, range: Range<usize>) -> Pages<'_> {
        let range = range.start..range.end.min(self.length());
        let pages = if range.is_empty() {
            0..0
        } else {
            range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES)
        };
        let mut writer = Pages {
            layout: self,
            range,
            pages: pages.clone(),
            entry: self.first_entry(pages.start),
            cursor: Cursor {
                page: pages.start,
                blob: 0,
                chains: self.chains_before(pages.start),
            },
            page: [0; PAGE_BYTES],
        };
        if !pages.is_empty() {
            writer.begin_page();
        }
        writer
    }

    fn first_entry(&self, page: usize) -> usize {
        self.pages
            .get(page)
            .map_or(self.entries, |page| page.first_entry)
    }

    fn chains_before(&self, page: usize) -> Chains {
        self.pages.get(page).map_or(self.chains, |page| page.chains)
    }

    fn blobs_end(&self, page: usize) -> Option<usize> {
        self.pages.get(page).map(|page| page.blobs_end)
    }
}

/// Writer for a byte range: push the entries of [`Pages::entries`], then finish.
#[derive(Debug)]
pub struct Pages<'l> {
    layout: &'l Layout,
    range: Range<usize>,
    pages: Range<usize>,
    /// Index in the plan of the next entry.
    entry: usize,
    cursor: Cursor,
    page: [u8; PAGE_BYTES],
}

impl Pages<'_> {
    /// Returns the indices of the entries to push, counted from 0 in the plan's order.
    pub fn entries(&self) -> Range<usize> {
        self.entry..self.layout.first_entry(self.pages.end)
    }

    /// Takes the next entry and appends completed pages to `to`.
    pub fn push(&mut self, entry: Entry<'_>, to: &mut Vec<u8>) -> Result<(), LayoutError> {
        if self.entries().is_empty() {
            return Err(LayoutError::Changed);
        }
        if self.entry == self.layout.first_entry(self.cursor.page + 1) {
            self.end_page(to)?;
            self.begin_page();
        }
        self.put(entry)?;
        self.entry += 1;
        Ok(())
    }

    /// Appends the last page.
    pub fn finish(mut self, to: &mut Vec<u8>) -> Result<(), LayoutError> {
        match (self.entries().is_empty(), self.pages.is_empty()) {
            (false, _) => Err(LayoutError::Changed),
            (true, true) => Ok(()),
            (true, false) => self.end_page(to),
        }
    }

    fn begin_page(&mut self) {
        let page = self.cursor.page;
        let first = first_blob(page);
        self.page.fill(0);
        self.cursor.blob = first;
        set(&mut self.page, 2, &TAG.to_be_bytes());
        // OpenAFS writes this field and never reads it.
        set(&mut self.page, 4, &[count_byte(BLOBS - first)]);
        if page == 0 {
            self.begin_first_page();
        }
    }

    fn begin_first_page(&mut self) {
        let layout = self.layout;
        let pages = u16::try_from(layout.pages.len()).unwrap_or(u16::MAX);
        set(&mut self.page, 0, &pages.to_be_bytes());
        let used = |page| layout.blobs_end(page).unwrap_or(0);
        for page in 0..COUNTED_PAGES {
            let free = count_byte(BLOBS - used(page));
            set(&mut self.page, COUNTS_AT + page, &[free]);
        }
        for (chain, first) in layout.chains.iter().enumerate() {
            set(&mut self.page, HASHES_AT + 2 * chain, &first.to_be_bytes());
        }
        for (name, fid) in layout.dots {
            // These two always fit into the first page.
            let _ = self.put(Entry { name, fid });
        }
    }

    fn put(&mut self, entry: Entry<'_>) -> Result<(), LayoutError> {
        let place = self.cursor.place(entry.name).ok_or(LayoutError::Changed)?;
        let at = place.blob * BLOB_BYTES;
        set(&mut self.page, at, &[ENTRY_FLAG, 0]);
        set(&mut self.page, at + 2, &place.next.to_be_bytes());
        set(&mut self.page, at + 4, &entry.fid.vnode.to_be_bytes());
        set(&mut self.page, at + 8, &entry.fid.unique.to_be_bytes());
        set(&mut self.page, at + NAME_AT, entry.name);
        Ok(())
    }

    /// Appends the page to `to`, after a check that its entries ended at the position and with the
    /// chain heads that the plan recorded.
    fn end_page(&mut self, to: &mut Vec<u8>) -> Result<(), LayoutError> {
        let Cursor { page, blob, chains } = self.cursor;
        let planned = self.layout.blobs_end(page) == Some(blob)
            && self.layout.chains_before(page + 1) == chains;
        if !planned {
            return Err(LayoutError::Changed);
        }
        set(&mut self.page, 5, &blob_bits(0, blob).to_le_bytes());
        let begin = page * PAGE_BYTES;
        let wanted = self.range.start.max(begin) - begin..(self.range.end - begin).min(PAGE_BYTES);
        to.extend_from_slice(self.page.get(wanted).unwrap_or_default());
        self.cursor.page += 1;
        Ok(())
    }
}

/// Converts a number of blobs, at most 64.
fn count_byte(blobs: usize) -> u8 {
    u8::try_from(blobs).unwrap_or(u8::MAX)
}

/// Copies `bytes` to offset `at`; out of range, it does nothing.
fn set(page: &mut [u8; PAGE_BYTES], at: usize, bytes: &[u8]) {
    if let Some(place) = page.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}
