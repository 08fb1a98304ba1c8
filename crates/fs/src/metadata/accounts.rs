//! The accounts of users and groups: what their files use in a fileset with limits for any of them.
//!
//! A fileset without such limits has no accounts, and its changes cost nothing here. With the first
//! limit, its files are counted; from then on each change of an item that counts updates the
//! accounts in the same operation, and the records are part of the same commit. So the numbers are
//! those of the items after a crash, too, and nothing has to be counted when a file system is
//! opened.
//!
//! An inode is charged to its owner and its group: its blocks, one file (or one for each name), and
//! the bytes of its attributes, of its target and of the names in it, if it is a directory. Blocks
//! of the device that are promised to dirty pages count in memory.
//!
//! **Invariant:** the charge of an owner is the sum over the inode records with this owner, whatever
//! the order in which records and items of an inode come and go: an item without an inode record
//! counts for nothing, and a new record adds the items that are there.

use crate::error::{Error, Kind, Result};
use crate::format::account::{AccountRecord, Charge, Owner};
use crate::format::key::{Ino, Item, Key, PLACE_MAX, TreeId};
use crate::format::record::{BLOCK_BYTES, Inode};
use crate::metadata::account_state::{Account, Accounts};
use crate::metadata::item_map::ItemMap;
use crate::metadata::item_usage::ItemUsage;
use crate::metadata::op::Op;
use crate::metadata::overlay::Prior;
use crate::metadata::shared::FsShared;
use crate::metadata::state::{State, Step, Tree};
use std::collections::BTreeMap;

fn owners((uid, gid): (u32, u32)) -> [Owner; 2] {
    [Owner::User(uid), Owner::Group(gid)]
}

fn exceeded(owner: Owner) -> Error {
    Error::new(Kind::Quota, format!("quota of {owner} exceeded"))
}

/// Computes the charge of an inode without its items.
fn charge_of(inode: &Inode) -> Charge {
    Charge {
        blocks: inode.blocks,
        item_bytes: 0,
        files: if inode.is_dir() {
            1
        } else {
            inode.links.max(1).into()
        },
    }
}

/// Reads the accounts of a fileset; `None` if it has none.
pub(crate) fn load(items: &ItemMap, tree: TreeId) -> Result<Option<Accounts>> {
    let mut accounts = Accounts::new();
    let from = Key::item(tree, 0, Item::UserAccount, 0);
    let to = Key::item(tree, 0, Item::GroupAccount, PLACE_MAX);
    items.scan(from, to, |key, bytes| {
        if let Some(owner) = Owner::of_key(&key) {
            let record = AccountRecord::decode(bytes)?;
            accounts.insert(
                owner,
                Account {
                    record,
                    ..Account::default()
                },
            );
        }
        Ok(true)
    })?;
    Ok((!accounts.is_empty()).then_some(accounts))
}

impl State {
    /// Returns the accounts of a tree, if it has any.
    fn accounts_mut(&mut self, tree: TreeId) -> Option<&mut Accounts> {
        self.trees.get_mut(&tree)?.accounts.as_mut()
    }

    /// Counts what each owner uses in a fileset or a snapshot.
    pub fn count_charges(&self, tree: TreeId) -> Result<BTreeMap<Owner, Charge>> {
        let mut charges: BTreeMap<Owner, Charge> = BTreeMap::new();
        let mut add = |of: Option<(u32, u32)>, charge: &Charge| {
            for owner in of.into_iter().flat_map(owners) {
                charges.entry(owner).or_default().add(charge);
            }
        };
        let mut current: Option<(Ino, (u32, u32))> = None;
        self.scan_tree(tree, |key, bytes| {
            if key.object == 0 {
                return Ok(true);
            }
            if key.kind() == Some(Item::Inode) {
                // A check reports an invalid record, and a repair removes it.
                current = Inode::decode(bytes).ok().map(|inode| {
                    let owner = (inode.uid, inode.gid);
                    add(Some(owner), &charge_of(&inode));
                    (key.object, owner)
                });
            } else if ItemUsage::is_counted(&key) {
                let of = current.filter(|(ino, _)| *ino == key.object);
                let item_bytes = ItemUsage::bytes_of(bytes.len());
                add(
                    of.map(|(_, owner)| owner),
                    &Charge {
                        item_bytes,
                        ..Charge::default()
                    },
                );
            }
            Ok(true)
        })?;
        Ok(charges)
    }

    /// Updates the accounts for a change of an item, which has not been made yet.
    pub fn account(&mut self, key: Key, new: Option<&[u8]>, prior: Prior) -> Result<()> {
        let tree = self.trees.get(&key.layer);
        if tree.is_none_or(|tree| tree.accounts.is_none()) || key.object == 0 {
            return Ok(());
        }
        if key.kind() == Some(Item::Inode) {
            let old = match prior {
                Prior::Absent => None,
                Prior::Possible => self.items.get(&key, Inode::decode)?,
            };
            let new = new.map(Inode::decode).transpose()?;
            return self.account_inode(key, old.as_ref(), new.as_ref());
        }
        if !ItemUsage::is_counted(&key) {
            return Ok(());
        }
        let record = Key::inode(key.layer, key.object).0;
        let Some(inode) = self.items.get(&record, Inode::decode)? else {
            return Ok(());
        };
        let old = match prior {
            Prior::Absent => None,
            Prior::Possible => self.items.get(&key, |bytes| Ok(bytes.len()))?,
        };
        let charge = |len: Option<usize>| Charge {
            item_bytes: len.map_or(0, ItemUsage::bytes_of),
            ..Charge::default()
        };
        let (less, more) = (charge(old), charge(new.map(<[u8]>::len)));
        self.charge(key.layer, (inode.uid, inode.gid), &less, &more);
        Ok(())
    }

