//! Check of one tree as its readers see it: names, links, sizes, blocks, quotas.

use super::Report;
use super::finding::{Finding, FindingKind, Findings};
use super::meter::Meter;
use crate::data::extents::end_of;
use crate::error::{Kind, Result};
use crate::format::key::{Ino, Item, Key, TreeId};
use crate::format::name_hash::Hasher;
use crate::format::record::{
    BLOCK_BYTES, Entry, Extent, FILE_SIZE_MAX, FileType, Inode, TARGET_MAX, Xattr,
};
use crate::metadata::state::State;
use crate::names::directory::ROOT;
use std::collections::{HashMap, HashSet};

/// Walk over one tree.
pub(super) struct Walk<'a> {
    state: &'a State,
    hasher: &'a Hasher,
    tree: TreeId,
    report: &'a mut Report,
    name: String,
    /// Inode whose items are being read.
    current: Option<Current>,
    /// Inodes seen so far.
    inodes: HashMap<Ino, Seen>,
    /// Inodes by the names that refer to them.
    named: HashMap<Ino, Named>,
    orphans: HashSet<Ino>,
    blocks: u64,
}

/// Names that refer to an inode.
#[derive(Clone, Copy)]
struct Named {
    count: u32,
    kind: FileType,
    /// Directory and place of the first name.
    dir: Ino,
    place: u64,
}

struct Seen {
    kind: FileType,
    links: u32,
    parent: Ino,
    /// Number of subdirectories according to its entries.
    directories: u32,
}

/// Inode with the totals of its items.
struct Current {
    ino: Ino,
    inode: Inode,
    has_target: bool,
    entries: u64,
    directories: u32,
    blocks: u64,
    extents: u64,
    reached: u64,
    names: HashSet<Vec<u8>>,
}

impl<'a> Walk<'a> {
    pub fn new(state: &'a State, hasher: &'a Hasher, tree: TreeId, report: &'a mut Report) -> Self {
        let record = &state.trees[&tree].record;
        Walk {
            state,
            hasher,
            tree,
            report,
            name: record.name.clone(),
            current: None,
            inodes: HashMap::new(),
            named: HashMap::new(),
            orphans: HashSet::new(),
            blocks: 0,
        }
    }

    pub fn run(mut self, meter: &mut Meter) -> Result<()> {
        let state = self.state;
        let first = self.report.problems.len();
        let first_note = self.report.notes.len();
        meter.begin(meter.of_tree(state.trees[&self.tree].record.used_inodes));
        state.scan_tree(self.tree, |key, bytes| {
            meter.item(bytes);
            self.item(key, bytes)?;
            Ok(true)
        })?;
        self.end_inode();
        self.check_names();
        if state.trees[&self.tree].record.receiving.is_none() {
            self.check_ways_up();
        }
        self.check_usage();
        let Walk {
            report,
            named,
            tree,
            ..
        } = self;
        let name = |bytes: &[u8]| Ok(Entry::decode(bytes)?.name.to_vec());
        let up = |ino| {
            let Named { dir, place, .. } = *named.get(&ino)?;
            let found = state.get(tree, dir, (Item::Entry, place), name);
            Some((dir, found.ok()??))
        };
        report.problems.add_paths(first, up);
        report.notes.add_paths(first_note, up);
        Ok(())
    }

    fn problem(&mut self, kind: FindingKind, ino: Ino, text: &str) {
        let finding = Finding::of_inode(kind, &self.name, ino, text);
        self.report.found(finding);
    }

