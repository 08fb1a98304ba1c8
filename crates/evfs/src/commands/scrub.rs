//! `evfs scrub`: file data compared with its checksums.

use super::device::DeviceArgs;
use cli::document::Document;
use cli::progress::Bar;
use cli::{Context, output};
use stack::filesystem::{self, Damage, DamageKind, ScrubOptions, Scrubbed};
use stack::{Result, exit};
use std::fmt::Write as _;

#[derive(clap::Args)]
#[command(after_help = "\
Every block of file data is read from the device and compared with its checksum; the file system may be \
mounted or served. Exit code 26 means that data is damaged, 27 that some of it has no checksums, as in a file \
system of an earlier version. `evfs fsck` checks the metadata.

Examples:
  evfs scrub disk.img
  evfs scrub /mnt --rate 50M           leave the rest of the disk's speed to others")]
pub struct Args {
    #[command(flatten)]
    on: DeviceArgs,
    /// Bytes to read per second, at most, like 50M [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = parse_rate)]
    rate: Option<u64>,
    /// Continue an interrupted scrub at this position, which its message named
    #[arg(long, value_name = "POSITION")]
    from: Option<String>,
}

pub fn parse_rate(text: &str) -> std::result::Result<u64, String> {
    match stack::parse_size(text)? {
        0 => Err("the rate must be at least one byte; without --rate there is no limit".into()),
        rate => Ok(rate),
    }
}

pub const SCRUBBED: Document<Scrubbed> = Document::new("evfs/scrub/1");

pub fn run(context: &Context, args: &Args) -> Result<u8> {
    let on = args.on.resolved(context)?;
    let bar = Bar::new(context.json, "scrubbed");
    let options = ScrubOptions {
        from: args.from.as_deref(),
        rate: args.rate,
    };
    let done = on.with(context, |target| {
        filesystem::scrub(target, options, &mut |done, of| bar.at(done, of))
    });
    bar.end();
    let done = done?;
    output::show(context.json, &SCRUBBED, &done, || describe(&done));
    Ok(match (done.damage_count, done.unverified_bytes) {
        (0, 0) => exit::OK,
        (0, _) => exit::CHECK_FOUND_WARNINGS,
        _ => exit::CHECK_FOUND_ERRORS,
    })
}

fn describe(done: &Scrubbed) -> String {
    let mut text = String::new();
    for damage in &done.damage {
        let _ = writeln!(text, "damaged: {}", place(damage));
    }
    let more = done.damage_count - done.damage.len() as u64;
    if more > 0 {
        let _ = writeln!(text, "damaged: {more} more");
    }
    let _ = write!(text, "{} read, ", output::size(done.read_bytes));
    if done.unverified_bytes > 0 {
        let without = output::size(done.unverified_bytes);
        let _ = write!(text, "{without} of it without checksums, ");
    }
    text + &match done.damaged_bytes {
        0 => "no damage found".to_owned(),
        bytes => format!(
            "{} damaged; restore these files from a backup",
            output::size(bytes)
        ),
    }
}

fn place(damage: &Damage) -> String {
    let path = damage.path.as_ref();
    let path = path.map_or(String::new(), |path| format!(" (/{path})"));
    format!(
        "`{}`: inode {}{path}: {} at byte {}: {}",
        damage.fileset,
        damage.inode,
        output::size(damage.bytes),
        damage.offset,
        match damage.kind {
            DamageKind::Checksum => "does not match its checksum",
            DamageKind::Device => "the device cannot read it",
        }
    )
}
