//! The table of settings.

pub(super) const KB: u64 = 1 << 10;
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
        help: "memory that the file cache keeps, whatever else wants memory",
        reason: "filecache_min(5): 5 % of memory, from 1 MB to 70 %",
    },
    Tunable {
        name: Name::FilecacheMax,
        text: "filecache_max",
        unit: Unit::Memory {
            least: FLOOR,
            most: 90,
        },
        default: "50%",
        help: "memory that pages of read and write may take; mapped pages are not counted",
        reason: "filecache_max(5): 50 % of memory, from 1 MB to 90 %",
    },
    Tunable {
        name: Name::MappedMax,
        text: "mapped_max",
        unit: Unit::Memory {
            least: FLOOR,
            most: 100,
        },
        default: "90%",
        help: "memory that mapped pages may take, apart from filecache_max",
        reason: "HP-UX does not limit mapped pages; a process that shares its machine has to leave it something",
    },
    Tunable {
        name: Name::MetadataShare,
        text: "metadata_share",
        unit: Unit::Percent { least: 1, most: 50 },
        default: "10",
        help: "part of filecache_min and filecache_max that is for metadata",
        reason: "HP-UX gives metadata a small part of the two; more than half would make it a metadata cache",
    },
    Tunable {
        name: Name::SeqlimitSystem,
        text: "fcache_seqlimit_system",
        unit: Unit::Percent {
            least: 0,
            most: 100,
        },
        default: "100",
        help: "part of the file cache that all sequential accesses may take before a file steals from itself",
        reason: "fcache_seqlimit_system(5): 100 is off; the eviction policy withstands scans without it",
    },
    Tunable {
        name: Name::SeqlimitFile,
        text: "fcache_seqlimit_file",
        unit: Unit::Percent {
            least: 0,
            most: 100,
        },
        default: "100",
        help: "part of the file cache that sequential accesses to one file may take; both limits must be exceeded",
        reason: "fcache_seqlimit_file(5): 100 is off",
    },
    Tunable {
        name: Name::FbPolicy,
        text: "fcache_fb_policy",
        unit: Unit::Number { least: 0, most: 2 },
        default: "0",
        help: "flush behind sequential writes: 0 not (they wait for their age), 1 by the cache's threads, 2 by the writer",
        reason: "fcache_fb_policy(5)",
    },
    Tunable {
        name: Name::DirtyBackground,
        text: "dirty_background",
        unit: Unit::Percent { least: 1, most: 90 },
        default: "10",
        help: "part of filecache_max that may be dirty before write-behind starts on its own",
        reason: "half of dirty_limit, so that write-behind is at work before writers are slowed",
    },
    Tunable {
        name: Name::DirtyLimit,
        text: "dirty_limit",
        unit: Unit::Percent { least: 1, most: 90 },
        default: "20",
        help: "part of filecache_max that may be dirty before writers are slowed",
        reason: "a fifth keeps a flush short; a cache of dirty pages alone would have nothing to evict",
    },
    Tunable {
        name: Name::SyncIntervalMs,
        text: "sync_interval_ms",
        unit: Unit::Number {
            least: 10,
            most: 3_600_000,
        },
        default: "30000",
        help: "milliseconds that a page may be dirty, for files that do not say otherwise",
        reason: "the syncer of HP-UX comes every 30 s; below 10 ms a write would hardly be behind",
    },
    Tunable {
        name: Name::ReadAheadMax,
        text: "read_ahead_max",
        unit: Unit::Bytes {
            least: 0,
            most: 64 * MB,
        },
        default: "2MB",
        help: "largest window of read-ahead of one stream; 0 for none",
        reason: "2 MB is where rates of devices stop growing with request size; each stream may hold one and a half windows",
    },
];
