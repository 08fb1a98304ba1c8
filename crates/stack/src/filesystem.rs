//! File systems on DEVICEs: made, checked, and asked for what needs no mount.
//!
//! **Invariant:** a question is answered by one function, whether the file system is mounted, and the
//! process that serves it is asked, or not, and it is opened for the question.

use crate::cell::Record;
use crate::error::Left;
use crate::signature::{self, Content, View};
use crate::volume::{self, KeySource, Open, OpenOptions, Opener};
use crate::{Error, Result, Settings, control, device};
use ::fs::{Attr, Fileset, Fs, Quota, ROOT, SetAttr, TreeId, TreeRecord};
pub use ::fs::{BLOCK_BYTES, Defragmented, FIRST_FILESET, Finding, Repair, Report};
use block::{BlockDevice, Blocking, Stats, StatsHandle};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of zeros that are written at once over what was there.
const WIPE_BYTES: usize = 1 << 20;

/// What can be asked of a file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ask {
    /// Its filesets and snapshots.
    List,
    /// How full it is.
    Usage,
    /// Makes a fileset.
    Create {
        /// Its name.
        name: String,
        /// Its limits.
        quota: Limits,
    },
    /// Gives a fileset or a snapshot another name.
    Rename {
        /// The old name.
        from: String,
        /// The new one.
        to: String,
    },
    /// Limits a fileset.
    Quota {
        /// Its name.
        name: String,
        /// What changes.
        quota: Limits,
    },
    /// Makes a snapshot of a fileset.
    Snapshot {
        /// The fileset.
        of: String,
        /// Name of the snapshot.
        name: String,
    },
    /// Removes a fileset or a snapshot.
    Remove {
        /// Its name.
        name: String,
        /// Even a fileset that has something in it.
        force: bool,
    },
}

/// Limits of a fileset; nothing is left as it is, 0 is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of file data; rounded up to blocks.
    pub bytes: Option<u64>,
    /// Files, folders and all else with a number.
    pub inodes: Option<u64>,
}

impl Ask {
    fn changes(&self) -> bool {
        !matches!(self, Ask::List | Ask::Usage)
    }
}

/// A DEVICE, and how to open it.
pub struct Target<'a> {
    /// The DEVICE.
    pub path: &'a Path,
    /// What opens volumes.
    pub opener: &'a Opener,
    /// Where the key comes from, if it takes one.
    pub source: &'a dyn Fn() -> Result<KeySource>,
    /// The user has named a key.
    pub key_given: bool,
    /// Settings in force.
    pub settings: &'a Settings,
}

impl Target<'_> {
    /// Opens the device.
    ///
    /// # Errors
    /// As [`volume::open_any`].
    pub fn open(&self, options: OpenOptions) -> Result<Open> {
        let open = volume::open_any(self.path, self.opener, self.source, options, self.settings)?;
        self.needed_key(open)
    }

    /// The same of a DEVICE that has been opened for formatting already.
    pub(crate) fn of_disk(&self, disk: device::Disk) -> Result<Open> {
        let options = OpenOptions::default();
        let open = volume::of_disk(disk, self.opener, self.source, options)?;
        self.needed_key(open)
    }

    /// A key for what lies in the clear is a mistake about what it is.
    fn needed_key(&self, open: Open) -> Result<Open> {
        match open.cipher.is_none() && self.key_given {
            false => Ok(open),
            true => Err(Error::Usage(format!(
                "{} is not encrypted, so no key opens it; `evfs volume create` makes an encrypted volume",
                self.name()
            ))),
        }
    }

    /// What errors call it.
    pub(crate) fn name(&self) -> String {
        self.path.display().to_string()
    }
}

/// What has been made.
#[derive(Debug, Serialize)]
pub struct Formatted {
    /// UUID of the file system.
    pub uuid: String,
    /// Its label.
    pub label: String,
    /// Bytes of the device.
    pub size: u64,
    /// Whether it lies enciphered.
    pub encrypted: bool,
    /// Its first fileset.
    pub fileset: &'static str,
    /// Where the head of what was overwritten is kept, if anything was there.
    #[serde(serialize_with = "crate::status::as_text")]
    pub undo: Option<PathBuf>,
}

