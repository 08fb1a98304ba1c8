//! Reading ahead in a file that does not change.

use super::{BLOCK, DatabaseFile, locate};
use crate::format::record::{BLOCK_BYTES, Run};
use crate::integrity::Tag;
use crate::metadata::page_layout::{BRANCH, PageLayout, children};
use crate::metadata::read_ahead::{Found, Page};
use crate::metadata::tags::Place;

/// Largest request in bytes.
const AHEAD_BYTES_MAX: u64 = 256 << 10;
/// Largest page that is read ahead, in bytes.
const PAGE_BYTES_MAX: u64 = 64 << 10;

impl DatabaseFile {
    /// Reads blocks of the file on the device: those of page `page`, from block `at` on. Reads ahead if
    /// the device does not change.
    pub(super) fn read_unbuffered(&self, page: u64, at: u64, out: &mut [u8]) -> block::Result<()> {
        if !self.is_read_only() {
            return self.read_below(at, out);
        }
        let ahead = || self.ahead.lock().expect("no panic under this lock");
        let found = ahead().find(page, out);
        let copied = match found {
            Found::Copied => true,
            Found::Absent => false,
            Found::Wanted(pages) => {
                self.load(&pages);
                ahead().take(page, out)
            }
        };
        if !copied {
            self.read_below(at, out)?;
        }
        if page > 0 && out[0] == BRANCH {
            let children = self.pages_below(out);
            ahead().expect(children);
        }
        Ok(())
    }

    /// Finds the pages that a branch names, which may be damaged.
    fn pages_below(&self, branch: &[u8]) -> Vec<Page> {
        let header = || {
            let mut header = vec![0; BLOCK];
            self.read_blocks(0, &mut header).ok()?;
            PageLayout::of_header(&header)
        };
        let Some(layout) = self.layout.get_or_init(header) else {
            return Vec::new();
        };
        let file_bytes = self.bytes();
        let whole = |n: u64| n.is_multiple_of(BLOCK_BYTES).then_some(n / BLOCK_BYTES);
        let page = |(number, _)| {
            let (offset, len) = layout.place(number, file_bytes)?;
            let (first, blocks) = (whole(offset)?, whole(len)?);
            (len <= PAGE_BYTES_MAX).then_some(Page { first, blocks })
        };
        children(branch).filter_map(page).collect()
    }

    /// Loads pages in the order of the device. Those that cannot be read, or do not match their tags,
    /// are left to the reader that needs them.
    fn load(&self, pages: &[Page]) {
        let mut places: Vec<(Run, Page, Option<Tag>)> = Vec::new();
        for page in pages {
            let (at, tag) = match &self.tags {
                None => (page.first, None),
                Some(tagged) => {
                    let place = Place::of_page(page.first);
                    let mut locked = self.lock_tags(tagged);
                    match locked.tags.find(place, &|at, out| self.read_below(at, out)) {
                        Ok(Some(known)) if page.blocks == 1 => (known.block, Some(known.tag)),
                        _ => continue,
                    }
                }
            };
            if let (Some(start), run) = locate(&self.superblock.lock().segments, at)
                && run >= page.blocks
            {
                let blocks = page.blocks;
                places.push((Run { start, blocks }, *page, tag));
            }
        }
        places.sort_unstable_by_key(|(run, ..)| run.start);
        let most = u64::from(self.io.info().max_transfer).min(AHEAD_BYTES_MAX) / BLOCK_BYTES;
        let mut together: Vec<(Run, Vec<_>)> = Vec::new();
        for (run, page, tag) in places {
            match together.last_mut() {
                Some((all, pages)) if all.end() == run.start && all.blocks + run.blocks <= most => {
                    all.blocks += run.blocks;
                    pages.push((page, tag));
                }
                _ => together.push((run, vec![(page, tag)])),
            }
        }
        let runs = together.iter().map(|(run, _)| *run);
        let Ok(read) = self.io.read_runs(runs) else {
            return;
        };
        let mut ahead = self.ahead.lock().expect("no panic under this lock");
        let key = self.superblock.key();
        for ((_, pages), data) in together.into_iter().zip(read) {
            let mut rest = &data[..];
            for (page, tag) in pages {
                let Some((data, after)) = rest.split_at_checked(page.blocks as usize * BLOCK)
                else {
                    break;
                };
                rest = after;
                if tag.is_none_or(|tag| key.is_some_and(|key| key.block_tag(data) == tag)) {
                    ahead.insert(page, data.to_vec());
                }
            }
        }
    }
}
