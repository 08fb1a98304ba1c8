//! `evfs grow`: a larger device for its volume and its file system.

use super::device::DeviceArgs;
use super::dry_run::DryRun;
use super::shrink::step;
use cli::document::Document;
use cli::{Context, output};
use stack::filesystem::{self, Grown};
use stack::{Result, exit};
use std::fmt::Write as _;

#[derive(clap::Args)]
#[command(after_help = "\
Enlarge the disk, the LUN or the image file first, or name the new size of an image file. Then the volume and the \
file system of EVFS in it use all of the device, and each step is printed. Nothing is moved or destroyed; files, \
snapshots and quotas stay as they are. An interrupted grow is completed when it is started again.

The file system may be mounted or served, and the volume attached. NBD clients of an attached volume get the new \
size when they connect again. A LUN in use must be detached before. `evfs shrink` is the reverse.

Examples:
  evfs grow disk.img --size 20G        enlarge the file, the volume and the file system
  evfs grow /mnt                       use what the disk below has become
  evfs grow /mnt --dry-run")]
pub struct Args {
    #[command(flatten)]
    on: DeviceArgs,
    /// New size of an image file, like 20G [default: the size that the device has]
    #[arg(long, value_parser = stack::parse_size)]
    size: Option<u64>,
    #[command(flatten)]
    dry_run: DryRun,
}

pub const GROWN: Document<Grown> = Document::new("evfs/grow/1");

pub fn run(context: &Context, args: &Args) -> Result<u8> {
    let context = &args.dry_run.context(context);
    let on = args.on.resolved(context)?;
    let done = on.with(context, |target| filesystem::grow(target, args.size))?;
    output::done(context.json, &GROWN, &done, || describe(&done));
    Ok(exit::OK)
}

fn describe(done: &Grown) -> String {
    let mut text = format!("device: {}", step(&done.device));
    if let Some(volume) = &done.volume {
        let _ = write!(text, "\nvolume: {}", step(volume));
    }
    if let Some(files) = &done.file_system {
        let _ = write!(text, "\nfile system: {}", step(files));
    }
    for note in &done.notes {
        let _ = write!(text, "\n{note}");
    }
    text
}
