//! The last step: EVFS's own file system, without one of the kernel and without a block device. A
//! volume is formatted, mounted, filled, snapshotted, emptied, and the snapshot is compared with
//! the original.

use super::store::{compare_with, copy_into};
use super::tree::{Amount, Tree};
use super::{MountedFiles, NAME as OWNER, Tour};
use stack::{Error, Result, filesystem};
use std::path::Path;

/// Name of the second volume, and of the mounted file system.
pub const NAME: &str = "quickfiles";

/// Runs the step. If this user may not mount, prints the reason and returns it as the report.
pub fn show(tour: &Tour, size: &str, tree: &Tree) -> Result<MountedFiles> {
    if let Some(needs) = filesystem::no_mounts() {
        let why = format!("mounting needs {needs}");
        tour.say(&format!("      skipped: {why}"));
        return Ok(MountedFiles {
            left_out: Some(why),
            files: None,
            bytes: None,
        });
    }
    let text = |path: &Path| -> Result<String> {
        let text = path.to_str().map(str::to_owned);
        text.ok_or_else(|| Error::Usage("--dir must be valid UTF-8".into()))
    };
    let image = text(&tour.dir.join(format!("{NAME}.img")))?;
    let folder = tour.dir.join("files");
    std::fs::create_dir_all(&folder).map_err(|e| Error::io("cannot create", &folder, e))?;
    let at = text(&folder)?;
    tour.evfs(&["volume", "create", &image, "--size", size, "--owner", OWNER])?;
    tour.evfs(&["format", &image])?;
    tour.evfs(&["mount", &image, &at, "--background"])?;
    let copied = copy_into(&folder, tree, &|| tour.stopped())?;
    tour.evfs(&["fileset", "snapshot", &image, "main", "before"])?;
    empty(&folder)?;
    tour.evfs(&["unmount", &at])?;
    tour.evfs(&["fsck", &image])?;
    tour.evfs(&["mount", &image, &at, "--fileset", "before", "--background"])?;
    let kept = compare_with(&folder, &copied, &|| tour.stopped())?;
    tour.evfs(&["unmount", &at])?;
    same(&copied.amount(), &kept)?;
    tour.say(&format!(
        "      removed {} files; the snapshot still has them, byte for byte",
        kept.files
    ));
    Ok(MountedFiles {
        left_out: None,
        files: Some(kept.files),
        bytes: Some(kept.bytes),
    })
}

fn empty(folder: &Path) -> Result<()> {
    let failed = |e| Error::io("cannot empty", folder, e);
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let removed = if entry.file_type().map_err(failed)?.is_dir() {
            std::fs::remove_dir_all(entry.path())
        } else {
            std::fs::remove_file(entry.path())
        };
        removed.map_err(failed)?;
    }
    Ok(())
}

fn same(copied: &Amount, kept: &Amount) -> Result<()> {
    if copied == kept {
        Ok(())
    } else {
        Err(Error::Failed(format!(
            "the snapshot has {} files of {} bytes, but {} of {} were written",
            kept.files, kept.bytes, copied.files, copied.bytes
        )))
    }
}
