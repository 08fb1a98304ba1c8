//! The tree of tags over the blocks of the metadata file.
//!
//! ```text
//!   superblock ──tag──► level 3 ──254 tags──► level 2 ──254 tags──► level 1 ──254 tags──► blocks
//! ```
//!
//! A node is a block: the tags of its children, and a bit for each that selects one of two places. A
//! changed node is written to the place that is not in use, and so is block 0 of `redb`, the only one
//! that it overwrites. **Invariant:** until a superblock refers to the new top node, the old nodes are
//! intact on the device. A node in memory was verified when it was read, or was made here.
//!
//! Places in the metadata file, in blocks: 0 is not used, so that `redb` finds no header there if the
//! feature bit is cleared; 1 and 2 are those of block 0 of `redb`, 3 is not used. Then the subtree of
//! the top node. A subtree of level n consists of the two places of its node, and 254 subtrees of
//! level n - 1; one of level 0 is a block.

use crate::format::record::BLOCK_BYTES;
use crate::format::superblock::{TAGGED_BYTES_MAX, TagsRoot};
use crate::integrity::{IntegrityKey, NO_TAG, TAG_BYTES, Tag};
use std::collections::BTreeMap;
use std::sync::Arc;

const BLOCK: usize = BLOCK_BYTES as usize;
/// Number of children of a node.
const FANOUT: u64 = 254;
/// Offset of the bits of the places in a node.
const BITS_AT: usize = FANOUT as usize * TAG_BYTES;
/// Level of the top node.
const TOP: usize = 3;
/// First place of the subtree of the top node.
const TREE_START: u64 = 4;
/// Number of places of a subtree of each level.
const SUBTREE: [u64; TOP + 1] = {
    let mut places = [1; TOP + 1];
    let mut level = 1;
    while level <= TOP {
        places[level] = 2 + FANOUT * places[level - 1];
        level += 1;
    }
    places
};
/// Largest number of blocks that the tree covers: 62 GiB.
pub(super) const PAGES_MAX: u64 = FANOUT.pow(TOP as u32);

const _: () = assert!(PAGES_MAX * BLOCK_BYTES == TAGGED_BYTES_MAX);
const _: () = assert!(BITS_AT + FANOUT.div_ceil(8) as usize <= BLOCK);

/// Block that a tag protects: a page of `redb` at level 0, else a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    level: usize,
    index: u64,
}

impl Place {
    pub fn of_page(page: u64) -> Place {
        let (level, index) = (0, page);
        Place { level, index }
    }

    fn parent(self) -> Option<Place> {
        (self.level < TOP).then_some(Place {
            level: self.level + 1,
            index: self.index / FANOUT,
        })
    }

    /// Position among the children of the parent.
    fn position(self) -> usize {
        (self.index % FANOUT) as usize
    }

    /// First block of the subtree.
    fn start(self) -> u64 {
        match self.parent() {
            Some(parent) => parent.start() + 2 + self.position() as u64 * SUBTREE[self.level],
            None => TREE_START,
        }
    }

    fn has_two(self) -> bool {
        self.level > 0 || self.index == 0
    }

    /// Block of the metadata file.
    fn block(self, second: bool) -> u64 {
        let start = match self {
            Place { level: 0, index: 0 } => 1,
            place => place.start(),
        };
        start + u64::from(second)
    }

    /// The blocks of the metadata file that a write of this page may use.
    pub fn blocks_of_path(self) -> impl Iterator<Item = u64> {
        std::iter::successors(Some(self), |place| place.parent()).flat_map(|place| {
            let first = place.block(false);
            first..=first + u64::from(place.has_two())
        })
    }
}

/// Number of blocks of the metadata file that hold this number of pages of `redb`.
pub(super) fn file_blocks(pages: u64) -> u64 {
    match pages {
        0 => 0,
        pages => Place::of_page(pages - 1).start() + 1,
    }
}

/// Tag of a block and the block of the metadata file that holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    pub tag: Tag,
    pub block: u64,
}

/// Reason for which a block cannot be read.
pub(super) enum Unreadable {
    /// A node above it does not match its tag.
    Tampered,
    Device(block::Error),
}

impl From<block::Error> for Unreadable {
    fn from(error: block::Error) -> Unreadable {
        Unreadable::Device(error)
    }
}

