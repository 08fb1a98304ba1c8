//! The configuration of `evfs up`: a TOML file with a table for each volume to attach, each file
//! system to mount, and each cell to serve. The tables may also be in the file of the settings.
//!
//! ```toml
//! [volume.data]
//! device = "/srv/data.img"
//! key-file = "/etc/evfs/data.key"
//! loop = true
//!
//! [volume.scratch]
//! device = "/srv/scratch.img"
//! key = "alice"
//! nbd = "127.0.0.1:10809"
//! threads = 4
//!
//! [mount.home]
//! device = "/srv/home.img"
//! at = "/home"
//!
//! [serve.cell]
//! device = "/srv/cell.img"
//! listen = ["10.0.0.1"]
//! allow = ["10.0.0.0/24"]
//! ```

use crate::service::{
    AttachSpec, KeepSnapshots, MountSpec, ScheduledScrub, ServeSpec, ServiceSpec, sync_timeout,
};
use crate::settings::{has_services, is_setting};
use crate::state_file::read_text;
use crate::text::{did_you_mean, toml_mistake};
use crate::{Error, Result, Settings};
use ::fs::Atime;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Keys of all tables, for hints about misspelled ones.
const KEYS: &[&str] = &[
    "device",
    "key",
    "key-file",
    "nbd",
    "nbd-unix",
    "tls-cert",
    "tls-key",
    "tls-ca",
    "anonymous",
    "fuse",
    "loop",
    "threads",
    "read-only",
    "allow-discards",
    "direct",
    "at",
    "fileset",
    "allow-other",
    "exclusive",
    "survive",
    "suid",
    "dev",
    "noexec",
    "atime",
    "sync-timeout",
    "no-snapshots",
    "keep-snapshots",
    "hourly",
    "daily",
    "weekly",
    "monthly",
    "scrub",
    "every",
    "rate",
    "listen",
    "announce",
    "allow",
    "rxdebug",
    "anonymous-write",
    "address",
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    volume: BTreeMap<String, Volume>,
    #[serde(default)]
    mount: BTreeMap<String, MountTable>,
    #[serde(default)]
    serve: BTreeMap<String, ServeTable>,
}

/// The tables of services in the file of the settings. The settings are checked by
/// [`Settings::load`].
#[derive(Deserialize)]
struct SettingsFile {
    #[serde(default, deserialize_with = "volumes_among_settings")]
    volume: BTreeMap<String, Volume>,
    #[serde(default)]
    mount: BTreeMap<String, MountTable>,
    #[serde(default)]
    serve: BTreeMap<String, ServeTable>,
}

