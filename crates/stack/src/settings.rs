//! Settings. One table row per setting defines its name, unit, default and reason.
//!
//! Precedence: command line, then `EVFS_*` environment, then the configuration file, then the
//! default. `evfs config show --origin` prints this table with the origin of each value.
//!
//! The configuration file may also hold the tables of services that `evfs up` reads (`config.rs`).

mod examine;

pub use examine::{Examined, Problem};

use crate::listen::Listen;
use crate::paths::Paths;
use crate::text::{did_you_mean, toml_mistake};
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// Largest memory cost of Argon2 that `cryptsetup` uses, in KiB.
const KDF_MEMORY_KIB_MAX: u64 = 4 * 1024 * 1024;

/// Variable with the path of the configuration file.
const CONFIG: &str = "EVFS_CONFIG";

/// One setting.
struct Row {
    key: &'static str,
    env: &'static str,
    unit: &'static str,
    reason: &'static str,
    default: fn(&Paths) -> String,
    check: fn(&str) -> std::result::Result<(), String>,
}

const TABLE: &[Row] = &[
    Row {
        key: "backup.dir",
        env: "EVFS_BACKUP_DIR",
        unit: "path",
        reason: "header backups, which can undo destructive commands",
        default: |p| p.backup.display().to_string(),
        check: absolute,
    },
    Row {
        key: "cache.tunables",
        env: "EVFS_CACHE_TUNABLES",
        unit: "list",
        reason: "tunables of the file cache: NAME=VALUE, separated by spaces, as for `evfs cache \
                 set`",
        default: |_| String::new(),
        check: crate::tunables::check,
    },
    Row {
        key: "fs.commit-interval-ms",
        env: "EVFS_FS_COMMIT_INTERVAL_MS",
        unit: "ms",
        reason: "longest time before a file system commits a change that no caller syncs; default \
                 as in ext4",
        default: |_| {
            fs::Options::default()
                .commit_interval
                .as_millis()
                .to_string()
        },
        check: |v| within(v, 100, 300_000),
    },
    Row {
        key: "iscsi.chap-secret-file",
        env: "EVFS_ISCSI_CHAP_SECRET_FILE",
        unit: "path",
        reason: "file with the CHAP secret of the user in iscsi://USER@...; empty for none",
        default: |_| String::new(),
        check: |v| if v.is_empty() { Ok(()) } else { absolute(v) },
    },
    Row {
        key: "iscsi.digests",
        env: "EVFS_ISCSI_DIGESTS",
        unit: "bool",
        reason: "CRC32C of headers and data if the target supports it; costs CPU, detects \
                 corruption in transit",
        default: |_| "false".into(),
        check: boolean,
    },
    Row {
        key: "iscsi.initiator-name",
        env: "EVFS_ISCSI_INITIATOR_NAME",
        unit: "iqn",
        reason: "iSCSI name of this host, by which targets grant access",
        default: |_| path_iscsi::Options::default().initiator_name,
        check: |v| {
            if v.starts_with("iqn.") || v.starts_with("eui.") {
                Ok(())
            } else {
                Err("a name that begins with iqn. or eui.".into())
            }
        },
    },
    Row {
        key: "iscsi.persistent-reservations",
        env: "EVFS_ISCSI_PERSISTENT_RESERVATIONS",
        unit: "bool",
        reason: "fence lost paths with persistent reservations; not for LUNs that other hosts \
                 write to",
        default: |_| "false".into(),
        check: boolean,
    },
    Row {
        key: "kdf.memory-kib",
        env: "EVFS_KDF_MEMORY_KIB",
        unit: "KiB",
        reason: "memory limit of Argon2id for a new keyslot; 1 GiB as in cryptsetup, at most half \
                 of RAM",
        default: |_| (1024 * 1024).to_string(),
        check: |v| within(v, 32, 4 * 1024 * 1024),
    },
    Row {
        key: "kdf.memory-max-kib",
        env: "EVFS_KDF_MEMORY_MAX_KIB",
        unit: "KiB",
        reason: "memory limit of a keyslot when its volume is opened; three quarters of the memory \
                 of the machine or the control group, at most 4 GiB",
        default: |p| {
            p.or_words("by the memory of the machine", || {
                let room = ::cache::memory_bytes() / 1024 / 4 * 3;
                room.clamp(32, KDF_MEMORY_KIB_MAX).to_string()
            })
        },
        check: |v| within(v, 32, KDF_MEMORY_KIB_MAX),
    },
    Row {
        key: "kdf.time-ms",
        env: "EVFS_KDF_TIME_MS",
        unit: "ms",
        reason: "target time of one passphrase guess on this machine; default as in cryptsetup",
        default: |_| "2000".into(),
        check: |v| within(v, 1, 60_000),
    },
    Row {
        key: "kdf.work-max-gib",
        env: "EVFS_KDF_WORK_MAX_GIB",
        unit: "GiB",
        reason: "limit of the work (memory times passes) to try one passphrase on all keyslots; 64 \
                 GiB take some minutes on one core",
        default: |_| (luks2::KdfLimits::default().work_kib_max >> 20).to_string(),
        check: |v| within(v, 1, 65_536),
    },
    Row {
        key: "keys.dir",
        env: "EVFS_KEYS_DIR",
        unit: "path",
        reason: "user key pairs",
        default: |p| p.keys.display().to_string(),
        check: absolute,
    },
    Row {
        key: "log.format",
        env: "EVFS_LOG_FORMAT",
        unit: "format",
        reason: "form of the log: text or json on standard error, journal for fields in the \
                 journal of systemd; auto for the journal if standard error leads there, or if a \
                 process in the background has no standard error to keep",
        default: |_| "auto".into(),
        check: |v| match v {
            "auto" | "text" | "json" | "journal" => Ok(()),
            _ => Err("one of auto, text, json, journal".into()),
        },
    },
    Row {
        key: "log.journal-socket",
        env: "EVFS_LOG_JOURNAL_SOCKET",
        unit: "path",
        reason: "socket of the journal of systemd; another one for tests",
        default: |_| "/run/systemd/journal/socket".into(),
        check: absolute,
    },
    Row {
        key: "log.level",
        env: "EVFS_LOG",
        unit: "level",
        reason: "log level on standard error: error, warn, info, debug or trace",
        default: |_| "warn".into(),
        check: |v| match v {
            "error" | "warn" | "info" | "debug" | "trace" => Ok(()),
            _ => Err("one of error, warn, info, debug, trace".into()),
        },
    },
    Row {
        key: "lun.registry",
        env: "EVFS_LUN_REGISTRY",
        unit: "path",
        reason: "names, paths and saved attributes of LUNs",
        default: |p| p.luns.display().to_string(),
        check: absolute,
    },
    Row {
        key: "metrics.listen",
        env: "EVFS_METRICS_LISTEN",
        unit: "address",
        reason: "address at which Prometheus collects metrics; empty for none",
        default: |_| String::new(),
        check: |v| Listen::parse(v).map(drop),
    },
    Row {
        key: "run.dir",
        env: "EVFS_RUN_DIR",
        unit: "path",
        reason: "control sockets and default exports of attached volumes",
        default: |p| p.run.display().to_string(),
        check: absolute,
    },
    Row {
        key: "sandbox",
        env: "EVFS_SANDBOX",
        unit: "bool",
        reason: "servers drop capabilities and system calls that they do not need; false to check \
                 whether the sandbox causes a failure",
        default: |_| "true".into(),
        check: boolean,
    },
    Row {
        key: "sysfs.root",
        env: "EVFS_SYSFS_ROOT",
        unit: "path",
        reason: "directory of the NUMA topology; another one for tests",
        default: |_| "/sys".into(),
        check: absolute,
    },
    Row {
        key: "threads",
        env: "EVFS_THREADS",
        unit: "threads",
        reason: "threads that serve one attached volume, or receive on each port of a cell; one \
                 per CPU",
        default: |p| {
            p.or_words("the number of CPUs", || {
                std::thread::available_parallelism()
                    .map_or(1, |n| n.get())
                    .to_string()
            })
        },
        check: |v| within(v, 1, 256),
    },
    Row {
        key: "trust.store",
        env: "EVFS_TRUST_STORE",
        unit: "path",
        reason: "volume keys and seals of the volumes that this machine has opened",
        default: |p| p.trust.display().to_string(),
        check: absolute,
    },
    Row {
        key: "unlock.ask-password",
        env: "EVFS_UNLOCK_ASK_PASSWORD",
        unit: "bool",
        reason: "ask for passphrases through systemd-ask-password where there is no terminal, as \
                 at boot; false so that no command waits for an answer unexpectedly",
        default: |_| "false".into(),
        check: boolean,
    },
    Row {
        key: "volume.heartbeat-ms",
        env: "EVFS_VOLUME_HEARTBEAT_MS",
        unit: "ms",
        reason: "interval at which this machine renews the in-use record of a volume open for \
                 writing; after four intervals without renewal, another machine can take the \
                 volume over",
        default: |_| "5000".into(),
        check: |v| within(v, 100, 60_000),
    },
];

