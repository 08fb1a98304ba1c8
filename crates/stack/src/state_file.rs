//! Small files of JSON in which this machine remembers things: read as a whole, replaced as a whole
//! under a lock, for their user alone.

use crate::{Error, Result};
use serde::Serialize;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Changes the file `path`, which `load` reads: under a lock, and so that a crash leaves the old one
/// or the new one. `failed` begins the error of a file that cannot be written; `variable` sets its
/// path.
///
/// # Errors
/// Those of `load`, of `change`, and of the files; nothing is changed then.
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
    crate::control::own_dir(folder, variable)?;
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
