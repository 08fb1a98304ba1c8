//! Limits of users and groups within a fileset, and what their files use.

use crate::error::{Error, Kind, Result};
use crate::format::account::{Charge, Owner, OwnerLimits};
use crate::format::key::TreeId;
use crate::fs::Fs;
use crate::metadata::op::Op;
use crate::metadata::state::State;
use std::collections::BTreeMap;

/// Use of a fileset by a user or a group, and the limits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerUsage {
    /// User or group.
    pub owner: Owner,
    /// Bytes that its files use, including those that only the cache has so far.
    pub bytes: u64,
    /// Number of its files and directories, with one more for each further name of a file.
    pub files: u64,
    /// Limits of the fileset for it; 0 for none.
    pub limits: OwnerLimits,
}

impl Fs {
    /// Sets the limits of a user or a group in a fileset. Existing files stay, even beyond a limit.
    /// With the first limit of the fileset, all its files are counted, while changes wait; after the
    /// last one is removed, changes are no longer counted. Durable when this returns.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; [`Kind::Invalid`]: `id` is a snapshot. [`Kind::Busy`]: the fileset is
    /// being rolled back.
    pub fn set_owner_limits(&self, id: TreeId, owner: Owner, limits: OwnerLimits) -> Result<()> {
        let fs = self.inner();
        self.plan_owner_limits(id)?;
        if !limits.is_none() {
            fs.superblock.need_accounts()?;
        }
        let mut op = Op::begin_any(fs, id)?;
        check_fileset(&op, id)?;
        let mut accounts = match &op.tree(id)?.accounts {
            Some(accounts) => accounts.clone(),
            None if limits.is_none() => return Ok(()),
            None => op.counted_accounts(id, &BTreeMap::new())?,
        };
        let account = accounts.entry(owner).or_default();
        (account.record.limits, account.changed) = (limits, true);
        let is_limited = accounts.values().any(|a| !a.record.limits.is_none());
        op.set_accounts(id, is_limited.then_some(accounts));
        op.finish();
        self.sync()
    }

    /// Checks whether the limits of users and groups of a fileset could be changed.
    ///
    /// # Errors
    /// Those of [`Fs::set_owner_limits`].
    pub fn plan_owner_limits(&self, id: TreeId) -> Result<()> {
        self.inner().check_writable()?;
        check_fileset(&self.inner().read(), id)
    }

    /// Returns what each user and each group uses in a fileset or a snapshot, users first. Without
    /// limits in the fileset, this reads all its metadata, while changes wait.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; [`Kind::Busy`]: the fileset is being rolled back.
    pub fn owner_usage(&self, id: TreeId) -> Result<Vec<OwnerUsage>> {
        let state = self.inner().read();
        let tree = state.tree(id)?;
        if let Some(accounts) = &tree.accounts {
            let all = accounts.iter().map(|(owner, account)| OwnerUsage {
                owner: *owner,
                bytes: account.bytes(),
                files: account.record.charge.files,
                limits: account.record.limits,
            });
            return Ok(all.collect());
        }
        let mut charges = state.count_charges(id)?;
        add_promised(&state, id, &mut charges);
        let all = charges.into_iter().map(|(owner, charge)| OwnerUsage {
            owner,
            bytes: charge.bytes(),
            files: charge.files,
            limits: OwnerLimits::default(),
        });
        Ok(all.collect())
    }
}

/// Adds the blocks promised to dirty pages.
fn add_promised(state: &State, id: TreeId, charges: &mut BTreeMap<Owner, Charge>) {
    for ((_, _), core) in state.cores.iter().filter(|((tree, _), _)| *tree == id) {
        let blocks = core.owed.blocks.max(0) as u64;
        for owner in [Owner::User(core.inode.uid), Owner::Group(core.inode.gid)] {
            if blocks > 0 {
                charges.entry(owner).or_default().blocks += blocks;
            }
        }
    }
}

fn check_fileset(state: &State, id: TreeId) -> Result<()> {
    if let Some(error) = &state.failed {
        return Err(error.clone());
    }
    if state.tree(id)?.record.origin != 0 {
        let text = "a snapshot has no quota";
        return Err(Error::new(Kind::Invalid, text));
    }
    Ok(())
}