/// Makes a file system; a file that is missing is made with `size` bytes. Who makes it owns its root.
///
/// # Errors
/// [`Error::WouldDestroy`] when the device is not empty and `force` is not set.
/// A file made here has its name only when the file system is complete.
pub fn format(
    target: &Target<'_>,
    label: &str,
    size: Option<u64>,
    force: bool,
) -> Result<Formatted> {
    let (disk, made) = volume::open_or_make(target.path, size, force, target.settings)?;
    let open = target.of_disk(disk)?;
    let formatted = format_device(target, &open, label, force)?;
    made.map(volume::Made::finish).transpose()?;
    Ok(formatted)
}

pub(crate) fn format_device(
    target: &Target<'_>,
    open: &Open,
    label: &str,
    force: bool,
) -> Result<Formatted> {
    let device = &open.device;
    let mut undo = None;
    if let Some(found) = content(open)? {
        let head = signature::HEAD_BYTES;
        if !force {
            return Err(Error::WouldDestroy {
                device: target.name(),
                found: found.to_string(),
                kept: Left::Head(head),
            });
        }
        // As it lies on the disk: what was enciphered stays so.
        let len = head + open.cipher.as_ref().map_or(0, |c| c.data_offset);
        let kept = volume::save_head(target.settings, target.path, &open.disk, len)?;
        undo = Some(kept);
        wipe(&**device)?;
    }
    let failed = |e| Error::files(format!("cannot format {}", target.name()))(e);
    Fs::format(Arc::clone(device), label).map_err(failed)?;
    let fs = Fs::open(Arc::clone(device), ::fs::Options::default()).map_err(failed)?;
    let own = || own_root(&fs, FIRST_FILESET);
    own().map_err(failed)?;
    let superblock = fs.superblock();
    fs.close().map_err(failed)?;
    Ok(Formatted {
        uuid: uuid_text(&superblock.uuid),
        label: superblock.label,
        size: superblock.device_blocks * BLOCK_BYTES,
        encrypted: open.cipher.is_some(),
        fileset: FIRST_FILESET,
        undo,
    })
}

/// What lies on a DEVICE that is open, as its user sees it.
pub(crate) fn content(open: &Open) -> Result<Option<Content>> {
    Ok(match open.cipher {
        Some(_) => signature::content(&*open.device, View::Deciphered)?,
        None => signature::content_of(&open.disk)?,
    })
}

/// So that nothing finds the old signatures behind the new superblock.
fn wipe(device: &dyn BlockDevice) -> Result<()> {
    let mut below = Blocking::open(device)?;
    let zeros = vec![0; WIPE_BYTES];
    let end = signature::looked_at(device);
    for at in (0..end).step_by(WIPE_BYTES) {
        let len = (end - at).min(WIPE_BYTES as u64) as usize;
        below.write_at(at, &zeros[..len])?;
    }
    Ok(below.flush()?)
}

/// Gives the root directory of a fileset to the user of this process.
pub(crate) fn own_root(fs: &Fs, fileset: &str) -> ::fs::Result<()> {
    let set = SetAttr {
        uid: Some(rustix::process::geteuid().as_raw()),
        gid: Some(rustix::process::getegid().as_raw()),
        ..SetAttr::default()
    };
    fs.fileset_named(fileset)?.set_attr(ROOT, &set)?;
    fs.sync()
}

/// Opens the file system on a device.
pub(crate) fn open_fs(
    device: &Arc<dyn BlockDevice>,
    name: &str,
    options: ::fs::Options,
) -> Result<Fs> {
    let read_only = options.read_only;
    Fs::open(Arc::clone(device), options).map_err(|e| match not_opened(name, e) {
        Error::Files { what, source } if source.kind() == ::fs::Kind::Corrupt => {
            let what = format!("{what} is damaged; `evfs fsck` says more");
            Error::Files { what, source }
        }
        Error::Files { what, source } if source.kind() == ::fs::Kind::NoSpace && !read_only => {
            Error::NoRoom { what, source }
        }
        other => other,
    })
}

/// Opens the file system on a DEVICE that is open, so that what passes is counted, and lets it take the room
/// that the device has gained.
pub(crate) fn open_counted(
    open: &Open,
    name: &str,
    settings: &Settings,
    read_only: bool,
) -> Result<(Fs, Arc<dyn BlockDevice>, StatsHandle)> {
    let (device, stats) = Stats::new(Arc::clone(&open.device));
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let fs = open_fs(&device, name, options(settings, read_only))?;
    if !read_only {
        let failed = Error::files(format!("cannot grow the file system on {name}"));
        fs.grow().map_err(failed)?;
    }
    Ok((fs, device, stats))
}