/// Deserializes the tables of volumes, without the settings whose names begin with `volume.`.
fn volumes_among_settings<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<BTreeMap<String, Volume>, D::Error> {
    struct Tables;

    impl<'de> Visitor<'de> for Tables {
        type Value = BTreeMap<String, Volume>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("tables of volumes")
        }

        fn visit_map<A: MapAccess<'de>>(
            self,
            mut map: A,
        ) -> std::result::Result<Self::Value, A::Error> {
            let mut volumes = BTreeMap::new();
            while let Some(name) = map.next_key::<String>()? {
                if is_setting(&format!("volume.{name}")) {
                    map.next_value::<IgnoredAny>()?;
                } else {
                    volumes.insert(name, map.next_value()?);
                }
            }
            Ok(volumes)
        }
    }

    deserializer.deserialize_map(Tables)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Volume {
    device: PathBuf,
    key: Option<String>,
    key_file: Option<PathBuf>,
    nbd: Option<SocketAddr>,
    nbd_unix: Option<PathBuf>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    tls_ca: Option<PathBuf>,
    #[serde(default)]
    anonymous: bool,
    fuse: Option<PathBuf>,
    #[serde(default)]
    r#loop: bool,
    threads: Option<usize>,
    #[serde(default)]
    read_only: bool,
    #[serde(default)]
    allow_discards: bool,
    #[serde(default)]
    direct: bool,
    #[serde(default)]
    survive: bool,
    address: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct MountTable {
    device: PathBuf,
    at: PathBuf,
    key: Option<String>,
    key_file: Option<PathBuf>,
    fileset: Option<String>,
    threads: Option<usize>,
    #[serde(default)]
    read_only: bool,
    allow_other: Option<bool>,
    #[serde(default)]
    exclusive: bool,
    #[serde(default)]
    survive: bool,
    #[serde(default)]
    suid: bool,
    #[serde(default)]
    dev: bool,
    #[serde(default)]
    noexec: bool,
    #[serde(default)]
    atime: Atime,
    sync_timeout: Option<u16>,
    #[serde(default)]
    no_snapshots: bool,
    #[serde(default)]
    keep_snapshots: KeepSnapshots,
    scrub: Option<ScheduledScrub>,
    #[serde(default)]
    allow_discards: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ServeTable {
    device: PathBuf,
    key: Option<String>,
    key_file: Option<PathBuf>,
    #[serde(default)]
    listen: Vec<Ipv4Addr>,
    #[serde(default)]
    announce: Vec<Ipv4Addr>,
    #[serde(default)]
    allow: Vec<String>,
    #[serde(default)]
    rxdebug: bool,
    #[serde(default)]
    anonymous_write: bool,
    threads: Option<usize>,
    #[serde(default)]
    allow_discards: bool,
    #[serde(default)]
    survive: bool,
    address: Option<String>,
}

/// A table of the file: a service and the key for its device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceTable {
    /// The service.
    pub spec: ServiceSpec,
    /// Name of the key pair, if the table has one.
    pub key: Option<String>,
    /// Path of the key file, if the table has one.
    pub key_file: Option<PathBuf>,
    /// Address that moves with the service between the machines of a cluster.
    pub address: Option<String>,
}

impl ServiceTable {
    /// Formats the table's header, with brackets.
    pub fn table(&self) -> String {
        let kind = match &self.spec {
            ServiceSpec::Serve(_) => "serve",
            ServiceSpec::Attach(_) => "volume",
            ServiceSpec::Mount(_) => "mount",
        };
        format!("[{kind}.{}]", self.spec.name())
    }
}

/// A file with tables of services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigFile {
    /// It holds nothing else.
    Services(PathBuf),
    /// It is the file of the settings, and holds both.
    Settings(PathBuf),
}

impl ConfigFile {
    /// Chooses the file `given`, or the file of the settings.
    pub fn or_settings(given: Option<&Path>) -> ConfigFile {
        let settings = Settings::file();
        match given {
            Some(path) if full(path) != full(&settings) => ConfigFile::Services(path.to_owned()),
            _ => ConfigFile::Settings(settings),
        }
    }

    /// Returns the file of the settings, if it has tables of services, even unusable ones.
    pub(crate) fn in_settings() -> Option<ConfigFile> {
        let path = Settings::file();
        let file: toml::Table = read_text(&path).ok()?.parse().ok()?;
        has_services(&file).then_some(ConfigFile::Settings(path))
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        match self {
            ConfigFile::Services(path) | ConfigFile::Settings(path) => path,
        }
    }

    /// Reads the tables. `threads` is the default for attached volumes.
    ///
    /// # Errors
    /// [`Error::Config`] with the line of the mistake.
    pub fn read(&self, threads: usize) -> Result<Vec<ServiceTable>> {
        let path = self.path();
        let text =
            read_text(path).map_err(|e| Error::io("cannot read the configuration", path, e))?;
        match self {
            ConfigFile::Services(_) => parse(path, &text, threads),
            ConfigFile::Settings(_) => parse_among_settings(path, &text, threads),
        }
    }
}

fn parse(path: &Path, text: &str, threads: usize) -> Result<Vec<ServiceTable>> {
    let file = toml::from_str(text).map_err(|e| invalid(path, text, &e))?;
    services(path, file, threads)
}

fn parse_among_settings(path: &Path, text: &str, threads: usize) -> Result<Vec<ServiceTable>> {
    let file: SettingsFile = toml::from_str(text).map_err(|e| invalid(path, text, &e))?;
    let SettingsFile {
        volume,
        mount,
        serve,
    } = file;
    let file = File {
        volume,
        mount,
        serve,
    };
    services(path, file, threads)
}

/// Describes a mistake, with a suggestion for a misspelled key.
fn invalid(path: &Path, text: &str, error: &toml::de::Error) -> Error {
    let mistake = toml_mistake(text, error);
    let unknown = mistake
        .split("unknown field `")
        .nth(1)
        .and_then(|m| m.split('`').next());
    let hint = unknown.map(|word| did_you_mean(word, KEYS.iter().copied()));
    Error::config(path, mistake + &hint.unwrap_or_default())
}

