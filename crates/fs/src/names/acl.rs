//! POSIX access control lists, as Linux keeps them in two extended attributes.
//!
//! The bytes are those of the kernel's `posix_acl_xattr` header: version 2, then entries of a tag,
//! a permission and an id. The file system keeps the list and the mode of a file consistent, and
//! lets new files inherit from their directory (POSIX 1003.1e draft 17, sections 23.1.5 and 23.3).
//! It does not check access: its callers do that, the kernel or the file server.

use crate::error::{Error, Kind, Result};
use crate::format::record::{In, Out};

/// Attribute with the access list of a file.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// Attribute with the default list of a directory, which new files in it inherit.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
/// Largest number of entries of a list; more do not fit an attribute of 64 KiB.
const ENTRIES_MAX: usize = 8191;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// Valid list: its entries are sorted, each of the three classes occurs once, and there is a mask
/// if a user or group is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acl(Vec<AclEntry>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AclEntry {
    tag: u16,
    /// Permission bits: read 4, write 2, execute 1.
    permission: u16,
    id: u32,
}

impl Acl {
    /// Decodes the value of an attribute.
    pub fn decode(bytes: &[u8]) -> Result<Acl> {
        let wrong = |_| Error::new(Kind::Invalid, "invalid access control list");
        let mut fields = In::of(bytes, "access control list");
        let version = fields.u32().map_err(wrong)?;
        let count = (bytes.len() - 4) / 8;
        if version != VERSION || !(bytes.len() - 4).is_multiple_of(8) || count > ENTRIES_MAX {
            return Err(wrong(fields.wrong()));
        }
        let entry = |_| {
            Ok(AclEntry {
                tag: fields.u16()?,
                permission: fields.u16()?,
                id: fields.u32()?,
            })
        };
        let entries = (0..count).map(entry).collect::<Result<Vec<_>>>();
        let acl = Acl(entries.map_err(wrong)?);
        if acl.is_sound() {
            Ok(acl)
        } else {
            Err(wrong(Kind::Invalid.into()))
        }
    }

    /// Encodes the list as the value of the attribute.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Out::with(4 + self.0.len() * 8);
        out.u32(VERSION);
        for entry in &self.0 {
            out.u16(entry.tag);
            out.u16(entry.permission);
            out.u32(entry.id);
        }
        out.0
    }

    fn is_sound(&self) -> bool {
        let count = |tag| self.0.iter().filter(|e| e.tag == tag).count();
        let named = count(USER) + count(GROUP);
        let order = |e: &AclEntry| match e.tag {
            USER | GROUP => (e.tag, e.id),
            tag => (tag, 0),
        };
        self.0.iter().all(|e| e.permission <= 7)
            && self.0.windows(2).all(|w| order(&w[0]) < order(&w[1]))
            && [USER_OBJ, GROUP_OBJ, OTHER]
                .iter()
                .all(|tag| count(*tag) == 1)
            && count(MASK) <= 1
            && (named == 0 || count(MASK) == 1)
            && named + count(MASK) + 3 == self.0.len()
    }

    fn permission(&mut self, tag: u16) -> Option<&mut u16> {
        let entry = self.0.iter_mut().find(|e| e.tag == tag);
        entry.map(|e| &mut e.permission)
    }

    /// Checks whether the mode expresses the whole list.
    pub fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    /// Computes the nine permission bits of the list; those of the group class are the mask.
    pub fn mode(&self) -> u32 {
        let of = |tag| self.0.iter().find(|e| e.tag == tag).map(|e| e.permission);
        let group = of(MASK).or(of(GROUP_OBJ));
        let bits = [of(USER_OBJ), group, of(OTHER)];
        bits.into_iter().fold(0, |mode, bits| {
            mode << 3 | u32::from(bits.unwrap_or_default())
        })
    }

    /// Updates the list to match the mode, as chmod(2) does.
    pub fn set_mode(&mut self, mode: u32) {
        self.change(
            |old, bits| {
                let _ = old;
                bits
            },
            mode,
        );
    }

    /// Removes permissions that the mode lacks, as the creation of a file does.
    pub fn limit(&mut self, mode: u32) {
        self.change(|old, bits| old & bits, mode);
    }

    fn change(&mut self, new: impl Fn(u16, u16) -> u16, mode: u32) {
        let group = if self.permission(MASK).is_some() {
            MASK
        } else {
            GROUP_OBJ
        };
        for (tag, shift) in [(USER_OBJ, 6), (group, 3), (OTHER, 0)] {
            if let Some(permission) = self.permission(tag) {
                *permission = new(*permission, (mode >> shift & 7) as u16);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block_testing::Random;

    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let entry = |&(tag, permission, id)| AclEntry {
            tag,
            permission,
            id,
        };
        Acl(entries.iter().map(entry).collect()).encode()
    }

    const NONE: u32 = u32::MAX;

    fn named() -> Acl {
        let list = [
            (USER_OBJ, 7, NONE),
            (USER, 6, 1000),
            (GROUP_OBJ, 5, NONE),
            (MASK, 7, NONE),
            (OTHER, 4, NONE),
        ];
        Acl::decode(&acl(&list)).unwrap()
    }

    #[test]
    fn a_list_and_its_mode_keep_in_step() {
        let mut list = named();
        assert_eq!(list.mode(), 0o774);
        list.set_mode(0o640);
        assert_eq!(list.mode(), 0o640);
        assert_eq!(list.0[2].permission, 5, "the owning group keeps its entry");
        let mut list = named();
        list.limit(0o750);
        assert_eq!(list.mode(), 0o750);
        let mut plain = Acl::decode(&acl(&[
            (USER_OBJ, 6, NONE),
            (GROUP_OBJ, 4, NONE),
            (OTHER, 0, NONE),
        ]))
        .unwrap();
        assert!(plain.is_minimal() && !named().is_minimal());
        plain.set_mode(0o755);
        assert_eq!(plain.mode(), 0o755);
    }

    #[test]
    fn lists_that_are_none_are_refused() {
        let base = [(USER_OBJ, 7, NONE), (GROUP_OBJ, 5, NONE), (OTHER, 4, NONE)];
        assert!(Acl::decode(&acl(&base)).is_ok());
        assert!(Acl::decode(&acl(&base[..2])).is_err());
        assert!(Acl::decode(&[]).is_err());
        assert!(Acl::decode(&acl(&base)[..9]).is_err());
        let mut unmasked = base.to_vec();
        unmasked.insert(1, (USER, 7, 5));
        assert!(Acl::decode(&acl(&unmasked)).is_err());
        let mut odd = base;
        odd[0].1 = 8;
        assert!(Acl::decode(&acl(&odd)).is_err());
        let mut random = Random::new(1);
        for _ in 0..10_000 {
            let mut bytes = named().encode();
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.next_u64() as u8;
            if let Ok(list) = Acl::decode(&bytes) {
                assert_eq!(list.encode(), bytes);
            }
        }
    }
}
