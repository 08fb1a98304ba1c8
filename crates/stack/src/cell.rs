//! AFS cells: file systems whose filesets are the volumes of a cell; their creation and
//! administration.
//!
//! **Invariant:** one function answers each request in both cases: if the cell is served, the
//! serving process receives the request; otherwise the cell is opened just for the request.

mod acl;
mod shown;
#[cfg(test)]
mod tests;

use crate::cache::ProcessCache;
use crate::cell_record::check_addresses;
pub use crate::cell_record::{Record, cell_serv_db, check_name};
use crate::control::{self, CellRequest, ControlRequest, Run};
use crate::existing::Existing;
use crate::filesystem::{
    DataChecksums, FIRST_FILESET, Removed, RootDir, Target, content, format_device, open_fs,
    options,
};
use crate::handle::mounted_as;
use crate::signature::{self, Content};
use crate::text::json_of;
use crate::volume::{OpenOptions, OpenedDevice};
use crate::{Error, Result, device, volume};
use ::fs::Fs;
use acl::{changed, shown_list};
use afs_proto::acl::AccessList;
use afs_server::{AdminError, Administration, Kind, MountPoint, NewVolume, ROOTS, Removal};
use block::Access;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
pub use shown::{
    CellVolumes, Mounted, ShownAccessList, ShownCell, ShownClient, ShownEntry, ShownPort,
    ShownProcedure, ShownServer, ShownServerStats, ShownVolume,
};
use std::sync::Arc;

/// Result of [`init`].
#[derive(Debug, Serialize, JsonSchema)]
pub struct CreatedCell {
    /// Name and addresses of the cell.
    #[serde(flatten)]
    pub cell: Record,
    /// Whether the device was formatted.
    pub formatted: bool,
    /// Whether the device is encrypted.
    pub encrypted: bool,
    /// Volumes of the cell.
    pub volumes: Vec<ShownVolume>,
    /// Lines for the file `CellServDB` of clients.
    pub cellservdb: String,
}

/// Makes a DEVICE a cell: formats it if it is empty, and creates the volumes and mount points that
/// clients expect. Existing ones stay. A missing file is created with `size` bytes.
///
/// # Errors
/// The name is invalid; the device holds other data or a cell of another name.
pub fn init(
    target: &Target<'_>,
    record: &Record,
    size: Option<u64>,
    cache: &ProcessCache,
) -> Result<CreatedCell> {
    check_name(&record.name)?;
    check_addresses(&record.listen, &record.listen)?;
    if let Some(name) = mounted_as(target.path, target.settings) {
        return Err(Error::Busy(format!(
            "{} is mounted or served as `{name}`; run `evfs detach {name}` first",
            target.name()
        )));
    }
    let (disk, made) = volume::open_or_make(target.path, size, Existing::Keep, target.settings)?;
    let open = target.of_disk(disk)?;
    let result = init_on(target, &open, record, cache)?;
    made.map(volume::Made::finish).transpose()?;
    Ok(result)
}

