//! Default locations of files: system directories for root, XDG directories for other users. And
//! directories that only their user can write to.

use crate::peer::{is_trusted_user, me};
use crate::{Error, Result};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// File locations of a user. None of them is created here.
#[derive(Debug, Clone)]
pub struct Paths {
    /// Configuration file.
    pub config: PathBuf,
    /// Directory of user key pairs.
    pub keys: PathBuf,
    /// Directory of backups that undo destructive commands.
    pub backup: PathBuf,
    /// Registry of LUNs.
    pub luns: PathBuf,
    /// Trust store.
    pub trust: PathBuf,
    /// Directory of control sockets, default exports and their mount points.
    pub run: PathBuf,
    /// Whether the locations are for documentation, which describes values of a machine in words.
    is_documentation: bool,
}

impl Paths {
    /// Determines the locations for the effective user of this process.
    pub fn of_this_user() -> Paths {
        if rustix::process::geteuid().is_root() {
            Paths::of_root()
        } else {
            Paths::below(xdg, runtime_dir())
        }
    }

    /// Returns the locations for root and those for other users, as documentation writes them.
    pub fn documented() -> [Paths; 2] {
        let home = |_: &str, fallback: &str| Path::new("~").join(fallback);
        let user = Paths::below(home, "$XDG_RUNTIME_DIR/evfs".into());
        [Paths::of_root(), user].map(|paths| Paths {
            is_documentation: true,
            ..paths
        })
    }

    /// Returns `value`, which depends on the machine, or in documentation `words`.
    pub fn or_words(&self, words: &str, value: impl FnOnce() -> String) -> String {
        if self.is_documentation {
            words.into()
        } else {
            value()
        }
    }

    fn of_root() -> Paths {
        Paths {
            config: "/etc/evfs/evfs.toml".into(),
            keys: "/etc/evfs/keys".into(),
            backup: "/var/lib/evfs/backup".into(),
            luns: "/var/lib/evfs/luns.json".into(),
            trust: "/var/lib/evfs/trust.json".into(),
            run: "/run/evfs".into(),
            is_documentation: false,
        }
    }

    /// The locations in the directories that `xdg` resolves: from the name of a variable,
    /// and the directory without it, relative to the home directory.
    fn below(xdg: impl Fn(&str, &str) -> PathBuf, run: PathBuf) -> Paths {
        Paths {
            config: xdg("XDG_CONFIG_HOME", ".config").join("evfs/evfs.toml"),
            keys: xdg("XDG_DATA_HOME", ".local/share").join("evfs/keys"),
            backup: xdg("XDG_STATE_HOME", ".local/state").join("evfs/backup"),
            luns: xdg("XDG_STATE_HOME", ".local/state").join("evfs/luns.json"),
            trust: xdg("XDG_STATE_HOME", ".local/state").join("evfs/trust.json"),
            run,
            is_documentation: false,
        }
    }
}

/// Resolves a directory of the XDG Base Directory Specification, which requires that a relative
/// value is ignored.
fn xdg(variable: &str, fallback: &str) -> PathBuf {
    match std::env::var_os(variable).map(PathBuf::from) {
        Some(path) if path.is_absolute() => path,
        _ => home().join(fallback),
    }
}

fn home() -> PathBuf {
    match std::env::var_os("HOME").map(PathBuf::from) {
        Some(path) if path.is_absolute() => path,
        _ => PathBuf::from("/"),
    }
}

/// Chooses `$XDG_RUNTIME_DIR/evfs`, or without a login session a directory in `/tmp` named after
/// the user ID. Its owner and mode are checked before use.
fn runtime_dir() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(path) if path.is_absolute() => path.join("evfs"),
        _ => PathBuf::from(format!("/tmp/evfs-{}", rustix::process::geteuid().as_raw())),
    }
}

/// Variable that sets the directory of control sockets.
const RUN_DIR: &str = "EVFS_RUN_DIR";

/// Ensures that the directory of control sockets exists and is safe, and returns its path.
///
/// # Errors
/// It belongs to another user, or others can write to it: they could place a socket there that
/// poses as a volume.
pub fn run_dir(dir: &Path) -> Result<PathBuf> {
    own_dir(dir, RUN_DIR)
}

/// Ensures that a directory exists, and that only this user can write to it. `variable` is the
/// environment variable that sets its path, for the error.
///
/// # Errors
/// It belongs to another user, or others can write to it.
pub fn own_dir(dir: &Path, variable: &str) -> Result<PathBuf> {
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir);
    made.map_err(|e| Error::io("cannot create the directory", dir, e))?;
    let meta = std::fs::symlink_metadata(dir).map_err(|e| Error::io("cannot access", dir, e))?;
    if meta.uid() == me() && only_for_its_owner(&meta) {
        Ok(dir.to_owned())
    } else {
        Err(not_safe(dir, variable))
    }
}

/// Checks whether the directory of control sockets exists and its contents can be trusted.
pub(crate) fn is_trusted(dir: &Path) -> Result<bool> {
    match std::fs::symlink_metadata(dir) {
        Ok(meta) if is_trusted_user(meta.uid()) && only_for_its_owner(&meta) => Ok(true),
        Ok(_) => Err(not_safe(dir, RUN_DIR)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Error::io("cannot access", dir, e)),
    }
}

fn only_for_its_owner(meta: &std::fs::Metadata) -> bool {
    meta.is_dir() && meta.permissions().mode() & 0o022 == 0
}

fn not_safe(dir: &Path, variable: &str) -> Error {
    Error::Unsafe {
        path: dir.to_owned(),
        detail: format!(
            "it must be a directory that belongs to this user and that others cannot write to; \
             change its owner and mode, or choose another with {variable}"
        ),
    }
}
