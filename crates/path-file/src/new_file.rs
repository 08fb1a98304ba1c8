//! Atomic creation of files: a file appears complete or not at all, and never replaces another.
//!
//! A new file is created under a hidden name derived from its own, and renamed when it is complete.
//! Its creator holds the open lock on it. A hidden file without that lock was left by a killed
//! process; the next process that creates a file of this name removes it.

use crate::{Lock, lock};
use block::{Error, ErrorKind, Result};
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::ErrorKind as IoKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::NamedTempFile;

/// Bytes of a name that its hidden name includes, to stay within the limit of file names.
const NAME_BYTES_MAX: usize = 200;

/// How long to wait for the lock on a hidden file: for the process that is creating it, or, if it
/// was killed, for the kernel to tear down its rings.
const LEFTOVER_PATIENCE: Duration = Duration::from_secs(10);

/// New file (mode 0600) that gets its name by [`NewFile::finish`]. Dropping it earlier removes it.
#[derive(Debug)]
pub struct NewFile {
    temporary: NamedTempFile<File>,
    path: PathBuf,
}

impl NewFile {
    /// Begins to create the file `path`.
    ///
    /// # Errors
    /// The file exists (`EEXIST`), another process is creating it ([`ErrorKind::Busy`]), or a
    /// system error.
    pub fn begin(path: &Path) -> Result<NewFile> {
        let new = NewFile::unlocked(path)?;
        lock::take_open_lock(new.file(), &new.name(), Lock::Exclusive)?;
        new.still_there()?;
        Ok(new)
    }

    /// As [`NewFile::begin`], for a caller that takes the open lock and then calls
    /// [`NewFile::still_there`].
    pub(crate) fn unlocked(path: &Path) -> Result<NewFile> {
        let failed = |e| Error::from_io(path.display().to_string(), e).detail("cannot be created");
        if std::fs::symlink_metadata(path).is_ok() {
            return Err(failed(std::io::Error::from_raw_os_error(libc::EEXIST)));
        }
        let hidden = hidden(path).map_err(failed)?;
        let folder = folder(path);
        remove_remains(path, &folder.join(&hidden))?;
        let temporary = tempfile::Builder::new()
            .prefix(&hidden)
            .rand_bytes(0)
            .make_in(folder, |path| {
                let mut new = OpenOptions::new();
                new.read(true).write(true).create_new(true).mode(0o600);
                new.open(path)
            })
            .map_err(|e| match e.kind() {
                IoKind::AlreadyExists => being_made(path),
                _ => failed(e),
            })?;
        let path = path.to_owned();
        Ok(NewFile { temporary, path })
    }

    /// Checks that no other process removed the file as a leftover before it was locked.
    pub(crate) fn still_there(&self) -> Result<()> {
        if is_at(self.file(), self.temporary.path()) {
            Ok(())
        } else {
            Err(being_made(&self.path))
        }
    }

    /// Returns the file, to be filled.
    pub fn file(&self) -> &File {
        self.temporary.as_file()
    }

