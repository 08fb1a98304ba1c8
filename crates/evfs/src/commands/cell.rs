//! `evfs cell`: cells, their volumes, and their access lists.

use super::cell_shown::{afsd_fuse, describe, describe_list, describe_made, describe_volume, kafs};
use super::confirm::or_force;
use super::device::{DeviceArgs, named};
use super::dry_run::DryRun;
use super::names;
use super::unlock::UnlockArgs;
use cli::Context;
use cli::output;
use serde_json::{Value, json};
use stack::cell::{self, Record};
use stack::control::CellRequest;
use stack::{Error, ProcessCache, Result, control, exit, parse_size};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

#[derive(clap::Subcommand)]
#[command(after_help = CELL_EXAMPLES)]
pub enum Command {
    /// Turn a DEVICE into a cell and print the configuration for clients
    #[command(after_help = "\
A DEVICE without a file system is formatted. One with an EVFS file system keeps its content, and EACH \
OF ITS FILESETS becomes a volume that clients may read, unless access lists say otherwise. A DEVICE \
with other content is refused. Running the command again changes only the addresses.

Examples:
  evfs cell init example.org cell.img --size 10G
  evfs volume create disk.img --size 10G --owner alice && evfs cell init example.org disk.img
  evfs cell init example.org disk7 --listen 10.0.0.1")]
    Init(InitArgs),
    /// Show the state, clients and statistics of cells
    #[command(after_help = "\
Examples:
  evfs cell status                       show all cells that this user serves
  evfs cell status cell --clients
  evfs cell status --watch               every second until interrupted
  evfs cell status cell.img              also works for a cell that is not served")]
    Status(StatusArgs),
    /// Show and change the access list of a directory
    #[command(subcommand)]
    Acl(AclCommand),
    /// Create, list, replicate, limit and remove volumes
    #[command(subcommand)]
    Volume(VolumeCommand),
}

const CELL_EXAMPLES: &str = "\
Examples:
  evfs cell init example.org cell.img --size 10G      print how clients mount the cell
  evfs serve cell.img --anonymous-write --background
  evfs cell volume create cell projects --quota 5G --mount /projects
  evfs cell acl set cell projects / system:anyuser read 10.0.0.0/24 write
  evfs cell status --clients --watch

First steps with both clients, and the security of a cell: docs/guide/cell.md";

#[derive(clap::Args)]
pub struct InitArgs {
    /// Name of the cell, written as a domain name
    name: String,
    #[command(flatten)]
    on: DeviceArgs,
    /// IPv4 address that `evfs serve` uses without --listen; may be repeated [default: 127.0.0.1]
    #[arg(long, value_name = "ADDR")]
    listen: Vec<Ipv4Addr>,
    /// Size of a new file, like 10G; the file is not encrypted
    #[arg(long, value_parser = parse_size)]
    size: Option<u64>,
    #[command(flatten)]
    dry_run: DryRun,
}

#[derive(clap::Args)]
pub struct StatusArgs {
    /// Cell: its DEVICE, or the name of its server [default: all cells that this user serves]
    #[arg(add = names::devices())]
    name: Option<PathBuf>,
    #[command(flatten)]
    unlock: UnlockArgs,
    /// Also show clients, at most the 4,000 that called last
    #[arg(long)]
    clients: bool,
    /// Print every second until interrupted
    #[arg(long)]
    watch: bool,
}