/// Creates the error of a value that its check refuses. `want` describes valid ones.
fn wrong(key: &str, value: &str, origin: &Origin, want: &str) -> Error {
    Error::Config {
        place: origin.to_string(),
        detail: format!("{key} is `{value}`, but must be {want}"),
    }
}

fn within(value: &str, low: u64, high: u64) -> std::result::Result<(), String> {
    match value.parse::<u64>() {
        Ok(n) if (low..=high).contains(&n) => Ok(()),
        _ => Err(format!("a whole number from {low} to {high}")),
    }
}

fn boolean(value: &str) -> std::result::Result<(), String> {
    match value {
        "true" | "false" => Ok(()),
        _ => Err("true or false".into()),
    }
}

fn absolute(value: &str) -> std::result::Result<(), String> {
    if Path::new(value).is_absolute() {
        Ok(())
    } else {
        Err("an absolute path".into())
    }
}

/// Tables of the configuration file that hold tables of services.
const SERVICES: [&str; 3] = ["volume", "mount", "serve"];

/// Reports whether a dotted name is that of a setting.
pub(crate) fn is_setting(key: &str) -> bool {
    TABLE.iter().any(|row| row.key == key)
}

/// Removes the tables of services, which have no settings.
fn without_services(mut file: toml::Table) -> toml::Table {
    for kind in SERVICES {
        if let Some(toml::Value::Table(tables)) = file.get_mut(kind) {
            tables.retain(|name, value| !value.is_table() || is_setting(&format!("{kind}.{name}")));
        }
    }
    file
}

/// Origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Built in.
    Default,
    /// The configuration file.
    File(PathBuf),
    /// An environment variable.
    Environment(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => write!(f, "default"),
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Environment(name) => write!(f, "${name}"),
        }
    }
}

/// A setting in force.
#[derive(Debug, Clone)]
pub struct Shown {
    /// Dotted name of the setting, as in the configuration file.
    pub key: &'static str,
    /// Value in force.
    pub value: String,
    /// Unit of the value.
    pub unit: &'static str,
    /// Environment variable that sets it.
    pub env: &'static str,
    /// Purpose of the setting and reason for its default.
    pub reason: &'static str,
    /// Origin of the value.
    pub origin: Origin,
}

/// A setting for documentation, which is the same on every machine.
#[derive(Debug, Clone)]
pub struct Described {
    /// Dotted name of the setting, as in the configuration file.
    pub key: &'static str,
    /// Unit of the value.
    pub unit: &'static str,
    /// Environment variable that sets it.
    pub env: &'static str,
    /// Purpose of the setting and reason for its default.
    pub reason: &'static str,
    /// Condition that the value must meet, as in the error about a value that does not; none for a
    /// list.
    pub accepts: Option<String>,
    /// Default for root and for other users.
    pub defaults: [String; 2],
}

/// Value that only a list accepts.
const NO_VALUE: &str = " ";

/// Describes all settings, sorted by name.
pub fn described() -> Vec<Described> {
    let paths = Paths::documented();
    let row = |row: &Row| Described {
        key: row.key,
        unit: row.unit,
        env: row.env,
        reason: row.reason,
        accepts: (row.check)(NO_VALUE).err(),
        defaults: [(row.default)(&paths[0]), (row.default)(&paths[1])],
    };
    TABLE.iter().map(row).collect()
}

/// Returns the paths of the configuration file for root and for other users, as documentation
/// writes them.
pub fn config_files() -> [String; 2] {
    Paths::documented().map(|paths| paths.config.display().to_string())
}

/// All settings in force.
#[derive(Debug, Clone)]
pub struct Settings {
    values: BTreeMap<&'static str, (String, Origin)>,
    /// The command is a dry run.
    is_dry_run: bool,
}

