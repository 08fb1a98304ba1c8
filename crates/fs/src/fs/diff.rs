//! The difference between two states of a fileset: snapshots of it, or its present state.
//!
//! The layers between the two contain exactly the items that have changed, so the work is
//! proportional to the change, plus the entries of the directories that contain changed files. A
//! file with several names is reported under those that have changed, or else under one of them.

use crate::error::{Error, Kind, Result};
use crate::fileset::Fileset;
use crate::format::key::{Ino, Item, Key, TreeId};
use crate::format::record::{Entry, FileType, Inode};
use crate::fs::Fs;
use crate::metadata::op::Op;
use crate::metadata::state::State;
use crate::names::directory::{AFTER_DOTS, DEPTH_MAX, ROOT};
use std::collections::hash_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Number of items that are examined before others may change the metadata.
const STEP_ITEMS: usize = 1000;

/// Way in which a path differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DifferenceKind {
    /// The path exists only in the second state.
    Created,
    /// The path exists only in the first state.
    Removed,
    /// The same file has another path.
    Renamed,
    /// The path exists in both states, with other content or other attributes.
    Changed,
}

/// Difference between two states of a fileset.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// Path from the root, without a slash at the start: in the second state, except for a removed
    /// file.
    pub path: Vec<u8>,
    /// Kind of the difference.
    pub kind: DifferenceKind,
    /// Path in the first state of a renamed file.
    pub from: Option<Vec<u8>>,
    /// Whether it is a directory.
    pub directory: bool,
    /// Whether the content has changed. False for a directory, and for a file that only one of the
    /// states has; a created path may be another name of a changed file.
    pub content: bool,
    /// Whether mode, owner, time of modification or extended attributes have changed, likewise.
    pub attributes: bool,
}

/// Name of a file in one of the states.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Named {
    dir: Ino,
    name: Vec<u8>,
    directory: bool,
}

/// Changes of one inode.
#[derive(Default)]
struct Changes {
    /// Names that only the first or only the second state has.
    lost: Vec<Named>,
    gained: Vec<Named>,
    content: bool,
    attributes: bool,
    /// Whether both states have the inode.
    in_both: bool,
}

impl Changes {
    /// Reports whether the file has changed, and no difference in its names can say so.
    fn is_same_name(&self) -> bool {
        self.in_both && self.gained.is_empty() && (self.content || self.attributes)
    }

    fn difference(&self, kind: DifferenceKind, path: Vec<u8>, directory: bool) -> Difference {
        Difference {
            path,
            kind,
            from: None,
            directory,
            content: self.in_both && self.content,
            attributes: self.in_both && self.attributes,
        }
    }
}

impl Fs {
    /// Compares two states of a fileset: snapshots of it, or the fileset itself. Passes the
    /// differences, in the order of their paths, to `take` until that returns `false`. The caller
    /// has already had the caches write back their pages.
    ///
    /// # Errors
    /// [`Kind::Invalid`]: they do not belong to the same fileset.
    pub fn diff(
        &self,
        first: TreeId,
        second: TreeId,
        mut take: impl FnMut(Difference) -> Result<bool>,
    ) -> Result<()> {
        let found = self.differences(first, second).map_err(|error| {
            let changes = |id| self.inner().read().origin_of(id) == id;
            let kinds = [Kind::Stale, Kind::NotFound, Kind::Corrupt];
            if kinds.contains(&error.kind()) && (changes(first) || changes(second)) {
                let text = "the fileset may have changed at the same time; compare two snapshots";
                return Error::new(error.kind(), format!("{error}: {text}"));
            }
            error
        });
        for difference in found? {
            if !take(difference)? {
                break;
            }
        }
        Ok(())
    }

