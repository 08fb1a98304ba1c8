//! File systems on DEVICEs: formatting, checks, and requests that need no mount.
//!
//! **Invariant:** one function answers each request in both cases: if the file system is mounted,
//! the serving process receives the request; otherwise the file system is opened just for the
//! request.

mod compression;
pub(crate) mod grow;
pub(crate) mod online;
mod owners;
mod scrub;
mod shown;
pub(crate) mod shrink;
#[cfg(test)]
mod tests;
pub mod transfer;

use crate::cell_record::Record;
use crate::control::{self, ControlRequest, FsRequest, Limits, Run};
use crate::error::Left;
use crate::existing::Existing;
use crate::handle::mounted_as;
use crate::opener::{KeySource, Opener};
use crate::signature::{self, Content, View};
use crate::text::{json_of, uuid_text};
use crate::volume::{self, OpenOptions, OpenedDevice};
use crate::{Error, Result, Settings, device};
use ::fs::{Attr, Fileset, FilesetChange, Fs, Quota, ROOT, SetAttr, TreeId, TreeRecord};
pub use ::fs::{
    BLOCK_BYTES, Damage, DamageKind, DataChecksums, Defragmented, FIRST_FILESET, Finding,
    FindingKind, Repair, Report,
};
use block::Access;
use block::{BlockDevice, Blocking, Stats, StatsHandle};
pub use grow::{Grown, Resized, grow};
pub use online::{defrag, fsck_online};
pub use owners::{FilesetOwners, ShownOwner};
use schemars::JsonSchema;
pub(crate) use scrub::step_bytes as scrub_step_bytes;
pub use scrub::{ScrubOptions, Scrubbed, scrub};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use shown::Part;
pub use shown::{Differences, Filesets, Removed, RolledBack, ShownDifference};
pub use shown::{ShownFileset, ShownUsage};
pub use shrink::{ShrinkTo, Shrunk, shrink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of zeros written at a time when old data is wiped.
const WIPE_BYTES: usize = 1 << 20;

/// A DEVICE and the means to open it.
pub struct Target<'a> {
    /// The DEVICE, as the user named it.
    pub path: &'a Path,
    /// Opener for encrypted volumes.
    pub opener: &'a Opener,
    /// Callback for the key, if one is needed.
    pub source: &'a dyn Fn() -> Result<KeySource>,
    /// Whether the user has named a key.
    pub key_given: bool,
    /// Settings of the command.
    pub settings: &'a Settings,
}

impl Target<'_> {
    /// Opens the device.
    ///
    /// # Errors
    /// Those of [`volume::open_any`]; a key was named for a plaintext device.
    pub fn open(&self, options: OpenOptions) -> Result<OpenedDevice> {
        let open = volume::open_any(self.path, self.opener, self.source, options, self.settings)?;
        self.needed_key(open)
    }

    /// Same as [`Target::open`], for a DEVICE that is already open for formatting.
    pub(crate) fn of_disk(&self, disk: device::Disk) -> Result<OpenedDevice> {
        let options = OpenOptions::default();
        let open = volume::of_disk(disk, self.opener, self.source, options)?;
        self.needed_key(open)
    }

    /// Refuses a key for a plaintext device: the user is mistaken about the device.
    fn needed_key(&self, open: OpenedDevice) -> Result<OpenedDevice> {
        if open.cipher.is_none() && self.key_given {
            Err(Error::Usage(format!(
                "{} is not encrypted and takes no key; `evfs volume create` creates an encrypted \
                 volume",
                self.name()
            )))
        } else {
            Ok(open)
        }
    }

    /// Names the device in error messages.
    pub(crate) fn name(&self) -> String {
        self.path.display().to_string()
    }
}

/// Attributes of the root directory of a new file system. By default, it belongs to the user and the
/// group of this process, and has the mode 0755.
#[derive(Debug, Clone, Copy, Default)]
pub struct RootDir {
    /// User that owns it.
    pub uid: Option<u32>,
    /// Group that owns it.
    pub gid: Option<u32>,
    /// Permission bits.
    pub mode: Option<u32>,
}

