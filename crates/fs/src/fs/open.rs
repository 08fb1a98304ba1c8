//! Creating and opening a file system, with recovery from a crash.

use super::{FIRST_FILESET, Fs};
use crate::device_io::{DeviceIo, check_device};
use crate::error::{Error, Kind, Result};
use crate::fileset::Fileset;
use crate::format::key::{Item, Key, Section, TreeId};
use crate::format::name_hash::Hasher;
use crate::format::record::{In, Run, Time};
use crate::format::sums::Summer;
use crate::format::superblock::Superblock;
use crate::format::tree_record::TreeRecord;
use crate::integrity::{IntegrityKey, tampered};
use crate::metadata::absent::AbsentNames;
use crate::metadata::attached::Attached;
use crate::metadata::change_signal::ChangeSignal;
use crate::metadata::commit::Background;
use crate::metadata::coordination::{Group, Log, Wake};
use crate::metadata::database::{Checksums, Db, Epoch, SpaceChange};
use crate::metadata::database_file::{DatabaseFile, keep_spare};
use crate::metadata::item_map::ItemMap;
use crate::metadata::journal::{self, JournalLocation, Writer};
use crate::metadata::mismatches::Mismatches;
use crate::metadata::overlay::Overlay;
use crate::metadata::pending_sums::PendingSums;
use crate::metadata::saved::Replayed;
use crate::metadata::shared::{FsShared, Options};
use crate::metadata::state::{State, Tree};
use crate::metadata::succession::{Disk, Heritage};
use crate::metadata::superblock_file::SuperblockFile;
use crate::metadata::survivor::{Adoption, Survival};
use crate::metadata::tree_signal::TreeSignal;
use crate::metadata::view_slot::ViewSlot;
use crate::space::{Space, reserve_blocks};
use block::{Access, BlockDevice};
use foldhash::HashMap;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, RwLock};

/// Whether a new file system has checksums of file data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataChecksums {
    /// Each block is verified when it is read, and not overwritten while in use, unless its checksum
    /// was durably dropped first (full device).
    Yes,
    /// Blocks are overwritten in place.
    No,
    /// As `Yes`, by a function that needs the key of the encrypted volume, and for the metadata as
    /// well: changes that an attacker makes on the disk are errors.
    Keyed,
}

impl Fs {
    /// Creates a file system with one fileset on a device, whose content is lost.
    ///
    /// # Errors
    /// [`Kind::Invalid`]: the device is too small, or the label too long.
    pub fn format(device: Arc<dyn BlockDevice>, label: &str) -> Result<()> {
        Fs::format_with(device, label, DataChecksums::Yes)
    }

    /// As [`Fs::format`], with or without checksums of file data.
    ///
    /// # Errors
    /// As [`Fs::format`]. [`Kind::Unsupported`]: keyed checksums, and the device is not encrypted.
    pub fn format_with(
        device: Arc<dyn BlockDevice>,
        label: &str,
        checksums: DataChecksums,
    ) -> Result<()> {
        let io = Arc::new(DeviceIo::start(Arc::clone(&device))?);
        check_device(io.info())?;
        let mut random = [0; 32];
        getrandom::fill(&mut random)
            .map_err(|e| Error::new(Kind::Io, format!("cannot get random bytes: {e}")))?;
        let now = Time::now().seconds;
        let mut superblock = Superblock::new(io.info().size, label, random, now)?;
        let key = match checksums {
            DataChecksums::Yes => None,
            DataChecksums::No => {
                superblock.leave_out_checksums();
                None
            }
            DataChecksums::Keyed => {
                superblock.add_integrity();
                Some(IntegrityKey::of(&*device, &superblock.uuid)?)
            }
        };
        let space = Arc::new(Space::new(0));
        let start = superblock.first_block();
        let blocks = superblock.device_blocks - start;
        space.add(Run { start, blocks });
        space.set_loaded();
        keep_spare(&mut superblock, &space);
        let superblock = Arc::new(SuperblockFile::new(Arc::clone(&io), superblock, key));
        superblock.write()?;
        let file = DatabaseFile::new(io, superblock, space, Access::ReadWrite);
        let db = Db::open(file, 1 << 20, Checksums::Trust)?;
        // Creates the tables, so that a missing table is damage and never an empty file system.
        db.commit(&Overlay::default(), &[], Epoch::FIRST)?;
        db.close()?;
        let fs = Fs::open(device, Options::default())?;
        fs.create_fileset(FIRST_FILESET)?;
        fs.close()
    }

