//! Default locations of files: system directories for root, XDG directories for other users.

use std::path::PathBuf;

/// File locations of this user. None of them is created here.
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
}

impl Paths {
    /// Determines the locations for the effective user of this process.
    pub fn of_this_user() -> Paths {
        if rustix::process::geteuid().is_root() {
            return Paths {
                config: "/etc/evfs/evfs.toml".into(),
                keys: "/etc/evfs/keys".into(),
                backup: "/var/lib/evfs/backup".into(),
                luns: "/var/lib/evfs/luns.json".into(),
                trust: "/var/lib/evfs/trust.json".into(),
                run: "/run/evfs".into(),
            };
        }
        Paths {
            config: xdg("XDG_CONFIG_HOME", ".config").join("evfs/evfs.toml"),
            keys: xdg("XDG_DATA_HOME", ".local/share").join("evfs/keys"),
            backup: xdg("XDG_STATE_HOME", ".local/state").join("evfs/backup"),
            luns: xdg("XDG_STATE_HOME", ".local/state").join("evfs/luns.json"),
            trust: xdg("XDG_STATE_HOME", ".local/state").join("evfs/trust.json"),
            run: runtime_dir(),
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
