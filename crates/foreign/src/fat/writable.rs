//! A FAT file system that can be written.
//!
//! ```text
//!   Changes ──► Inodes (numbers, clusters, sizes) ── Space (table) ── Pending (entries)
//!                                                            └── commit ──► device
//! ```
//!
//! A reader holds the lock for the time of an operation, a writer exclusively. Neither calls the
//! cache, which calls [`Changes::store`] while it writes pages back.

use super::commit::Pending;
use super::directory::{Listing, Named, UNUSED, entries_at, missing};
use super::encode::{NewName, without_dots};
use super::entry::{new_entry, now, set_accessed, set_first, set_modified};
use super::inodes::{Inode, Inodes};
use super::space::{self, Extent};
use super::{ARCHIVE, DIRECTORY, DIRECTORY_BYTES_MAX, Fat, READ_ONLY, clock};
use crate::changes::{Changes, New, SetAttr};
use crate::disk::Disk;
use crate::error::{Error, Kind, Result};
use crate::tree::{self, Attr, Entry, Node, Piece, Place, ROOT, Space, Tree};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Longest file in bytes.
const FILE_BYTES_MAX: u64 = u32::MAX as u64;
/// Number of changed blocks in memory above which they are saved: 4 MiB.
const HELD_MAX: usize = 1024;
/// Deepest directory whose parents are compared.
const DEPTH_MAX: usize = 4096;

/// An open file system.
pub(crate) struct Writable {
    fat: Fat,
    state: RwLock<State>,
    /// Uses of files by their numbers.
    uses: Mutex<HashMap<Node, u64>>,
}

pub(super) struct State {
    inodes: Inodes,
    space: space::Space,
    pub(super) pending: Pending,
}

impl Writable {
    /// Opens a file system.
    ///
    /// # Errors
    /// As [`Fat::open`]; the device cannot store single clusters.
    pub(crate) fn open(disk: &mut Disk) -> Result<Writable> {
        let fat = Fat::open(disk)?;
        let unit = disk.unit();
        if !fat.boot.sector.is_multiple_of(unit) {
            return Err(Error::unsupported(format!(
                "its sectors of {} bytes are shorter than the device's blocks of {unit} bytes, so that it can \
                 only be read; mount it with --read-only",
                fat.boot.sector
            )));
        }
        let space = space::Space::read(&fat.boot, disk)?;
        let state = State {
            inodes: Inodes::default(),
            space,
            pending: Pending::new(),
        };
        Ok(Writable {
            fat,
            state: RwLock::new(state),
            uses: Mutex::default(),
        })
    }

