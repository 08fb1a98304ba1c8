//! Settings. One table row per setting defines its name, unit, default and reason.
//!
//! Precedence: command line, then `EVFS_*` environment, then the configuration file, then the
//! default. `evfs config show --origin` prints this table with the origin of each value.
//!
//! The configuration file may also hold the tables of services that `evfs up` reads (`config.rs`).

mod examine;
mod table;

pub use examine::{Examined, Problem};

use crate::listen::Listen;
use crate::ownership::Ownership;
use crate::paths::Paths;
use crate::succession::Succession;
use crate::text::{did_you_mean, toml_mistake};
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use table::{Row, TABLE};

/// Variable with the path of the configuration file.
const CONFIG: &str = "EVFS_CONFIG";

/// Creates the error of a value that its check refuses. `want` describes valid ones.
fn wrong(key: &str, value: &str, origin: &Origin, want: &str) -> Error {
    Error::Config {
        place: origin.to_string(),
        detail: format!("{key} is `{value}`, but must be {want}"),
    }
}

/// Tables of the configuration file that hold tables of services.
const SERVICES: [&str; 3] = ["volume", "mount", "serve"];

/// Reports whether a dotted name is that of a setting.
pub(crate) fn is_setting(key: &str) -> bool {
    TABLE.iter().any(|row| row.key == key)
}

/// Reports whether a file has tables of services.
pub(crate) fn has_services(file: &toml::Table) -> bool {
    SERVICES.iter().any(|kind| {
        let tables = file.get(*kind).and_then(toml::Value::as_table);
        let is_service = |(name, value): (&String, &toml::Value)| {
            value.is_table() && !is_setting(&format!("{kind}.{name}"))
        };
        tables.is_some_and(|tables| tables.iter().any(is_service))
    })
}

/// Settings with addresses, which depend on the setting `run.dir`.
const LISTEN: [&str; 2] = ["metrics.listen", "web.listen"];

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
#[derive(Clone)]
pub struct Settings {
    values: BTreeMap<&'static str, (String, Origin)>,
    /// The command is a dry run.
    is_dry_run: bool,
    /// Claim on the device that this process serves, if it is part of a cluster.
    ownership: Option<Arc<dyn Ownership>>,
    /// State that the service leaves to its successor, if it may have one.
    succession: Option<Arc<Succession>>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("values", &self.values)
            .field("is_dry_run", &self.is_dry_run)
            .field("is_owned", &self.ownership.is_some())
            .finish()
    }
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
            ownership: None,
            succession: None,
        };
        for key in LISTEN {
            let (value, origin) = &settings.values[key];
            let listen = settings.listen(key);
            listen.map_err(|want| wrong(key, value, origin, &want))?;
        }
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

    /// Returns the same settings for a process that serves one device of a cluster: earlier owners
    /// of the device are fenced when it is opened, and iSCSI uses persistent reservations for that.
    pub fn for_owner(&self, ownership: Arc<dyn Ownership>) -> Settings {
        Settings {
            ownership: Some(ownership),
            ..self.clone()
        }
    }

    pub(crate) fn ownership(&self) -> Option<&dyn Ownership> {
        self.ownership.as_deref()
    }

    /// Returns the same settings for a service that another process continues after a crash.
    pub fn for_successor(&self, succession: Arc<Succession>) -> Settings {
        Settings {
            succession: Some(succession),
            ..self.clone()
        }
    }

    /// Returns what the service leaves to its successor, if it may have one.
    pub fn succession(&self) -> Option<&Arc<Succession>> {
        self.succession.as_ref()
    }

    /// Reports whether this process continues the service of another one.
    pub fn is_successor(&self) -> bool {
        self.succession()
            .is_some_and(|succession| succession.is_successor())
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

    /// Returns the addresses of the members of etcd.
    pub fn cluster_etcd(&self) -> Vec<String> {
        let urls = self.text("cluster.etcd").split_whitespace();
        urls.map(ToOwned::to_owned).collect()
    }

    /// Returns the name of this machine in its cluster.
    pub fn cluster_name(&self) -> String {
        match self.text("cluster.name") {
            "" => rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
            name => name.to_owned(),
        }
    }

    /// Returns the beginning of the keys of the cluster.
    pub fn cluster_prefix(&self) -> &str {
        self.text("cluster.prefix")
    }

    /// Returns the files that cluster.tls-ca, cluster.tls-cert and cluster.tls-key name.
    pub fn cluster_tls_files(&self) -> [Option<PathBuf>; 3] {
        ["cluster.tls-ca", "cluster.tls-cert", "cluster.tls-key"].map(|key| {
            let path = Some(self.text(key)).filter(|path| !path.is_empty());
            path.map(PathBuf::from)
        })
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
        self.text("iscsi.persistent-reservations") == "true" || self.ownership.is_some()
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
        self.listen("metrics.listen").ok().flatten()
    }

    /// Returns the address of the web page, if it is served.
    pub fn web_listen(&self) -> Option<Listen> {
        self.listen("web.listen").ok().flatten()
    }

    fn listen(&self, key: &str) -> std::result::Result<Option<Listen>, String> {
        let listen = Listen::parse(self.text(key))?;
        let dir = self.run_dir();
        listen.map(|listen| listen.within(&dir)).transpose()
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
    fn metrics_and_the_page_are_served_on_loopback_or_in_the_run_directory() {
        let load =
            |name: &str, text: &str| load(None, &[("EVFS_RUN_DIR", "/run/evfs"), (name, text)]);
        let page = load("EVFS_WEB_LISTEN", "w.sock").unwrap().web_listen();
        assert_eq!(page, Some(Listen::Unix("/run/evfs/w.sock".into())));
        assert!(load("EVFS_WEB_LISTEN", "0.0.0.0:9465").is_err());
        let listen = |text: &str| {
            load("EVFS_METRICS_LISTEN", text).map(|settings| settings.metrics_listen())
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
