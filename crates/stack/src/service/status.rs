//! The status of a service, as `evfs status` shows it.

use super::health::{Health, State};
use crate::device::Disk;
use crate::in_use::InUseRecord;
use crate::lun::LunHealth;
use crate::ownership::{Held, Ownership};
use crate::settings::Settings;
use crate::text::path_as_text;
use crate::unix_time;
use crate::volume::{Cipher, OpenedDevice};
use block::DeviceInfo;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Destination of the log of this process, for its status.
static LOG_PLACE: OnceLock<String> = OnceLock::new();

/// Sets the description of the destination of the log, before services are started.
pub fn set_log_place(place: String) {
    let _ = LOG_PLACE.set(place);
}

/// An export of a service.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ExportAt {
    /// `nbd`, `fuse`, `loop`, `mount` or `afs`.
    pub kind: &'static str,
    /// URI, path or address.
    pub at: String,
    /// Effect of sync(2) and syncfs(2), for a mount that is not read-only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync: Option<SyncCalls>,
}

impl ExportAt {
    /// Creates the entry of an export.
    pub(super) fn new(kind: &'static str, at: String) -> ExportAt {
        let sync = None;
        ExportAt { kind, at, sync }
    }
}

/// Effect of sync(2) and syncfs(2) on a mounted file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SyncCalls {
    /// They return when everything is durable.
    Durable,
    /// They return at once: the kernel does not forward them.
    Ignored,
}

/// Status of a service.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Status {
    /// Name of the attached volume, mounted file system or served cell.
    pub name: String,
    /// File, disk or LUN, as the user named it.
    pub device: String,
    /// Path without symbolic links, for a file or disk.
    #[serde(serialize_with = "path_as_text")]
    pub path: Option<PathBuf>,
    /// Name of the LUN, for a LUN.
    pub lun: Option<String>,
    /// UUID in the header of the volume, or of the file system.
    pub uuid: String,
    /// Label in the header of the volume, or of the file system.
    pub label: String,
    /// Size of the data, in bytes.
    pub size: u64,
    /// Encryption; `None` for a plaintext device.
    #[serde(flatten)]
    pub cipher: Option<CipherStatus>,
    /// Mounted fileset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fileset: Option<String>,
    /// Format of a mounted file system of another program, such as `ext4`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<&'static str>,
    /// Served cell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cell: Option<String>,
    /// Claim on the unit of a cluster that the service is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterStatus>,
    /// State of the in-use record, which other machines check: `kept`, `reader`, `impossible` or
    /// `lost`.
    #[schemars(with = "String")]
    pub in_use_record: InUseRecord,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether discards are passed to the device.
    pub discards: bool,
    /// Whether each request goes to the disk, without a cache in this process.
    pub direct: bool,
    /// Whether I/O on the disk bypasses the kernel's page cache.
    pub o_direct: bool,
    /// Whether the cache of this process keeps pages.
    pub cached: bool,
    /// Threads of each export.
    pub threads: usize,
    /// ID of the serving process.
    pub pid: u32,
    /// Version of the serving program.
    pub version: &'static str,
    /// Its servers before this one, for a service that outlives its server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub survival: Option<SurvivalStatus>,
    /// Start of the service, in seconds since 1970.
    pub since: u64,
    /// Time since the start, in seconds.
    pub uptime_seconds: u64,
    /// Destination of the log of the process, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<&'static str>,
    /// `detaching` while the service is being detached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<&'static str>,
    /// Health of the service.
    pub health: Health,
    /// Use of space, for a file system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub space: Option<Space>,
    /// All exports.
    pub exports: Vec<ExportAt>,
    /// Configuration file that defines the service.
    #[serde(serialize_with = "path_as_text")]
    pub config: Option<PathBuf>,
    /// State of write-back, if pages are cached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_back: Option<WriteBack>,
    /// Warnings for the user.
    pub warning: Option<String>,
    /// Notice about a volume that this machine opens for the first time, with its owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_use: Option<String>,
    /// State of the LUN, if the service is on one. The process of the service fills it in.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<LunHealth>")]
    pub lun_state: Option<Value>,
}

/// The claim of a process on the unit that it serves.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ClusterStatus {
    /// Name of this machine in the cluster.
    pub machine: String,
    /// Number of the claim: each owner of the unit has a higher one than the owner before it.
    pub epoch: u64,
    /// Time in milliseconds after which the unit ends, unless the machine renews its lease.
    pub lease_ms: u64,
}

