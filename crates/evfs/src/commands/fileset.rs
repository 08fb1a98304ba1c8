//! `evfs fileset`: the filesets of a file system.

use super::confirm::or_force;
use super::device::{DeviceArgs, named};
use super::dry_run::DryRun;
use super::names;
use cli::Context;
use cli::output::{self, size};
use cli::table::Column::{self, Left, Right};
use serde_json::Value;
use stack::control::{FsRequest, Limits};
use stack::filesystem::request;
use stack::{Result, exit, parse_size};
use std::fmt::Write as _;

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
    /// Set or show the limits of a fileset
    #[command(after_help = "\
Existing content is kept even if it exceeds a new limit.

Examples:
  evfs fileset quota disk.img home 10G --files 100000
  evfs fileset quota disk.img home 0                   remove the limit
  evfs fileset quota disk.img home                     show the limits")]
    Quota {
        #[command(flatten)]
        on: DeviceArgs,
        /// Name of the fileset
        #[arg(add = names::filesets())]
        name: String,
        /// Maximum size of file data, like 10G; 0 for no limit
        #[arg(value_parser = parse_size)]
        size: Option<u64>,
        /// The former form of SIZE
        #[arg(long, value_name = "SIZE", value_parser = parse_size, hide = true, conflicts_with = "size")]
        bytes: Option<u64>,
        /// Maximum number of files, directories and other objects; 0 for no limit
        #[arg(long, value_name = "N")]
        files: Option<u64>,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Create a read-only snapshot of a fileset
    #[command(after_help = "\
A snapshot shares its data with the fileset until the fileset changes. It is mounted like a fileset, \
read-only.

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

pub fn run(context: &Context, command: Command) -> Result<u8> {
    let (on, question, dry_run) = match command {
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
        Command::Quota {
            on,
            name,
            size,
            bytes,
            files,
            dry_run,
        } => {
            let quota = limits(size.or(bytes), files);
            (on, FsRequest::Quota { name, quota }, Some(dry_run))
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
        Command::Remove {
            on,
            name,
            force,
            dry_run,
        } => (on, FsRequest::Remove { name, force }, Some(dry_run)),
    };
    let context = &DryRun::context_of(dry_run, context);
    let on = on.resolved(context)?;
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
    output::show(context.json, &value, || match &value["removed"] {
        Value::String(name) => format!("removed {name}"),
        _ if value["filesets"].is_array() => table(&value),
        _ => cli::table::text(&COLUMNS, &[row(&value)]),
    });
    Ok(exit::OK)
}

fn limits(bytes: Option<u64>, inodes: Option<u64>) -> Limits {
    Limits { bytes, inodes }
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
        let _ = write!(text, "  snapshot of {of}");
    }
    if let Some(bytes) = number("quota_bytes") {
        let _ = write!(text, "  quota {}", size(bytes));
    }
    if let Some(files) = number("quota_inodes") {
        let _ = write!(text, "  quota {files} files and directories");
    }
    if let Some(cell) = fileset["cell"].as_str() {
        let _ = write!(
            text,
            "\nClients of the cell {cell} may read it. To restrict access: \
             evfs cell acl set DEVICE {name} / system:anyuser none"
        );
    }
    let id = format!("{} ", number("id").unwrap_or(0));
    [id, name.to_owned(), text]
}
