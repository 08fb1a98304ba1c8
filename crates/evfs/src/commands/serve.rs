//! `evfs serve`: a file system for AFS clients.

use super::Context;
use super::attach::{in_background, serve, service_signals};
use super::files::DeviceArgs;
use super::unlock::UnlockArgs;
use crate::background;
use stack::volume::OpenOptions;
use stack::{Needs, Prefix, ProcessCache, Result, ServeSpec, Served, confine, control};
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

#[derive(clap::Args)]
#[command(after_help = "\
Who may do what: AFS without Kerberos, which is what is spoken here, neither proves who calls nor \
hides what is said. So
  - without --listen only this machine is served, unless `cell init` was told otherwise;
  - --allow limits who may call at all, by address, and `evfs cell acl` what they may do, by folder;
  - clients change nothing without --anonymous-write, whatever access lists say. With it, folders
    without a list of their own can be written by everybody who may call;
  - across a network that others use, serve inside a tunnel such as WireGuard (docs/guide/cell.md).

Ports 7000 and 7003 of UDP, at each address; neither needs root.

Examples:
  evfs cell init example.org cell.img --size 10G
  evfs serve cell.img --background                       this machine, only to read
  evfs serve cell.img --anonymous-write                  this machine, to write as well
  evfs serve cell.img --listen 10.0.0.1 --allow 10.0.0.0/24 --anonymous-write
  evfs serve cell.img --listen 10.0.0.1 --announce 192.0.2.1     behind NAT
  evfs cell status --clients
  evfs detach cell")]
pub struct Args {
    #[command(flatten)]
    on: DeviceArgs,
    /// IPv4 address to serve at; may be given several times, and 0.0.0.0 is all of them [default: what
    /// `cell init` was told, or 127.0.0.1]
    #[arg(long, value_name = "ADDR")]
    listen: Vec<Ipv4Addr>,
    /// IPv4 address that clients are told to use, if another one leads here; may be given several times
    /// [default: those of --listen]
    #[arg(long, value_name = "ADDR")]
    announce: Vec<Ipv4Addr>,
    /// Who may call: an address, or a prefix such as 10.0.0.0/24; may be given several times [default:
    /// everybody who can]
    #[arg(long, value_name = "PREFIX")]
    allow: Vec<Prefix>,
    /// Answer `rxdebug` to everybody who may call, and not only over the loopback; the answers show the
    /// addresses of clients
    #[arg(long)]
    rxdebug: bool,
    /// Let clients change what access lists let them, though nothing proves who they are
    #[arg(long)]
    anonymous_write: bool,
    /// Calls that are worked on at the same time at each address [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Name of what is served for `status`, `detach` and `cell` [default: from the device's]
    #[arg(long, value_name = "N")]
    name: Option<String>,
    /// Pass discards to the disk; whoever sees the disk then sees which blocks are unused
    #[arg(long)]
    allow_discards: bool,
    /// Go on in the background once it is served
    #[arg(long)]
    background: bool,
}

pub fn run(context: &Context, args: Args) -> Result<u8> {
    in_background(args.background, |ready| serve_it(context, &args, ready))
}

fn serve_it(context: &Context, args: &Args, ready: Option<background::Ready>) -> Result<u8> {
    let signals = service_signals()?;
    let cache = ProcessCache::new(&context.settings)?;
    confine(&context.settings, Needs::serve(), &cache)?;
    let run_dir = control::run_dir(&context.settings.run_dir())?;
    let defaults = ServeSpec::new(args.on.device());
    let spec = ServeSpec {
        name: args.name.clone().unwrap_or(defaults.name),
        listen: args.listen.clone(),
        announce: args.announce.clone(),
        allow: args.allow.clone(),
        rxdebug: args.rxdebug,
        anonymous_write: args.anonymous_write,
        threads: args.threads.map(usize::from),
        allow_discards: args.allow_discards,
        ..ServeSpec::new(args.on.device())
    };
    let served = serve_on(context, &args.on, &spec, &run_dir, &cache)?;
    serve(context, Box::new(served), &cache, &signals, ready)
}

/// Serves a cell from a table of a configuration.
pub fn serve_as(
    context: &Context,
    spec: &ServeSpec,
    unlock: UnlockArgs,
    run_dir: &Path,
    cache: &Arc<ProcessCache>,
) -> Result<Served> {
    let on = DeviceArgs::of_table(&spec.device, unlock, &spec.name);
    serve_on(context, &on, spec, run_dir, cache)
}

fn serve_on(
    context: &Context,
    on: &DeviceArgs,
    spec: &ServeSpec,
    run_dir: &Path,
    cache: &Arc<ProcessCache>,
) -> Result<Served> {
    spec.check()?;
    let options = OpenOptions {
        read_only: false,
        allow_discards: spec.allow_discards,
    };
    on.with(context, |target| {
        let open = target.open(options)?;
        Served::start(spec, open, run_dir, &context.settings, cache)
    })
}
