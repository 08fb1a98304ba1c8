//! Who may do what: the access list of the directory that a file is in.
//!
//! A list is an attribute of its directory, in the text that `FetchACL` gives, and is copied to
//! directories that are made below. Its names are `system:anyuser`, which is everybody, and addresses
//! or prefixes of addresses (`10.1.0.0/16`), which are the groups that a server without
//! authentication can tell. Other names may stand in a list and are nobody.
//!
//! **Invariant:** without [`crate::Config::anonymous_write`], no list lets anybody change anything.

use crate::config::Prefix;
use afs_proto::Rights;
use afs_proto::acl::{AccessList, Entry};
use fs::{Attr, Files, Ino, Kind, Time};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

/// The attribute of a directory that has its access list.
pub const ACL_ATTRIBUTE: &[u8] = fs::INHERITED[0];

/// Everybody.
const ANYUSER: &str = "system:anyuser";
const ADMINISTRATORS: &str = "system:administrators";

/// Lists that are kept; beyond, all are read anew.
const KEPT_MAX: usize = 16_384;

/// Who calls, as far as that is known.
#[derive(Debug, Clone, Copy)]
pub enum Caller {
    /// Somebody at an address.
    At(IpAddr),
    /// Whoever has the device, and may do everything with what is on it.
    Administrator,
}

impl Caller {
    /// Whether a name in an access list means this caller.
    pub fn is(&self, name: &str) -> bool {
        let at = |prefix: Prefix| matches!(self, Caller::At(address) if prefix.has(*address));
        name == ANYUSER || name.parse().is_ok_and(at)
    }
}

/// Whether a name in an access list can mean anybody.
pub fn is_known(name: &str) -> bool {
    name == ANYUSER || name.parse::<Prefix>().is_ok()
}

/// What a caller may do in a directory, and what anybody may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allowed {
    pub(crate) caller: Rights,
    pub(crate) anybody: Rights,
}

impl Allowed {
    /// What is allowed where there is no list.
    pub(crate) fn nothing(caller: &Caller) -> Allowed {
        let nothing = Rights(0);
        Allowed {
            caller: match caller {
                Caller::At(_) => nothing,
                Caller::Administrator => Rights(u32::MAX),
            },
            anybody: nothing,
        }
    }
}

/// The access lists of a volume.
pub(crate) struct Lists {
    /// Of directories without one.
    default: Arc<AccessList>,
    /// What a list can give at most.
    most: Rights,
    kept: Mutex<HashMap<Ino, (Time, Arc<AccessList>)>>,
}

impl Lists {
    pub(crate) fn new(anonymous_write: bool) -> Lists {
        let mut rights = Rights::READ_LOOKUP;
        let mut most = rights.or(Rights::LOCK);
        if anonymous_write {
            rights = Rights::ALL.without(Rights::ADMINISTER);
            most = Rights(u32::MAX);
        }
        let entry = |name: &str, rights| Entry {
            name: name.into(),
            rights,
        };
        let given = vec![entry(ADMINISTRATORS, Rights::ALL), entry(ANYUSER, rights)];
        let default = AccessList::new(given, Vec::new()).expect("two short names");
        Lists {
            default: Arc::new(default),
            most,
            kept: Mutex::default(),
        }
    }

    /// The list of a directory.
    pub(crate) fn of(&self, files: &Files, directory: &Attr) -> fs::Result<Arc<AccessList>> {
        let (ino, changed) = (directory.ino, directory.inode.changed);
        let found = self.kept().get(&ino).cloned();
        if let Some((_, list)) = found.filter(|(as_of, _)| *as_of == changed) {
            return Ok(list);
        }
        let list = match files.xattr(ino, ACL_ATTRIBUTE) {
            Ok(text) => Arc::new(AccessList::parse(&text).unwrap_or_else(|error| {
                // A list that cannot be read lets nobody in.
                tracing::error!("inode {ino}: {error}");
                AccessList::default()
            })),
            Err(error) if error.kind() == Kind::NoAttribute => Arc::clone(&self.default),
            Err(error) => return Err(error),
        };
        let mut kept = self.kept();
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        kept.insert(ino, (changed, Arc::clone(&list)));
        Ok(list)
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, HashMap<Ino, (Time, Arc<AccessList>)>> {
        self.kept.lock().expect("no panic under this lock")
    }

    /// What is allowed in a directory.
    pub(crate) fn allowed(
        &self,
        files: &Files,
        directory: &Attr,
        caller: &Caller,
    ) -> fs::Result<Allowed> {
        let list = self.of(files, directory)?;
        let at_most = |rights: Rights| Rights(rights.0 & self.most.0);
        Ok(Allowed {
            caller: match caller {
                Caller::At(_) => at_most(list.rights_of(|name| caller.is(name))),
                Caller::Administrator => Rights(u32::MAX),
            },
            anybody: at_most(list.rights_of(|name| name == ANYUSER)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_mean_everybody_or_addresses() {
        let caller = Caller::At([10, 1, 2, 3].into());
        assert!(caller.is("system:anyuser") && caller.is("10.1.0.0/16") && caller.is("10.1.2.3"));
        for other in [
            "system:administrators",
            "system:authuser",
            "alice",
            "10.2.0.0/16",
            "",
        ] {
            assert!(
                !caller.is(other) && !Caller::Administrator.is(other),
                "{other}"
            );
        }
    }
}
