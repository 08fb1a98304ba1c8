//! Who may do what. The tool enforces roles; cryptography does not (see the guide).

use crate::{Error, Result};
use std::fmt;

/// What a key is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// May do everything.
    Owner,
    /// May attach.
    User,
    /// May only set a new owner, and seal the header for that.
    Recovery,
}

/// What a key is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Read and write the data.
    Attach,
    /// Add and remove keys.
    ChangeKeys,
    /// Seal the header as it is.
    Reseal,
    /// Set a new owner.
    SetOwner,
    /// Destroy all keyslots.
    Erase,
}

impl Role {
    /// Whether this role may do it.
    ///
    /// # Errors
    /// [`Error::RoleRefuses`]
    pub fn allow(self, action: Action) -> Result<()> {
        let allowed = match self {
            Role::Owner => true,
            Role::User => action == Action::Attach,
            Role::Recovery => matches!(action, Action::SetOwner | Action::Reseal),
        };
        if allowed {
            Ok(())
        } else {
            Err(Error::RoleRefuses { role: self, action })
        }
    }

    fn name(self) -> &'static str {
        match self {
            Role::Owner => "owner",
            Role::User => "user",
            Role::Recovery => "recovery",
        }
    }

    /// Returns the role called `name`.
    pub fn from_name(name: &str) -> Option<Role> {
        [Role::Owner, Role::User, Role::Recovery]
            .into_iter()
            .find(|role| role.name() == name)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Action::Attach => "attaching",
            Action::ChangeKeys => "changing keys",
            Action::Reseal => "sealing the header",
            Action::SetOwner => "setting an owner",
            Action::Erase => "erasing",
        })
    }
}
