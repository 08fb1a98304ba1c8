//! Writes directories.
//!
//! The first page has the beginning of each hash chain and so depends on all entries; each entry has
//! the next one of its chain. So there are two passes. [`Plan`] sees the names and builds nothing; it
//! notes where each page begins and how the chains begin there, 1/8 of the size of the pages. From the
//! resulting [`Layout`], [`Pages`] writes any range of bytes; each page of it is built once, from its
//! own entries alone.
//!
//! **Invariant:** the same entries in the same order give the same bytes. Each page holds a run of
//! entries: an entry that does not fit its page goes to the next, and later ones do not fill the gap.
//! Each entry is put at the front of its chain, as OpenAFS does.
//!
//! Names that are not those of the plan are found out where they lead to other places or other chains.
//! So ranges that were written from one layout always fit together, whenever they were written.

use super::{
    BLOB_BYTES, BLOBS, CHAINS, COUNTED_PAGES, COUNTS_AT, ENTRY_FLAG, Entry, HASHES_AT, NAME_AT,
    NAME_BYTES_MAX, PAGE_BYTES, PAGES_MAX, TAG, blob_bits, blobs, chain_of, first_blob,
};
use std::ops::Range;

/// Why a directory cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A name that no directory can have.
    #[error("a name in a directory has 1 to {NAME_BYTES_MAX} bytes, no zero byte and no slash")]
    Name,
    /// The directory has as many pages as there may be.
    #[error("the directory is full: it has {PAGES_MAX} pages")]
    Full,
    /// The entries are not those that the plan has seen.
    #[error("the directory was changed while it was read")]
    Changed,
}

/// First entry of each chain.
type Chains = [u16; CHAINS];

/// Where the next entry goes.
#[derive(Debug, Clone)]
struct Cursor {
    page: usize,
    blob: usize,
    chains: Chains,
}

/// Where an entry is put, and what follows it in its chain.
struct Place {
    blob: usize,
    next: u16,
}

impl Cursor {
    /// Puts an entry into the page, if there is room.
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

/// The first pass: where each entry goes.
#[derive(Debug)]
pub struct Plan {
    layout: Layout,
    cursor: Cursor,
}

impl Plan {
    /// Begins with "." and "..", given as vnode and uniquifier.
    pub fn new(own: (u32, u32), parent: (u32, u32)) -> Plan {
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

    /// Adds the next entry. Names must differ; that is not looked at.
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

    /// All entries were added.
    pub fn finish(mut self) -> Layout {
        self.end_page();
        self.layout.chains = self.cursor.chains;
        self.layout
    }
}

/// Where everything is in a directory.
#[derive(Debug, Clone)]
pub struct Layout {
    dots: [(&'static [u8], (u32, u32)); 2],
    pages: Vec<Page>,
    /// The chains when all entries are there.
    chains: Chains,
    entries: usize,
}

/// How a page begins.
#[derive(Debug, Clone)]
struct Page {
    /// Which of the plan's entries comes first.
    first_entry: usize,
    /// The chains before it.
    chains: Chains,
    /// Behind the last blob in use.
    blobs_end: usize,
}

impl Layout {
    /// Bytes of the directory: what its status has as length.
    pub fn length(&self) -> usize {
        self.pages.len() * PAGE_BYTES
    }

    /// Entries beside "." and "..".
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Writes the bytes of `range`, as far as there are any.
    pub fn pages(&self, range: Range<usize>) -> Pages<'_> {
        let range = range.start..range.end.min(self.length());
        let pages = match range.is_empty() {
            true => 0..0,
            false => range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES),
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

/// Writes a range of a directory's bytes: push the entries of [`Pages::entries`], then finish.
#[derive(Debug)]
pub struct Pages<'l> {
    layout: &'l Layout,
    range: Range<usize>,
    pages: Range<usize>,
    /// Which of the plan's entries comes next.
    entry: usize,
    cursor: Cursor,
    page: [u8; PAGE_BYTES],
}

impl Pages<'_> {
    /// Which of the plan's entries have to be pushed, counted from 0 in the plan's order.
    pub fn entries(&self) -> Range<usize> {
        self.entry..self.layout.first_entry(self.pages.end)
    }

    /// Takes the next entry; appends to `to` what is complete.
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

    /// Appends the rest.
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
        // What the reference writes there and never looks at.
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
        for (name, (vnode, unique)) in layout.dots {
            // There is always room for these two in the first page.
            let _ = self.put(Entry {
                name,
                vnode,
                unique,
            });
        }
    }

    fn put(&mut self, entry: Entry<'_>) -> Result<(), LayoutError> {
        let place = self.cursor.place(entry.name).ok_or(LayoutError::Changed)?;
        let at = place.blob * BLOB_BYTES;
        set(&mut self.page, at, &[ENTRY_FLAG, 0]);
        set(&mut self.page, at + 2, &place.next.to_be_bytes());
        set(&mut self.page, at + 4, &entry.vnode.to_be_bytes());
        set(&mut self.page, at + 8, &entry.unique.to_be_bytes());
        set(&mut self.page, at + NAME_AT, entry.name);
        Ok(())
    }

    /// The page is complete, if its entries are those of the plan: the chains then begin as the plan
    /// has it.
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

/// A count of blobs, which is at most 64.
fn count_byte(blobs: usize) -> u8 {
    u8::try_from(blobs).unwrap_or(u8::MAX)
}

/// Puts `bytes` at `at`, which is within the page.
fn set(page: &mut [u8; PAGE_BYTES], at: usize, bytes: &[u8]) {
    if let Some(place) = page.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}
