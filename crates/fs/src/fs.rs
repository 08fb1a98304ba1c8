//! An open file system: creating, opening and closing it.
//!
//! ```text
//!   db (commits)  ──►  log (records of the journal)  ──►  state (all metadata in memory)
//! ```
//!
//! Locks are taken in this order only. No thread waits for the device while it holds the state for
//! writing, except to read pages of metadata that a change needs.

pub mod filesets;

use crate::device_io::{DeviceIo, check_device};
use crate::error::{Error, Kind, Result};
use crate::fileset::Fileset;
use crate::format::key::{Item, Key, PLACE_MAX, Section, TreeId};
use crate::format::record::{BLOCK_BYTES, Time};
use crate::format::superblock::Superblock;
use crate::metadata::commit::{Background, Group, Log};
use crate::metadata::database::Db;
use crate::metadata::database_file::{MetaFile, SuperblockFile, keep_spare};
use crate::metadata::item_map::Store;
use crate::metadata::journal::{self, JournalLocation, Writer};
use crate::metadata::overlay::Overlay;
use crate::metadata::state::{State, Tree};
use crate::names::slots::Hasher;
use crate::space::{Run, Space, reserve_blocks};
use block::BlockDevice;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// Name of the fileset that a new file system has.
pub const FIRST_FILESET: &str = "main";

/// Options for opening a file system.
#[derive(Debug, Clone)]
pub struct Options {
    /// Write nothing, not even to recover from a crash.
    pub read_only: bool,
    /// Read every page of the metadata first, and compare its checksum.
    pub verify: bool,
    /// Open the file system even if the free blocks or the filesets cannot be determined, so that
    /// [`Fs::repair`] can find them; until then no block can be allocated.
    pub rescue: bool,
    /// Longest time that a change waits for its commit without an explicit request.
    pub commit_interval: Duration,
    /// Memory for cached pages of metadata, in bytes.
    pub metadata_cache_bytes: usize,
    /// Clock for the times of inodes.
    pub clock: fn() -> Time,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            read_only: false,
            verify: false,
            rescue: false,
            // As ext4 and similar file systems: limits the loss at a power failure.
            commit_interval: Duration::from_secs(5),
            metadata_cache_bytes: 256 << 20,
            clock: Time::now,
        }
    }
}

/// Space usage of a file system in blocks of 4096 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Usage {
    /// Blocks of the device, including the superblocks and the journal.
    pub blocks: u64,
    /// Blocks allocated to the metadata.
    pub metadata: u64,
    /// Blocks of the journal.
    pub journal: u64,
    /// Blocks not in use.
    pub free: u64,
    /// Blocks neither in use nor promised nor reserved for the metadata.
    pub available: u64,
    /// Length of the largest run of free blocks.
    pub largest_free: u64,
    /// Number of runs of free blocks.
    pub free_runs: u64,
    /// Inodes of all filesets.
    pub inodes: u64,
}

/// Open file system. Dropping it commits as much as possible; [`Fs::close`] reports errors.
pub struct Fs {
    inner: Arc<FsShared>,
    /// Its threads; `None` once the file system is closed, or if it is read-only.
    background: Mutex<Option<Background>>,
}

/// State shared by all handles to a file system.
pub(crate) struct FsShared {
    pub name: String,
    pub device: Arc<dyn BlockDevice>,
    pub io: Arc<DeviceIo>,
    pub superblock: Arc<SuperblockFile>,
    pub space: Arc<Space>,
    pub options: Options,
    pub hasher: Hasher,
    pub generation: u32,
    pub db: Mutex<Option<Db>>,
    pub log: Mutex<Log>,
    pub group: Group,
    pub state: RwLock<State>,
    /// Number of changed keys that wait for a commit.
    pub backlog: AtomicUsize,
    /// Backlog that wakes the commit thread; a multiple of it makes callers wait.
    pub backlog_max: usize,
    pub wake: crate::metadata::commit::Wake,
    /// Notified of each change.
    pub changes: crate::files::ChangeSignal,
}