/// A new file system.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Formatted {
    /// UUID of the file system.
    pub uuid: String,
    /// Label of the file system.
    pub label: String,
    /// Size of the device, in bytes.
    pub size: u64,
    /// Whether the device is encrypted.
    pub encrypted: bool,
    /// Whether the checksums of data and metadata are keyed.
    pub integrity: bool,
    /// Name of the first fileset.
    pub fileset: &'static str,
    /// Path of the backup of the first overwritten bytes, if there was data.
    #[serde(serialize_with = "crate::text::path_as_text")]
    pub undo: Option<PathBuf>,
}

/// Creates a file system. A missing file is created with `size` bytes, and gets its name only when
/// the file system is complete.
///
/// # Errors
/// [`Error::WouldDestroy`] if the device is not empty and its data is to be kept.
pub fn format(
    target: &Target<'_>,
    label: &str,
    size: Option<u64>,
    root: RootDir,
    checksums: DataChecksums,
    existing: Existing,
) -> Result<Formatted> {
    let (disk, made) = volume::open_or_make(target.path, size, existing, target.settings)?;
    let open = target.of_disk(disk)?;
    let formatted = format_device(target, &open, label, root, checksums, existing)?;
    made.map(volume::Made::finish).transpose()?;
    Ok(formatted)
}

pub(crate) fn format_device(
    target: &Target<'_>,
    open: &OpenedDevice,
    label: &str,
    root: RootDir,
    checksums: DataChecksums,
    existing: Existing,
) -> Result<Formatted> {
    let device = &open.device;
    // Before anything is overwritten.
    if checksums == DataChecksums::Keyed && open.cipher.is_none() {
        return Err(Error::Usage(format!(
            "cannot format {} with --integrity: it is not encrypted, and keyed checksums need the \
             key of a volume; make one with `evfs volume create`",
            target.name()
        )));
    }
    let mut undo = None;
    if let Some(found) = content(open)? {
        let head = signature::HEAD_BYTES;
        if existing == Existing::Keep {
            return Err(Error::WouldDestroy {
                device: target.name(),
                found: found.to_string(),
                kept: Left::Head(head),
            });
        }
        // The backup has the bytes as stored on the disk: encrypted data stays encrypted.
        let len = head + open.cipher.as_ref().map_or(0, |c| c.data_offset);
        let kept = volume::save_head(target.settings, target.path, &open.disk, len)?;
        undo = Some(kept);
        wipe(&**device)?;
    }
    let failed = |e| Error::files(format!("cannot format {}", target.name()))(e);
    Fs::format_with(Arc::clone(device), label, checksums).map_err(failed)?;
    let fs = Fs::open(Arc::clone(device), ::fs::Options::default()).map_err(failed)?;
    let own = || set_root(&fs, FIRST_FILESET, root);
    own().map_err(failed)?;
    let superblock = fs.superblock();
    fs.close().map_err(failed)?;
    Ok(Formatted {
        uuid: uuid_text(&superblock.uuid),
        integrity: superblock.has_integrity(),
        label: superblock.label,
        size: superblock.device_blocks * BLOCK_BYTES,
        encrypted: open.cipher.is_some(),
        fileset: FIRST_FILESET,
        undo,
    })
}

/// Detects data on an open DEVICE, after decryption.
pub(crate) fn content(open: &OpenedDevice) -> Result<Option<Content>> {
    Ok(match open.cipher {
        Some(_) => signature::content(&*open.device, View::Decrypted)?,
        None => signature::content_of(&open.disk)?,
    })
}

/// Wipes old signatures, so that no tool finds them behind the new superblock.
fn wipe(device: &dyn BlockDevice) -> Result<()> {
    let mut below = Blocking::open(device)?;
    let zeros = vec![0; WIPE_BYTES];
    let end = signature::scanned_bytes(device);
    for at in (0..end).step_by(WIPE_BYTES) {
        let len = (end - at).min(WIPE_BYTES as u64) as usize;
        below.write_at(at, &zeros[..len])?;
    }
    Ok(below.flush()?)
}