fn not_opened(name: &str, error: ::fs::Error) -> Error {
    match error.kind() {
        ::fs::Kind::Invalid => Error::NotFound(format!(
            "{name} holds no EVFS file system; `evfs format` makes one"
        )),
        ::fs::Kind::Corrupt => Error::Files {
            what: format!("the file system on {name}"),
            source: error,
        },
        _ => Error::files(format!("cannot open the file system on {name}"))(error),
    }
}

/// How file systems are opened under these settings.
pub(crate) fn options(settings: &Settings, read_only: bool) -> ::fs::Options {
    ::fs::Options {
        read_only,
        commit_interval: settings.fs_commit_interval(),
        ..::fs::Options::default()
    }
}

/// Asks a file system: the process that has it mounted, or the device.
///
/// # Errors
/// What was asked for cannot be done.
pub fn ask(target: &Target<'_>, ask: &Ask) -> Result<Value> {
    let run_dir = target.settings.run_dir();
    if let Some(name) = mounted_as(target.path, target.settings) {
        return control::ask(&run_dir, &name, &control::Ask::Files(ask.clone()));
    }
    let read_only = !ask.changes();
    let open = target.open(OpenOptions {
        read_only,
        ..OpenOptions::default()
    })?;
    let fs = open_fs(
        &open.device,
        &target.name(),
        options(target.settings, read_only),
    )?;
    let answer = carry_out(&fs, ask, &|| Ok(()), None)?;
    fs.close()
        .map_err(Error::files(format!("cannot close {}", target.name())))?;
    Ok(answer)
}

/// Under which name this user has the file system of a DEVICE mounted, or serves it.
pub fn mounted_as(device: &Path, settings: &Settings) -> Option<String> {
    let run_dir = settings.run_dir();
    let path = std::fs::canonicalize(device).ok();
    let is_it = |status: &Value| {
        let same = |key: &str| status[key].as_str().is_some_and(|s| Path::new(s) == device);
        let same_file = || {
            let served = status["path"].as_str().map(Path::new);
            served.is_some() && served == path.as_deref()
        };
        match device::is_lun(device) {
            true => same("device") || same("lun"),
            false => same_file(),
        }
    };
    control::find(&run_dir, |status| {
        let has_files = status["fileset"].is_string() || status["cell"].is_string();
        has_files && is_it(status)
    })
}

/// Under which name this user has a file system mounted at a folder.
pub fn mounted_at(folder: &Path, run_dir: &Path) -> Option<String> {
    // A folder whose server has died cannot be looked at, and is nobody's.
    let folder = std::fs::canonicalize(folder).ok()?;
    control::find(run_dir, |status| {
        let mut exports = status["exports"].as_array().into_iter().flatten();
        exports.any(|e| e["kind"] == "mount" && e["at"].as_str().map(Path::new) == Some(&*folder))
    })
}

/// Does what is asked of a file system that is open. `write_out` brings what caches hold to it;
/// `in_use` is the fileset that is mounted.
pub(crate) fn carry_out(
    fs: &Fs,
    ask: &Ask,
    write_out: &dyn Fn() -> Result<()>,
    in_use: Option<&str>,
) -> Result<Value> {
    let id_of = |name: &str| -> Result<TreeId> {
        let found = fs.fileset_named(name);
        Ok(found.map_err(Error::files("cannot do it"))?.id())
    };
    match ask {
        Ask::List => Ok(filesets(fs)),
        Ask::Usage => Ok(usage(fs)),
        Ask::Create { name, quota } => {
            let failed = || Error::files(format!("cannot make the fileset '{name}'"));
            let made = fs.create_fileset(name).map_err(failed())?;
            own_root(fs, name).map_err(failed())?;
            set_quota(fs, made.id(), quota).map_err(failed())?;
            let mut shown = fileset(fs, name);
            if let Some(cell) = Record::read(fs, name)? {
                shown["cell"] = json!(cell.name);
            }
            Ok(shown)
        }
        Ask::Rename { from, to } => {
            fs.rename_fileset(id_of(from)?, to)
                .map_err(Error::files(format!("cannot rename '{from}'")))?;
            Ok(fileset(fs, to))
        }
        Ask::Quota { name, quota } => {
            set_quota(fs, id_of(name)?, quota)
                .map_err(Error::files(format!("cannot limit '{name}'")))?;
            Ok(fileset(fs, name))
        }
        Ask::Snapshot { of, name } => {
            let id = id_of(of)?;
            write_out()?;
            fs.snapshot(id, name)
                .map_err(Error::files(format!("cannot make a snapshot of '{of}'")))?;
            Ok(fileset(fs, name))
        }
        Ask::Remove { name, force } => {
            let id = id_of(name)?;
            if in_use == Some(name) {
                return Err(Error::Busy(format!(
                    "'{name}' is mounted; unmount it first"
                )));
            }
            let record = record_of(fs, name);
            let holds = record.map_or(0, |r| r.1.used_inodes.saturating_sub(1));
            if holds > 0 && !force {
                return Err(Error::Usage(format!(
                    "'{name}' holds {holds} files and folders; --force removes them for good"
                )));
            }
            fs.remove_fileset(id)
                .map_err(Error::files(format!("cannot remove '{name}'")))?;
            Ok(json!({ "removed": name }))
        }
    }
}

