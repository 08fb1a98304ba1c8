//! Answers to requests to a cell. Their serialized form is published (`docs/schemas/`).

use afs_server::{Kind, Volume};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

/// A cell in `evfs cell status`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ShownCell {
    /// Name of the cell.
    pub cell: String,
    /// Whether the cell is served. If not, the fields that only a served cell has are absent.
    pub served: bool,
    /// Addresses at which the cell is served.
    pub listen: Vec<Ipv4Addr>,
    /// Lines for the file `CellServDB` of clients.
    pub cellservdb: String,
    /// Volumes of the cell, sorted by name.
    pub volumes: Vec<ShownVolume>,
    #[serde(flatten)]
    pub server: Option<ShownServer>,
}

/// The part of [`ShownCell`] that only a served cell has.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ShownServer {
    /// Name of the service.
    pub name: String,
    /// File, disk or LUN, as the user named it.
    pub device: String,
    /// ID of the serving process.
    pub pid: u32,
    /// Start of the service, in seconds since 1970.
    pub since: u64,
    /// Maximum number of concurrent calls at each address.
    pub threads: usize,
    /// Whether the cell refuses writes since a write error.
    pub read_only: bool,
    /// Warnings for the user.
    pub warning: Option<String>,
    /// Addresses announced to clients.
    pub announced: Vec<Ipv4Addr>,
    /// Addresses and prefixes of the clients that are served; if empty, all.
    pub allowed: Vec<String>,
    /// Whether clients can change data as access lists permit.
    pub anonymous_write: bool,
    /// Counters of the server.
    pub stats: ShownServerStats,
    /// Clients, the most recently active first, if they were requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clients: Option<Vec<ShownClient>>,
}

/// A client of a cell.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ShownClient {
    /// Source address of its calls.
    pub address: IpAddr,
    /// Source port of its calls.
    pub port: u16,
    /// Identity that it reported.
    pub uuid: Option<String>,
    /// Reachability for callbacks: `up`, `new` (not queried yet) or `dead`.
    pub state: &'static str,
    /// Number of valid callback promises.
    pub promises: usize,
    /// Seconds since its last call.
    pub heard_seconds_ago: u32,
}

/// Counters of the server of a cell.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ShownServerStats {
    /// Number of known clients.
    pub clients: usize,
    /// Number of clients that called within 15 minutes.
    pub active_clients: usize,
    /// Number of valid callback promises.
    pub promises: usize,
    /// Calls of the file service.
    pub calls: u64,
    /// Calls that ended with an error.
    pub errors: u64,
    /// Callbacks sent to clients.
    pub callbacks_broken: u64,
    /// Bytes of file data sent to clients.
    pub fetched_bytes: u64,
    /// Bytes of file data received from clients.
    pub stored_bytes: u64,
    /// Calls by name of the procedure.
    #[schemars(with = "BTreeMap<String, ShownProcedure>")]
    pub procedures: Map<String, Value>,
    /// Network of the file service.
    pub files: ShownPort,
    /// Network of the volume location service.
    pub location: ShownPort,
}

/// Calls of a procedure.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ShownProcedure {
    /// Calls that ended.
    pub calls: u64,
    /// Calls that ended with an error.
    pub errors: u64,
}

/// Counters of a UDP port.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ShownPort {
    /// Current number of connections, in both directions.
    pub connections: usize,
    /// Current number of calls, in both directions.
    pub calls_now: usize,
    /// Datagrams received.
    pub datagrams_in: u64,
    /// Datagrams sent.
    pub datagrams_out: u64,
    /// Data bytes received, without duplicates.
    pub bytes_in: u64,
    /// Bytes in datagrams sent.
    pub bytes_out: u64,
    /// Datagrams that the kernel dropped because a receive buffer was full.
    pub dropped_datagrams: u64,
    /// Datagrams that were too short, malformed or of an unknown type.
    pub malformed: u64,
    /// Packets that belong to no connection or call, or to a finished one.
    pub stray: u64,
    /// Datagrams of several packets received.
    pub jumbograms_in: u64,
    /// Datagrams of several packets sent.
    pub jumbograms_out: u64,
    /// Data packets retransmitted.
    pub resent_packets: u64,
    /// Data packets declared lost.
    pub lost_packets: u64,
    /// Data packets received more than once.
    pub duplicate_packets: u64,
    /// Connections refused because a limit was reached.
    pub refused_connections: u64,
    /// Answers to clients that the server is busy.
    pub busy: u64,
    /// Failed sends, whose datagrams are lost.
    pub send_errors: u64,
}

