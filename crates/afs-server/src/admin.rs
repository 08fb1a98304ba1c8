//! Administration of a cell: creates volumes, replicas and mount points, sets quotas and access
//! lists. Works with or without a running server.
//!
//! **Invariant:** operations take the same path as a client's call and notify all callback holders;
//! only the permission check is skipped.

use crate::acl::Caller;
use crate::breaks::CallbackBreaks;
use crate::config::Config;
use crate::error::Fault;
use crate::fs_service::RequestContext;
use crate::hosts::Host;
use crate::shared::Shared;
use crate::stats::add;
use crate::survival::Turn;
use crate::volume::{Kind, Volume, VolumeId, Volumes};
use afs_proto::acl::AccessList;
use afs_proto::fs::AfsStoreStatus;
use afs_proto::{AfsFid, Fid};
use cache::Cache;
use fs::{Attr, BLOCK_BYTES, FileType, FilesetChange, Fs, Quota, ROOT, SetAttr, TreeId};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Volumes that clients see at `/afs` and `/afs/CELL`. A cell has both.
pub const ROOTS: [&str; 2] = ["root.afs", "root.cell"];

/// Permissions that distinguish a mount point from a symbolic link (`src/afs/afs_vnodeops.c`, Linux
/// `fs/afs/inode.c`).
const MOUNT_POINT_MODE: u32 = 0o644;

/// Limit on mount points that a path may cross.
const CROSSINGS_MAX: usize = 16;

/// Suffix of a replica that was replaced and is still in use.
const REPLACED: &str = ".replaced";
/// Suffix of a replica until it is complete.
const UNFINISHED: &str = ".unfinished";

/// How long to wait for calls that still use a replaced or removed volume.
const LEAVE: Duration = Duration::from_secs(10);
/// Interval between checks for such calls.
const POLL: Duration = Duration::from_millis(20);

/// Error of an administrative operation.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The volume, directory or mount point does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The request is invalid or not permitted.
    #[error("{0}")]
    Refused(String),
    /// The file system failed.
    #[error("{what}: {source}")]
    Files {
        /// Operation that failed.
        what: String,
        /// Error of the file system.
        source: fs::Error,
    },
    /// The equivalent client call failed.
    #[error("{what}: {why}")]
    Call {
        /// Operation that failed.
        what: String,
        /// Reason, as the client would receive it.
        why: String,
    },
}

type Result<T> = std::result::Result<T, AdminError>;

/// Parameters of a new volume.
#[derive(Debug, Clone)]
pub struct NewVolume {
    /// Volume name.
    pub name: String,
    /// Quota in bytes; 0 for no limit.
    pub quota_bytes: u64,
    /// User and group ID of the root directory.
    pub owner: (u32, u32),
}

/// Condition of the removal of a read-write volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// Only without files and directories.
    IfEmpty,
    /// With its files and directories.
    WithFiles,
}

/// Parameters of a new mount point.
#[derive(Debug, Clone, Copy)]
pub struct MountPoint<'a> {
    /// Volume at whose root the path begins.
    pub volume: &'a str,
    /// Path of the mount point. It may cross other mount points.
    pub path: &'a str,
    /// Volume to mount.
    pub of: &'a str,
    /// Always mount the read-write volume, never its replica.
    pub read_write: bool,
}

/// Administrative access to the volumes of a cell, for processes that have the device.
pub struct Administration {
    shared: Arc<Shared>,
}

impl Administration {
    /// Opens the volumes without a running server.
    ///
    /// # Errors
    /// A fileset cannot be opened.
    pub fn open(fs: Arc<Fs>, cache: Arc<Cache>) -> fs::Result<Administration> {
        let shared = Shared::new(Config::default(), fs, cache)?;
        Ok(Administration { shared })
    }

    pub(crate) fn of(shared: Arc<Shared>) -> Administration {
        Administration { shared }
    }

    /// Returns the volumes of the cell.
    pub fn volumes(&self) -> &Volumes {
        &self.shared.volumes
    }