fn init_on(
    target: &Target<'_>,
    open: &OpenedDevice,
    record: &Record,
    cache: &ProcessCache,
) -> Result<CreatedCell> {
    let formatted = match content(open)? {
        None => {
            format_device(
                target,
                open,
                &record.name,
                RootDir::default(),
                DataChecksums::Yes,
                Existing::Keep,
            )?;
            true
        }
        Some(Content::Known(found)) if signature::is_ours(found) => false,
        Some(found) => {
            return Err(Error::Usage(format!(
                "{0} is not empty: found {found}; `evfs format --force {0}` overwrites it",
                target.name()
            )));
        }
    };
    let device = target.name();
    let fs = open_fs(
        &open.device,
        &device,
        options(target.settings, Access::ReadWrite),
    )?;
    if formatted {
        let failed = || Error::files(format!("cannot format {device}"));
        let first = fs.fileset_named(FIRST_FILESET).map_err(failed())?.id();
        fs.rename_fileset(first, ROOTS[1]).map_err(failed())?;
    }
    if let Some(there) = Record::read(&fs, &device)?
        && there.name != record.name
    {
        return Err(Error::Usage(format!(
            "{device} is already the cell `{}`; a cell cannot be renamed, because clients know it \
             by its name",
            there.name
        )));
    }
    let fs = Arc::new(fs);
    let admin = opened(&fs, cache, &device)?;
    for name in ROOTS {
        match admin.volume(name) {
            Ok(_) => {}
            Err(AdminError::NotFound(_)) => drop(admin.create(&new_volume(name))?),
            Err(error) => return Err(error.into()),
        }
    }
    for (path, read_write) in [
        (record.name.clone(), false),
        (format!(".{}", record.name), true),
    ] {
        // An existing object of this name belongs to the administrator.
        if admin.check_mount(ROOTS[0], &path).is_ok() {
            admin.mount(&MountPoint {
                volume: ROOTS[0],
                path: &path,
                of: ROOTS[1],
                read_write,
            })?;
        }
    }
    record.write(&fs, &device)?;
    let volumes = volumes(&admin);
    close(admin, fs, &device)?;
    Ok(CreatedCell {
        cell: record.clone(),
        formatted,
        encrypted: open.cipher.is_some(),
        volumes,
        cellservdb: cell_serv_db(&record.name, &record.listen),
    })
}

fn new_volume(name: &str) -> NewVolume {
    NewVolume {
        name: name.to_owned(),
        quota_bytes: 0,
        owner: (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        ),
    }
}

fn opened(fs: &Arc<Fs>, cache: &ProcessCache, device: &str) -> Result<Administration> {
    let opened = Administration::open(Arc::clone(fs), cache.cache()?);
    opened.map_err(Error::files(format!("cannot open the volumes of {device}")))
}

/// Makes everything durable and closes the file system.
fn close(admin: Administration, fs: Arc<Fs>, device: &str) -> Result<()> {
    let failed = || Error::files(format!("cannot close {device}"));
    let all = admin.volumes().all();
    drop(admin);
    for volume in all {
        volume.files.close().map_err(failed())?;
    }
    fs.finish().map_err(failed())?;
    drop(fs);
    Ok(())
}

/// Sends a request to a cell: to the process that serves it, or directly to the device.
///
/// # Errors
/// The request cannot be fulfilled.
pub fn request(target: &Target<'_>, ask: &CellRequest) -> Result<Value> {
    let run_dir = target.settings.run_dir();
    if let Some(name) = mounted_as(target.path, target.settings) {
        if target.settings.is_dry_run() {
            return control::send_query(&run_dir, &name, &ControlRequest::PlanCell(ask.clone()));
        }
        return control::send_request(&run_dir, &name, &ControlRequest::Cell(ask.clone()));
    }
    if !target.path.exists() && !device::is_lun(target.path) {
        return Err(Error::NotFound(format!(
            "no cell is served as `{0}`, and no DEVICE {0} exists; `evfs status` lists the served \
             cells",
            target.name()
        )));
    }
    let access = Access::read_only_if(!ask.changes());
    let open = target.open(OpenOptions {
        read_only: access.is_read_only(),
        ..OpenOptions::default()
    })?;
    let device = target.name();
    let fs = Arc::new(open_fs(
        &open.device,
        &device,
        options(target.settings, access),
    )?);
    let record = Record::of(&fs, &device)?;
    let cache = ProcessCache::new(target.settings)?;
    let admin = opened(&fs, &cache, &device)?;
    // The device of a dry run keeps changes in memory.
    let answer = execute(&record, &admin, ask, Run::Real)?;
    close(admin, fs, &device)?;
    Ok(answer)
}

/// Creates the error that the service `name` is not a cell.
pub(crate) fn not_served(name: &str) -> Error {
    Error::NotFound(format!(
        "{name} is not served as a cell; serve it with `evfs serve`"
    ))
}

