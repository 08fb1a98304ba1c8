//! The totals of a service at a time, as its process reports them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Totals and state of a service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Reading {
    /// Status, as `evfs status` shows it.
    pub(crate) status: Value,
    /// Requests to the device, by kind.
    pub(crate) io: Vec<IoCounters>,
    /// Paths of the LUN, if the service is on one.
    pub(crate) paths: Vec<PathCounters>,
    /// Cache of the process, which its services share.
    pub(crate) cache: Option<CacheCounters>,
    /// Files that lead in use, dirty data or cached data.
    pub(crate) files: Vec<FileCounters>,
    /// The served cell.
    pub(crate) cell: Option<CellCounters>,
}

/// Requests of one kind to the device of a service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct IoCounters {
    /// Kind of request, such as `read`.
    pub(crate) op: String,
    /// Requests that ended, with or without an error.
    pub(crate) requests: u64,
    /// Bytes of successful requests.
    pub(crate) bytes: u64,
    /// Requests that ended with an error.
    pub(crate) errors: u64,
    /// Sum of the latencies in nanoseconds.
    pub(crate) total_ns: u64,
    /// Non-empty buckets of the latencies: upper bound in nanoseconds, and number of requests.
    pub(crate) latencies: Vec<(u64, u64)>,
}

/// State and totals of a path of a LUN.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PathCounters {
    /// Name of the LUN.
    pub(crate) lun: String,
    /// Address of the path.
    pub(crate) path: String,
    /// State, as `evfs lun show` names it.
    pub(crate) state: String,
    /// Reason why it carries no I/O.
    pub(crate) why: Option<String>,
    /// Requests in flight.
    pub(crate) in_flight: u32,
    /// Requests of the LUN that wait for a path.
    pub(crate) waiting: u32,
    /// Successful reads.
    pub(crate) reads: u64,
    /// Successful writes.
    pub(crate) writes: u64,
    /// Bytes of successful reads.
    pub(crate) bytes_read: u64,
    /// Bytes of successful writes.
    pub(crate) bytes_written: u64,
    /// Failed requests.
    pub(crate) errors: u64,
    /// Requests that were sent over another path, or again.
    pub(crate) retries: u64,
    /// Lost connections.
    pub(crate) losses: u64,
    /// Non-empty buckets of the latencies, as in [`IoCounters`].
    pub(crate) latencies: Vec<(u64, u64)>,
}

/// State and totals of the cache of a process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CacheCounters {
    /// ID of the process.
    pub(crate) pid: u32,
    /// Page reads that found the page resident.
    pub(crate) hits: u64,
    /// Page reads that loaded the page.
    pub(crate) misses: u64,
    /// Page reads that joined a load in progress.
    pub(crate) joins: u64,
    /// Pages written.
    pub(crate) writes: u64,
    /// Pages loaded in anticipation of a read.
    pub(crate) read_ahead: u64,
    /// Those of them that were evicted before their first use.
    pub(crate) read_ahead_wasted: u64,
    /// Pages evicted to make room.
    pub(crate) evicted: u64,
    /// Time for which writers waited because of dirty pages, in milliseconds.
    pub(crate) throttled_ms: u64,
    /// Memory in pages.
    pub(crate) used_bytes: u64,
    /// Limit of the memory in pages.
    pub(crate) max_bytes: u64,
    /// Pages that are in memory only.
    pub(crate) dirty_bytes: u64,
    /// Age of the oldest of them in milliseconds.
    pub(crate) oldest_dirty_ms: Option<u64>,
}

/// State and totals of a file in the cache.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct FileCounters {
    /// Name of the fileset or volume with the file.
    pub(crate) tree: String,
    /// Number of the file in its tree.
    pub(crate) file: u64,
    /// Path from the root of the tree, if it was requested and found.
    pub(crate) path: Option<String>,
    /// Size in bytes.
    pub(crate) size: u64,
    /// Page reads that found the page resident.
    pub(crate) hits: u64,
    /// Page reads that loaded the page.
    pub(crate) misses: u64,
    /// Page reads that joined a load in progress.
    pub(crate) joins: u64,
    /// Pages written.
    pub(crate) writes: u64,
    /// Bytes in the cache; `None` for a file with more than are counted.
    pub(crate) cached_bytes: Option<u64>,
    /// Bytes that are in memory only.
    pub(crate) dirty_bytes: u64,
    /// Age of the oldest of them in milliseconds.
    pub(crate) oldest_dirty_ms: Option<u64>,
}

/// State and totals of a cell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CellCounters {
    /// Calls of clients.
    pub(crate) calls: u64,
    /// Calls that ended with an error.
    pub(crate) errors: u64,
    /// Calls that notified a client of changed files.
    pub(crate) breaks: u64,
    /// Bytes of files that clients fetched.
    pub(crate) fetched_bytes: u64,
    /// Bytes of files that clients stored.
    pub(crate) stored_bytes: u64,
    /// Known clients.
    pub(crate) clients: usize,
    /// Clients that were active in the last 15 minutes.
    pub(crate) active_clients: usize,
    /// Callback promises that clients hold.
    pub(crate) promises: usize,
    /// Calls of each procedure.
    pub(crate) procedures: Vec<(String, u64)>,
    /// The clients that were active most recently.
    pub(crate) recent: Vec<ClientCounters>,
}

/// A client of a cell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClientCounters {
    /// Address and port.
    pub(crate) address: String,
    /// `up`, `new` or `dead`, as in `evfs cell status`.
    pub(crate) state: String,
    /// Callback promises that it holds, including expired ones that are not removed yet.
    pub(crate) promises: usize,
    /// Time since its last call.
    pub(crate) heard_seconds_ago: u32,
}
