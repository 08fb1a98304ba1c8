//! Backups that commands keep of the bytes that they overwrite: headers, and the first bytes of
//! other contents.
//!
//! They are in the backup directory, in files named `OF.REASON.NANOSECONDS`. Private keys, which
//! are kept there as well, are not among them: their copies are never deleted here.

use crate::{Error, Result, Settings};
use crypt::Volume;
use path_file::{FileDevice, Lock};
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Reason for a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A new volume or file system overwrote the first bytes of a device.
    Overwritten,
    /// Another header was restored.
    BeforeRestore,
    /// The keys of a volume were destroyed.
    Erased,
    /// A key pair was removed.
    KeyRemoved,
}

impl Reason {
    /// Reasons for a backup of the content of a device.
    const OF_DEVICES: [Reason; 3] = [Reason::Overwritten, Reason::BeforeRestore, Reason::Erased];

    /// Returns the word for the reason in the names of the files.
    pub fn word(self) -> &'static str {
        match self {
            Reason::Overwritten => "overwritten",
            Reason::BeforeRestore => "before-restore",
            Reason::Erased => "erased",
            Reason::KeyRemoved => "removed",
        }
    }
}

/// Maximum bytes of a header backup: the largest LUKS2 keyslots area, and the headers before it.
pub const HEADER_BYTES_MAX: u64 = (128 << 20) + (8 << 20);

/// Zeros written at a time over a backup that is deleted, in bytes.
const WIPE_BYTES: u64 = 1 << 20;

/// A backup in the backup directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backup {
    pub file: PathBuf,
    /// File name of the device that was overwritten.
    pub of: String,
    /// Operation that overwrote it.
    pub reason: Reason,
    /// UUID of the volume whose header the backup holds; `None` for other content.
    pub uuid: Option<String>,
    pub bytes: u64,
    pub written: SystemTime,
    /// Number of newer backups of the same volume, or of the same device without a volume.
    pub newer: usize,
}

/// Lists the backups, those of a volume together and the newest of them first.
///
/// # Errors
/// The backup directory cannot be read.
pub fn list(settings: &Settings) -> Result<Vec<Backup>> {
    list_in(&settings.backup_dir())
}

fn list_in(dir: &Path) -> Result<Vec<Backup>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::io("cannot list", dir, e)),
    };
    let mut found: Vec<Backup> = entries.flatten().filter_map(|e| read(e.path())).collect();
    found.sort_by(|a, b| {
        let subject = a.subject().cmp(b.subject());
        subject.then_with(|| b.written.cmp(&a.written))
    });
    let mut newer = 0;
    for at in 1..found.len() {
        let is_same = found[at].subject() == found[at - 1].subject();
        newer = if is_same { newer + 1 } else { 0 };
        found[at].newer = newer;
    }
    Ok(found)
}

impl Backup {
    /// The name of the subject: the volume, or the device.
    fn subject(&self) -> &str {
        self.uuid.as_deref().unwrap_or(&self.of)
    }
}

/// Reads the name and the header of a file; returns `None` if it is no backup of a device.
fn read(file: PathBuf) -> Option<Backup> {
    let meta = std::fs::symlink_metadata(&file).ok()?;
    let name = file.file_name()?.to_str()?;
    let mut parts = name.rsplitn(3, '.');
    let nanos: u64 = parts.next()?.parse().ok()?;
    let word = parts.next()?;
    let reason = Reason::OF_DEVICES.into_iter().find(|r| r.word() == word)?;
    let of = parts.next()?.to_owned();
    meta.is_file().then(|| Backup {
        of,
        reason,
        uuid: header(&file).map(|volume| volume.uuid().to_owned()),
        bytes: meta.len(),
        written: UNIX_EPOCH + Duration::from_nanos(nanos),
        newer: 0,
        file,
    })
}

/// Reads the header in a backup, if it holds one.
pub(crate) fn header(file: &Path) -> Option<Volume> {
    let options = path_file::Options {
        read_only: true,
        lock: Lock::None,
        ..path_file::Options::default()
    };
    Volume::inspect(FileDevice::open(file, &options).ok()?).ok()
}

/// Deletes a backup. It is overwritten first: together with a key that was removed since, an old
/// header opens the volume.
///
/// # Errors
/// Errors of the system.
pub fn delete(backup: &Backup) -> Result<()> {
    let file = backup.file.as_path();
    let failed = |e| Error::io("cannot delete", file, e);
    overwrite(file).map_err(failed)?;
    std::fs::remove_file(file).map_err(failed)
}

fn overwrite(path: &Path) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    let zeros = vec![0; WIPE_BYTES as usize];
    let mut left = file.metadata()?.len();
    while left > 0 {
        let len = left.min(WIPE_BYTES);
        file.write_all(&zeros[..len as usize])?;
        left -= len;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_backups_of_devices_are_listed_and_ordered_by_age() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "a.img.erased.3",
            "a.img.before-restore.5",
            "b.overwritten.4",
            "a.img.overwritten.1",
            // Private keys, header backups of users, and names that are no times.
            "alice.key.removed.9",
            "a.img.header",
            "a.img.erased.now",
            "erased.7",
        ] {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        let found = list_in(dir.path()).unwrap();
        let shown: Vec<(&str, &str, usize)> = found
            .iter()
            .map(|b| (b.of.as_str(), b.reason.word(), b.newer))
            .collect();
        let expected = [
            ("a.img", "before-restore", 0),
            ("a.img", "erased", 1),
            ("a.img", "overwritten", 2),
            ("b", "overwritten", 0),
        ];
        assert_eq!(shown, expected);
        assert!(list_in(&dir.path().join("none")).unwrap().is_empty());
    }

    #[test]
    fn a_deleted_backup_is_overwritten_first() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.erased.1");
        let link = dir.path().join("link");
        std::fs::write(&file, vec![7; 3 << 19]).unwrap();
        std::fs::hard_link(&file, &link).unwrap();
        delete(&list_in(dir.path()).unwrap()[0]).unwrap();
        assert!(!file.exists());
        assert_eq!(std::fs::read(link).unwrap(), vec![0; 3 << 19]);
    }
}
