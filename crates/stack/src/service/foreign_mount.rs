//! A mounted file system of another program: the graph from a DEVICE to a mount point.
//!
//! ```text
//!   FileDevice ── CryptDevice ── Stats ── foreign::Files, in the cache ── mount point
//! ```

use super::mount::MountSpec;
use super::mount_point::MountPoint;
use super::schedule::KeepSnapshots;
use super::status::{ExportAt, Space, Status};
use super::{Built, Closing, Graph, Tree};
use crate::cache::ProcessCache;
use crate::control::{FsRequest, GrowRequest, Run};
use crate::filesystem::grow::Layers;
use crate::signature;
use crate::volume::OpenedDevice;
use crate::{Error, Result};
use ::cache::{Vnode, Volume};
use ::fs::{FIRST_FILESET, Superblock};
use block::{Access, BlockDevice, Stats};
use export_fuse::Mount;
use foreign::{Files, Kind, Saver};
use serde_json::Value;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// Time after which changes are saved, for a device that is pulled out without an unmount.
const SAVE_EVERY: Duration = Duration::from_secs(5);

/// Builds the graph over an open DEVICE; `None` if that holds no file system of another program.
///
/// # Errors
/// It holds something of another program that EVFS cannot mount.
pub(super) fn build(
    spec: &MountSpec,
    open: &OpenedDevice,
    cache: &ProcessCache,
) -> Result<Option<Built>> {
    if Superblock::on(&*open.device).is_some() {
        return Ok(None);
    }
    let name = spec.device.display();
    if spec.survives {
        return Err(Error::Usage(format!(
            "cannot mount {name} with --survive, which works only with EVFS's own file system; omit \
             --survive"
        )));
    }
    let (device, stats) = Stats::new(Arc::clone(&open.device));
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let access = Access::read_only_if(spec.read_only);
    let files = match Files::open_with(Arc::clone(&device), &*cache.cache()?, access) {
        Ok(files) => files,
        Err(error) if error.kind() == Kind::NotFound => {
            return match signature::find(&*open.device)? {
                Some(found) if !signature::is_ours(found) => Err(Error::Failed(format!(
                    "cannot mount {name}: it contains {found}, which EVFS cannot mount; {}",
                    remedy(found)
                ))),
                _ => Ok(None),
            };
        }
        Err(error) => {
            let format = foreign::probe(&*open.device).ok().flatten();
            return Err(Error::Failed(format!(
                "cannot mount {name}, which contains {}: {error}",
                format.unwrap_or("a file system")
            )));
        }
    };
    if spec.fileset != FIRST_FILESET {
        return Err(Error::Usage(format!(
            "{name} contains {}, which has no filesets; omit --fileset",
            files.tree().format()
        )));
    }
    let unknown = [
        (
            spec.keep_snapshots != KeepSnapshots::default(),
            "snapshots",
            "keep-snapshots",
        ),
        (spec.scrub.is_some(), "scrubs", "scrub"),
    ];
    if let Some((_, missing, key)) = unknown.into_iter().find(|(is_set, ..)| *is_set) {
        return Err(Error::Usage(format!(
            "{name} contains {}, which has no {missing}; omit {key}",
            files.tree().format()
        )));
    }
    let config = spec.config(!files.is_writable());
    let mut status = Status {
        format: Some(files.tree().format()),
        read_only: !files.is_writable(),
        config: spec.config.clone(),
        ..Status::of(
            &spec.name,
            &spec.device,
            config.threads,
            open,
            device.info(),
        )
    };
    let (uuid, label) = (files.tree().uuid(), files.tree().label());
    (status.uuid, status.label) = (uuid, label);
    let graph = ForeignGraph {
        name: spec.name.clone(),
        point: MountPoint::new(config),
        saver: None,
        files,
    };
    Ok(Some(Built {
        graph: Box::new(graph),
        status,
        stats,
    }))
}

/// Names the way to the data of a format that EVFS cannot mount.
fn remedy(found: &str) -> &'static str {
    if found.ends_with("partition table") {
        "name one of its partitions"
    } else if found.ends_with("volume") || found.starts_with("Linux RAID") {
        "use the tools of that format, and name the device that they create"
    } else {
        "use mount(8)"
    }
}

struct ForeignGraph {
    name: String,
    // Fields drop in this order: the mount before the files.
    point: MountPoint,
    /// Saves changes while it is mounted.
    saver: Option<Saver>,
    files: Arc<Files>,
}

impl ForeignGraph {
    /// Builds the error for changes that could not be written, given its source.
    fn not_written(&self) -> impl FnOnce(foreign::Error) -> Error + use<> {
        let name = self.name.clone();
        move |e| {
            Error::Failed(format!(
                "cannot write back {name}: {e} (--force discards unwritten data)"
            ))
        }
    }
}

impl Graph for ForeignGraph {
    fn open_exports(&mut self, status: &mut Status) -> Result<()> {
        if self.point.mount.is_some() {
            return Ok(());
        }
        let Some(config) = &self.point.config else {
            return Ok(());
        };
        let folder = &config.mountpoint;
        export_file::clear_dead(folder)?;
        let mount = Mount::start_foreign(config.clone(), Arc::clone(&self.files))?;
        let at = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.clone());
        let export = ExportAt::new("mount", at.display().to_string());
        status.exports.push(export);
        self.point.mount = Some(mount);
        if self.files.is_writable() {
            let failed =
                |e| Error::Failed(format!("cannot start a thread that saves changes: {e}"));
            self.saver = Some(Saver::start(&self.files, SAVE_EVERY).map_err(failed)?);
        }
        Ok(())
    }

    fn in_use(&self) -> Result<()> {
        self.point.in_use()
    }

    fn flush(&self) -> Result<()> {
        self.files.sync().map_err(self.not_written())
    }

    fn close_exports(&mut self, status: &mut Status, closing: Closing) -> Result<()> {
        self.point.close(status, closing)
    }

    fn close(&mut self) -> Result<()> {
        self.flush()?;
        self.point.config = None;
        self.saver = None;
        if self.point.unused {
            self.files.close().map_err(self.not_written())?;
        }
        Ok(())
    }

    fn ended(&self) -> Option<BorrowedFd<'_>> {
        self.point.ended()
    }

    fn has_ended(&self) -> bool {
        self.point.has_ended()
    }

    fn update(&self, status: &mut Status) {
        status.space = Some(Space::of_foreign(&self.files));
    }

    fn trees(&self) -> Vec<Tree> {
        vec![Tree {
            name: self.name.clone(),
            pages: Arc::clone(self.files.volume()),
            fileset: None,
        }]
    }

    fn cached(&self) -> Result<Vec<Arc<Volume>>> {
        Ok(vec![Arc::clone(self.files.volume())])
    }

    fn vnode(&self, _path: Option<&str>) -> Result<Arc<Vnode>> {
        Err(Error::Usage(format!(
            "{} is a file system of another program; its files have no attributes for the cache",
            self.name
        )))
    }

    fn grow(&self, _: &Layers<'_>, _: &GrowRequest, _: Run) -> Result<Value> {
        Err(Error::Usage(format!(
            "cannot grow {}: it contains {}, which EVFS cannot grow; unmount it, and use the tools of that \
             format",
            self.name,
            self.files.tree().format()
        )))
    }

    fn files(&self, _request: &FsRequest, _run: Run) -> Result<Value> {
        Err(Error::Usage(format!(
            "{} contains {}, which has no filesets; `df` of the system shows its space",
            self.name,
            self.files.tree().format()
        )))
    }
}
