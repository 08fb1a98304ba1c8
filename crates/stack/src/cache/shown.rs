//! Answers about the file cache. Their serialized form is published (`docs/schemas/`).

use cache::tunables::{Tunable, Value as TunableValue};
use cache::{Attributes, Backing, CacheStats, Counts, FileStats};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Settings and statistics of the cache of one process.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ShownCache {
    /// ID of the process.
    pub pid: u32,
    /// Memory of the machine in bytes.
    pub memory_bytes: u64,
    /// Kind of memory behind the frames, in words.
    pub frames: &'static str,
    /// Placement of frames on NUMA nodes, in words.
    pub nodes: String,
    /// Whether frames may be swapped out, in words.
    pub swap: &'static str,
    /// Whether the cache shrinks when the machine is short of memory, in words.
    pub shortage: String,
    /// Statistics of the cache.
    pub stats: ShownStats,
    /// All settings.
    pub settings: Vec<ShownSetting>,
    /// Open files, if they were requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<Vec<ShownFile>>,
}

/// A setting of the cache.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ShownSetting {
    /// Name of the setting.
    pub name: &'static str,
    /// Value in force.
    pub value: String,
    /// Built-in value.
    pub default: &'static str,
    /// Effect of the setting.
    pub help: &'static str,
}

/// Statistics of a cache.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ShownStats {
    #[serde(flatten)]
    pub counts: ShownCounts,
    /// Bytes in allocated frames.
    pub used_bytes: u64,
    /// Limit of bytes in allocated frames.
    pub max_bytes: u64,
    /// Bytes of memory behind frames, including free ones.
    pub resident_bytes: u64,
    /// Size of the index in bytes.
    pub index_bytes: u64,
    /// Bytes in frames that hold metadata.
    pub metadata_bytes: u64,
    /// Bytes in windows of mapped files, which count towards no limit.
    pub mapped_bytes: u64,
    /// Bytes that are dirty or under write-back.
    pub dirty_bytes: u64,
    /// Age of the oldest dirty page in milliseconds.
    pub oldest_dirty_ms: Option<u64>,
}

/// Statistics of a file in the cache.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ShownFile {
    #[serde(flatten)]
    pub counts: ShownCounts,
    /// Number of the file in its volume.
    pub file: u64,
    /// Size in bytes.
    pub size: u64,
    /// Whether the file holds metadata.
    pub metadata: bool,
    /// Caching attributes by name.
    #[schemars(with = "BTreeMap<String, String>")]
    pub attributes: Value,
    /// Bytes in frames, including pages being loaded.
    pub resident_bytes: u64,
    /// Bytes in the window of a mapped file.
    pub mapped_bytes: u64,
    /// Bytes that are dirty or under write-back.
    pub dirty_bytes: u64,
    /// Age of the oldest dirty page in milliseconds.
    pub oldest_dirty_ms: Option<u64>,
}

/// Counters of a cache or a file.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ShownCounts {
    /// Page reads that found the page resident.
    pub hits: u64,
    /// Page reads that had to load the page.
    pub misses: u64,
    /// Page reads that joined a load in progress.
    pub joins: u64,
    /// Pages written.
    pub writes: u64,
    /// Pages copied to another frame because the old one was held.
    pub copies_on_write: u64,
    /// Pages loaded in anticipation of a read.
    pub read_ahead: u64,
    /// Pages read ahead that were used later.
    pub read_ahead_used: u64,
    /// Pages read ahead that were evicted before their first use.
    pub read_ahead_wasted: u64,
    /// Bytes read bypassing the cache.
    pub direct_bytes_read: u64,
    /// Bytes written bypassing the cache.
    pub direct_bytes_written: u64,
    /// Milliseconds that writers were throttled.
    pub throttled_ms: u64,
    /// Pages that left the cache, by reason.
    pub left: ShownEvictions,
}

