//! Builds a running graph of devices and exports from a configuration or a command line. This is
//! the only crate that composes the others.
//!
//! **Invariant:** everything that this crate starts it also closes, in the order exports, flush,
//! locks. An orderly shutdown loses no data that was acknowledged to a client.
//!
//! Deliberately absent: printing, prompting and parsing of arguments, which belong to the program.

pub mod backups;
pub mod cache;
pub mod cell;
mod cell_record;
mod claim;
pub mod config;
mod confine;
pub mod control;
pub mod device;
pub mod doctor;
mod error;
mod existing;
pub mod filesystem;
pub mod handle;
mod http;
mod in_use;
mod listen;
pub mod lun;
mod metrics;
mod notify;
mod opener;
mod ownership;
mod paths;
mod peer;
mod place;
pub mod registry;
mod remedy;
pub mod service;
mod settings;
mod signals;
pub mod signature;
pub mod state_file;
mod succession;
mod text;
pub mod trust;
mod tunables;
mod unix_time;
pub mod volume;
pub mod watch;
pub mod web;

/// Version of this program, which its services report.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

pub use crate::cache::ProcessCache;
pub use ::fs::Atime;
pub use afs_server::{NoPrefix, Prefix};
pub use block::{Access, Snapshot, parse_size, short_size, size_text};
pub use confine::{Needs, RetainedPrivileges, confine};
pub use error::{Error, Left, Result, exit, without_number};
pub use existing::Existing;
pub use in_use::InUseRecord;
pub use notify::Manager;
pub use opener::{KeyFrom, KeySource, Notify, Opener, Prompt};
pub use ownership::{Held, Ownership};
pub use paths::{own_dir, run_dir};
pub use service::{
    AttachSpec, Ended, Hub, MountSpec, Reload, ServeSpec, Service, ServiceSpec, Status, serve,
    set_log_place, sync_timeout,
};
pub use settings::{Described, Settings, Shown, config_files, described};
pub use signals::StopSignals;
pub use succession::Succession;
pub use text::utc;
