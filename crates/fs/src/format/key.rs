//! The single ordered key space of all metadata.
//!
//! ```text
//!   layer (4)  object (8)  item (8)         big-endian, so that bytes sort as the fields do
//!   ─────────────────────────────────
//!   0          section     number           data of the file system as a whole
//!   L          0           Orphan, inode    inodes of layer L without a name, or about to lose one
//!   L          0           account, id      limits and use of a user or a group in layer L
//!   L          inode       kind, place      one inode: its record, target, attributes, entries, extents
//! ```
//!
//! A layer is a fileset, or the old values that a snapshot keeps of it (see `metadata/state.rs`).
//! All items of an inode are adjacent, so a small file occupies one leaf of the tree. The kind is
//! the top byte of the item; the other 56 bits are the place: a block of the file, or the cookie of
//! a name.
//!
//! **Invariant:** inode numbers stay below 2^56 and are never reused within a fileset.

/// Length of an encoded key in bytes.
pub const KEY_BYTES: usize = 20;

/// Largest place of an item, and largest inode number.
pub const PLACE_MAX: u64 = (1 << 56) - 1;

/// Number of an inode in its fileset. Odd for a directory, even for anything else.
pub type Ino = u64;

/// Number of a fileset or a snapshot; both share one number space, and no number is ever reused.
pub type TreeId = u32;

/// Direction in which a range of keys is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Forward,
    Backward,
}

/// Key of one metadata item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Id of a fileset or a snapshot; 0 for data of the file system as a whole.
    pub layer: TreeId,
    /// Section of layer 0, or inode number.
    pub object: u64,
    /// Kind of item in the top byte, place in the other 56 bits.
    pub item: u64,
}

/// Kind of an item. The numbers are part of the on-disk format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Item {
    /// The record of an inode; place 0.
    Inode = 0,
    /// The target of a symbolic link; place 0.
    Target = 1,
    /// An extended attribute; the place is the cookie of its name.
    Xattr = 2,
    /// An entry of a directory; the place is the cookie of its name.
    Entry = 3,
    /// A run of blocks; the place is its first block in the file.
    Extent = 4,
    /// Object 0 only: an inode to be removed on open; the place is its number.
    Orphan = 5,
    /// Object 0 only: limits and use of a user; the place is its id.
    UserAccount = 6,
    /// A compressed chunk of a file; the place is its first block in the file.
    Chunk = 7,
    /// Object 0 only: limits and use of a group; the place is its id.
    GroupAccount = 8,
}

impl Item {
    /// One more than the largest number.
    pub const NUMBERS: usize = 9;

    pub const ALL: [Item; 9] = [
        Item::Inode,
        Item::Target,
        Item::Xattr,
        Item::Entry,
        Item::Extent,
        Item::Orphan,
        Item::UserAccount,
        Item::Chunk,
        Item::GroupAccount,
    ];
}

/// Sections of layer 0. The numbers are part of the on-disk format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Section {
    /// A fileset or a snapshot; the number is its id.
    Trees = 1,
    /// A run of blocks with more than one reference; the number is its first block.
    Shared = 2,
    /// Number 0: the id of the next fileset or snapshot, so that none is ever reused.
    NextTree = 3,
    /// Checksums of 64 blocks of the device; the number is that of the first block, divided by 64.
    Sums = 4,
}

impl Key {
    /// Creates the key of an item of an inode.
    pub fn item(layer: TreeId, ino: Ino, item: Item, place: u64) -> Key {
        debug_assert!(place <= PLACE_MAX);
        Key {
            layer,
            object: ino,
            item: (item as u64) << 56 | place,
        }
    }

    /// Creates the key of an item of the file system as a whole.
    pub fn global(section: Section, number: u64) -> Key {
        Key {
            layer: 0,
            object: section as u64,
            item: number,
        }
    }

    /// Returns the first and the last key of an inode.
    pub fn inode(layer: TreeId, ino: Ino) -> (Key, Key) {
        let at = |item| Key {
            layer,
            object: ino,
            item,
        };
        (at(0), at(u64::MAX))
    }

    /// Returns the first and the last key of a section.
    pub fn section(section: Section) -> (Key, Key) {
        (Key::global(section, 0), Key::global(section, u64::MAX))
    }

    /// Reports whether this is a key of a section.
    pub fn is_in(&self, section: Section) -> bool {
        self.layer == 0 && self.object == section as u64
    }

    /// Returns the first and the last key of a layer.
    pub fn layer(layer: TreeId) -> (Key, Key) {
        let at = |end| Key {
            layer,
            object: end,
            item: end,
        };
        (at(0), at(u64::MAX))
    }

    /// Returns the kind of item, or `None` if the number is unknown.
    pub fn kind(&self) -> Option<Item> {
        let number = (self.item >> 56) as u8;
        Item::ALL.into_iter().find(|item| *item as u8 == number)
    }

    /// Reports whether an item of this kind can be at this place of this object.
    pub fn is_possible_item(&self) -> bool {
        let of_inode = (1..=PLACE_MAX).contains(&self.object);
        match self.kind() {
            Some(Item::Inode | Item::Target) => of_inode && self.place() == 0,
            Some(Item::Xattr | Item::Entry | Item::Extent | Item::Chunk) => of_inode,
            Some(Item::Orphan) => self.object == 0,
            Some(Item::UserAccount | Item::GroupAccount) => {
                self.object == 0 && self.place() <= u32::MAX.into()
            }
            None => false,
        }
    }

    /// Returns the place of the item.
    pub fn place(&self) -> u64 {
        self.item & PLACE_MAX
    }

    /// Returns the key of the same item in another layer.
    pub fn in_layer(self, layer: TreeId) -> Key {
        Key { layer, ..self }
    }