fn services(path: &Path, file: File, threads: usize) -> Result<Vec<ServiceTable>> {
    if file.volume.is_empty() && file.mount.is_empty() && file.serve.is_empty() {
        return Err(Error::config(
            path,
            "the file defines no service; add a [volume.NAME], [mount.NAME] or [serve.NAME] table"
                .into(),
        ));
    }
    let volumes = file.volume.into_iter();
    let mounts = file.mount.into_iter();
    let cells = file.serve.into_iter();
    volumes
        .map(|(name, v)| entry(path, name, v, threads))
        .chain(mounts.map(|(name, m)| mount_entry(path, name, m)))
        .chain(cells.map(|(name, s)| serve_entry(path, name, s)))
        .collect()
}

fn mount_entry(path: &Path, name: String, m: MountTable) -> Result<ServiceTable> {
    one_key(path, "mount", &name, &m.key, &m.key_file)?;
    few_threads(path, "mount", &name, m.threads)?;
    let defaults = MountSpec::new(&m.device, &m.at);
    Ok(ServiceTable {
        spec: ServiceSpec::Mount(MountSpec {
            name,
            fileset: m.fileset.unwrap_or(defaults.fileset),
            read_only: m.read_only,
            threads: m.threads,
            allow_other: m.allow_other,
            exclusive: m.exclusive,
            survives: m.survive,
            suid: m.suid,
            dev: m.dev,
            exec: !m.noexec,
            atime: m.atime,
            sync_timeout: m.sync_timeout.map_or(defaults.sync_timeout, sync_timeout),
            snapshots: !m.no_snapshots,
            keep_snapshots: m.keep_snapshots,
            scrub: m.scrub,
            allow_discards: m.allow_discards,
            config: Some(full(path)),
            ..MountSpec::new(&m.device, &m.at)
        }),
        key: m.key,
        key_file: m.key_file,
        address: None,
    })
}

fn serve_entry(path: &Path, name: String, s: ServeTable) -> Result<ServiceTable> {
    one_key(path, "serve", &name, &s.key, &s.key_file)?;
    few_threads(path, "serve", &name, s.threads)?;
    let prefix = |text: &String| {
        text.parse().map_err(|e| {
            let detail = format!("serve.{name}: `{text}` in allow is {e}");
            Error::config(path, detail)
        })
    };
    let allow = s.allow.iter().map(prefix).collect::<Result<_>>()?;
    Ok(ServiceTable {
        spec: ServiceSpec::Serve(ServeSpec {
            name,
            listen: s.listen,
            announce: s.announce,
            allow,
            rxdebug: s.rxdebug,
            anonymous_write: s.anonymous_write,
            threads: s.threads,
            allow_discards: s.allow_discards,
            survives: s.survive,
            config: Some(full(path)),
            ..ServeSpec::new(&s.device)
        }),
        key: s.key,
        key_file: s.key_file,
        address: s.address,
    })
}

fn one_key(
    path: &Path,
    table: &str,
    name: &str,
    key: &Option<String>,
    key_file: &Option<PathBuf>,
) -> Result<()> {
    if key.is_some() && key_file.is_some() {
        let detail = format!("{table}.{name}: key and key-file are mutually exclusive");
        return Err(Error::config(path, detail));
    }
    Ok(())
}

/// Refuses a number of threads outside the range of the command line.
fn few_threads(path: &Path, table: &str, name: &str, threads: Option<usize>) -> Result<()> {
    match threads {
        Some(n) if !(1..=256).contains(&n) => {
            let detail = format!("{table}.{name}: threads = {n} is not from 1 to 256");
            Err(Error::config(path, detail))
        }
        _ => Ok(()),
    }
}

