//! The AFS-3 file server: serves filesets as the volumes of a cell to OpenAFS and Linux clients.
//!
//! ```text
//!   Port 7003 ── Location (vl)            location of a volume: this server
//!   Port 7000 ── FileService (fs/) ──► Volume ──► fs::Files ──► cache
//!                   │                    ├ Directories   pages in the clients' format
//!                   ├ Hosts              │ Stores        one version for one change
//!                   │   └ the clients    └ acl           access control
//!                   └ Promises, breaks   notify callback holders before the reply to a change
//! ```
//!
//! **Invariant:** the reply to a change leaves when the change is durable, and when every other
//! callback holder has been notified or is known not to answer. A file's identity is never reused
//! for another file, and a data version never for other data, not even after a crash.
//!
//! Callers are identified by address only: the one security class is rxnull, which neither
//! authenticates nor encrypts. The rights of unauthenticated callers are limited by access lists
//! and, above them, by [`Config::anonymous_write`]. An authenticating class would add a name to
//! [`acl::Caller`].
//!
//! Deliberately absent: the volume, protection and basic overseer services; replicas on other
//! servers; rxkad.

mod acl;
mod admin;
mod admission;
mod breaks;
mod callback;
mod callback_retry;
mod config;
mod directories;
mod error;
mod fid;
mod fs_service;
mod hosts;
mod lanes;
mod lock_table;
mod locks;
mod outbox;
mod resets;
mod server;
mod shared;
mod start_error;
mod stats;
mod status;
mod stores;
mod survival;
mod vl;
mod volume;

pub use acl::{ACL_ATTRIBUTE, Caller, is_known};
pub use admin::{AdminError, Administration, MountPoint, NewVolume, ROOTS, Removal};
pub use config::{Config, NoPrefix, Prefix};
pub use fid::ino_of;
pub use hosts::{Client, ClientState};
pub use server::{ADDRESSES_MAX, Server, ServerStats, THREAD_NAME};
pub use start_error::StartError;
pub use stats::{Called, Counts};
pub use survival::{Adopt, Survival};
pub use volume::{Kind, Volume, VolumeId, Volumes};
