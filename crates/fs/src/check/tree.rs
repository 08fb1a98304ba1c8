//! Check of one tree as its readers see it: names, links, sizes, blocks, quotas.
//!
//! A file takes 24 bytes of memory during a check: 16 for its inode, and 8 for each name. Where a
//! name is, only directories remember; for files with problems, a second scan finds it.

use super::Report;
use super::finding::{Finding, FindingKind, Findings};
use super::meter::Meter;
use super::near_names::NearNames;
use crate::data::extents::end_of;
use crate::error::{Kind, Result};
use crate::format::account::AccountRecord;
use crate::format::chunk::{CHUNK_BLOCKS, Chunk, is_chunk_place};
use crate::format::key::{Ino, Item, Key, TreeId};
use crate::format::name_hash::Hasher;
use crate::format::record::{
    BLOCK_BYTES, Entry, Extent, FILE_SIZE_MAX, FileType, Inode, TARGET_MAX, Xattr,
};
use crate::metadata::state::State;
use crate::names::directory::ROOT;
use foldhash::{HashMap, HashSet};
use std::mem::take;

/// Walk over one tree.
pub(super) struct Walk<'a> {
    state: &'a State,
    hasher: &'a Hasher,
    tree: TreeId,
    report: &'a mut Report,
    name: String,
    /// Inode whose items are being read.
    current: Option<Current>,
    /// Names of `current` that may be equal to the next one.
    near: NearNames,
    /// Inodes seen so far, in ascending order.
    inodes: Vec<Seen>,
    /// Directories seen so far: their parents, and the numbers of subdirectories according to their
    /// entries.
    directories: HashMap<Ino, (Ino, u32)>,
    /// Inode and type of each name.
    named: Vec<Named>,
    /// Place of the first name of each directory.
    places: HashMap<Ino, Place>,
    orphans: HashSet<Ino>,
    blocks: u64,
}

/// A name, as the inode that it refers to and its type, packed into 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Named(u64);

impl Named {
    fn of(entry: &Entry) -> Named {
        // The numbers of valid entries are below 2^56.
        Named(entry.ino << 8 | entry.kind as u64)
    }

    fn ino(self) -> Ino {
        self.0 >> 8
    }

    fn is_of(self, kind: FileType) -> bool {
        self.0 & 0xff == kind as u64
    }
}

/// Directory of a name, and the place there.
type Place = (Ino, u64);

