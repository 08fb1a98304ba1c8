//! The table of settings.

pub(super) const MB: u64 = 1 << 20;
/// Lower bound of `filecache_min` and `filecache_max` (filecache_max(5)).
const FLOOR: u64 = MB;

/// Identifier of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// `filecache_min`
    FilecacheMin,
    /// `filecache_max`
    FilecacheMax,
    /// `mapped_max`
    MappedMax,
    /// `metadata_share`
    MetadataShare,
    /// `fcache_seqlimit_system`
    SeqlimitSystem,
    /// `fcache_seqlimit_file`
    SeqlimitFile,
    /// `fcache_fb_policy`
    FbPolicy,
    /// `dirty_background`
    DirtyBackground,
    /// `dirty_limit`
    DirtyLimit,
    /// `sync_interval_ms`
    SyncIntervalMs,
    /// `read_ahead_max`
    ReadAheadMax,
}

/// Syntax and bounds of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Percent of physical memory or bytes, at least `least` bytes, at most `most` percent of
    /// memory.
    Memory {
        /// Lower bound in bytes.
        least: u64,
        /// Upper bound in percent of memory.
        most: u64,
    },
    /// Bytes, rounded down to a page.
    Bytes {
        /// Lower bound in bytes.
        least: u64,
        /// Upper bound in bytes.
        most: u64,
    },
    /// A whole number of percent; the percent sign is optional.
    Percent {
        /// Lower bound.
        least: u64,
        /// Upper bound.
        most: u64,
    },
    /// A whole number.
    Number {
        /// Lower bound.
        least: u64,
        /// Upper bound.
        most: u64,
    },
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Tunable {
    /// Identifier of the setting.
    pub name: Name,
    /// Name for users.
    pub text: &'static str,
    /// Unit and bounds.
    pub unit: Unit,
    /// The default, in the syntax of a value.
    pub default: &'static str,
    /// Effect of the setting.
    pub help: &'static str,
    /// Rationale for the default and the bounds.
    pub reason: &'static str,
}

/// All settings, in the order of `Name`.
pub const TUNABLES: [Tunable; 11] = [
    Tunable {
        name: Name::FilecacheMin,
        text: "filecache_min",
        unit: Unit::Memory {
            least: FLOOR,
            most: 70,
        },
        default: "5%",
        help: "memory that the file cache keeps even under memory pressure",
        reason: "filecache_min(5): 5 % of memory, from 1 MiB to 70 %",
    },
    Tunable {
        name: Name::FilecacheMax,
        text: "filecache_max",
        unit: Unit::Memory {
            least: FLOOR,
            most: 90,
        },
        default: "50%",
        help: "maximum memory for pages of reads and writes; mapped pages are not counted",
        reason: "filecache_max(5): 50 % of memory, from 1 MiB to 90 %",
    },
    Tunable {
        name: Name::MappedMax,
        text: "mapped_max",
        unit: Unit::Memory {
            least: FLOOR,
            most: 100,
        },
        default: "90%",
        help: "maximum memory for mapped pages, counted separately from filecache_max",
        reason: "HP-UX does not limit mapped pages; EVFS must leave memory for other processes",
    },
    Tunable {
        name: Name::MetadataShare,
        text: "metadata_share",
        unit: Unit::Percent { least: 1, most: 50 },
        default: "10",
        help: "share of filecache_min and filecache_max for metadata",
        reason: "HP-UX uses a small share for metadata; with more than half, little is left for \
                 file data",
    },
    Tunable {
        name: Name::SeqlimitSystem,
        text: "fcache_seqlimit_system",
        unit: Unit::Percent {
            least: 0,
            most: 100,
        },
        default: "100",
        help: "share of the file cache for all sequential accesses; above it, a file evicts its \
               own pages",
        reason: "fcache_seqlimit_system(5): 100 disables it; the eviction policy resists scans \
                 without it",
    },
    Tunable {
        name: Name::SeqlimitFile,
        text: "fcache_seqlimit_file",
        unit: Unit::Percent {
            least: 0,
            most: 100,
        },
        default: "100",
        help: "share of the file cache for sequential accesses to one file; both limits must be \
               exceeded",
        reason: "fcache_seqlimit_file(5): 100 disables it",
    },
    Tunable {
        name: Name::FbPolicy,
        text: "fcache_fb_policy",
        unit: Unit::Number { least: 0, most: 2 },
        default: "0",
        help: "write back sequential writes: 0 when due by age, 1 early by the cache's threads, 2 \
               at once by the writer",
        reason: "fcache_fb_policy(5)",
    },
    Tunable {
        name: Name::DirtyBackground,
        text: "dirty_background",
        unit: Unit::Percent { least: 1, most: 90 },
        default: "10",
        help: "share of filecache_max that may be dirty before write-behind starts early",
        reason: "half of dirty_limit, so that write-behind starts before writers are throttled",
    },
    Tunable {
        name: Name::DirtyLimit,
        text: "dirty_limit",
        unit: Unit::Percent { least: 1, most: 90 },
        default: "20",
        help: "share of filecache_max that may be dirty before writers are throttled",
        reason: "a fifth keeps flushes short; a cache full of dirty pages has nothing to evict",
    },
    Tunable {
        name: Name::SyncIntervalMs,
        text: "sync_interval_ms",
        unit: Unit::Number {
            least: 10,
            most: 3_600_000,
        },
        default: "30000",
        help: "milliseconds that a page may stay dirty, unless its file sets sync_interval",
        reason: "the syncer of HP-UX runs every 30 s; below 10 ms, writes would be nearly \
                 synchronous",
    },
    Tunable {
        name: Name::ReadAheadMax,
        text: "read_ahead_max",
        unit: Unit::Bytes {
            least: 0,
            most: 64 * MB,
        },
        default: "2MiB",
        help: "maximum read-ahead window of one stream; 0 disables read-ahead",
        reason: "above 2 MiB, device throughput no longer grows with request size; a stream may \
                 hold one and a half windows",
    },
];
