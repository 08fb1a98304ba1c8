//! One tree as its readers see it: names, links, sizes, blocks, quotas.

use super::Report;
use crate::error::Result;
use crate::key::{Ino, Item, Key, TreeId};
use crate::mapping::end_of;
use crate::names::Hasher;
use crate::namespace::ROOT;
use crate::record::{Entry, Extent, FileType, Inode, Xattr};
use crate::state::State;
use std::collections::{HashMap, HashSet};

/// A walk over one tree.
pub(super) struct Walk<'a> {
    state: &'a State,
    hasher: &'a Hasher,
    tree: TreeId,
    report: &'a mut Report,
    name: String,
    /// The inode whose items are being looked at.
    current: Option<Current>,
    /// What is known of each inode.
    inodes: HashMap<Ino, Seen>,
    /// What names say about inodes: how many there are, the type, and the directory of the last.
    named: HashMap<Ino, (u32, FileType, Ino)>,
    orphans: HashSet<Ino>,
    blocks: u64,
}

struct Seen {
    kind: FileType,
    links: u32,
    parent: Ino,
    /// Directories in it, by its entries.
    directories: u32,
}

/// An inode and what its items add up to.
struct Current {
    ino: Ino,
    inode: Inode,
    has_target: bool,
    entries: u64,
    directories: u32,
    blocks: u64,
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
            name: format!("'{}'", record.name),
            current: None,
            inodes: HashMap::new(),
            named: HashMap::new(),
            orphans: HashSet::new(),
            blocks: 0,
        }
    }

    pub fn run(mut self) -> Result<()> {
        let state = self.state;
        state.scan_tree(self.tree, |key, bytes| {
            self.item(key, bytes)?;
            Ok(true)
        })?;
        self.end_inode();
        self.check_names();
        self.check_ways_up();
        self.check_usage();
        Ok(())
    }

    fn problem(&mut self, ino: Ino, text: &str) {
        let text = format!("{}: inode {ino}: {text}", self.name);
        self.report.problem(text);
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
        let what = format!("{}: inode {ino}", self.name);
        match key.kind() {
            Some(Item::Orphan) if ino == 0 => {
                self.orphans.insert(key.place());
            }
            Some(Item::Inode) => {
                if let Some(inode) = self.report.note(&what, Inode::decode(bytes))? {
                    self.begin_inode(ino, inode);
                }
            }
            Some(_) if self.current.is_none() => self.problem(ino, "has items and no record"),
            Some(Item::Target) => self.target(bytes),
            Some(Item::Xattr) => {
                if let Some(xattr) = self.report.note(&what, Xattr::decode(bytes))? {
                    let name = [b"x", xattr.name].concat();
                    self.place(ino, key, xattr.name, name);
                }
            }
            Some(Item::Entry) => {
                if let Some(entry) = self.report.note(&what, Entry::decode(bytes))? {
                    let name = [b"e", entry.name].concat();
                    self.place(ino, key, entry.name, name);
                    self.entry(ino, &entry);
                }
            }
            Some(Item::Extent) => {
                if let Some(extent) = self.report.note(&what, Extent::decode(bytes))? {
                    self.extent(ino, key.place(), &extent);
                }
            }
            _ => self.problem(ino, "has an item of no kind"),
        }
        Ok(())
    }

    fn begin_inode(&mut self, ino: Ino, inode: Inode) {
        self.report.inodes += 1;
        if (ino & 1 == 1) != inode.is_dir() {
            self.problem(ino, "its number does not fit its type");
        }
        if ino >> 1 >= self.state.trees[&self.tree].record.next_ino {
            self.problem(ino, "its number could be given again");
        }
        self.current = Some(Current {
            ino,
            inode,
            has_target: false,
            entries: 0,
            directories: 0,
            blocks: 0,
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
        if !fits {
            self.problem(ino, "its size is not that of its target");
        }
    }

    fn place(&mut self, ino: Ino, key: Key, name: &[u8], unique: Vec<u8>) {
        let first = self.hasher.place(name);
        if !(first..first + 256).contains(&key.place()) {
            self.problem(ino, "has a name where it is not looked for");
        }
        let new = self
            .current
            .as_mut()
            .is_none_or(|current| current.names.insert(unique));
        if !new {
            self.problem(ino, "has a name twice");
        }
    }

    fn entry(&mut self, dir: Ino, entry: &Entry) {
        self.report.entries += 1;
        if let Some(current) = &mut self.current {
            current.entries += 1;
            current.directories += u32::from(entry.kind == FileType::Directory);
        }
        let named = self.named.entry(entry.ino).or_insert((0, entry.kind, dir));
        named.0 += 1;
        if named.1 != entry.kind {
            self.problem(entry.ino, "has two types");
        }
    }

    fn extent(&mut self, ino: Ino, first: u64, extent: &Extent) {
        let Some(current) = &mut self.current else {
            return;
        };
        current.blocks += u64::from(extent.blocks);
        let overlaps = first < current.reached;
        current.reached = end_of(&(first, *extent));
        if overlaps {
            self.problem(ino, "its extents overlap");
        }
    }

    fn end_inode(&mut self) {
        let Some(current) = self.current.take() else {
            return;
        };
        let Current { ino, inode, .. } = &current;
        let ino = *ino;
        self.blocks += current.blocks;
        if current.blocks != inode.blocks {
            let text = format!("counts {} blocks and has {}", inode.blocks, current.blocks);
            self.problem(ino, &text);
        }
        if current.entries != inode.entries {
            let text = format!(
                "counts {} entries and has {}",
                inode.entries, current.entries
            );
            self.problem(ino, &text);
        }
        if current.entries > 0 && !inode.is_dir() {
            self.problem(ino, "has entries and is no directory");
        }
        if current.blocks > 0 && inode.kind != FileType::File {
            self.problem(ino, "has blocks and is no file");
        }
        if current.has_target != (inode.kind == FileType::Symlink) {
            self.problem(ino, "a link without a target, or a target without a link");
        }
        let seen = Seen {
            kind: inode.kind,
            links: inode.links,
            parent: inode.parent,
            directories: current.directories,
        };
        self.inodes.insert(ino, seen);
    }

    /// Names lead to inodes, and inodes count their names.
    fn check_names(&mut self) {
        let mut problems: Vec<(Ino, String)> = Vec::new();
        for (ino, (_, _, dir)) in &self.named {
            if !self.inodes.contains_key(ino) {
                problems.push((*ino, format!("is named in {dir} and does not exist")));
            }
        }
        let is_snapshot = self.state.trees[&self.tree].record.origin != 0;
        for (ino, seen) in &self.inodes {
            let is_dir = seen.kind == FileType::Directory;
            let (names, kind, dir) = self.named.get(ino).copied().unwrap_or((0, seen.kind, 0));
            if kind != seen.kind {
                problems.push((*ino, "is of another type than its name says".into()));
            }
            let expected = match (is_dir, *ino == ROOT || names > 0) {
                (true, true) => 2 + seen.directories,
                (true, false) => 0,
                (false, _) => names,
            };
            if seen.links != expected {
                problems.push((
                    *ino,
                    format!("counts {} links and has {expected}", seen.links),
                ));
            }
            if is_dir && names > u32::from(*ino != ROOT) {
                problems.push((*ino, format!("a directory with {names} names")));
            }
            let parent = if *ino == ROOT { ROOT } else { dir };
            if is_dir && seen.links > 0 && seen.parent != parent {
                let text = format!("says it is in {}, and is in {parent}", seen.parent);
                problems.push((*ino, text));
            }
            let is_orphan = self.orphans.contains(ino);
            if is_orphan != (seen.links == 0) && !is_snapshot {
                problems.push((
                    *ino,
                    "no name, or one, and its place among the orphans differ".into(),
                ));
            }
        }
        for ino in self
            .orphans
            .iter()
            .filter(|ino| !self.inodes.contains_key(ino))
        {
            problems.push((*ino, "an orphan that does not exist".into()));
        }
        if !self.inodes.contains_key(&ROOT) {
            problems.push((ROOT, "there is no root".into()));
        }
        problems.sort();
        for (ino, text) in problems {
            self.problem(ino, &text);
        }
    }

    /// Every directory with a name is below the root.
    fn check_ways_up(&mut self) {
        let mut below: HashSet<Ino> = HashSet::from([ROOT]);
        let mut lost: Vec<Ino> = Vec::new();
        for (ino, (_, kind, _)) in &self.named {
            if *kind != FileType::Directory {
                continue;
            }
            let (mut way, mut at) = (Vec::new(), *ino);
            let mut seen = HashSet::new();
            while !below.contains(&at) && seen.insert(at) {
                way.push(at);
                at = self.named.get(&at).map_or(0, |named| named.2);
            }
            match below.contains(&at) {
                true => below.extend(way),
                false => lost.push(*ino),
            }
        }
        lost.sort_unstable();
        for ino in lost {
            self.problem(ino, "a directory that is not below the root");
        }
    }

    fn check_usage(&mut self) {
        let record = &self.state.trees[&self.tree].record;
        let counted = (self.blocks, self.inodes.len() as u64);
        if counted != (record.used_blocks, record.used_inodes) {
            let text = format!(
                "{}: counts {} blocks and {} inodes, and has {} and {}",
                self.name, record.used_blocks, record.used_inodes, counted.0, counted.1
            );
            self.report.problem(text);
        }
    }
}
