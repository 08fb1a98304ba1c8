//! `evfs attach`: open a volume and export it.

use super::unlock::UnlockArgs;
use crate::{background, log, output};
use cli::Context;
use serde_json::json;
use stack::volume::{OpenOptions, open, or_read_only};
use stack::{
    AttachSpec, Attachment, Ended, Error, Hub, KeySource, Needs, ProcessCache, Result, Serving,
    Settings, Status, StopSignals, confine, exit,
};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

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
    /// diskN; addresses joined by + are paths of one LUN
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
    /// Detach from the terminal once the volume is ready
    #[arg(long)]
    background: bool,
    #[command(flatten)]
    unlock: UnlockArgs,
}

pub fn run(context: &Context, args: Args) -> Result<u8> {
    in_background(args.background, |ready| attach(context, args, ready))
}

/// Runs `serve` here, or in a child that detaches from the terminal once it is ready.
pub fn in_background(
    background: bool,
    serve: impl FnOnce(Option<background::Ready>) -> Result<u8>,
) -> Result<u8> {
    if !background {
        return serve(None);
    }
    match background::split() {
        Ok(background::Side::Parent(code)) => Ok(code),
        Ok(background::Side::Child(ready)) => serve(Some(ready)),
        Err(e) => Err(Error::Failed(format!(
            "cannot detach from the terminal: {e}"
        ))),
    }
}

fn attach(context: &Context, args: Args, ready: Option<background::Ready>) -> Result<u8> {
    let signals = StopSignals::for_service()?;
    let run_dir = stack::run_dir(&context.settings.run_dir())?;
    let threads = args.threads.map_or(context.settings.threads(), usize::from);
    let mut spec = AttachSpec::new(&args.device, threads);
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
    let spec = spec.complete(&run_dir)?;
    let cache = ProcessCache::new(&context.settings)?;
    confine(&context.settings, Needs::attach(&spec), &cache)?;
    let source = args.unlock.source(&spec.name)?;
    let attachment = start(context, &spec, &source, &run_dir, &cache)?;
    serve(context, Box::new(attachment), &cache, &signals, ready)
}

/// Announces a service, and runs it to its end.
pub fn serve(
    context: &Context,
    serving: Box<dyn Serving>,
    cache: &Arc<ProcessCache>,
    signals: &StopSignals,
    ready: Option<background::Ready>,
) -> Result<u8> {
    let all = vec![serving];
    announce(context.json, &all, ready);
    let cache = Arc::clone(cache);
    let reload: stack::Reload =
        Arc::new(move |_: &Hub| reload_settings(&cache).err().into_iter().collect());
    end(stack::serve(all, signals, &reload)?)
}

/// Applies the settings that can change while a service runs: the log level, and the cache. Returns
/// the settings, or the reason why they are invalid.
pub fn reload_settings(cache: &ProcessCache) -> std::result::Result<Settings, String> {
    let settings = Settings::load().and_then(|settings| {
        log::reload(settings.log_level());
        cache.reload(&settings).map(|()| settings)
    });
    settings.map_err(|error| format!("settings not reloaded: {}", error.chain()))
}

/// Opens the volume of a spec and starts its exports.
pub fn start(
    context: &Context,
    spec: &AttachSpec,
    source: &KeySource,
    run_dir: &std::path::Path,
    cache: &Arc<ProcessCache>,
) -> Result<Attachment> {
    let options = OpenOptions {
        read_only: spec.read_only,
        allow_discards: spec.allow_discards,
    };
    let open = open(
        &spec.device,
        &context.opener(),
        source,
        options,
        &context.settings,
    )
    .map_err(|e| or_read_only(e, &spec.device, spec.config.is_some()))?;
    Attachment::start(spec, open, run_dir, &context.settings, cache)
}

/// Prints the attached volumes and their exports, and detaches from the terminal if this process
/// runs in the background.
pub fn announce(json: bool, all: &[Box<dyn Serving>], ready: Option<background::Ready>) {
    let attached: Vec<&Status> = all.iter().map(|serving| serving.status()).collect();
    for warning in attached.iter().filter_map(|s| s.warning.as_deref()) {
        output::say(json, &format!("warning: {warning}"));
    }
    let text = if json {
        let value = match attached.as_slice() {
            [one] => json!(one),
            many => json!({ "volumes": many }),
        };
        serde_json::to_string_pretty(&value).expect("a status serializes")
    } else {
        attached
            .iter()
            .map(|s| {
                let places: Vec<_> = s.exports.iter().map(|e| e.at.as_str()).collect();
                format!("{}: {}", s.name, places.join("  "))
            })
            .collect::<Vec<_>>()
            .join("\n")
    };
    match ready {
        Some(ready) => ready.report_ready(&text),
        None => output::line(&text),
    }
}

/// Returns the exit code for the end of a service.
pub fn end(ended: Ended) -> Result<u8> {
    Ok(match ended {
        Ended::Detached => exit::OK,
        Ended::Signal(signal) => 128 + signal as u8,
    })
}
