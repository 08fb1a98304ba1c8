//! Answers to requests to a file system. Their serialized form is published (`docs/schemas/`).

use crate::text::{json_of, uuid_text};
use ::fs::{BLOCK_BYTES, Difference, DifferenceKind, FORMAT_VERSION, Fs, TreeId, TreeRecord};
use schemars::JsonSchema;
use serde::Serialize;

/// A fileset or a snapshot.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ShownFileset {
    /// Number of the fileset; null in a dry run that cannot know it.
    pub id: Option<u32>,
    /// Name of the fileset.
    pub name: String,
    /// Name of the fileset that this is a snapshot of.
    pub snapshot_of: Option<String>,
    /// Time of creation, in seconds since 1970.
    pub created: i64,
    /// Bytes of file data.
    pub used_bytes: u64,
    /// Number of files, directories and all other objects.
    pub used_inodes: u64,
    /// Whether a snapshot is protected from removal.
    pub held: bool,
    /// Whether a fileset is receiving a snapshot, and can be used when that is complete.
    pub receiving: bool,
    /// Bytes of file data that only this snapshot needs, so that removing it would free them; null
    /// for a fileset. Only `fileset list` counts them.
    pub own_bytes: Option<u64>,
    /// Limit of `used_bytes`.
    pub quota_bytes: Option<u64>,
    /// Limit of `used_inodes`.
    pub quota_inodes: Option<u64>,
    /// Method by which new content is compressed: `lz4` or `zstd`. Null: only files with the flag for
    /// it are compressed.
    pub compression: Option<String>,
    /// Cell whose clients may read a new fileset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cell: Option<String>,
}

/// Filesets and snapshots of a file system.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Filesets {
    /// All filesets and snapshots.
    pub filesets: Vec<ShownFileset>,
}

/// Use of space in a file system, in bytes.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ShownUsage {
    /// UUID of the file system.
    pub uuid: String,
    /// Label of the file system.
    pub label: String,
    /// Version of the format on the device. A program refuses every version but its own.
    pub format_version: u32,
    /// Feature flags that a program may ignore if it does not know them.
    pub features_compatible: u64,
    /// Feature flags that a program needs to change the file system.
    pub features_read_compatible: u64,
    /// Feature flags that a program needs to use the file system at all.
    pub features_incompatible: u64,
    /// Size of the file system.
    pub size_bytes: u64,
    /// Free bytes, including those that are reserved.
    pub free_bytes: u64,
    /// Free bytes that files can use.
    pub available_bytes: u64,
    /// Length of the largest run of free space.
    pub largest_free_bytes: u64,
    /// Number of runs of free space.
    pub free_runs: u64,
    /// Bytes by which the file system grows when it is next mounted, because its device has grown.
    pub growable_bytes: u64,
    /// Space that the metadata occupies.
    pub metadata_bytes: u64,
    /// Space that the journal occupies.
    pub journal_bytes: u64,
    /// Number of files, directories and all other objects of all filesets.
    pub inodes: u64,
    /// All filesets and snapshots.
    pub filesets: Vec<ShownFileset>,
}

/// Result of rolling a fileset back.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct RolledBack {
    /// Name of the fileset.
    pub fileset: String,
    /// Name of the snapshot that the fileset now equals.
    pub snapshot: String,
    /// Name of the new snapshot of the state before, if one was taken.
    pub kept: Option<String>,
}

/// Differences between two states of a fileset, in the order of their paths.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Differences {
    /// All differences.
    pub differences: Vec<ShownDifference>,
}

/// A difference between two states of a fileset.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ShownDifference {
    /// Kind: `created`, `removed`, `renamed` or `changed`.
    pub kind: &'static str,
    /// Path from the root, in the second state unless it was removed; empty for the root itself.
    /// Bytes that are not UTF-8 are replaced.
    pub path: String,
    /// Path in the first state of a renamed file.
    pub from: Option<String>,
    /// Whether it is a directory.
    pub directory: bool,
    /// Whether the content of a file has changed that both states have.
    pub content: bool,
    /// Whether the mode, the owner, the time of modification or an extended attribute has changed.
    pub attributes: bool,
}

impl From<Difference> for ShownDifference {
    fn from(one: Difference) -> ShownDifference {
        let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        ShownDifference {
            kind: match one.kind {
                DifferenceKind::Created => "created",
                DifferenceKind::Removed => "removed",
                DifferenceKind::Renamed => "renamed",
                DifferenceKind::Changed => "changed",
            },
            path: text(&one.path),
            from: one.from.as_deref().map(text),
            directory: one.directory,
            content: one.content,
            attributes: one.attributes,
        }
    }
}

/// A part of the differences, as a process sends it.
#[derive(Debug, Serialize)]
pub(super) struct Part {
    pub differences: Vec<ShownDifference>,
    /// Path of the last difference, if there are more.
    pub more: Option<Vec<u8>>,
}