/// Pages that left the cache, by reason.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ShownEvictions {
    /// Evicted to make room for others.
    pub for_room: u64,
    /// Evicted because the machine was short of memory.
    pub for_want_of_memory: u64,
    /// Evicted because the streams of their file had taken more than their share.
    pub by_stealback: u64,
    /// Dropped on request, or because of a write that bypassed the cache.
    pub dropped: u64,
    /// Dropped behind the reader of a file that is not to be cached.
    pub behind_a_reader: u64,
    /// Dropped because their file was truncated.
    pub cut_off: u64,
    /// Dropped because their file was removed.
    pub with_removed_files: u64,
    /// Dropped because their volume was closed.
    pub with_closed_volumes: u64,
}

/// Answer to a flush.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Flushed {
    /// Bytes that are dirty again.
    pub dirty_bytes: u64,
}

/// Answer to a drop.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Dropped {
    /// Bytes of the pages that were dropped.
    pub dropped_bytes: u64,
}

impl ShownSetting {
    pub(super) fn of((row, value): (&'static Tunable, TunableValue)) -> ShownSetting {
        ShownSetting {
            name: row.text,
            value: value.to_string(),
            default: row.default,
            help: row.help,
        }
    }
}

impl ShownStats {
    pub(super) fn of(stats: &CacheStats) -> ShownStats {
        ShownStats {
            counts: ShownCounts::of(&stats.counts),
            used_bytes: stats.used_bytes,
            max_bytes: stats.max_bytes,
            resident_bytes: stats.resident_bytes,
            index_bytes: stats.index_bytes,
            metadata_bytes: stats.metadata_bytes,
            mapped_bytes: stats.mapped_bytes,
            dirty_bytes: stats.dirty_bytes,
            oldest_dirty_ms: stats.oldest_dirty_ms,
        }
    }
}

impl ShownFile {
    pub(super) fn of(file: &FileStats) -> ShownFile {
        ShownFile {
            counts: ShownCounts::of(&file.counts),
            file: file.file.0,
            size: file.size,
            metadata: file.metadata,
            attributes: shown_attributes(&file.attributes),
            resident_bytes: file.resident_bytes,
            mapped_bytes: file.mapped_bytes,
            dirty_bytes: file.dirty_bytes,
            oldest_dirty_ms: file.oldest_dirty_ms,
        }
    }
}

impl ShownCounts {
    fn of(counts: &Counts) -> ShownCounts {
        ShownCounts {
            hits: counts.hits,
            misses: counts.misses,
            joins: counts.joins,
            writes: counts.writes,
            copies_on_write: counts.copies_on_write,
            read_ahead: counts.read_ahead,
            read_ahead_used: counts.read_ahead_used,
            read_ahead_wasted: counts.read_ahead_wasted,
            direct_bytes_read: counts.direct_bytes_read,
            direct_bytes_written: counts.direct_bytes_written,
            throttled_ms: counts.throttled_ms,
            left: ShownEvictions {
                for_room: counts.evicted_limit,
                for_want_of_memory: counts.evicted_pressure,
                by_stealback: counts.evicted_stealback,
                dropped: counts.dropped,
                behind_a_reader: counts.left_behind,
                cut_off: counts.cut,
                with_removed_files: counts.unlinked,
                with_closed_volumes: counts.closed,
            },
        }
    }
}

/// Describes the memory behind the frames, in words.
pub(super) fn backing_in_words(backing: Backing) -> &'static str {
    match backing {
        Backing::HugeTmpfs => "2 MiB pages",
        Backing::Memfd => "4 KiB pages: cannot mount a tmpfs with huge pages",
        Backing::Anonymous => "anonymous memory: no other process can map it",
    }
}

/// Formats attributes in the form that `advise` takes.
pub(super) fn shown_attributes(attributes: &Attributes) -> Value {
    attributes
        .values()
        .into_iter()
        .map(|(name, value)| (name.to_owned(), Value::from(value)))
        .collect()
}
