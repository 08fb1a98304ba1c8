//! `evfs format`, `mount`, `unmount`, `fsck`, `defrag`, `df`: file systems.

use super::confirm::{Yes, or_force};
use super::device::DeviceArgs;
use super::dry_run::DryRun;
use super::{handle, names, scrub, service};
use cli::document::Document;
use cli::progress::Bar;
use cli::{Context, output};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use stack::control::{DefragRequest, FsRequest};
use stack::filesystem::{
    self, BLOCK_BYTES, Checked, DataChecksums, Defragmented, Finding, FindingKind, Formatted,
    Repair, Report, RootDir, Scope, ShownUsage,
};
use stack::{Atime, Error, Existing, MountSpec, Result, ServiceSpec, exit};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(after_help = "\
If DEVICE is an encrypted volume, a key opens it; otherwise the file system is not encrypted.

The user who runs the command owns the root directory, and its mode is 0755: no other user but root can \
create files in it. --root-owner and --root-mode change that, as do chown(1) and chmod(1) once it is mounted.

Examples:
  evfs volume create disk.img --size 10G --owner alice && evfs format disk.img
  evfs format clear.img --size 10G
  evfs format disk7 --label archive --key alice
  evfs format disk.img --integrity                                  changes on the disk are errors
  evfs format shared.img --root-owner 0:100 --root-mode 2775        for all members of group 100")]
pub struct FormatArgs {
    #[command(flatten)]
    on: DeviceArgs,
    /// Label of the file system
    #[arg(long, default_value = "", hide_default_value = true)]
    label: String,
    /// Size of a new file, like 10G; the file is not encrypted
    #[arg(long, value_parser = stack::parse_size)]
    size: Option<u64>,
    /// User, and after a colon group, that own the root directory, as numbers [default: those of the
    /// user who runs the command]
    #[arg(long, value_name = "UID[:GID]", value_parser = owner)]
    root_owner: Option<(u32, Option<u32>)>,
    /// Permissions of the root directory, in octal [default: 0755]
    #[arg(long, value_name = "MODE", value_parser = mode)]
    root_mode: Option<u32>,
    /// Store no checksums of file data: damage is not noticed, but blocks are overwritten in place,
    /// so that files with many small changes stay in one piece
    #[arg(long)]
    no_checksums: bool,
    /// Use checksums of data and metadata that need the key of the encrypted volume: changes that an
    /// attacker makes on the disk are errors. Only in an encrypted volume; cannot be added later
    #[arg(long, conflicts_with = "no_checksums")]
    integrity: bool,
    /// Overwrite existing data
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    dry_run: DryRun,
}

/// Parses `UID` or `UID:GID`.
fn owner(text: &str) -> std::result::Result<(u32, Option<u32>), String> {
    let number = |text: &str| {
        // The highest number is reserved: chown(2) reads it as "no change".
        let number = text.parse::<u32>().ok().filter(|n| *n != u32::MAX);
        number.ok_or_else(|| format!("`{text}` is not a number; `id NAME` prints those of a user"))
    };
    match text.split_once(':') {
        Some((user, group)) => Ok((number(user)?, Some(number(group)?))),
        None => Ok((number(text)?, None)),
    }
}

/// Parses permission bits in octal.
fn mode(text: &str) -> std::result::Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok();
    mode.filter(|mode| *mode <= 0o7777)
        .ok_or_else(|| "use an octal number up to 7777, such as 2770".into())
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  evfs mount disk.img /mnt --background
  evfs mount disk.img /mnt --fileset monday          mount a snapshot or another fileset
  evfs mount /dev/sdb1 /mnt --passphrase             an encrypted stick with ext4

Besides its own file system, it mounts FAT, and ext2, ext3, ext4, SquashFS and ISO 9660 read-only.

Once it is mounted, a line states the effect of sync(2) and syncfs(2): either they return when everything is \
durable (as root, from Linux 6.18 on), or they do nothing. fsync(2) and `evfs sync DIR` always work. Without \
either, all data is written out after 100 ms without a change.

An unprivileged user needs fusermount3 (or fusermount) and must own the directory to mount at.")]
pub struct MountArgs {
    #[command(flatten)]
    on: DeviceArgs,
    /// Directory to mount at
    dir: PathBuf,
    /// Fileset or snapshot to mount
    #[arg(long, value_name = "F", default_value = fs_first(), add = names::filesets())]
    fileset: String,
    /// Name of the mounted file system for `status`, `stats` and `cache` [default: derived from the
    /// device]
    #[arg(long, value_name = "N")]
    name: Option<String>,
    /// Mount read-only
    #[arg(long)]
    read_only: bool,
    /// Maximum number of concurrent requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// Allow access by other users, subject to file permissions (the default for root); requires
    /// `user_allow_other` in /etc/fuse.conf
    #[arg(long)]
    allow_other: bool,
    /// Let the kernel hold back written data for up to 30 seconds: many small writes to large files
    /// are faster, but a full disk is reported only at fsync or close, and data held back is lost
    /// if the process is killed, unless --survive is set
    #[arg(long)]
    exclusive: bool,
    /// Honor set-user-ID, set-group-ID and capabilities of programs in the file system (root only);
    /// this lets the creator of its files become root
    #[arg(long)]
    suid: bool,
    /// Allow device nodes in the file system to open devices (root only)
    #[arg(long)]
    dev: bool,
    /// Refuse to run programs in the file system
    #[arg(long)]
    noexec: bool,
    /// Continue the mount if its process is killed or crashes: a second process holds what is not on the
    /// disk yet, and starts another server, which carries out what programs are waiting for (Linux 6.9)
    #[arg(long)]
    survive: bool,
    /// When reads update the access time: once after each change and once a day, never, or always
    #[arg(long, value_name = "WHEN", value_enum, default_value = "relatime")]
    atime: AtimeArg,
    /// Longest time that one sync(2) or syncfs(2) waits for the disk, after which it fails; 0: they do
    /// nothing
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u16).range(0..=3600))]
    sync_timeout: u16,
    /// Do not show the snapshots of the fileset in the hidden directory `.snapshots` of its root
    #[arg(long)]
    no_snapshots: bool,
    /// Pass discards to the disk; this reveals which blocks are unused
    #[arg(long)]
    allow_discards: bool,
    /// Detach from the terminal once the file system is mounted
    #[arg(long)]
    background: bool,
}

