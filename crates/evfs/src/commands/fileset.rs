//! `evfs fileset`: the filesets of a file system.

use super::confirm::{Yes, confirm, or_force};
use super::device::{DeviceArgs, named};
use super::dry_run::DryRun;
use super::{fileset_diff, fileset_quota, fileset_transfer, names};
use cli::Context;
use cli::document::Document;
use cli::output::{self, size};
use cli::table::Column::{self, Left, Right};
use serde_json::Value;
use stack::control::{FsRequest, Limits};
use stack::filesystem::{Filesets, Removed, RolledBack, ShownFileset, request};
use stack::{Result, exit, parse_size, utc};
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(clap::Subcommand)]
pub enum Command {
    /// Create an empty fileset
    #[command(after_help = "\
If DEVICE is a cell, the fileset becomes a volume of the cell: every AFS client that may call can read it, \
and change it if the cell is served with --anonymous-write, until `evfs cell acl set` limits that.

Examples:
  evfs fileset create disk.img home --quota 5G
  evfs fileset create /mnt home        in the file system that is mounted there")]
    Create {
        #[command(flatten)]
        on: DeviceArgs,
        /// Name of the fileset
        #[arg(value_parser = named())]
        name: String,
        /// Maximum size of file data, like 10G; 0 for no limit
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        quota: Option<u64>,
        /// Maximum number of files, directories and other objects; 0 for no limit
        #[arg(long, value_name = "N")]
        files: Option<u64>,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// List filesets and snapshots
    List {
        #[command(flatten)]
        on: DeviceArgs,
    },
    /// Rename a fileset or a snapshot
    Rename {
        #[command(flatten)]
        on: DeviceArgs,
        /// Old name
        #[arg(add = names::filesets())]
        name: String,
        /// New name
        #[arg(value_parser = named())]
        to: String,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Set or show the limits of a fileset, and of users and groups in it
    #[command(after_help = "\
A limit of the fileset covers all its files. With --user or --group, a limit covers the files that the user \
or the group owns in this fileset, whichever user writes them; a change of the owner needs room at the new one. \
Existing content is kept even if it exceeds a new limit. Names and attributes count as well as content.

With the first limit for a user or a group, the files of the fileset are counted, while changes wait. \
Versions of EVFS that do not know such limits open the file system read-only from then on.

There are no other projects than filesets: the limit of a fileset is what `project quota` means elsewhere.

Examples:
  evfs fileset quota disk.img home 10G --files 100000
  evfs fileset quota disk.img home 0                   remove the limit
  evfs fileset quota disk.img home                     show the limits
  evfs fileset quota disk.img home --user 1000 2G --files 5000
  evfs fileset quota disk.img home --group 1000 0 --files 0
  evfs fileset quota disk.img home --report            show what each user and group uses")]
    Quota(fileset_quota::QuotaArgs),
    /// Set the compression of a fileset
    #[command(after_help = "\
New content is compressed, in chunks of 64 KiB, where that saves space; content that exists stays as it is \
until it is written again. Files with the flag of `chattr +m` are excepted. With `off`, only files with the \
flag of `chattr +c` are compressed. Earlier versions of EVFS refuse a file system that has used compression. \
The length of compressed data reveals something about its content: see docs/guide/security.md.

Examples:
  evfs fileset compression disk.img home zstd
  evfs fileset compression /mnt home off")]
    Compression {
        #[command(flatten)]
        on: DeviceArgs,
        /// Name of the fileset
        #[arg(add = names::filesets())]
        name: String,
        /// Method: lz4 is faster, zstd saves more
        #[arg(value_parser = ["off", "lz4", "zstd"])]
        method: String,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Create a read-only snapshot of a fileset
    #[command(after_help = "\
A snapshot shares its data with the fileset until the fileset changes. While the fileset is mounted, it can \
be read in the directory .snapshots/NAME of the mount; it can also be mounted itself, read-only.

Examples:
  evfs fileset snapshot disk.img main monday")]
    Snapshot {
        #[command(flatten)]
        on: DeviceArgs,
        /// Name of the fileset
        #[arg(add = names::filesets())]
        fileset: String,
        /// Name of the snapshot
        #[arg(value_parser = named())]
        name: String,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Create a fileset with the content of a snapshot
    #[command(after_help = "\
The new fileset can be written. It shares its data with the snapshot until either changes, and takes space \
for names and attributes only. The snapshot can be removed later.

Examples:
  evfs fileset clone disk.img monday trial")]
    Clone {
        #[command(flatten)]
        on: DeviceArgs,
        /// Name of the snapshot
        #[arg(add = names::filesets())]
        snapshot: String,
        /// Name of the new fileset
        #[arg(value_parser = named())]
        name: String,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Make a fileset equal to one of its snapshots
    #[command(after_help = "\
Later changes are undone. A snapshot of the state before is taken first, unless --no-keep is given; rolling \
back to that one undoes the rollback. Later snapshots stay. The fileset must not be mounted. If the command \
is interrupted or fails halfway, the next mount completes it.

Examples:
  evfs fileset rollback disk.img main monday
  evfs fileset rollback disk.img main monday --keep tuesday")]
    Rollback {
        #[command(flatten)]
        on: DeviceArgs,
        /// Name of the fileset
        #[arg(add = names::filesets())]
        fileset: String,
        /// Name of the snapshot
        #[arg(add = names::filesets())]
        snapshot: String,
        /// Name of the snapshot of the state before [default: before-rollback- and the time]
        #[arg(long, value_name = "NAME", value_parser = named())]
        keep: Option<String>,
        /// Take no snapshot of the state before: later changes are lost
        #[arg(long, conflicts_with = "keep")]
        no_keep: bool,
        #[command(flatten)]
        yes: Yes,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Show the differences between two snapshots, or between a snapshot and its fileset
    #[command(after_help = "\
The result comes from the metadata alone, in time proportional to the number of changes. Each line is a sign \
and a path: + created, - removed, M changed, R renamed. The content of a renamed directory is not listed.
The comparison with a fileset that changes at the same time is approximate.

Examples:
  evfs fileset diff disk.img monday tuesday
  evfs fileset diff /mnt monday main              changes since the snapshot")]
    Diff(fileset_diff::DiffArgs),
    /// Send a snapshot as a stream
    Send(fileset_transfer::SendArgs),
    /// Receive a snapshot from a stream
    Receive(fileset_transfer::ReceiveArgs),
    /// Protect a snapshot from removal
    #[command(after_help = "\
A held snapshot is not removed until `evfs fileset release`. Versions of EVFS that do not know this refuse \
the file system from then on.")]
    Hold {
        #[command(flatten)]
        on: DeviceArgs,
        /// Name of the snapshot
        #[arg(add = names::filesets())]
        name: String,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// End the protection of a snapshot from removal
    Release {
        #[command(flatten)]
        on: DeviceArgs,
        /// Name of the snapshot
        #[arg(add = names::filesets())]
        name: String,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Remove a fileset or a snapshot
    Remove {
        #[command(flatten)]
        on: DeviceArgs,
        /// Name of the fileset or snapshot
        #[arg(add = names::filesets())]
        name: String,
        /// Remove the fileset even if it is not empty
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

pub const FILESET: Document<ShownFileset> = Document::new("evfs/fileset/1");
pub const FILESETS: Document<Filesets> = Document::new("evfs/filesets/1");
pub const REMOVED: Document<Removed> = Document::new("evfs/fileset-remove/1");
pub const ROLLED_BACK: Document<RolledBack> = Document::new("evfs/fileset-rollback/1");

pub fn run(context: &Context, command: Command) -> Result<u8> {
    let mut confirmed = None;
    let (on, question, dry_run) = match command {
        Command::Diff(args) => return fileset_diff::run(context, args),
        Command::Quota(args) => {
            let of_fileset = |value: &Value| {
                output::relay(context.json, &FILESET, value, || line(value));
            };
            return fileset_quota::run(context, args, &of_fileset);
        }
        Command::Send(args) => return fileset_transfer::send(context, args),
        Command::Receive(args) => return fileset_transfer::receive(context, args),
        Command::List { on } => (on, FsRequest::List, None),
        Command::Create {
            on,
            name,
            quota,
            files,
            dry_run,
        } => {
            let quota = limits(quota, files);
            (on, FsRequest::Create { name, quota }, Some(dry_run))
        }
        Command::Rename {
            on,
            name,
            to,
            dry_run,
        } => {
            let rename = FsRequest::Rename { from: name, to };
            (on, rename, Some(dry_run))
        }
        Command::Compression {
            on,
            name,
            method,
            dry_run,
        } => {
            let method = Some(method).filter(|method| method != "off");
            (on, FsRequest::Compression { name, method }, Some(dry_run))
        }
        Command::Snapshot {
            on,
            fileset,
            name,
            dry_run,
        } => {
            let snapshot = FsRequest::Snapshot { of: fileset, name };
            (on, snapshot, Some(dry_run))
        }
        Command::Clone {
            on,
            snapshot,
            name,
            dry_run,
        } => (on, FsRequest::Clone { of: snapshot, name }, Some(dry_run)),
        Command::Rollback {
            on,
            fileset,
            snapshot,
            keep,
            no_keep,
            yes,
            dry_run,
        } => {
            let keep = keep.or_else(|| (!no_keep).then(way_back));
            confirmed = Some(yes);
            let to = snapshot;
            (on, FsRequest::Rollback { fileset, to, keep }, Some(dry_run))
        }
        Command::Hold { on, name, dry_run } => {
            let held = true;
            (on, FsRequest::Hold { name, held }, Some(dry_run))
        }
        Command::Release { on, name, dry_run } => {
            let held = false;
            (on, FsRequest::Hold { name, held }, Some(dry_run))
        }
        Command::Remove {
            on,
            name,
            force,
            dry_run,
        } => (on, FsRequest::Remove { name, force }, Some(dry_run)),
    };
    let context = &DryRun::context_of(dry_run, context);
    let on = on.resolved(context)?;
    if let (Some(Yes { yes }), FsRequest::Rollback { fileset, to, keep }) = (confirmed, &question) {
        let lost = match keep {
            Some(name) => format!("undoes all later changes; snapshot `{name}` keeps them"),
            None => "permanently discards all later changes".to_owned(),
        };
        let what = format!("This makes `{fileset}` equal to snapshot `{to}`, and {lost}");
        confirm(yes, &what, fileset)?;
    }
    let answer = |question: &FsRequest| on.with(context, |target| request(target, question));
    let value = match &question {
        FsRequest::Remove { name, force } => or_force(*force, name, |force| {
            let name = name.clone();
            answer(&FsRequest::Remove { name, force })
        })?,
        other => answer(other)?,
    };
    if !matches!(question, FsRequest::List) {
        output::changed();
    }
    let json = context.json;
    match &question {
        FsRequest::List => output::relay(json, &FILESETS, &value, || table(&value)),
        FsRequest::Remove { name, .. } => {
            output::relay(json, &REMOVED, &value, || format!("removed {name}"));
        }
        FsRequest::Rollback { fileset, to, keep } => {
            output::relay(json, &ROLLED_BACK, &value, || {
                let kept = keep.as_ref().map_or_else(String::new, |name| {
                    format!("; the state before is snapshot {name}")
                });
                format!("{fileset} is as in snapshot {to}{kept}")
            });
        }
        _ => output::relay(json, &FILESET, &value, || line(&value)),
    }
    Ok(exit::OK)
}

fn limits(bytes: Option<u64>, inodes: Option<u64>) -> Limits {
    Limits { bytes, inodes }
}

/// Formats the line of a fileset.
fn line(value: &Value) -> String {
    cli::table::text(&COLUMNS, &[row(value)])
}

/// Formats a line for each fileset.
pub fn table(value: &Value) -> String {
    let all = value["filesets"].as_array().into_iter().flatten();
    let rows: Vec<_> = all.map(row).collect();
    cli::table::text(&COLUMNS, &rows)
}

const COLUMNS: [Column; 3] = [Right(5), Left(21), Left(0)];

fn row(fileset: &Value) -> [String; 3] {
    let number = |key: &str| fileset[key].as_u64();
    let name = fileset["name"].as_str().unwrap_or_default();
    let mut text = format!(
        "{} in {} files and directories",
        size(number("used_bytes").unwrap_or(0)),
        number("used_inodes").unwrap_or(0),
    );
    if let Some(of) = fileset["snapshot_of"].as_str() {
        let taken = fileset["created"].as_i64().unwrap_or(0);
        let _ = write!(text, "  snapshot of {of}, {}", utc(taken));
        if let Some(bytes) = number("own_bytes") {
            let _ = write!(text, ", {} of its own", size(bytes));
        }
        if fileset["held"] == true {
            text.push_str(", held");
        }
    }
    if fileset["receiving"] == true {
        text.push_str("  receiving a snapshot");
    }
    if let Some(bytes) = number("quota_bytes") {
        let _ = write!(text, "  quota {}", size(bytes));
    }
    if let Some(files) = number("quota_inodes") {
        let _ = write!(text, "  quota {files} files and directories");
    }
    if let Some(method) = fileset["compression"].as_str() {
        let _ = write!(text, "  compression {method}");
    }
    if let Some(cell) = fileset["cell"].as_str() {
        let _ = write!(
            text,
            "\nClients of the cell {cell} may read it. To restrict access: \
             evfs cell acl set DEVICE {name} / system:anyuser none"
        );
    }
    // A dry run may not know the number.
    let id = number("id").map_or_else(|| "- ".to_owned(), |id| format!("{id} "));
    [id, name.to_owned(), text]
}

/// Name of the snapshot that keeps the state before a rollback.
fn way_back() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = utc(now.map_or(0, |now| now.as_secs() as i64));
    let digits: String = now.chars().filter(char::is_ascii_digit).collect();
    format!("before-rollback-{digits}")
}
