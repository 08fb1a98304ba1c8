//! `evfs cell`: cells, their volumes, and who may do what in them.

use super::Context;
use super::files::{DeviceArgs, named};
use super::unlock::UnlockArgs;
use crate::output::{self, parse_size, size};
use serde_json::{Value, json};
use stack::cell::{self, Ask, Made, Record};
use stack::{Error, ProcessCache, Result, control, exit};
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

#[derive(clap::Subcommand)]
#[command(
    long_about = "Make a cell, look at it, say who may do what, and manage its volumes.\n\n\
A cell is a file system that `evfs serve` gives to AFS clients: its name is what clients know it by, \
each of its filesets is a volume, and mount points join the volumes to one tree. A cell that is served \
goes on being served while it is managed, and clients are told of what changes."
)]
pub enum Command {
    /// Make a DEVICE a cell, and say what clients have to be told
    #[command(after_help = "\
A DEVICE without a file system is formatted; one that has an EVFS file system keeps what it holds, and
EACH OF ITS FILESETS becomes a volume that clients may read, unless access lists say otherwise. What
holds something else is refused. Doing it again changes the addresses, and nothing else.

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
    /// Each client, too
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
NAME is system:anyuser, which is everybody, an address, or a prefix such as 10.0.0.0/24. RIGHTS are
letters: r read, l list, i insert, d delete, w write, k lock, a administer; or the words read (rl),
write (rlidwk), all (rlidwka), none, which removes the entry. Several entries that mean a client add
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
        #[arg(required = true, num_args = 2.., value_name = "NAME RIGHTS")]
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
PATH is a path in the cell: what clients see as /afs/CELL/projects is /projects. It may lead through
mount points. Without --mount the volume is found where `evfs cell volume mount` says, or mounted by
its name.

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
A mount point leads to the volume's replica where there is one and the path to it led through replicas,
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
NAME.readonly, or NAME.backup, shows what the volume is now. Made anew, it keeps its number, and clients
that have something of it are told that it has changed; a file that they have open and that is not in
it any more gives errors from then on.

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
    /// Remove a volume, its replica and its backup
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
    output::show(context.json, &value, || {
        let device = args.on.device().display().to_string();
        describe_made(&made, &device)
    });
    Ok(exit::OK)
}