impl Part {
    /// Bytes of the JSON text of the differences in one message, which has up to 8 MiB.
    pub const BYTES: usize = 6 << 20;

    /// Compares two states, and returns a part of the differences: those whose paths are after
    /// `after`. A part has about `most` bytes at most, and ends between two paths.
    pub fn of(
        fs: &Fs,
        (first, second): (TreeId, TreeId),
        after: Option<&[u8]>,
        most: usize,
    ) -> ::fs::Result<Part> {
        let (mut differences, mut last, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut more = false;
        fs.diff(first, second, |one| {
            if after.is_some_and(|after| one.path[..] <= *after) {
                return Ok(true);
            }
            let path = one.path.clone();
            let one = ShownDifference::from(one);
            let size = json_of(&one).to_string().len() + 1;
            more = bytes + size > most && path != last && !differences.is_empty();
            if !more {
                bytes += size;
                last = path;
                differences.push(one);
            }
            Ok(!more)
        })?;
        let more = more.then_some(last);
        Ok(Part { differences, more })
    }
}

/// Answer to the removal of a fileset, a snapshot or a volume.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Removed {
    /// Name of the removed object.
    pub removed: String,
}

impl ShownFileset {
    /// Describes a fileset, given its record and those of all.
    pub(super) fn of(
        id: TreeId,
        record: &TreeRecord,
        all: &[(TreeId, TreeRecord)],
    ) -> ShownFileset {
        let origin = all.iter().find(|(id, _)| *id == record.origin);
        let limit = |n: u64, unit: u64| (n > 0).then(|| n * unit);
        ShownFileset {
            id: Some(id),
            name: record.name.clone(),
            snapshot_of: origin.map(|(_, r)| r.name.clone()),
            created: record.created.seconds,
            used_bytes: record.used_blocks * BLOCK_BYTES,
            used_inodes: record.used_inodes,
            held: record.held,
            receiving: record.receiving.is_some(),
            own_bytes: None,
            quota_bytes: limit(record.quota_blocks, BLOCK_BYTES),
            quota_inodes: limit(record.quota_inodes, 1),
            compression: record.compression.map(|method| method.to_string()),
            cell: None,
        }
    }

    /// Describes a fileset after a planned change; a new one has no number yet.
    pub(super) fn planned(fs: &Fs, id: Option<TreeId>, record: &TreeRecord) -> ShownFileset {
        ShownFileset {
            id,
            ..ShownFileset::of(0, record, &fs.filesets())
        }
    }

    /// Finds the fileset `name`.
    pub(super) fn named(fs: &Fs, name: &str) -> Option<ShownFileset> {
        let all = fs.filesets();
        let found = all.iter().find(|(_, record)| record.name == name);
        found.map(|(id, record)| ShownFileset::of(*id, record, &all))
    }
}

impl Filesets {
    /// Lists the filesets and snapshots of a file system with the space of each snapshot.
    pub(super) fn with_space(fs: &Fs) -> ::fs::Result<Filesets> {
        let mut all = Filesets::of(fs);
        for one in &mut all.filesets {
            if let (Some(id), Some(_)) = (one.id, &one.snapshot_of) {
                // One that was removed in the meantime stays in the list.
                let counted = fs.snapshot_blocks(id);
                one.own_bytes = match counted {
                    Err(error) if error.kind() == ::fs::Kind::NotFound => None,
                    counted => Some(counted? * BLOCK_BYTES),
                };
            }
        }
        Ok(all)
    }

    /// Lists the filesets and snapshots of a file system.
    pub(super) fn of(fs: &Fs) -> Filesets {
        let all = fs.filesets();
        let rows = all.iter().map(|(id, r)| ShownFileset::of(*id, r, &all));
        Filesets {
            filesets: rows.collect(),
        }
    }
}

impl ShownUsage {
    /// Reads the use of space of a file system.
    pub(super) fn of(fs: &Fs) -> ShownUsage {
        let superblock = fs.superblock();
        let usage = fs.usage();
        ShownUsage {
            uuid: uuid_text(&superblock.uuid),
            label: superblock.label,
            // The superblock of any other version is refused.
            format_version: u32::from(FORMAT_VERSION),
            features_compatible: superblock.features.compatible,
            features_read_compatible: superblock.features.read_compatible,
            features_incompatible: superblock.features.incompatible,
            size_bytes: usage.blocks * BLOCK_BYTES,
            free_bytes: usage.free * BLOCK_BYTES,
            available_bytes: usage.available * BLOCK_BYTES,
            largest_free_bytes: usage.largest_free * BLOCK_BYTES,
            free_runs: usage.free_runs,
            growable_bytes: fs.growable_bytes(),
            metadata_bytes: usage.metadata * BLOCK_BYTES,
            journal_bytes: usage.journal * BLOCK_BYTES,
            inodes: usage.inodes,
            filesets: Filesets::of(fs).filesets,
        }
    }
}