    /// Opens a file system and recovers from a crash: replays the journal, and removes inodes
    /// without a name. The caller ensures that no other program has the device open.
    ///
    /// # Errors
    /// [`Kind::Invalid`]: no file system. [`Kind::Unsupported`]: another version.
    /// [`Kind::Corrupt`]: damaged.
    pub fn open(device: Arc<dyn BlockDevice>, mut options: Options) -> Result<Fs> {
        let io = Arc::new(DeviceIo::start(Arc::clone(&device))?);
        check_device(io.info())?;
        let superblock = Arc::new(SuperblockFile::read(Arc::clone(&io), &*device)?);
        options.read_only |= io.info().read_only || superblock.lock().is_read_only();
        if options.read_only || options.rescue {
            options.survival = None;
        }
        let device_blocks = superblock.lock().device_blocks;
        let space = Arc::new(Space::new(reserve_blocks(device_blocks)));
        let access = Access::read_only_if(options.read_only);
        let file = DatabaseFile::new(
            Arc::clone(&io),
            Arc::clone(&superblock),
            Arc::clone(&space),
            access,
        );
        let checksums = if options.verify {
            Checksums::Verify
        } else {
            Checksums::Trust
        };
        let db = Db::open_file(file, options.metadata_cache_bytes, checksums)?;
        let key = superblock.key().cloned();
        let summer = key.clone().map_or(Summer::Crc, Summer::Keyed);
        let (hasher, place) = {
            let superblock = superblock.lock();
            (
                Hasher::new(superblock.hash_key),
                JournalLocation::of(&superblock, key.as_ref()),
            )
        };
        let mut found = Found::read(&io, &db, &place)?;
        // A copy, because reading the metadata locks the superblock.
        let now = superblock.lock().clone();
        let disk = Disk {
            uuid: now.uuid,
            openings: now.openings,
            epoch: found.epoch,
        };
        let (mut adoption, mut heritage) = take_over(&options, &disk);
        if let Some(refused) = found.refusal(&heritage, &db, &now) {
            (adoption, heritage) = (Adoption::Refused(refused), Heritage::default());
        }
        if let Adoption::Refused(why) = &adoption {
            tracing::error!(
                name: "EVFS-0211",
                "{}: changes of the server that was killed are lost, except for those that are \
                 durable: {why}",
                io.info().name
            );
            // The log stays as it is, so that every later successor refuses it as well.
            options.survival = None;
        }
        match found.load_space(&db, &now, &space, &heritage.replayed) {
            Err(error) if error.kind() == Kind::Corrupt && options.rescue => {
                tracing::warn!(
                    name: "EVFS-0203",
                    "{}: cannot determine the free blocks: {error}",
                    io.info().name
                );
                space.replace(std::iter::empty());
            }
            loaded => loaded?,
        }
        if let Some(survival) = &options.survival {
            survival.begin(&disk, matches!(adoption, Adoption::Adopted { .. }));
        }
        let generation = if options.read_only {
            superblock.lock().openings
        } else {
            note_opening(&superblock, &space, options.survival.as_ref())?
        };
        let changes = heritage.changes;
        for delta in heritage.deltas {
            found.replayed = true;
            found.items.replay(delta);
        }
        let (epoch, replayed) = (found.epoch, found.replayed);
        let bounds = superblock.lock().first_block()..device_blocks;
        let checksums = superblock.lock().has_checksums();
        let compression = superblock.lock().has_compression();
        let mut state = State {
            checksums,
            compression,
            summer: summer.clone(),
            changes,
            ..load(found.items, bounds, options.rescue)?
        };
        if options.survival.is_some() {
            state.add_replayed(heritage.replayed)?;
        }
        let keeps_orphans = adoption != Adoption::None;
        let inner = Arc::new(FsShared {
            name: io.info().name.clone(),
            device,
            io,
            superblock,
            space,
            hasher,
            summer,
            generation,
            db: Mutex::new(Some(db)),
            log: Mutex::new(Log::new(Writer::new(place, epoch.next()))),
            group: Group::default(),
            state: RwLock::new(state),
            backlog: AtomicUsize::new(0),
            backlog_max: AtomicUsize::new(backlog_max(device_blocks)),
            wake: Wake::default(),
            changes: ChangeSignal::default(),
            mismatches: Mismatches::default(),
            trees_changed: TreeSignal::default(),
            attached: Attached::default(),
            view: ViewSlot::default(),
            options,
        });
        inner.load_accounts()?;
        if !inner.options.read_only {
            inner.note_slack(
                inner
                    .db
                    .lock()
                    .expect("no panic under this lock")
                    .as_ref()
                    .expect("just opened"),
            )?;
            if let (Adoption::Adopted { requests }, Some(survival)) =
                (&adoption, &inner.options.survival)
            {
                // The commit drops the entries that name them.
                survival.inherit(requests);
            }
            if replayed {
                inner.commit_replayed()?;
            }
            if let Some(unsaved) = &mut inner.write().unsaved {
                unsaved.replaying = false;
            }
            if !inner.options.rescue {
                inner.count_all_held()?;
            }
            inner.finish_removals(keeps_orphans)?;
        }
        let background = if inner.options.read_only {
            None
        } else {
            Some(Background::start(&inner)?)
        };
        let background = Mutex::new(background);
        Ok(Fs {
            inner,
            background,
            growing: Mutex::default(),
            adoption,
        })
    }
}