/// State of the write-back of acknowledged data.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct WriteBack {
    /// `ok`, or `failing` while there are pages that could not be written out.
    pub state: &'static str,
    /// Bytes in memory only.
    pub dirty_bytes: u64,
    /// Age of the oldest of these bytes in milliseconds.
    pub oldest_dirty_ms: Option<u64>,
    /// Error of failed write-back.
    pub error: Option<String>,
}

/// Use of space in a file system, in bytes, and the condition of its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Space {
    /// Size of the file system.
    pub size_bytes: u64,
    /// Free bytes, including those that are reserved.
    pub free_bytes: u64,
    /// Free bytes that files can use.
    pub available_bytes: u64,
    /// Reads of file data, since the start, that did not match its checksum.
    pub checksum_mismatches: u64,
}

impl Space {
    /// Reads the use of space of a file system of another program.
    pub(crate) fn of_foreign(files: &foreign::Files) -> Space {
        let space = files.tree().space();
        let bytes = |blocks: u64| blocks.saturating_mul(u64::from(space.block_bytes));
        Space {
            size_bytes: bytes(space.blocks),
            free_bytes: bytes(space.free),
            available_bytes: bytes(space.available),
            checksum_mismatches: 0,
        }
    }

    /// Reads the use of space of a file system.
    pub(crate) fn of(fs: &fs::Fs) -> Space {
        let usage = fs.usage();
        Space {
            size_bytes: usage.blocks * fs::BLOCK_BYTES,
            free_bytes: usage.free * fs::BLOCK_BYTES,
            available_bytes: usage.available * fs::BLOCK_BYTES,
            checksum_mismatches: fs.checksum_mismatches(),
        }
    }
}

/// The part of [`Status`] for encrypted volumes.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct CipherStatus {
    /// Size of an encryption sector, in bytes.
    pub sector_size: u32,
    /// Length of the AES key in bits: 128 or 256.
    pub key_bits: u32,
    /// Cipher kernel in use.
    pub kernel: String,
    /// Keyslot of the key that opened the volume.
    pub keyslot: u32,
    /// Role of the key that opened the volume.
    pub role: String,
    /// Whether the memory that holds keys is locked against swapping.
    pub keys_locked: bool,
}

/// The servers of a service that outlives them.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct SurvivalStatus {
    /// Number of servers before this one.
    pub predecessors: u32,
    /// Whether the program that the last `evfs restart` has started did not serve, so that the one
    /// before it goes on.
    pub restart_refused: bool,
}

impl Status {
    /// Creates the status of an open DEVICE, without exports.
    pub(crate) fn of(
        name: &str,
        device: &Path,
        threads: usize,
        open: &OpenedDevice,
        info: &DeviceInfo,
    ) -> Status {
        let cipher = open.cipher.as_ref();
        let text = |get: fn(&Cipher) -> &String| cipher.map(get).cloned().unwrap_or_default();
        let mut status = Status {
            name: name.to_owned(),
            device: device.display().to_string(),
            path: path_of(&open.disk, device),
            lun: open.disk.lun().map(|lun| lun.lun().name().to_owned()),
            uuid: text(|c| &c.uuid),
            label: text(|c| &c.label),
            size: info.size,
            cipher: cipher.map(|c| CipherStatus {
                sector_size: c.sector_size,
                key_bits: c.key_bits,
                kernel: c.kernel.to_string(),
                keyslot: c.keyslot,
                role: c.role.to_string(),
                keys_locked: secret::all_locked(),
            }),
            fileset: None,
            format: None,
            cell: None,
            cluster: None,
            in_use_record: open.disk.in_use_record(),
            read_only: info.read_only,
            discards: info.discard,
            direct: false,
            o_direct: open.direct,
            cached: true,
            threads,
            pid: std::process::id(),
            version: crate::VERSION,
            survival: None,
            since: unix_time::now().as_secs(),
            uptime_seconds: 0,
            log: LOG_PLACE.get().map(String::as_str),
            state: None,
            health: Health::default(),
            space: None,
            exports: Vec::new(),
            config: None,
            write_back: None,
            warning: cipher.and_then(|_| memory_warning()),
            first_use: open.first_use.clone(),
            lun_state: None,
        };
        if let Some(copy) = open.damaged_copy {
            let reason = format!("the {copy} copy of the header is damaged");
            status.health.worsen(State::Degraded, reason);
            status.warn(format!(
                "the {copy} copy of the header was damaged at open, so the other copy is in use; \
                 `evfs volume repair {}` repairs it",
                device.display()
            ));
        }
        status
    }