/// Executes a request on an open cell. A dry run has the same answers and errors, except for numbers
/// that it cannot know and for errors of the device.
pub(crate) fn execute(
    record: &Record,
    admin: &Administration,
    ask: &CellRequest,
    run: Run,
) -> Result<Value> {
    match ask {
        CellRequest::Status { .. } => Ok(json_of(&ShownCell {
            cell: record.name.clone(),
            served: false,
            listen: record.listen.clone(),
            cellservdb: cell_serv_db(&record.name, &record.listen),
            volumes: volumes(admin),
            server: None,
        })),
        CellRequest::List => Ok(json_of(&CellVolumes {
            cell: record.name.clone(),
            volumes: volumes(admin),
        })),
        CellRequest::AclGet { volume, path } => {
            let list = admin.access_list(volume, path)?;
            Ok(json_of(&shown_list(volume, path, &list)))
        }
        CellRequest::AclSet {
            volume,
            path,
            changes,
            negative,
            clear,
        } => {
            let before = match clear {
                true => AccessList::default(),
                false => admin.access_list(volume, path)?,
            };
            let list = changed(&before, changes, *negative)?;
            match run {
                Run::Real => admin.set_access_list(volume, path, &list)?,
                Run::Dry => admin.check_access_list(volume, path, &list)?,
            }
            Ok(json_of(&shown_list(volume, path, &list)))
        }
        CellRequest::Create { name, quota, mount } => {
            if let Some(path) = mount {
                admin.check_mount(ROOTS[1], path)?;
            }
            if run == Run::Dry {
                admin.check_create(name)?;
                return Ok(json_of(&ShownVolume::planned(name, quota.unwrap_or(0))));
            }
            let made = admin.create(&NewVolume {
                quota_bytes: quota.unwrap_or(0),
                ..new_volume(name)
            })?;
            if let Some(path) = mount {
                admin.mount(&mount_point(name, path))?;
            }
            Ok(json_of(&ShownVolume::of(&made)))
        }
        CellRequest::Mount {
            name,
            path,
            read_write,
        } => {
            admin.volume(name)?;
            admin.check_mount(ROOTS[1], path)?;
            if run == Run::Real {
                admin.mount(&MountPoint {
                    read_write: *read_write,
                    ..mount_point(name, path)
                })?;
            }
            Ok(json_of(&Mounted {
                mounted: name.clone(),
                path: path.clone(),
            }))
        }
        CellRequest::Clone { name, backup } => {
            let kind = if *backup {
                Kind::Backup
            } else {
                Kind::ReadOnly
            };
            Ok(json_of(&match run {
                Run::Real => ShownVolume::of(&*admin.clone_volume(name, kind)?),
                Run::Dry => ShownVolume::of(&*admin.writable(name)?).cloned(kind),
            }))
        }
        CellRequest::Quota { name, bytes } => Ok(json_of(&match run {
            Run::Real => {
                admin.set_quota(name, *bytes)?;
                ShownVolume::of(&*admin.volume(name)?)
            }
            Run::Dry => ShownVolume::of(&*admin.writable(name)?).limited(*bytes),
        })),
        CellRequest::Remove { name, force } => {
            let removal = if *force {
                Removal::WithFiles
            } else {
                Removal::IfEmpty
            };
            match run {
                Run::Real => admin.remove(name, removal)?,
                Run::Dry => admin.check_remove(name, removal).map(drop)?,
            }
            let removed = name.clone();
            Ok(json_of(&Removed { removed }))
        }
    }
}

fn mount_point<'a>(of: &'a str, path: &'a str) -> MountPoint<'a> {
    MountPoint {
        volume: ROOTS[1],
        path,
        of,
        read_write: false,
    }
}

/// Lists the volumes, sorted by name.
pub(crate) fn volumes(admin: &Administration) -> Vec<ShownVolume> {
    let mut all = admin.volumes().all();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all.iter().map(|volume| ShownVolume::of(volume)).collect()
}