    /// Unwraps a decoded record, or reports it as invalid.
    fn decoded<T>(&mut self, ino: Ino, record: Result<T>) -> Result<Option<T>> {
        match record {
            Ok(record) => Ok(Some(record)),
            Err(error) if error.kind() == Kind::Corrupt => {
                self.problem(FindingKind::Record, ino, &error.to_string());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn item(&mut self, key: Key, bytes: &[u8]) -> Result<()> {
        let ino = key.object;
        if self
            .current
            .as_ref()
            .is_none_or(|current| current.ino != ino)
        {
            self.end_inode();
        }
        match key.kind() {
            Some(Item::Orphan) if ino == 0 => {
                self.orphans.insert(key.place());
            }
            Some(Item::Inode) => {
                if let Some(inode) = self.decoded(ino, Inode::decode(bytes))? {
                    self.begin_inode(ino, inode);
                }
            }
            Some(_) if self.current.is_none() => {
                self.problem(FindingKind::Record, ino, "has items but no inode record");
            }
            Some(Item::Target) => self.target(bytes),
            Some(Item::Xattr) => {
                if let Some(xattr) = self.decoded(ino, Xattr::decode(bytes))? {
                    let name = [b"x", xattr.name].concat();
                    self.place(ino, key, xattr.name, name);
                }
            }
            Some(Item::Entry) => {
                if let Some(entry) = self.decoded(ino, Entry::decode(bytes))? {
                    let name = [b"e", entry.name].concat();
                    self.place(ino, key, entry.name, name);
                    self.entry(ino, key.place(), &entry);
                }
            }
            Some(Item::Extent) => {
                if let Some(extent) = self.decoded(ino, Extent::decode(bytes))? {
                    self.extent(ino, key.place(), &extent);
                }
            }
            _ => self.problem(FindingKind::Record, ino, "has an item of unknown type"),
        }
        Ok(())
    }

    fn begin_inode(&mut self, ino: Ino, inode: Inode) {
        self.report.inodes += 1;
        if (ino & 1 == 1) != inode.is_dir() {
            self.problem(
                FindingKind::Record,
                ino,
                "its number does not match the file type",
            );
        }
        if ino >> 1 >= self.state.trees[&self.tree].record.next_ino {
            self.problem(
                FindingKind::Usage,
                ino,
                "its number could be reused: the fileset's next inode number is too low",
            );
        }
        let unknown = inode.flags.unknown();
        if unknown != 0 {
            let text = format!("has unknown flags {unknown:#x}, which have no effect");
            let note = Finding::of_inode(FindingKind::Record, &self.name, ino, text);
            self.report.notes.add(note);
        }
        self.current = Some(Current {
            ino,
            inode,
            has_target: false,
            entries: 0,
            directories: 0,
            blocks: 0,
            extents: 0,
            reached: 0,
            names: HashSet::new(),
        });
    }

    fn target(&mut self, bytes: &[u8]) {
        let Some(current) = &mut self.current else {
            return;
        };
        current.has_target = true;
        let fits = current.inode.disk_size == bytes.len() as u64;
        let ino = current.ino;
        if !(1..=TARGET_MAX).contains(&bytes.len()) {
            self.problem(
                FindingKind::Record,
                ino,
                "symbolic link target is empty or too long",
            );
        }
        if !fits {
            self.problem(
                FindingKind::Count,
                ino,
                "size does not match the symbolic link target",
            );
        }
    }

    fn place(&mut self, ino: Ino, key: Key, name: &[u8], unique: Vec<u8>) {
        let first = self.hasher.place(name);
        if !(first..first + 256).contains(&key.place()) {
            self.problem(
                FindingKind::Name,
                ino,
                "directory entry or attribute is in the wrong hash slot",
            );
        }
        let new = self
            .current
            .as_mut()
            .is_none_or(|current| current.names.insert(unique));
        if !new {
            self.problem(
                FindingKind::Name,
                ino,
                "duplicate directory entry or attribute",
            );
        }
    }

    fn entry(&mut self, dir: Ino, place: u64, entry: &Entry) {
        self.report.entries += 1;
        if let Some(current) = &mut self.current {
            current.entries += 1;
            current.directories += u32::from(entry.kind == FileType::Directory);
        }
        let named = self.named.entry(entry.ino).or_insert(Named {
            count: 0,
            kind: entry.kind,
            dir,
            place,
        });
        named.count += 1;
        if named.kind != entry.kind {
            self.problem(
                FindingKind::Name,
                entry.ino,
                "its directory entries disagree on the file type",
            );
        }
    }

    fn extent(&mut self, ino: Ino, first: u64, extent: &Extent) {
        let Some(current) = &mut self.current else {
            return;
        };
        current.blocks += u64::from(extent.blocks);
        current.extents += 1;
        let overlaps = first < current.reached;
        current.reached = end_of(&(first, *extent));
        let too_far = current.reached > FILE_SIZE_MAX / BLOCK_BYTES;
        if overlaps {
            self.problem(FindingKind::Extent, ino, "extents overlap");
        }
        if too_far {
            let text = "extent lies beyond the maximum file size";
            self.problem(FindingKind::Extent, ino, text);
        }
    }

    fn end_inode(&mut self) {
        let Some(current) = self.current.take() else {
            return;
        };
        let Current { ino, inode, .. } = &current;
        let ino = *ino;
        self.blocks += current.blocks;
        self.count_extents(current.extents);
        if current.blocks != inode.blocks {
            let text = format!(
                "block count is {}, but {} were found",
                inode.blocks, current.blocks
            );
            self.problem(FindingKind::Count, ino, &text);
        }
        if current.entries != inode.entries {
            let text = format!(
                "entry count is {}, but {} were found",
                inode.entries, current.entries
            );
            self.problem(FindingKind::Count, ino, &text);
        }
        if current.entries > 0 && !inode.is_dir() {
            self.problem(
                FindingKind::Record,
                ino,
                "has directory entries but is not a directory",
            );
        }
        if current.blocks > 0 && inode.kind != FileType::File {
            self.problem(
                FindingKind::Extent,
                ino,
                "has extents but is not a regular file",
            );
        }
        if current.has_target != (inode.kind == FileType::Symlink) {
            self.problem(
                FindingKind::Record,
                ino,
                "symbolic link without a target, or a target but not a symbolic link",
            );
        }
        let seen = Seen {
            kind: inode.kind,
            links: inode.links,
            parent: inode.parent,
            directories: current.directories,
        };
        self.inodes.insert(ino, seen);
    }

    fn count_extents(&mut self, extents: u64) {
        let is_fileset = self.state.trees[&self.tree].record.origin == 0;
        if let (true, Some(place)) = (is_fileset, extents.checked_ilog2()) {
            let counts = &mut self.report.files_by_extents;
            let place = place as usize;
            counts.resize(counts.len().max(place + 1), 0);
            counts[place] += 1;
        }
    }

    /// Checks that names refer to inodes, and that link counts match the names.
    fn check_names(&mut self) {
        let mut problems: Vec<(Ino, FindingKind, String)> = Vec::new();
        let mut wrong = |ino, kind, text: String| problems.push((ino, kind, text));
        for (ino, Named { dir, .. }) in &self.named {
            if !self.inodes.contains_key(ino) {
                let text = format!("does not exist, but directory {dir} has an entry for it");
                wrong(*ino, FindingKind::Name, text);
            }
        }
        let is_snapshot = self.state.trees[&self.tree].record.origin != 0;
        for (ino, seen) in &self.inodes {
            let is_dir = seen.kind == FileType::Directory;
            let named = self.named.get(ino);
            let names = named.map_or(0, |named| named.count);
            if named.is_some_and(|named| named.kind != seen.kind) {
                let text = "file type does not match its directory entry";
                wrong(*ino, FindingKind::Name, text.into());
            }
            let expected = match (is_dir, *ino == ROOT || names > 0) {
                (true, true) => 2 + seen.directories,
                (true, false) => 0,
                (false, _) => names,
            };
            if seen.links != expected {
                let text = format!("link count is {}, expected {expected}", seen.links);
                wrong(*ino, FindingKind::Count, text);
            }
            if is_dir && names > u32::from(*ino != ROOT) {
                let text = format!("too many directory entries for a directory: {names}");
                wrong(*ino, FindingKind::Name, text);
            }
            let parent = match *ino {
                ROOT => ROOT,
                _ => named.map_or(0, |named| named.dir),
            };
            if is_dir && seen.links > 0 && seen.parent != parent {
                let text = format!("parent directory is {}, expected {parent}", seen.parent);
                wrong(*ino, FindingKind::Name, text);
            }
            let is_orphan = self.orphans.contains(ino);
            if is_orphan != (seen.links == 0) && !is_snapshot {
                let text = "link count and orphan list do not match";
                wrong(*ino, FindingKind::Name, text.into());
            }
        }
        for ino in &self.orphans {
            if !self.inodes.contains_key(ino) {
                wrong(
                    *ino,
                    FindingKind::Name,
                    "is on the orphan list, but does not exist".into(),
                );
            }
        }
        if !self.inodes.contains_key(&ROOT) {
            wrong(ROOT, FindingKind::Name, "root directory is missing".into());
        }
        problems.sort_by_key(|problem| problem.0);
        for (ino, kind, text) in problems {
            self.problem(kind, ino, &text);
        }
    }

    /// Checks that every directory with a name is below the root.
    fn check_ways_up(&mut self) {
        let mut below: HashSet<Ino> = HashSet::from([ROOT]);
        let mut lost: Vec<Ino> = Vec::new();
        for (ino, named) in &self.named {
            if named.kind != FileType::Directory {
                continue;
            }
            let (mut way, mut at) = (Vec::new(), *ino);
            let mut seen = HashSet::new();
            while !below.contains(&at) && seen.insert(at) {
                way.push(at);
                at = self.named.get(&at).map_or(0, |named| named.dir);
            }
            if below.contains(&at) {
                below.extend(way)
            } else {
                lost.push(*ino)
            }
        }
        lost.sort_unstable();
        for ino in lost {
            self.problem(
                FindingKind::Name,
                ino,
                "directory is not reachable from the root",
            );
        }
    }

    fn check_usage(&mut self) {
        let record = &self.state.trees[&self.tree].record;
        let counted = (self.blocks, self.inodes.len() as u64);
        if counted != (record.used_blocks, record.used_inodes) {
            let text = format!(
                "usage counters are {} blocks and {} inodes, but {} and {} were found",
                record.used_blocks, record.used_inodes, counted.0, counted.1
            );
            self.report.found(Finding {
                fileset: Some(self.name.clone()),
                ..Finding::new(FindingKind::Usage, text)
            });
        }
    }
}
