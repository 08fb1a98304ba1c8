//! The repair of one fileset: names, links and counts.
//!
//! Invalid items are removed first; then the tree of directories is followed from the root, and
//! unreachable inodes get a name in `lost+found`; finally all counts are corrected.

use super::super::finding::{Finding, FindingKind, Findings};
use super::super::meter::Meter;
use super::Repair;
use crate::data::extents::end_of;
use crate::error::{Error, Kind, Result};
use crate::format::account::Owner;
use crate::format::chunk::{CHUNK_BLOCKS, Chunk};
use crate::format::flags::InodeFlags;
use crate::format::key::{Ino, Item, Key, PLACE_MAX, TreeId};
use crate::format::name_hash::Hasher;
use crate::format::record::{Entry, Extent, FileType, Inode, Time, Xattr};
use crate::metadata::op::Op;
use crate::metadata::overlay::Prior;
use crate::metadata::state::State;
use crate::names::directory::ROOT;
use crate::names::slots::Slot;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

/// Directory for inodes without a name.
const LOST_AND_FOUND: &[u8] = b"lost+found";

/// Entry of a directory, with its location.
#[derive(Debug, Clone)]
struct Name {
    dir: Ino,
    place: u64,
    ino: Ino,
    kind: FileType,
    name: Vec<u8>,
}

/// Inode, with the totals of its items.
struct Found {
    inode: Inode,
    blocks: u64,
    target: Option<u64>,
}

/// Fileset under repair.
struct Tree<'a, 'b> {
    op: &'a mut Op<'b>,
    hasher: &'a Hasher,
    id: TreeId,
    name: String,
    repair: &'a mut Repair,
    inodes: BTreeMap<Ino, Found>,
    names: Vec<Name>,
    orphans: BTreeSet<Ino>,
}

/// Repairs one fileset.
pub(super) fn repair(
    op: &mut Op,
    hasher: &Hasher,
    id: TreeId,
    repair: &mut Repair,
    meter: &mut Meter,
) -> Result<()> {
    let record = op.state().tree(id)?.record.clone();
    let first = repair.done.len();
    meter.begin(meter.of_tree(record.used_inodes));
    let mut tree = Tree {
        op,
        hasher,
        id,
        name: record.name,
        repair,
        inodes: BTreeMap::new(),
        names: Vec::new(),
        orphans: BTreeSet::new(),
    };
    tree.gather(meter)?;
    tree.ensure_root()?;
    tree.check_names()?;
    tree.save_unreached()?;
    tree.settle_orphans()?;
    tree.settle_inodes()?;
    tree.settle_usage();
    let Tree { repair, names, .. } = tree;
    let up: HashMap<Ino, &Name> = names.iter().map(|name| (name.ino, name)).collect();
    repair.done.add_paths(first, |ino| {
        let name = up.get(&ino)?;
        Some((name.dir, name.name.clone()))
    });
    Ok(())
}

impl Tree<'_, '_> {
    fn put_inode(&mut self, ino: Ino, inode: &Inode) -> Result<()> {
        let (item, bytes) = ((Item::Inode, 0), inode.encode());
        self.op.put(self.id, ino, item, bytes, Prior::Possible)?;
        Ok(())
    }

    fn did(&mut self, kind: FindingKind, ino: Ino, text: &str) {
        let finding = Finding::of_inode(kind, &self.name, ino, text);
        self.repair.add(finding);
    }

    fn delete(&mut self, ino: Ino, item: Item, place: u64) -> Result<()> {
        self.op.delete(self.id, ino, (item, place)).map(drop)
    }

