//! `evfs sync`: make everything durable that a service has acknowledged.

use super::{handle, names};
use cli::Context;
use cli::document::Document;
use cli::output;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use stack::control::{self, ControlRequest};
use stack::{Error, Result, exit};
use std::fs::File;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  evfs sync /mnt
  evfs sync disk
  evfs sync

Returns when everything that the service acknowledged before is on stable storage: changes by files and names of \
a mount or a cell, and writes to a volume over NBD. Unlike sync(1), it does so on every kernel and for every user.

Not included is data that the kernel still holds back: pages of a file that a program has mapped, mounts with \
--exclusive, and file systems on loop or NBD devices; fsync(2) covers these. For a mount that receives sync(2), \
mapped and held back data is included.

The command takes as long as the disk does, and fails if the data cannot be written.")]
pub struct Args {
    /// Attached volume, mounted file system or served cell: its name, its device, or the place of an
    /// export, such as the directory of a mount [default: all]
    #[arg(add = names::services())]
    name: Option<PathBuf>,
}

/// Services that made everything durable.
#[derive(Serialize, JsonSchema)]
pub struct Synced {
    /// Names of the services.
    synced: Vec<String>,
}

pub const SYNCED: Document<Synced> = Document::new("evfs/sync/1");

pub fn run(context: &Context, args: &Args) -> Result<u8> {
    let services = match &args.name {
        Some(word) => {
            let service = handle::service(context, word)?;
            vec![(service.name, service.status)]
        }
        None => control::statuses(&context.settings.run_dir())?,
    };
    if services.is_empty() {
        let why = "nothing is attached or mounted; `evfs mount` and `evfs attach` start a service";
        return Err(Error::NotFound(why.into()));
    }
    let mut synced = Vec::new();
    for (name, status) in services {
        sync(context, &name, &status?)?;
        synced.push(name);
    }
    let content = Synced { synced };
    output::done(context.json, &SYNCED, &content, || {
        let line = |name: &String| format!("{name}: all data is on stable storage");
        let lines: Vec<_> = content.synced.iter().map(line).collect();
        lines.join("\n")
    });
    Ok(exit::OK)
}

fn sync(context: &Context, name: &str, status: &Value) -> Result<()> {
    let exports = status["exports"].as_array().into_iter().flatten();
    let mut mounts: Vec<(&Path, bool)> = Vec::new();
    for export in exports.filter(|export| export["kind"] == "mount") {
        let at = export["at"].as_str().unwrap_or_default();
        mounts.push((Path::new(at), export["sync"] == "durable"));
    }
    // The kernel hands over what it holds back, without waiting.
    for (at, _) in mounts.iter().filter(|(_, waits)| !waits) {
        let _ = sync_in_kernel(at);
    }
    let run_dir = context.settings.run_dir();
    control::send_request(&run_dir, name, &ControlRequest::Sync)?;
    // It waits for what it holds back, which is little now.
    let mut waiting = mounts.iter().filter(|(_, waits)| *waits);
    waiting.try_for_each(|(at, _)| sync_in_kernel(at))
}

/// Calls syncfs(2) on a mount, if this user has access to it.
fn sync_in_kernel(at: &Path) -> Result<()> {
    let Ok(dir) = File::open(at) else {
        return Ok(());
    };
    rustix::fs::syncfs(&dir).map_err(|error| match error {
        rustix::io::Errno::TIMEDOUT => Error::Failed(format!(
            "cannot sync {}: the device has not taken all data within the --sync-timeout of the \
             mount; check the device, and run the command again",
            at.display()
        )),
        error => Error::io("cannot sync", at, error.into()),
    })
}