    fn read(&self) -> Result<RwLockReadGuard<'_, State>> {
        self.state.read().map_err(|_| broken())
    }

    fn write(&self) -> Result<RwLockWriteGuard<'_, State>> {
        self.state.write().map_err(|_| broken())
    }

    fn with_uses<T>(&self, work: impl FnOnce(&mut HashMap<Node, u64>) -> T) -> T {
        work(&mut self.uses.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_used(&self, node: Node) -> bool {
        self.with_uses(|uses| uses.contains_key(&node))
    }

    /// Removes the entries of a file. Returns the file if nothing uses it.
    fn erase(&self, state: &mut State, disk: &mut Disk, named: &Named) -> Result<Option<Node>> {
        let node = state.inodes.node(named.place);
        state.load(&self.fat, disk, node, named)?;
        state.erase_entries(disk, named)?;
        state.inodes.removed(node, named.raw)?;
        Ok((!self.is_used(node)).then_some(node))
    }
}

/// The error after a panic in the middle of a change: nothing is written any more.
fn broken() -> Error {
    Error::corrupt(
        "a change of the file system has failed halfway; unmount it and run `fsck.vfat` on it",
    )
}

impl State {
    /// Writes all changes to the device.
    pub(super) fn commit(&mut self, fat: &Fat, disk: &mut Disk) -> Result<()> {
        self.pending.commit(&fat.boot, disk, &mut self.space)?;
        fat.chains.clear();
        for inode in self.inodes.iter_mut() {
            inode.was_cut = false;
        }
        Ok(())
    }

    /// Takes clusters; if none are free, those that become free by a commit.
    fn take(
        &mut self,
        fat: &Fat,
        disk: &mut Disk,
        count: u64,
        near: Option<u32>,
    ) -> Result<Vec<Extent>> {
        match self.space.take(&fat.boot, count, near) {
            Err(error) if error.kind() == Kind::NoSpace && self.space.waits() => {
                self.commit(fat, disk)?;
                self.space.take(&fat.boot, count, near)
            }
            taken => taken,
        }
    }

    /// Finds the clusters of a file whose entry is known.
    fn load(
        &mut self,
        fat: &Fat,
        disk: &mut Disk,
        node: Node,
        named: &Named,
    ) -> Result<&mut Inode> {
        self.load_raw(fat, disk, node, &named.raw)
    }

    /// Finds the clusters of a regular file.
    fn load_file(&mut self, fat: &Fat, disk: &mut Disk, node: Node) -> Result<&mut Inode> {
        if self
            .inodes
            .get(node)
            .is_some_and(|inode| inode.extents.is_some())
        {
            return self.inodes.touch(node);
        }
        if node == ROOT {
            return Err(Kind::IsDirectory.into());
        }
        let raw = fat.raw(disk, self.inodes.place(node)?)?;
        if raw[11] & DIRECTORY != 0 {
            return Err(Kind::IsDirectory.into());
        }
        self.load_raw(fat, disk, node, &raw)
    }

    fn load_raw(
        &mut self,
        fat: &Fat,
        disk: &mut Disk,
        node: Node,
        raw: &[u8; 32],
    ) -> Result<&mut Inode> {
        let inode = self.inodes.touch(node)?;
        if inode.extents.is_none() {
            let size = u32::from_le_bytes([raw[28], raw[29], raw[30], raw[31]]).into();
            let is_dir = raw[11] & DIRECTORY != 0;
            let length = if is_dir { DIRECTORY_BYTES_MAX } else { size };
            let most = length.div_ceil(fat.boot.cluster_bytes);
            let first = fat.boot.first_cluster(raw)?;
            inode.extents = Some(clusters(fat, disk, first, most, !is_dir)?);
            (inode.size, inode.saved) = if is_dir { (0, 0) } else { (size, size) };
        }
        Ok(inode)
    }

    fn erase_entries(&mut self, disk: &mut Disk, named: &Named) -> Result<()> {
        for place in named.places() {
            self.pending.set_entry(disk, place, &[UNUSED])?;
        }
        Ok(())
    }

    /// Finds or makes room for entries in a directory, and returns their places.
    pub(super) fn room(
        &mut self,
        fat: &Fat,
        disk: &mut Disk,
        dir: u64,
        count: usize,
        near: Option<u64>,
    ) -> Result<Vec<u64>> {
        let near = near.map(|place| (place, disk.unit()));
        loop {
            let listing = Listing::read(fat, disk, dir)?;
            if let Some((places, end)) = listing.unused(count, near) {
                if let Some(end) = end {
                    self.pending.set_entry(disk, end, &[0])?;
                }
                return Ok(places);
            }
            if !listing.grows {
                return Err(Error::new(Kind::NoSpace, "the directory is full"));
            }
            let last = fat.runs(disk, dir)?.last().copied();
            let last = last.map(|(at, len)| fat.boot.cluster(at + len - fat.boot.cluster_bytes));
            let taken = self.take_directory(fat, disk, &[])?;
            self.space.link(&fat.boot, disk, last, &[(taken, 1)])?;
            fat.chains.clear();
        }
    }

    /// Takes a cluster, and writes it for a directory with these entries.
    fn take_directory(&mut self, fat: &Fat, disk: &mut Disk, entries: &[[u8; 32]]) -> Result<u32> {
        let cluster = self.take(fat, disk, 1, None)?[0].0;
        let mut bytes = entries.concat();
        if let Some(own) = bytes.get_mut(..32)
            && let Some(own) = own.as_mut_array::<32>()
        {
            set_first(own, cluster);
        }
        bytes.resize(fat.boot.cluster_bytes as usize, 0);
        let at = fat.boot.offset(cluster)?;
        let written = self.pending.write_unused(&fat.boot, disk, at, &bytes);
        if written.is_err() {
            self.space.free_later([(cluster, 1)]);
        }
        written.map(|()| cluster)
    }

    /// Writes the entries of a name to a directory, and returns the place of the short one.
    fn add_name(
        &mut self,
        disk: &mut Disk,
        places: &[u64],
        long: &[[u8; 32]],
        raw: &[u8; 32],
    ) -> Result<u64> {
        let mut last = 0;
        for (place, raw) in places.iter().zip(long.iter().chain([raw])) {
            self.pending.set_entry(disk, *place, raw)?;
            last = *place;
        }
        Ok(last)
    }

    /// Updates the time of a directory whose names have changed.
    fn names_changed(&mut self, fat: &Fat, disk: &mut Disk, dir: u64) -> Result<()> {
        if dir == ROOT {
            return Ok(());
        }
        let mut raw = fat.raw(disk, dir)?;
        set_modified(&mut raw, now());
        self.pending.set_entry(disk, dir, &raw)
    }

    /// Returns the first cluster of a directory as its children name it.
    fn parent_cluster(fat: &Fat, disk: &mut Disk, dir: u64) -> Result<u32> {
        match dir {
            ROOT => Ok(0),
            place => fat.boot.first_cluster(&fat.raw(disk, place)?),
        }
    }

    /// Reports whether the directory with this first cluster is `dir` or one of its parents.
    fn contains(fat: &Fat, disk: &mut Disk, cluster: u32, dir: u64) -> Result<bool> {
        let mut at = State::parent_cluster(fat, disk, dir)?;
        for _ in 0..DEPTH_MAX {
            if at == 0 || at == cluster {
                return Ok(at == cluster);
            }
            let mut raw = [0; 32];
            disk.read(fat.boot.offset(at)? + 32, &mut raw)?;
            at = fat.boot.first_cluster(&raw)?;
        }
        Err(Error::corrupt("the parents of a directory do not end"))
    }

    fn cut(&mut self, fat: &Fat, disk: &mut Disk, node: Node, size: u64) -> Result<()> {
        self.load_file(fat, disk, node)?;
        let inode = self.inodes.touch(node)?;
        if size > inode.size {
            return Err(Kind::Invalid.into());
        }
        let kept = size.div_ceil(fat.boot.cluster_bytes);
        let extents = inode.extents.get_or_insert_default();
        let rest = space::split(extents, kept);
        if let (Some((first, count)), false) = (extents.last(), rest.is_empty()) {
            self.space.end_later(first + count - 1);
            inode.was_cut = true;
        }
        self.space.free_later(rest);
        inode.size = size;
        inode.stored.store(size, Relaxed);
        inode.modified = Some(now());
        if let Some(place) = inode.place
            && inode.saved > size
        {
            inode.saved = size;
            let mut raw = fat.raw(disk, place)?;
            raw[28..].copy_from_slice(&(size as u32).to_le_bytes());
            if size == 0 {
                set_first(&mut raw, 0);
            }
            self.pending.set_entry(disk, place, &raw)?;
        }
        Ok(())
    }

    /// Puts the size of a file into its entry.
    fn save_size(
        &mut self,
        fat: &Fat,
        disk: &mut Disk,
        (node, size, writes): (Node, u64, u64),
    ) -> Result<()> {
        let Ok(inode) = self.inodes.touch(node) else {
            return Ok(());
        };
        let (Some(place), Some(extents)) = (inode.place, &inode.extents) else {
            return Ok(());
        };
        let size = size.min(inode.size);
        let first = extents.first().filter(|_| size > 0);
        let mut raw = fat.raw(disk, place)?;
        let before = raw;
        raw[28..].copy_from_slice(&(size as u32).to_le_bytes());
        set_first(&mut raw, first.map_or(0, |(cluster, _)| *cluster));
        if let Some(time) = inode.modified.take() {
            set_modified(&mut raw, time);
            raw[11] |= ARCHIVE;
        }
        inode.saved = size;
        inode.saved_writes = writes;
        if raw != before {
            self.pending.set_entry(disk, place, &raw)?;
        }
        Ok(())
    }
}

/// Follows a chain of clusters. A file must have exactly `most`, a directory at most as many.
fn clusters(fat: &Fat, disk: &mut Disk, first: u32, most: u64, all: bool) -> Result<Vec<Extent>> {
    let mut extents = Vec::new();
    let mut table = fat.boot.table();
    let mut next = (first != 0).then_some(first);
    for _ in 0..most {
        let Some(cluster) = next else {
            if all {
                return Err(Error::corrupt("the clusters of a file end early"));
            }
            return Ok(extents);
        };
        fat.boot.offset(cluster)?;
        space::add(&mut extents, cluster);
        next = table.next(disk, cluster)?;
    }
    match next {
        None => Ok(extents),
        Some(_) => Err(Error::corrupt(
            "a file has more clusters than its length needs; run `fsck.vfat` on the file system",
        )),
    }
}

/// Finds the pieces of a range of a file.
fn pieces(fat: &Fat, extents: &[Extent], range: &Range<u64>) -> Result<Vec<Piece>> {
    let (mut pieces, mut start) = (Vec::new(), 0);
    for (first, count) in extents {
        let end = start + u64::from(*count) * fat.boot.cluster_bytes;
        let (from, to) = (range.start.max(start), range.end.min(end));
        if from < to {
            let place = Place::Device(fat.boot.offset(*first)? + (from - start));
            tree::add(
                &mut pieces,
                Piece {
                    len: to - from,
                    place,
                },
            );
        }
        start = end;
    }
    Ok(pieces)
}

impl Tree for Writable {
    fn format(&self) -> &'static str {
        self.fat.format()
    }

    fn label(&self) -> String {
        self.fat.label()
    }

    fn uuid(&self) -> String {
        self.fat.uuid()
    }

    fn space(&self) -> Space {
        let free = self.read().map_or(0, |state| state.space.free());
        Space {
            free,
            available: free,
            ..self.fat.space()
        }
    }

    fn attr(&self, disk: &mut Disk, node: Node) -> Result<Attr> {
        let state = self.read()?;
        let inode = state.inodes.get(node);
        let mut attr = match inode {
            Some(removed) if removed.place.is_none() => Attr {
                links: 0,
                ..self.fat.attr_of(&removed.raw)?
            },
            _ => self.fat.attr(disk, state.inodes.place(node)?)?,
        };
        attr.ino = node;
        if let Some(inode) = inode.filter(|inode| inode.extents.is_some() && attr.is_file()) {
            attr.size = inode.size;
            attr.blocks = inode.allocated(self.fat.boot.cluster_bytes) / 512;
            if let Some(time) = inode.modified {
                let (date, of_day, _) = clock::encode(time);
                attr.modified = clock::decode(date, of_day, 0);
                attr.changed = attr.modified;
            }
        }
        Ok(attr)
    }

    fn read_dir(&self, disk: &mut Disk, dir: Node, from: u64, count: usize) -> Result<Vec<Entry>> {
        let state = self.read()?;
        let place = match state.inodes.place(dir) {
            // A removed directory that is open has no names.
            Err(error) if error.kind() == Kind::NotFound => return Ok(Vec::new()),
            place => place?,
        };
        let mut entries = self.fat.read_dir(disk, place, from, count)?;
        for entry in &mut entries {
            entry.ino = match entry.node {
                0 => dir,
                place => state.inodes.node(place),
            };
            if entry.node != 0 {
                entry.node = entry.ino;
            }
        }
        Ok(entries)
    }

    fn lookup(&self, disk: &mut Disk, dir: Node, name: &[u8]) -> Result<Node> {
        let state = self.read()?;
        let place = state.inodes.place(dir)?;
        let found = self.fat.lookup(disk, place, without_dots(name))?;
        Ok(state.inodes.node(found))
    }

    fn read_link(&self, disk: &mut Disk, node: Node) -> Result<Vec<u8>> {
        self.fat.read_link(disk, node)
    }

    fn map(&self, disk: &mut Disk, node: Node, range: Range<u64>) -> Result<Vec<Piece>> {
        let state = self.read()?;
        match state
            .inodes
            .get(node)
            .and_then(|inode| inode.extents.as_ref())
        {
            Some(extents) => pieces(&self.fat, extents, &range),
            None => self.fat.map(disk, state.inodes.place(node)?, range),
        }
    }
}

