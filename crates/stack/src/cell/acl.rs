//! Access lists in the notation of administrators.

use super::shown::{ShownAccessList, ShownEntry};
use crate::{Error, Result};
use afs_proto::Rights;
use afs_proto::acl::{AccessList, Entry};

/// Changes entries of an access list like `fs setacl`: an entry without rights is removed.
pub(super) fn changed(
    before: &AccessList,
    changes: &[(String, String)],
    negative: bool,
) -> Result<AccessList> {
    let (mut positive, mut negatives) = (before.positive().to_vec(), before.negative().to_vec());
    let entries = if negative {
        &mut negatives
    } else {
        &mut positive
    };
    for (name, words) in changes {
        if !afs_server::is_known(name) && words != "none" {
            return Err(Error::Usage(format!(
                "unknown name `{name}` in an access list; use system:anyuser, an address, or \
                 a prefix such as 10.1.0.0/16"
            )));
        }
        let rights = rights(words)?;
        entries.retain(|entry| entry.name != *name);
        if rights != Rights::NONE {
            let name = name.clone();
            entries.push(Entry { name, rights });
        }
    }
    AccessList::new(positive, negatives).map_err(|error| Error::Usage(error.to_string()))
}

/// Parses rights, given as letters or as a word of `fs setacl`.
fn rights(words: &str) -> Result<Rights> {
    match words {
        "none" => Ok(Rights::NONE),
        "read" => Ok(Rights::READ_LOOKUP),
        "write" => Ok(Rights::ALL.without(Rights::ADMINISTER)),
        "all" => Ok(Rights::ALL),
        letters => letters.parse().map_err(|error| {
            Error::Usage(format!(
                "invalid rights `{letters}`: {error}; or use read, write, all or none"
            ))
        }),
    }
}

/// Describes an access list for users.
pub(super) fn shown_list(volume: &str, path: &str, list: &AccessList) -> ShownAccessList {
    let row = |entry: &Entry| ShownEntry {
        name: entry.name.clone(),
        rights: entry.rights.to_string(),
    };
    ShownAccessList {
        volume: volume.to_owned(),
        path: path.to_owned(),
        positive: list.positive().iter().map(row).collect(),
        negative: list.negative().iter().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_change_as_fs_setacl_changes_them() {
        let set = |list: &AccessList, name: &str, words: &str, negative| {
            changed(list, &[(name.into(), words.into())], negative)
        };
        let empty = AccessList::default();
        let list = set(&empty, "system:anyuser", "read", false).unwrap();
        let list = set(&list, "10.1.0.0/16", "write", false).unwrap();
        let list = set(&list, "10.1.2.3", "all", true).unwrap();
        let texts: Vec<_> = list
            .positive()
            .iter()
            .map(|e| e.rights.to_string())
            .collect();
        assert_eq!(texts, ["rl", "rlidwk"]);
        assert_eq!(list.negative()[0].rights, Rights::ALL);
        let list = set(&list, "system:anyuser", "none", false).unwrap();
        assert_eq!(list.positive().len(), 1);
        for (name, words) in [("alice", "read"), ("10.1.2.3", "x"), ("10.0.0.0/33", "rl")] {
            assert!(set(&list, name, words, false).is_err(), "{name} {words}");
        }
        // An entry with an unknown name can always be removed.
        assert!(set(&list, "alice", "none", false).is_ok());
    }
}
