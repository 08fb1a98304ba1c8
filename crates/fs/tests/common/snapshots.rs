//! Snapshots of the file system and of its model.

use super::client::Client;
use super::model::{Id, Kind, Model, ROOT};
use super::pair::{Pair, describe};
use fs::{Difference, DifferenceKind, Fileset, Fs, Ino, Kind as ErrorKind, TreeId};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A snapshot with the state of the model at that time.
pub struct Taken {
    pub id: TreeId,
    pub model: Model,
    inodes: HashMap<Id, Ino>,
    held: bool,
}

/// Largest number of snapshots at a time.
const MOST: usize = 5;

/// The snapshots of a [`Pair`], oldest first.
#[derive(Default)]
pub struct Snapshots {
    pub taken: Vec<Taken>,
    count: usize,
}

impl Snapshots {
    fn name(&mut self) -> String {
        self.count += 1;
        format!("s{}", self.count)
    }

    fn note(&mut self, pair: &Pair, name: &str) {
        let id = pair.fs.fileset_named(name).expect("it was taken").id();
        self.taken.push(Taken {
            id,
            model: pair.model.frozen(),
            inodes: pair.inodes.clone(),
            held: false,
        });
    }

    /// Takes, reads, compares, holds, clones or removes a snapshot while files are open and written.
    pub fn step(&mut self, pair: &mut Pair) {
        let count = self.taken.len() as u64;
        let which = pair.random.below(count.max(1)) as usize;
        match pair.random.below(8) {
            0..=2 if self.taken.len() < MOST => {
                pair.client
                    .write_all_out(&mut pair.random)
                    .expect("it is written");
                let (of, name) = (pair.fileset().id(), self.name());
                pair.fs.snapshot(of, &name).expect("a snapshot");
                self.note(pair, &name);
            }
            _ if self.taken.is_empty() => {}
            3 => self.remove(pair, which),
            4 => {
                let one = &mut self.taken[which];
                one.held = !one.held;
                pair.fs.hold(one.id, one.held).expect("a flag");
            }
            5 => {
                let other = pair.random.below(count) as usize;
                let (one, two) = (&self.taken[which], &self.taken[other]);
                compare_difference(&pair.fs, (one.id, &one.model), (two.id, &two.model));
                pair.client
                    .write_all_out(&mut pair.random)
                    .expect("it is written");
                let now = (pair.fileset().id(), &pair.model.frozen());
                compare_difference(&pair.fs, (one.id, &one.model), now);
                compare_difference(&pair.fs, now, (one.id, &one.model));
            }
            6 => self.clone_one(pair, which),
            _ => self.taken[which].compare(&pair.fs),
        }
    }

    fn remove(&mut self, pair: &Pair, which: usize) {
        let one = &self.taken[which];
        let data = || pair.fs.check().expect("it can be checked").data_blocks;
        let (before, only) = (data(), pair.fs.snapshot_blocks(one.id).expect("its space"));
        let removed = pair.fs.remove_fileset(one.id);
        if one.held {
            let error = removed.expect_err("it is held");
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
            return;
        }
        removed.expect("it is removed");
        assert_eq!(before - data(), only, "freed blocks");
        self.taken.remove(which);
    }

    /// Clones a snapshot, and changes the clone, which changes nothing else.
    fn clone_one(&self, pair: &mut Pair, which: usize) {
        let one = &self.taken[which];
        let clone = pair.fs.clone_snapshot(one.id, "clone").expect("a clone");
        one.compare_with(clone.clone());
        let mut client = Client::new(clone.clone());
        for (number, id) in one.model.nodes.keys().enumerate() {
            let node = one.model.node(*id);
            if node.kind == Kind::File && number.is_multiple_of(2) && !node.data.is_empty() {
                let changed = client.write(one.inodes[id], 0, &[0xcc; 5000]);
                changed.expect("it is written");
            }
        }
        client.sync(&mut pair.random).expect("it is written out");
        drop(client);
        one.compare(&pair.fs);
        pair.fs.remove_fileset(clone.id()).expect("it is removed");
        one.compare(&pair.fs);
    }

    /// Rolls back to a snapshot, with or without a way back. No file is open.
    pub fn roll_back(&mut self, pair: &mut Pair) {
        let count = self.taken.len() as u64;
        if count == 0 {
            return;
        }
        pair.client
            .write_all_out(&mut pair.random)
            .expect("it is written");
        let which = pair.random.below(count) as usize;
        let keep = (pair.random.below(2) == 0).then(|| self.name());
        let to = self.taken[which].id;
        pair.fs.rollback(to, keep.as_deref()).expect("a rollback");
        if let Some(name) = keep {
            self.note(pair, &name);
        }
        let Taken { model, inodes, .. } = &self.taken[which];
        pair.model.roll_back(model);
        pair.inodes = inodes.clone();
        pair.inodes
            .retain(|id, _| pair.model.nodes.contains_key(id));
        pair.compare_all();
        let now = (pair.fileset().id(), &pair.model);
        let same = differences(&pair.fs, to, now.0);
        assert!(same.is_empty(), "{same:?}");
    }

