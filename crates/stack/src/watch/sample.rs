//! The state and the rates of all services in one interval.

use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// State and rates of all services.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Sample {
    /// Time of the sample, in seconds since 1970.
    pub time: f64,
    /// Attached volumes, mounted file systems and served cells, by name.
    pub services: Vec<ServiceSample>,
    /// Paths of their LUNs.
    pub paths: Vec<PathSample>,
    /// Caches, one for each process.
    pub caches: Vec<CacheSample>,
    /// Files that lead in use, dirty data or cached data.
    pub files: Vec<FileSample>,
    /// Served cells.
    pub cells: Vec<CellSample>,
    /// Clients of the cells, the most recently active first for each cell.
    pub clients: Vec<ClientSample>,
}

/// A service in an interval.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct ServiceSample {
    /// Name of the service.
    pub name: String,
    /// `volume`, `mount`, `cell`, or `-` for a service that has not answered yet.
    pub kind: &'static str,
    /// State of its health, or `not answering`.
    pub state: String,
    /// Reasons for the state.
    pub reasons: Vec<String>,
    /// Reason why there is no answer.
    pub error: Option<String>,
    /// File, disk or LUN, as the user named it.
    pub device: String,
    /// Places of the exports.
    pub exports: Vec<String>,
    /// Epoch of the claim of this machine, for a unit of a cluster.
    pub epoch: Option<u64>,
    /// Time left of the lease of the machine in milliseconds, for a unit of a cluster.
    pub lease_ms: Option<u64>,
    /// ID of its process.
    pub pid: Option<u64>,
    /// Time since its start, in seconds.
    pub uptime_seconds: Option<u64>,
    /// Size of the data in bytes.
    pub size_bytes: Option<u64>,
    /// Free bytes that files can use, for a file system.
    pub available_bytes: Option<u64>,
    /// Size of the file system in bytes.
    pub filesystem_bytes: Option<u64>,
    /// Acknowledged data that is in memory only, in bytes.
    pub dirty_bytes: Option<u64>,
    /// Age of the oldest of it in milliseconds.
    pub oldest_dirty_ms: Option<u64>,
    /// Time that the rates cover, in seconds; `None` without a comparable earlier reading.
    pub interval_seconds: Option<f64>,
    /// Reads and writes together.
    pub total: Option<IoRates>,
    /// Requests to the device, by kind.
    pub io: BTreeMap<String, IoRates>,
}

/// Requests in an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
pub struct IoRates {
    /// Rate of requests.
    pub requests_per_second: f64,
    /// Rate of bytes in requests.
    pub bytes_per_second: f64,
    /// Rate of failed requests.
    pub errors_per_second: f64,
    /// Mean latency in nanoseconds; `None` without requests, as are the percentiles.
    pub mean_ns: Option<u64>,
    /// Median latency in nanoseconds.
    pub p50_ns: Option<u64>,
    /// 99th percentile of the latency in nanoseconds.
    pub p99_ns: Option<u64>,
}

/// A path of a LUN in an interval.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct PathSample {
    /// Service on the LUN.
    pub service: String,
    /// Name of the LUN.
    pub lun: String,
    /// Address of the path.
    pub path: String,
    /// State, as `evfs lun show` names it.
    pub state: String,
    /// Reason why it carries no I/O.
    pub why: Option<String>,
    /// Requests in flight.
    pub in_flight: u32,
    /// Requests of the LUN that wait for a path.
    pub waiting: u32,
    /// Lost connections since the start.
    pub losses: u64,
    /// Rates; `None` without a comparable earlier reading.
    pub rates: Option<TransferRates>,
}