    fn differences(&self, first: TreeId, second: TreeId) -> Result<BTreeSet<Difference>> {
        let (older, younger) = self.in_order(first, second)?;
        let fs = self.inner();
        if !fs.options.read_only && fs.read().origin_of(younger) == younger {
            // The records of files that were written last are newer in memory.
            let mut op = Op::begin_any(fs, younger)?;
            op.materialize()?;
            op.finish();
        }
        let mut changes: BTreeMap<Ino, Changes> = BTreeMap::new();
        let mut from = Some(Key::inode(0, 1).0);
        while let Some(at) = from.filter(|_| older != younger) {
            let state = self.inner().read();
            let keys = state.keys_between((older, younger), at, STEP_ITEMS)?;
            let full = keys.len() == STEP_ITEMS;
            from = keys.last().copied().filter(|_| full).and_then(Key::next);
            for key in keys {
                state.compare(key, (older, younger), &mut changes)?;
            }
        }
        for one in changes.values_mut() {
            if older != first {
                std::mem::swap(&mut one.lost, &mut one.gained);
            }
            // An entry may have another place because of others with the same hash.
            let gained = one.gained.clone();
            one.gained.retain(|named| !one.lost.contains(named));
            one.lost.retain(|named| !gained.contains(named));
        }
        let (mut before, mut after) = (Paths::new(self, first)?, Paths::new(self, second)?);
        // Files in both states whose names are the same.
        let kept = changes.iter().filter(|(_, one)| one.is_same_name());
        let kept: Vec<Ino> = kept.map(|(ino, _)| *ino).collect();
        let kept = after.of_inodes(&kept)?;
        let mut all = BTreeSet::new();
        for (ino, one) in &changes {
            let both = one.lost.len().min(one.gained.len());
            let (lost, gained) = (&one.lost[both..], &one.gained[both..]);
            for (old, new) in one.lost.iter().zip(&one.gained) {
                let from = Some(before.of(old)?);
                let renamed =
                    one.difference(DifferenceKind::Renamed, after.of(new)?, new.directory);
                all.insert(Difference { from, ..renamed });
            }
            for old in lost {
                let path = before.of(old)?;
                all.insert(Difference {
                    content: false,
                    attributes: false,
                    ..one.difference(DifferenceKind::Removed, path, old.directory)
                });
            }
            for new in gained {
                let path = after.of(new)?;
                all.insert(one.difference(DifferenceKind::Created, path, new.directory));
            }
            if let Some((path, directory)) = kept.get(ino) {
                let path = path.clone();
                all.insert(one.difference(DifferenceKind::Changed, path, *directory));
            }
        }
        Ok(replacements_joined(all))
    }

    /// Sorts two states of the same fileset by their time.
    fn in_order(&self, first: TreeId, second: TreeId) -> Result<(TreeId, TreeId)> {
        let state = self.inner().read();
        let time = |id: TreeId| -> Result<_> {
            match state.tree(id)?.record.origin {
                0 => Ok((id, TreeId::MAX)),
                origin => Ok((origin, id)),
            }
        };
        let (one, two) = (time(first)?, time(second)?);
        if one.0 != two.0 {
            let text = "they are not a fileset and its snapshot, or two snapshots of one fileset";
            return Err(Error::new(Kind::Invalid, text));
        }
        Ok(if one.1 <= two.1 {
            (first, second)
        } else {
            (second, first)
        })
    }
}

/// Reports a file that was removed, and another one created under the same name, as one whose
/// content has changed.
fn replacements_joined(all: BTreeSet<Difference>) -> BTreeSet<Difference> {
    use DifferenceKind::{Changed, Created, Removed};
    let paths = |kind| -> HashSet<&[u8]> {
        let own = all.iter().filter(|one| one.kind == kind && !one.directory);
        own.map(|one| &one.path[..]).collect()
    };
    let (created, removed) = (paths(Created), paths(Removed));
    let replaced: HashSet<&[u8]> = created.intersection(&removed).copied().collect();
    let joined = all.iter().filter_map(|one| match one.kind {
        kind @ (Created | Removed) if !one.directory && replaced.contains(&one.path[..]) => {
            let content = true;
            let same = one.clone();
            (kind == Created).then_some(Difference {
                kind: Changed,
                content,
                ..same
            })
        }
        _ => Some(one.clone()),
    });
    joined.collect()
}

