//! `evfs up` and `evfs down`: all volumes, mounts and cells of a configuration file.

use super::Context;
use super::attach::{announce, end, in_background, install_signals, start};
use super::files::mount_as;
use super::serve::serve_as;
use super::unlock::UnlockArgs;
use crate::{background, output};
use serde_json::{Value, json};
use stack::config::What;
use stack::{Error, ProcessCache, Result, Serving, config, control, exit};
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "\
Example of a configuration:
  [volume.data]
  device = \"/srv/data.img\"
  key-file = \"/etc/evfs/data.key\"
  loop = true

  [mount.home]
  device = \"/srv/home.img\"
  key = \"alice\"
  at = \"/home\"

  [serve.cell]
  device = \"/srv/cell.img\"
  listen = [\"10.0.0.1\"]
  allow = [\"10.0.0.0/24\"]

All share one file cache, but for volumes with `direct = true`.

A mount's table takes device, key, key-file, at, fileset, threads, read-only, allow-other, \
exclusive, suid, dev, atime and allow-discards. A serve table takes device, key, key-file, listen, announce, allow, \
rxdebug, anonymous-write, threads and allow-discards. A volume's table takes device, key, key-file, nbd, nbd-unix, tls-cert, tls-key, tls-ca, fuse, loop, \
threads, read-only, allow-discards and direct.")]
pub struct UpArgs {
    /// Configuration file
    config: PathBuf,
    /// Go on in the background once all are ready
    #[arg(long)]
    background: bool,
}

pub fn up(context: &Context, args: UpArgs) -> Result<u8> {
    in_background(args.background, |ready| attach_all(context, &args, ready))
}

fn attach_all(context: &Context, args: &UpArgs, ready: Option<background::Ready>) -> Result<u8> {
    let signals = install_signals()?;
    let run_dir = control::run_dir(&context.settings.run_dir())?;
    let cache = ProcessCache::new(&context.settings)?;
    let mut attached: Vec<Box<dyn Serving>> = Vec::new();
    for entry in config::read(&args.config, context.settings.threads())? {
        // When one fails, dropping the others closes what they had opened.
        let unlock = UnlockArgs {
            key: entry.key,
            key_file: entry.key_file,
            passphrase_fd: None,
        };
        attached.push(match entry.what {
            What::Attach(spec) => {
                let spec = spec.complete(&run_dir)?;
                let source = unlock.source(&spec.name)?;
                Box::new(start(context, &spec, &source, &run_dir, &cache)?)
            }
            What::Mount(spec) => Box::new(mount_as(context, &spec, unlock, &run_dir, &cache)?),
            What::Serve(spec) => Box::new(serve_as(context, &spec, unlock, &run_dir, &cache)?),
        });
    }
    announce(context.json, &attached, ready);
    end(stack::serve(attached, &signals)?)
}

/// Detaches what any `up` attached; volumes attached one by one stay.
pub fn down(context: &Context) -> Result<u8> {
    let dir = context.settings.run_dir();
    let mut detached = Vec::new();
    let mut failed: Option<Error> = None;
    for name in control::names(&dir) {
        let Ok(status) = control::ask(&dir, &name, &control::Ask::Status) else {
            continue;
        };
        if status["config"] == Value::Null {
            continue;
        }
        match control::ask(&dir, &name, &control::Ask::Detach { force: false }) {
            Ok(_) => detached.push(name),
            Err(error) => {
                output::say(context.json, &format!("{name}: {error}"));
                failed = failed.or(Some(error));
            }
        }
    }
    if let Some(error) = failed {
        return Err(error);
    }
    output::show(
        context.json,
        &json!({ "detached": detached }),
        || match detached.as_slice() {
            [] => "nothing that `up` attached".into(),
            names => format!("detached {}", names.join(", ")),
        },
    );
    Ok(exit::OK)
}
