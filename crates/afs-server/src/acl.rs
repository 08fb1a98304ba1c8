//! Access control: the access list of the directory that contains a file.
//!
//! A list is stored as an attribute of its directory, in the text form of `FetchACL`, and is copied
//! to new subdirectories. Recognized names are `system:anyuser`, which matches every client, and
//! addresses or prefixes of addresses (`10.1.0.0/16`), the only groups that a server without
//! authentication can distinguish. Other names are permitted in a list and match no client.
//!
//! **Invariant:** without [`crate::Config::anonymous_write`], no list permits a client to change
//! data.

use crate::config::Prefix;
use afs_proto::Rights;
use afs_proto::acl::{AccessList, Entry};
use fs::{Attr, Files, Ino, Kind, Time};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

/// Attribute of a directory that stores its access list.
pub const ACL_ATTRIBUTE: &[u8] = fs::INHERITED[0];

/// Name that matches every client.
const ANYUSER: &str = "system:anyuser";
const ADMINISTRATORS: &str = "system:administrators";

/// Limit on cached lists; when it is reached, the cache is cleared.
const KEPT_MAX: usize = 16_384;

/// Identity of a caller.
#[derive(Debug, Clone, Copy)]
pub enum Caller {
    /// Unauthenticated client at an address.
    At(IpAddr),
    /// Local administrator with access to the device; has all rights.
    Administrator,
}

impl Caller {
    /// Checks whether a name in an access list applies to this caller.
    pub fn is(&self, name: &str) -> bool {
        let at = |prefix: Prefix| matches!(self, Caller::At(address) if prefix.has(*address));
        name == ANYUSER || name.parse().is_ok_and(at)
    }
}

/// Checks whether a name in an access list can apply to any client.
pub fn is_known(name: &str) -> bool {
    name == ANYUSER || name.parse::<Prefix>().is_ok()
}

/// Rights in a directory, of the caller and of every client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allowed {
    pub(crate) caller: Rights,
    pub(crate) anybody: Rights,
}

impl Allowed {
    /// Returns the rights where no access list applies.
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

/// Cache of the access lists of a volume.
pub(crate) struct Lists {
    /// List of directories without one of their own.
    default: Arc<AccessList>,
    /// Upper bound of the rights that a list can grant.
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

    /// Looks up the access list of a directory.
    pub(crate) fn of(&self, files: &Files, directory: &Attr) -> fs::Result<Arc<AccessList>> {
        let (ino, changed) = (directory.ino, directory.inode.changed);
        let found = self.kept().get(&ino).cloned();
        if let Some((_, list)) = found.filter(|(as_of, _)| *as_of == changed) {
            return Ok(list);
        }
        let list = match files.xattr(ino, ACL_ATTRIBUTE) {
            Ok(text) => Arc::new(AccessList::parse(&text).unwrap_or_else(|error| {
                // A malformed list grants no rights.
                tracing::error!(name: "EVFS-0701", "inode {ino}: {error}");
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

    /// Determines the rights in a directory.
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
    fn names_mean_every_client_or_addresses() {
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