impl Settings {
    /// Loads the environment and this user's configuration file, if there is one.
    ///
    /// # Errors
    /// [`Error::Config`] for an unreadable file, an unknown key or an invalid value.
    pub fn load() -> Result<Settings> {
        let paths = Paths::of_this_user();
        let is_default = std::env::var_os(CONFIG).is_none();
        let path = Settings::file();
        let file = match crate::state_file::read_text(&path) {
            Ok(text) => Some(text),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && is_default => None,
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied && is_default => None,
            Err(e) => return Err(Error::config(&path, format!("cannot be read: {e}"))),
        };
        let env = |name: &str| std::env::var(name).ok();
        Settings::from_parts(&paths, file.as_deref().map(|t| (path.as_path(), t)), &env)
    }

    /// Returns the path of this user's configuration file, which need not exist.
    pub fn file() -> PathBuf {
        let explicit = std::env::var_os(CONFIG).map(PathBuf::from);
        explicit.unwrap_or_else(|| Paths::of_this_user().config)
    }

    /// Returns the settings of an environment alone.
    #[cfg(test)]
    pub(crate) fn of_env(env: &dyn Fn(&str) -> Option<String>) -> Settings {
        Settings::from_parts(&Paths::of_this_user(), None, env).expect("valid settings")
    }