    /// Looks up the volume with this name or number.
    ///
    /// # Errors
    /// The volume does not exist.
    pub fn volume(&self, name: &str) -> Result<Arc<Volume>> {
        let found = self.volumes().find(name.as_bytes());
        found.ok_or_else(|| {
            AdminError::NotFound(format!(
                "unknown volume `{name}`; `evfs cell volume list DEVICE` lists the volumes"
            ))
        })
    }

    /// Creates an empty volume.
    ///
    /// # Errors
    /// The name is in use or invalid.
    pub fn create(&self, new: &NewVolume) -> Result<Arc<Volume>> {
        let NewVolume { name, owner, .. } = new;
        self.check_create(name)?;
        let failed = || files(format!("cannot create the volume `{name}`"));
        let fs = self.volumes().fs();
        let made = fs.create_fileset(name).map_err(failed())?;
        let set = SetAttr {
            uid: Some(owner.0),
            gid: Some(owner.1),
            ..SetAttr::default()
        };
        made.set_attr(ROOT, &set).map_err(failed())?;
        fs.sync().map_err(failed())?;
        self.refresh()?;
        if new.quota_bytes > 0 {
            self.set_quota(name, new.quota_bytes)?;
        }
        self.volume(name)
    }

    /// Checks that a volume can be created under this name.
    ///
    /// # Errors
    /// The name is invalid or in use.
    pub fn check_create(&self, name: &str) -> Result<()> {
        check_name(name)?;
        let planned = self.volumes().fs().plan(FilesetChange::Create { name });
        planned
            .map(drop)
            .map_err(files(format!("cannot create the volume `{name}`")))
    }

    /// Sets the quota of a volume in bytes; 0 removes the limit.
    ///
    /// # Errors
    /// The volume does not exist or is read-only.
    pub fn set_quota(&self, name: &str, bytes: u64) -> Result<()> {
        let volume = self.writable(name)?;
        let failed = || files(format!("cannot set the quota of `{name}`"));
        let files = volume.files.fileset();
        let quota = Quota {
            blocks: bytes.div_ceil(BLOCK_BYTES),
            inodes: files.record().map_err(failed())?.quota_inodes,
        };
        let fs = self.volumes().fs();
        fs.set_quota(files.id(), quota).map_err(failed())
    }

    /// Creates or replaces the replica or the backup of a volume. A replaced one keeps its number,
    /// and its clients are notified of the change.
    ///
    /// # Errors
    /// The volume does not exist, or the device is full.
    pub fn clone_volume(&self, name: &str, kind: Kind) -> Result<Arc<Volume>> {
        let volume = self.writable(name)?;
        let clone = format!("{name}{}", kind.suffix());
        let failed = || files(format!("cannot create `{clone}`"));
        let (unfinished, replaced) = (clone.clone() + UNFINISHED, clone.clone() + REPLACED);
        for left in [&unfinished, &replaced] {
            self.remove_replaced(left)?;
        }
        let fs = self.volumes().fs();
        volume.files.sync().map_err(failed())?;
        let made = fs.snapshot(volume.files.fileset().id(), &unfinished);
        let made = made.map_err(failed())?.id();
        if let Some(old) = self.tree(&clone) {
            fs.rename_fileset(old, &replaced).map_err(failed())?;
        }
        fs.rename_fileset(made, &clone).map_err(failed())?;
        drop(volume);
        self.refresh()?;
        self.remove_replaced(&replaced)?;
        self.volume(&clone)
    }

    /// Removes a volume permanently, and a read-write volume's replica and backup with it.
    ///
    /// # Errors
    /// The volume does not exist, is required by the cell, has other snapshots, or is not empty.
    pub fn remove(&self, name: &str, removal: Removal) -> Result<()> {
        // Clones first: a fileset with snapshots cannot be removed.
        let doomed = self.check_remove(name, removal)?;
        doomed
            .into_iter()
            .try_for_each(|one| self.remove_volume(one))
    }

