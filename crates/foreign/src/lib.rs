//! File systems of other programs on the cache: ext2, ext3, ext4, SquashFS and ISO 9660 to read, FAT
//! also to write.
//!
//! ```text
//!   Lane (one thread) ── names, attributes ──► Tree (a format) ──► Disk ──► device
//!        └── content ──► cache ──► pager ──► Tree::map ──────────────────────►
//! ```
//!
//! [`Files::open`] recognizes the format of a device. A format is an implementation of [`Tree`],
//! which parses structures and says where the content of a file is; pages of the content are in the
//! cache, as those of every other file. A program can add a format of its own
//! ([`Files::with_tree`]; see `examples/own_format.rs`).
//!
//! **Invariant:** only a format with [`Changes`] is written, and in an order that a power cut may
//! interrupt anywhere. The bytes are hostile: damage is an error of the file that it
//! concerns, and neither a panic nor a wait; time and memory are bounded by the device. A file
//! system that needs its journal, or has an unknown feature, is not opened.
//!
//! Deliberately absent: repair, permissions.

#![forbid(unsafe_code)]

pub mod bytes;
mod changes;
mod disk;
mod error;
mod ext;
mod fat;
mod files;
mod formats;
mod guard;
mod iso;
mod kept;
mod pager;
mod saver;
mod squash;
mod tree;

pub use changes::{Changes, New, SetAttr};
pub use disk::{Blocks, Disk};
pub use error::{Error, Kind, Result};
pub use files::{Files, Lane};
pub use formats::probe;
pub use saver::Saver;
pub use tree::{Attr, Entry, Node, Piece, Place, ROOT, Space, Time, Tree, add, is_name};