    fn from_parts(
        paths: &Paths,
        file: Option<(&Path, &str)>,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Settings> {
        let mut values = BTreeMap::new();
        for row in TABLE {
            values.insert(row.key, ((row.default)(paths), Origin::Default));
        }
        if let Some((path, text)) = file {
            let table: toml::Table = text
                .parse()
                .map_err(|e: toml::de::Error| Error::config(path, toml_mistake(text, &e)))?;
            for (key, value) in flatten("", &without_services(table)) {
                let row = TABLE.iter().find(|row| row.key == key).ok_or_else(|| {
                    let keys = TABLE.iter().map(|row| row.key);
                    Error::config(
                        path,
                        format!("unknown key `{key}`{}", did_you_mean(&key, keys)),
                    )
                })?;
                values.insert(row.key, (value, Origin::File(path.to_owned())));
            }
        }
        for row in TABLE {
            if let Some(value) = env(row.env) {
                values.insert(row.key, (value, Origin::Environment(row.env)));
            }
        }
        for row in TABLE {
            let (value, origin) = &values[row.key];
            (row.check)(value).map_err(|want| wrong(row.key, value, origin, &want))?;
        }
        let settings = Settings {
            values,
            is_dry_run: false,
        };
        let (value, origin) = &settings.values["metrics.listen"];
        let listen = Listen::parse(value).and_then(|listen| match listen {
            Some(listen) => listen.within(&settings.run_dir()).map(drop),
            None => Ok(()),
        });
        listen.map_err(|want| wrong("metrics.listen", value, origin, &want))?;
        Ok(settings)
    }

    /// Returns the same settings for a dry run: devices keep all changes in memory, and neither the
    /// trust store nor a backup is written.
    pub fn for_dry_run(&self) -> Settings {
        Settings {
            is_dry_run: true,
            ..self.clone()
        }
    }

    /// Reports whether the command is a dry run.
    pub fn is_dry_run(&self) -> bool {
        self.is_dry_run
    }

    /// Lists all settings in force, sorted by name.
    pub fn shown(&self) -> Vec<Shown> {
        let row = |row: &Row| {
            let (value, origin) = self.values[row.key].clone();
            let Row {
                key,
                env,
                unit,
                reason,
                ..
            } = *row;
            Shown {
                key,
                value,
                unit,
                env,
                reason,
                origin,
            }
        };
        TABLE.iter().map(row).collect()
    }

    fn text(&self, key: &str) -> &str {
        &self.values[key].0
    }

    fn number(&self, key: &str) -> u64 {
        self.text(key)
            .parse()
            .expect("checked when the settings were loaded")
    }

    /// Returns the number of threads that serve one attached volume.
    pub fn threads(&self) -> usize {
        self.number("threads") as usize
    }

    /// Returns the memory limit for a new Argon2id key derivation, in KiB.
    pub fn kdf_memory_kib(&self) -> u32 {
        self.number("kdf.memory-kib") as u32
    }

    /// Limits the cost of trying a key.
    pub fn kdf_limits(&self) -> luks2::KdfLimits {
        luks2::KdfLimits {
            memory_kib_max: self.number("kdf.memory-max-kib") as u32,
            work_kib_max: self.number("kdf.work-max-gib") << 20,
            ..luks2::KdfLimits::default()
        }
    }

    /// Returns the time that a new key derivation should take.
    pub fn kdf_time(&self) -> std::time::Duration {
        std::time::Duration::from_millis(self.number("kdf.time-ms"))
    }

    /// Returns the directory of user key pairs.
    pub fn keys_dir(&self) -> PathBuf {
        self.text("keys.dir").into()
    }

    /// Returns the directory of header backups.
    pub fn backup_dir(&self) -> PathBuf {
        self.text("backup.dir").into()
    }

    /// Returns the settings of the file cache, in the syntax of `evfs cache set`.
    pub fn cache_tunables(&self) -> &str {
        self.text("cache.tunables")
    }

    /// Returns the longest time between a change of a file system and its commit.
    pub fn fs_commit_interval(&self) -> std::time::Duration {
        std::time::Duration::from_millis(self.number("fs.commit-interval-ms"))
    }

    /// Returns the interval at which the in-use record of an open volume is renewed.
    pub fn volume_heartbeat(&self) -> std::time::Duration {
        std::time::Duration::from_millis(self.number("volume.heartbeat-ms"))
    }

    /// Returns the directory of control sockets.
    pub fn run_dir(&self) -> PathBuf {
        self.text("run.dir").into()
    }

    /// Returns the path of the registry of LUNs.
    pub fn lun_registry(&self) -> PathBuf {
        self.text("lun.registry").into()
    }

    /// Returns the path of the trust store.
    pub fn trust_store(&self) -> PathBuf {
        self.text("trust.store").into()
    }

    /// Reports whether servers drop privileges that they do not need.
    pub fn sandbox(&self) -> bool {
        self.text("sandbox") == "true"
    }

    /// Reports whether passphrases are asked for through systemd-ask-password where there is no
    /// terminal.
    pub fn ask_password(&self) -> bool {
        self.text("unlock.ask-password") == "true"
    }

    /// Returns the directory from which the NUMA topology is read.
    pub fn sysfs_root(&self) -> PathBuf {
        self.text("sysfs.root").into()
    }

    /// Returns the name of this host for iSCSI targets.
    pub fn iscsi_initiator_name(&self) -> &str {
        self.text("iscsi.initiator-name")
    }

    /// Returns the path of the file with the CHAP secret, if there is one.
    pub fn iscsi_chap_secret_file(&self) -> Option<PathBuf> {
        let path = self.text("iscsi.chap-secret-file");
        (!path.is_empty()).then(|| path.into())
    }

    /// Reports whether iSCSI connections use CRC32C for headers and data.
    pub fn iscsi_digests(&self) -> bool {
        self.text("iscsi.digests") == "true"
    }

    /// Reports whether lost iSCSI paths are fenced by persistent reservations.
    pub fn iscsi_persistent_reservations(&self) -> bool {
        self.text("iscsi.persistent-reservations") == "true"
    }

    /// Returns the log level.
    pub fn log_level(&self) -> &str {
        self.text("log.level")
    }

    /// Returns the form of the log: `auto`, `text`, `json` or `journal`.
    pub fn log_format(&self) -> &str {
        self.text("log.format")
    }

    /// Returns the path of the socket of the journal.
    pub fn log_journal_socket(&self) -> PathBuf {
        self.text("log.journal-socket").into()
    }

    /// Returns the address at which metrics are served, if they are.
    pub fn metrics_listen(&self) -> Option<Listen> {
        let listen = Listen::parse(self.text("metrics.listen")).ok()??;
        listen.within(&self.run_dir()).ok()
    }
}

/// Lists the environment variables that set something.
pub(crate) fn variables() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|row| row.env).chain([CONFIG])
}