/// Requests on a path in an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
pub struct TransferRates {
    /// Rate of read requests.
    pub reads_per_second: f64,
    /// Rate of write requests.
    pub writes_per_second: f64,
    /// Rate of bytes that are read.
    pub read_bytes_per_second: f64,
    /// Rate of bytes in write requests.
    pub written_bytes_per_second: f64,
    /// Rate of failed requests.
    pub errors_per_second: f64,
    /// Requests repeated on another path, per second.
    pub retries_per_second: f64,
    /// Median latency in nanoseconds; `None` without requests.
    pub p50_ns: Option<u64>,
    /// 99th percentile of the latency in nanoseconds.
    pub p99_ns: Option<u64>,
}

/// The cache of a process in an interval. Rates are in pages of 4096 bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct CacheSample {
    /// ID of its process.
    pub pid: u32,
    /// Services of the process.
    pub services: Vec<String>,
    /// Bytes of pages in use.
    pub used_bytes: u64,
    /// Upper limit of the cache in bytes.
    pub max_bytes: u64,
    /// Bytes not yet written to the device.
    pub dirty_bytes: u64,
    /// Age of the oldest of them in milliseconds.
    pub oldest_dirty_ms: Option<u64>,
    /// Share of page reads that found the page resident, from 0 to 1; `None` without reads.
    pub hit_ratio: Option<f64>,
    /// Rate of read requests.
    pub reads_per_second: Option<f64>,
    /// Page reads that went to the device, per second.
    pub misses_per_second: Option<f64>,
    /// Rate of write requests.
    pub writes_per_second: Option<f64>,
    /// Pages read ahead, per second.
    pub read_ahead_per_second: Option<f64>,
    /// Pages read ahead that were evicted before their first use.
    pub wasted_per_second: Option<f64>,
    /// Pages evicted to make room.
    pub evicted_per_second: Option<f64>,
    /// Seconds that writers waited in each second, added up over writers.
    pub throttled_share: Option<f64>,
}

/// A file in an interval. Rates are in pages of 4096 bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct FileSample {
    /// Name of the service.
    pub service: String,
    /// Name of the fileset or volume with the file.
    pub tree: String,
    /// Number of the file in its tree.
    pub file: u64,
    /// Path from the root of the tree; `None` if it is not known.
    pub path: Option<String>,
    /// Size of the file in bytes.
    pub size_bytes: u64,
    /// Bytes in the cache; `None` for a file with more than are counted.
    pub cached_bytes: Option<u64>,
    /// Bytes not yet written to the device.
    pub dirty_bytes: u64,
    /// Age of the oldest of them in milliseconds.
    pub oldest_dirty_ms: Option<u64>,
    /// Share of page reads that found the page resident, from 0 to 1; `None` without reads.
    pub hit_ratio: Option<f64>,
    /// Rate of read requests.
    pub reads_per_second: Option<f64>,
    /// Rate of write requests.
    pub writes_per_second: Option<f64>,
}

/// A cell in an interval.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct CellSample {
    /// Name of the service.
    pub service: String,
    /// Name of the cell.
    pub cell: String,
    /// Known clients.
    pub clients: usize,
    /// Clients that were active in the last 15 minutes.
    pub active_clients: usize,
    /// Callback promises that clients hold.
    pub promises: usize,
    /// Rate of calls that ended.
    pub calls_per_second: Option<f64>,
    /// Rate of calls that ended with an error.
    pub errors_per_second: Option<f64>,
    /// Calls that notified a client of changed files.
    pub breaks_per_second: Option<f64>,
    /// Bytes read by clients, per second.
    pub fetched_bytes_per_second: Option<f64>,
    /// Bytes written by clients, per second.
    pub stored_bytes_per_second: Option<f64>,
    /// Procedures that were called in the interval, the most frequent first.
    pub procedures: Vec<(String, f64)>,
}

/// A client of a cell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct ClientSample {
    /// Name of the service.
    pub service: String,
    /// Address and port.
    pub address: String,
    /// `up`, `new` or `dead`, as in `evfs cell status`.
    pub state: String,
    /// Callback promises that it holds, including expired ones that are not removed yet.
    pub promises: usize,
    /// Time since its last call.
    pub heard_seconds_ago: u32,
}
