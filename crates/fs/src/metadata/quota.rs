//! The limits of filesets: counting the usage of one, and checking it during an operation.

use crate::error::{Error, Kind, Result};
use crate::format::key::TreeId;
use crate::metadata::item_usage::ItemUsage;
use crate::metadata::op::Op;
use crate::metadata::shared::FsShared;
use crate::metadata::state::{State, Step, Tree};

impl State {
    /// Recounts the usage of a fileset if it has limits.
    pub fn recount_held(&mut self, id: TreeId) -> Result<()> {
        let held = if self.trees.get(&id).is_some_and(Tree::is_limited) {
            let mut held = ItemUsage::default();
            self.scan_tree(id, |key, bytes| {
                if ItemUsage::is_counted(&key) {
                    held.change(&key, None, Some(bytes.len()));
                }
                Ok(true)
            })?;
            Some(held)
        } else {
            None
        };
        if let Some(tree) = self.trees.get_mut(&id) {
            tree.item_usage = held;
        }
        Ok(())
    }
}

impl FsShared {
    /// Counts the usage of all filesets with limits. One that cannot be read does not prevent the
    /// use of the others.
    pub fn count_all_held(&self) -> Result<()> {
        let mut state = self.write();
        let all: Vec<TreeId> = state.trees.keys().copied().collect();
        for id in all {
            match state.recount_held(id) {
                Err(error) if error.kind() == Kind::Corrupt => {
                    let name = &self.name;
                    tracing::warn!(
                        name: "EVFS-0205",
                        "{name}: quota of fileset {id} excludes names and attributes: {error}"
                    );
                }
                counted => counted?,
            }
        }
        Ok(())
    }
}

impl Op<'_> {
    /// Checks that `blocks` more blocks stay within the tree's quota.
    pub fn check_quota(&self, blocks: u64) -> Result<()> {
        let tree = self.state().tree(self.tree)?;
        let used = tree
            .charged_blocks()
            .saturating_add_signed(self.used_blocks);
        match tree.record.quota_blocks {
            0 => Ok(()),
            _ if tree.adopting => Ok(()),
            quota if used.saturating_add(blocks) <= quota => Ok(()),
            _ => Err(Error::new(Kind::Quota, "fileset quota exceeded")),
        }
    }

    /// Checks that one more inode stays within the tree's quota and that the device has room for
    /// it.
    pub fn check_new_inode(&self) -> Result<()> {
        self.check_room()?;
        let tree = self.state().tree(self.tree)?;
        let used = tree
            .charged_inodes()
            .saturating_add_signed(self.used_inodes);
        match tree.record.quota_inodes {
            0 => Ok(()),
            quota if used < quota => Ok(()),
            _ => Err(Error::new(Kind::Quota, "fileset quota exceeded")),
        }
    }

    /// Checks that names and attributes added by this operation stay within the limits of the
    /// fileset, and everything added within those of users and groups. Called after the changes.
    pub fn check_held(&self) -> Result<()> {
        self.check_accounts()?;
        let first = self.state().steps.iter().find_map(|step| match step {
            Step::ItemUsage(id, held) if *id == self.tree => Some(*held),
            _ => None,
        });
        let tree = self.state().tree(self.tree)?;
        let (Some(before), Some(now)) = (first, tree.item_usage) else {
            return Ok(());
        };
        let (blocks, inodes) = (tree.record.quota_blocks, tree.record.quota_inodes);
        let beyond = |quota: u64, used: u64| quota != 0 && used > quota;
        let full = now.bytes > before.bytes && beyond(blocks, tree.charged_blocks())
            || now.names > before.names && beyond(inodes, tree.charged_inodes());
        if full {
            Err(Error::new(Kind::Quota, "fileset quota exceeded"))
        } else {
            Ok(())
        }
    }
}
