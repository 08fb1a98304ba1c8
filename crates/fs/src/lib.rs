//! The file system: files, directories and filesets on a block device.
//!
//! ```text
//!   transfer  sending and receiving snapshots
//!     |
//!   files     Files, Handle, Lane: the whole interface, with content in the page cache
//!     |                                               check, defrag, scrub
//!     |                                                    |
//!   names     names, attributes, access lists         fs   Fs: format, open, grow, filesets
//!   data      extents, space of files, FsPager             |
//!     |                                                    |
//!   fileset   Fileset: the handle to one tree of files  ───┘
//!     |
//!   metadata  operations, state, journal, commit, redb
//!     |
//!   device_io, space (free and reserved blocks), format (on-disk encodings)
//! ```
//!
//! **Invariant:** after a crash at any moment the file system opens without repair, synced data is
//! complete, and no file exposes bytes that were never written to it.
//!
//! # Example
//!
//! A file on a device in memory:
//!
//! ```
//! use block::BlockDevice;
//! use block_testing::Mem;
//! use cache::{Cache, Config};
//! use fs::{FIRST_FILESET, FileType, Files, Fs, New, Options, ROOT, WritePosition};
//! use std::sync::Arc;
//!
//! let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(64 << 20, 512));
//! Fs::format(Arc::clone(&device), "label")?;
//! let fs = Fs::open(device, Options::default())?;
//! let cache = Cache::new(Config::new(16 << 20))?;
//! let files = Files::new(&fs.fileset_named(FIRST_FILESET)?, &cache)?;
//!
//! let attr = files.create(ROOT, b"hello", &New::of_root(FileType::File, 0o644))?;
//! let file = files.open(attr.ino)?;
//! let mut lane = files.lane()?;
//! lane.write(&file, WritePosition::Offset(0), b"hello, world")?;
//! lane.sync(&file)?; // content and name are on stable storage
//! let mut content = [0; 12];
//! assert_eq!(lane.read(&file, 0, &mut content)?, 12);
//! assert_eq!(&content, b"hello, world");
//!
//! drop((lane, file));
//! files.close()?;
//! fs.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Deliberately absent: the mount, and access control. `docs/format/fs.md` describes the on-disk
//! format.

mod check;
mod data;
mod defrag;
mod device_io;
mod error;
mod files;
mod fileset;
mod format;
mod fs;
mod integrity;
mod metadata;
mod names;
mod scrub;
mod space;
mod transfer;

pub use cache::{FileId, FileRequest, Loan, Pager, PagerInfo, PagerQueue, Tree};
pub use check::{Checked, Finding, FindingKind, Repair, Report};
pub use data::content::{Allocate, Seek, Stamp};
pub use data::pager::FsPager;
pub use defrag::{Defragmented, Recompress};
pub use error::{Error, Kind, Result};
pub use files::{
    Adopted, Atime, Change, Files, Handle, Lane, REST, SnapshotName, Snapshots, Watch, Watcher,
    WritePosition,
};
pub use fileset::{Attr, Fileset, StatFs};
pub use format::account::{Charge, Owner, OwnerLimits};
pub use format::chunk::Compression;
pub use format::flags::InodeFlags;
pub use format::key::{Ino, TreeId};
pub use format::record::{BLOCK_BYTES, FILE_SIZE_MAX, FileType, Inode, NAME_MAX, Time};
pub use format::superblock::{
    DEVICE_BYTES_MIN, FIELDS, RESERVED_BYTE, SUPERBLOCK_BYTES, Segment, Superblock, TagsRoot,
    VERSION as FORMAT_VERSION,
};
pub use format::tree_record::{Receiving, TreeRecord};
pub use fs::diff::{Difference, DifferenceKind};
pub use fs::filesets::{FilesetChange, Quota};
pub use fs::open::DataChecksums;
pub use fs::owner_quotas::OwnerUsage;
pub use fs::upgrade::Upgraded;
pub use fs::{FIRST_FILESET, Fs, Usage};
pub use metadata::pace::Pace;
pub use metadata::shared::Options;
pub use metadata::survivor::{Adoption, Survival};
pub use names::attributes::{SetAttr, SetTime, SetXattr};
pub use names::directory::{DirEntry, INHERITED, New, ROOT};
pub use names::rename::Rename;
pub use scrub::{Damage, DamageKind, ScrubPosition, ScrubStep};
pub use transfer::receive::{Received, Receiver, Reception};
pub use transfer::send::{Sender, Sent};
