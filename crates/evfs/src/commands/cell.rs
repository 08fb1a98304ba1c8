//! `evfs cell`: cells, their volumes, and their access lists.

use super::Context;
use super::cell_shown::{afsd_fuse, describe, describe_list, describe_made, describe_volume, kafs};
use super::confirm::or_force;
use super::files::{DeviceArgs, named};
use super::unlock::UnlockArgs;
use crate::output::{self, parse_size};
use serde_json::{Value, json};
use stack::cell::{self, Ask, Record};
use stack::{Error, ProcessCache, Result, control, exit};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

#[derive(clap::Subcommand)]
#[command(after_help = CELL_EXAMPLES)]
pub enum Command {
    /// Make a DEVICE a cell, and say what clients have to be told
    #[command(after_help = "\
A DEVICE without a file system is formatted; one that has an EVFS file system keeps what it holds, \
and EACH OF ITS FILESETS becomes a volume that clients may read, unless access lists say otherwise. \
What holds something else is refused. Doing it again changes the addresses, and nothing else.

Examples:
  evfs cell init example.org cell.img --size 10G
  evfs volume create disk.img --size 10G --owner alice && evfs cell init example.org disk.img
  evfs cell init example.org disk7 --listen 10.0.0.1")]
    Init(InitArgs),
    /// Show what is served, to whom, and how it does
    #[command(after_help = "\
Examples:
  evfs cell status                       all that this user serves
  evfs cell status cell --clients
  evfs cell status --watch               once a second, until interrupted
  evfs cell status cell.img              a cell that is not served, too")]
    Status(StatusArgs),
    /// Show and change the access list of a folder
    #[command(subcommand)]
    Acl(AclCommand),
    /// Make, list, replicate, limit and remove volumes
    #[command(subcommand)]
    Volume(VolumeCommand),
}

const CELL_EXAMPLES: &str = "\
Examples:
  evfs cell init example.org cell.img --size 10G      says how clients mount it
  evfs serve cell.img --anonymous-write --background
  evfs cell volume create cell projects --quota 5G --mount /projects
  evfs cell acl set cell projects / system:anyuser read 10.0.0.0/24 write
  evfs cell status --clients --watch

First steps with both clients, and what protects a cell: docs/guide/cell.md";

#[derive(clap::Args)]
pub struct InitArgs {
    /// Name of the cell, written as a domain name
    name: String,
    #[command(flatten)]
    on: DeviceArgs,
    /// IPv4 address that `evfs serve` is to serve at where it is told no other; may be given several
    /// times [default: 127.0.0.1]
    #[arg(long, value_name = "ADDR")]
    listen: Vec<Ipv4Addr>,
    /// Size of a new file, like 10G; it is not encrypted
    #[arg(long, value_parser = parse_size)]
    size: Option<u64>,
}

#[derive(clap::Args)]
pub struct StatusArgs {
    /// Name of what is served, or DEVICE [default: all that this user serves]
    name: Option<PathBuf>,
    #[command(flatten)]
    unlock: UnlockArgs,
    /// Clients, too; the 4,000 that were heard of last
    #[arg(long)]
    clients: bool,
    /// Print again every second
    #[arg(long)]
    watch: bool,
}

/// A cell, and the key to it.
#[derive(clap::Args)]
pub struct CellArgs {
    /// Name of what is served, or DEVICE
    #[arg(value_name = "DEVICE-or-NAME")]
    cell: PathBuf,
    #[command(flatten)]
    unlock: UnlockArgs,
}

