//! Header backups: those in the backup directory, and those beside the device.

use super::{Finding, ids, quoted};
use crate::backups::{HEADER_BYTES_MAX, header};
use crate::device::is_lun;
use crate::trust::{SeenSeal, seal_of};
use crypt::KeyEntry;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Ending of the file of a backup that is found beside a device.
const ENDING: &str = "header";

/// Files examined in one directory.
const FILES_MAX: usize = 1000;

/// A header backup.
#[derive(Debug, Clone)]
pub(super) struct Saved {
    path: PathBuf,
    uuid: String,
    seal: Option<SeenSeal>,
    keys: Vec<KeyEntry>,
    /// Time of the last change of the file.
    written: SystemTime,
    /// Number of the device that holds the file.
    disk: u64,
}

/// The header for which a backup is wanted.
pub(super) struct Wanted<'a> {
    pub(super) device: &'a Path,
    pub(super) uuid: &'a str,
    pub(super) seal: Option<&'a SeenSeal>,
    pub(super) keys: &'a [KeyEntry],
}

/// Reads the header backups in a directory.
pub(super) fn saved_in(dir: &Path) -> Vec<Saved> {
    saved(dir, |_| true)
}

/// Reads the header backups beside a file, which have the ending `.header`.
pub(super) fn saved_beside(device: &Path) -> Vec<Saved> {
    let full = std::fs::canonicalize(device).unwrap_or_else(|_| device.to_owned());
    let is_file = std::fs::metadata(&full).is_ok_and(|meta| meta.is_file());
    let dir = full.parent().filter(|_| is_file);
    let is_backup = |path: &Path| path.extension().is_some_and(|ending| ending == ENDING);
    dir.map_or(Vec::new(), |dir| saved(dir, is_backup))
}

fn saved(dir: &Path, is_wanted: impl Fn(&Path) -> bool) -> Vec<Saved> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    let paths = entries.flatten().map(|entry| entry.path());
    let paths = paths.filter(|path| is_wanted(path)).take(FILES_MAX);
    paths.filter_map(read).collect()
}

/// Reads a file; returns `None` if it is no header backup.
fn read(path: PathBuf) -> Option<Saved> {
    let meta = std::fs::metadata(&path).ok()?;
    if !meta.is_file() || meta.len() > HEADER_BYTES_MAX {
        return None;
    }
    let volume = header(&path)?;
    let written = meta.modified().ok()?;
    // A small volume has the same first bytes, and data behind them.
    let is_header_alone = volume.is_cut_short() || volume.data_size() == 0;
    is_header_alone.then(|| Saved {
        uuid: volume.uuid().to_owned(),
        seal: seal_of(&volume),
        keys: volume.keys(),
        written,
        disk: meta.dev(),
        path,
    })
}

/// Judges the backups of a header.
pub(super) fn judge(
    wanted: &Wanted<'_>,
    saved: &[&Saved],
    backup_dir: &Path,
    now: SystemTime,
) -> Finding {
    let device = wanted.device.display().to_string();
    let target = if is_lun(wanted.device) {
        backup_dir.join(format!("{}.{ENDING}", wanted.uuid))
    } else {
        PathBuf::from(format!("{device}.{ENDING}"))
    };
    let command = free(&target).map(|file| {
        let file = file.display().to_string();
        format!(
            "evfs volume header backup {} {}",
            quoted(&device),
            quoted(&file)
        )
    });
    let own = saved.iter().copied().filter(|s| s.uuid == wanted.uuid);
    let own: Vec<&Saved> = own.collect();
    let is_current = |s: &Saved| s.seal.as_ref() == wanted.seal && s.keys == wanted.keys;
    let disk = std::fs::metadata(wanted.device).ok();
    let disk = disk.filter(|meta| meta.is_file()).map(|meta| meta.dev());
    // One on another disk counts more than a newer one.
    let current = own.iter().copied().filter(|s| is_current(s));
    if let Some(best) = current.max_by_key(|s| (Some(s.disk) != disk, s.written)) {
        let age = age(now, best.written);
        let what = format!("a header backup matches the header ({age})");
        return if Some(best.disk) == disk {
            Finding::note(ids::BACKUP, what)
                .why(format!(
                    "{} is on the same file system as the volume: a failure of the disk takes both",
                    best.path.display()
                ))
                .remedy("copy the backup to another disk or machine")
        } else {
            Finding::ok(ids::BACKUP, what).why(best.path.display().to_string())
        };
    }
    let found = match own.iter().max_by_key(|s| s.written) {
        Some(newest) => {
            let age = age(now, newest.written);
            Finding::warning(ids::BACKUP, format!("no header backup is current ({age})"))
                .why(format!(
                    "keys were changed since {} was written: after a restore, new keys open \
                     nothing, and removed keys open the volume",
                    newest.path.display()
                ))
                .remedy("save the header again, keep it on another disk, and destroy the old file")
        }
        None => Finding::warning(ids::BACKUP, "no header backup is known")
            .why(format!(
                "none is in {} or beside the device; if the header or its keyslots are destroyed, \
                 the data is lost",
                backup_dir.display()
            ))
            .remedy("save the header, and keep a copy on another disk"),
    };
    Finding { command, ..found }
}