impl Changes for Writable {
    fn create(&self, disk: &mut Disk, dir: Node, name: &[u8], kind: New) -> Result<Node> {
        let (state, fat) = (&mut *self.write()?, &self.fat);
        let dir = state.inodes.place(dir)?;
        let name = NewName::of(name)?;
        let listing = Listing::read(fat, disk, dir)?;
        if listing.find(name.text.as_bytes()).is_some() {
            return Err(Kind::Exists.into());
        }
        let (long, short) = listing.entries_of(&name)?;
        let places = state.room(fat, disk, dir, long.len() + 1, None)?;
        let mut raw = new_entry(&short, ARCHIVE);
        if kind == New::Directory {
            raw[11] = DIRECTORY;
            let mut dots = [raw; 2];
            dots[0][..11].copy_from_slice(b".          ");
            dots[1][..11].copy_from_slice(b"..         ");
            set_first(&mut dots[1], State::parent_cluster(fat, disk, dir)?);
            let cluster = state.take_directory(fat, disk, &dots)?;
            state.space.link(&fat.boot, disk, None, &[(cluster, 1)])?;
            set_first(&mut raw, cluster);
        }
        let place = state.add_name(disk, &places, &long, &raw)?;
        state.names_changed(fat, disk, dir)?;
        let node = state.inodes.create(place);
        if kind == New::File {
            state.inodes.touch(node)?.extents = Some(Vec::new());
        }
        Ok(node)
    }