    /// Checks that a volume can be removed, and lists the volumes that its removal removes, clones
    /// first.
    ///
    /// # Errors
    /// Those of [`Administration::remove`].
    pub fn check_remove(&self, name: &str, removal: Removal) -> Result<Vec<Arc<Volume>>> {
        let volume = self.volume(name)?;
        let name = volume.name.clone();
        if ROOTS.contains(&name.as_str()) {
            let why =
                format!("cannot remove `{name}`: no cell works without it; remove other volumes");
            return Err(AdminError::Refused(why));
        }
        let failed = || files(format!("cannot remove `{name}`"));
        let record = volume.files.fileset().record().map_err(failed())?;
        let holds = record.used_inodes.saturating_sub(1);
        if volume.kind == Kind::ReadWrite && holds > 0 && removal == Removal::IfEmpty {
            return Err(AdminError::Refused(format!(
                "`{name}` is not empty ({holds} files and directories); --force removes them \
                 permanently"
            )));
        }
        let mut doomed = vec![name.clone()];
        if volume.kind == Kind::ReadWrite {
            let clones = [Kind::ReadOnly, Kind::Backup].map(|kind| name.clone() + kind.suffix());
            doomed.splice(0..0, clones);
        }
        // Snapshots that were made by other means must not be removed.
        let id = volume.files.fileset().id();
        let trees = self.volumes().fs().filesets();
        if let Some((_, other)) = trees
            .iter()
            .find(|(_, r)| r.origin == id && !doomed.contains(&r.name))
        {
            return Err(AdminError::Refused(format!(
                "`{name}` has the snapshot `{}`; remove it first with `evfs fileset remove`",
                other.name
            )));
        }
        let doomed = doomed.iter().filter_map(|name| self.volume(name).ok());
        Ok(doomed.collect())
    }

    /// Hides a volume from clients, waits for their calls to end, and removes it.
    fn remove_volume(&self, volume: Arc<Volume>) -> Result<()> {
        let tree = volume.files.fileset().id();
        self.volumes().hide(tree);
        let removed = self.refresh().and_then(|()| {
            let until = Instant::now() + LEAVE;
            while Arc::strong_count(&volume) > 1 && Instant::now() < until {
                std::thread::sleep(POLL);
            }
            let failed = files(format!("cannot write back `{}`", volume.name));
            volume.files.close().map_err(failed)?;
            self.remove_tree(tree, &volume.name)
        });
        self.volumes().show(tree);
        match removed {
            Ok(()) => Ok(()),
            // The fileset still exists, so make it visible again.
            Err(error) => self.refresh().and(Err(error)),
        }
    }

    /// Creates a mount point.
    ///
    /// # Errors
    /// The volume or directory does not exist, or the name is in use.
    pub fn mount(&self, point: &MountPoint<'_>) -> Result<()> {
        let MountPoint { path, of, .. } = *point;
        self.volume(of)?;
        let (volume, dir, name) = self.place(point.volume, path)?;
        let sign = if point.read_write { '%' } else { '#' };
        let contents = format!("{sign}{of}.");
        let wanted = AfsStoreStatus {
            unix_mode_bits: Some(MOUNT_POINT_MODE),
            ..AfsStoreStatus::default()
        };
        let made = self
            .visit()
            .symlink(&fid(&volume, &dir), &name, contents.as_bytes(), &wanted);
        made.map(drop)
            .map_err(call(format!("cannot create the mount point {path}")))
    }

    /// Checks that a mount point can be created at `path`.
    ///
    /// # Errors
    /// The directory does not exist, or the name is in use.
    pub fn check_mount(&self, volume: &str, path: &str) -> Result<()> {
        let (volume, dir, name) = self.place(volume, path)?;
        match volume.files.lookup(dir.ino, &name) {
            Err(error) if error.kind() == fs::Kind::NotFound => Ok(()),
            Err(error) => Err(files(format!("cannot read {path}"))(error)),
            Ok(_) => Err(AdminError::Refused(format!(
                "{path} already exists; choose another path"
            ))),
        }
    }

    /// Resolves a path except for its last component, and returns that component.
    fn place(&self, volume: &str, path: &str) -> Result<(Arc<Volume>, Attr, Vec<u8>)> {
        let trimmed = path.trim_end_matches('/');
        let (above, name) = trimmed.rsplit_once('/').unwrap_or(("", trimmed));
        if matches!(name, "" | "." | "..") {
            let why = format!("{path} cannot be a mount point");
            return Err(AdminError::Refused(why));
        }
        let (volume, dir) = self.directory(volume, above)?;
        if volume.kind != Kind::ReadWrite {
            let why = format!("`{}` is read-only", volume.name);
            return Err(AdminError::Refused(why));
        }
        Ok((volume, dir, name.as_bytes().to_vec()))
    }