/// Values of `--atime`.
#[derive(clap::ValueEnum, Clone, Copy)]
enum AtimeArg {
    /// Once after each change, and once a day
    Relatime,
    /// Never
    None,
    /// At each read, which the kernel then sends to the process instead of caching the file
    Strict,
}

#[derive(clap::Args)]
#[command(after_help = "\
Exit code 11 means that the file system is still in use; --force unmounts it in any case. At a terminal, \
--force asks if data would be lost or a user disturbed; without one, it does not ask, but scripts should add \
--yes, which a later release will require.

Examples:
  evfs unmount /mnt
  evfs unmount disk")]
pub struct UnmountArgs {
    /// Directory at which the file system is mounted, or its name or device
    dir: PathBuf,
    /// Unmount even if busy (lazy unmount; open files stay usable until closed)
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    yes: Yes,
}

#[derive(clap::Args)]
#[command(after_help = "\
Without --repair, nothing is changed. Exit code 26 means that errors were found.

With --online, the file system may be mounted or served, and files may change during the check: it examines the \
metadata of one moment. Findings are also in the log of the service and in `evfs status`. There --repair only \
returns space in use to which nothing refers; all other errors are repaired once it is detached. `evfs scrub` \
verifies the content of files in use.

Examples:
  evfs fsck disk.img
  evfs fsck disk.img --data            verify the content of files as well
  evfs fsck disk.img --repair          repair errors; move orphaned files to lost+found
  evfs fsck disk.img --repair --dry-run
  evfs fsck --online /mnt --rate 20M   check while it is in use, and leave the disk to others")]