    /// Reads all items, and removes those without an inode, or with one of the wrong type.
    fn gather(&mut self, meter: &mut Meter) -> Result<()> {
        let mut unwanted: Vec<(Key, &str)> = Vec::new();
        let (mut inodes, mut names) = (BTreeMap::new(), Vec::new());
        let mut orphans = BTreeSet::new();
        let mut reached = 0;
        let mut attributes = BTreeSet::new();
        let mut strays: Vec<(Ino, u64, Vec<u8>)> = Vec::new();
        let state: &State = self.op;
        let (from, to) = Key::layer(self.id);
        state.items.scan(from, to, |key, bytes| {
            meter.item(bytes);
            let (ino, place) = (key.object, key.place());
            let Some(item) = key.kind() else {
                return Ok(true);
            };
            if item == Item::Orphan {
                orphans.insert(place);
                return Ok(true);
            }
            if Owner::of_key(&key).is_some() {
                return Ok(true);
            }
            if item == Item::Inode {
                let inode = Inode::decode(bytes)?;
                reached = 0;
                attributes.clear();
                let found = Found {
                    inode,
                    blocks: 0,
                    target: None,
                };
                inodes.insert(ino, found);
                return Ok(true);
            }
            let Some(found) = inodes.get_mut(&ino) else {
                unwanted.push((key, "an item that has no inode record"));
                return Ok(true);
            };
            let in_extents = |run: Range<u64>| {
                let found = state.extents(self.id, ino, run);
                found.is_ok_and(|extents| !extents.is_empty())
            };
            match (item, found.inode.kind) {
                (Item::Target, FileType::Symlink) => found.target = Some(bytes.len() as u64),
                (Item::Entry, FileType::Directory) => {
                    let Entry {
                        ino: to,
                        kind,
                        name,
                    } = Entry::decode(bytes)?;
                    let name = name.to_vec();
                    names.push(Name {
                        dir: ino,
                        place,
                        ino: to,
                        kind,
                        name,
                    });
                }
                (Item::Extent, FileType::File) => {
                    let extent = Extent::decode(bytes)?;
                    if place < reached {
                        unwanted.push((key, "an extent that overlaps another"));
                    } else {
                        reached = end_of(&(place, extent));
                        found.blocks += u64::from(extent.blocks);
                    }
                }
                (Item::Chunk, FileType::File) => {
                    let chunk = Chunk::decode(bytes)?;
                    let all = place..place + CHUNK_BLOCKS;
                    if chunk.valid_within(place, &all).into_iter().any(&in_extents) {
                        unwanted.push((key, "a compressed chunk that overlaps an extent"));
                    } else {
                        found.blocks += chunk.run().blocks;
                    }
                }
                (Item::Xattr, _) => {
                    let name = Xattr::decode(bytes)?.name;
                    if !self.is_place(name, place) {
                        strays.push((ino, place, bytes.to_vec()));
                    } else if !attributes.insert(name.to_vec()) {
                        unwanted.push((key, "a duplicate attribute"));
                    }
                }
                _ => unwanted.push((key, "an item that does not fit the file type")),
            }
            Ok(true)
        })?;
        (self.inodes, self.names, self.orphans) = (inodes, names, orphans);
        for (key, what) in unwanted {
            self.did(FindingKind::Record, key.object, &format!("removed {what}"));
            if let Some(item) = key.kind() {
                self.delete(key.object, item, key.place())?;
            }
        }
        for (ino, place, bytes) in strays {
            self.did(
                FindingKind::Name,
                ino,
                "moved an attribute to its correct hash slot",
            );
            self.delete(ino, Item::Xattr, place)?;
            let name = Xattr::decode(&bytes)?.name;
            let found = self.op.xattr(self.hasher, self.id, ino, name)?;
            if let Slot::Free(place) = found {
                self.op
                    .put(self.id, ino, (Item::Xattr, place), bytes, Prior::Possible)?;
            }
        }
        self.drop_impossible()
    }

    /// Checks whether a lookup of a name finds it at this place.
    fn is_place(&self, name: &[u8], place: u64) -> bool {
        let first = self.hasher.place(name);
        (first..first + 256).contains(&place)
    }

    /// Removes inodes that contradict their number or lack their target.
    fn drop_impossible(&mut self) -> Result<()> {
        let impossible = |(ino, found): (&Ino, &Found)| {
            let kind = found.inode.kind;
            let no_target = kind == FileType::Symlink && found.target.is_none();
            let odd = (ino & 1 == 1) != (kind == FileType::Directory);
            (no_target || odd).then_some(*ino)
        };
        let gone: Vec<Ino> = self.inodes.iter().filter_map(impossible).collect();
        for ino in gone {
            self.did(
                FindingKind::Record,
                ino,
                "removed: its number does not match its file type, or it is a symbolic link \
                 without a target",
            );
            self.inodes.remove(&ino);
            self.names.retain(|name| name.dir != ino);
            let mut keys = Vec::new();
            let (from, to) = Key::inode(self.id, ino);
            self.op.items.scan(from, to, |key, _| {
                keys.push(key);
                Ok(true)
            })?;
            for key in keys {
                if let Some(item) = key.kind() {
                    self.delete(ino, item, key.place())?;
                }
            }
        }
        Ok(())
    }

    fn ensure_root(&mut self) -> Result<()> {
        if self.inodes.contains_key(&ROOT) {
            return Ok(());
        }
        self.did(
            FindingKind::Name,
            ROOT,
            "created the missing root directory",
        );
        let now = self.op.now;
        let root = directory(ROOT, now, 0o755);
        self.op.put(
            self.id,
            ROOT,
            (Item::Inode, 0),
            root.encode(),
            Prior::Possible,
        )?;
        let found = Found {
            inode: root,
            blocks: 0,
            target: None,
        };
        self.inodes.insert(ROOT, found);
        Ok(())
    }