impl Fs {
    /// Creates a file system with one fileset on a device, whose content is lost.
    ///
    /// # Errors
    /// [`Kind::Invalid`]: the device is too small, or the label too long.
    pub fn format(device: Arc<dyn BlockDevice>, label: &str) -> Result<()> {
        let io = Arc::new(DeviceIo::start(Arc::clone(&device))?);
        check_device(io.info())?;
        let mut random = [0; 32];
        getrandom::fill(&mut random)
            .map_err(|e| Error::new(Kind::Io, format!("cannot get random bytes: {e}")))?;
        let now = Time::now().seconds;
        let mut superblock = Superblock::new(io.info().size, label, random, now)?;
        let space = Arc::new(Space::new(0));
        let start = superblock.first_block();
        let blocks = superblock.device_blocks - start;
        space.add(Run { start, blocks });
        space.set_loaded();
        keep_spare(&mut superblock, &space);
        let superblock = Arc::new(SuperblockFile::new(Arc::clone(&io), superblock));
        superblock.write()?;
        let file = MetaFile::new(io, superblock, space, false);
        let db = Db::open(file, 1 << 20, false)?;
        // Creates the tables, so that a missing table is damage and never an empty file system.
        db.commit(&Overlay::default(), &[], 0)?;
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
        let superblock = Arc::new(SuperblockFile::read(Arc::clone(&io))?);
        options.read_only |= io.info().read_only || superblock.lock().is_read_only();
        let device_blocks = superblock.lock().device_blocks;
        let space = Arc::new(Space::new(reserve_blocks(device_blocks)));
        let file = MetaFile::new(
            Arc::clone(&io),
            Arc::clone(&superblock),
            Arc::clone(&space),
            options.read_only,
        );
        let db = Db::open(file, options.metadata_cache_bytes, options.verify)?;
        let (hasher, place) = {
            let superblock = superblock.lock();
            (
                Hasher::new(superblock.hash_key),
                JournalLocation::of(&superblock),
            )
        };
        let found = Found::read(&io, &db, &place)?;
        // A copy, because reading the metadata locks the superblock.
        let now = superblock.lock().clone();
        match found.load_space(&db, &now, &space) {
            Err(error) if error.kind() == Kind::Corrupt && options.rescue => {
                tracing::warn!(
                    "{}: cannot determine the free blocks: {error}",
                    io.info().name
                );
                space.replace(std::iter::empty());
            }
            loaded => loaded?,
        }
        let generation = if options.read_only {
            superblock.lock().openings
        } else {
            note_opening(&superblock, &space)?
        };
        let (epoch, replayed) = (found.epoch, found.replayed);
        let bounds = superblock.lock().first_block()..device_blocks;
        let inner = Arc::new(FsShared {
            name: io.info().name.clone(),
            device,
            io,
            superblock,
            space,
            hasher,
            generation,
            db: Mutex::new(Some(db)),
            log: Mutex::new(Log::new(Writer::new(place, epoch + 1))),
            group: Group::default(),
            state: RwLock::new(load(found.store, bounds, options.rescue)?),
            backlog: AtomicUsize::new(0),
            backlog_max: backlog_max(device_blocks),
            wake: crate::metadata::commit::Wake::default(),
            changes: crate::files::ChangeSignal::default(),
            options,
        });
        if !inner.options.read_only {
            inner.note_slack(
                inner
                    .db
                    .lock()
                    .expect("no panic under this lock")
                    .as_ref()
                    .expect("just opened"),
            )?;
            if replayed {
                inner.commit_replayed()?;
            }
            if !inner.options.rescue {
                inner.count_all_held()?;
            }
            inner.finish_removals()?;
        }
        let background = if inner.options.read_only {
            None
        } else {
            Some(Background::start(&inner)?)
        };
        let background = Mutex::new(background);
        Ok(Fs { inner, background })
    }