pub struct FsckArgs {
    #[command(flatten)]
    on: DeviceArgs,
    /// Also read all file data, and compare it with its checksums
    #[arg(long)]
    data: bool,
    /// Repair errors
    #[arg(long)]
    repair: bool,
    /// Check a file system in use
    #[arg(long, conflicts_with = "data")]
    online: bool,
    /// Bytes to read per second with --online, at most, like 20M [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = scrub::parse_rate, requires = "online")]
    rate: Option<u64>,
    #[command(flatten)]
    dry_run: DryRun,
}

#[derive(clap::Args)]
#[command(after_help = "\
The file system may be mounted or served: files that change at the same time stay as they are. Data shared with a \
snapshot or another file is not moved.

With --recompress, content that was written before `evfs fileset compression` set a method is compressed, content of \
another method is compressed by the present one, and with the method off it is decompressed.

Examples:
  evfs defrag disk.img
  evfs defrag disk.img /var/lib/database
  evfs defrag disk.img --recompress    compress what is there
  evfs defrag /mnt --rate 50M          leave the rest of the disk's speed to others")]
pub struct DefragArgs {
    #[command(flatten)]
    on: DeviceArgs,
    /// File or directory, relative to the root of the fileset [default: all of every fileset]
    path: Option<String>,
    /// Fileset to defragment [default: with PATH the mounted one or main, otherwise all]
    #[arg(long, value_name = "F", add = names::filesets())]
    fileset: Option<String>,
    /// Also compress or decompress content, as filesets and files are set now
    #[arg(long)]
    recompress: bool,
    /// Bytes to move per second, at most, like 50M [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = scrub::parse_rate)]
    rate: Option<u64>,
    #[command(flatten)]
    dry_run: DryRun,
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  evfs df disk.img
  evfs df disk                         the name of a service
  evfs df /mnt")]
pub struct DfArgs {
    #[command(flatten)]
    on: DeviceArgs,
}

/// A file system that was unmounted.
#[derive(Serialize, JsonSchema)]
pub struct Unmounted {
    /// Directory at which it was mounted.
    unmounted: String,
}

/// Result of a check, and of a repair.
#[derive(Serialize, JsonSchema)]
pub struct FsckResult<'a> {
    /// Whether there are no errors now.
    clean: bool,
    /// Result of the check.
    found: &'a Report,
    /// Result of the repair, if one was requested and necessary.
    repair: Option<&'a Repair>,
}

pub const FORMATTED: Document<Formatted> = Document::new("evfs/format/1");
pub const UNMOUNTED: Document<Unmounted> = Document::new("evfs/unmount/1");
pub const CHECKED: Document<FsckResult<'static>> = Document::new("evfs/fsck/1");
pub const DEFRAGMENTED: Document<Defragmented> = Document::new("evfs/defrag/1");
pub const USAGE: Document<ShownUsage> = Document::new("evfs/df/1");

fn fs_first() -> &'static str {
    filesystem::FIRST_FILESET
}

pub fn format(context: &Context, args: &FormatArgs) -> Result<u8> {
    let context = &args.dry_run.context(context);
    let on = args.on.resolved_or_new(context, args.size)?;
    let device = on.device().display().to_string();
    let made = or_force(args.force, &device, |force| {
        on.with(context, |target| {
            let existing = Existing::overwrite_if(force);
            let (uid, gid) = args.root_owner.unzip();
            let root = RootDir {
                uid,
                gid: gid.flatten(),
                mode: args.root_mode,
            };
            let checksums = match (args.no_checksums, args.integrity) {
                (true, _) => DataChecksums::No,
                (_, true) => DataChecksums::Keyed,
                _ => DataChecksums::Yes,
            };
            filesystem::format(target, &args.label, args.size, root, checksums, existing)
        })
    })?;
    output::done(context.json, &FORMATTED, &made, || {
        let kept = made.undo.as_ref().map(|file| {
            format!(
                "\nthe start of the previous content is saved, as raw disk data, in {}",
                file.display()
            )
        });
        format!(
            "formatted {device}: {}, {}{}, uuid {}{}",
            output::size(made.size),
            if made.encrypted {
                "encrypted"
            } else {
                "not encrypted"
            },
            if made.integrity {
                ", with keyed checksums"
            } else {
                ""
            },
            made.uuid,
            kept.unwrap_or_default()
        )
    });
    Ok(exit::OK)
}