struct Seen {
    ino: Ino,
    links: u32,
    kind: FileType,
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
            near: NearNames::default(),
            inodes: Vec::new(),
            directories: HashMap::default(),
            named: Vec::new(),
            places: HashMap::default(),
            orphans: HashSet::default(),
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
        self.find_places(first, first_note)?;
        let Walk {
            report,
            places,
            tree,
            ..
        } = self;
        let name = |bytes: &[u8]| Ok(Entry::decode(bytes)?.name.to_vec());
        let up = |ino| {
            let (dir, place) = *places.get(&ino)?;
            let found = state.get(tree, dir, (Item::Entry, place), name);
            Some((dir, found.ok()??))
        };
        report.problems.add_paths(first, up);
        report.notes.add_paths(first_note, up);
        Ok(())
    }

    /// Finds the first names of inodes with findings, of those from the given indexes on.
    fn find_places(&mut self, first: usize, first_note: usize) -> Result<()> {
        let problems = self.report.problems.iter().skip(first);
        let found = problems.chain(self.report.notes.iter().skip(first_note));
        let inodes = found.filter_map(|finding| finding.inode);
        let wanted: HashSet<Ino> = inodes
            .filter(|ino| !self.places.contains_key(ino))
            .collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let (state, places) = (self.state, &mut self.places);
        state.scan_tree(self.tree, |key, bytes| {
            if key.kind() == Some(Item::Entry)
                && let Ok(entry) = Entry::decode(bytes)
                && wanted.contains(&entry.ino)
            {
                let place = (key.object, key.place());
                places.entry(entry.ino).or_insert(place);
            }
            Ok(true)
        })
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
            Some(Item::UserAccount | Item::GroupAccount) if ino == 0 => {
                self.decoded(ino, AccountRecord::decode(bytes))?;
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
                    self.place(ino, key, xattr.name);
                }
            }
            Some(Item::Entry) => {
                if let Some(entry) = self.decoded(ino, Entry::decode(bytes))? {
                    self.place(ino, key, entry.name);
                    self.entry(ino, key.place(), &entry);
                }
            }
            Some(Item::Extent) => {
                if let Some(extent) = self.decoded(ino, Extent::decode(bytes))? {
                    self.extent(ino, key.place(), &extent);
                }
            }
            Some(Item::Chunk) => {
                if let Some(chunk) = self.decoded(ino, Chunk::decode(bytes))? {
                    self.chunk(ino, key.place(), &chunk)?;
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
        });
        self.near.clear();
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

    fn place(&mut self, ino: Ino, key: Key, name: &[u8]) {
        let first = self.hasher.place(name);
        if !(first..first + 256).contains(&key.place()) {
            self.problem(
                FindingKind::Name,
                ino,
                "directory entry or attribute is in the wrong hash slot",
            );
        }
        if !self.near.is_new(&key, name) {
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
        self.named.push(Named::of(entry));
        // Directories have odd numbers.
        if entry.kind == FileType::Directory || entry.ino & 1 == 1 {
            self.places.entry(entry.ino).or_insert((dir, place));
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

    fn chunk(&mut self, ino: Ino, first: u64, chunk: &Chunk) -> Result<()> {
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        current.blocks += chunk.run().blocks;
        current.extents += 1;
        if !self.state.compression {
            let text = "has a compressed chunk, but the file system is one without compression";
            self.problem(FindingKind::Extent, ino, text);
        }
        if !is_chunk_place(first) {
            let text = "compressed chunk in an impossible place";
            self.problem(FindingKind::Extent, ino, text);
            return Ok(());
        }
        for run in chunk.valid_within(first, &(first..first + CHUNK_BLOCKS)) {
            match self.state.extents(self.tree, ino, run) {
                Ok(extents) if extents.is_empty() => {}
                // The extents themselves are reported elsewhere.
                Err(error) if error.kind() == Kind::Corrupt => {}
                Err(error) => return Err(error),
                Ok(_) => {
                    let text = "compressed chunk overlaps an extent";
                    self.problem(FindingKind::Extent, ino, text);
                    break;
                }
            }
        }
        Ok(())
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
        let (kind, links) = (inode.kind, inode.links);
        if kind == FileType::Directory {
            let directory = (inode.parent, current.directories);
            self.directories.insert(ino, directory);
        }
        self.inodes.push(Seen { ino, links, kind });
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
        let mut named = take(&mut self.named);
        named.sort_unstable();
        let mut groups = named.chunk_by(|one, two| one.ino() == two.ino()).peekable();
        let inodes = take(&mut self.inodes);
        for seen in &inodes {
            while let Some(group) = groups.next_if(|group| group[0].ino() < seen.ino) {
                self.check_types(group);
                self.is_missing(group[0].ino());
            }
            let group = groups.next_if(|group| group[0].ino() == seen.ino);
            self.check_links(seen, group.unwrap_or_default());
        }
        for group in groups {
            self.check_types(group);
            self.is_missing(group[0].ino());
        }
        let is_seen = |ino: Ino| inodes.binary_search_by_key(&ino, |seen| seen.ino).is_ok();
        let orphans = self.orphans.iter().copied();
        let mut lost: Vec<Ino> = orphans.filter(|ino| !is_seen(*ino)).collect();
        lost.sort_unstable();
        for ino in lost {
            self.problem(
                FindingKind::Name,
                ino,
                "is on the orphan list, but does not exist",
            );
        }
        if !is_seen(ROOT) {
            self.problem(FindingKind::Name, ROOT, "root directory is missing");
        }
        self.inodes = inodes;
    }

    fn is_missing(&mut self, ino: Ino) {
        let text = "does not exist, but a directory has an entry for it";
        self.problem(FindingKind::Name, ino, text);
    }

    /// Checks that the names of an inode agree on its type.
    fn check_types(&mut self, names: &[Named]) {
        if names.first() != names.last() {
            let text = "its directory entries disagree on the file type";
            self.problem(FindingKind::Name, names[0].ino(), text);
        }
    }

    /// Compares an inode with its names.
    fn check_links(&mut self, seen: &Seen, names: &[Named]) {
        let ino = seen.ino;
        self.check_types(names);
        if !names.iter().all(|name| name.is_of(seen.kind)) {
            let text = "file type does not match its directory entry";
            self.problem(FindingKind::Name, ino, text);
        }
        let directory = self.directories.get(&ino).copied();
        let names = u32::try_from(names.len()).unwrap_or(u32::MAX);
        let expected = match (directory, ino == ROOT || names > 0) {
            (Some((_, directories)), true) => 2 + directories,
            (Some(_), false) => 0,
            (None, _) => names,
        };
        if seen.links != expected {
            let text = format!("link count is {}, expected {expected}", seen.links);
            self.problem(FindingKind::Count, ino, &text);
        }
        if let Some((parent, _)) = directory {
            if names > u32::from(ino != ROOT) {
                let text = format!("too many directory entries for a directory: {names}");
                self.problem(FindingKind::Name, ino, &text);
            }
            let expected = match ino {
                ROOT => ROOT,
                _ => self.places.get(&ino).map_or(0, |place| place.0),
            };
            if seen.links > 0 && parent != expected {
                let text = format!("parent directory is {parent}, expected {expected}");
                self.problem(FindingKind::Name, ino, &text);
            }
        }
        let is_orphan = self.orphans.contains(&ino);
        let is_snapshot = self.state.trees[&self.tree].record.origin != 0;
        if is_orphan != (seen.links == 0) && !is_snapshot {
            let text = "link count and orphan list do not match";
            self.problem(FindingKind::Name, ino, text);
        }
    }

    /// Checks that every directory with a name is below the root.
    fn check_ways_up(&mut self) {
        let mut below: HashSet<Ino> = HashSet::from_iter([ROOT]);
        let mut lost: Vec<Ino> = Vec::new();
        for ino in self.places.keys() {
            let (mut way, mut at) = (Vec::new(), *ino);
            let mut seen = HashSet::default();
            while !below.contains(&at) && seen.insert(at) {
                way.push(at);
                at = self.places.get(&at).map_or(0, |place| place.0);
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
