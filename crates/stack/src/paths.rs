//! Where things live: for root in the system's folders, for everybody else in the XDG ones.

use std::path::PathBuf;

/// The folders of this user. Nothing is created by asking.
#[derive(Debug, Clone)]
pub struct Paths {
    /// Configuration file.
    pub config: PathBuf,
    /// User key pairs.
    pub keys: PathBuf,
    /// Header backups that undo destructive commands.
    pub backup: PathBuf,
    /// The registry of LUNs.
    pub luns: PathBuf,
    /// The trust store.
    pub trust: PathBuf,
    /// Control sockets, default exports, mount points of attached volumes.
    pub run: PathBuf,
}

impl Paths {
    /// The folders for the user that runs this process.
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

/// A folder of the XDG Base Directory Specification; a relative value is ignored, as it says.
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

/// `$XDG_RUNTIME_DIR/evfs`; without a login session a folder in `/tmp` that carries the user's
/// number, whose owner and mode are checked before use.
fn runtime_dir() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(path) if path.is_absolute() => path.join("evfs"),
        _ => PathBuf::from(format!("/tmp/evfs-{}", rustix::process::geteuid().as_raw())),
    }
}