pub fn mount(context: &Context, args: MountArgs) -> Result<u8> {
    let on = args.on.resolved(context)?;
    let mut spec = MountSpec::new(on.device(), &args.dir);
    if let Some(name) = args.name {
        spec.name = name;
    }
    spec.fileset = args.fileset;
    spec.read_only = args.read_only;
    spec.threads = args.threads.map(usize::from);
    spec.allow_other = args.allow_other.then_some(true);
    spec.exclusive = args.exclusive;
    spec.survives = args.survive;
    (spec.suid, spec.dev, spec.exec) = (args.suid, args.dev, !args.noexec);
    spec.atime = match args.atime {
        AtimeArg::Relatime => Atime::Relatime,
        AtimeArg::None => Atime::None,
        AtimeArg::Strict => Atime::Strict,
    };
    spec.sync_timeout = stack::sync_timeout(args.sync_timeout);
    spec.snapshots = !args.no_snapshots;
    spec.allow_discards = args.allow_discards;
    service::run(context, &on, ServiceSpec::Mount(spec), args.background)
}

pub fn unmount(context: &Context, args: &UnmountArgs) -> Result<u8> {
    let dir = match handle::mount(context, &args.dir) {
        Ok(mounted) => {
            super::detach::detach(context, &mounted.name, args.force, args.yes)?;
            mounted.dir
        }
        Err(Error::NotFound(why)) => {
            if !filesystem::clear_dead(&args.dir)? {
                return Err(Error::NotFound(why));
            }
            args.dir.clone()
        }
        Err(error) => return Err(error),
    };
    let content = Unmounted {
        unmounted: dir.display().to_string(),
    };
    output::done(context.json, &UNMOUNTED, &content, || {
        format!("unmounted {}", content.unmounted)
    });
    Ok(exit::OK)
}

pub fn fsck(context: &Context, args: &FsckArgs) -> Result<u8> {
    let context = &args.dry_run.context(context);
    let on = args.on.resolved(context)?;
    let bar = Bar::new(context.json, "checked");
    let checked = on.with(context, |target| {
        let scope = if args.data {
            Scope::Everything
        } else {
            Scope::Metadata
        };
        let progress = &mut |done, of| bar.at(done, of);
        if args.online {
            filesystem::fsck_online(target, args.rate, args.repair, progress)
        } else {
            filesystem::fsck(target, scope, args.repair, progress)
        }
    });
    bar.end();
    let checked = checked?;
    let clean = checked.left().is_clean();
    if checked.repair.is_some() {
        output::changed();
    }
    let content = FsckResult {
        clean,
        found: &checked.found,
        repair: checked.repair.as_ref(),
    };
    output::show(context.json, &CHECKED, &content, || {
        describe_check(&checked, args)
    });
    Ok(if clean {
        exit::OK
    } else {
        exit::CHECK_FOUND_ERRORS
    })
}

