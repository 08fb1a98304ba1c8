//! What can go wrong between a volume and its user.

use crate::role::{Action, Role};
use crate::seal::Seal;

/// What an operation on a volume gives.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a volume.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device below failed.
    #[error(transparent)]
    Block(#[from] block::Error),
    /// The header cannot be read, opened or changed.
    #[error("{name}: {source}")]
    Header {
        /// The device.
        name: String,
        /// What the format says.
        source: luks2::Error,
    },
    /// A key pair failed.
    #[error(transparent)]
    Key(#[from] keyring::Error),
    /// The cipher refuses the volume key.
    #[error(transparent)]
    Cipher(#[from] xts::Error),
    /// The key opens nothing here.
    #[error("wrong key: {0}")]
    WrongKey(String),
    /// The key is right, its role is not.
    #[error("the key is right, but its role is {role}, and {action} needs {}", needs(*action))]
    RoleRefuses {
        /// The role of the key.
        role: Role,
        /// What was asked for.
        action: Action,
    },
    /// One copy of the header is damaged, and a change was asked for.
    #[error("{0}: one copy of the header is damaged; run `evfs volume repair` before changing it")]
    NeedsRepair(String),
    /// The seal of the header does not hold.
    #[error("{name}: {}", seal.problem())]
    SealBroken {
        /// The device.
        name: String,
        /// What is wrong with the seal.
        seal: Seal,
    },
    /// There is no such key in the header.
    #[error("{0}")]
    NoSuchKey(String),
    /// It may be the number of one key and the name of another.
    #[error("{0}")]
    Ambiguous(String),
    /// It is there already.
    #[error("{0}")]
    Exists(String),
    /// No keyslot is left.
    #[error(
        "{0}: no key opens this volume: it has no keyslots, so it was erased; `evfs volume header restore {0} FILE` undoes that with a header backup (`erase` has left one in the backup folder)"
    )]
    Erased(String),
    /// The request makes no sense for this volume.
    #[error("{0}")]
    Refused(String),
}

fn needs(action: Action) -> &'static str {
    match action {
        Action::Attach => "an owner or a user",
        Action::ChangeKeys | Action::Erase => "an owner",
        Action::SetOwner | Action::Reseal => "an owner or a recovery key",
    }
}

impl Error {
    /// A wrong key, with what to do about it.
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