fn set_quota(fs: &Fs, id: TreeId, limits: &Limits) -> ::fs::Result<()> {
    if *limits == Limits::default() {
        return Ok(());
    }
    let record = fs.fileset(id)?.record()?;
    fs.set_quota(
        id,
        Quota {
            blocks: limits
                .bytes
                .map_or(record.quota_blocks, |bytes| bytes.div_ceil(BLOCK_BYTES)),
            inodes: limits.inodes.unwrap_or(record.quota_inodes),
        },
    )
}

fn record_of(fs: &Fs, name: &str) -> Option<(TreeId, TreeRecord)> {
    fs.filesets().into_iter().find(|(_, r)| r.name == name)
}

fn fileset(fs: &Fs, name: &str) -> Value {
    let all = fs.filesets();
    let found = all.iter().find(|(_, record)| record.name == name);
    found.map_or(Value::Null, |(id, record)| shown(*id, record, &all))
}

fn filesets(fs: &Fs) -> Value {
    let all = fs.filesets();
    let rows: Vec<Value> = all.iter().map(|(id, r)| shown(*id, r, &all)).collect();
    json!({ "filesets": rows })
}

fn shown(id: TreeId, record: &TreeRecord, all: &[(TreeId, TreeRecord)]) -> Value {
    let origin = all.iter().find(|(id, _)| *id == record.origin);
    let limit = |n: u64, unit: u64| (n > 0).then(|| n * unit);
    json!({
        "id": id,
        "name": record.name,
        "snapshot_of": origin.map(|(_, r)| &r.name),
        "created": record.created.seconds,
        "used_bytes": record.used_blocks * BLOCK_BYTES,
        "used_inodes": record.used_inodes,
        "quota_bytes": limit(record.quota_blocks, BLOCK_BYTES),
        "quota_inodes": limit(record.quota_inodes, 1),
    })
}

fn usage(fs: &Fs) -> Value {
    let superblock = fs.superblock();
    let usage = fs.usage();
    let mut shown = json!({
        "uuid": uuid_text(&superblock.uuid),
        "label": superblock.label,
        "size_bytes": usage.blocks * BLOCK_BYTES,
        "free_bytes": usage.free * BLOCK_BYTES,
        "available_bytes": usage.available * BLOCK_BYTES,
        "largest_free_bytes": usage.largest_free * BLOCK_BYTES,
        "free_runs": usage.free_runs,
        "growable_bytes": fs.growable_bytes(),
        "metadata_bytes": usage.metadata * BLOCK_BYTES,
        "journal_bytes": usage.journal * BLOCK_BYTES,
        "inodes": usage.inodes,
    });
    shown["filesets"] = filesets(fs)["filesets"].take();
    shown
}

/// The inode that a path leads to, from the root of a fileset.
pub(crate) fn resolve(fileset: &Fileset, path: &str) -> Result<Attr> {
    let failed = || Error::files(format!("no file {path}"));
    let mut attr = fileset.attr(ROOT).map_err(failed())?;
    for part in path.split('/').filter(|part| !part.is_empty()) {
        let found = fileset.lookup(attr.ino, part.as_bytes());
        attr = found.map_err(failed())?;
    }
    Ok(attr)
}