fn describe_check(checked: &Checked, args: &FsckArgs) -> String {
    let mut text = String::new();
    let mut list = |title: &str, lines: &[Finding], count: u64| {
        for line in lines {
            let _ = writeln!(text, "{title}: {line}");
        }
        let more = count.saturating_sub(lines.len() as u64);
        if more > 0 {
            let _ = writeln!(text, "{title}: {more} more");
        }
    };
    let found = &checked.found;
    list("found", &found.problems, found.problem_count);
    list("noted", &found.notes, 0);
    if let Some(repair) = &checked.repair {
        list("done", &repair.done, repair.done_count);
        list("left", &repair.left.problems, repair.left.problem_count);
    }
    let now = checked.left();
    let _ = writeln!(
        text,
        "{} filesets and snapshots, {} files and directories, {} extents, {} of data, {} of metadata",
        now.trees,
        now.inodes,
        now.extents,
        output::size(now.data_blocks * BLOCK_BYTES),
        output::size(now.metadata_blocks * BLOCK_BYTES),
    );
    if now.unverified_blocks > 0 {
        let without = output::size(now.unverified_blocks * BLOCK_BYTES);
        let _ = writeln!(text, "{without} of data without checksums");
    }
    if now.orphaned_blocks > 0 {
        let orphaned = output::size(now.orphaned_blocks * BLOCK_BYTES);
        let _ = writeln!(text, "{orphaned} in use to which nothing refers");
    }
    text + match (now.is_clean(), args.repair, found.is_clean()) {
        (true, _, true) => "clean",
        (true, ..) => "repaired",
        (false, ..) if is_data_only(now) => "restore the damaged files from a backup",
        (false, _, _) if args.online => {
            "detach it, and run `evfs fsck --repair` on the device; --online --repair returns only \
             space in use to which nothing refers"
        }
        (false, true, _) => "some errors could not be repaired",
        (false, false, _) => {
            "`evfs fsck --repair` repairs the errors and moves orphaned files to lost+found"
        }
    }
}

/// Reports whether all that is damaged is content of files, which no repair can restore.
fn is_data_only(report: &Report) -> bool {
    let mut kinds = report.problems.iter().map(|finding| finding.kind);
    kinds.all(|kind| kind == FindingKind::Data)
}

pub fn defrag(context: &Context, args: &DefragArgs) -> Result<u8> {
    let context = &args.dry_run.context(context);
    let on = args.on.resolved(context)?;
    let bar = Bar::new(context.json, "defragmented");
    let what = DefragRequest {
        fileset: args.fileset.clone(),
        path: args.path.clone(),
        recompress: args.recompress,
        rate: args.rate,
    };
    let done = on.with(context, |target| {
        filesystem::defrag(target, &what, &mut |done, of| bar.at(done, of))
    });
    bar.end();
    let done = done?;
    output::done(context.json, &DEFRAGMENTED, &done, || {
        let mut text = format!(
            "{} files in {} extents, previously {}; {} files improved, {} moved",
            done.files,
            done.extents_after,
            done.extents_before,
            done.improved,
            output::size(done.moved_blocks * BLOCK_BYTES),
        );
        if args.recompress {
            let _ = write!(
                text,
                "; {} files recompressed, in {}, previously {}",
                done.recompressed,
                output::size(done.blocks_after * BLOCK_BYTES),
                output::size(done.blocks_before * BLOCK_BYTES),
            );
        }
        text
    });
    Ok(exit::OK)
}

pub fn df(context: &Context, args: &DfArgs) -> Result<u8> {
    let on = args.on.resolved(context)?;
    let value = on.with(context, |target| {
        filesystem::request(target, &FsRequest::Usage)
    })?;
    output::relay(context.json, &USAGE, &value, || {
        describe_usage(on.device(), &value)
    });
    Ok(exit::OK)
}

fn describe_usage(device: &Path, value: &Value) -> String {
    let bytes = |key: &str| output::size(value[key].as_u64().unwrap_or(0));
    format!(
        "{}  {}  {}\n  size {}  free {} (largest run {})  available {}  metadata {}  journal {}  format {}\n{}",
        device.display(),
        value["label"].as_str().unwrap_or_default(),
        value["uuid"].as_str().unwrap_or_default(),
        bytes("size_bytes"),
        bytes("free_bytes"),
        bytes("largest_free_bytes"),
        bytes("available_bytes"),
        bytes("metadata_bytes"),
        bytes("journal_bytes"),
        value["format_version"],
        super::fileset::table(value),
    )
}
