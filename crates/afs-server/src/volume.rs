//! Filesets as volumes.
//!
//! A fileset called `NAME` is the volume `NAME` that is written; a snapshot of it that is called
//! `NAME.readonly` or `NAME.backup` is its replica or its backup. The three have neighbouring numbers,
//! which follow from the fileset's, so a replica that is made anew keeps its number.
//!
//! **Invariant:** a number always means the same volume; numbers have 31 bits, as clients take them for
//! signed ones.

use crate::acl::{Allowed, Caller, Lists};
use crate::config::Config;
use crate::directories::{Directories, is_shown};
use crate::error::Outcome;
use crate::fid::Fid;
use crate::stores::Stores;
use afs_proto::{Abort, AfsFid, AfsVolSync};
use cache::Cache;
use fs::{Attr, Files, Fs, Ino, TreeId, TreeRecord};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard};

/// The number of a volume.
pub type VolumeId = u32;

/// The first number, as OpenAFS counts from.
const FIRST: VolumeId = 0x2000_0000;

/// Numbers that each fileset has: the volume, its replica, its backup, and one that is spare.
const NUMBERS: VolumeId = 4;

/// Bytes of a name, with the longest suffix, so that it fits entries of the location service.
const NAME_BYTES_MAX: usize = 64;

/// What a volume is to its fileset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The fileset itself.
    ReadWrite,
    /// The snapshot that stands for it where it is only read.
    ReadOnly,
    /// The snapshot that shows how it was.
    Backup,
}

impl Kind {
    /// All of them, in the order of their numbers.
    pub const ALL: [Kind; 3] = [Kind::ReadWrite, Kind::ReadOnly, Kind::Backup];

    /// What its name ends with.
    pub fn suffix(self) -> &'static str {
        match self {
            Kind::ReadWrite => "",
            Kind::ReadOnly => ".readonly",
            Kind::Backup => ".backup",
        }
    }

    /// The number of the volume of this kind for a fileset, if there is a number.
    pub fn id(self, fileset: TreeId) -> Option<VolumeId> {
        let first = fileset.checked_mul(NUMBERS)?.checked_add(FIRST)?;
        (first <= i32::MAX as u32 - NUMBERS).then(|| first + self as u32)
    }
}

/// A volume.
pub struct Volume {
    /// Its number.
    pub id: VolumeId,
    /// The number of the volume that is written.
    pub parent: VolumeId,
    /// What it is.
    pub kind: Kind,
    /// Its name, with its suffix.
    pub name: String,
    /// Its files.
    pub files: Arc<Files>,
    /// When it was made, in seconds of 1970.
    created: u32,
    pub(crate) directories: Directories,
    pub(crate) stores: Stores,
    pub(crate) lists: Lists,
}

/// The volumes of a server.
pub struct Volumes {
    fs: Arc<Fs>,
    cache: Arc<Cache>,
    config: Config,
    table: RwLock<Table>,
    /// Trees that are not shown any more, because they are being removed.
    hidden: Mutex<HashSet<TreeId>>,
    /// Held while the table is made anew.
    refreshing: Mutex<()>,
}

#[derive(Default)]
struct Table {
    by_id: HashMap<VolumeId, Arc<Volume>>,
    /// Of each, which tree it is of.
    trees: HashMap<VolumeId, TreeId>,
}

impl Volume {
    /// The inode that a file's number means.
    pub(crate) fn ino(&self, fid: &AfsFid) -> Outcome<Ino> {
        let fid = Fid::from(fid);
        let ino = fid.ino().ok_or(Abort::VNOVNODE)?;
        let attr = self.files.attr(ino)?;
        match Fid::of(&attr) == Some(fid) && is_shown(attr.inode.kind) {
            true => Ok(ino),
            false => Err(Abort::VNOVNODE.into()),
        }
    }

    /// An inode as clients are shown it.
    pub(crate) fn attr(&self, ino: Ino) -> Outcome<Attr> {
        Ok(self.stores.attr(&self.files, ino)?)
    }

    /// What a caller may do with an inode: the list of a directory is its own, of all else that of the
    /// directory it was made in or moved to. Where that is gone, only an administrator may do anything.
    pub(crate) fn allowed(&self, attr: &Attr, caller: &Caller) -> Outcome<Allowed> {
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

    /// What replies say of it.
    pub(crate) fn sync(&self) -> AfsVolSync {
        AfsVolSync {
            creation: self.created,
        }
    }

    /// Refuses changes to what is only read.
    pub(crate) fn check_writable(&self) -> Outcome<()> {
        match self.kind {
            Kind::ReadWrite => Ok(()),
            Kind::ReadOnly | Kind::Backup => Err(fs::Error::from(fs::Kind::ReadOnly).into()),
        }
    }
}

impl Volumes {
    /// The filesets of a file system, with their pages in a cache.
    ///
    /// # Errors
    /// A fileset could not be opened.
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

    /// The volume of that number.
    pub fn get(&self, id: VolumeId) -> Option<Arc<Volume>> {
        self.table().by_id.get(&id).cloned()
    }

    /// The volume of that name, or of that number in decimal digits.
    pub fn find(&self, name: &[u8]) -> Option<Arc<Volume>> {
        let name = std::str::from_utf8(name).ok()?;
        if let Ok(id) = name.parse() {
            return self.get(id);
        }
        let table = self.table();
        table.by_id.values().find(|v| v.name == name).cloned()
    }

    /// The volume that is written, its replica and its backup, as far as they are there.
    pub fn family(&self, of: &Volume) -> [Option<Arc<Volume>>; 3] {
        let table = self.table();
        Kind::ALL.map(|kind| table.by_id.get(&(of.parent + kind as u32)).cloned())
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Volume>> {
        self.table().by_id.values().cloned().collect()
    }

    /// The file system that they are in.
    pub fn fs(&self) -> &Arc<Fs> {
        &self.fs
    }

    /// Looks again which filesets and snapshots there are. Gives the numbers of volumes that are not, or
    /// not any more, what they were.
    ///
    /// # Errors
    /// A fileset could not be opened; the others are there.
    pub fn refresh(&self) -> fs::Result<Vec<VolumeId>> {
        let _alone = self.refreshing.lock().expect("no panic under this lock");
        let trees = self.fs.filesets();
        let hidden = self
            .hidden
            .lock()
            .expect("no panic under this lock")
            .clone();
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

    /// Shows a tree to nobody, from the next look at what there is, or shows it again.
    pub(crate) fn hide(&self, tree: TreeId, hide: bool) {
        let mut hidden = self.hidden.lock().expect("no panic under this lock");
        match hide {
            true => hidden.insert(tree),
            false => hidden.remove(&tree),
        };
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

/// What volume a tree is: its tree, record, kind, and the number of the one that is written.
fn place<'t>(
    (tree, record): &'t (TreeId, TreeRecord),
    all: &[(TreeId, TreeRecord)],
) -> Option<(TreeId, &'t TreeRecord, Kind, VolumeId)> {
    if record.name.len() > NAME_BYTES_MAX {
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