    /// Keeps the names that refer to an inode; of a directory, only the first.
    fn check_names(&mut self) -> Result<()> {
        let mut names = std::mem::take(&mut self.names);
        // Of two entries with the same name, the one that a lookup finds counts.
        names.sort_by_key(|name| !self.is_place(&name.name, name.place));
        let mut seen: BTreeSet<(Ino, Vec<u8>)> = BTreeSet::new();
        let mut named: BTreeSet<Ino> = BTreeSet::new();
        for mut name in names {
            let kind = self.inodes.get(&name.ino).map(|found| found.inode.kind);
            let is_dir = kind == Some(FileType::Directory);
            let why = match kind {
                None => Some("a directory entry for a nonexistent inode"),
                Some(_) if name.ino == ROOT => Some("a directory entry for the root"),
                Some(_) if is_dir && named.contains(&name.ino) => {
                    Some("a second directory entry for a directory")
                }
                Some(_) if !seen.insert((name.dir, name.name.clone())) => {
                    Some("a duplicate directory entry")
                }
                Some(_) => None,
            };
            if let Some(why) = why {
                self.did(FindingKind::Name, name.dir, &format!("removed {why}"));
                self.delete(name.dir, Item::Entry, name.place)?;
                continue;
            }
            named.insert(name.ino);
            if !self.is_place(&name.name, name.place) || kind != Some(name.kind) {
                self.did(
                    FindingKind::Name,
                    name.dir,
                    "corrected the hash slot or file type of a directory entry",
                );
                self.delete(name.dir, Item::Entry, name.place)?;
                name.kind = kind.unwrap_or(name.kind);
                let (dir, ino) = (name.dir, name.ino);
                name.place = self.enter(dir, &name.name, ino, name.kind)?;
            }
            self.names.push(name);
        }
        Ok(())
    }

    /// Creates an entry. Returns its place.
    fn enter(&mut self, dir: Ino, name: &[u8], ino: Ino, kind: FileType) -> Result<u64> {
        let found = self.op.entry(self.hasher, self.id, dir, name)?;
        let Slot::Free(place) = found else {
            return Err(Error::new(
                Kind::Exists,
                "a directory entry with this name already exists",
            ));
        };
        let entry = Entry { ino, kind, name }.encode();
        self.op
            .put(self.id, dir, (Item::Entry, place), entry, Prior::Possible)?;
        Ok(place)
    }

    /// Collects the inodes that are reachable from the root.
    fn reached(&self) -> BTreeSet<Ino> {
        let mut below: HashMap<Ino, Vec<Ino>> = HashMap::new();
        for name in &self.names {
            below.entry(name.dir).or_default().push(name.ino);
        }
        let (mut reached, mut next) = (BTreeSet::from([ROOT]), vec![ROOT]);
        while let Some(dir) = next.pop() {
            for ino in below.get(&dir).into_iter().flatten() {
                if reached.insert(*ino) {
                    next.push(*ino);
                }
            }
        }
        reached
    }

    /// Names unreachable inodes in lost+found; of each subtree, only the topmost.
    fn save_unreached(&mut self) -> Result<()> {
        loop {
            let reached = self.reached();
            let named: BTreeSet<Ino> = self.names.iter().map(|name| name.ino).collect();
            let lost = |ino: &&Ino| !reached.contains(ino) && !self.orphans.contains(ino);
            let all: Vec<Ino> = self.inodes.keys().filter(lost).copied().collect();
            let mut top: Vec<Ino> = all
                .iter()
                .filter(|ino| !named.contains(ino))
                .copied()
                .collect();
            if top.is_empty() {
                // Only directories in a loop are left: detach one of them.
                let is_dir = |ino: &&Ino| *ino & 1 == 1;
                let Some(ino) = all.iter().find(is_dir).copied() else {
                    return Ok(());
                };
                let names = std::mem::take(&mut self.names);
                for name in names {
                    if name.ino == ino {
                        self.delete(name.dir, Item::Entry, name.place)?
                    } else {
                        self.names.push(name)
                    }
                }
                top.push(ino);
            }
            for ino in top {
                self.save(ino)?;
            }
        }
    }

    fn save(&mut self, ino: Ino) -> Result<()> {
        let dir = self.lost_and_found()?;
        let kind = self.inodes[&ino].inode.kind;
        let mut name = format!("#{ino}").into_bytes();
        while let Slot::Taken(..) = self.op.entry(self.hasher, self.id, dir, &name)? {
            name.push(b'+');
        }
        self.did(
            FindingKind::Name,
            ino,
            "was unreachable; moved to lost+found",
        );
        let place = self.enter(dir, &name, ino, kind)?;
        self.names.push(Name {
            dir,
            place,
            ino,
            kind,
            name,
        });
        Ok(())
    }

