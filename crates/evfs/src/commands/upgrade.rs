//! `evfs upgrade`: the features of new file systems for an existing one.

use super::device::DeviceArgs;
use super::dry_run::DryRun;
use cli::document::Document;
use cli::progress::Bar;
use cli::{Context, output};
use stack::filesystem::{self, Upgraded};
use stack::{Result, exit};
use std::fmt::Write as _;

#[derive(clap::Args)]
#[command(after_help = "\
The file system must not be mounted. All file data is read and gets checksums, as `format` arranges it for new \
file systems. Existing damage is not detected. Interrupted, the upgrade continues when it is started \
again. Earlier versions of EVFS can then only read the file system.

Examples:
  evfs upgrade disk.img
  evfs upgrade disk.img --dry-run")]
pub struct Args {
    #[command(flatten)]
    on: DeviceArgs,
    #[command(flatten)]
    dry_run: DryRun,
}

pub const UPGRADED: Document<Upgraded> = Document::new("evfs/upgrade/1");

pub fn run(context: &Context, args: &Args) -> Result<u8> {
    let context = &args.dry_run.context(context);
    let on = args.on.resolved(context)?;
    let bar = Bar::new(context.json, "upgraded");
    let done = on.with(context, |target| {
        filesystem::upgrade(target, &mut |done, of| bar.at(done, of))
    });
    bar.end();
    let done = done?;
    output::done(context.json, &UPGRADED, &done, || describe(&done));
    Ok(match done.unreadable_bytes {
        0 => exit::OK,
        _ => exit::CHECK_FOUND_ERRORS,
    })
}

fn describe(done: &Upgraded) -> String {
    let added = output::size(done.added_bytes);
    let mut text = format!("{added} of file data got checksums");
    if done.unreadable_bytes > 0 {
        let unreadable = output::size(done.unreadable_bytes);
        let _ = write!(
            text,
            "; the device cannot read {unreadable}: `evfs scrub` names the files"
        );
    }
    text
}
