//! Filesets as volumes.
//!
//! A fileset `NAME` is the read-write volume `NAME`; a snapshot of it named `NAME.readonly` or
//! `NAME.backup` is its replica or backup. The three have adjacent numbers derived from the
//! fileset's, so a recreated replica keeps its number.
//!
//! **Invariant:** a number always denotes the same volume; numbers have 31 bits, because clients
//! treat them as signed.

use crate::acl::{Allowed, Caller, Lists};
use crate::config::Config;
use crate::directories::{Directories, is_shown};
use crate::error::CallResult;
use crate::fid;
use crate::stores::Stores;
use afs_proto::{Abort, AfsFid, AfsVolSync, Fid};
use cache::Cache;
use fs::{Attr, Files, Fs, Ino, TreeId, TreeRecord};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard};

/// Volume number.
pub type VolumeId = u32;

/// First volume number, the same as in OpenAFS.
const FIRST: VolumeId = 0x2000_0000;

/// Numbers reserved per fileset: the volume, its replica, its backup, and a spare one.
const NUMBERS: VolumeId = 4;

/// Longest name in bytes, including a suffix: the limit of location service entries.
const NAME_BYTES_MAX: usize = 64;

/// Role of a volume for its fileset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The fileset itself.
    ReadWrite,
    /// Replica: the snapshot that is mounted read-only in its place.
    ReadOnly,
    /// Backup: the snapshot of an earlier state.
    Backup,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Kind; 3] = [Kind::ReadWrite, Kind::ReadOnly, Kind::Backup];

    /// Returns the suffix of the volume name.
    pub fn suffix(self) -> &'static str {
        match self {
            Kind::ReadWrite => "",
            Kind::ReadOnly => ".readonly",
            Kind::Backup => ".backup",
        }
    }

    /// Returns the volume number of this kind for a fileset; `None` if it exceeds 31 bits.
    pub fn id(self, fileset: TreeId) -> Option<VolumeId> {
        let first = fileset.checked_mul(NUMBERS)?.checked_add(FIRST)?;
        (first <= i32::MAX as u32 - NUMBERS).then(|| first + self as u32)
    }
}

pub struct Volume {
    /// Volume number.
    pub id: VolumeId,
    /// Number of the read-write volume.
    pub parent: VolumeId,
    /// Role for its fileset.
    pub kind: Kind,
    /// Name including the suffix.
    pub name: String,
    /// Files of the volume.
    pub files: Arc<Files>,
    /// Creation time, a Unix timestamp in seconds.
    created: u32,
    pub(crate) directories: Directories,
    pub(crate) stores: Stores,
    pub(crate) lists: Lists,
}

/// All volumes of a server.
pub struct Volumes {
    fs: Arc<Fs>,
    cache: Arc<Cache>,
    config: Config,
    table: RwLock<Table>,
    /// Trees that are hidden because they are being removed.
    hidden: Mutex<HashSet<TreeId>>,
    /// Held while the table is rebuilt.
    refreshing: Mutex<()>,
}

#[derive(Default)]
struct Table {
    by_id: HashMap<VolumeId, Arc<Volume>>,
    /// Tree of each volume.
    trees: HashMap<VolumeId, TreeId>,
}

impl Volume {
    /// Resolves a file identifier to an inode.
    pub(crate) fn ino(&self, fid: &AfsFid) -> CallResult<Ino> {
        let fid = Fid::from(fid);
        let ino = fid::ino_of(fid).ok_or(Abort::VNOVNODE)?;
        let attr = self.files.attr(ino)?;
        if fid::of(&attr) == Some(fid) && is_shown(attr.inode.kind) {
            Ok(ino)
        } else {
            Err(Abort::VNOVNODE.into())
        }
    }

    /// Reads an inode with the version to report to clients.
    pub(crate) fn attr(&self, ino: Ino) -> CallResult<Attr> {
        Ok(self.stores.attr(&self.files, ino)?)
    }

    /// Determines the rights on an inode. A directory has its own access list; any other file uses
    /// that of the directory it was created in or moved to. If that directory no longer exists,
    /// only an administrator has rights.
    pub(crate) fn allowed(&self, attr: &Attr, caller: &Caller) -> CallResult<Allowed> {
        if attr.inode.is_dir() {
            return Ok(self.lists.allowed(&self.files, attr, caller)?);
        }
        match self.files.attr(attr.inode.parent) {
            Ok(parent) if parent.inode.is_dir() => {
                Ok(self.lists.allowed(&self.files, &parent, caller)?)
            }
            Err(error) if !matches!(error.kind(), fs::Kind::Stale | fs::Kind::NotFound) => {
                Err(error.into())
            }
            _ => Ok(Allowed::nothing(caller)),
        }
    }

    /// Builds the volume information of replies.
    pub(crate) fn sync(&self) -> AfsVolSync {
        AfsVolSync {
            creation: self.created,
        }
    }

    /// Fails if the volume is read-only.
    pub(crate) fn check_writable(&self) -> CallResult<()> {
        match self.kind {
            Kind::ReadWrite => Ok(()),
            Kind::ReadOnly | Kind::Backup => Err(fs::Error::from(fs::Kind::ReadOnly).into()),
        }
    }
}

impl Volumes {
    /// Opens the filesets of a file system, with their pages in `cache`.
    ///
    /// # Errors
    /// A fileset cannot be opened.
    pub fn open(fs: Arc<Fs>, cache: Arc<Cache>, config: &Config) -> fs::Result<Volumes> {
        let volumes = Volumes {
            fs,
            cache,
            config: config.clone(),
            table: RwLock::default(),
            hidden: Mutex::default(),
            refreshing: Mutex::new(()),
        };
        volumes.refresh()?;
        Ok(volumes)
    }