    /// Reads all snapshots.
    pub fn compare_all(&self, fs: &Fs) {
        self.taken.iter().for_each(|one| one.compare(fs));
    }
}

impl Taken {
    /// Compares all of the snapshot with the model.
    pub fn compare(&self, fs: &Fs) {
        self.compare_with(fs.fileset(self.id).expect("a snapshot"));
    }

    fn compare_with(&self, fileset: Fileset) {
        assert_eq!(describe(&fileset), self.model.describe());
        let mut client = Client::new(fileset);
        for id in self.model.nodes.keys() {
            let node = self.model.node(*id);
            if node.kind == Kind::File {
                let data = client.read(self.inodes[id], 0, u64::MAX / 2);
                assert!(data.expect("readable") == node.data, "content of node {id}");
            }
        }
    }
}

pub fn differences(fs: &Fs, first: TreeId, second: TreeId) -> Vec<Difference> {
    let mut all = Vec::new();
    fs.diff(first, second, |one| {
        all.push(one);
        Ok(true)
    })
    .expect("a difference");
    all
}

/// Names of a state: directory, name and node, with the path.
fn names(model: &Model) -> BTreeMap<(Id, Vec<u8>, Id), Vec<u8>> {
    let mut names = BTreeMap::new();
    let mut below = vec![(ROOT, Vec::new())];
    while let Some((dir, path)) = below.pop() {
        for (name, id) in model.entries(dir).expect("a directory") {
            let path = match &path[..] {
                [] => name.clone(),
                path => [path, b"/", name].concat(),
            };
            if model.is_dir(*id) {
                below.push((*id, path.clone()));
            }
            names.insert((dir, name.clone(), *id), path);
        }
    }
    names
}

/// Compares the difference of two states with that of their models.
fn compare_difference(fs: &Fs, one: (TreeId, &Model), two: (TreeId, &Model)) {
    let all = differences(fs, one.0, two.0);
    let (before, after) = (names(one.1), names(two.1));
    let missing = |from: &BTreeMap<_, Vec<u8>>, to: &BTreeMap<_, Vec<u8>>| {
        let own = from.iter().filter(|(name, _)| !to.contains_key(*name));
        own.map(|(_, path)| path.clone()).collect::<BTreeSet<_>>()
    };
    let (lost, gained) = (missing(&before, &after), missing(&after, &before));
    // A replaced file is reported as changed.
    let files = |names: &BTreeMap<(Id, Vec<u8>, Id), Vec<u8>>, model: &Model| {
        let own = names.iter().filter(|((_, _, id), _)| !model.is_dir(*id));
        own.map(|(_, path)| path.clone()).collect::<BTreeSet<_>>()
    };
    let replaced: BTreeSet<Vec<u8>> = {
        let both: BTreeSet<_> = lost.intersection(&gained).cloned().collect();
        let (old, new) = (files(&before, one.1), files(&after, two.1));
        let is_file = |path: &&Vec<u8>| old.contains(*path) && new.contains(*path);
        both.iter().filter(is_file).cloned().collect()
    };
    let paths = |kind| {
        let own = all.iter().filter(move |d| d.kind == kind);
        own.map(|d| d.path.clone()).collect::<BTreeSet<_>>()
    };
    let renamed = all.iter().filter(|d| d.kind == DifferenceKind::Renamed);
    let from: BTreeSet<Vec<u8>> = renamed.filter_map(|d| d.from.clone()).collect();
    let without = |set: BTreeSet<Vec<u8>>| &set - &replaced;
    let shown_lost = without(&paths(DifferenceKind::Removed) | &from);
    let shown_gained = without(&paths(DifferenceKind::Created) | &paths(DifferenceKind::Renamed));
    assert_eq!(shown_lost, without(lost), "lost");
    assert_eq!(shown_gained, without(gained), "gained");
    let ids: BTreeMap<&Vec<u8>, Id> = after.iter().map(|(name, path)| (path, name.2)).collect();
    let shown = |of: fn(&Difference) -> bool| -> BTreeSet<Id> {
        let own = all.iter().filter(|d| of(d));
        own.filter_map(|d| match &d.path[..] {
            [] => Some(ROOT),
            _ => ids.get(&d.path).copied(),
        })
        .collect()
    };
    let (content, attributes) = (shown(|d| d.content), shown(|d| d.attributes));
    for (id, new) in &two.1.nodes {
        let Some(old) = one.1.nodes.get(id) else {
            continue;
        };
        if old.data != new.data {
            assert!(content.contains(id), "content of {id}");
        }
        let shown =
            |node: &super::model::Node| (node.permissions, node.uid, node.gid, node.xattrs.clone());
        if shown(old) != shown(new) {
            assert!(attributes.contains(id), "attributes of {id}");
        }
    }
}