    /// Finds the directory for inodes without a name, creating it if needed.
    fn lost_and_found(&mut self) -> Result<Ino> {
        let (mut name, now) = (LOST_AND_FOUND.to_vec(), self.op.now);
        loop {
            match self.op.entry(self.hasher, self.id, ROOT, &name)? {
                Slot::Taken(_, (ino, FileType::Directory)) => return Ok(ino),
                Slot::Taken(..) => name.push(b'+'),
                Slot::Free(_) => break,
            }
        }
        let last = self.inodes.last_key_value().map_or(ROOT, |(ino, _)| *ino);
        let next = self.op.trees[&self.id].record.next_ino.max((last >> 1) + 1);
        let ino = next << 1 | 1;
        if ino > PLACE_MAX {
            return Err(Error::new(Kind::NoSpace, "inode numbers are exhausted"));
        }
        let inode = directory(ROOT, now, 0o700);
        self.put_inode(ino, &inode)?;
        let found = Found {
            inode,
            blocks: 0,
            target: None,
        };
        self.inodes.insert(ino, found);
        let kind = FileType::Directory;
        let place = self.enter(ROOT, &name, ino, kind)?;
        self.names.push(Name {
            dir: ROOT,
            place,
            ino,
            kind,
            name,
        });
        Ok(ino)
    }

    /// Removes entries of the orphan list that do not belong to an inode without a name.
    fn settle_orphans(&mut self) -> Result<()> {
        let named: BTreeSet<Ino> = self.names.iter().map(|name| name.ino).collect();
        for ino in std::mem::take(&mut self.orphans) {
            if self.inodes.contains_key(&ino) && !named.contains(&ino) && ino != ROOT {
                self.orphans.insert(ino);
            } else {
                self.did(
                    FindingKind::Name,
                    ino,
                    "is not an orphan; removed from the orphan list",
                );
                self.delete(0, Item::Orphan, ino)?;
            }
        }
        Ok(())
    }

    /// Corrects the counts of each inode.
    fn settle_inodes(&mut self) -> Result<()> {
        let (mut entries, mut directories, mut links, mut parents) =
            (counts(), counts(), counts(), HashMap::new());
        for name in &self.names {
            *entries.entry(name.dir).or_default() += 1;
            *links.entry(name.ino).or_default() += 1;
            if name.kind == FileType::Directory {
                *directories.entry(name.dir).or_default() += 1;
                parents.insert(name.ino, name.dir);
            }
        }
        let of = |counts: &HashMap<Ino, u64>, ino| counts.get(&ino).copied().unwrap_or_default();
        let mut wrong = Vec::new();
        for (ino, found) in &self.inodes {
            let mut inode = found.inode.clone();
            inode.blocks = found.blocks;
            inode.entries = of(&entries, *ino);
            if inode.is_dir() {
                let there = *ino == ROOT || links.contains_key(ino);
                inode.links = if there {
                    2 + of(&directories, *ino) as u32
                } else {
                    0
                };
                inode.parent = if *ino == ROOT {
                    ROOT
                } else {
                    parents.get(ino).copied().unwrap_or(inode.parent)
                };
            } else {
                inode.links = of(&links, *ino) as u32;
            }
            if let Some(bytes) = found.target {
                (inode.size, inode.disk_size) = (bytes, bytes);
            }
            if inode != found.inode {
                wrong.push((*ino, inode));
            }
        }
        for (ino, inode) in wrong {
            self.did(
                FindingKind::Count,
                ino,
                "corrected its link count, entry count, block count, size or parent",
            );
            self.put_inode(ino, &inode)?;
        }
        Ok(())
    }

    fn settle_usage(&mut self) {
        let blocks: u64 = self.inodes.values().map(|found| found.blocks).sum();
        let (inodes, last) = (self.inodes.len() as u64, self.inodes.last_key_value());
        let next = last.map_or(1, |(ino, _)| (ino >> 1) + 1);
        let Some(tree) = self.op.trees.get_mut(&self.id) else {
            return;
        };
        let record = &mut tree.record;
        let wrong =
            record.used_blocks != blocks || record.used_inodes != inodes || record.next_ino < next;
        if wrong {
            (record.used_blocks, record.used_inodes) = (blocks, inodes);
            record.next_ino = record.next_ino.max(next);
            tree.changed = true;
            self.repair.add(Finding {
                fileset: Some(self.name.clone()),
                ..Finding::new(FindingKind::Usage, "corrected the usage counters")
            });
        }
    }
}

fn counts() -> HashMap<Ino, u64> {
    HashMap::new()
}

fn directory(parent: Ino, now: Time, permissions: u32) -> Inode {
    Inode {
        kind: FileType::Directory,
        permissions,
        links: 2,
        uid: 0,
        gid: 0,
        rdev: 0,
        flags: InodeFlags::default(),
        generation: 0,
        size: 0,
        disk_size: 0,
        blocks: 0,
        data_version: 1,
        parent,
        entries: 0,
        accessed: now,
        modified: now,
        changed: now,
        created: now,
    }
}