/// Makes the user of this process the owner of the root directory of a fileset.
pub fn own_root(fs: &Fs, fileset: &str) -> ::fs::Result<()> {
    set_root(fs, fileset, RootDir::default())
}

/// Sets the attributes of the root directory of a fileset.
fn set_root(fs: &Fs, fileset: &str, root: RootDir) -> ::fs::Result<()> {
    let own_uid = rustix::process::geteuid().as_raw();
    let own_gid = rustix::process::getegid().as_raw();
    let set = SetAttr {
        permissions: root.mode,
        uid: Some(root.uid.unwrap_or(own_uid)),
        gid: Some(root.gid.unwrap_or(own_gid)),
        ..SetAttr::default()
    };
    fs.fileset_named(fileset)?.set_attr(ROOT, &set)?;
    fs.sync()
}

/// Opens the file system on a device.
pub fn open_fs(device: &Arc<dyn BlockDevice>, name: &str, options: ::fs::Options) -> Result<Fs> {
    let read_only = options.read_only;
    Fs::open(Arc::clone(device), options).map_err(|e| match not_opened(name, e) {
        Error::Files { what, source } if source.kind() == ::fs::Kind::Corrupt => {
            let what = format!("{what} is damaged; `evfs fsck` reports details");
            Error::Files { what, source }
        }
        Error::Files { what, source } if source.kind() == ::fs::Kind::NoSpace && !read_only => {
            Error::NoRoom { what, source }
        }
        other => other,
    })
}

/// Opens the file system on an open DEVICE, counting its I/O. Grows it if the device has grown.
pub(crate) fn open_counted(
    open: &OpenedDevice,
    name: &str,
    settings: &Settings,
    access: Access,
) -> Result<(Fs, Arc<dyn BlockDevice>, StatsHandle)> {
    let (device, stats) = Stats::new(Arc::clone(&open.device));
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let mut options = options(settings, access);
    if let Some(succession) = settings.succession() {
        options.survival = Some(succession.of_file_system(&*device)?);
    }
    let fs = open_fs(&device, name, options)?;
    if access == Access::ReadWrite {
        changeable(&fs, name)?;
        let failed = Error::files(format!("cannot grow the file system on {name}"));
        fs.grow().map_err(failed)?;
    }
    Ok((fs, device, stats))
}

/// Refuses a file system that this program must not change.
fn changeable(fs: &Fs, name: &str) -> Result<()> {
    let superblock = fs.superblock();
    if !superblock.is_read_only() {
        return Ok(());
    }
    Err(Error::Failed(format!(
        "cannot change the file system on {name}: it has features that this program does not know \
         ({:#x}); use --read-only, or a newer version of EVFS",
        superblock.unknown_for_changes()
    )))
}

fn not_opened(name: &str, error: ::fs::Error) -> Error {
    match error.kind() {
        ::fs::Kind::Invalid => Error::NotFound(format!(
            "{name} holds no EVFS file system; `evfs format` creates one"
        )),
        ::fs::Kind::Corrupt => Error::Files {
            what: format!("the file system on {name}"),
            source: error,
        },
        _ => Error::files(format!("cannot open the file system on {name}"))(error),
    }
}

pub fn options(settings: &Settings, access: Access) -> ::fs::Options {
    ::fs::Options {
        read_only: access.is_read_only(),
        commit_interval: settings.fs_commit_interval(),
        ..::fs::Options::default()
    }
}