#[derive(clap::Subcommand)]
pub enum AclCommand {
    /// Show who may do what in a folder, and with the files in it
    Get {
        #[command(flatten)]
        on: CellArgs,
        /// Volume
        volume: String,
        /// Folder, from the root of the volume
        #[arg(default_value = "/")]
        path: String,
    },
    /// Change who may do what in a folder, and with the files in it
    #[command(after_help = "\
NAME is system:anyuser, which is everybody, an address, or a prefix such as 10.0.0.0/24. RIGHTS are \
letters: r read, l list, i insert, d delete, w write, k lock, a administer; or the words read (rl), \
write (rlidwk), all (rlidwka), none, which removes the entry. Several entries that mean a client add \
up, and negative ones are taken away from that. Folders that are made in it later inherit the list.

Whatever a list says, clients change nothing unless the cell is served with --anonymous-write.

Examples:
  evfs cell acl set cell root.cell / system:anyuser read 10.0.0.0/24 write
  evfs cell acl set cell home /alice system:anyuser none 10.0.0.7 all
  evfs cell acl set cell root.cell / 10.0.0.66 all --negative")]
    Set {
        #[command(flatten)]
        on: CellArgs,
        /// Volume
        volume: String,
        /// Folder, from the root of the volume
        path: String,
        /// Names and rights in pairs
        #[arg(required = true, num_args = 2.., value_names = ["NAME", "RIGHTS"])]
        pairs: Vec<String>,
        /// Entries that take rights away
        #[arg(long)]
        negative: bool,
        /// Begin with an empty list
        #[arg(long)]
        clear: bool,
    },
}

