//! The AFS-3 file server: filesets as the volumes of a cell, for the clients of OpenAFS and of Linux.
//!
//! ```text
//!   Port 7003 ── Location (vl)            where a volume is: here
//!   Port 7000 ── FileService (fs/) ──► Volume ──► fs::Files ──► cache
//!                   │                    ├ Directories   pages as clients have them
//!                   ├ Hosts              │ Stores        one version for one change
//!                   │   └ who is there,  └ acl           who may
//!                   └ Promises, breaks   who has to be told of a change, before the change is answered
//! ```
//!
//! **Invariant:** an answer to a change leaves when the change is durable, and when everybody else who
//! was promised to hear of it has heard, or is known not to answer. A file's identity is never given to
//! another one, and a data version never to other data, also after a crash.
//!
//! Who calls is known by address only: the one security class is rxnull, which neither proves nor
//! hides anything. What strangers may do is decided by access lists and, above them, by
//! [`Config::anonymous_write`]. A class that proves who calls would give [`acl::Caller`] a name.
//!
//! Deliberately absent: the volume, protection and basic overseer services; replicas elsewhere; rxkad.

mod acl;
mod admin;
mod again;
mod breaks;
mod callback;
mod config;
mod directories;
mod error;
mod fid;
mod fs_service;
mod hosts;
mod lanes;
mod locks;
mod patience;
mod server;
mod stats;
mod status;
mod stores;
mod vl;
mod volume;

pub use acl::{ACL_ATTRIBUTE, Caller, is_known};
pub use admin::{AdminError, Administration, MountPoint, NewVolume, ROOTS};
pub use config::{Config, NoPrefix, Prefix};
pub use fid::Fid;
pub use hosts::{Client, ClientState};
pub use server::{ADDRESSES_MAX, Server, ServerStats, StartError, THREAD_NAME};
pub use stats::{Called, Counts};
pub use volume::{Kind, Volume, VolumeId, Volumes};