#[derive(clap::Subcommand)]
pub enum AclCommand {
    /// Show the access rights to a directory and the files in it
    Get {
        #[command(flatten)]
        on: DeviceArgs,
        /// Name of the volume
        volume: String,
        /// Directory, relative to the root of the volume
        #[arg(default_value = "/")]
        path: String,
    },
    /// Change the access rights to a directory and the files in it
    #[command(after_help = "\
NAME is system:anyuser for every client, an address, or a prefix such as 10.0.0.0/24. RIGHTS are \
letters: r read, l list, i insert, d delete, w write, k lock, a administer; or the words read (rl), \
write (rlidwk), all (rlidwka), or none, which removes the entry. The rights of all entries that match \
a client add up; negative entries are subtracted from the sum. Directories created in the directory \
later inherit the list.

Regardless of access lists, clients cannot change anything unless the cell is served with --anonymous-write.

Examples:
  evfs cell acl set cell root.cell / system:anyuser read 10.0.0.0/24 write
  evfs cell acl set cell home /alice system:anyuser none 10.0.0.7 all
  evfs cell acl set cell root.cell / 10.0.0.66 all --negative")]
    Set {
        #[command(flatten)]
        on: DeviceArgs,
        /// Name of the volume
        volume: String,
        /// Directory, relative to the root of the volume
        path: String,
        /// Pairs of names and rights
        #[arg(required = true, num_args = 2.., value_names = ["NAME", "RIGHTS"])]
        pairs: Vec<String>,
        /// Set negative entries, which withdraw rights
        #[arg(long)]
        negative: bool,
        /// Start with an empty list
        #[arg(long)]
        clear: bool,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

#[derive(clap::Subcommand)]
pub enum VolumeCommand {
    /// Create an empty volume, and optionally a mount point for it
    #[command(after_help = "\
Every client that may call can read the volume, and change it if the cell is served with \
--anonymous-write, until `evfs cell acl set` limits that.

PATH is a path in the cell: /projects is /afs/CELL/projects on clients. It may lead through mount \
points. Without --mount, create a mount point with `evfs cell volume mount`, or mount the volume by \
its name.

Examples:
  evfs cell volume create cell projects --quota 5G --mount /projects")]
    Create {
        #[command(flatten)]
        on: DeviceArgs,
        /// Name of the volume
        #[arg(value_parser = named())]
        name: String,
        /// Maximum size of file data, like 10G
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        quota: Option<u64>,
        /// Create a mount point at this path in the cell
        #[arg(long, value_name = "PATH")]
        mount: Option<String>,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// List volumes
    List {
        #[command(flatten)]
        on: DeviceArgs,
    },
    /// Create a mount point for a volume
    #[command(after_help = "\
A mount point leads to the replica of the volume if one exists and the path to the mount point leads \
through replicas; otherwise it leads to the volume. With --rw, it always leads to the volume.

Examples:
  evfs cell volume mount cell projects /projects")]
    Mount {
        #[command(flatten)]
        on: DeviceArgs,
        /// Name of the volume
        name: String,
        /// Path in the cell
        path: String,
        /// Always lead to the volume, never to its replica
        #[arg(long)]
        rw: bool,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Create or refresh the read-only replica of a volume
    #[command(after_help = "\
NAME.readonly, or NAME.backup, shows the present content of the volume. When refreshed, it keeps its \
number, and clients that cache parts of it are notified; a file that a client has open and that is no \
longer in it returns errors from then on.

Examples:
  evfs cell volume clone cell projects
  evfs cell volume clone cell projects --backup")]
    Clone {
        #[command(flatten)]
        on: DeviceArgs,
        /// Name of the volume
        name: String,
        /// Create or refresh the backup instead of the replica
        #[arg(long)]
        backup: bool,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Set the size limit of a volume
    #[command(after_help = "\
Existing content is kept even if it exceeds a new limit.

Examples:
  evfs cell volume quota cell projects 10G
  evfs cell volume quota cell projects 0               remove the limit")]
    Quota {
        #[command(flatten)]
        on: DeviceArgs,
        /// Name of the volume
        name: String,
        /// Maximum size of file data; 0 for no limit
        #[arg(value_parser = parse_size)]
        size: u64,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Remove a volume, its replica and its backup; its mount points remain
    Remove {
        #[command(flatten)]
        on: DeviceArgs,
        /// Name of the volume, or of its replica or backup
        name: String,
        /// Remove the volume even if it is not empty
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

pub fn run(context: &Context, command: Command) -> Result<u8> {
    match command {
        Command::Init(args) => init(context, &args),
        Command::Status(args) => status(context, &args),
        Command::Acl(command) => acl(context, command),
        Command::Volume(command) => volume(context, command),
    }
}

fn init(context: &Context, args: &InitArgs) -> Result<u8> {
    let context = &args.dry_run.context(context);
    let on = args.on.resolved_or_new(context, args.size)?;
    let cache = ProcessCache::new(&context.settings)?;
    let listen = match args.listen.as_slice() {
        [] => vec![Ipv4Addr::LOCALHOST],
        given => given.to_vec(),
    };
    let record = Record {
        name: args.name.clone(),
        listen,
    };
    let made = on.with(context, |target| {
        cell::init(target, &record, args.size, &cache)
    })?;
    let mut value = json!(made);
    value["kafs"] = json!(kafs(&made.cell));
    value["afsd_fuse"] = json!(afsd_fuse(&made.cell));
    output::done(context.json, &value, || {
        let device = on.device().display().to_string();
        describe_made(&made, &device)
    });
    Ok(exit::OK)
}

/// Sends a request to a cell, whose DEVICE is known.
fn ask(context: &Context, on: &DeviceArgs, ask: &CellRequest) -> Result<Value> {
    on.with(context, |target| cell::request(target, ask))
}

fn status(context: &Context, args: &StatusArgs) -> Result<u8> {
    let on = match &args.name {
        Some(name) => Some(DeviceArgs::of_command(name, &args.unlock).resolved(context)?),
        None => None,
    };
    loop {
        let cells = statuses(context, on.as_ref(), args.clients)?;
        output::show(context.json, &json!({ "cells": cells }), || {
            cells.iter().map(describe).collect::<Vec<_>>().join("\n")
        });
        if !args.watch || output::is_gone() {
            return Ok(exit::OK);
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn statuses(context: &Context, on: Option<&DeviceArgs>, clients: bool) -> Result<Vec<Value>> {
    let question = CellRequest::Status { clients };
    if let Some(on) = on {
        return Ok(vec![ask(context, on, &question)?]);
    }
    let dir = context.settings.run_dir();
    let question = control::ControlRequest::Cell(question);
    let ask = |(name, status): (String, Result<Value>)| {
        let is_cell = status.ok()?["cell"].is_string();
        is_cell.then(|| control::send_request(&dir, &name, &question))
    };
    let all: Vec<Value> = control::statuses(&dir)?
        .into_iter()
        .filter_map(ask)
        .collect::<Result<_>>()?;
    if all.is_empty() {
        Err(Error::NotFound(
            "no cell is served; serve one with `evfs serve DEVICE`".into(),
        ))
    } else {
        Ok(all)
    }
}

fn acl(context: &Context, command: AclCommand) -> Result<u8> {
    let (on, question, dry_run) = match command {
        AclCommand::Get { on, volume, path } => (on, CellRequest::AclGet { volume, path }, None),
        AclCommand::Set {
            on,
            volume,
            path,
            pairs,
            negative,
            clear,
            dry_run,
        } => {
            let changes = in_pairs(&pairs)?;
            let set = CellRequest::AclSet {
                volume,
                path,
                changes,
                negative,
                clear,
            };
            (on, set, Some(dry_run))
        }
    };
    let context = &DryRun::context_of(dry_run, context);
    let value = ask(context, &on.resolved(context)?, &question)?;
    if matches!(question, CellRequest::AclSet { .. }) {
        output::changed();
    }
    output::show(context.json, &value, || describe_list(&value));
    Ok(exit::OK)
}

fn in_pairs(words: &[String]) -> Result<Vec<(String, String)>> {
    let pairs = words.chunks(2).map(|pair| match pair {
        [name, rights] => Ok((name.clone(), rights.clone())),
        _ => Err(Error::Usage(format!(
            "missing rights for `{}`: names and rights come in pairs",
            pair[0]
        ))),
    });
    pairs.collect()
}

fn volume(context: &Context, command: VolumeCommand) -> Result<u8> {
    let (on, question, dry_run) = match command {
        VolumeCommand::List { on } => (on, CellRequest::List, None),
        VolumeCommand::Create {
            on,
            name,
            quota,
            mount,
            dry_run,
        } => {
            let create = CellRequest::Create { name, quota, mount };
            (on, create, Some(dry_run))
        }
        VolumeCommand::Mount {
            on,
            name,
            path,
            rw: read_write,
            dry_run,
        } => {
            let mount = CellRequest::Mount {
                name,
                path,
                read_write,
            };
            (on, mount, Some(dry_run))
        }
        VolumeCommand::Clone {
            on,
            name,
            backup,
            dry_run,
        } => (on, CellRequest::Clone { name, backup }, Some(dry_run)),
        VolumeCommand::Quota {
            on,
            name,
            size: bytes,
            dry_run,
        } => (on, CellRequest::Quota { name, bytes }, Some(dry_run)),
        VolumeCommand::Remove {
            on,
            name,
            force,
            dry_run,
        } => (on, CellRequest::Remove { name, force }, Some(dry_run)),
    };
    let context = &DryRun::context_of(dry_run, context);
    let on = on.resolved(context)?;
    let value = match &question {
        CellRequest::Remove { name, force } => or_force(*force, name, |force| {
            let name = name.clone();
            ask(context, &on, &CellRequest::Remove { name, force })
        })?,
        other => ask(context, &on, other)?,
    };
    if !matches!(question, CellRequest::List) {
        output::changed();
    }
    output::show(context.json, &value, || describe_volume(&value));
    Ok(exit::OK)
}
