//! The filesets and snapshots that are in use through a cache.

use crate::format::key::TreeId;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Number of users by tree.
#[derive(Default)]
pub(crate) struct Attached(Mutex<HashMap<TreeId, usize>>);

impl Attached {
    /// Adds a user. The caller then checks that the tree may be used.
    pub fn add(&self, id: TreeId) {
        *self.lock().entry(id).or_default() += 1;
    }

    /// Adds a user if there is none. Returns whether there was none.
    pub fn add_first(&self, id: TreeId) -> bool {
        let mut users = self.lock();
        let is_first = !users.contains_key(&id);
        if is_first {
            users.insert(id, 1);
        }
        is_first
    }

    /// Removes a user.
    pub fn remove(&self, id: TreeId) {
        let mut users = self.lock();
        if let Some(count) = users.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                users.remove(&id);
            }
        }
    }

    /// Reports whether a tree has a user.
    pub fn is_any(&self, id: TreeId) -> bool {
        self.lock().contains_key(&id)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TreeId, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
