//! FAT12, FAT16 and FAT32 with long names. [`Fat`] reads; [`Writable`] also writes.
//!
//! The node of a file is the offset of its entry on the device; the root has the node 1. Owners and
//! permissions do not exist: all files belong to the user that serves them. Times are taken for UTC.
//! **Invariant:** a chain of clusters is followed no further than the length of its file, so it ends
//! even if it is a circle. Deliberately absent: exFAT, names of files in code pages other than 437.

mod boot;
mod clock;
mod commit;
mod directory;
mod encode;
mod entry;
mod inodes;
mod moving;
mod name;
mod space;
mod writable;

use crate::bytes::{le8, le16, le32};
use crate::disk::Disk;
use crate::error::{Error, Kind, Result};
use crate::kept::Kept;
use crate::tree::{Attr, Entry, Node, Piece, Place, ROOT, Space, Tree, add, is_name};
use boot::Boot;
pub(crate) use boot::is_there;
use encode::is_same;
use name::{LongName, short_name};
use std::ops::Range;
use std::sync::Arc;
pub(crate) use writable::Writable;

/// Bytes of an entry of a directory.
const ENTRY_BYTES: u64 = 32;
/// Longest directory: 65,536 entries.
const DIRECTORY_BYTES_MAX: u64 = 2 << 20;

const READ_ONLY: u8 = 1;
const LABEL: u8 = 8;
const DIRECTORY: u8 = 0x10;
const ARCHIVE: u8 = 0x20;
const LONG_NAME: u8 = 0xf;

/// Attributes of the root, which has no entry.
const ROOT_ENTRY: [u8; 32] = {
    let mut raw = [0; 32];
    raw[11] = DIRECTORY;
    raw
};

/// Number of lists of clusters of a generation.
const CHAINS: usize = 8;

/// Positions before the first entry: `.` and `..`.
const DOTS: u64 = 2;

/// Consecutive clusters: their offset and length on the device.
type Run = (u64, u64);

/// An open file system.
pub(crate) struct Fat {
    boot: Boot,
    /// Runs of recently used files by their first cluster and their length in clusters.
    chains: Kept<(u32, u64), Arc<[Run]>>,
    owner: (u32, u32),
}

/// A name in a directory, with its short name.
struct Found {
    entry: Entry,
    short: Vec<u8>,
}

impl Fat {
    /// Opens a file system.
    ///
    /// # Errors
    /// It is damaged, or was not unmounted.
    pub(crate) fn open(disk: &mut Disk) -> Result<Fat> {
        let boot = Boot::read(disk)?;
        boot.check_clean(disk)?;
        let fat = Fat {
            boot,
            chains: Kept::new(CHAINS),
            owner: (
                rustix::process::geteuid().as_raw(),
                rustix::process::getegid().as_raw(),
            ),
        };
        fat.runs(disk, ROOT)?;
        Ok(fat)
    }

    /// Decodes an entry; without its number, and the size of a directory.
    fn attr_of(&self, raw: &[u8; 32]) -> Result<Attr> {
        let (uid, gid) = self.owner;
        let modified = clock::decode(le16(raw, 24)?, le16(raw, 22)?, 0);
        let created = clock::decode(le16(raw, 16)?, le16(raw, 14)?, le8(raw, 13)?);
        let mut attr = Attr {
            mode: libc::S_IFDIR | 0o755,
            links: 1,
            uid,
            gid,
            modified,
            changed: modified,
            accessed: clock::decode(le16(raw, 18)?, 0, 0),
            created: (raw != &ROOT_ENTRY).then_some(created),
            ..Attr::default()
        };
        if raw[11] & DIRECTORY == 0 {
            attr.mode = libc::S_IFREG | 0o755;
            if raw[11] & READ_ONLY != 0 {
                attr.mode &= !0o222;
            }
            attr.size = u64::from(le32(raw, 28)?);
            attr.blocks = attr.size.next_multiple_of(self.boot.cluster_bytes) / 512;
        }
        Ok(attr)
    }

    fn raw(&self, disk: &mut Disk, node: Node) -> Result<[u8; 32]> {
        let mut raw = [0; 32];
        if !node.is_multiple_of(ENTRY_BYTES) {
            return Err(Error::corrupt("a node is not valid"));
        }
        disk.read(node, &mut raw)?;
        if matches!(raw[0], 0 | 0xe5) || raw[11] & LABEL != 0 {
            return Err(Error::corrupt("it is not the entry of a file"));
        }
        Ok(raw)
    }

    /// Finds the clusters of a file or directory.
    fn runs(&self, disk: &mut Disk, node: Node) -> Result<Arc<[Run]>> {
        let most = DIRECTORY_BYTES_MAX.div_ceil(self.boot.cluster_bytes);
        if node == ROOT {
            return match self.boot.root {
                boot::Root::Fixed(at, len) => Ok([(at, len)].into()),
                boot::Root::Cluster(first) => self.chain(disk, first, most, false),
            };
        }
        let raw = self.raw(disk, node)?;
        let first = self.boot.first_cluster(&raw)?;
        if raw[11] & DIRECTORY != 0 {
            return self.chain(disk, first, most, false);
        }
        let size = u64::from(le32(&raw, 28)?);
        let clusters = size.div_ceil(self.boot.cluster_bytes);
        self.chain(disk, first, clusters, true)
    }

