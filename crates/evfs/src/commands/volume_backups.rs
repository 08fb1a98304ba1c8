//! `evfs volume header list` and `prune`: the backups that commands leave in the backup directory.

use super::confirm::{Yes, confirm};
use cli::document::Document;
use cli::table::Column::{Left, Right};
use cli::{Context, output, table};
use schemars::JsonSchema;
use serde::Serialize;
use stack::backups::{self, Backup};
use stack::{Result, exit};
use std::time::{SystemTime, UNIX_EPOCH};

/// The backups in the backup directory.
#[derive(Serialize, JsonSchema)]
pub struct Backups {
    /// The backup directory.
    dir: String,
    /// Its backups, those of a volume together and the newest of them first.
    backups: Vec<ShownBackup>,
}

/// A backup that EVFS made.
#[derive(Serialize, JsonSchema)]
struct ShownBackup {
    /// Path of the backup.
    file: String,
    /// File name of the device that was overwritten.
    of: String,
    /// Operation that overwrote it: `overwritten`, `before-restore` or `erased`.
    reason: &'static str,
    /// UUID of the volume whose header the backup holds; null for other content.
    uuid: Option<String>,
    /// Size in bytes.
    bytes: u64,
    /// Time of the backup, in seconds since 1970.
    written: u64,
    /// Whether it is the newest of its volume.
    newest: bool,
}

/// Result of deleting old backups.
#[derive(Serialize, JsonSchema)]
pub struct Pruned {
    /// Paths of the deleted backups.
    removed: Vec<String>,
    /// Their size in bytes.
    bytes: u64,
    /// Number of backups that are kept.
    kept: usize,
}

pub const BACKUPS: Document<Backups> = Document::new("evfs/volume-backups/1");
pub const PRUNED: Document<Pruned> = Document::new("evfs/volume-backups-pruned/1");

pub fn list(context: &Context) -> Result<u8> {
    let dir = context.settings.backup_dir();
    let found = backups::list(&context.settings)?;
    let content = Backups {
        dir: dir.display().to_string(),
        backups: found.iter().map(shown).collect(),
    };
    output::show(context.json, &BACKUPS, &content, || {
        if found.is_empty() {
            return format!("no backups in {}", dir.display());
        }
        let heading = ["FILE", "SIZE", "AGE", "VOLUME", ""].map(str::to_owned);
        let now = SystemTime::now();
        let rows = found.iter().map(|backup| cells(backup, now));
        let rows: Vec<_> = std::iter::once(heading).chain(rows).collect();
        let columns = [Left(16), Right(8), Right(8), Left(36), Left(0)];
        format!("{}in {}", table::text(&columns, &rows), dir.display())
    });
    Ok(exit::OK)
}

pub fn prune(context: &Context, keep: u32, yes: Yes) -> Result<u8> {
    let found = backups::list(&context.settings)?;
    let keep = usize::try_from(keep).unwrap_or(usize::MAX);
    let (old, kept): (Vec<_>, Vec<_>) = found.iter().partition(|backup| backup.newer >= keep);
    let bytes: u64 = old.iter().map(|backup| backup.bytes).sum();
    let dir = context.settings.backup_dir();
    if !old.is_empty() {
        let what = format!(
            "This deletes {} backups ({}) in {}, and keeps the {} of each volume",
            old.len(),
            output::size(bytes),
            dir.display(),
            if keep == 1 {
                "newest".into()
            } else {
                format!("newest {keep}")
            }
        );
        confirm(yes.yes, &what, &dir.display().to_string())?;
    }
    for backup in &old {
        backups::delete(backup)?;
        output::changed();
    }
    let removed: Vec<String> = old.iter().map(|b| b.file.display().to_string()).collect();
    let content = Pruned {
        removed,
        bytes,
        kept: kept.len(),
    };
    output::show(context.json, &PRUNED, &content, || match old.len() {
        0 => format!("nothing to delete; {} backups are kept", kept.len()),
        count => format!(
            "deleted {count} backups ({}); {} are kept",
            output::size(bytes),
            kept.len()
        ),
    });
    Ok(exit::OK)
}

fn shown(backup: &Backup) -> ShownBackup {
    let written = backup.written.duration_since(UNIX_EPOCH);
    ShownBackup {
        file: backup.file.display().to_string(),
        of: backup.of.clone(),
        reason: backup.reason.word(),
        uuid: backup.uuid.clone(),
        bytes: backup.bytes,
        written: written.map_or(0, |time| time.as_secs()),
        newest: backup.newer == 0,
    }
}

fn cells(backup: &Backup, now: SystemTime) -> [String; 5] {
    let name = backup.file.file_name().unwrap_or_default();
    let age = now.duration_since(backup.written).unwrap_or_default();
    let newest = if backup.newer == 0 { "newest" } else { "" };
    [
        name.to_string_lossy().escape_debug().to_string(),
        output::size(backup.bytes),
        format!("{} days", age.as_secs() / 86_400),
        backup.uuid.clone().unwrap_or_else(|| "-".into()),
        newest.into(),
    ]
}
