//! `evfs detach`: flush and close an attached volume or a mounted file system.

use super::{handle, names};
use cli::Context;
use cli::output;
use serde_json::json;
use stack::{Result, control, exit};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  evfs detach disk
  evfs detach disk.img
  evfs detach /mnt                 like `evfs unmount /mnt`

All data is written to stable storage before the exports are closed. If that fails, for example because \
the disk is full, the volume stays attached.

Exit code 11 means that the volume is still in use: unmount it first. With --force, exit code 30 means that \
the volume was detached and that acknowledged data could not be written and is lost.")]
pub struct Args {
    /// Attached volume, mounted file system or served cell: its name, its device, or the place of an
    /// export
    #[arg(add = names::services())]
    name: PathBuf,
    /// Detach even if the volume is in use or some data cannot be written
    #[arg(long)]
    force: bool,
}

pub fn run(context: &Context, args: Args) -> Result<u8> {
    let name = handle::service(context, &args.name)?.name;
    detach(&context.settings.run_dir(), &name, args.force)?;
    output::done(context.json, &json!({ "detached": name }), || {
        format!("detached {name}")
    });
    Ok(exit::OK)
}

/// Detaches a volume or file system that answers. Takes as long as data remains to be written.
pub fn detach(run_dir: &Path, name: &str, force: bool) -> Result<()> {
    control::send_request(run_dir, name, &control::ControlRequest::Status)?;
    control::send_request(run_dir, name, &control::ControlRequest::Detach { force }).map(drop)
}