    /// Reads the access list of a directory.
    ///
    /// # Errors
    /// The volume or directory does not exist.
    pub fn access_list(&self, volume: &str, path: &str) -> Result<AccessList> {
        let (volume, dir) = self.directory(volume, path)?;
        let list = volume.lists.of(&volume.files, &dir);
        let list = list.map_err(files(format!("cannot read the access list of {path}")))?;
        Ok(AccessList::clone(&list))
    }

    /// Sets the access list of a directory. Directories created in it later inherit the list.
    ///
    /// # Errors
    /// The volume or directory does not exist, or the list is too long.
    pub fn set_access_list(&self, volume: &str, path: &str, list: &AccessList) -> Result<()> {
        let (volume, dir, text) = self.storable_list(volume, path, list)?;
        let stored = self.visit().store_list(&fid(&volume, &dir), &text);
        stored
            .map(drop)
            .map_err(call(format!("cannot set the access list of {path}")))
    }

    /// Checks that the access list of a directory can be set.
    ///
    /// # Errors
    /// Those of [`Administration::set_access_list`].
    pub fn check_access_list(&self, volume: &str, path: &str, list: &AccessList) -> Result<()> {
        self.storable_list(volume, path, list).map(drop)
    }

    /// Finds the directory of an access list, and encodes the list.
    fn storable_list(
        &self,
        volume: &str,
        path: &str,
        list: &AccessList,
    ) -> Result<(Arc<Volume>, Attr, Vec<u8>)> {
        let (volume, dir) = self.directory(volume, path)?;
        let text = list.to_text();
        let text = text.map_err(|error| AdminError::Refused(error.to_string()))?;
        Ok((volume, dir, text))
    }

    /// Resolves a path to a directory; the path may cross mount points.
    fn directory(&self, volume: &str, path: &str) -> Result<(Arc<Volume>, Attr)> {
        let no_folder = |path: &str| {
            AdminError::NotFound(format!(
                "no such directory: {path}; check the path in the volume"
            ))
        };
        let failed = || files(format!("cannot read {path}"));
        let mut volume = self.volume(volume)?;
        let mut attr = volume.files.attr(ROOT).map_err(failed())?;
        let mut crossings = 0;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            attr = match volume.files.lookup(attr.ino, part.as_bytes()) {
                Err(error) if error.kind() == fs::Kind::NotFound => return Err(no_folder(path)),
                found => found.map_err(failed())?,
            };
            if let Some(name) = mounted_by(&volume, &attr).map_err(failed())? {
                crossings += 1;
                if crossings > CROSSINGS_MAX {
                    return Err(AdminError::Refused(format!(
                        "too many mount points in {path}: they may form a loop; use a shorter path"
                    )));
                }
                volume = self.volume(&name)?;
                attr = volume.files.attr(ROOT).map_err(failed())?;
            }
            if !attr.inode.is_dir() {
                return Err(AdminError::Refused(format!(
                    "{part} in {path} is not a directory; use the path of a directory"
                )));
            }
        }
        Ok((volume, attr))
    }

    /// Looks up the volume with this name, which must be read-write.
    ///
    /// # Errors
    /// The volume does not exist, or is a replica or a backup.
    pub fn writable(&self, name: &str) -> Result<Arc<Volume>> {
        let volume = self.volume(name)?;
        match volume.kind {
            Kind::ReadWrite => Ok(volume),
            _ => Err(AdminError::Refused(format!(
                "`{}` is read-only; name the volume that it was created from",
                volume.name
            ))),
        }
    }

    fn visit(&self) -> RequestContext<'_> {
        RequestContext {
            shared: &self.shared,
            host: Arc::new(Host::new(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), 0)),
            caller: Caller::Administrator,
            turn: Turn::new(None, None),
            stored: 0,
        }
    }

    fn tree(&self, name: &str) -> Option<TreeId> {
        let trees = self.volumes().fs().filesets();
        let found = trees.into_iter().find(|(_, record)| record.name == name);
        found.map(|(id, _)| id)
    }

    /// Reloads the list of volumes and notifies the clients of volumes that changed as a whole.
    ///
    /// # Errors
    /// A fileset cannot be opened; the others are available.
    pub fn refresh(&self) -> Result<()> {
        let changed = self.volumes().refresh();
        let changed = changed.map_err(files("cannot open a volume".into()))?;
        self.notify(&changed);
        Ok(())
    }

    fn notify(&self, changed: &[VolumeId]) {
        let mut breaks = CallbackBreaks::default();
        for volume in changed {
            self.shared.promises.take_volume(*volume, &mut breaks);
        }
        self.shared.hosts.pass_told();
        let told = breaks.notify_all(&self.shared.hosts);
        add(&self.shared.counters.breaks, told);
    }

    /// Removes a replaced or unfinished replica, once no call uses it.
    fn remove_replaced(&self, name: &str) -> Result<()> {
        match self.tree(name) {
            Some(tree) => self.remove_tree(tree, name),
            None => Ok(()),
        }
    }

    /// Removes a tree once the calls that use it have ended. It must be hidden from clients before.
    fn remove_tree(&self, tree: TreeId, name: &str) -> Result<()> {
        let until = Instant::now() + LEAVE;
        loop {
            match self.volumes().fs().remove_fileset(tree) {
                Err(error) if error.kind() == fs::Kind::Busy && Instant::now() < until => {
                    std::thread::sleep(POLL);
                }
                removed => return removed.map_err(files(format!("cannot remove `{name}`"))),
            }
        }
    }
}

