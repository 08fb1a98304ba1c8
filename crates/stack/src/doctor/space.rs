//! Free space: of the file system that holds a volume, of the file system inside it, and of the
//! directories of backups and state.

use super::subjects::Subject;
use super::{Finding, ids};
use crate::control::{self, ControlRequest, FsRequest};
use crate::{Settings, short_size};
use fuse_mount::MountEntry;
use serde_json::Value;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Free space below which a sparse file is about to fail, in bytes.
const BACKING_MIN: u64 = 64 << 20;

/// Free space from which on a sparse file is only noted, in bytes.
const BACKING_ENOUGH: u64 = 1 << 30;

/// Free space that a header backup, and some state, need.
const STATE_MIN: u64 = 64 << 20;

/// Percentages of free space inside a volume that are a warning and an error.
const INSIDE_LOW: u64 = 5;
const INSIDE_FULL: u64 = 1;

/// Checks the space under a subject, and inside it if it is open.
pub(super) fn check(subject: &Subject, settings: &Settings) -> Vec<Finding> {
    let mut findings: Vec<Finding> = under(&subject.device).into_iter().collect();
    let Some((name, status)) = &subject.served else {
        return findings;
    };
    if status["fileset"].is_string() || status["cell"].is_string() {
        let usage = ControlRequest::Files(FsRequest::Usage);
        match control::send_query(&settings.run_dir(), name, &usage) {
            Ok(usage) => {
                let number = |key: &str| usage[key].as_u64().unwrap_or(0);
                let (size, free) = (number("size_bytes"), number("available_bytes"));
                findings.push(inside("the file system", size, free));
            }
            Err(e) => {
                let what = "the space in the file system";
                findings.push(Finding::unchecked(ids::INSIDE, what, e.chain()));
            }
        }
    }
    let mounts = fuse_mount::mounts();
    for export in status["exports"].as_array().into_iter().flatten() {
        findings.extend(of_export(export, &mounts));
    }
    findings
}

/// Checks the directories of backups and state.
pub(super) fn check_state(settings: &Settings) -> Vec<Finding> {
    let backup = settings.backup_dir();
    let trust = settings.trust_store();
    [
        (backup.as_path(), "header backups"),
        (trust.parent().unwrap_or(Path::new("/")), "the trust store"),
    ]
    .map(|(dir, what)| {
        let found = match free_near(dir) {
            Ok(free) if free < STATE_MIN => {
                let said = format!("only {} are free for {what}", short_size(free as f64));
                Finding::warning(ids::STATE, said)
                    .why("a command that first saves a header, or records a volume, fails")
                    .remedy("remove files there, or choose another directory")
            }
            Ok(free) => {
                let said = format!("{} are free for {what}", short_size(free as f64));
                Finding::ok(ids::STATE, said)
            }
            Err(e) => {
                let why = crate::without_number(&e.to_string());
                Finding::unchecked(ids::STATE, &format!("the space for {what}"), why)
            }
        };
        found.on(dir.display().to_string())
    })
    .into()
}

/// Reads the free space for a directory that may not exist yet.
fn free_near(dir: &Path) -> io::Result<u64> {
    match existing(dir) {
        Some(at) => free_bytes(at),
        None => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Finds the nearest existing directory at or over a path.
fn existing(path: &Path) -> Option<&Path> {
    path.ancestors().find(|path| path.exists())
}

/// Reads the free space of the file system of a path, in bytes, as for a user without privileges.
fn free_bytes(path: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Judges the file system that holds a file; nothing for a disk or a LUN.
fn under(device: &Path) -> Option<Finding> {
    let meta = std::fs::metadata(device)
        .ok()
        .filter(|meta| meta.is_file())?;
    Some(match free_bytes(device) {
        Ok(free) => sparse(meta.len().saturating_sub(meta.blocks() * 512), free),
        Err(e) => {
            let why = crate::without_number(&e.to_string());
            Finding::unchecked(ids::BACKING, "the space under the volume", why)
        }
    })
}

/// Judges the bytes that a file has not allocated yet, and those that are free under it.
fn sparse(missing: u64, free: u64) -> Finding {
    let what = format!(
        "the file can grow by {}, and {} are free under it",
        short_size(missing as f64),
        short_size(free as f64)
    );
    let full =
        "when the space is used up, writes are held in memory, and are lost if it is not freed";
    let remedy = "free space under the volume, or move it to a larger file system";
    if missing <= free {
        Finding::ok(ids::BACKING, what)
    } else if free < BACKING_MIN {
        Finding::error(ids::BACKING, what).why(full).remedy(remedy)
    } else if free < BACKING_ENOUGH || free < missing / 10 {
        Finding::warning(ids::BACKING, what)
            .why(full)
            .remedy(remedy)
    } else {
        Finding::note(ids::BACKING, what)
            .why(full)
            .remedy("watch the free space")
    }
}

/// Judges the free space of a file system in a volume, in bytes.
fn inside(what: &str, size: u64, free: u64) -> Finding {
    let said = format!(
        "{} of {} are free in {what}",
        short_size(free as f64),
        short_size(size as f64)
    );
    let least = |percent: u64| size / 100 * percent;
    let remedy = "remove files and snapshots that are not needed, or enlarge the volume";
    if free <= least(INSIDE_FULL) {
        Finding::error(ids::INSIDE, said)
            .why("writes fail, or will soon")
            .remedy(remedy)
    } else if free <= least(INSIDE_LOW) {
        Finding::warning(ids::INSIDE, said)
            .why("a nearly full file system is slow, and its files are fragmented")
            .remedy(remedy)
    } else {
        Finding::ok(ids::INSIDE, said)
    }
}

/// Judges the file system that the kernel has mounted from a loop device.
fn of_export(export: &Value, mounts: &[MountEntry]) -> Option<Finding> {
    if export["kind"] != "loop" {
        return None;
    }
    let device = export["at"].as_str()?;
    let mount = mounts.iter().find(|mount| mount.source == device)?;
    let stat = rustix::fs::statvfs(&mount.point).ok()?;
    let of = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    let at = mount.point.display().to_string();
    Some(inside(&at, of(stat.f_blocks), of(stat.f_bavail)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity::{Error, Note, Ok as Fine, Warning};

    #[test]
    fn a_sparse_file_needs_space_to_grow() {
        let (mib, gib) = (1 << 20, 1 << 30);
        for (missing, free, severity) in [
            (0, 0, Fine),
            (gib, gib, Fine),
            (gib, 10 * mib, Error),
            (2 * gib, gib / 2, Warning),
            (100 * gib, 2 * gib, Warning),
            (10 * gib, 2 * gib, Note),
        ] {
            assert_eq!(
                sparse(missing, free).severity,
                severity,
                "{missing}, {free}"
            );
        }
    }

    #[test]
    fn a_file_system_that_fills_up_is_reported() {
        let gib = 1 << 30;
        assert_eq!(inside("it", gib, gib / 2).severity, Fine);
        assert_eq!(inside("it", gib, gib / 25).severity, Warning);
        assert_eq!(inside("it", gib, 0).severity, Error);
    }

    #[test]
    fn only_a_file_has_space_under_it() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(under(dir.path()), None);
        let file = dir.path().join("a.img");
        std::fs::write(&file, "x").unwrap();
        assert_eq!(under(&file).unwrap().severity, Fine);
        assert_eq!(existing(&dir.path().join("none/none")), Some(dir.path()));
    }
}