/// A volume of a cell.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ShownVolume {
    /// Name of the volume, with its suffix.
    pub name: String,
    /// Volume number; null in a dry run that cannot know it.
    pub id: Option<u32>,
    /// `read-write`, `read-only` or `backup`.
    pub kind: &'static str,
    /// Number of the read-write volume; null in a dry run that cannot know it.
    pub of: Option<u32>,
    /// Time of creation, in seconds since 1970.
    pub created: Option<i64>,
    /// Bytes of file data.
    pub used_bytes: Option<u64>,
    /// Number of files, directories and all other objects.
    pub used_inodes: Option<u64>,
    /// Limit of `used_bytes`.
    pub quota_bytes: Option<u64>,
}

/// Answer to a request for the volumes of a cell.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct CellVolumes {
    /// Name of the cell.
    pub cell: String,
    /// Volumes of the cell, sorted by name.
    pub volumes: Vec<ShownVolume>,
}

/// Answer to the creation of a mount point.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Mounted {
    /// Name of the volume that the mount point leads to.
    pub mounted: String,
    /// Path of the mount point in the cell.
    pub path: String,
}

/// Access list of a directory.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ShownAccessList {
    /// Name of the volume.
    pub volume: String,
    /// Directory, relative to the root of the volume.
    pub path: String,
    /// Entries that grant rights.
    pub positive: Vec<ShownEntry>,
    /// Entries that withdraw rights.
    pub negative: Vec<ShownEntry>,
}

/// An entry of an access list.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ShownEntry {
    /// `system:anyuser`, an address or a prefix.
    pub name: String,
    /// Letters of the rights.
    pub rights: String,
}

impl ShownVolume {
    /// Describes a volume.
    pub(super) fn of(volume: &Volume) -> ShownVolume {
        let record = volume.files.fileset().record().ok();
        let bytes = |blocks: u64| blocks * crate::filesystem::BLOCK_BYTES;
        let quota = record.as_ref().map_or(0, |r| r.quota_blocks);
        ShownVolume {
            name: volume.name.clone(),
            id: Some(volume.id),
            kind: word(volume.kind),
            of: Some(volume.parent),
            created: record.as_ref().map(|r| r.created.seconds),
            used_bytes: record.as_ref().map(|r| bytes(r.used_blocks)),
            used_inodes: record.as_ref().map(|r| r.used_inodes),
            quota_bytes: (quota > 0).then(|| bytes(quota)),
        }
    }

    /// Describes an empty volume that is planned; `quota` is its limit in bytes, or 0.
    pub(super) fn planned(name: &str, quota: u64) -> ShownVolume {
        let volume = ShownVolume {
            name: name.to_owned(),
            id: None,
            kind: word(Kind::ReadWrite),
            of: None,
            created: None,
            used_bytes: Some(0),
            used_inodes: Some(1),
            quota_bytes: None,
        };
        volume.limited(quota)
    }

    /// Describes a planned clone of this read-write volume.
    pub(super) fn cloned(self, kind: Kind) -> ShownVolume {
        ShownVolume {
            name: self.name + kind.suffix(),
            id: self.id.map(|id| id + kind as u32),
            kind: word(kind),
            created: None,
            quota_bytes: None,
            ..self
        }
    }

    /// Changes the limit, which is rounded up to whole blocks; 0 removes it.
    pub(super) fn limited(self, bytes: u64) -> ShownVolume {
        const UNIT: u64 = crate::filesystem::BLOCK_BYTES;
        ShownVolume {
            quota_bytes: (bytes > 0).then(|| bytes.div_ceil(UNIT) * UNIT),
            ..self
        }
    }
}

/// Names a kind of volume.
fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::ReadWrite => "read-write",
        Kind::ReadOnly => "read-only",
        Kind::Backup => "backup",
    }
}
