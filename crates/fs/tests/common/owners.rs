//! Limits of users and groups, beside the model.

use super::model::{Kind, Node};
use super::pair::Pair;
use fs::{BLOCK_BYTES, Owner, OwnerLimits, OwnerUsage};
use std::collections::BTreeMap;

/// Bytes for which a name, a target or an attribute counts besides its own.
const ITEM_BYTES: u64 = 64;

/// Bounds that no owner may exceed: its limits, or its use when they were set.
#[derive(Default)]
pub struct Owners(BTreeMap<Owner, (u64, u64)>);

impl Owners {
    /// Checks that no owner has exceeded a limit, and changes one.
    pub fn step(&mut self, pair: &mut Pair) {
        for usage in usage(pair) {
            if let Some((bytes, files)) = self.0.get(&usage.owner) {
                assert!(usage.bytes <= *bytes, "{usage:?}, at most {bytes} bytes");
                assert!(usage.files <= *files, "{usage:?}, at most {files} files");
            }
        }
        let id = pair.random.below(3) as u32;
        let owner = [Owner::User(id), Owner::Group(id)][pair.random.below(2) as usize];
        let limits = OwnerLimits {
            bytes: pair.random.below(3) * pair.random.below(1 << 20),
            files: pair.random.below(2) * pair.random.below(40),
        };
        let fileset = pair.fileset().id();
        let set = pair.fs.set_owner_limits(fileset, owner, limits);
        set.expect("a limit can be set");
        self.note(pair);
    }

    /// Takes note of the use of all owners, after a change that no limit applies to.
    pub fn note(&mut self, pair: &Pair) {
        let bound = |limit: u64, used: u64| match limit {
            0 => u64::MAX,
            limit => limit.max(used),
        };
        let all = usage(pair).into_iter().map(|usage| {
            let OwnerUsage { bytes, files, .. } = usage;
            let limits = usage.limits;
            let bounds = (bound(limits.bytes, bytes), bound(limits.files, files));
            (usage.owner, bounds)
        });
        self.0 = all.collect();
    }
}

fn usage(pair: &Pair) -> Vec<OwnerUsage> {
    let usage = pair.fs.owner_usage(pair.fileset().id());
    usage.expect("the use of each owner")
}

/// Compares the use of each owner with the model. No page is dirty.
pub fn compare(pair: &Pair) {
    let mut expected: BTreeMap<Owner, (u64, u64)> = BTreeMap::new();
    for (id, node) in &pair.model.nodes {
        let attr = pair.fileset().attr(pair.inodes[id]).expect("it exists");
        let bytes = attr.inode.blocks * BLOCK_BYTES + item_bytes(node);
        let files = match node.kind {
            Kind::Dir(_) => 1,
            _ => node.links.max(1),
        };
        for owner in [Owner::User(node.uid), Owner::Group(node.gid)] {
            let sum = expected.entry(owner).or_default();
            *sum = (sum.0 + bytes, sum.1 + u64::from(files));
        }
    }
    let found = usage(pair)
        .into_iter()
        .filter(|u| (u.bytes, u.files) != (0, 0));
    let found: BTreeMap<Owner, (u64, u64)> = found.map(|u| (u.owner, (u.bytes, u.files))).collect();
    assert_eq!(found, expected);
}

fn item_bytes(node: &Node) -> u64 {
    // An entry has the number and the type of its inode, an attribute the length of its name.
    let names = match &node.kind {
        Kind::Dir(entries) => entries.keys().map(|name| 12 + name.len()).collect(),
        Kind::Link(target) => vec![target.len()],
        _ => Vec::new(),
    };
    let xattrs = node
        .xattrs
        .iter()
        .map(|(name, value)| 1 + name.len() + value.len());
    let items = names.into_iter().chain(xattrs);
    items.map(|bytes| bytes as u64 + ITEM_BYTES).sum()
}
