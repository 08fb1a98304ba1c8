//! Progress of a check or a repair, in bytes of metadata read and to be read.

use crate::format::key::{KEY_BYTES, TreeId};
use crate::format::record::BLOCK_BYTES;
use crate::format::superblock::Superblock;
use crate::metadata::state::State;

/// Number of items between two progress reports.
const ITEMS_PER_WORD: u64 = 4096;

/// Progress meter. The work consists of parts, each with an estimated cost in bytes.
pub(super) struct Meter<'a> {
    tell: &'a mut dyn FnMut(u64, u64),
    pages: u64,
    items: u64,
    /// Inodes of all filesets.
    inodes: u64,
    total: u64,
    /// Start and end of the current part on the scale of `total`, and the items read in it.
    done: u64,
    end: u64,
    counted: u64,
}

impl<'a> Meter<'a> {
    /// Creates a meter for the passes of a check, one after the other: pages, records, every tree.
    pub fn new(
        tell: &'a mut dyn FnMut(u64, u64),
        superblock: &Superblock,
        item_bytes: u64,
        state: &State,
    ) -> Meter<'a> {
        let trees = inodes(state, |_| true);
        let filesets = inodes(state, |origin| origin == 0);
        Meter::of(tell, bytes(superblock), item_bytes, 1, (trees, filesets))
    }

    /// Creates a meter for one pass over the records.
    pub fn for_records(tell: &'a mut dyn FnMut(u64, u64), item_bytes: u64) -> Meter<'a> {
        Meter::of(tell, 0, item_bytes, 1, (0, 0))
    }

    /// Creates a meter for a pass over every tree.
    pub fn for_trees(
        tell: &'a mut dyn FnMut(u64, u64),
        item_bytes: u64,
        state: &State,
    ) -> Meter<'a> {
        let trees = inodes(state, |_| true);
        let filesets = inodes(state, |origin| origin == 0);
        Meter::of(tell, 0, item_bytes, 0, (trees, filesets))
    }

    /// Creates a meter for reading the pages only.
    pub fn for_pages(tell: &'a mut dyn FnMut(u64, u64), superblock: &Superblock) -> Meter<'a> {
        Meter::of(tell, bytes(superblock), 0, 0, (0, 0))
    }

    /// Creates a meter for the passes of a repair: lost filesets, records, every fileset, extents
    /// for counts and for space.
    pub fn for_repair(
        tell: &'a mut dyn FnMut(u64, u64),
        item_bytes: u64,
        state: &State,
    ) -> Meter<'a> {
        let filesets = inodes(state, |origin| origin == 0);
        Meter::of(tell, 0, item_bytes, 4, (filesets, filesets))
    }

    fn of(
        tell: &'a mut dyn FnMut(u64, u64),
        pages: u64,
        items: u64,
        passes: u64,
        (walked, inodes): (u64, u64),
    ) -> Meter<'a> {
        let mut meter = Meter {
            tell,
            pages,
            items,
            inodes: inodes.max(1),
            total: 0,
            done: 0,
            end: 0,
            counted: 0,
        };
        let all = pages + passes * items;
        meter.total = all.saturating_add(meter.of_tree(walked));
        (meter.tell)(0, meter.total);
        meter
    }

    /// Returns the cost of reading all pages.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Returns the cost of a scan of all items.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// Computes the cost of a scan of a tree of `inodes` inodes.
    pub fn of_tree(&self, inodes: u64) -> u64 {
        let bytes = u128::from(self.items) * u128::from(inodes) / u128::from(self.inodes);
        u64::try_from(bytes)
            .unwrap_or(u64::MAX / 4)
            .min(u64::MAX / 4)
    }

    /// Ends the current part and begins the next.
    pub fn begin(&mut self, worth: u64) {
        self.done = self.end;
        self.end = self.end.saturating_add(worth).min(self.total);
        self.counted = 0;
        (self.tell)(self.done, self.total);
    }

    /// Reports that `bytes` bytes of the current part are done.
    pub fn at(&mut self, bytes: u64) {
        let done = self.done.saturating_add(bytes).min(self.end);
        (self.tell)(done, self.total);
    }

    /// Counts an item that was read in the current part.
    pub fn item(&mut self, value: &[u8]) {
        self.done = (self.done + (KEY_BYTES + value.len()) as u64).min(self.end);
        self.counted += 1;
        if self.counted.is_multiple_of(ITEMS_PER_WORD) {
            (self.tell)(self.done, self.total);
        }
    }

    /// Reports that everything is done.
    pub fn end(&mut self) {
        (self.tell)(self.total, self.total);
    }
}

/// Computes the bytes of all pages.
fn bytes(superblock: &Superblock) -> u64 {
    let blocks = superblock.segments.iter().map(|s| u64::from(s.blocks));
    blocks.sum::<u64>() * BLOCK_BYTES
}

/// Counts the inodes of the trees whose origin satisfies `is`.
fn inodes(state: &State, is: fn(TreeId) -> bool) -> u64 {
    let trees = state.trees.values();
    let trees = trees.filter(|tree| is(tree.record.origin));
    let inodes = trees.map(|tree| tree.record.used_inodes);
    inodes.fold(0, u64::saturating_add)
}