/// Finds a name that no file has yet, near `path`.
fn free(path: &Path) -> Option<PathBuf> {
    let numbered = |n: u32| match n {
        1 => path.to_owned(),
        n => path.with_extension(format!("{n}.{ENDING}")),
    };
    (1..100).map(numbered).find(|path| !path.exists())
}

/// Describes the age of a file.
fn age(now: SystemTime, written: SystemTime) -> String {
    let days = now
        .duration_since(written)
        .map_or(0, |age| age.as_secs() / 86_400);
    match days {
        0 => "less than a day old".into(),
        1 => "1 day old".into(),
        days => format!("{days} days old"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity::{Note, Ok as Fine, Warning};
    use crypt::Role;
    use std::time::Duration;

    fn key(keyslot: u32) -> KeyEntry {
        KeyEntry {
            label: None,
            keyslot,
            role: Role::Owner,
            name: None,
            recipient: None,
            kdf: "argon2id".into(),
            bound: true,
        }
    }

    #[test]
    fn a_backup_must_exist_be_current_and_be_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("a.img");
        std::fs::write(&device, "").unwrap();
        let here = std::fs::metadata(&device).unwrap().dev();
        let now = SystemTime::now();
        let saved = |uuid: &str, keys: Vec<KeyEntry>, disk: u64| Saved {
            path: format!("/backup/{uuid}.header").into(),
            uuid: uuid.into(),
            seal: None,
            keys,
            written: now - Duration::from_secs(3 * 86_400),
            disk,
        };
        let keys = [key(0), key(1)];
        let judged = |all: &[Saved]| {
            let wanted = Wanted {
                device: &device,
                uuid: "1",
                seal: None,
                keys: &keys,
            };
            let all: Vec<&Saved> = all.iter().collect();
            judge(&wanted, &all, Path::new("/backup"), now)
        };
        let none = judged(&[saved("2", keys.to_vec(), here + 1)]);
        assert_eq!(none.severity, Warning);
        let command = none.command.unwrap_or_default();
        assert!(command.ends_with("a.img.header"), "{command}");
        let old = judged(&[saved("1", vec![key(0)], here + 1)]);
        assert_eq!(old.severity, Warning);
        assert!(old.what.contains("3 days old"), "{}", old.what);
        let same_disk = saved("1", keys.to_vec(), here);
        assert_eq!(judged(std::slice::from_ref(&same_disk)).severity, Note);
        let elsewhere = saved("1", keys.to_vec(), here + 1);
        assert_eq!(judged(&[elsewhere, same_disk]).severity, Fine);
    }

    #[test]
    fn a_suggested_file_does_not_exist() {
        let dir = tempfile::tempdir().unwrap();
        let first = dir.path().join("a.img.header");
        assert_eq!(free(&first), Some(first.clone()));
        std::fs::write(&first, "").unwrap();
        assert_eq!(free(&first), Some(dir.path().join("a.img.2.header")));
    }

    #[test]
    fn other_files_are_no_backups() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "text").unwrap();
        std::fs::write(dir.path().join("b"), vec![0; 1 << 20]).unwrap();
        std::fs::create_dir(dir.path().join("c")).unwrap();
        assert!(saved_in(dir.path()).is_empty());
        assert!(saved_in(&dir.path().join("none")).is_empty());
    }
}
