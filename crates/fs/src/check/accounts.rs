//! Check and repair of the accounts of users and groups: each states what the files of its owner
//! use.

use super::Report;
use super::finding::{Finding, FindingKind};
use crate::error::Result;
use crate::format::account::{Charge, Owner};
use crate::format::key::TreeId;
use crate::metadata::account_state::Accounts;
use crate::metadata::accounts;
use crate::metadata::op::Op;
use crate::metadata::state::{State, Tree};
use std::collections::{BTreeMap, BTreeSet};

/// Compares the accounts of all filesets with their files.
pub(super) fn check(state: &State, report: &mut Report) -> Result<()> {
    for (id, tree) in &state.trees {
        if let Some(accounts) = &tree.accounts
            && is_usable(tree)
        {
            let counted = state.count_charges(*id)?;
            for (owner, stated, found) in different(accounts, &counted) {
                let text = format!(
                    "use of {owner} is stated as {} bytes in {} files, but {} bytes in {} files \
                     were found",
                    stated.bytes(),
                    stated.files,
                    found.bytes(),
                    found.files
                );
                report.found(of_fileset(tree, text));
            }
        }
    }
    Ok(())
}

fn is_usable(tree: &Tree) -> bool {
    !tree.record.removing && !tree.restoring
}

fn of_fileset(tree: &Tree, text: String) -> Finding {
    Finding {
        fileset: Some(tree.record.name.clone()),
        ..Finding::new(FindingKind::Usage, text)
    }
}

/// Collects the owners whose account states another use than was found.
fn different(
    accounts: &Accounts,
    counted: &BTreeMap<Owner, Charge>,
) -> Vec<(Owner, Charge, Charge)> {
    let owners: BTreeSet<Owner> = accounts.keys().chain(counted.keys()).copied().collect();
    let both = owners.into_iter().map(|owner| {
        let stated = accounts.get(&owner).map(|account| account.record.charge);
        let found = counted.get(&owner).copied();
        (owner, stated.unwrap_or_default(), found.unwrap_or_default())
    });
    both.filter(|(_, stated, found)| stated != found).collect()
}

/// Ends the updates of accounts for the time of a repair, which may find inodes without a valid
/// record.
pub(super) fn set_aside(op: &mut Op) {
    for tree in op.trees.values_mut() {
        tree.accounts = None;
    }
}

/// Counts the use of all owners again, in filesets with accounts. Returns the corrections.
pub(super) fn repair(op: &mut Op) -> Result<Vec<Finding>> {
    let mut done = Vec::new();
    let usable =
        |(id, tree): (&TreeId, &Tree)| (tree.record.origin == 0 && is_usable(tree)).then_some(*id);
    let all: Vec<TreeId> = op.trees.iter().filter_map(usable).collect();
    for id in all {
        let Some(stated) = accounts::load(&op.items, id)? else {
            continue;
        };
        let mut right = op.counted_accounts(id, &stated)?;
        let mut counted = BTreeMap::new();
        for (owner, account) in &mut right {
            account.changed = false;
            counted.insert(*owner, account.record.charge);
        }
        for (owner, ..) in different(&stated, &counted) {
            // One that nothing belongs to is removed when it is written.
            right.entry(owner).or_default().changed = true;
            let text = format!("counted the use of {owner} again");
            if let Some(tree) = op.trees.get(&id) {
                done.push(of_fileset(tree, text));
            }
        }
        op.set_accounts(id, Some(right));
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::account::{AccountRecord, OwnerLimits};
    use crate::format::record::FileType;
    use crate::metadata::overlay::Prior;
    use crate::names::directory::{New, ROOT};
    use crate::{FIRST_FILESET, Fs, Options};
    use block::BlockDevice;
    use block_testing::Mem;
    use std::sync::Arc;

    const ALICE: Owner = Owner::User(1000);

    fn open(device: &Arc<dyn BlockDevice>) -> Fs {
        let options = Options {
            rescue: true,
            ..Options::default()
        };
        Fs::open(Arc::clone(device), options).expect("open")
    }

    /// Replaces the record of an owner by `value`, and returns the file system as the next program
    /// finds it.
    fn plant(fs: Fs, device: &Arc<dyn BlockDevice>, owner: Owner, value: Option<Vec<u8>>) -> Fs {
        let id = fs.fileset_named(FIRST_FILESET).expect("it exists").id();
        let mut op = Op::begin(fs.inner(), id).expect("an operation");
        match value {
            Some(value) => op.put_key(owner.key(id), value, Prior::Possible),
            None => op.delete_key(owner.key(id)),
        }
        op.finish();
        fs.close().expect("closed");
        open(device)
    }

    #[test]
    fn a_wrong_count_is_found_and_mended() {
        let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(16 << 20, 512));
        Fs::format(Arc::clone(&device), "").expect("formatted");
        let fs = open(&device);
        let main = fs.fileset_named(FIRST_FILESET).expect("it exists");
        let new = New {
            uid: 1000,
            gid: 100,
            ..New::of_root(FileType::Directory, 0o755)
        };
        let home = main.create(ROOT, b"home", &new).expect("created").ino;
        main.create(home, b"within", &new).expect("created");
        let limits = OwnerLimits {
            bytes: 1 << 20,
            files: 7,
        };
        fs.set_owner_limits(main.id, ALICE, limits).expect("set");
        let right = fs.owner_usage(main.id).expect("counted");
        let found = right.iter().find(|usage| usage.owner == ALICE);
        let charge = Charge {
            blocks: 0,
            item_bytes: found.expect("alice").bytes,
            files: 2,
        };
        drop(main);
        let record = |limits, charge| Some(AccountRecord { limits, charge }.encode());
        let wrong = Charge { files: 3, ..charge };
        let none = OwnerLimits::default();
        let mut fs = fs;
        for (owner, value, problems) in [
            (ALICE, record(limits, charge), 0),
            (ALICE, record(limits, wrong), 1),
            (Owner::User(5), record(none, wrong), 1),
            (Owner::Group(100), None, 1),
            (Owner::Group(100), Some(vec![7; 39]), 1),
        ] {
            fs = plant(fs, &device, owner, value.clone());
            let report = fs.check().expect("checked");
            assert!(
                report.problem_count >= problems && report.is_clean() == (problems == 0),
                "{owner} {value:?}: {:#?}",
                report.problems
            );
            let repair = fs.repair().expect("repaired");
            assert_eq!(repair.done_count > 0, problems > 0, "{:#?}", repair.done);
            assert!(repair.left.is_clean(), "{:#?}", repair.left.problems);
            fs.close().expect("closed");
            fs = open(&device);
            let id = fs.fileset_named(FIRST_FILESET).expect("it exists").id();
            assert_eq!(fs.owner_usage(id).expect("usage"), right);
            assert!(fs.check().expect("checked").is_clean());
        }
    }
}