fn full(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

fn entry(path: &Path, name: String, v: Volume, threads: usize) -> Result<ServiceTable> {
    let tls = match (v.tls_cert, v.tls_key) {
        (Some(certificate), Some(key)) => Some(export_nbd::Tls {
            certificate,
            key,
            client_ca: v.tls_ca,
        }),
        (None, None) if v.tls_ca.is_none() => None,
        _ => {
            let detail =
                format!("volume.{name}: set tls-cert and tls-key together; tls-ca needs both");
            return Err(Error::config(path, detail));
        }
    };
    one_key(path, "volume", &name, &v.key, &v.key_file)?;
    few_threads(path, "volume", &name, v.threads)?;
    let spec = AttachSpec {
        name,
        nbd: v.nbd,
        nbd_unix: v.nbd_unix,
        tls,
        anonymous: v.anonymous,
        fuse: v.fuse,
        loop_device: v.r#loop,
        read_only: v.read_only,
        allow_discards: v.allow_discards,
        cached: !v.direct,
        survives: v.survive,
        config: Some(full(path)),
        ..AttachSpec::new(&v.device, v.threads.unwrap_or(threads))
    };
    Ok(ServiceTable {
        spec: ServiceSpec::Attach(spec),
        key: v.key,
        key_file: v.key_file,
        address: v.address,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_the_limits_of_the_command_line() {
        for (table, more) in [("volume", ""), ("mount", "at = \"/m\"\n"), ("serve", "")] {
            let parsed = |threads: u32| {
                let text = format!("[{table}.x]\ndevice = \"/d\"\n{more}threads = {threads}\n");
                parse(Path::new("c.toml"), &text, 2)
            };
            for threads in [0, 257, 100_000_000] {
                let error = parsed(threads).expect_err("out of bounds").to_string();
                assert!(error.contains("from 1 to 256"), "{error}");
            }
            assert!(parsed(1).is_ok() && parsed(256).is_ok());
        }
    }

    #[test]
    fn reads_the_example_of_the_module() {
        let text = "[volume.data]\ndevice = \"/d\"\nkey-file = \"/k\"\nloop = true\n\
                    [volume.scratch]\ndevice = \"/s\"\nkey = \"alice\"\nnbd = \"127.0.0.1:10809\"\nthreads = 4\n";
        let text = format!("{text}[mount.home]\ndevice = \"/h\"\nat = \"/home\"\nthreads = 3\n");
        let text = format!(
            "{text}[serve.cell]\ndevice = \"/c\"\nlisten = [\"10.0.0.1\"]\nallow = [\"10.0.0.0/24\"]\n"
        );
        let entries = parse(Path::new("x.toml"), &text, 2).unwrap();
        let seen: Vec<_> = entries
            .iter()
            .map(|e| match &e.spec {
                ServiceSpec::Attach(spec) => {
                    (spec.name.as_str(), Some(spec.threads), spec.loop_device)
                }
                ServiceSpec::Mount(spec) => (spec.name.as_str(), spec.threads, false),
                ServiceSpec::Serve(spec) => (spec.name.as_str(), Some(spec.allow.len()), false),
            })
            .collect();
        let wanted = [
            ("data", Some(2), true),
            ("scratch", Some(4), false),
            ("home", Some(3), false),
            ("cell", Some(1), false),
        ];
        assert_eq!(seen, wanted);
        assert_eq!(entries[1].key.as_deref(), Some("alice"));
    }

    #[test]
    fn services_stand_among_settings_in_the_file_of_the_settings_alone() {
        let text = "threads = 4\n[volume]\nheartbeat-ms = 200\n[kdf]\ntime-ms = 10\n\
                    [volume.data]\ndevice = \"/d\"\n[mount.home]\ndevice = \"/h\"\nat = \"/home\"\n";
        let entries = parse_among_settings(Path::new("evfs.toml"), text, 2).unwrap();
        let tables: Vec<_> = entries.iter().map(ServiceTable::table).collect();
        assert_eq!(tables, ["[volume.data]", "[mount.home]"]);
        assert!(parse(Path::new("x.toml"), text, 2).is_err());
        let wrong = "threads = 4\n[volume.data]\ndevice = \"/d\"\nread-olny = true\n";
        let error = parse_among_settings(Path::new("evfs.toml"), wrong, 2)
            .map(drop)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("did you mean `read-only`?") && error.contains("line 4"),
            "{error}"
        );
    }

    #[test]
    fn a_misspelt_key_gets_a_hint_and_a_line() {
        let text = "[volume.data]\ndevice = \"/d\"\nread-olny = true\n";
        let error = parse(Path::new("x.toml"), text, 2)
            .map(drop)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("did you mean `read-only`?") && error.contains("line 3"),
            "{error}"
        );
    }

    #[test]
    fn an_empty_file_is_an_error() {
        assert!(parse(Path::new("x.toml"), "", 2).is_err());
    }
}
