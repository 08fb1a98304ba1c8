//! Space and files that a user or a group uses in a fileset, and the limits for them.

use crate::error::Result;
use crate::format::key::{Item, Key, TreeId};
use crate::format::record::{BLOCK_BYTES, In, Out};

/// User or group that owns files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// User with this id.
    User(u32),
    /// Group with this id.
    Group(u32),
}

impl Owner {
    /// Builds the key of the account in a fileset.
    pub(crate) fn key(self, tree: TreeId) -> Key {
        match self {
            Owner::User(id) => Key::item(tree, 0, Item::UserAccount, id.into()),
            Owner::Group(id) => Key::item(tree, 0, Item::GroupAccount, id.into()),
        }
    }

    /// Returns the owner whose account a key has, if it is the key of one.
    pub(crate) fn of_key(key: &Key) -> Option<Owner> {
        let id = u32::try_from(key.place()).ok().filter(|_| key.object == 0);
        match key.kind() {
            Some(Item::UserAccount) => id.map(Owner::User),
            Some(Item::GroupAccount) => id.map(Owner::Group),
            _ => None,
        }
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Owner::User(id) => write!(f, "user {id}"),
            Owner::Group(id) => write!(f, "group {id}"),
        }
    }
}

/// Limits of an owner in a fileset; 0 means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnerLimits {
    /// Limit of [`Charge::bytes`].
    pub bytes: u64,
    /// Limit of [`Charge::files`].
    pub files: u64,
}

impl OwnerLimits {
    /// Reports whether there is no limit.
    pub fn is_none(&self) -> bool {
        *self == OwnerLimits::default()
    }
}

/// Use of space by the files of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Charge {
    /// Blocks of the files.
    pub blocks: u64,
    /// Bytes of the names in the directories, of targets of symbolic links, and of extended
    /// attributes.
    pub item_bytes: u64,
    /// Number of the files and directories; each further name of a file counts as one more.
    pub files: u64,
}

impl Charge {
    /// Returns the number of bytes that a limit compares.
    pub fn bytes(&self) -> u64 {
        let blocks = self.blocks.saturating_mul(BLOCK_BYTES);
        blocks.saturating_add(self.item_bytes)
    }

    pub(crate) fn add(&mut self, other: &Charge) {
        self.blocks = self.blocks.saturating_add(other.blocks);
        self.item_bytes = self.item_bytes.saturating_add(other.item_bytes);
        self.files = self.files.saturating_add(other.files);
    }

    pub(crate) fn remove(&mut self, other: &Charge) {
        self.blocks = self.blocks.saturating_sub(other.blocks);
        self.item_bytes = self.item_bytes.saturating_sub(other.item_bytes);
        self.files = self.files.saturating_sub(other.files);
    }
}

/// Record of an owner in a fileset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct AccountRecord {
    pub limits: OwnerLimits,
    pub charge: Charge,
}

impl AccountRecord {
    /// Reports whether the record states nothing.
    pub fn is_empty(&self) -> bool {
        *self == AccountRecord::default()
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Out::with(40);
        let AccountRecord { limits, charge } = self;
        out.u64(limits.bytes);
        out.u64(limits.files);
        out.u64(charge.blocks);
        out.u64(charge.item_bytes);
        out.u64(charge.files);
        out.0
    }

    pub fn decode(bytes: &[u8]) -> Result<AccountRecord> {
        let mut fields = In::of(bytes, "account of a user or a group");
        let record = AccountRecord {
            limits: OwnerLimits {
                bytes: fields.u64()?,
                files: fields.u64()?,
            },
            charge: Charge {
                blocks: fields.u64()?,
                item_bytes: fields.u64()?,
                files: fields.u64()?,
            },
        };
        fields.end()?;
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_and_other_lengths_are_refused() {
        let record = AccountRecord {
            limits: OwnerLimits { bytes: 1, files: 2 },
            charge: Charge {
                blocks: 3,
                item_bytes: u64::MAX,
                files: 5,
            },
        };
        let bytes = record.encode();
        assert_eq!(AccountRecord::decode(&bytes).unwrap(), record);
        for len in 0..bytes.len() {
            AccountRecord::decode(&bytes[..len]).unwrap_err();
        }
        AccountRecord::decode(&[&bytes[..], &[0]].concat()).unwrap_err();
        assert_eq!(record.charge.bytes(), u64::MAX);
    }

    #[test]
    fn the_key_of_an_account_has_its_owner_back() {
        for owner in [Owner::User(0), Owner::User(u32::MAX), Owner::Group(7)] {
            assert_eq!(Owner::of_key(&owner.key(3)), Some(owner));
            assert!(owner.key(3).is_possible_item());
        }
        let key = Key::item(3, 0, Item::UserAccount, 1 << 32);
        assert!(Owner::of_key(&key).is_none() && !key.is_possible_item());
        assert_eq!(Owner::of_key(&Key::item(3, 0, Item::Orphan, 7)), None);
    }
}