/// Sends a request to a file system: to the process that has it mounted, or directly to the device.
///
/// # Errors
/// The request cannot be fulfilled.
pub fn request(target: &Target<'_>, ask: &FsRequest) -> Result<Value> {
    let run_dir = target.settings.run_dir();
    if let Some(name) = mounted_as(target.path, target.settings) {
        if target.settings.is_dry_run() {
            return control::send_query(&run_dir, &name, &ControlRequest::PlanFiles(ask.clone()));
        }
        return control::send_request(&run_dir, &name, &ControlRequest::Files(ask.clone()));
    }
    let access = Access::read_only_if(!ask.changes());
    let open = target.open(OpenOptions {
        read_only: access.is_read_only(),
        ..OpenOptions::default()
    })?;
    let fs = open_fs(
        &open.device,
        &target.name(),
        options(target.settings, access),
    )?;
    // The device of a dry run keeps changes in memory.
    let answer = match ask {
        // In one part, since each one opens the device.
        FsRequest::Diff { first, second, .. } => compare(&fs, (first, second), None, usize::MAX)?,
        FsRequest::Transfer(ask) => {
            let run = if target.settings.is_dry_run() {
                Run::Dry
            } else {
                Run::Real
            };
            let cache = transfer::own_cache()?;
            json_of(&transfer::answer(&fs, ask, run, &cache)?)
        }
        ask => execute(&fs, ask, Run::Real, &|| Ok(()), None)?,
    };
    fs.close()
        .map_err(Error::files(format!("cannot close {}", target.name())))?;
    Ok(answer)
}

