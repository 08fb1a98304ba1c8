//! On-disk encodings, without I/O: keys and values of the metadata, and the superblock.
//!
//! `docs/format/fs.md` describes them. Everything read from a device is validated here.

pub mod account;
pub mod chunk;
pub mod flags;
pub mod key;
pub mod name_hash;
pub mod record;
pub mod sums;
pub mod superblock;
pub mod tree_record;