impl FsShared {
    /// Completes removals that a crash or an error interrupted: trees marked as being removed, and
    /// inodes without a name, unless files may still be open.
    fn finish_removals(self: &Arc<FsShared>, keeps_orphans: bool) -> Result<()> {
        let trees: Vec<(TreeId, TreeRecord)> = {
            let state = self.read();
            let all = state.trees.iter();
            all.map(|(id, tree)| (*id, tree.record.clone())).collect()
        };
        // Snapshots first: a fileset can be used once its rollback is complete.
        let (snapshots, filesets): (Vec<_>, Vec<_>) = trees
            .into_iter()
            .partition(|(_, record)| record.origin != 0);
        for (id, record) in snapshots.into_iter().chain(filesets) {
            let TreeRecord {
                removing,
                restoring,
                origin,
                receiving,
                ..
            } = record;
            if removing {
                self.remove_tree_items(id)?;
            } else if restoring {
                self.resume_rollback(origin, id)?;
            } else if origin == 0 && receiving.is_none() && !self.is_restoring(id) {
                if keeps_orphans {
                    self.write()
                        .trees
                        .entry(id)
                        .and_modify(|tree| tree.adopting = true);
                    continue;
                }
                let fs = Arc::clone(self);
                Fileset { fs, id }.remove_orphans()?;
            }
        }
        Ok(())
    }
}

impl FsShared {
    fn is_restoring(&self, id: TreeId) -> bool {
        self.read()
            .trees
            .get(&id)
            .is_some_and(|tree| tree.restoring)
    }

    /// Completes a rollback that a crash or an error interrupted. If damage prevents that and the
    /// file system is to be repaired, the fileset stays as it is: a mixture of the two states. If
    /// there is no room, nothing uses the fileset until the next open.
    fn resume_rollback(self: &Arc<FsShared>, of: TreeId, to: TreeId) -> Result<()> {
        match self.finish_rollback(of, to) {
            Err(error) if error.kind() == Kind::NoSpace => {
                tracing::warn!(
                    name: "EVFS-0207",
                    "{}: cannot complete the rollback of fileset {of}: {error}; remove files of \
                     other filesets, or let the device grow, and open the file system again",
                    self.name
                );
                Ok(())
            }
            Err(error) if error.kind() == Kind::Corrupt && self.options.rescue => {
                tracing::warn!(
                    name: "EVFS-0207",
                    "{}: cannot complete the rollback of fileset {of}: {error}",
                    self.name
                );
                self.end_rollback(of, to)
            }
            finished => finished,
        }
    }
}

