//! All families of metrics. Names and units follow the conventions of Prometheus: base units, and
//! `_total` for counters. The guide lists the same families.

/// A family of metrics.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Family {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) help: &'static str,
}

/// Kind of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    /// Names the kind as the format does.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

macro_rules! families {
    ($($id:ident $kind:ident $name:literal $help:literal)*) => {
        $(pub(crate) const $id: &Family = &Family {
            name: $name,
            kind: Kind::$kind,
            help: $help,
        };)*

        /// All families, in the order of the text.
        pub(crate) const FAMILIES: &[&Family] = &[$($id),*];
    };
}

families! {
    BUILD_INFO Gauge "evfs_build_info"
        "Version of the program that answers; the value is 1"
    SERVICE_UP Gauge "evfs_service_up"
        "Whether the process of the service answered"
    SERVICE_INFO Gauge "evfs_service_info"
        "Kind of the service, its device, and the role of its key; the value is 1"
    SERVICE_STATE Gauge "evfs_service_state"
        "1 for the state of the service, 0 for all others"
    START_TIME Gauge "evfs_service_start_time_seconds"
        "Start of the service, in seconds since 1970"
    EXPORT_INFO Gauge "evfs_export_info"
        "An export of the service, such as a mount; the value is 1"
    CLUSTER_EPOCH Gauge "evfs_cluster_epoch"
        "Number of the claim of the machine on the unit of its cluster"
    CLUSTER_LEASE Gauge "evfs_cluster_lease_seconds"
        "Time after which the unit ends, unless the machine renews its lease"
    SIZE Gauge "evfs_volume_size_bytes"
        "Size of the data of the volume"
    READ_ONLY Gauge "evfs_read_only"
        "Whether writes are refused, by request or after an error"
    FS_SIZE Gauge "evfs_filesystem_size_bytes"
        "Size of the file system"
    FS_FREE Gauge "evfs_filesystem_free_bytes"
        "Free space of the file system"
    FS_AVAILABLE Gauge "evfs_filesystem_available_bytes"
        "Free space of the file system that files can use"
    FS_MISMATCHES Counter "evfs_filesystem_checksum_mismatches_total"
        "Reads of file data that did not match its checksum"
    DIRTY Gauge "evfs_dirty_bytes"
        "Acknowledged data that is in memory only"
    DIRTY_AGE Gauge "evfs_oldest_dirty_age_seconds"
        "Age of the oldest data that is in memory only; 0 without such data"
    WRITE_BACK_FAILING Gauge "evfs_write_back_failing"
        "Whether data stays in memory because write-back fails"
    IO_REQUESTS Counter "evfs_io_requests_total"
        "Requests to the device that ended"
    IO_BYTES Counter "evfs_io_bytes_total"
        "Bytes of successful requests to the device"
    IO_ERRORS Counter "evfs_io_errors_total"
        "Requests to the device that ended with an error"
    IO_LATENCY Histogram "evfs_io_latency_seconds"
        "Time from submission to completion of a request to the device"
    LUN_WAITING Gauge "evfs_lun_waiting_requests"
        "Requests that wait for a path"
    PATH_STATE Gauge "evfs_path_state"
        "1 for the state of the path"
    PATH_REQUESTS Counter "evfs_path_requests_total"
        "Successful requests on the path"
    PATH_BYTES Counter "evfs_path_bytes_total"
        "Bytes of successful requests on the path"
    PATH_ERRORS Counter "evfs_path_errors_total"
        "Failed requests on the path"
    PATH_RETRIES Counter "evfs_path_retries_total"
        "Requests that were sent over another path, or again"
    PATH_LOSSES Counter "evfs_path_connections_lost_total"
        "Connections of the path that were lost"
    PATH_IN_FLIGHT Gauge "evfs_path_in_flight_requests"
        "Requests in flight on the path"
    CACHE_READS Counter "evfs_cache_reads_total"
        "Pages read: from memory (hit), from the device (miss), or by a load in progress (join)"
    CACHE_WRITES Counter "evfs_cache_writes_total"
        "Pages written"
    CACHE_READ_AHEAD Counter "evfs_cache_read_ahead_pages_total"
        "Pages loaded in anticipation of a read, and those that were used or wasted"
    CACHE_EVICTED Counter "evfs_cache_evicted_pages_total"
        "Pages evicted to make room"
    CACHE_USED Gauge "evfs_cache_used_bytes"
        "Memory in pages of the cache"
    CACHE_MAX Gauge "evfs_cache_max_bytes"
        "Limit of the memory in pages"
    CACHE_DIRTY Gauge "evfs_cache_dirty_bytes"
        "Pages of all services of the process that are in memory only"
    CACHE_THROTTLED Counter "evfs_cache_throttled_seconds_total"
        "Time for which writers waited because of dirty pages"
    CELL_CLIENTS Gauge "evfs_cell_clients"
        "Known clients of the cell"
    CELL_ACTIVE Gauge "evfs_cell_active_clients"
        "Clients of the cell that were active in the last 15 minutes"
    CELL_PROMISES Gauge "evfs_cell_callback_promises"
        "Callback promises that clients hold"
    CELL_CALLS Counter "evfs_cell_calls_total"
        "Calls of clients"
    CELL_ERRORS Counter "evfs_cell_errors_total"
        "Calls of clients that ended with an error"
    CELL_BREAKS Counter "evfs_cell_callbacks_broken_total"
        "Calls that notified a client of changed files"
    CELL_FETCHED Counter "evfs_cell_fetched_bytes_total"
        "Bytes of files that clients fetched"
    CELL_STORED Counter "evfs_cell_stored_bytes_total"
        "Bytes of files that clients stored"
    SCRAPE_DURATION Gauge "evfs_scrape_duration_seconds"
        "Time that the collection of these values took"
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_follow_the_conventions() {
        let names: BTreeSet<&str> = FAMILIES.iter().map(|family| family.name).collect();
        assert_eq!(names.len(), FAMILIES.len());
        for family in FAMILIES {
            let name = family.name;
            assert!(name.starts_with("evfs_"), "{name}");
            let plain = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(name.chars().all(plain), "{name}");
            let is_counter = family.kind == Kind::Counter;
            assert_eq!(name.ends_with("_total"), is_counter, "{name}");
            assert!(!family.help.contains('\n'), "{name}");
        }
    }

    #[test]
    fn the_guide_lists_all_families() {
        let page = include_str!("../../../../docs/guide/monitoring.md");
        let rows = page
            .lines()
            .filter_map(|line| line.strip_prefix("| `evfs_"));
        let listed: Vec<String> = rows
            .map(|row| format!("evfs_{}", row.split('`').next().unwrap_or_default()))
            .collect();
        let all: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
        assert_eq!(listed, all);
    }
}
