//! Space and files that users and groups use in a fileset, and their limits.

use crate::control::{Limits, OwnerId, OwnersRequest, Run};
use crate::text::json_of;
use crate::{Error, Result};
use ::fs::{Fs, Owner, OwnerLimits, OwnerUsage};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

/// Users and groups of a fileset.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct FilesetOwners {
    /// Name of the fileset or snapshot.
    pub fileset: String,
    /// Users that own files or have limits, in the order of their numbers.
    pub users: Vec<ShownOwner>,
    /// Groups that own files or have limits, in the order of their numbers.
    pub groups: Vec<ShownOwner>,
}

/// Space and files that a user or a group uses in a fileset.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ShownOwner {
    /// Number of the user or the group.
    pub id: u32,
    /// Name, if this machine knows one.
    pub name: Option<String>,
    /// Bytes of file data, names in directories, targets of symbolic links and attributes.
    pub used_bytes: u64,
    /// Number of files and directories; each further name of a file counts as one more.
    pub used_files: u64,
    /// Limit of `used_bytes`.
    pub quota_bytes: Option<u64>,
    /// Limit of `used_files`.
    pub quota_files: Option<u64>,
}

impl From<&OwnerUsage> for ShownOwner {
    fn from(usage: &OwnerUsage) -> ShownOwner {
        let (Owner::User(id) | Owner::Group(id)) = usage.owner;
        let limit = |limit: u64| (limit > 0).then_some(limit);
        ShownOwner {
            id,
            name: None,
            used_bytes: usage.bytes,
            used_files: usage.files,
            quota_bytes: limit(usage.limits.bytes),
            quota_files: limit(usage.limits.files),
        }
    }
}

/// Executes a request; a dry run changes nothing.
pub(super) fn execute(fs: &Fs, ask: &OwnersRequest, run: Run) -> Result<Value> {
    let name = &ask.fileset;
    let found = fs.fileset_named(name);
    let id = found.map_err(Error::files("cannot find the fileset"))?.id();
    let reported = Error::files(format!("cannot count the use of `{name}`"));
    let mut all = fs.owner_usage(id).map_err(reported)?;
    if let Some(owner) = ask.owner.map(of) {
        let mut one = all.iter().find(|usage| usage.owner == owner).copied();
        let one = one.get_or_insert(OwnerUsage {
            owner,
            bytes: 0,
            files: 0,
            limits: OwnerLimits::default(),
        });
        one.limits = limited(one.limits, &ask.quota);
        if ask.quota != Limits::default() {
            let set = match run {
                Run::Real => fs.set_owner_limits(id, owner, one.limits),
                Run::Dry => fs.plan_owner_limits(id),
            };
            set.map_err(Error::files(format!(
                "cannot set the quota of {owner} in `{name}`"
            )))?;
        }
        all = vec![*one];
    }
    let shown = |wanted: fn(Owner) -> bool| {
        let wanted = all.iter().filter(|usage| wanted(usage.owner));
        let used = wanted.filter(|u| ask.owner.is_some() || u.files > 0 || !u.limits.is_none());
        used.map(ShownOwner::from).collect()
    };
    Ok(json_of(&FilesetOwners {
        fileset: name.clone(),
        users: shown(|owner| matches!(owner, Owner::User(_))),
        groups: shown(|owner| matches!(owner, Owner::Group(_))),
    }))
}

fn of(owner: OwnerId) -> Owner {
    match owner {
        OwnerId::User(id) => Owner::User(id),
        OwnerId::Group(id) => Owner::Group(id),
    }
}

/// The limits of an owner after a change.
fn limited(before: OwnerLimits, limits: &Limits) -> OwnerLimits {
    OwnerLimits {
        bytes: limits.bytes.unwrap_or(before.bytes),
        files: limits.inodes.unwrap_or(before.files),
    }
}
