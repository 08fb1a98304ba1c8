//! The table of all settings.

use crate::listen::Listen;
use crate::paths::Paths;
use std::path::Path;

/// Largest memory cost of Argon2 that `cryptsetup` uses, in KiB.
const KDF_MEMORY_KIB_MAX: u64 = 4 * 1024 * 1024;

/// One setting.
pub(super) struct Row {
    pub(super) key: &'static str,
    pub(super) env: &'static str,
    pub(super) unit: &'static str,
    pub(super) reason: &'static str,
    pub(super) default: fn(&Paths) -> String,
    pub(super) check: fn(&str) -> std::result::Result<(), String>,
}

/// All settings, sorted by name.
pub(super) const TABLE: &[Row] = &[
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
        key: "cluster.etcd",
        env: "EVFS_CLUSTER_ETCD",
        unit: "list",
        reason: "members of etcd, http://HOST:PORT or https://HOST:PORT separated by spaces, which \
                 keep the records of a cluster; empty for none",
        default: |_| String::new(),
        check: |v| {
            let is_url = |url: &str| url.starts_with("http://") || url.starts_with("https://");
            if v.split_whitespace().all(is_url) {
                Ok(())
            } else {
                Err("addresses that begin with http:// or https://, separated by spaces".into())
            }
        },
    },
    Row {
        key: "cluster.name",
        env: "EVFS_CLUSTER_NAME",
        unit: "name",
        reason: "name of this machine in its cluster, which no other machine has; empty for the \
                 host name",
        default: |_| String::new(),
        check: |v| {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if v.len() <= 255 && v.chars().all(is_plain) {
                Ok(())
            } else {
                Err("letters, digits, -, _ and . only".into())
            }
        },
    },
    Row {
        key: "cluster.prefix",
        env: "EVFS_CLUSTER_PREFIX",
        unit: "key",
        reason: "beginning of the keys of this cluster in etcd; several clusters can share one etcd",
        default: |_| "/evfs".into(),
        check: |v| {
            if v.len() > 1 && v.starts_with('/') && v.is_ascii() {
                Ok(())
            } else {
                Err("a name that begins with /".into())
            }
        },
    },
    Row {
        key: "cluster.tls-ca",
        env: "EVFS_CLUSTER_TLS_CA",
        unit: "path",
        reason: "certificates of the authority that signed those of etcd, PEM; for https://",
        default: |_| String::new(),
        check: |v| if v.is_empty() { Ok(()) } else { absolute(v) },
    },
    Row {
        key: "cluster.tls-cert",
        env: "EVFS_CLUSTER_TLS_CERT",
        unit: "path",
        reason: "certificate with which this machine identifies itself to etcd, PEM; empty for none",
        default: |_| String::new(),
        check: |v| if v.is_empty() { Ok(()) } else { absolute(v) },
    },
    Row {
        key: "cluster.tls-key",
        env: "EVFS_CLUSTER_TLS_KEY",
        unit: "path",
        reason: "private key of cluster.tls-cert, PEM",
        default: |_| String::new(),
        check: |v| if v.is_empty() { Ok(()) } else { absolute(v) },
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
    Row {
        key: "web.listen",
        env: "EVFS_WEB_LISTEN",
        unit: "address",
        reason: "address of the web page that shows all services; empty for none",
        default: |_| String::new(),
        check: |v| Listen::parse(v).map(drop),
    },
];

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