fn describe_made(made: &Made, device: &str) -> String {
    let done = match (made.formatted, made.encrypted) {
        (true, true) => "formatted, encrypted",
        (true, false) => "formatted, in the clear",
        (false, true) => "what it held is kept; encrypted",
        (false, false) => "what it held is kept; in the clear",
    };
    format!(
        "{device} is the cell {}: {done}\n{}\n\
         Serve it:\n  evfs serve {device} --background\n\n\
         For the file CellServDB of clients:\n{}\n\
         Mount it with Linux (kafs), as root:\n{}\n\
         Mount it with OpenAFS in user space, as root:\n{}",
        made.cell.name,
        volumes(&json!({ "volumes": made.volumes })),
        indented(&made.cellservdb),
        indented(&kafs(&made.cell)),
        indented(&afsd_fuse(&made.cell)),
    )
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

/// How Linux mounts a cell. Its file system asks for the addresses of a cell by `request-key`, which
/// `kafs-dns` of the package kafs-client answers from `/etc/kafs`.
fn kafs(cell: &Record) -> String {
    let name = &cell.name;
    let servers = cell.listen.iter().enumerate().map(|(index, address)| {
        format!("      server{index}.{name} = {{\n        address = {address}\n      }}\n")
    });
    let servers: String = servers.collect();
    let addresses: Vec<_> = cell.listen.iter().map(Ipv4Addr::to_string).collect();
    format!(
        "apt-get install kafs-client keyutils\n\
         mkdir -p /etc/kafs/client.d /mnt/{name}\n\
         cat > /etc/kafs/client.d/{name}.conf <<'EOF'\n\
         [cells]\n  {name} = {{\n    use_dns = no\n    servers = {{\n{servers}    }}\n  }}\nEOF\n\
         modprobe -a fcrypt pcbc kafs\n\
         echo 'add {name} {}' > /proc/net/afs/cells\n\
         mount -t afs '%{name}:root.cell.' /mnt/{name}\n",
        addresses.join(":"),
    )
}

/// How `afsd.fuse` of OpenAFS mounts a cell, with a configuration of its own.
fn afsd_fuse(cell: &Record) -> String {
    let name = &cell.name;
    let at = format!("/tmp/afs-{name}");
    format!(
        "apt-get install --no-install-recommends openafs-client openafs-fuse\n\
         mkdir -p {at}/etc {at}/cache {at}/afs\n\
         echo {name} > {at}/etc/ThisCell\n\
         echo '{at}/afs:{at}/cache:100000' > {at}/etc/cacheinfo\n\
         cat > {at}/etc/CellServDB <<'EOF'\n{}EOF\n\
         afsd.fuse -dynroot -fakestat -confdir {at}/etc -mountdir {at}/afs -cachedir {at}/cache \
         -memcache -nosettime\n\
         ls {at}/afs/{name}\n",
        cell::cell_serv_db(name, &cell.listen)
    )
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
        if !args.watch {
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
    let ask = |name: String| {
        let status = control::ask(&dir, &name, &control::Ask::Status).ok()?;
        let is_cell = status["cell"].is_string();
        is_cell.then(|| control::ask(&dir, &name, &question))
    };
    let all: Vec<Value> = control::names(&dir)
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

fn describe(cell: &Value) -> String {
    let text = |key: &str| cell[key].as_str().unwrap_or("-").to_owned();
    let mut out = format!("{}\n", text("cell"));
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "  {name:<12}{value}");
    };
    if cell["served"] != true {
        line("served", "no; `evfs serve` does that".into());
        line("addresses", list(&cell["listen"]));
        return out + &volumes(cell);
    }
    line(
        "served",
        format!(
            "{} as {}, pid {}, {} threads",
            text("device"),
            text("name"),
            cell["pid"],
            cell["threads"]
        ),
    );
    line("addresses", list(&cell["listen"]));
    if cell["announced"] != cell["listen"] {
        line("announced", list(&cell["announced"]));
    }
    let everybody = "everybody who can".to_owned();
    line(
        "allowed",
        Some(list(&cell["allowed"]))
            .filter(|allowed| !allowed.is_empty())
            .unwrap_or(everybody),
    );
    let may = match (cell["read_only"] == true, cell["anonymous_write"] == true) {
        (true, _) => "nobody",
        (_, true) => "whomever access lists let, by address",
        (_, false) => "nobody; --anonymous-write lets those whom access lists let",
    };
    line("writers", may.into());
    if let Some(warning) = cell["warning"].as_str() {
        line("warning", warning.into());
    }
    out + &counters(&cell["stats"]) + &clients(&cell["clients"]) + &volumes(cell)
}

fn list(values: &Value) -> String {
    let texts = values.as_array().into_iter().flatten();
    texts
        .filter_map(Value::as_str)
        .collect::<Vec<_>>()
        .join(", ")
}

/// What the server has done.
fn counters(stats: &Value) -> String {
    let number = |key: &str| stats[key].as_u64().unwrap_or(0);
    let both = |key: &str| -> u64 {
        let ports = ["files", "location"];
        ports.iter().filter_map(|p| stats[p][key].as_u64()).sum()
    };
    let mut out = format!(
        "  clients     {}, {} of them heard of within 15 minutes; {} promises\n\
        \x20 calls       {}, {} of them ended with an error; {} fetched, {} stored\n\
        \x20 callbacks   {} broken\n\
        \x20 network     {} datagrams in, {} out; {} dropped here, {} packets sent again, {} jumbograms out, {} in\n",
        number("clients"),
        number("active_clients"),
        number("promises"),
        number("calls"),
        number("errors"),
        size(number("fetched_bytes")),
        size(number("stored_bytes")),
        number("callbacks_broken"),
        both("datagrams_in"),
        both("datagrams_out"),
        both("dropped_datagrams"),
        both("resent_packets"),
        both("jumbograms_out"),
        both("jumbograms_in"),
    );
    for (name, row) in stats["procedures"].as_object().into_iter().flatten() {
        let _ = writeln!(
            out,
            "    {name:<20}{:>12} calls{:>10} errors",
            row["calls"].as_u64().unwrap_or(0),
            row["errors"].as_u64().unwrap_or(0)
        );
    }
    out
}

fn clients(clients: &Value) -> String {
    let mut out = String::new();
    for client in clients.as_array().into_iter().flatten() {
        let text = |key: &str| client[key].as_str().unwrap_or("-").to_owned();
        let at = format!("{}:{}", text("address"), client["port"]);
        let _ = writeln!(
            out,
            "  client {at:<22}{:<5}{:>8} promises  heard {} s ago  {}",
            text("state"),
            client["promises"],
            client["heard_seconds_ago"],
            text("uuid"),
        );
    }
    out
}

/// A line for each volume.
fn volumes(cell: &Value) -> String {
    let all = cell["volumes"].as_array().into_iter().flatten();
    all.map(row).collect()
}

fn row(volume: &Value) -> String {
    let number = |key: &str| volume[key].as_u64().unwrap_or(0);
    let text = |key: &str| volume[key].as_str().unwrap_or("-");
    let mut out = format!(
        "  {:>10}  {:<24} {:<11} {} in {} files and folders",
        number("id"),
        text("name"),
        text("kind"),
        size(number("used_bytes")),
        number("used_inodes"),
    );
    if let Some(quota) = volume["quota_bytes"].as_u64() {
        let _ = write!(out, "  at most {}", size(quota));
    }
    out + "\n"
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

fn describe_list(value: &Value) -> String {
    let text = |key: &str| value[key].as_str().unwrap_or("-");
    let mut out = format!("access list of {} in {}\n", text("path"), text("volume"));
    for (title, key) in [("may", "positive"), ("may not", "negative")] {
        for entry in value[key].as_array().into_iter().flatten() {
            let word = |key: &str| entry[key].as_str().unwrap_or("-");
            let _ = writeln!(out, "  {:<24} {title:<8} {}", word("name"), word("rights"));
        }
    }
    out
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
    let value = ask(context, &on, &question)?;
    output::show(context.json, &value, || describe_volume(&value));
    Ok(exit::OK)
}

fn describe_volume(value: &Value) -> String {
    let text = |key: &str| value[key].as_str();
    match (text("removed"), text("mounted")) {
        (Some(name), _) => format!("removed {name}"),
        (_, Some(name)) => format!("{name} is at {}", text("path").unwrap_or("-")),
        _ if value["volumes"].is_array() => volumes(value),
        _ => row(value),
    }
}