    fn account_inode(&mut self, key: Key, old: Option<&Inode>, new: Option<&Inode>) -> Result<()> {
        let owner = |inode: &Inode| (inode.uid, inode.gid);
        let (mut less, mut more) = (old.map(charge_of), new.map(charge_of));
        if old.map(owner) != new.map(owner) {
            let item_bytes = self.item_bytes(key.layer, key.object)?;
            for charge in [&mut less, &mut more].into_iter().flatten() {
                charge.item_bytes = item_bytes;
            }
        }
        let (less, more) = (less.unwrap_or_default(), more.unwrap_or_default());
        match (old.map(owner), new.map(owner)) {
            (Some(old), Some(new)) if old == new => self.charge(key.layer, new, &less, &more),
            (old, new) => {
                let none = Charge::default();
                if let Some(old) = old {
                    self.charge(key.layer, old, &less, &none);
                }
                if let Some(new) = new {
                    self.charge(key.layer, new, &none, &more);
                }
            }
        }
        Ok(())
    }

    /// Counts the bytes of the items of an inode that count.
    fn item_bytes(&self, tree: TreeId, ino: Ino) -> Result<u64> {
        let from = Key::item(tree, ino, Item::Target, 0);
        let to = Key::item(tree, ino, Item::Entry, PLACE_MAX);
        let mut sum = 0;
        self.items.scan(from, to, |_, bytes| {
            sum += ItemUsage::bytes_of(bytes.len());
            Ok(true)
        })?;
        Ok(sum)
    }

    /// Replaces a part of the charge of a user and a group by another.
    fn charge(&mut self, tree: TreeId, owner: (u32, u32), less: &Charge, more: &Charge) {
        if less == more {
            return;
        }
        for owner in owners(owner) {
            let tree_state = self.trees.get_mut(&tree);
            let Some(accounts) = tree_state.and_then(|tree| tree.accounts.as_mut()) else {
                return;
            };
            let account = accounts.entry(owner).or_default();
            self.steps.push(Step::Account(tree, owner, *account));
            account.record.charge.remove(less);
            account.record.charge.add(more);
            account.changed = true;
        }
    }

    /// Undoes a change of an account. Promises stay: they are not part of an operation.
    pub fn restore_account(&mut self, tree: TreeId, owner: Owner, before: &Account) {
        let accounts = self.accounts_mut(tree);
        if let Some(account) = accounts.and_then(|accounts| accounts.get_mut(&owner)) {
            (account.record, account.changed) = (before.record, before.changed);
        }
    }

    /// Changes the number of blocks that are promised to an inode beyond those that it has.
    pub fn owe(&mut self, name: (TreeId, Ino), by: i64) {
        if let Some(core) = self.cores.get_mut(&name) {
            core.owed.blocks += by;
            self.charge_owed(name);
        }
    }

    /// Charges the promises of an inode to its present owner.
    pub fn charge_owed(&mut self, name: (TreeId, Ino)) {
        let tree = self.trees.get_mut(&name.0);
        let accounts = tree.and_then(|tree| tree.accounts.as_mut());
        let (Some(core), Some(accounts)) = (self.cores.get_mut(&name), accounts) else {
            return;
        };
        let owed = &mut core.owed;
        for owner in owners(owed.to) {
            if let Some(account) = accounts.get_mut(&owner) {
                account.promised = account.promised.saturating_sub(owed.charged);
            }
        }
        owed.charged = owed.blocks.max(0) as u64;
        owed.to = (core.inode.uid, core.inode.gid);
        if owed.charged > 0 {
            for owner in owners(owed.to) {
                accounts.entry(owner).or_default().promised += owed.charged;
            }
        }
    }

    /// Ends the charge for the promises of an inode that is removed.
    pub fn forgive(&mut self, name: (TreeId, Ino)) {
        let owed = self.cores.get(&name).map_or(0, |core| core.owed.blocks);
        self.owe(name, -owed);
    }