    fn table(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().expect("no panic under this lock")
    }

    /// Looks up the volume with this number.
    pub fn get(&self, id: VolumeId) -> Option<Arc<Volume>> {
        self.table().by_id.get(&id).cloned()
    }

    /// Looks up the volume with this name, or with this number in decimal digits.
    pub fn find(&self, name: &[u8]) -> Option<Arc<Volume>> {
        let name = std::str::from_utf8(name).ok()?;
        if let Ok(id) = name.parse() {
            return self.get(id);
        }
        let table = self.table();
        table.by_id.values().find(|v| v.name == name).cloned()
    }

    /// Returns the read-write volume, its replica and its backup, as far as they exist.
    pub fn family(&self, of: &Volume) -> [Option<Arc<Volume>>; 3] {
        let table = self.table();
        Kind::ALL.map(|kind| table.by_id.get(&(of.parent + kind as u32)).cloned())
    }

    /// Returns all volumes, in no particular order.
    pub fn all(&self) -> Vec<Arc<Volume>> {
        self.table().by_id.values().cloned().collect()
    }

    /// Returns the underlying file system.
    pub fn fs(&self) -> &Arc<Fs> {
        &self.fs
    }

    /// Reloads the filesets and snapshots. Returns the numbers of volumes that were replaced or
    /// removed.
    ///
    /// # Errors
    /// A fileset cannot be opened; the others are available.
    pub fn refresh(&self) -> fs::Result<Vec<VolumeId>> {
        let _alone = self.refreshing.lock().expect("no panic under this lock");
        let trees = self.fs.filesets();
        let hidden = self.hidden().clone();
        let wanted: Vec<_> = trees
            .iter()
            .filter(|(tree, _)| !hidden.contains(tree))
            .filter_map(|tree| place(tree, &trees))
            .collect();
        let mut first = Ok(());
        let mut changed = Vec::new();
        for (tree, record, kind, parent) in &wanted {
            let id = parent + *kind as u32;
            let there = {
                let table = self.table();
                table.trees.get(&id) == Some(tree)
                    && table.by_id.get(&id).is_some_and(|v| v.name == record.name)
            };
            if there {
                continue;
            }
            match self.make(*tree, record, *kind, *parent) {
                Ok(volume) => {
                    let mut table = self.table.write().expect("no panic under this lock");
                    table.trees.insert(id, *tree);
                    if table.by_id.insert(id, volume).is_some() {
                        changed.push(id);
                    }
                }
                Err(error) => first = first.and(Err(error)),
            }
        }
        let mut table = self.table.write().expect("no panic under this lock");
        let is_wanted = |id: &VolumeId| {
            wanted
                .iter()
                .any(|(_, _, kind, parent)| *id == parent + *kind as u32)
        };
        changed.extend(table.by_id.keys().copied().filter(|id| !is_wanted(id)));
        table.by_id.retain(|id, _| is_wanted(id));
        table.trees.retain(|id, _| is_wanted(id));
        first.map(|()| changed)
    }

    /// Hides a tree from clients, from the next refresh on.
    pub(crate) fn hide(&self, tree: TreeId) {
        self.hidden().insert(tree);
    }

    /// Shows a hidden tree again, from the next refresh on.
    pub(crate) fn show(&self, tree: TreeId) {
        self.hidden().remove(&tree);
    }

    fn hidden(&self) -> MutexGuard<'_, HashSet<TreeId>> {
        self.hidden.lock().expect("no panic under this lock")
    }

    fn make(
        &self,
        tree: TreeId,
        record: &TreeRecord,
        kind: Kind,
        parent: VolumeId,
    ) -> fs::Result<Arc<Volume>> {
        let files = Files::new(&self.fs.fileset(tree)?, &self.cache)?;
        Ok(Arc::new(Volume {
            id: parent + kind as u32,
            parent,
            kind,
            name: record.name.clone(),
            files,
            created: u32::try_from(record.created.seconds).unwrap_or(0),
            directories: Directories::new(self.config.directory_bytes_max),
            stores: Stores::new(),
            lists: Lists::new(self.config.anonymous_write),
        }))
    }
}

/// Determines the volume that a tree represents: tree, record, kind, and number of the read-write
/// volume.
fn place<'t>(
    (tree, record): &'t (TreeId, TreeRecord),
    all: &[(TreeId, TreeRecord)],
) -> Option<(TreeId, &'t TreeRecord, Kind, VolumeId)> {
    if record.name.len() > NAME_BYTES_MAX || record.receiving.is_some() {
        return None;
    }
    let suffixed = |kind: &Kind| *kind != Kind::ReadWrite && record.name.ends_with(kind.suffix());
    let kind = Kind::ALL.into_iter().find(suffixed);
    match (record.origin, kind) {
        (0, None) if record.name.parse::<VolumeId>().is_err() => {
            Some((*tree, record, Kind::ReadWrite, Kind::ReadWrite.id(*tree)?))
        }
        (0, _) => None,
        (origin, Some(kind)) => {
            let (_, of) = all.iter().find(|(id, _)| *id == origin)?;
            let is_its = record.name.strip_suffix(kind.suffix()) == Some(&of.name);
            is_its.then_some((*tree, record, kind, Kind::ReadWrite.id(origin)?))
        }
        (_, None) => None,
    }
}
