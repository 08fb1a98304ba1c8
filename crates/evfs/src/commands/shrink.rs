//! `evfs shrink`: a smaller file system, volume and image file.

use super::confirm::{Yes, confirm};
use super::device::DeviceArgs;
use super::dry_run::DryRun;
use cli::document::Document;
use cli::progress::Bar;
use cli::{Context, output};
use stack::filesystem::{self, Resized, ShrinkTo, Shrunk};
use stack::{Result, exit};
use std::fmt::Write as _;

#[derive(clap::Args)]
#[command(after_help = "\
Data and metadata beyond the new end move to free space below it; then the file system, the volume and the image \
file become smaller, and each step is printed. Files, snapshots and quotas stay as they are. The device must not be \
in use. An interrupted shrink, also by a power cut, loses nothing, and is completed when it is started again.

A disk, a partition or a LUN keeps its size: make it smaller yourself, and before the next mount for writing, which \
uses all of the device again.

Examples:
  evfs shrink disk.img --minimum       print the smallest possible size
  evfs shrink disk.img --size 10G
  evfs shrink disk.img --size 10G --dry-run")]
pub struct Args {
    #[command(flatten)]
    on: DeviceArgs,
    /// New size of the device, like 10G
    #[arg(long, value_parser = stack::parse_size, required_unless_present = "minimum")]
    size: Option<u64>,
    /// Print the smallest possible size, and change nothing
    #[arg(long, conflicts_with = "size")]
    minimum: bool,
    /// Leave the length of an image file as it is
    #[arg(long, conflicts_with = "minimum")]
    keep_file: bool,
    #[command(flatten)]
    yes: Yes,
    #[command(flatten)]
    dry_run: DryRun,
}

pub const SHRUNK: Document<Shrunk> = Document::new("evfs/shrink/1");

pub fn run(context: &Context, args: &Args) -> Result<u8> {
    let context = &args.dry_run.context(context);
    let on = args.on.resolved(context)?;
    let to = args.size.map_or(ShrinkTo::Minimum, |bytes| ShrinkTo::Size {
        bytes,
        keep_file: args.keep_file,
    });
    if let Some(size) = args.size {
        let device = on.device().display().to_string();
        let what = format!(
            "This makes {device} smaller: {}; all that lies beyond moves",
            output::size(size)
        );
        confirm(args.yes.yes, &what, &device)?;
    }
    let bar = Bar::new(context.json, "moved");
    let done = on.with(context, |target| {
        filesystem::shrink(target, to, &mut |done, of| bar.at(done, of))
    });
    bar.end();
    let done = done?;
    if args.minimum {
        output::show(context.json, &SHRUNK, &done, || {
            format!(
                "smallest possible size: {} ({} bytes)",
                output::size(done.minimum_bytes),
                done.minimum_bytes
            )
        });
    } else {
        output::done(context.json, &SHRUNK, &done, || describe(&done));
    }
    Ok(exit::OK)
}

fn describe(done: &Shrunk) -> String {
    let moved = output::size(done.moved_bytes);
    let mut text = format!(
        "file data: {moved} moved\nfile system: {}",
        step(&done.file_system)
    );
    if let Some(volume) = &done.volume {
        let _ = write!(text, "\nvolume: {}", step(volume));
    }
    let _ = write!(text, "\ndevice: {}", step(&done.device));
    for note in &done.notes {
        let _ = write!(text, "\n{note}");
    }
    text
}

/// Describes the size of a layer before and after.
pub fn step(size: &Resized) -> String {
    let after = output::size(size.after);
    if size.before == size.after {
        after
    } else {
        format!("{} -> {after}", output::size(size.before))
    }
}