    /// Adds a warning to the existing ones.
    pub(crate) fn warn(&mut self, warning: impl Into<String>) {
        let warning = warning.into();
        self.warning = Some(match self.warning.take() {
            Some(others) => format!("{others}; {warning}"),
            None => warning,
        });
    }

    /// Sets the values that change while the service runs: the time, the number of errors of the
    /// device, and the in-use record.
    pub(crate) fn note_progress(&mut self, stats: &block::Snapshot) {
        let kinds = [
            stats.read,
            stats.write,
            stats.flush,
            stats.discard,
            stats.write_zeroes,
        ];
        self.uptime_seconds = unix_time::now().as_secs().saturating_sub(self.since);
        self.health.errors = kinds.iter().map(|kind| kind.errors).sum();
        if self.in_use_record.word() == "lost" {
            let reason = "another machine has taken over the device";
            self.health.worsen(State::Failing, reason);
        }
    }

    /// Adds a warning, which is also the reason for a state.
    pub(crate) fn warn_of(&mut self, state: State, warning: impl Into<String>) {
        let warning = warning.into();
        self.health.worsen(state, &warning);
        self.warn(warning);
    }

    /// Adds the state of the file system of the service, while it is open.
    pub(crate) fn note_fs(&mut self, fs: Option<&fs::Fs>) {
        self.space = fs.map(Space::of);
        let places = fs.map(fs::Fs::mismatched).unwrap_or_default();
        if !places.is_empty() {
            let mismatches = self.space.map_or(0, |space| space.checksum_mismatches);
            let warning = format!(
                "file data did not match its checksum in {mismatches} reads: {}; `evfs scrub` \
                 lists all damaged files",
                places.join(", ")
            );
            self.warn_of(State::Degraded, warning);
        }
    }

    /// Sets the claim of the process, if the service is a unit of a cluster.
    pub(crate) fn note_claim(&mut self, settings: &Settings) {
        let held = settings.ownership().and_then(Ownership::held);
        self.cluster = held.map(|Held { epoch, left }| ClusterStatus {
            machine: settings.cluster_name(),
            epoch,
            lease_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
        });
    }

    /// Adds what the service has of the servers before this one.
    pub(crate) fn note_succession(&mut self, settings: &Settings) {
        self.survival = settings.succession().map(|succession| SurvivalStatus {
            predecessors: succession.generation(),
            restart_refused: succession.is_refused(),
        });
        if self.survival.as_ref().is_some_and(|s| s.restart_refused) {
            self.warn(String::from(
                "the last `evfs restart` failed: the new program did not serve, see EVFS-0819 in the \
                 log; the one before it goes on",
            ));
        }
    }

    /// Marks the service as being detached.
    pub(crate) fn note_stop(&mut self) {
        self.state = Some("detaching");
        self.uptime_seconds = unix_time::now().as_secs().saturating_sub(self.since);
        self.health
            .worsen(State::Stopping, "the service is being detached");
    }

    /// Adds the state of write-back of these cached volumes, with a warning if it fails.
    pub(crate) fn note_write_back(&mut self, volumes: &[&cache::Volume]) {
        let dirty = crate::cache::dirty(volumes);
        let dirty_bytes = dirty.bytes;
        let error = volumes.iter().find_map(|volume| volume.held_back());
        if let Some(error) = &error {
            let room = match error.kind() {
                block::ErrorKind::NoSpace => {
                    format!("; free space on the storage of {}", self.device)
                }
                _ => String::new(),
            };
            let warning = format!(
                "{dirty_bytes} acknowledged bytes are in memory only, because write-back fails \
                 ({error}); they are kept, and write-back is retried{room}"
            );
            self.warn_of(State::Failing, warning);
        }
        self.write_back = Some(WriteBack {
            state: if error.is_some() { "failing" } else { "ok" },
            dirty_bytes,
            oldest_dirty_ms: dirty.oldest_ms,
            error: error.map(|error| error.to_string()),
        });
    }

    /// Converts the status to JSON.
    pub fn to_value(&self) -> Value {
        serde_json::to_value(self).expect("names and numbers become JSON")
    }
}

/// Warns if the memory that holds keys is not locked.
fn memory_warning() -> Option<String> {
    (!secret::all_locked()).then(|| {
        "the keys may be swapped out, because RLIMIT_MEMLOCK does not allow locking their memory; \
         raise it (`ulimit -l`, LimitMEMLOCK=) or use encrypted swap"
            .to_owned()
    })
}

fn path_of(disk: &Disk, device: &Path) -> Option<PathBuf> {
    match disk {
        Disk::File(_) => std::fs::canonicalize(device).ok(),
        Disk::Lun(_) => None,
    }
}
