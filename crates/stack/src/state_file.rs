//! Small JSON files with persistent state of this machine. They are read as a whole, replaced as a
//! whole under a lock, and accessible only to their user.

use crate::paths::own_dir;
use crate::{Error, Result};
use serde::Serialize;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Limit of [`read_small`], in bytes.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// Reads a small file. The limit also covers devices and pipes, which may have no end.
///
/// # Errors
/// Errors of the system; the file has more than 8 MiB.
pub(crate) fn read_small(path: &Path) -> io::Result<Vec<u8>> {
    read_up_to(path, FILE_BYTES_MAX)
}

/// Reads a file of at most `max` bytes.
///
/// # Errors
/// Errors of the system; the file is larger.
pub fn read_up_to(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path)?;
    file.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        let why = format!("it has more than {} MiB", max >> 20);
        Err(io::Error::new(io::ErrorKind::FileTooLarge, why))
    } else {
        Ok(bytes)
    }
}

/// Reads a small text file.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read_small(path)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}

/// Changes the file `path`, which `load` reads, under a lock. After a crash it has either the old
/// or the new content. `failed` begins the error of a file that cannot be written, and `variable`
/// is the environment variable that sets its path.
///
/// # Errors
/// Those of `load`, of `change`, and of the files; the file is unchanged then.
pub(crate) fn update<F, T>(
    path: &Path,
    (failed, variable): (&'static str, &str),
    load: impl FnOnce(&Path) -> Result<F>,
    change: impl FnOnce(&mut F) -> Result<T>,
) -> Result<T>
where
    F: Serialize + Clone + PartialEq,
{
    let failed = |e| Error::io(failed, path, e);
    let folder = path.parent().unwrap_or(Path::new("/"));
    own_dir(folder, variable)?;
    let lock = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(with_suffix(path, "lock"))
        .map_err(failed)?;
    lock.lock().map_err(failed)?;
    let mut content = load(path)?;
    let before = content.clone();
    let result = change(&mut content)?;
    if content != before {
        let new = with_suffix(path, "new");
        let text = serde_json::to_string_pretty(&content).expect("names become JSON");
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)
            .map_err(failed)?;
        file.write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
            .and_then(|()| std::fs::rename(&new, path))
            .and_then(|()| std::fs::File::open(folder)?.sync_all())
            .map_err(failed)?;
    }
    Ok(result)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}