    /// Creates a handle to a fileset or a snapshot.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub fn fileset(&self, id: TreeId) -> Result<Fileset> {
        self.inner.read().tree(id)?;
        Ok(Fileset {
            fs: Arc::clone(&self.inner),
            id,
        })
    }

    /// Makes all changes so far durable. The caller has already had the caches write back their
    /// pages.
    pub fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    /// As [`Fs::sync`], and commits the changes to the tree, so that a crash leaves no journal to
    /// replay.
    pub fn commit(&self) -> Result<()> {
        self.inner.check_writable()?;
        self.inner.checkpoint()
    }

    /// Returns the space usage. For the usage of each fileset see [`Fs::filesets`].
    pub fn usage(&self) -> Usage {
        let free = self.inner.space.usage();
        let inodes = {
            let state = self.inner.read();
            let filesets = state.trees.values().filter(|t| t.record.origin == 0);
            filesets.map(|tree| tree.record.used_inodes).sum()
        };
        let superblock = self.inner.superblock.lock();
        let segments = superblock.segments.iter();
        Usage {
            blocks: superblock.device_blocks,
            metadata: segments.map(|s| u64::from(s.blocks)).sum(),
            journal: superblock.journal_blocks,
            free: free.free,
            available: free.available,
            largest_free: free.largest_run,
            free_runs: free.runs,
            inodes,
        }
    }

    /// Returns why the file system cannot be changed, if it cannot: it was opened read-only, or an
    /// error occurred after which further changes could lose durable data. Reading still works.
    pub fn read_only_because(&self) -> Option<Error> {
        let asked = self.inner.check_writable().err();
        asked.or_else(|| self.inner.read().failed.clone())
    }

    /// Returns the number of bytes that [`Fs::grow`] would add.
    pub fn growable_bytes(&self) -> u64 {
        let now = self.inner.device.info().size / BLOCK_BYTES;
        let used = self.inner.superblock.lock().device_blocks;
        now.saturating_sub(used) * BLOCK_BYTES
    }

    /// Returns a copy of the superblock.
    pub fn superblock(&self) -> Superblock {
        self.inner.superblock.lock().clone()
    }

    /// Extends the file system to the current size of the device. Returns the bytes in use then.
    pub fn grow(&self) -> Result<u64> {
        self.inner.check_writable()?;
        let now = self.inner.device.info().size / BLOCK_BYTES;
        let before = {
            let mut superblock = self.inner.superblock.lock();
            let now = now.max(superblock.device_blocks);
            std::mem::replace(&mut superblock.device_blocks, now)
        };
        if now > before {
            if let Err(error) = self.inner.superblock.write() {
                self.inner.superblock.lock().device_blocks = before;
                return Err(error.into());
            }
            self.inner.write().bounds.end = now;
            self.inner.space.add(Run {
                start: before,
                blocks: now - before,
            });
        }
        Ok(now.max(before) * BLOCK_BYTES)
    }

    /// Commits everything, closes the file system and releases the device. The caller has already
    /// had the caches write back their pages.
    pub fn close(self) -> Result<()> {
        self.finish()
    }

    /// Like [`Fs::close`] while others still hold the file system: they can change nothing from
    /// here on, and the last of them releases the device. If the last commit fails, it can be
    /// called again.
    pub fn finish(&self) -> Result<()> {
        let mut background = self
            .background
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(threads) = background.as_mut() else {
            return Ok(());
        };
        threads.stop(&self.inner);
        if std::thread::panicking() {
            // Whatever the panic was about, it must not become durable.
            return Ok(());
        }
        self.inner.checkpoint()?;
        // Remaining holders of files can change nothing from here on, and get this error.
        let closed = crate::error::closed();
        self.inner.write().failed.get_or_insert(closed);
        let db = self
            .inner
            .db
            .lock()
            .expect("no panic under this lock")
            .take();
        *background = None;
        db.map_or(Ok(()), Db::close)
    }

    pub(crate) fn inner(&self) -> &Arc<FsShared> {
        &self.inner
    }
}

impl Drop for Fs {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            tracing::error!("{}: close failed: {error}", self.inner.name);
        }
    }
}

impl FsShared {
    pub fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().expect("no panic under this lock")
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().expect("no panic under this lock")
    }

    /// Checks that the file system is open for writing.
    pub fn check_writable(&self) -> Result<()> {
        if self.options.read_only {
            Err(Error::new(
                Kind::ReadOnly,
                "the file system is open read-only",
            ))
        } else {
            Ok(())
        }
    }

    /// Completes removals that a crash or an error interrupted: trees marked as being removed, and
    /// inodes without a name.
    fn finish_removals(self: &Arc<FsShared>) -> Result<()> {
        let trees: Vec<(TreeId, bool, TreeId)> = {
            let state = self.read();
            let all = state.trees.iter();
            all.map(|(id, tree)| (*id, tree.record.removing, tree.record.origin))
                .collect()
        };
        for (id, removing, origin) in trees {
            if removing {
                self.remove_tree_items(id)?;
            } else if origin == 0 {
                let mut orphans = Vec::new();
                self.read()
                    .scan(id, 0, (Item::Orphan, 0, PLACE_MAX), |ino, _| {
                        orphans.push(ino);
                        Ok(true)
                    })?;
                let fs = Arc::clone(self);
                let fileset = Fileset { fs, id };
                orphans
                    .into_iter()
                    .try_for_each(|ino| fileset.remove_orphan(ino).map(drop))?;
            }
        }
        Ok(())
    }
}

