//! `evfs serve`: a file system for AFS clients.

use super::device::DeviceArgs;
use super::service;
use cli::Context;
use stack::{Prefix, Result, ServeSpec, ServiceSpec};
use std::net::Ipv4Addr;

#[derive(clap::Args)]
#[command(after_help = "\
Access control: the server speaks AFS without Kerberos, which neither authenticates clients nor encrypts \
traffic. Therefore
  - without --listen, only this machine is served, unless `cell init` set other addresses;
  - --allow limits the addresses that may call, and `evfs cell acl` their rights, by directory;
  - without --anonymous-write, clients cannot change anything, regardless of access lists. With it,
    directories without an access list of their own are writable by every client that may call;
  - across a shared network, serve inside a tunnel such as WireGuard (docs/guide/cell.md).

The server uses UDP ports 7000 and 7003 at each address; neither requires root.

Examples:
  evfs cell init example.org cell.img --size 10G
  evfs serve cell.img --background                       serve this machine, read-only
  evfs serve cell.img --anonymous-write                  serve this machine, read-write
  evfs serve cell.img --listen 10.0.0.1 --allow 10.0.0.0/24 --anonymous-write
  evfs serve cell.img --listen 10.0.0.1 --announce 192.0.2.1     serve from behind NAT
  evfs cell status --clients
  evfs detach cell")]
pub struct Args {
    #[command(flatten)]
    on: DeviceArgs,
    /// IPv4 address to serve at; may be repeated, and 0.0.0.0 means all addresses [default: the
    /// addresses set by `cell init`, or 127.0.0.1]
    #[arg(long, value_name = "ADDR")]
    listen: Vec<Ipv4Addr>,
    /// IPv4 address to announce to clients, if they reach this server by another one; may be
    /// repeated [default: the addresses of --listen]
    #[arg(long, value_name = "ADDR")]
    announce: Vec<Ipv4Addr>,
    /// Serve only clients at this address or prefix, such as 10.0.0.0/24; may be repeated [default:
    /// every client that can reach the server]
    #[arg(long, value_name = "PREFIX")]
    allow: Vec<Prefix>,
    /// Answer `rxdebug` for every client that may call, not only over loopback; the answers show
    /// the addresses of clients
    #[arg(long)]
    rxdebug: bool,
    /// Let clients change data as access lists permit, although clients are not authenticated
    #[arg(long)]
    anonymous_write: bool,
    /// Maximum number of concurrent calls at each address [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Name of the served cell for `status`, `detach` and `cell` [default: derived from the device]
    #[arg(long, value_name = "N")]
    name: Option<String>,
    /// Pass discards to the disk; this reveals which blocks are unused
    #[arg(long)]
    allow_discards: bool,
    /// Continue the server if its process is killed or crashes: clients see a pause, and nothing that
    /// was answered is lost. Another process, the keeper, holds the sockets and what is not on the
    /// disk yet, and starts another server
    #[arg(long)]
    survive: bool,
    /// Detach from the terminal once the cell is served
    #[arg(long)]
    background: bool,
}

pub fn run(context: &Context, args: Args) -> Result<u8> {
    let on = args.on.resolved(context)?;
    let mut spec = ServeSpec::new(on.device());
    if let Some(name) = args.name {
        spec.name = name;
    }
    spec.listen = args.listen;
    spec.announce = args.announce;
    spec.allow = args.allow;
    spec.rxdebug = args.rxdebug;
    spec.anonymous_write = args.anonymous_write;
    spec.threads = args.threads.map(usize::from);
    spec.allow_discards = args.allow_discards;
    spec.survives = args.survive;
    service::run(context, &on, ServiceSpec::Serve(spec), args.background)
}