    fn remove(&self, disk: &mut Disk, dir: Node, name: &[u8], kind: New) -> Result<Option<Node>> {
        let (state, fat) = (&mut *self.write()?, &self.fat);
        let dir = state.inodes.place(dir)?;
        let named = Listing::read(fat, disk, dir)?
            .find(without_dots(name))
            .ok_or_else(missing)?;
        match (kind, named.is_dir()) {
            (New::File, true) => return Err(Kind::IsDirectory.into()),
            (New::Directory, false) => return Err(Kind::NotDirectory.into()),
            (New::Directory, true) if !Listing::read(fat, disk, named.place)?.is_empty() => {
                return Err(Kind::NotEmpty.into());
            }
            _ => {}
        }
        let unused = self.erase(state, disk, &named)?;
        state.names_changed(fat, disk, dir)?;
        Ok(unused)
    }

    fn rename(
        &self,
        disk: &mut Disk,
        (from_dir, from): (Node, &[u8]),
        (to_dir, to): (Node, &[u8]),
        replace: bool,
    ) -> Result<Option<Node>> {
        let (state, fat) = (&mut *self.write()?, &self.fat);
        let (from_dir, to_dir) = (state.inodes.place(from_dir)?, state.inodes.place(to_dir)?);
        let source = Listing::read(fat, disk, from_dir)?
            .find(without_dots(from))
            .ok_or_else(missing)?;
        let name = NewName::of(to)?;
        let listing = Listing::read(fat, disk, to_dir)?;
        let target = listing.find(name.text.as_bytes());
        let target = match target {
            Some(same) if same.place == source.place => {
                if same.text == name.text.as_bytes() {
                    return Ok(None);
                }
                None
            }
            target => target,
        };
        let first = fat.boot.first_cluster(&source.raw)?;
        if source.is_dir() && State::contains(fat, disk, first, to_dir)? {
            return Err(Kind::Invalid.into());
        }
        if let Some(target) = &target {
            if !replace {
                return Err(Kind::Exists.into());
            }
            match (source.is_dir(), target.is_dir()) {
                (true, false) => return Err(Kind::NotDirectory.into()),
                (false, true) => return Err(Kind::IsDirectory.into()),
                (true, true) if !Listing::read(fat, disk, target.place)?.is_empty() => {
                    return Err(Kind::NotEmpty.into());
                }
                _ => {}
            }
            let replaced = state.inodes.node(target.place);
            state.load(fat, disk, replaced, target)?;
        }
        let entries = match &target {
            Some(target) => entries_at(disk, &target.places())?,
            None => {
                let (long, short) = listing.entries_of(&name)?;
                let mut own = [0; 32];
                own[..11].copy_from_slice(&short);
                [long, vec![own]].concat()
            }
        };
        let place = state.move_entries(fat, disk, &source, target.as_ref(), to_dir, entries)?;
        let mut unused = None;
        if let Some(target) = target {
            let replaced = state.inodes.node(target.place);
            state.inodes.removed(replaced, target.raw)?;
            unused = (!self.is_used(replaced)).then_some(replaced);
        }
        let node = state.inodes.node(source.place);
        state.inodes.moved(node, place)?;
        if source.is_dir() && from_dir != to_dir {
            let parent = State::parent_cluster(fat, disk, to_dir)?;
            let at = fat.boot.offset(first)? + 32;
            let mut dots = [0; 32];
            disk.read(at, &mut dots)?;
            set_first(&mut dots, parent);
            state.pending.set_entry(disk, at, &dots)?;
        }
        state.names_changed(fat, disk, from_dir)?;
        state.names_changed(fat, disk, to_dir)?;
        Ok(unused)
    }