/// State found on a device.
struct Found {
    store: Store,
    /// Number of the last commit of the tree.
    epoch: u64,
    /// Whether the journal held any records.
    replayed: bool,
    space: Vec<crate::metadata::database::SpaceChange>,
}

impl Found {
    fn read(io: &DeviceIo, db: &Db, place: &JournalLocation) -> Result<Found> {
        let epoch = db.epoch()?;
        let mut found = Found {
            store: Store::new(db.base()?),
            epoch,
            replayed: false,
            space: Vec::new(),
        };
        for epoch in [epoch + 1, epoch + 2] {
            for delta in journal::read(io, place, epoch)? {
                found.replayed = true;
                found.space.extend(&delta.space);
                found.store.replay(delta);
            }
        }
        Ok(found)
    }

    /// Passes the free blocks to the allocator: those that neither data nor metadata occupies once
    /// the journal is replayed. The metadata may have grown into blocks that the journal frees and
    /// the bitmap still has; so data is processed first, and the metadata's blocks are removed
    /// then.
    fn load_space(&self, db: &Db, superblock: &Superblock, space: &Space) -> Result<()> {
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
fn note_opening(superblock: &SuperblockFile, space: &Space) -> Result<u32> {
    let openings = {
        let mut superblock = superblock.lock();
        superblock.openings = superblock.openings.wrapping_add(1);
        keep_spare(&mut superblock, space);
        superblock.openings
    };
    superblock.write()?;
    Ok(openings)
}

/// Builds the in-memory state from the store. With `rescue`, skips unreadable filesets.
fn load(store: Store, bounds: Range<u64>, rescue: bool) -> Result<State> {
    let mut trees: BTreeMap<TreeId, Tree> = BTreeMap::new();
    let (from, to) = Key::section(Section::Trees);
    let read = store.scan(from, to, |key, bytes| {
        match (Tree::read(&key, bytes), rescue) {
            (Ok((id, tree)), _) => drop(trees.insert(id, tree)),
            (Err(_), true) => {}
            (Err(error), false) => return Err(error),
        }
        Ok(true)
    });
    match read {
        Err(error) if error.kind() == Kind::Corrupt && rescue => {
            tracing::warn!("cannot load all filesets: {error}");
        }
        read => read?,
    }
    let origin = |(id, tree): (&TreeId, &Tree)| (tree.record.origin, *id);
    let snapshots: Vec<(TreeId, TreeId)> = trees.iter().map(origin).filter(|s| s.0 != 0).collect();
    for (origin, id) in snapshots {
        match trees
            .get_mut(&origin)
            .filter(|tree| tree.record.origin == 0)
        {
            Some(tree) => tree.snapshots.push(id),
            None if rescue => drop(trees.remove(&id)),
            None => {
                return Err(Error::corrupt(format!(
                    "snapshot {id}: its fileset does not exist"
                )));
            }
        }
    }
    let next = store.get(&Key::global(Section::NextTree, 0), |bytes| {
        crate::format::record::In::of(bytes, "next fileset id").u32()
    });
    let next = match next {
        Err(error) if error.kind() == Kind::Corrupt && rescue => None,
        next => next?,
    };
    Ok(State {
        store,
        trees,
        cores: HashMap::new(),
        dirty_cores: Vec::new(),
        changes: 0,
        failed: None,
        bounds,
        next_tree: next.unwrap_or(1),
        steps: Vec::new(),
        space: Vec::new(),
    })
}

/// Computes how many changed keys may wait for a commit. A commit of that many writes at most as
/// many pages of the tree, so that a small device has enough space reserved.
fn backlog_max(device_blocks: u64) -> usize {
    (reserve_blocks(device_blocks) as usize * 4).clamp(1024, 1 << 17)
}