    /// Computes the adjacent key in this direction; `None` beyond the last.
    pub fn adjacent(self, direction: Direction) -> Option<Key> {
        match direction {
            Direction::Forward => self.next(),
            Direction::Backward => self.previous(),
        }
    }

    /// Computes the next key; `None` after the last.
    pub fn next(self) -> Option<Key> {
        let (item, carry) = self.item.overflowing_add(1);
        let (object, carry) = self.object.overflowing_add(u64::from(carry));
        let layer = self.layer.checked_add(u32::from(carry))?;
        Some(Key {
            layer,
            object,
            item,
        })
    }

    /// Computes the previous key; `None` before the first.
    pub fn previous(self) -> Option<Key> {
        let (item, carry) = self.item.overflowing_sub(1);
        let (object, carry) = self.object.overflowing_sub(u64::from(carry));
        let layer = self.layer.checked_sub(u32::from(carry))?;
        Some(Key {
            layer,
            object,
            item,
        })
    }

    /// Encodes the key in its on-disk form.
    pub fn encode(&self) -> [u8; KEY_BYTES] {
        let mut bytes = [0; KEY_BYTES];
        bytes[..4].copy_from_slice(&self.layer.to_be_bytes());
        bytes[4..12].copy_from_slice(&self.object.to_be_bytes());
        bytes[12..].copy_from_slice(&self.item.to_be_bytes());
        bytes
    }

    /// Decodes the output of [`Key::encode`]. Any 20 bytes are a valid key.
    pub fn decode(bytes: &[u8; KEY_BYTES]) -> Key {
        let number = |range: std::ops::Range<usize>| {
            let part = &bytes[range];
            part.iter().fold(0u64, |n, byte| n << 8 | u64::from(*byte))
        };
        Key {
            layer: number(0..4) as u32,
            object: number(4..12),
            item: number(12..20),
        }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Key {
            layer,
            object,
            item,
        } = *self;
        if layer == 0 {
            return write!(f, "section {object}, record {item}");
        }
        let place = self.place();
        match self.kind() {
            Some(Item::Orphan) => {
                return write!(f, "fileset {layer}, entry {place} of the orphan list");
            }
            Some(Item::UserAccount) => {
                return write!(f, "fileset {layer}, account of user {place}");
            }
            Some(Item::GroupAccount) => {
                return write!(f, "fileset {layer}, account of group {place}");
            }
            _ => {}
        }
        write!(f, "fileset {layer}, inode {object}, ")?;
        match self.kind() {
            Some(Item::Inode) if place == 0 => f.write_str("record"),
            Some(Item::Target) if place == 0 => f.write_str("symbolic link"),
            Some(Item::Inode) => write!(f, "record at {place:#x}"),
            Some(Item::Target) => write!(f, "symbolic link at {place:#x}"),
            Some(Item::Xattr) => write!(f, "attribute at {place:#x}"),
            Some(Item::Entry) => write!(f, "directory entry at {place:#x}"),
            Some(Item::Extent) => write!(f, "extent at block {place}"),
            Some(Item::Chunk) => write!(f, "compressed chunk at block {place}"),
            _ => write!(f, "item {item:#x} of unknown kind"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block_testing::Random;

    #[test]
    fn encoded_keys_read_back_and_sort_as_their_fields() {
        let mut random = Random::new(1);
        let mut some = || Key {
            layer: random.below(3) as u32,
            object: random.next_u64() >> random.below(64),
            item: random.next_u64() >> random.below(64),
        };
        for _ in 0..1000 {
            let (one, two) = (some(), some());
            assert_eq!(Key::decode(&one.encode()), one);
            assert_eq!(one.cmp(&two), one.encode().cmp(&two.encode()));
            assert!(
                one.next()
                    .is_none_or(|next| next > one && next.previous() == Some(one))
            );
        }
    }

    #[test]
    fn a_key_is_shown_in_words() {
        let shown = |item, place| Key::item(1, 2, item, place).to_string();
        assert_eq!(shown(Item::Inode, 0), "fileset 1, inode 2, record");
        assert_eq!(shown(Item::Inode, 16), "fileset 1, inode 2, record at 0x10");
        assert_eq!(
            shown(Item::Extent, 5),
            "fileset 1, inode 2, extent at block 5"
        );
        let tree = Key::global(Section::Trees, 3);
        assert_eq!(tree.to_string(), "section 1, record 3");
    }

    #[test]
    fn an_item_is_where_a_lookup_finds_it() {
        for item in Item::ALL {
            let of_inode = !matches!(item, Item::Orphan | Item::UserAccount | Item::GroupAccount);
            let any_place = !matches!(item, Item::Inode | Item::Target);
            let possible = |ino, place| Key::item(7, ino, item, place).is_possible_item();
            assert_eq!(possible(9, 0), of_inode);
            assert_eq!(possible(9, 1), of_inode && any_place);
            assert_eq!(possible(0, 9), !of_inode);
            assert!(!possible(PLACE_MAX + 1, 0));
        }
    }

    #[test]
    fn an_item_has_its_kind_and_place_back() {
        for item in Item::ALL {
            let key = Key::item(7, 9, item, PLACE_MAX);
            assert_eq!((key.kind(), key.place()), (Some(item), PLACE_MAX));
            assert!(Key::item(7, 9, item, 0) < key);
        }
        assert_eq!(Key::inode(1, 2).1.kind(), None);
        assert!(!Key::inode(1, 2).1.is_possible_item());
        let end = Key::layer(u32::MAX).1;
        assert_eq!(end.next(), None);
        assert_eq!(Key::inode(1, 2).1.next(), Some(Key::inode(1, 3).0));
    }
}
