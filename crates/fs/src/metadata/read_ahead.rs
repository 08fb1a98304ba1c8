//! Pages of the metadata that are read ahead: a check reads all of it in the order of the keys, in
//! which the entries of a large directory are anywhere on the device, and a request for each page
//! would cost more than the comparison.
//!
//! A branch that is read names the pages that a walk reads next. Once a walk has passed from one of
//! them to its neighbor, the rest is loaded, in the order of the device and all at once; so lookups
//! of single pages all over the metadata load nothing else. The memory is at most [`BLOCKS_MAX`]
//! blocks, 8 MiB.

use crate::format::record::BLOCK_BYTES;
use foldhash::HashMap;
use std::collections::VecDeque;

/// Number of blocks in memory.
const BLOCKS_MAX: u64 = 2048;
/// Number of branches that are remembered.
const BRANCHES_MAX: usize = 256;

/// Page of the metadata: its first block in the file, and its number of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Page {
    pub first: u64,
    pub blocks: u64,
}

/// Pages in memory, and branches whose pages may be read next. Each page is used once.
#[derive(Default)]
pub(super) struct ReadAhead {
    pages: HashMap<u64, Vec<u8>>,
    /// First blocks of loaded pages in their order, some of them used, and the blocks of all.
    loaded: VecDeque<Page>,
    blocks: u64,
    branches: VecDeque<Branch>,
    /// Number of the first of `branches`.
    oldest: u64,
    /// Number of the branch of a page, and its index there.
    places: HashMap<u64, (u64, usize)>,
}

struct Branch {
    children: Vec<Page>,
    /// Index after that of the last page that was read.
    next: usize,
}

/// Result of a search.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The page has been copied.
    Copied,
    /// It is not in memory.
    Absent,
    /// Nor is it, but these are to be loaded, which include it.
    Wanted(Vec<Page>),
}

impl ReadAhead {
    /// Copies the page from block `first` on, if it is in memory.
    pub fn find(&mut self, first: u64, out: &mut [u8]) -> Found {
        let place = self.places.get(&first).copied();
        let branch = place.and_then(|(number, index)| {
            let at = number.checked_sub(self.oldest)?;
            Some((self.branches.get_mut(at as usize)?, index))
        });
        let follows = branch
            .as_ref()
            .is_some_and(|(b, at)| *at > 0 && b.next == *at);
        let rest = branch.map(|(branch, index)| {
            branch.next = index + 1;
            &branch.children[index..]
        });
        if let Some(data) = self.pages.remove(&first)
            && data.len() == out.len()
        {
            out.copy_from_slice(&data);
            return Found::Copied;
        }
        match rest.filter(|_| follows) {
            Some(rest) => Found::Wanted(rest.to_vec()),
            None => Found::Absent,
        }
    }

    /// Expects a page to be read again after [`Found::Wanted`].
    pub fn take(&mut self, first: u64, out: &mut [u8]) -> bool {
        let data = self.pages.remove(&first);
        let data = data.filter(|data| data.len() == out.len());
        data.map(|data| out.copy_from_slice(&data)).is_some()
    }

    /// Adds a page that was loaded.
    pub fn insert(&mut self, page: Page, data: Vec<u8>) {
        debug_assert_eq!(data.len() as u64, page.blocks * BLOCK_BYTES);
        while self.blocks + page.blocks > BLOCKS_MAX
            && let Some(old) = self.loaded.pop_front()
        {
            self.blocks -= old.blocks;
            self.pages.remove(&old.first);
        }
        self.blocks += page.blocks;
        self.loaded.push_back(page);
        self.pages.insert(page.first, data);
    }

    /// Remembers the pages that a branch names, in the order of their keys.
    pub fn expect(&mut self, children: Vec<Page>) {
        if self.branches.len() == BRANCHES_MAX
            && let Some(old) = self.branches.pop_front()
        {
            let number = self.oldest;
            self.oldest += 1;
            for child in old.children {
                if self
                    .places
                    .get(&child.first)
                    .is_some_and(|(of, _)| *of == number)
                {
                    self.places.remove(&child.first);
                }
            }
        }
        let number = self.oldest + self.branches.len() as u64;
        for (index, child) in children.iter().enumerate() {
            self.places.insert(child.first, (number, index));
        }
        self.branches.push_back(Branch { children, next: 0 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(first: u64) -> Page {
        Page { first, blocks: 1 }
    }

    fn block(byte: u64) -> Vec<u8> {
        vec![byte as u8; BLOCK_BYTES as usize]
    }

    #[test]
    fn a_walk_from_page_to_page_loads_the_rest_of_a_branch_and_other_reads_load_nothing() {
        let mut ahead = ReadAhead::default();
        let mut out = block(0);
        let children: Vec<Page> = [70, 10, 90, 30, 50].map(page).to_vec();
        assert_eq!(ahead.find(70, &mut out), Found::Absent);
        ahead.expect(children.clone());
        for lookup in [30, 70, 30, 90, 70] {
            assert_eq!(ahead.find(lookup, &mut out), Found::Absent);
        }
        assert_eq!(
            ahead.find(10, &mut out),
            Found::Wanted(children[1..].to_vec())
        );
        assert!(!ahead.take(10, &mut out));
        for child in &children[1..] {
            ahead.insert(*child, block(child.first));
        }
        assert!(ahead.take(10, &mut out));
        assert_eq!(out, block(10));
        for child in &children[2..] {
            assert_eq!(ahead.find(child.first, &mut out), Found::Copied);
            assert_eq!(out, block(child.first));
        }
        // Each is used once; the next walk loads them again.
        assert_eq!(ahead.find(70, &mut out), Found::Absent);
        assert_eq!(
            ahead.find(10, &mut out),
            Found::Wanted(children[1..].to_vec())
        );
        // A page of another length than expected is not the one in question.
        ahead.insert(page(10), block(10));
        assert_eq!(ahead.find(10, &mut [0; 8192]), Found::Absent);
    }

    #[test]
    fn the_memory_is_limited() {
        let mut ahead = ReadAhead::default();
        let mut out = block(0);
        for first in 0..BLOCKS_MAX + 5 {
            ahead.insert(page(first), block(first));
        }
        assert_eq!(ahead.pages.len() as u64, BLOCKS_MAX);
        assert_eq!(ahead.find(4, &mut out), Found::Absent);
        assert_eq!(ahead.find(5, &mut out), Found::Copied);
        for number in 0..1000 {
            ahead.expect(vec![page(2 * number), page(2 * number + 1)]);
        }
        assert_eq!(ahead.branches.len(), BRANCHES_MAX);
        assert_eq!(ahead.places.len(), 2 * BRANCHES_MAX);
        ahead.find(1998, &mut out);
        assert_eq!(
            ahead.find(1999, &mut [0; 8192]),
            Found::Wanted(vec![page(1999)])
        );
    }
}