/// Flattens a table to its leaves, with dotted names and values as text.
fn flatten(prefix: &str, table: &toml::Table) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for (name, value) in table {
        let key = if prefix.is_empty() {
            name.clone()
        } else {
            format!("{prefix}.{name}")
        };
        match value {
            toml::Value::Table(inner) => out.extend(flatten(&key, inner)),
            toml::Value::String(text) => out.push((key, text.clone())),
            other => out.push((key, other.to_string())),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(file: Option<&str>, env: &[(&str, &str)]) -> Result<Settings> {
        let get = |name: &str| {
            env.iter()
                .find(|(n, _)| *n == name)
                .map(|(_, v)| v.to_string())
        };
        let file = file.map(|text| (Path::new("/etc/evfs/evfs.toml"), text));
        Settings::from_parts(&Paths::of_this_user(), file, &get)
    }

    #[test]
    fn environment_beats_file_beats_default() {
        let s = load(
            Some("threads = 3\n[kdf]\ntime-ms = 10\n"),
            &[("EVFS_THREADS", "5")],
        )
        .unwrap();
        assert_eq!((s.threads(), s.kdf_time().as_millis()), (5, 10));
        let origin = |key| s.shown().into_iter().find(|r| r.key == key).unwrap().origin;
        assert_eq!(origin("threads").to_string(), "$EVFS_THREADS");
        assert_eq!(origin("kdf.time-ms").to_string(), "/etc/evfs/evfs.toml");
        assert_eq!(origin("log.level"), Origin::Default);
    }

    #[test]
    fn unknown_key_is_an_error_with_a_hint() {
        let error = load(Some("[kdf]\ntime-sm = 10\n"), &[])
            .unwrap_err()
            .to_string();
        assert!(error.contains("did you mean `kdf.time-ms`?"), "{error}");
    }

    #[test]
    fn every_setting_is_described_in_words_that_no_machine_changes() {
        let all = described();
        assert_eq!(all.len(), load(None, &[]).unwrap().shown().len());
        for row in &all {
            assert_eq!(row.accepts.is_none(), row.unit == "list", "{}", row.key);
            assert!(!row.reason.is_empty(), "{}", row.key);
        }
        let of = |key| all.iter().find(|row| row.key == key).unwrap();
        assert_eq!(of("threads").defaults, ["the number of CPUs"; 2]);
        let accepts = of("threads").accepts.as_deref();
        assert_eq!(accepts, Some("a whole number from 1 to 256"));
        let keys = ["/etc/evfs/keys", "~/.local/share/evfs/keys"];
        assert_eq!(of("keys.dir").defaults, keys);
        assert_eq!(config_files()[1], "~/.config/evfs/evfs.toml");
    }

    #[test]
    fn tables_of_services_are_no_settings() {
        let service = "device = \"/d\"\nthreads = 9\n";
        let file = format!(
            "threads = 3\n[volume]\nheartbeat-ms = 200\n[volume.data]\n{service}[mount.m]\n{service}"
        );
        let s = load(Some(&file), &[]).unwrap();
        assert_eq!((s.threads(), s.volume_heartbeat().as_millis()), (3, 200));
        for wrong in [
            "mount = 1\n",
            "[volume]\ndata = 1\n",
            "[volume.heartbeat-ms]\ndevice = \"/d\"\n",
            "[volumes.data]\ndevice = \"/d\"\n",
        ] {
            let error = load(Some(wrong), &[]).unwrap_err().to_string();
            assert!(error.contains("unknown key"), "{wrong}: {error}");
        }
    }

    #[test]
    fn metrics_are_served_on_loopback_or_in_the_run_directory() {
        let listen = |text: &str| {
            let env = [("EVFS_RUN_DIR", "/run/evfs"), ("EVFS_METRICS_LISTEN", text)];
            load(None, &env).map(|settings| settings.metrics_listen())
        };
        assert_eq!(listen("").unwrap(), None);
        let tcp = Listen::Tcp("127.0.0.1:9464".parse().unwrap());
        assert_eq!(listen("127.0.0.1:9464").unwrap(), Some(tcp));
        let unix = Listen::Unix("/run/evfs/metrics.sock".into());
        for text in ["metrics.sock", "/run/evfs/metrics.sock"] {
            assert_eq!(listen(text).unwrap(), Some(unix.clone()), "{text}");
        }
        for text in [
            "0.0.0.0:9464",
            "192.0.2.1:9464",
            "[::]:9464",
            "127.0.0.1:80",
            "127.0.0.1:0",
            "localhost:9464",
            "9464",
            "/tmp/metrics.sock",
            "/run/evfs/../x.sock",
            "/run/evfs/disk.control",
            "a/b.sock",
            "../x.sock",
            ".sock",
        ] {
            let error = listen(text).unwrap_err().to_string();
            assert!(error.contains("run.dir"), "{text}: {error}");
        }
    }

    #[test]
    fn a_value_out_of_bounds_names_where_it_came_from() {
        let error = load(None, &[("EVFS_THREADS", "0")])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("$EVFS_THREADS") && error.contains("1 to 256"),
            "{error}"
        );
    }
}