impl State {
    /// Collects the first keys, from one on, whose items may differ between two states. Their layer
    /// is 0.
    pub(crate) fn keys_between(
        &self,
        (older, younger): (TreeId, TreeId),
        from: Key,
        most: usize,
    ) -> Result<Vec<Key>> {
        let record = &self.tree(older)?.record;
        let of = record.origin;
        let mut keys = self.kept_since(of, older, Some(younger), from, most)?;
        let newer = Key::inode(of, record.next_ino << 1)
            .0
            .max(from.in_layer(of));
        // Inodes that the older state does not have: their items are in its layers only if a later
        // snapshot kept them.
        if younger != of {
            keys.extend(self.kept_since(of, younger, None, newer, most)?);
        }
        let mut count = 0;
        self.items.scan(newer, Key::layer(of).1, |key, _| {
            keys.insert(key);
            count += 1;
            Ok(count < most)
        })?;
        Ok(keys
            .into_iter()
            .take(most)
            .map(|key| key.in_layer(0))
            .collect())
    }

    /// Records the change of one item.
    fn compare(
        &self,
        key: Key,
        (older, younger): (TreeId, TreeId),
        changes: &mut BTreeMap<Ino, Changes>,
    ) -> Result<()> {
        let Some(kind) = key.kind() else {
            return Ok(());
        };
        let of = self.origin_of(older);
        let read = |tree| self.get_key(tree, key.in_layer(of), |bytes| Ok(bytes.to_vec()));
        let (old, new) = (read(older)?, read(younger)?);
        if old == new {
            return Ok(());
        }
        match kind {
            Item::Inode => {
                if let (Some(old), Some(new)) = (old, new) {
                    let (old, new) = (Inode::decode(&old)?, Inode::decode(&new)?);
                    let own = changes.entry(key.object).or_default();
                    own.in_both = true;
                    own.content |= !old.is_dir() && old.size != new.size;
                    let shown = |inode: &Inode| {
                        let Inode {
                            permissions,
                            uid,
                            gid,
                            rdev,
                            flags,
                            modified,
                            ..
                        } = *inode;
                        // Each change of its entries changes the time of a directory.
                        let modified = Some(modified).filter(|_| !inode.is_dir());
                        (permissions, uid, gid, rdev, flags, modified)
                    };
                    own.attributes |= shown(&old) != shown(&new);
                }
            }
            Item::Extent | Item::Chunk | Item::Target => {
                changes.entry(key.object).or_default().content = true;
            }
            Item::Xattr => changes.entry(key.object).or_default().attributes = true,
            Item::Entry => {
                let entry = |bytes: &Option<Vec<u8>>| -> Result<Option<(Ino, Named)>> {
                    let entry = bytes.as_deref().map(Entry::decode).transpose()?;
                    Ok(entry.map(|entry| {
                        let named = Named {
                            dir: key.object,
                            name: entry.name.to_vec(),
                            directory: entry.kind == FileType::Directory,
                        };
                        (entry.ino, named)
                    }))
                };
                if let Some((ino, named)) = entry(&old)? {
                    changes.entry(ino).or_default().lost.push(named);
                }
                if let Some((ino, named)) = entry(&new)? {
                    changes.entry(ino).or_default().gained.push(named);
                }
            }
            Item::Orphan | Item::UserAccount | Item::GroupAccount => {}
        }
        Ok(())
    }

    /// Returns the fileset of a fileset or of a snapshot.
    fn origin_of(&self, id: TreeId) -> TreeId {
        match self.trees.get(&id).map(|tree| tree.record.origin) {
            None | Some(0) => id,
            Some(origin) => origin,
        }
    }
}

/// Paths in one state.
struct Paths {
    fileset: Fileset,
    /// Paths of directories.
    directories: HashMap<Ino, Vec<u8>>,
    /// Entries of directories that were searched.
    names: HashMap<Ino, HashMap<Ino, Named>>,
}