struct Node {
    content: Box<[u8; BLOCK]>,
    is_changed: bool,
}

impl Node {
    fn entry(&self, position: usize) -> (Tag, bool) {
        let tag = &self.content[position * TAG_BYTES..][..TAG_BYTES];
        let bit = self.content[BITS_AT + position / 8] >> (position % 8) & 1;
        (tag.try_into().expect("of this length"), bit == 1)
    }

    fn set(&mut self, position: usize, tag: Tag, second: bool) {
        self.content[position * TAG_BYTES..][..TAG_BYTES].copy_from_slice(&tag);
        let (byte, bit) = (&mut self.content[BITS_AT + position / 8], position % 8);
        *byte = *byte & !(1 << bit) | u8::from(second) << bit;
        self.is_changed = true;
    }
}

/// Contents of nodes, by the block of the metadata file.
pub(super) type Nodes = Vec<(u64, Box<[u8; BLOCK]>)>;

/// Reads a block of the metadata file from the device.
pub(super) type Read<'a> = &'a dyn Fn(u64, &mut [u8]) -> block::Result<()>;

/// See the module. Holds the nodes read so far: at most 1/254 of the metadata.
pub(super) struct Tags {
    key: Arc<IntegrityKey>,
    root: TagsRoot,
    nodes: BTreeMap<Place, Node>,
}

impl Tags {
    pub fn new(key: Arc<IntegrityKey>, root: TagsRoot) -> Tags {
        Tags {
            key,
            root,
            nodes: BTreeMap::new(),
        }
    }

    /// Looks up the tag of a block; `None` if it was never written.
    pub fn find(&mut self, place: Place, read: Read) -> Result<Option<Known>, Unreadable> {
        let (tag, second) = self.entry(place, read)?;
        let block = place.block(second);
        Ok((tag != NO_TAG).then_some(Known { tag, block }))
    }

    fn entry(&mut self, place: Place, read: Read) -> Result<(Tag, bool), Unreadable> {
        match place.parent() {
            None => Ok((self.root.tag, self.root.place == 1)),
            Some(parent) => Ok(self.node(parent, read)?.entry(place.position())),
        }
    }

    /// Returns a node; reads it if necessary. One that was never written has no children.
    fn node(&mut self, place: Place, read: Read) -> Result<&mut Node, Unreadable> {
        if !self.nodes.contains_key(&place) {
            let mut content = Box::new([0; BLOCK]);
            if let Some(known) = self.find(place, read)? {
                read(known.block, &mut content[..])?;
                if self.key.block_tag(&content[..]) != known.tag {
                    return Err(Unreadable::Tampered);
                }
            }
            let is_changed = false;
            self.nodes.insert(
                place,
                Node {
                    content,
                    is_changed,
                },
            );
        }
        Ok(self.nodes.get_mut(&place).expect("inserted above"))
    }

    /// Sets the tag of a block that will be written. Returns the block of the metadata file to which
    /// it has to be written.
    pub fn set(&mut self, place: Place, content: &[u8], read: Read) -> Result<u64, Unreadable> {
        let (before, second) = self.entry(place, read)?;
        let second = place.has_two() && before != NO_TAG && !second;
        let tag = self.key.block_tag(content);
        match place.parent() {
            None => {
                self.root = TagsRoot {
                    tag,
                    place: second.into(),
                }
            }
            Some(parent) => self.node(parent, read)?.set(place.position(), tag, second),
        }
        Ok(place.block(second))
    }

    /// Removes the tags of all pages from this one on.
    pub fn cut(&mut self, pages: u64, read: Read) -> Result<(), Unreadable> {
        if pages == 0 {
            (self.root, self.nodes) = (TagsRoot::default(), BTreeMap::new());
        }
        let mut kept = pages;
        for level in 1..=TOP {
            let index = kept / FANOUT;
            let place = Place { level, index };
            let from = (kept % FANOUT) as usize;
            // One that keeps no child is removed with the tag in its parent.
            if from > 0 {
                let node = self.node(place, read)?;
                for position in from..FANOUT as usize {
                    if node.entry(position) != (NO_TAG, false) {
                        node.set(position, NO_TAG, false);
                    }
                }
            }
            kept = kept.div_ceil(FANOUT);
            let behind = Place { level, index: kept }..Place {
                level: level + 1,
                index: 0,
            };
            let behind: Vec<Place> = self.nodes.range(behind).map(|(place, _)| *place).collect();
            behind
                .iter()
                .for_each(|place| drop(self.nodes.remove(place)));
        }
        Ok(())
    }

