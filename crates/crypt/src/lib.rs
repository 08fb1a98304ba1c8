//! Encrypted volumes: LUKS2 exactly as `cryptsetup` writes it, AES-XTS between the caller and the
//! device below, and users whose key pairs open the volume in one of three roles.
//!
//! Two halves that meet in [`Volume::device`]:
//!
//! ```text
//!   Volume ── header, keyslots, roles ──► Unlocked (the volume key) ──► CryptDevice ── data path
//! ```
//!
//! **Invariant:** what is below a [`CryptDevice`] is enciphered; a clear byte is never written
//! there, and a key never leaves [`secret::SecretBytes`].
//!
//! Absent on purpose: files, prompts and exports. The header is read and written through the same
//! [`block::BlockDevice`] as the data.

mod device;
mod error;
mod maintain;
mod queue;
mod role;
mod seal;
mod token;
mod volume;

pub use device::{CryptDevice, DataSegment, Options};
pub use error::{Error, Result};
pub use luks2::ErrorKind as HeaderErrorKind;
pub use maintain::{
    CheckReport, CopyReport, Restore, check, overwritten_by_format, plan_restore, repair,
};
pub use queue::QUEUE_MEMORY_BYTES;
pub use role::{Action, Role};
pub use seal::{Mark, Seal};
pub use volume::{Format, Identified, KeyEntry, Unlocked, Volume, free_header_block};