/// State found on a device.
struct Found {
    items: ItemMap,
    /// Number of the last commit of the tree.
    epoch: Epoch,
    /// Whether the journal held any records.
    replayed: bool,
    space: Vec<SpaceChange>,
}

impl Found {
    fn read(io: &DeviceIo, db: &Db, place: &JournalLocation) -> Result<Found> {
        let epoch = db.epoch()?;
        let mut found = Found {
            items: ItemMap::new(db.base()?),
            epoch,
            replayed: false,
            space: Vec::new(),
        };
        // The first record replayed is the first after a commit, and may follow any other.
        let (mut last, mut is_second) = (None, false);
        for epoch in [epoch.next(), epoch.next().next()] {
            let deltas = journal::read(io, place, epoch, &mut last)?;
            // An epoch begins when all of the one before it is in the journal, or committed.
            if is_second && !found.replayed && !deltas.is_empty() && place.is_keyed() {
                return Err(tampered(format_args!("the journal before epoch {epoch}")));
            }
            is_second = true;
            for delta in deltas {
                found.replayed = true;
                found.space.extend(&delta.space);
                found.items.replay(delta);
            }
        }
        Ok(found)
    }

    /// Returns why the log of a predecessor does not fit the disk, if it does not.
    fn refusal(&self, heritage: &Heritage, db: &Db, superblock: &Superblock) -> Option<String> {
        if heritage.replayed.space.is_empty() {
            return None;
        }
        let trial = Space::new(0);
        let loaded = self.load_space(db, superblock, &trial, &heritage.replayed);
        loaded.err().map(|error| error.to_string())
    }

    /// Passes the free blocks to the allocator: those that neither data nor metadata occupies once
    /// the journal is replayed. The metadata may have grown into blocks that the journal frees and
    /// the bitmap still has; so data is processed first, and the metadata's blocks are removed
    /// then.
    fn load_space(
        &self,
        db: &Db,
        superblock: &Superblock,
        space: &Space,
        replayed: &Replayed,
    ) -> Result<()> {
        let mut at = superblock.first_block();
        for run in db.used(superblock.device_blocks)? {
            if run.start < at {
                return Err(Error::corrupt(format!(
                    "block {}: in use according to the bitmap, but outside the data area",
                    run.start
                )));
            }
            space.add_between(at, run.start)?;
            at = run.end();
        }
        space.add_between(at, superblock.device_blocks)?;
        for change in &self.space {
            let inside = change.run.start >= superblock.first_block()
                && change.run.end() <= superblock.device_blocks;
            if !inside {
                return Err(Error::corrupt(
                    "the journal refers to blocks outside the data area",
                ));
            }
            if change.used {
                space.remove(change.run)?
            } else {
                space.add_between(change.run.start, change.run.end())?
            }
        }
        let data = superblock.first_block()..superblock.device_blocks;
        if !replayed.load_space(data, space) {
            return Err(Error::corrupt(
                "the log in memory refers to blocks outside the data area",
            ));
        }
        for segment in &superblock.segments {
            space.remove(Run {
                start: segment.start,
                blocks: segment.blocks.into(),
            })?;
        }
        space.set_loaded();
        Ok(())
    }
}

/// Counts a writable open, and sets space aside for the next one.
fn note_opening(
    superblock: &SuperblockFile,
    space: &Space,
    survival: Option<&Survival>,
) -> Result<u32> {
    let openings = {
        let mut superblock = superblock.lock();
        superblock.openings = superblock.openings.wrapping_add(1);
        superblock.note_features();
        keep_spare(&mut superblock, space);
        superblock.openings
    };
    if let Some(survival) = survival {
        survival.opening(openings);
    }
    superblock.write()?;
    if let Some(survival) = survival {
        survival.opened(openings);
    }
    Ok(openings)
}

