//! Encrypted volumes: LUKS2 in exactly the format that `cryptsetup` writes, AES-XTS between the
//! caller and the lower device, and key pairs that open the volume in one of three roles.
//!
//! The two halves of the crate meet in [`Volume::device`]:
//!
//! ```text
//!   Volume ── header, keyslots, roles ──► Unlocked (the volume key) ──► CryptDevice ── data path
//! ```
//!
//! **Invariant:** all data below a [`CryptDevice`] is encrypted. Plaintext is never written to the
//! lower device, and keys exist only in [`secret::SecretBytes`].
//!
//! Out of scope: files, prompts and exports. The header is read and written through the same
//! [`block::BlockDevice`] as the data.

mod device;
mod epoch;
mod error;
mod maintain;
mod queue;
pub mod recovery;
mod role;
mod seal;
mod seal_state;
mod shared;
mod token;
mod volume;

pub use device::{CryptDevice, Options};
pub use epoch::Epoch;
pub use error::{Error, Result};
pub use luks2::ErrorKind as HeaderErrorKind;
pub use maintain::{
    CheckReport, CopyReport, Restore, check, overwritten_by_format, plan_restore, repair,
};
pub use queue::QUEUE_MEMORY_BYTES;
pub use role::{Action, Role};
pub use seal::SealVersion;
pub use seal_state::Seal;
pub use shared::DataSegment;
pub use token::check_label;
pub use volume::{
    Format, Identified, KeyEntry, NewKey, NewSecret, Unlocked, Volume, free_header_block,
};
