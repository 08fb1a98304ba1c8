//! `evfs attach`: open a volume and export it.

use super::device::DeviceArgs;
use super::unlock::UnlockArgs;
use super::{handle, names, service};
use cli::Context;
use stack::{AttachSpec, Result, ServiceSpec};
use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "\
Without --nbd, --nbd-unix, --fuse or --loop, the volume is exported over NBD on a Unix socket in the \
directory `run.dir`, which `evfs config show` prints.

Examples:
  evfs attach disk.img --loop --background          create a block device (requires root)
  evfs attach disk.img --nbd-unix /tmp/disk.sock    export to qemu, nbdcopy or nbd-client
  evfs attach disk.img --fuse /mnt/disk             export as the file /mnt/disk/disk
  evfs attach nbd://a/x+nbd://b/x --name x          use two paths to one LUN
  evfs attach disk.img --direct --loop              bypass the cache (the consumer has its own)")]
pub struct Args {
    /// File, disk or LUN that holds the volume: a path, nbd://..., nbd+unix://..., iscsi://...,
    /// rbd:..., diskN; addresses joined by + are paths of one LUN
    #[arg(add = names::devices())]
    device: PathBuf,
    /// Name of the attached volume [default: derived from the device]
    #[arg(long, value_name = "N")]
    name: Option<String>,
    /// Export over NBD on this TCP address. On loopback, only this user and root are served; any
    /// other address requires --tls-cert and --tls-ca
    #[arg(long, value_name = "ADDR")]
    nbd: Option<SocketAddr>,
    /// Export over NBD on a Unix socket at this path
    #[arg(long, value_name = "PATH")]
    nbd_unix: Option<PathBuf>,
    /// Certificate chain for NBD over TLS (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key for --tls-cert (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Accept only clients with a certificate from this authority (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
    /// Serve unauthenticated TCP clients: every user of this machine, and beyond loopback every
    /// client that can connect (TLS is still required there)
    #[arg(long, requires = "nbd", conflicts_with = "tls_ca")]
    anonymous: bool,
    /// Mount a directory that contains the volume as a single file
    #[arg(long, value_name = "DIR")]
    fuse: Option<PathBuf>,
    /// Create a loop device (requires root)
    #[arg(long = "loop")]
    loop_device: bool,
    /// Number of threads that serve the volume [default: the `threads` setting]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// Refuse writes
    #[arg(long)]
    read_only: bool,
    /// Pass discards to the disk; this reveals which blocks are unused
    #[arg(long)]
    allow_discards: bool,
    /// Cache pages in memory (the default)
    #[arg(long, conflicts_with = "direct")]
    cached: bool,
    /// Bypass the page cache: every request goes to the disk
    #[arg(long)]
    direct: bool,
    /// Continue the exports if their process is killed or crashes: a second process holds the connections
    /// and what is not on the disk yet, and starts another server (TCP: Linux 6.9). Clients with TLS have
    /// to connect again
    #[arg(long)]
    survive: bool,
    /// Detach from the terminal once the volume is ready
    #[arg(long)]
    background: bool,
    #[command(flatten)]
    unlock: UnlockArgs,
}

pub fn run(context: &Context, args: Args) -> Result<u8> {
    let threads = args.threads.map_or(context.settings.threads(), usize::from);
    let device = handle::device(context, &args.device)?;
    let mut spec = AttachSpec::new(&device, threads);
    if let Some(name) = args.name {
        spec.name = name;
    }
    spec.nbd = args.nbd;
    spec.nbd_unix = args.nbd_unix;
    spec.tls = match (args.tls_cert, args.tls_key) {
        (Some(certificate), Some(key)) => Some(export_nbd::Tls {
            certificate,
            key,
            client_ca: args.tls_ca,
        }),
        _ => None,
    };
    spec.anonymous = args.anonymous;
    spec.fuse = args.fuse;
    spec.loop_device = args.loop_device;
    spec.read_only = args.read_only;
    spec.allow_discards = args.allow_discards;
    spec.cached = !args.direct;
    spec.survives = args.survive;
    let on = DeviceArgs::of_service(&spec.device, args.unlock, &spec.name);
    service::run(context, &on, ServiceSpec::Attach(spec), args.background)
}