    fn stored_name(&self, disk: &mut Disk, dir: Node, name: &[u8]) -> Result<Vec<u8>> {
        let state = self.read()?;
        let listing = Listing::read(&self.fat, disk, state.inodes.place(dir)?)?;
        let named = listing.find(without_dots(name)).ok_or_else(missing)?;
        Ok(named.text)
    }

    fn set_attr(&self, disk: &mut Disk, node: Node, set: &SetAttr) -> Result<()> {
        let (state, fat) = (&mut *self.write()?, &self.fat);
        if node == ROOT {
            return Ok(());
        }
        let change = |raw: &mut [u8; 32]| {
            if let Some(time) = set.modified {
                set_modified(raw, time);
            }
            if let Some(time) = set.accessed {
                set_accessed(raw, time);
            }
            match set.read_only {
                Some(true) => raw[11] |= READ_ONLY,
                Some(false) => raw[11] &= !READ_ONLY,
                None => {}
            }
        };
        let inode = state.inodes.touch(node)?;
        if set.modified.is_some() {
            inode.modified = None;
        }
        match inode.place {
            None => change(&mut inode.raw),
            Some(place) => {
                let mut raw = fat.raw(disk, place)?;
                change(&mut raw);
                state.pending.set_entry(disk, place, &raw)?;
            }
        }
        Ok(())
    }