impl Paths {
    fn new(fs: &Fs, id: TreeId) -> Result<Paths> {
        Ok(Paths {
            fileset: fs.fileset(id)?,
            directories: HashMap::from([(ROOT, Vec::new())]),
            names: HashMap::new(),
        })
    }

    fn of(&mut self, named: &Named) -> Result<Vec<u8>> {
        let dir = self.of_directory(named.dir)?;
        Ok(below(&dir, &named.name))
    }

    fn of_directory(&mut self, ino: Ino) -> Result<Vec<u8>> {
        let (mut way, mut at) = (Vec::new(), ino);
        while !self.directories.contains_key(&at) {
            if way.len() > DEPTH_MAX {
                return Err(Error::corrupt(format!(
                    "directory {ino}: its path is a loop"
                )));
            }
            way.push(at);
            at = self.fileset.attr(at)?.inode.parent;
        }
        for dir in way.into_iter().rev() {
            let name = self.names_in(at)?.get(&dir).map(|named| named.name.clone());
            let name = name.ok_or_else(|| {
                Error::corrupt(format!("directory {dir}: its parent has no entry for it"))
            })?;
            let path = below(&self.directories[&at], &name);
            self.directories.insert(dir, path);
            at = dir;
        }
        Ok(self.directories[&ino].clone())
    }

    /// Finds one name for each inode in a directory.
    fn names_in(&mut self, dir: Ino) -> Result<&HashMap<Ino, Named>> {
        match self.names.entry(dir) {
            Slot::Occupied(names) => Ok(names.into_mut()),
            Slot::Vacant(place) => {
                let mut names = HashMap::new();
                self.fileset.read_dir(dir, AFTER_DOTS, |entry| {
                    let directory = entry.kind == FileType::Directory;
                    let name = entry.name.to_vec();
                    names.insert(
                        entry.ino,
                        Named {
                            dir,
                            name,
                            directory,
                        },
                    );
                    Ok(true)
                })?;
                Ok(place.insert(names))
            }
        }
    }

    /// Finds a path for each of the inodes; one without a name, which was open when the snapshot
    /// was taken, has none.
    fn of_inodes(&mut self, inodes: &[Ino]) -> Result<HashMap<Ino, (Vec<u8>, bool)>> {
        let mut found = HashMap::new();
        let mut missing: HashSet<Ino> = HashSet::new();
        for &ino in inodes {
            if ino == ROOT {
                found.insert(ROOT, (Vec::new(), true));
                continue;
            }
            let inode = match self.fileset.attr(ino) {
                Ok(attr) => attr.inode,
                Err(error) if error.kind() == Kind::Stale => continue,
                Err(error) => return Err(error),
            };
            // The directory in which it got its latest name may no longer exist.
            let names = match self.names_in(inode.parent) {
                Ok(names) => names.get(&ino).cloned(),
                Err(error) if matches!(error.kind(), Kind::Stale | Kind::NotDirectory) => None,
                Err(error) => return Err(error),
            };
            match names {
                Some(named) => {
                    let path = self.of(&named)?;
                    found.insert(ino, (path, named.directory));
                }
                None if inode.links > 0 => drop(missing.insert(ino)),
                None => {}
            }
        }
        // Files with several names, of which the latest one is gone.
        let mut directories = vec![ROOT];
        while let Some(dir) = directories.pop().filter(|_| !missing.is_empty()) {
            let names: Vec<(Ino, Named)> = {
                let all = self.names_in(dir)?.iter();
                all.map(|(ino, named)| (*ino, named.clone())).collect()
            };
            for (ino, named) in names {
                if named.directory {
                    directories.push(ino);
                } else if missing.remove(&ino) {
                    let path = self.of(&named)?;
                    found.insert(ino, (path, false));
                }
            }
        }
        Ok(found)
    }
}

fn below(dir: &[u8], name: &[u8]) -> Vec<u8> {
    match dir {
        [] => name.to_vec(),
        dir => [dir, b"/", name].concat(),
    }
}