/// Reads the name of the volume that a mount point refers to, or `None` for any other inode.
fn mounted_by(volume: &Volume, attr: &Attr) -> fs::Result<Option<String>> {
    let is_one =
        attr.inode.kind == FileType::Symlink && attr.inode.permissions & 0o777 == MOUNT_POINT_MODE;
    if !is_one {
        return Ok(None);
    }
    let contents = volume.files.read_link(attr.ino)?;
    let text = std::str::from_utf8(&contents).unwrap_or_default();
    let target = text
        .strip_prefix(['#', '%'])
        .and_then(|t| t.strip_suffix('.'));
    // A name with a cell prefix refers to another cell.
    Ok(target.filter(|t| !t.contains(':')).map(str::to_owned))
}

fn fid(volume: &Volume, attr: &Attr) -> AfsFid {
    // An inode that AFS cannot address is represented by 0, which is no valid number.
    let fid = crate::fid::of(attr).unwrap_or(Fid {
        vnode: 0,
        unique: 0,
    });
    fid.within(volume.id)
}

/// Checks a volume name: it must leave room for the suffixes, must not be a number, and must be
/// unambiguous in mount points.
fn check_name(name: &str) -> Result<()> {
    const BYTES_MAX: usize = 55;
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let suffixed = Kind::ALL[1..]
        .iter()
        .any(|kind| name.ends_with(kind.suffix()));
    let is_number = name.bytes().all(|b| b.is_ascii_digit());
    let plain = (1..=BYTES_MAX).contains(&name.len()) && name.chars().all(good);
    if plain && !name.starts_with(['.', '-']) && !name.ends_with('.') && !is_number && !suffixed {
        Ok(())
    } else {
        Err(AdminError::Refused(format!(
            "`{name}` is not a valid volume name; use letters, digits, `.`, `_` and `-`, at most \
             {BYTES_MAX}, not digits alone, not ending with .readonly or .backup"
        )))
    }
}

fn files(what: String) -> impl FnOnce(fs::Error) -> AdminError {
    move |source| AdminError::Files { what, source }
}

fn call(what: String) -> impl FnOnce(Fault) -> AdminError {
    move |fault| {
        let why = match fault {
            Fault::Errno(errno) => std::io::Error::from_raw_os_error(errno).to_string(),
            Fault::Code(code) => code.to_string(),
            Fault::Call(error) => error.to_string(),
        };
        AdminError::Call { what, why }
    }
}
