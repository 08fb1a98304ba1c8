//! Roles and the actions they permit, enforced by the tool, not by cryptography (see the guide).

use std::fmt;

/// Role of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Permits every action.
    Owner,
    /// Permits [`Action::Attach`] and [`Action::ChangeOwnSecret`].
    User,
    /// Permits [`Action::SetOwner`], and [`Action::Reseal`], which may be needed before it.
    Recovery,
}

/// Action that a role may or may not permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Read and write the data.
    Attach,
    /// Replace the passphrase or key file that opened the volume.
    ChangeOwnSecret,
    /// Add, change and remove keys.
    ChangeKeys,
    /// Accept the current header by sealing it again.
    Reseal,
    /// Set a new owner.
    SetOwner,
    /// Destroy all keyslots.
    Erase,
}

impl Role {
    /// Reports whether this role permits `action`.
    pub fn permits(self, action: Action) -> bool {
        match self {
            Role::Owner => true,
            Role::User => matches!(action, Action::Attach | Action::ChangeOwnSecret),
            Role::Recovery => matches!(action, Action::SetOwner | Action::Reseal),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Role::Owner => "owner",
            Role::User => "user",
            Role::Recovery => "recovery",
        }
    }

    /// Finds the role called `name`.
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
            Action::ChangeOwnSecret => "changing its secret",
            Action::ChangeKeys => "changing keys",
            Action::Reseal => "sealing the header",
            Action::SetOwner => "setting an owner",
            Action::Erase => "erasing",
        })
    }
}