/// Executes a request on an open file system. `write_out` writes cached pages to it; `in_use` is
/// the mounted fileset or snapshot. A dry run has the same answers and errors, except for numbers
/// that it cannot know and for errors of the device.
pub(crate) fn execute(
    fs: &Fs,
    ask: &FsRequest,
    run: Run,
    write_out: &dyn Fn() -> Result<()>,
    in_use: Option<TreeId>,
) -> Result<Value> {
    let id_of = |name: &str| -> Result<TreeId> {
        let found = fs.fileset_named(name);
        Ok(found.map_err(Error::files("cannot find the fileset"))?.id())
    };
    match ask {
        FsRequest::List => {
            let listed = Filesets::with_space(fs);
            let listed = listed.map_err(Error::files("cannot count the space of the snapshots"))?;
            Ok(json_of(&listed))
        }
        FsRequest::Usage => Ok(json_of(&ShownUsage::of(fs))),
        FsRequest::Scrub { from, bytes } => scrub::execute(fs, from.as_deref(), *bytes),
        FsRequest::Create { name, quota } => {
            let failed = || Error::files(format!("cannot create the fileset `{name}`"));
            let mut shown = match run {
                Run::Real => {
                    let made = fs.create_fileset(name).map_err(failed())?;
                    own_root(fs, name).map_err(failed())?;
                    set_quota(fs, made.id(), quota).map_err(failed())?;
                    ShownFileset::named(fs, name)
                }
                Run::Dry => {
                    let planned = fs.plan(FilesetChange::Create { name });
                    let mut record = planned.map_err(failed())?;
                    let quota = limited(&record, quota);
                    (record.quota_blocks, record.quota_inodes) = (quota.blocks, quota.inodes);
                    Some(ShownFileset::planned(fs, None, &record))
                }
            };
            // A record that cannot be read is no reason to fail: the fileset exists.
            if let (Some(shown), Ok(Some(cell))) = (&mut shown, Record::read(fs, name)) {
                shown.cell = Some(cell.name);
            }
            Ok(json_of(&shown))
        }
        FsRequest::Rename { from, to } => {
            let failed = Error::files(format!("cannot rename `{from}`"));
            let id = id_of(from)?;
            if run == Run::Dry {
                let planned = fs.plan(FilesetChange::Rename { id, name: to });
                let record = planned.map_err(failed)?;
                return Ok(json_of(&ShownFileset::planned(fs, Some(id), &record)));
            }
            fs.rename_fileset(id, to).map_err(failed)?;
            Ok(json_of(&ShownFileset::named(fs, to)))
        }
        FsRequest::Quota { name, quota } => {
            let failed = || Error::files(format!("cannot set the quota of `{name}`"));
            let id = id_of(name)?;
            if run == Run::Dry {
                let record = fs.fileset(id).and_then(|fileset| fileset.record());
                let quota = limited(&record.map_err(failed())?, quota);
                let planned = fs.plan(FilesetChange::Quota { id, quota });
                let record = planned.map_err(failed())?;
                return Ok(json_of(&ShownFileset::planned(fs, Some(id), &record)));
            }
            set_quota(fs, id, quota).map_err(failed())?;
            Ok(json_of(&ShownFileset::named(fs, name)))
        }
        FsRequest::Owners(ask) => owners::execute(fs, ask, run),
        FsRequest::Compression { name, method } => {
            compression::execute(fs, (id_of(name)?, name), method.as_deref(), run)
        }
        FsRequest::Snapshot { of, name } => {
            let failed = Error::files(format!("cannot create a snapshot of `{of}`"));
            let id = id_of(of)?;
            if run == Run::Dry {
                let planned = fs.plan(FilesetChange::Snapshot { of: id, name });
                let record = planned.map_err(failed)?;
                return Ok(json_of(&ShownFileset::planned(fs, None, &record)));
            }
            write_out()?;
            fs.snapshot(id, name).map_err(failed)?;
            Ok(json_of(&ShownFileset::named(fs, name)))
        }
        FsRequest::Clone { of, name } => {
            let id = id_of(of)?;
            let failed = Error::files(format!("cannot clone `{of}` as `{name}`"));
            if run == Run::Dry {
                let planned = fs.plan(FilesetChange::Clone { of: id, name });
                let record = planned.map_err(failed)?;
                return Ok(json_of(&ShownFileset::planned(fs, None, &record)));
            }
            fs.clone_snapshot(id, name).map_err(failed)?;
            Ok(json_of(&ShownFileset::named(fs, name)))
        }
        FsRequest::Rollback { fileset, to, keep } => {
            let failed = || Error::files(format!("cannot roll back `{fileset}` to `{to}`"));
            let (of, snapshot, keep) = (id_of(fileset)?, id_of(to)?, keep.as_deref());
            if in_use == Some(of) {
                let why = format!("`{fileset}` is mounted; unmount it first");
                return Err(Error::Busy(why));
            }
            let record = fs.fileset(snapshot).and_then(|snapshot| snapshot.record());
            if record.map_err(failed())?.origin != of {
                let why = format!("`{to}` is not a snapshot of `{fileset}`");
                return Err(Error::Usage(why));
            }
            match run {
                Run::Real => fs.rollback(snapshot, keep),
                Run::Dry => {
                    let change = FilesetChange::Rollback { to: snapshot, keep };
                    fs.plan(change).map(drop)
                }
            }
            .map_err(failed())?;
            Ok(json_of(&RolledBack {
                fileset: fileset.clone(),
                snapshot: to.clone(),
                kept: keep.map(str::to_owned),
            }))
        }
        FsRequest::Hold { name, held } => {
            let (id, held) = (id_of(name)?, *held);
            let failed = Error::files(if held {
                format!("cannot hold `{name}`")
            } else {
                format!("cannot release `{name}`")
            });
            if run == Run::Dry {
                let planned = fs.plan(FilesetChange::Hold { id, held });
                let record = planned.map_err(failed)?;
                return Ok(json_of(&ShownFileset::planned(fs, Some(id), &record)));
            }
            fs.hold(id, held).map_err(failed)?;
            Ok(json_of(&ShownFileset::named(fs, name)))
        }
        FsRequest::Diff {
            first,
            second,
            after,
        } => {
            if after.is_none() {
                write_out()?;
            }
            compare(fs, (first, second), after.as_deref(), Part::BYTES)
        }
        FsRequest::Remove { name, force } => {
            let id = id_of(name)?;
            if in_use == Some(id) {
                let why = format!("`{name}` is mounted; unmount it first");
                return Err(Error::Busy(why));
            }
            let record = ShownFileset::named(fs, name);
            let holds = record.map_or(0, |r| r.used_inodes.saturating_sub(1));
            if holds > 0 && !force {
                return Err(Error::Usage(format!(
                    "`{name}` holds {holds} files and directories; --force removes them permanently"
                )));
            }
            let removed = match run {
                Run::Real => fs.remove_fileset(id),
                Run::Dry => fs.plan(FilesetChange::Remove { id }).map(drop),
            };
            removed.map_err(Error::files(format!("cannot remove `{name}`")))?;
            let removed = name.clone();
            Ok(json_of(&Removed { removed }))
        }
        FsRequest::Transfer(_) => Err(Error::Failed("no cache to send or receive with".into())),
        FsRequest::Job(_) => Err(Error::Failed("no service to do the work".into())),
    }
}