#[derive(clap::Subcommand)]
pub enum VolumeCommand {
    /// Make an empty volume, and a mount point of it
    #[command(after_help = "\
Every client that may call can read the volume, and change it if the cell is served with \
--anonymous-write, until `evfs cell acl set` limits that.

PATH is a path in the cell: what clients see as /afs/CELL/projects is /projects. It may lead \
through mount points. Without --mount the volume is found where `evfs cell volume mount` says, or \
mounted by its name.

Examples:
  evfs cell volume create cell projects --quota 5G --mount /projects")]
    Create {
        #[command(flatten)]
        on: CellArgs,
        /// Name of the volume
        #[arg(value_parser = named())]
        name: String,
        /// Most file data, like 10G
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        quota: Option<u64>,
        /// Make a mount point there
        #[arg(long, value_name = "PATH")]
        mount: Option<String>,
    },
    /// List volumes
    List {
        #[command(flatten)]
        on: CellArgs,
    },
    /// Make a mount point of a volume
    #[command(after_help = "\
A mount point leads to the volume's replica where there is one and the path to it led through replicas, \
else to the volume. With --rw it always leads to the volume.

Examples:
  evfs cell volume mount cell projects /projects")]
    Mount {
        #[command(flatten)]
        on: CellArgs,
        /// Name of the volume
        name: String,
        /// Path in the cell
        path: String,
        /// Never lead to the replica
        #[arg(long)]
        rw: bool,
    },
    /// Make the read-only replica of a volume, or make it anew
    #[command(after_help = "\
NAME.readonly, or NAME.backup, shows what the volume is now. Made anew, it keeps its number, and \
clients that have something of it are told that it has changed; a file that they have open and that \
is not in it any more gives errors from then on.

Examples:
  evfs cell volume clone cell projects
  evfs cell volume clone cell projects --backup")]
    Clone {
        #[command(flatten)]
        on: CellArgs,
        /// Name of the volume
        name: String,
        /// Its backup instead of its replica
        #[arg(long)]
        backup: bool,
    },
    /// Limit what a volume may hold
    #[command(after_help = "\
What a volume has already stays, also beyond a new limit.

Examples:
  evfs cell volume quota cell projects 10G
  evfs cell volume quota cell projects 0               no limit")]
    Quota {
        #[command(flatten)]
        on: CellArgs,
        /// Name of the volume
        name: String,
        /// Most file data; 0 for no limit
        #[arg(value_parser = parse_size)]
        size: u64,
    },
    /// Remove a volume, its replica and its backup; mount points of it stay
    Remove {
        #[command(flatten)]
        on: CellArgs,
        /// Name of the volume, or of its replica or backup
        name: String,
        /// Even if there is something in it
        #[arg(long)]
        force: bool,
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
    let cache = ProcessCache::new(&context.settings)?;
    let listen = match args.listen.as_slice() {
        [] => vec![Ipv4Addr::LOCALHOST],
        given => given.to_vec(),
    };
    let record = Record {
        name: args.name.clone(),
        listen,
    };
    let made = args.on.with(context, |target| {
        cell::init(target, &record, args.size, &cache)
    })?;
    let mut value = json!(made);
    value["kafs"] = json!(kafs(&made.cell));
    value["afsd_fuse"] = json!(afsd_fuse(&made.cell));
    output::done(context.json, &value, || {
        let device = args.on.device().display().to_string();
        describe_made(&made, &device)
    });
    Ok(exit::OK)
}

fn ask(context: &Context, on: &CellArgs, ask: &Ask) -> Result<Value> {
    DeviceArgs::of_command(&on.cell, &on.unlock).with(context, |target| cell::ask(target, ask))
}

fn status(context: &Context, args: &StatusArgs) -> Result<u8> {
    loop {
        let cells = statuses(context, args)?;
        output::show(context.json, &json!({ "cells": cells }), || {
            cells.iter().map(describe).collect::<Vec<_>>().join("\n")
        });
        if !args.watch || output::is_gone() {
            return Ok(exit::OK);
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn statuses(context: &Context, args: &StatusArgs) -> Result<Vec<Value>> {
    let question = Ask::Status {
        clients: args.clients,
    };
    if let Some(name) = &args.name {
        let on = CellArgs {
            cell: name.clone(),
            unlock: args.unlock.clone(),
        };
        return Ok(vec![ask(context, &on, &question)?]);
    }
    let dir = context.settings.run_dir();
    let question = control::Ask::Cell(question);
    let ask = |(name, status): (String, Result<Value>)| {
        let is_cell = status.ok()?["cell"].is_string();
        is_cell.then(|| control::ask(&dir, &name, &question))
    };
    let all: Vec<Value> = control::statuses(&dir)?
        .into_iter()
        .filter_map(ask)
        .collect::<Result<_>>()?;
    match all.is_empty() {
        false => Ok(all),
        true => Err(Error::NotFound(
            "no cell is served; `evfs serve DEVICE` does that".into(),
        )),
    }
}

fn acl(context: &Context, command: AclCommand) -> Result<u8> {
    let (on, question) = match command {
        AclCommand::Get { on, volume, path } => (on, Ask::AclGet { volume, path }),
        AclCommand::Set {
            on,
            volume,
            path,
            pairs,
            negative,
            clear,
        } => {
            let changes = in_pairs(&pairs)?;
            let set = Ask::AclSet {
                volume,
                path,
                changes,
                negative,
                clear,
            };
            (on, set)
        }
    };
    let value = ask(context, &on, &question)?;
    if matches!(question, Ask::AclSet { .. }) {
        output::changed();
    }
    output::show(context.json, &value, || describe_list(&value));
    Ok(exit::OK)
}

fn in_pairs(words: &[String]) -> Result<Vec<(String, String)>> {
    let pairs = words.chunks(2).map(|pair| match pair {
        [name, rights] => Ok((name.clone(), rights.clone())),
        _ => Err(Error::Usage(format!(
            "`{}` has no rights: names and rights come in pairs",
            pair[0]
        ))),
    });
    pairs.collect()
}

fn volume(context: &Context, command: VolumeCommand) -> Result<u8> {
    let (on, question) = match command {
        VolumeCommand::Create {
            on,
            name,
            quota,
            mount,
        } => (on, Ask::Create { name, quota, mount }),
        VolumeCommand::List { on } => (on, Ask::List),
        VolumeCommand::Mount { on, name, path, rw } => {
            let read_write = rw;
            let mount = Ask::Mount {
                name,
                path,
                read_write,
            };
            (on, mount)
        }
        VolumeCommand::Clone { on, name, backup } => (on, Ask::Clone { name, backup }),
        VolumeCommand::Quota { on, name, size } => {
            let bytes = size;
            (on, Ask::Quota { name, bytes })
        }
        VolumeCommand::Remove { on, name, force } => (on, Ask::Remove { name, force }),
    };
    let value = match &question {
        Ask::Remove { name, force } => or_force(*force, name, |force| {
            let name = name.clone();
            ask(context, &on, &Ask::Remove { name, force })
        })?,
        other => ask(context, &on, other)?,
    };
    if !matches!(question, Ask::List) {
        output::changed();
    }
    output::show(context.json, &value, || describe_volume(&value));
    Ok(exit::OK)
}
