//! The file system.
mod db;
mod error;
mod io;
mod journal;
mod key;
mod metafile;
mod overlay;
mod record;
mod space;
mod store;
mod superblock;

pub use error::{Error, Kind, Result};