    /// Returns the path of the file until it is complete.
    pub(crate) fn hidden_path(&self) -> &Path {
        self.temporary.path()
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Makes the file and its name durable.
    ///
    /// # Errors
    /// A file of this name exists by now (`EEXIST`), or a system error; there is no new file then.
    pub fn finish(self) -> Result<()> {
        let name = self.name();
        let failed = |e| Error::from_io(&name, e).detail("cannot be created");
        self.file().sync_all().map_err(failed)?;
        let named = self.temporary.persist_noclobber(&self.path);
        named.map_err(|e| failed(e.error))?;
        let synced = File::open(folder(&self.path)).and_then(|folder| folder.sync_all());
        synced.map_err(|e| {
            let _ = std::fs::remove_file(&self.path);
            failed(e)
        })
    }
}

fn folder(path: &Path) -> &Path {
    path.parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

fn hidden(path: &Path) -> std::io::Result<OsString> {
    let name = path.file_name().ok_or(IoKind::InvalidInput)?.as_bytes();
    let mut hidden = OsString::from(".");
    hidden.push(OsStr::from_bytes(&name[..name.len().min(NAME_BYTES_MAX)]));
    hidden.push(".evfs-new");
    Ok(hidden)
}

/// Removes the file of a killed process. This is done under the open lock, so a process that is
/// creating the file cannot lose it unnoticed.
fn remove_remains(path: &Path, hidden: &Path) -> Result<()> {
    let failed = |e| {
        let why = format!(
            "cannot be created: {} exists and cannot be removed",
            hidden.display()
        );
        Error::from_io(path.display().to_string(), e).detail(why)
    };
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(hidden);
    let remains = match opened {
        Ok(file) => file,
        Err(e) if e.kind() == IoKind::NotFound => return Ok(()),
        Err(e) => return Err(failed(e)),
    };
    let name = path.display().to_string();
    let end = Instant::now() + LEFTOVER_PATIENCE;
    loop {
        match lock::take_open_lock(&remains, &name, Lock::Exclusive) {
            Ok(()) => break,
            Err(e) if e.kind() != ErrorKind::Busy => return Err(e),
            Err(_) if Instant::now() < end => {}
            Err(_) => return Err(being_made(path)),
        }
    }
    if is_at(&remains, hidden) {
        std::fs::remove_file(hidden).map_err(failed)
    } else {
        Ok(())
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let id = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
    let there = std::fs::symlink_metadata(path).map(id);
    matches!((file.metadata().map(id), there), (Ok(open), Ok(there)) if open == there)
}

fn being_made(path: &Path) -> Error {
    let why = "another process is creating it";
    Error::new(ErrorKind::Busy, path.display().to_string(), why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn names(folder: &Path) -> Vec<OsString> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_new_file_has_its_name_only_when_it_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let new = NewFile::begin(&path).unwrap();
        assert!(!path.exists());
        let second = NewFile::begin(&path).unwrap_err();
        assert_eq!(second.kind(), ErrorKind::Busy);
        new.file().write_all(b"all of it").unwrap();
        new.finish().unwrap();
        assert_eq!(names(dir.path()), ["a"]);
        assert_eq!(std::fs::read(&path).unwrap(), b"all of it");
        let mode = std::fs::metadata(&path).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        let again = NewFile::begin(&path).unwrap_err();
        assert_eq!(again.errno(), libc::EEXIST);
    }

    #[test]
    fn a_new_file_that_is_given_up_leaves_nothing_and_replaces_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        drop(NewFile::begin(&path).unwrap());
        assert!(names(dir.path()).is_empty());
        let new = NewFile::begin(&path).unwrap();
        std::fs::write(&path, "of somebody else").unwrap();
        assert_eq!(new.finish().unwrap_err().errno(), libc::EEXIST);
        assert_eq!(names(dir.path()), ["a"]);
        assert_eq!(std::fs::read(&path).unwrap(), b"of somebody else");
    }

    #[test]
    fn what_a_killed_process_left_of_a_new_file_is_removed_by_the_next() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a".to_owned(), "n".repeat(255)] {
            let path = dir.path().join(&name);
            let remains = dir.path().join(hidden(&path).unwrap());
            std::fs::write(&remains, "half of it").unwrap();
            NewFile::begin(&path).unwrap().finish().unwrap();
            assert!(!remains.exists());
            assert_eq!(std::fs::read(&path).unwrap(), b"");
        }
        // A file that is not ours is neither followed nor removed.
        let (path, other) = (dir.path().join("b"), dir.path().join("other"));
        std::fs::write(&other, "of somebody else").unwrap();
        std::os::unix::fs::symlink(&other, dir.path().join(hidden(&path).unwrap())).unwrap();
        let refused = NewFile::begin(&path).unwrap_err().to_string();
        assert!(
            refused.contains("exists and cannot be removed"),
            "{refused}"
        );
        assert_eq!(std::fs::read(&other).unwrap(), b"of somebody else");
    }
}