    /// Follows a chain of clusters. A file must have all of them, a directory at most as many.
    fn chain(&self, disk: &mut Disk, first: u32, count: u64, all: bool) -> Result<Arc<[Run]>> {
        if let Some(kept) = self.chains.get((first, count)) {
            return Ok(kept);
        }
        let unit = self.boot.cluster_bytes;
        let mut runs: Vec<Run> = Vec::new();
        let mut table = self.boot.table();
        let mut cluster = Some(first);
        for _ in 0..count {
            let Some(now) = cluster else {
                if all {
                    return Err(Error::corrupt("the clusters of a file end early"));
                }
                break;
            };
            let at = self.boot.offset(now)?;
            match runs.last_mut() {
                Some((start, len)) if *start + *len == at => *len += unit,
                _ => runs.push((at, unit)),
            }
            cluster = table.next(disk, now)?;
        }
        if !all && cluster.is_some() {
            return Err(Error::corrupt("the clusters of a directory do not end"));
        }
        let runs: Arc<[Run]> = runs.into();
        self.chains.insert((first, count), Arc::clone(&runs));
        Ok(runs)
    }

    /// Reads entries of a directory from a position on until `take` returns false.
    fn scan(
        &self,
        disk: &mut Disk,
        dir: Node,
        from: u64,
        mut take: impl FnMut(Found) -> bool,
    ) -> Result<()> {
        if dir != ROOT && self.raw(disk, dir)?[11] & DIRECTORY == 0 {
            return Err(Kind::NotDirectory.into());
        }
        for (position, name) in [(0, &b"."[..]), (1, b"..")] {
            let entry = Entry {
                name: name.to_vec(),
                node: 0,
                ino: dir,
                kind: libc::S_IFDIR,
                next: position + 1,
            };
            let short = name.to_vec();
            if from <= position && !take(Found { entry, short }) {
                return Ok(());
            }
        }
        let from = from.max(DOTS) - DOTS;
        let mut long = LongName::default();
        let mut start = 0;
        for (at, len) in self.runs(disk, dir)?.iter().copied() {
            let end = start + len;
            let mut position = from.clamp(start, end).next_multiple_of(ENTRY_BYTES);
            while position < end {
                let place = at + (position - start);
                let mut raw = [0; 32];
                disk.read(place, &mut raw)?;
                position += ENTRY_BYTES;
                if raw[0] == 0 {
                    return Ok(());
                }
                if raw[0] == 0xe5 {
                    long = LongName::default();
                    continue;
                }
                if raw[11] & 0x3f == LONG_NAME {
                    long.add(&raw);
                    continue;
                }
                let name = std::mem::take(&mut long).finish(&raw);
                if raw[11] & LABEL != 0 || raw[0] == b'.' {
                    continue;
                }
                let short = short_name(&raw);
                let name = name.unwrap_or_else(|| short.clone());
                if !is_name(&name) {
                    return Err(Error::corrupt("a name is not valid"));
                }
                let entry = Entry {
                    name,
                    node: place,
                    ino: place,
                    kind: match raw[11] & DIRECTORY {
                        0 => libc::S_IFREG,
                        _ => libc::S_IFDIR,
                    },
                    next: position + DOTS,
                };
                if !take(Found { entry, short }) {
                    return Ok(());
                }
            }
            start = end;
        }
        Ok(())
    }
}

impl Tree for Fat {
    fn format(&self) -> &'static str {
        "FAT"
    }

    fn label(&self) -> String {
        self.boot.label.clone()
    }

    fn uuid(&self) -> String {
        let id = self.boot.id;
        format!("{:04X}-{:04X}", id >> 16, id & 0xffff)
    }

    fn space(&self) -> Space {
        Space {
            block_bytes: self.boot.cluster_bytes as u32,
            blocks: u64::from(self.boot.clusters),
            free: u64::from(self.boot.free),
            available: u64::from(self.boot.free),
            ..Space::default()
        }
    }

    fn attr(&self, disk: &mut Disk, node: Node) -> Result<Attr> {
        let mut attr = match node {
            ROOT => self.attr_of(&ROOT_ENTRY)?,
            node => self.attr_of(&self.raw(disk, node)?)?,
        };
        attr.ino = node;
        if attr.is_dir() {
            let runs = self.runs(disk, node)?;
            attr.size = runs.iter().map(|(_, len)| len).sum();
            attr.blocks = attr.size / 512;
        }
        Ok(attr)
    }

    /// A position is 2 more than an offset in the directory.
    fn read_dir(&self, disk: &mut Disk, dir: Node, from: u64, count: usize) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        self.scan(disk, dir, from, |found| {
            entries.push(found.entry);
            entries.len() < count
        })?;
        Ok(entries)
    }

    /// Names are the same in upper and lower case, and each has a short form.
    fn lookup(&self, disk: &mut Disk, dir: Node, name: &[u8]) -> Result<Node> {
        let mut node = 0;
        self.scan(disk, dir, DOTS, |found| {
            if is_same(&found.entry.name, name) || is_same(&found.short, name) {
                node = found.entry.node;
            }
            node == 0
        })?;
        match node {
            0 => Err(Kind::NotFound.into()),
            node => Ok(node),
        }
    }

    fn read_link(&self, _disk: &mut Disk, _node: Node) -> Result<Vec<u8>> {
        Err(Kind::Invalid.into())
    }

    fn map(&self, disk: &mut Disk, node: Node, range: Range<u64>) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        let mut first = 0;
        for (at, len) in self.runs(disk, node)?.iter().copied() {
            let (from, to) = (range.start.max(first), range.end.min(first + len));
            if from < to {
                let place = Place::Device(at + (from - first));
                let len = to - from;
                add(&mut pieces, Piece { len, place });
            }
            first += len;
        }
        Ok(pieces)
    }
}
