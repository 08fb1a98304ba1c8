//! Errors of operations on a volume.

use crate::role::{Action, Role};
use crate::seal_state::Seal;

/// Result of an operation on a volume.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a volume.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The lower device failed.
    #[error(transparent)]
    Block(#[from] block::Error),
    /// The header cannot be read, opened or changed.
    #[error("{name}: {source}")]
    Header {
        /// Name of the device.
        name: String,
        /// Error from the header code.
        source: luks2::Error,
    },
    /// An operation with a key pair failed.
    #[error(transparent)]
    Key(#[from] keyring::Error),
    /// The cipher rejected the volume key.
    #[error(transparent)]
    Cipher(#[from] xts::Error),
    /// The key opens no keyslot of this volume.
    #[error("wrong key: {0}")]
    WrongKey(String),
    /// The key is right, but its role does not permit the action.
    #[error("the key is valid, but its role is {role}, and {action} requires {}", needs(*action))]
    RoleRefuses {
        /// Role of the key.
        role: Role,
        /// The requested action.
        action: Action,
    },
    /// A change was requested while one copy of the header is damaged.
    #[error("{0}: one copy of the header is damaged; run `evfs volume repair` before changing it")]
    NeedsRepair(String),
    /// The seal of the header is not valid.
    #[error("{name}: {}", seal.problem())]
    SealBroken {
        /// Name of the device.
        name: String,
        /// State of the seal.
        seal: Seal,
    },
    /// The header has no such key.
    #[error("{0}")]
    NoSuchKey(String),
    /// The argument is the number of one keyslot and the name of another key.
    #[error("{0}")]
    Ambiguous(String),
    /// The key to add is already in the header.
    #[error("{0}")]
    Exists(String),
    /// The volume has no keyslot.
    #[error(
        "{0}: the volume has no keyslots, so it was erased; restore a header backup with `evfs \
         volume header restore {0} FILE` (`erase` has saved one in the backup directory)"
    )]
    Erased(String),
    /// The operation does not make sense for this volume.
    #[error("{0}")]
    Refused(String),
}

fn needs(action: Action) -> &'static str {
    match action {
        Action::Attach | Action::ChangeOwnSecret => "an owner or a user",
        Action::ChangeKeys | Action::Erase => "an owner",
        Action::SetOwner | Action::Reseal => "an owner or a recovery key",
    }
}

impl Role {
    /// Checks that this role permits `action`.
    ///
    /// # Errors
    /// [`Error::RoleRefuses`] if it does not.
    pub fn allow(self, action: Action) -> Result<()> {
        if self.permits(action) {
            Ok(())
        } else {
            Err(Error::RoleRefuses { role: self, action })
        }
    }
}

impl Error {
    /// Builds an [`Error::WrongKey`] with a message that says what to do.
    pub fn wrong_key(hint: impl Into<String>) -> Error {
        Error::WrongKey(hint.into())
    }

    pub(crate) fn header(name: &str, source: luks2::Error) -> Error {
        match source.kind() {
            luks2::ErrorKind::WrongKey => Error::WrongKey(source.to_string()),
            _ => Error::Header {
                name: name.to_owned(),
                source,
            },
        }
    }
}