/// Rewrites files of many extents into few: those of one fileset below a path, or all.
///
/// # Errors
/// It is mounted; there is no such path; the device fails, and the file at hand is as it was.
pub fn defrag(
    target: &Target<'_>,
    fileset: Option<&str>,
    path: Option<&str>,
    progress: Progress<'_>,
) -> Result<Defragmented> {
    let (fs, failed) = open_unmounted(target, "defragment", false, false)?;
    let names: Vec<String> = match (fileset, path) {
        (Some(name), _) => vec![name.to_owned()],
        (None, Some(_)) => vec![FIRST_FILESET.to_owned()],
        (None, None) => {
            let own = fs.filesets().into_iter().filter(|(_, r)| r.origin == 0);
            own.map(|(_, record)| record.name).collect()
        }
    };
    let mut all = Defragmented::default();
    for name in names {
        let fileset = fs.fileset_named(&name).map_err(failed())?;
        let top = resolve(&fileset, path.unwrap_or_default())?.ino;
        let done = fs.defrag(fileset.id(), top, progress).map_err(failed())?;
        all.files += done.files;
        all.improved += done.improved;
        all.extents_before += done.extents_before;
        all.extents_after += done.extents_after;
        all.moved_blocks += done.moved_blocks;
    }
    fs.close().map_err(failed())?;
    Ok(all)
}

/// What a check has found, and a repair has done.
#[derive(Debug, Serialize)]
pub struct Checked {
    /// What was wrong at first.
    pub found: Report,
    /// What was done about it, if that was wanted and there was something.
    pub repair: Option<Repair>,
}

impl Checked {
    /// What is wrong now.
    pub fn left(&self) -> &Report {
        self.repair
            .as_ref()
            .map_or(&self.found, |repair| &repair.left)
    }
}

/// Told now and then how much of the work is done, and of how much.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Checks a file system that nobody has mounted; with `repair` mends it.
///
/// # Errors
/// It cannot be opened at all, or the device fails. What a check finds is no error.
pub fn fsck(target: &Target<'_>, repair: bool, progress: Progress<'_>) -> Result<Checked> {
    let (fs, failed) = open_unmounted(target, "check", true, true).map_err(beyond_repair)?;
    let found = fs.check_with(progress).map_err(failed())?;
    fs.close().map_err(failed())?;
    if !repair || found.is_clean() {
        let repair = None;
        return Ok(Checked { found, repair });
    }
    // Only now, so that a check of something sound leaves it as it was.
    let (fs, failed) = open_unmounted(target, "repair", false, true).map_err(beyond_repair)?;
    let repair = Some(fs.repair_with(progress).map_err(failed())?);
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

/// Opens a file system that nobody has mounted, to do something with all of it.
fn open_unmounted<'a>(
    target: &'a Target<'_>,
    what: &'a str,
    read_only: bool,
    for_repair: bool,
) -> Result<(Fs, impl Fn() -> Failed + use<'a>)> {
    if let Some(name) = mounted_as(target.path, target.settings) {
        return Err(Error::Busy(format!(
            "{} is mounted or served as `{name}`; `evfs detach {name}` first",
            target.name()
        )));
    }
    let open = target.open(OpenOptions {
        read_only,
        ..OpenOptions::default()
    })?;
    let name = target.name();
    let options = ::fs::Options {
        rescue: for_repair,
        ..options(target.settings, read_only)
    };
    let fs = Fs::open(Arc::clone(&open.device), options).map_err(|e| not_opened(&name, e))?;
    Ok((fs, move || {
        Box::new(Error::files(format!("cannot {what} {name}"))) as Failed
    }))
}

/// Says what was tried when an error came.
type Failed = Box<dyn FnOnce(::fs::Error) -> Error>;

/// A UUID as everybody writes it (RFC 9562, section 4).
pub(crate) fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [0..8, 8..12, 12..16, 16..20, 20..32]
        .map(|part| hex[part].to_owned())
        .join("-")
}

/// Ends a mount at once, without asking its server; see [`export_fuse::abort`].
///
/// # Errors
/// What the system says.
pub fn abort(folder: &Path) -> Result<()> {
    Ok(export_fuse::abort(folder)?)
}

/// What this user lacks for mounting anything, if so.
pub fn no_mounts() -> Option<&'static str> {
    export_fuse::no_mounts()
}

/// Takes away what a killed process has left mounted. Says whether there was such a thing.
///
/// # Errors
/// What the system says.
pub fn clear_dead(folder: &Path) -> Result<bool> {
    Ok(export_fuse::clear_dead(folder)?)
}