    fn grow(&self, disk: &mut Disk, node: Node, end: u64) -> Result<()> {
        let (state, fat) = (&mut *self.write()?, &self.fat);
        if end > FILE_BYTES_MAX {
            return Err(Kind::TooLarge.into());
        }
        let inode = state.load_file(fat, disk, node)?;
        let have = space::total(inode.extents.as_deref().unwrap_or_default());
        let more = end.div_ceil(fat.boot.cluster_bytes).saturating_sub(have);
        if more == 0 {
            return Ok(());
        }
        let last = inode.extents.as_deref().and_then(<[_]>::last);
        let last = last.map(|(first, count)| first + count - 1);
        if inode.was_cut {
            // The device still has the old rest of the chain.
            state.commit(fat, disk)?;
        }
        let taken = state.take(fat, disk, more, last.map(|last| last + 1))?;
        state.space.link(&fat.boot, disk, last, &taken)?;
        let extents = state.inodes.touch(node)?.extents.get_or_insert_default();
        for extent in taken {
            match extents.last_mut() {
                Some((first, count)) if *first + *count == extent.0 => *count += extent.1,
                _ => extents.push(extent),
            }
        }
        Ok(())
    }

    fn written(&self, node: Node, end: u64) -> Result<()> {
        let inode = &mut *self.write()?;
        let inode = inode.inodes.touch(node)?;
        inode.size = inode.size.max(end);
        inode.writes += 1;
        inode.modified = Some(now());
        Ok(())
    }