    /// Sets the tags of changed nodes. Returns their contents, by the block of the metadata file, and
    /// the new root. They must be durable before a superblock refers to them.
    pub fn finish(&mut self, read: Read) -> Result<(Nodes, TagsRoot), Unreadable> {
        let mut written = Vec::new();
        for level in 1..=TOP {
            let all = Place { level, index: 0 }..Place {
                level: level + 1,
                index: 0,
            };
            let changed = self
                .nodes
                .range_mut(all)
                .filter(|(_, node)| node.is_changed);
            let changed: Vec<_> = changed
                .map(|(place, node)| {
                    node.is_changed = false;
                    (*place, node.content.clone())
                })
                .collect();
            for (place, content) in changed {
                written.push((self.set(place, &content[..], read)?, content));
            }
        }
        Ok((written, self.root))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block_testing::Random;
    use std::collections::BTreeSet;

    type Content = [u8; BLOCK];
    type Blocks = BTreeMap<u64, Content>;
    type Pages = BTreeMap<u64, Content>;

    fn read(blocks: &Blocks) -> impl Fn(u64, &mut [u8]) -> block::Result<()> {
        |block, out| {
            out.copy_from_slice(blocks.get(&block).unwrap_or(&[0; BLOCK]));
            Ok(())
        }
    }

    fn key() -> Arc<IntegrityKey> {
        IntegrityKey::for_tests(1)
    }

    fn unwrap<T>(result: Result<T, Unreadable>) -> T {
        result.unwrap_or_else(|_| panic!("readable and untampered"))
    }

    /// Sets pages and removes others. Returns the blocks to write, and the root.
    fn change(tags: &mut Tags, blocks: &Blocks, cut: Option<u64>, pages: &Pages) -> Blocks {
        let read = read(blocks);
        if let Some(pages) = cut {
            unwrap(tags.cut(pages, &read));
        }
        let mut written = Blocks::new();
        for (page, content) in pages {
            let place = unwrap(tags.set(Place::of_page(*page), content, &read));
            assert!(written.insert(place, *content).is_none());
        }
        let (nodes, _) = unwrap(tags.finish(&read));
        for (place, content) in nodes {
            assert!(written.insert(place, *content).is_none(), "one for each");
        }
        written
    }

    /// Checks that a root leads to these pages and no others. The content of those in `overwritten`
    /// may be another.
    fn check(root: TagsRoot, blocks: &Blocks, pages: &Pages, overwritten: &BTreeSet<u64>) {
        let mut tags = Tags::new(key(), root);
        for page in (0..2 * FANOUT + 9).chain(pages.keys().copied()) {
            let found = unwrap(tags.find(Place::of_page(page), &read(blocks)));
            let tag = pages.get(&page).map(|content| key().block_tag(content));
            assert_eq!(found.map(|known| known.tag), tag, "page {page}");
            if let Some(known) = found
                && !overwritten.contains(&page)
            {
                assert!(blocks[&known.block] == pages[&page], "page {page}");
            }
        }
    }

    #[test]
    fn each_state_is_whole_and_a_crash_leaves_the_one_before() {
        let mut random = Random::new(1);
        let mut tags = Tags::new(key(), TagsRoot::default());
        let (mut blocks, mut pages) = (Blocks::new(), Pages::new());
        for round in 0..60 {
            let root = tags.root;
            let before = (blocks.clone(), pages.clone());
            let is_cut = round % 5 == 4;
            let cut = is_cut.then(|| [0, 1, 100, 254, 255, 508][random.below(6) as usize]);
            let mut new = Pages::new();
            if let Some(cut) = cut {
                pages.retain(|page, _| *page < cut);
            } else {
                for _ in 0..random.below(20) {
                    let far = [1, 254, 300, 2 * FANOUT, FANOUT * FANOUT + 5];
                    let end = far[random.below(5) as usize];
                    let page = random.below(end);
                    let mut content = [0; BLOCK];
                    random.fill(&mut content);
                    new.insert(page, content);
                }
                pages.extend(&new);
            }
            let written = change(&mut tags, &blocks, cut, &new);
            // Some of the writes, before a superblock refers to any.
            let mut torn = before.0;
            for (block, content) in &written {
                if random.chance(0.5) {
                    torn.insert(*block, *content);
                }
            }
            // `redb` overwrites no page in use but 0.
            let free = new.keys().copied().filter(|page| *page != 0).collect();
            check(root, &torn, &before.1, &free);
            blocks.extend(written);
            check(tags.root, &blocks, &pages, &BTreeSet::new());
            if random.chance(0.3) {
                tags = Tags::new(key(), tags.root);
            }
        }
        assert!(pages.len() > 20 && tags.root != TagsRoot::default());
    }

    #[test]
    fn a_node_that_was_changed_or_is_older_hides_its_subtree_and_no_other() {
        let mut tags = Tags::new(key(), TagsRoot::default());
        let pages = |byte| Pages::from([(3, [byte; BLOCK]), (FANOUT + 3, [byte; BLOCK])]);
        let mut blocks = Blocks::new();
        for byte in 1..=3 {
            blocks.extend(change(&mut tags, &blocks, None, &pages(byte)));
        }
        let node = Place { level: 1, index: 0 };
        let [at, older] = {
            let known = unwrap(tags.find(node, &read(&blocks))).expect("it was written");
            let first = node.block(false);
            [known.block, 2 * first + 1 - known.block]
        };
        let mut flipped = blocks[&at];
        flipped[BLOCK - 1] ^= 1;
        for content in [flipped, blocks[&older], [0; BLOCK]] {
            let mut attacked = blocks.clone();
            attacked.insert(at, content);
            let mut tags = Tags::new(key(), tags.root);
            let found = tags.find(Place::of_page(3), &read(&attacked));
            assert!(matches!(found, Err(Unreadable::Tampered)));
            let known = unwrap(tags.find(Place::of_page(FANOUT + 3), &read(&attacked)));
            assert!(known.is_some_and(|known| attacked[&known.block] == [3; BLOCK]));
            // A change below it would make what was tampered with authentic.
            let set = tags.set(Place::of_page(4), &[9; BLOCK], &read(&attacked));
            assert!(matches!(set, Err(Unreadable::Tampered)));
        }
    }

    #[test]
    fn an_error_of_the_device_is_no_tampering() {
        let mut tags = Tags::new(key(), TagsRoot::default());
        let blocks = Blocks::new();
        let blocks = change(&mut tags, &blocks, None, &Pages::from([(0, [1; BLOCK])]));
        let failing = |block: u64, out: &mut [u8]| match block {
            TREE_START => Err(block::Error::new(
                block::ErrorKind::Media,
                "disk",
                "unreadable",
            )),
            block => read(&blocks)(block, out),
        };
        let mut tags = Tags::new(key(), tags.root);
        let found = tags.find(Place::of_page(0), &failing);
        assert!(matches!(found, Err(Unreadable::Device(_))));
        let found = unwrap(tags.find(Place::of_page(0), &read(&blocks)));
        assert!(found.is_some(), "once it is readable again");
    }

    #[test]
    fn no_two_blocks_share_a_place_and_the_file_ends_behind_the_last() {
        let mut places = BTreeSet::from([0, 3]);
        let mut nodes = BTreeSet::new();
        for page in (0..3 * FANOUT).chain(FANOUT * FANOUT - 2..FANOUT * FANOUT + 2) {
            let end = file_blocks(page + 1);
            assert!(file_blocks(page) < end);
            for place in std::iter::successors(Some(Place::of_page(page)), |p| p.parent()) {
                for block in [Some(false), place.has_two().then_some(true)] {
                    let block = block.map(|second| place.block(second));
                    assert!(block.is_none_or(|block| block < end));
                    let is_new = block.is_none_or(|block| places.insert(block));
                    assert!(is_new || place.level > 0 && nodes.contains(&place));
                }
                nodes.insert(place);
            }
            let path: Vec<u64> = Place::of_page(page).blocks_of_path().collect();
            assert!(path.iter().all(|block| places.contains(block)));
        }
        assert_eq!(file_blocks(0), 0);
        // Segments number the blocks with 32 bits.
        assert!(file_blocks(PAGES_MAX) < u64::from(u32::MAX));
    }
}