/// Builds the in-memory state from the items. With `rescue`, skips unreadable filesets.
pub(crate) fn load(mut items: ItemMap, bounds: Range<u64>, rescue: bool) -> Result<State> {
    let mut trees: BTreeMap<TreeId, Tree> = BTreeMap::new();
    let (from, to) = Key::section(Section::Trees);
    let read = items.scan(from, to, |key, bytes| {
        match (Tree::read(&key, bytes), rescue) {
            (Ok((id, tree)), _) => drop(trees.insert(id, tree)),
            (Err(_), true) => {}
            (Err(error), false) => return Err(error),
        }
        Ok(true)
    });
    match read {
        Err(error) if error.kind() == Kind::Corrupt && rescue => {
            tracing::warn!(name: "EVFS-0204", "cannot load all filesets: {error}");
        }
        read => read?,
    }
    for id in trees.keys() {
        // Without the number, every item is searched for, and finds the damage where it is.
        tolerate_damage(items.find_last_object(*id))?;
    }
    let origin = |(id, tree): (&TreeId, &Tree)| (tree.record.origin, *id);
    let snapshots: Vec<(TreeId, TreeId)> = trees.iter().map(origin).filter(|s| s.0 != 0).collect();
    for (origin, id) in snapshots {
        let record = trees.get(&id).map(|tree| &tree.record);
        let restoring = record.is_some_and(|record| record.restoring && !record.removing);
        match trees
            .get_mut(&origin)
            .filter(|tree| tree.record.origin == 0)
        {
            Some(tree) => {
                tree.snapshots.push(id);
                tree.restoring |= restoring;
            }
            None if rescue => drop(trees.remove(&id)),
            None => {
                return Err(Error::corrupt(format!(
                    "snapshot {id}: its fileset does not exist"
                )));
            }
        }
    }
    let next = items.get(&Key::global(Section::NextTree, 0), |bytes| {
        In::of(bytes, "next fileset id").u32()
    });
    let next = match next {
        Err(error) if error.kind() == Kind::Corrupt && rescue => None,
        next => next?,
    };
    Ok(State {
        trees,
        cores: HashMap::default(),
        dirty_cores: Vec::new(),
        changes: 0,
        failed: None,
        bounds,
        checksums: false,
        compression: false,
        summer: Summer::Crc,
        pending_sums: PendingSums::default(),
        next_tree: next.unwrap_or(1),
        steps: Vec::new(),
        space: Vec::new(),
        may_share: tolerate_damage(has_shared(&items))?.unwrap_or(true),
        absent: AbsentNames::default(),
        item_changes: [0; Item::NUMBERS],
        items,
        unsaved: None,
    })
}

/// Reads the log of a predecessor, if there is one.
fn take_over(options: &Options, disk: &Disk) -> (Adoption, Heritage) {
    let survival = options.survival.as_ref();
    let Some(survival) = survival.filter(|survival| survival.adopt) else {
        return (Adoption::None, Heritage::default());
    };
    match survival.heritage(disk) {
        Ok(heritage) => {
            let requests = heritage.requests.clone();
            (Adoption::Adopted { requests }, heritage)
        }
        Err(why) => (Adoption::Refused(why), Heritage::default()),
    }
}

/// Reports whether there is a record of shared blocks.
fn has_shared(items: &ItemMap) -> Result<bool> {
    let (from, to) = Key::section(Section::Shared);
    let mut found = false;
    items.scan(from, to, |_, _| {
        found = true;
        Ok(false)
    })?;
    Ok(found)
}

/// Turns damage of the metadata into `None`.
fn tolerate_damage<T>(read: Result<T>) -> Result<Option<T>> {
    match read {
        Err(error) if error.kind() == Kind::Corrupt => Ok(None),
        read => read.map(Some),
    }
}

/// Computes how many changed keys may wait for a commit. A commit of that many writes at most as
/// many pages of the tree, so that a small device has enough space reserved.
pub(super) fn backlog_max(device_blocks: u64) -> usize {
    (reserve_blocks(device_blocks) as usize * 4).clamp(1024, 1 << 17)
}