    /// Starts the accounts of a fileset from the charges of its files, or ends them with `None`.
    pub fn set_accounts(&mut self, id: TreeId, mut accounts: Option<Accounts>) {
        for account in accounts.iter_mut().flat_map(BTreeMap::values_mut) {
            account.promised = 0;
        }
        let Some(tree) = self.trees.get_mut(&id) else {
            return;
        };
        let ends = accounts.is_none();
        if let (Some(unsaved), Some(accounts)) = (&mut self.unsaved, &accounts) {
            unsaved
                .accounts
                .extend(accounts.keys().map(|owner| (id, *owner)));
        }
        let before = std::mem::replace(&mut tree.accounts, accounts);
        if ends {
            for owner in before.into_iter().flatten().map(|(owner, _)| owner) {
                self.delete_key(owner.key(id));
            }
        }
        let own = self.cores.keys().filter(|(tree, _)| *tree == id);
        let own: Vec<(TreeId, Ino)> = own.copied().collect();
        for name in own {
            if let Some(core) = self.cores.get_mut(&name) {
                core.owed.charged = 0;
            }
            self.charge_owed(name);
        }
    }

    /// Creates accounts from the charges of all files and the limits that owners have.
    pub fn counted_accounts(&self, id: TreeId, before: &Accounts) -> Result<Accounts> {
        let limited = before
            .iter()
            .filter(|(_, account)| !account.record.limits.is_none());
        let limits = limited.map(|(owner, account)| (*owner, account.record.limits));
        let mut accounts: Accounts = limits
            .map(|(owner, limits)| (owner, Account::of(limits, Charge::default())))
            .collect();
        for (owner, charge) in self.count_charges(id)? {
            let account = accounts.entry(owner).or_default();
            *account = Account::of(account.record.limits, charge);
        }
        Ok(accounts)
    }

    /// Writes the accounts that have changed to the items.
    pub fn materialize_accounts(&mut self) {
        let mut records = Vec::new();
        for (id, tree) in &mut self.trees {
            let Some(accounts) = &mut tree.accounts else {
                continue;
            };
            accounts.retain(|owner, account| {
                if std::mem::take(&mut account.changed) {
                    let record = account.record;
                    let value = (!record.is_empty()).then(|| record.encode());
                    records.push((owner.key(*id), value));
                }
                !account.record.is_empty() || account.promised > 0
            });
        }
        for (key, value) in records {
            match value {
                Some(value) => self.put_key(key, value, Prior::Possible),
                None => self.delete_key(key),
            }
        }
    }
}

impl Op<'_> {
    /// Checks that the owners of a file have room for a number of blocks more.
    pub fn check_owners(&self, ino: Ino, blocks: u64) -> Result<()> {
        let tree = self.state().tree(self.tree)?;
        let Some(accounts) = tree.accounts.as_ref().filter(|_| !tree.adopting) else {
            return Ok(());
        };
        let inode = self.read_inode(ino)?;
        let more = blocks.saturating_mul(BLOCK_BYTES);
        for owner in owners((inode.uid, inode.gid)) {
            if accounts.get(&owner).is_some_and(|a| a.is_over_bytes(more)) {
                return Err(exceeded(owner));
            }
        }
        Ok(())
    }

    /// Checks that no owner whose use this operation has increased is beyond a limit. Called after
    /// the changes.
    pub fn check_accounts(&self) -> Result<()> {
        let Some(accounts) = self.state().trees.get(&self.tree) else {
            return Ok(());
        };
        let Some(accounts) = &accounts.accounts else {
            return Ok(());
        };
        let mut first: BTreeMap<Owner, &Account> = BTreeMap::new();
        for step in &self.state().steps {
            if let Step::Account(tree, owner, before) = step
                && *tree == self.tree
            {
                first.entry(*owner).or_insert(before);
            }
        }
        for (owner, before) in first {
            let Some(now) = accounts.get(&owner) else {
                continue;
            };
            let full = now.bytes() > before.bytes() && now.is_over_bytes(0)
                || now.record.charge.files > before.record.charge.files && now.is_over_files();
            if full {
                return Err(exceeded(owner));
            }
        }
        Ok(())
    }

    /// Checks the accounts after an inode has got other owners, and moves its promises to them. If
    /// they have no room, the operation is undone.
    pub fn move_owed(&mut self, ino: Ino) -> Result<()> {
        let name = (self.tree, ino);
        self.charge_owed(name);
        self.check_accounts().inspect_err(|_| {
            self.roll_back();
            self.charge_owed(name);
        })
    }
}

impl FsShared {
    /// Loads the accounts of all filesets. One that cannot be read does not prevent the use of the
    /// others; its limits are not enforced.
    pub fn load_accounts(&self) -> Result<()> {
        let mut state = self.write();
        let of_fileset = |(id, tree): (&TreeId, &Tree)| {
            (tree.record.origin == 0 && !tree.record.removing).then_some(*id)
        };
        let all: Vec<TreeId> = state.trees.iter().filter_map(of_fileset).collect();
        for id in all {
            let loaded = load(&state.items, id);
            match (loaded, state.trees.get_mut(&id)) {
                (Ok(accounts), Some(tree)) => tree.accounts = accounts,
                (Err(error), _) if error.kind() == Kind::Corrupt => {
                    tracing::warn!(
                        name: "EVFS-0205",
                        "{}: limits of users and groups of fileset {id} are not enforced: {error}; \
                         `evfs fsck --repair` counts their use again",
                        self.name
                    );
                }
                (loaded, _) => drop(loaded?),
            }
        }
        Ok(())
    }
}