    fn cut(&self, disk: &mut Disk, node: Node, size: u64) -> Result<()> {
        self.write()?.cut(&self.fat, disk, node, size)
    }

    fn store(&self, node: Node, range: Range<u64>) -> Result<Vec<Piece>> {
        let state = self.read()?;
        let inode = state.inodes.get(node).ok_or_else(missing)?;
        let extents = inode.extents.as_deref().unwrap_or_default();
        let end = range.end.min(inode.allocated(self.fat.boot.cluster_bytes));
        inode.stored.fetch_max(end, Relaxed);
        pieces(&self.fat, extents, &range)
    }

    fn stored(&self, disk: &mut Disk, node: Node) -> Result<u64> {
        let known = self.read()?.inodes.get(node).and_then(|inode| {
            let known = inode.extents.is_some();
            known.then(|| inode.stored())
        });
        match known {
            Some(end) => Ok(end),
            None => Ok(self.attr(disk, node)?.size),
        }
    }

    fn unsaved(&self) -> Result<Vec<Node>> {
        let state = self.read()?;
        let unsaved = state.inodes.iter().filter(|(_, inode)| inode.is_unsaved());
        Ok(unsaved.map(|(node, _)| node).collect())
    }

    fn writes(&self, node: Node) -> Result<u64> {
        Ok(self
            .read()?
            .inodes
            .get(node)
            .map_or(0, |inode| inode.writes))
    }

    fn is_full(&self, disk: &Disk) -> bool {
        disk.held() > HELD_MAX
    }

    fn save(&self, disk: &mut Disk, files: &[(Node, u64, u64)]) -> Result<()> {
        let (state, fat) = (&mut *self.write()?, &self.fat);
        for file in files {
            state.save_size(fat, disk, *file)?;
            state.pending.content_written();
        }
        state.commit(fat, disk)
    }

    fn remember(&self, node: Node) {
        self.with_uses(|uses| *uses.entry(node).or_default() += 1);
    }

    fn forget(&self, node: Node, count: u64) -> bool {
        let last = self.with_uses(|uses| {
            let left = uses.get(&node).map_or(0, |uses| uses.saturating_sub(count));
            if left > 0 {
                uses.insert(node, left);
            } else {
                uses.remove(&node);
            }
            left == 0
        });
        let removed = |state: &State| {
            let inode = state.inodes.get(node);
            inode.is_some_and(|inode| inode.place.is_none())
        };
        last && self.read().is_ok_and(|state| removed(&state))
    }

    fn release(&self, _disk: &mut Disk, node: Node) -> Result<()> {
        let state = &mut *self.write()?;
        if let Some(inode) = state.inodes.take_removed(node) {
            state.space.free_later(inode.extents.unwrap_or_default());
        }
        Ok(())
    }

    fn removed(&self) -> Result<Vec<Node>> {
        let state = self.read()?;
        let removed = state
            .inodes
            .iter()
            .filter(|(_, inode)| inode.place.is_none());
        Ok(removed.map(|(node, _)| node).collect())
    }

    fn close(&self, disk: &mut Disk) -> Result<()> {
        let (state, fat) = (&mut *self.write()?, &self.fat);
        // A write that has failed leaves clusters behind the end of its file.
        let unit = fat.boot.cluster_bytes;
        let longer = state.inodes.iter().filter(|(_, inode)| {
            let is_file = inode.extents.is_some() && inode.saved == inode.size;
            is_file && inode.allocated(unit) > inode.size.next_multiple_of(unit)
        });
        let longer = longer.map(|(node, inode)| (node, inode.size, inode.saved_writes));
        let longer: Vec<(Node, u64, u64)> = longer.collect();
        for file in longer {
            state.cut(fat, disk, file.0, file.1)?;
            state.save_size(fat, disk, file)?;
        }
        state.commit(fat, disk)?;
        state.pending.unmark(&fat.boot, disk)
    }
}