/// Compares two states of a fileset. Returns a part of the differences, of about `bytes` bytes at
/// most, after the path `after`.
fn compare(
    fs: &Fs,
    (first, second): (&str, &str),
    after: Option<&[u8]>,
    bytes: usize,
) -> Result<Value> {
    let failed = Error::files(format!("cannot compare `{first}` with `{second}`"));
    let part = || {
        let (one, two) = (fs.fileset_named(first)?, fs.fileset_named(second)?);
        Part::of(fs, (one.id(), two.id()), after, bytes)
    };
    Ok(json_of(&part().map_err(failed)?))
}

fn set_quota(fs: &Fs, id: TreeId, limits: &Limits) -> ::fs::Result<()> {
    if *limits == Limits::default() {
        return Ok(());
    }
    let record = fs.fileset(id)?.record()?;
    fs.set_quota(id, limited(&record, limits))
}

/// The limits of a fileset after a change.
fn limited(record: &TreeRecord, limits: &Limits) -> Quota {
    Quota {
        blocks: limits
            .bytes
            .map_or(record.quota_blocks, |bytes| bytes.div_ceil(BLOCK_BYTES)),
        inodes: limits.inodes.unwrap_or(record.quota_inodes),
    }
}

/// Resolves a path from the root of a fileset to the attributes of its inode.
pub(crate) fn resolve(fileset: &Fileset, path: &str) -> Result<Attr> {
    let failed = || Error::files(format!("cannot find {path}"));
    let mut attr = fileset.attr(ROOT).map_err(failed())?;
    for part in path.split('/').filter(|part| !part.is_empty()) {
        let found = fileset.lookup(attr.ino, part.as_bytes());
        attr = found.map_err(failed())?;
    }
    Ok(attr)
}

/// Result of an upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Upgraded {
    /// Bytes of file data that got checksums.
    pub added_bytes: u64,
    /// Bytes that the device cannot read, and which have no checksums.
    pub unreadable_bytes: u64,
}

/// Gives a file system that is not mounted checksums of all file data.
///
/// # Errors
/// The file system cannot be opened, or the device fails. An upgrade that was interrupted continues
/// when it is started again.
pub fn upgrade(target: &Target<'_>, progress: Progress<'_>) -> Result<Upgraded> {
    let (fs, failed) = open_unmounted(target, WholeOperation::Upgrade)?;
    let done = fs.add_checksums(progress).map_err(failed())?;
    fs.close().map_err(failed())?;
    Ok(Upgraded {
        added_bytes: done.added * BLOCK_BYTES,
        unreadable_bytes: done.unreadable * BLOCK_BYTES,
    })
}

/// Result of a check, and of a repair.
#[derive(Debug, Serialize, Deserialize)]
pub struct Checked {
    /// Problems found by the check.
    pub found: Report,
    /// Result of the repair, if one was requested and necessary.
    pub repair: Option<Repair>,
}

impl Checked {
    /// Returns the problems that remain.
    pub fn left(&self) -> &Report {
        self.repair
            .as_ref()
            .map_or(&self.found, |repair| &repair.left)
    }
}

/// Callback for progress: work done, and total work.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Part of a file system that a check reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// All but the content of files.
    Metadata,
    /// All, including the content of files, which is compared with its checksums.
    Everything,
}

/// Checks a file system that is not mounted; with `repair` also repairs it.
///
/// # Errors
/// The file system cannot be opened at all, or the device fails. Problems found are not errors.
pub fn fsck(
    target: &Target<'_>,
    scope: Scope,
    repair: bool,
    progress: Progress<'_>,
) -> Result<Checked> {
    let (fs, failed) = open_unmounted(target, WholeOperation::Check).map_err(beyond_repair)?;
    let mut found = fs.check_with(progress).map_err(failed())?;
    if scope == Scope::Everything {
        fs.check_data(&mut found, progress).map_err(failed())?;
    }
    fs.close().map_err(failed())?;
    if !repair || found.is_clean() {
        let repair = None;
        return Ok(Checked { found, repair });
    }
    // Reopened for writing only now, so that a check leaves a sound file system unchanged.
    let (fs, failed) = open_unmounted(target, WholeOperation::Repair).map_err(beyond_repair)?;
    let mut repair = fs.repair_with(progress).map_err(failed())?;
    if scope == Scope::Everything {
        fs.check_data(&mut repair.left, progress)
            .map_err(failed())?;
    }
    let repair = Some(repair);
    fs.close().map_err(failed())?;
    Ok(Checked { found, repair })
}

fn beyond_repair(error: Error) -> Error {
    match error {
        Error::Files { what, source } if source.kind() == ::fs::Kind::Corrupt => {
            Error::BeyondRepair { what, source }
        }
        other => other,
    }
}

/// Operation on all of a file system that is not mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WholeOperation {
    Check,
    Repair,
    Defragment,
    Scrub,
    Upgrade,
}

impl WholeOperation {
    fn verb(self) -> &'static str {
        match self {
            WholeOperation::Check => "check",
            WholeOperation::Repair => "repair",
            WholeOperation::Defragment => "defragment",
            WholeOperation::Scrub => "scrub",
            WholeOperation::Upgrade => "upgrade",
        }
    }

    fn access(self) -> Access {
        match self {
            WholeOperation::Check | WholeOperation::Scrub => Access::ReadOnly,
            WholeOperation::Repair | WholeOperation::Defragment | WholeOperation::Upgrade => {
                Access::ReadWrite
            }
        }
    }

    /// Reports whether a damaged file system is opened, too.
    fn takes_damaged(self) -> bool {
        match self {
            WholeOperation::Check | WholeOperation::Repair => true,
            WholeOperation::Defragment | WholeOperation::Scrub | WholeOperation::Upgrade => false,
        }
    }
}

/// Opens a file system that is not mounted, for an operation on all of it.
fn open_unmounted(
    target: &Target<'_>,
    operation: WholeOperation,
) -> Result<(Fs, impl Fn() -> Failed + use<>)> {
    if let Some(name) = mounted_as(target.path, target.settings) {
        let or = match operation {
            WholeOperation::Check => ", or check it in use with --online",
            _ => "",
        };
        return Err(Error::Busy(format!(
            "{} is mounted or served as `{name}`; run `evfs detach {name}` first{or}",
            target.name()
        )));
    }
    let access = operation.access();
    let open = target.open(OpenOptions {
        read_only: access.is_read_only(),
        ..OpenOptions::default()
    })?;
    let (name, verb) = (target.name(), operation.verb());
    let options = ::fs::Options {
        rescue: operation.takes_damaged(),
        ..options(target.settings, access)
    };
    let fs = Fs::open(Arc::clone(&open.device), options).map_err(|e| not_opened(&name, e))?;
    Ok((fs, move || {
        Box::new(Error::files(format!("cannot {verb} {name}"))) as Failed
    }))
}

/// Constructor of an error, with the failed operation.
type Failed = Box<dyn FnOnce(::fs::Error) -> Error>;

/// Aborts a mount without a request to its server; see [`fuse_mount::abort`].
///
/// # Errors
/// Errors of the system.
pub fn abort(folder: &Path) -> Result<()> {
    Ok(fuse_mount::abort(folder)?)
}

/// Reports whether a file system of this program is mounted at exactly this directory, and no other
/// one over it.
pub fn is_mounted(folder: &Path) -> bool {
    fuse_mount::is_mounted(folder)
}

/// Explains why this user cannot mount file systems, if that is so.
pub fn no_mounts() -> Option<&'static str> {
    fuse_mount::no_mounts()
}

/// Removes the stale mount of a killed process. Returns whether there was one.
///
/// # Errors
/// Errors of the system.
pub fn clear_dead(folder: &Path) -> Result<bool> {
    Ok(export_file::clear_dead(folder)?)
}
