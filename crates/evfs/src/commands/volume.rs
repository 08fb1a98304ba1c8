//! `evfs volume`: create, inspect, repair and destroy encrypted volumes.

pub mod shown;

use super::confirm::{Yes, confirm, or_force};
use super::device::VolumeArgs;
use super::dry_run::DryRun;
use super::unlock::OwnerChange;
use super::{Context, handle, names, volume_backups, volume_key, volume_trust};
use clap::Subcommand;
use cli::{output, secrets};
use crypt::recovery::RecoveryKey;
use crypt::{Action, CopyReport, KeyEntry};
use secret::SecretBytes;
use shown::{
    ShownVolume, VolumeBackup, VolumeCheck, VolumeErased, VolumeMade, VolumeOwner, VolumeRepair,
    VolumeRestored,
};
use stack::backups::{HEADER_BYTES_MAX, Reason};
use stack::device::Sharing;
use stack::trust::TrustStore;
use stack::volume::{
    Create, Intent, Owner, create, open_disk, open_locked, save_backup, write_new,
};
use stack::{Error, Existing, Left, Result, exit};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

#[derive(Subcommand)]
pub enum Command {
    /// Create an encrypted volume on a file or disk
    #[command(
        after_help = "Examples:\n  evfs volume create disk.img --size 10G --owner alice\n  evfs volume create disk.img --size 10G --passphrase --recovery\n  evfs volume create /dev/sdb --owner alice --recovery safe --key-bits 256"
    )]
    Create(CreateArgs),
    /// Show the content of the header
    Info {
        #[command(flatten)]
        on: VolumeArgs,
    },
    /// Check both header copies and the location of the data; changes nothing
    Check {
        #[command(flatten)]
        on: VolumeArgs,
    },
    /// Rewrite a damaged header copy from the intact one
    Repair(RepairArgs),
    /// Manage the keys that open a volume
    #[command(subcommand)]
    Key(volume_key::Command),
    /// Manage the owner of a volume
    #[command(subcommand)]
    Owner(OwnerCommand),
    /// Save and restore the header
    #[command(subcommand)]
    Header(HeaderCommand),
    /// Show the trust records of volumes on this machine, or reset one
    Trust(volume_trust::Args),
    /// Destroy all keys of a volume, which makes its data unrecoverable
    #[command(after_help = "\
The header is saved in the backup directory: `evfs volume header restore` undoes the erasure.

Examples:
  evfs volume erase disk.img --dry-run
  evfs volume erase disk.img")]
    Erase(EraseArgs),
}

#[derive(clap::Args)]
pub struct RepairArgs {
    #[command(flatten)]
    on: VolumeArgs,
    /// Seal the header as it is, to accept a change made by another program; requires the owner's
    /// key or a recovery key
    #[arg(long)]
    reseal: bool,
    #[command(flatten)]
    change: OwnerChange,
    #[command(flatten)]
    yes: Yes,
}

#[derive(clap::Args)]
pub struct EraseArgs {
    #[command(flatten)]
    on: VolumeArgs,
    /// Require neither the owner's key nor a confirmation
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    change: OwnerChange,
    #[command(flatten)]
    yes: Yes,
}

#[derive(clap::Args)]
pub struct CreateArgs {
    /// File or disk; a missing file is created with --size
    #[arg(add = names::devices())]
    device: PathBuf,
    /// Key pair of the owner: its name, or its public key (`age1...`)
    #[arg(
        long,
        value_name = "NAME",
        required_unless_present_any = ["passphrase", "passphrase_fd"],
        conflicts_with_all = ["passphrase", "passphrase_fd"],
        add = names::keys()
    )]
    owner: Option<String>,
    /// Make a passphrase the owner, asked for twice at the terminal
    #[arg(long)]
    passphrase: bool,
    /// Make a passphrase the owner, read from this file descriptor
    #[arg(long, value_name = "N")]
    passphrase_fd: Option<i32>,
    /// Label of the owner's passphrase, for the list of keys
    #[arg(long, value_name = "TEXT", value_parser = volume_key::label, conflicts_with = "owner")]
    key_label: Option<String>,
    /// Size of a new file, like 10G
    #[arg(long, value_parser = stack::parse_size)]
    size: Option<u64>,
    /// Length of the AES key in bits
    #[arg(long, default_value = "128", value_parser = ["128", "256"])]
    key_bits: String,
    /// Encryption sector size in bytes
    #[arg(long, default_value = "4096", value_parser = ["512", "4096"])]
    sector_size: String,
    /// Key pair that may only set a new owner, or, without NAME, a recovery key that is printed;
    /// may be repeated
    #[arg(
        long,
        value_name = "NAME",
        num_args = 0..=1,
        default_missing_value = volume_key::PRINTED,
        add = names::keys()
    )]
    recovery: Vec<String>,
    /// Also draw the printed recovery key as a QR code, which is as secret as the key
    #[arg(long, requires = "recovery")]
    qr: bool,
    /// Label of the volume
    #[arg(long, default_value = "")]
    label: String,
    /// Overwrite existing data; a backup that can undo this is kept
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    dry_run: DryRun,
}

#[derive(Subcommand)]
pub enum OwnerCommand {
    /// Make a key pair or a passphrase the owner, replacing the previous owner
    #[command(
        after_help = "Examples:\n  evfs volume owner set disk.img bob --key safe\n  evfs volume owner set disk.img --new-passphrase --unlock-passphrase"
    )]
    Set(SetOwnerArgs),
}

#[derive(clap::Args)]
pub struct SetOwnerArgs {
    #[command(flatten)]
    on: VolumeArgs,
    /// Key pair of the new owner: its name, or its public key (`age1...`)
    #[arg(
        required_unless_present_any = ["new_passphrase", "new_passphrase_fd"],
        conflicts_with_all = ["new_passphrase", "new_passphrase_fd"],
        add = names::keys()
    )]
    name: Option<String>,
    /// Make a passphrase the owner, asked for twice at the terminal
    #[arg(long)]
    new_passphrase: bool,
    /// Make a passphrase the owner, read from this file descriptor
    #[arg(long, value_name = "N")]
    new_passphrase_fd: Option<i32>,
    /// Label of the passphrase, for the list of keys
    #[arg(long, value_name = "TEXT", value_parser = volume_key::label, conflicts_with = "name")]
    label: Option<String>,
    #[command(flatten)]
    change: OwnerChange,
    #[command(flatten)]
    yes: Yes,
}

#[derive(Subcommand)]
pub enum HeaderCommand {
    /// Save the header and keyslots to a new file
    Backup {
        #[command(flatten)]
        on: VolumeArgs,
        /// File to create; must not exist
        file: PathBuf,
    },
    /// Restore a saved header
    Restore(RestoreArgs),
    /// List the backups that EVFS made of headers and data before it overwrote them
    #[command(
        after_help = "Header backups that you made are not listed.\n\nExamples:\n  evfs volume header list"
    )]
    List,
    /// Delete old backups that EVFS made, and keep the newest of each volume
    #[command(after_help = "\
Each backup is overwritten before it is deleted. Backups of private keys, and header backups that you \
made, stay.

Examples:
  evfs volume header prune
  evfs volume header prune --keep 3 --yes")]
    Prune {
        /// Number of backups to keep of each volume
        #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
        keep: u32,
        #[command(flatten)]
        yes: Yes,
    },
}

#[derive(clap::Args)]
pub struct RestoreArgs {
    #[command(flatten)]
    on: VolumeArgs,
    /// File written by `evfs volume header backup`
    file: PathBuf,
    /// Restore over another volume, or over a device without a volume
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    yes: Yes,
    /// Restore a header that is older than the one this machine knows; keys that were removed since
    /// then open the volume again
    #[arg(long)]
    older: bool,
    #[command(flatten)]
    dry_run: DryRun,
}

pub fn run(context: &Context, command: Command) -> Result<u8> {
    match command {
        Command::Create(args) => create_volume(context, args),
        Command::Info { on } => info(context, &on.resolved(context)?),
        Command::Check { on } => check(context, &on.resolved(context)?),
        Command::Repair(args) => repair(&args.change.context(context), &args),
        Command::Key(command) => volume_key::run(context, command),
        Command::Owner(OwnerCommand::Set(args)) => {
            let context = args.change.context(context);
            let device = args.on.resolved(&context)?;
            set_owner(&context, &args, &device)
        }
        Command::Header(HeaderCommand::Backup { on, file }) => {
            backup(context, &on.resolved(context)?, &file)
        }
        Command::Header(HeaderCommand::Restore(args)) => {
            let context = args.dry_run.context(context);
            let device = args.on.resolved(&context)?;
            let name = device.display().to_string();
            or_force(args.force, &name, |force| {
                restore(&context, &device, &args, force)
            })
        }
        Command::Header(HeaderCommand::List) => volume_backups::list(context),
        Command::Header(HeaderCommand::Prune { keep, yes }) => {
            volume_backups::prune(context, keep, yes)
        }
        Command::Trust(args) => volume_trust::run(context, &args),
        Command::Erase(args) => erase(&args.change.context(context), &args),
    }
}

fn create_volume(context: &Context, args: CreateArgs) -> Result<u8> {
    let context = &args.dry_run.context(context);
    let number = |text: &str| text.parse().expect("clap accepts only numbers");
    // With a size, a new name is the path of a new file.
    let device = match args.size {
        Some(_) => args.device.clone(),
        None => handle::device(context, &args.device)?,
    };
    let name = device.display().to_string();
    let is_printed = args.recovery.iter().any(|name| name == volume_key::PRINTED);
    volume_key::check_qr(context, args.qr, is_printed)?;
    let prompt = format!("New passphrase for {name}");
    let instead = "use --passphrase-fd N";
    let secret = new_passphrase(args.passphrase, args.passphrase_fd, &prompt, instead)?;
    let owner = match &secret {
        Some(secret) => Owner::Passphrase {
            secret,
            label: args.key_label.as_deref(),
        },
        None => Owner::Pair(args.owner.as_deref().expect("clap requires an owner")),
    };
    let (printed, recovery): (Vec<_>, Vec<_>) = args
        .recovery
        .iter()
        .cloned()
        .partition(|name| name == volume_key::PRINTED);
    let recovery_key = (!printed.is_empty()).then(RecoveryKey::generate);
    let (held, undo) = or_force(args.force, &name, |force| {
        let what = Create {
            path: &device,
            size: args.size,
            existing: Existing::overwrite_if(force),
            format: crypt::Format {
                key_bits: number(&args.key_bits),
                sector_size: number(&args.sector_size),
                label: args.label.clone(),
            },
            owner,
            recovery: &recovery,
            recovery_key: recovery_key.as_ref(),
        };
        create(&what, &context.keyring(), &context.settings)
    })?;
    // The recovery key of a dry run opens nothing.
    let recovery_key = recovery_key.filter(|_| !output::is_dry_run());
    let content = VolumeMade {
        volume: ShownVolume::of(&held.volume),
        undo: undo.as_ref().map(|undo| undo.display().to_string()),
        recovery_key: recovery_key.as_ref().map(|key| key.text().to_owned()),
    };
    let mut text = volume_text(&held.volume);
    if let Some(undo) = &undo {
        let _ = write!(
            text,
            "\noverwritten data is saved in {}; `dd if=FILE of=DEVICE conv=notrunc` restores it",
            undo.display()
        );
    }
    if let Some(key) = &recovery_key {
        volume_key::show_recovery_key(key, args.qr, &mut text);
    }
    output::done(context.json, &shown::MADE, &content, || text);
    if output::is_dry_run() {
        return Ok(exit::OK);
    }
    if recovery_key.is_some() {
        volume_key::say_recovery_key(context, &device);
    } else if args.recovery.is_empty() {
        output::say(context.json, &without_recovery(&owner, &name));
    }
    Ok(exit::OK)
}

/// Reads the passphrase of a new owner, if one is asked for. `instead` names the option to use
/// without a terminal.
fn new_passphrase(
    is_typed: bool,
    fd: Option<i32>,
    prompt: &str,
    instead: &str,
) -> Result<Option<SecretBytes>> {
    match fd {
        Some(fd) => secrets::new_from_fd(fd, prompt).map(Some),
        None if is_typed => secrets::ask_new(prompt, instead).map(Some),
        None => Ok(None),
    }
}

/// Words the advice about a volume without recovery keys.
fn without_recovery(owner: &Owner<'_>, name: &str) -> String {
    match owner {
        Owner::Pair(owner) => format!(
            "Without the key `{owner}` the data is lost: `evfs volume key add {name} --recovery NAME` adds a key that can set another owner."
        ),
        Owner::Passphrase { .. } => format!(
            "Without the passphrase the data is lost: `evfs volume key add {name} --recovery` prints a recovery key that can set another one."
        ),
    }
}

fn info(context: &Context, device: &Path) -> Result<u8> {
    let held = open_locked(device, Intent::Inspect, &context.settings)?;
    let content = ShownVolume::of(&held.volume);
    output::show(context.json, &shown::VOLUME, &content, || {
        volume_text(&held.volume)
    });
    Ok(exit::OK)
}

fn check(context: &Context, device: &Path) -> Result<u8> {
    let disk = open_disk(device, Intent::Inspect, &context.settings)?;
    let _guard = disk.header_lock(Sharing::Shared)?;
    let report = crypt::check(disk.device())?;
    let copy = |c: &CopyReport| match c {
        CopyReport::Valid { seqid } => format!("valid, sequence id {seqid}"),
        CopyReport::Damaged { why } => format!("not usable: {why}"),
    };
    let content = VolumeCheck {
        primary: copy(&report.primary),
        secondary: copy(&report.secondary),
        findings: report.findings.clone(),
        ok: report.findings.is_empty(),
    };
    output::show(context.json, &shown::CHECK, &content, || {
        let mut text = format!(
            "primary header    {}\nsecondary header  {}\n",
            content.primary, content.secondary
        );
        for finding in &content.findings {
            let _ = writeln!(text, "found: {finding}");
        }
        if report.can_be_repaired() {
            let name = device.display();
            let _ = writeln!(text, "`evfs volume repair {name}` repairs the damaged copy");
        }
        if content.ok {
            text.push_str("no errors");
        }
        text.trim_end().to_owned()
    });
    Ok(if content.ok {
        exit::OK
    } else {
        exit::CHECK_FOUND_ERRORS
    })
}

fn repair(context: &Context, args: &RepairArgs) -> Result<u8> {
    let device = &args.on.resolved(context)?;
    let mut done = {
        let disk = open_disk(device, Intent::ChangeHeader, &context.settings)?;
        let _guard = disk.header_lock(Sharing::Exclusive)?;
        crypt::repair(disk.device())?
    };
    if args.reseal && output::is_dry_run() && !done.is_empty() {
        // The device would have to be repaired to be opened.
        done.push("seals the header as it is then".into());
    } else if args.reseal {
        let mut held = open_locked(device, Intent::ChangeHeader, &context.settings)?;
        let source = args.change.source(device)?;
        let ask = |volume: &crypt::Volume| {
            let keys = volume.keys();
            let keys: Vec<String> = keys.iter().map(volume_key::short).collect();
            let what = format!(
                "This seals the header of {} as it is: from then on {} are trusted, no matter \
                 which user added them",
                device.display(),
                keys.join(" and ")
            );
            confirm(args.yes.yes, &what, &device.display().to_string())
        };
        held.reseal(&context.opener(), &source, ask)?;
        done.push("sealed the header as it is, with these keys:".into());
        done.extend(held.volume.keys().iter().map(volume_key::line));
    }
    let content = VolumeRepair { repaired: done };
    output::done(context.json, &shown::REPAIR, &content, || {
        match content.repaired.as_slice() {
            [] => "nothing to repair".into(),
            done => done.join("\n"),
        }
    });
    Ok(exit::OK)
}

fn set_owner(context: &Context, args: &SetOwnerArgs, device: &Path) -> Result<u8> {
    match &args.name {
        Some(name) => set_owner_pair(context, args, device, name),
        None => set_owner_passphrase(context, args, device),
    }
}

fn set_owner_pair(
    context: &Context,
    args: &SetOwnerArgs,
    device: &Path,
    which: &str,
) -> Result<u8> {
    let (name, recipient) = context.keyring().named_or_public(which)?;
    let name = name.as_str();
    let mut held = open_locked(device, Intent::ChangeHeader, &context.settings)?;
    let source = args.change.source(device)?;
    let public = recipient.to_string();
    let owner = crypt::Identified::of(name, recipient);
    let gone = held.volume.replaced_by_owner(&owner);
    let others = gone
        .iter()
        .filter(|k| k.recipient.as_ref() != Some(&public));
    let others: Vec<String> = others.map(volume_key::short).collect();
    let opener = context.opener();
    held.change(&opener, &source, Action::SetOwner, |volume, unlocked| {
        confirm_owner(args, device, &format!("`{name}`"), &others)?;
        Ok(volume.set_owner(unlocked, &owner)?)
    })?;
    show_owner(context, &held.volume, name, &gone, &others);
    let left = held.volume.owners().into_iter();
    let left: Vec<String> = left
        .filter(|key| key.recipient.is_none())
        .map(|key| volume_key::short(&key))
        .collect();
    if !left.is_empty() {
        let words = format!("{} remains an owner, too", left.join(" and "));
        output::say(context.json, &words);
    }
    Ok(exit::OK)
}

fn set_owner_passphrase(context: &Context, args: &SetOwnerArgs, device: &Path) -> Result<u8> {
    let source = args.change.source(device)?;
    let prompt = format!("New passphrase for {}", device.display());
    // One that has to be typed is asked for when the volume is open.
    let instead = "use --new-passphrase-fd N";
    let given = new_passphrase(false, args.new_passphrase_fd, &prompt, instead)?;
    let mut held = open_locked(device, Intent::ChangeHeader, &context.settings)?;
    let gone = held.volume.owners();
    let others: Vec<String> = gone.iter().map(volume_key::short).collect();
    let opener = context.opener();
    held.change(&opener, &source, Action::SetOwner, |volume, unlocked| {
        confirm_owner(args, device, "the new passphrase", &others)?;
        let typed = new_passphrase(given.is_none(), None, &prompt, instead)?;
        let secret = given.or(typed).expect("one of the two was read");
        let new = volume_key::stretched(context, &secret).labeled(args.label.as_deref());
        Ok(volume.set_owner_secret(unlocked, new)?)
    })?;
    show_owner(context, &held.volume, "the new passphrase", &gone, &others);
    Ok(exit::OK)
}

/// Asks before the keyslots `others` are destroyed by a new owner.
fn confirm_owner(args: &SetOwnerArgs, device: &Path, new: &str, others: &[String]) -> Result<()> {
    if others.is_empty() {
        return Ok(());
    }
    let what = format!(
        "This makes {new} the owner of {} and destroys {}; `evfs volume key add` gives other users access again",
        device.display(),
        others.join(" and ")
    );
    confirm(args.yes.yes, &what, &device.display().to_string())
}

fn show_owner(
    context: &Context,
    volume: &crypt::Volume,
    new: &str,
    gone: &[KeyEntry],
    others: &[String],
) {
    let content = VolumeOwner {
        volume: ShownVolume::of(volume),
        removed: gone.iter().map(volume_key::shown).collect(),
    };
    output::done(context.json, &shown::OWNER, &content, || match others {
        [] => format!("{new} is now the owner"),
        others => format!("{new} is now the owner; removed {}", others.join(" and ")),
    });
}

fn backup(context: &Context, device: &Path, to: &Path) -> Result<u8> {
    let held = open_locked(device, Intent::Inspect, &context.settings)?;
    let bytes = held.volume.backup()?;
    write_new(to, &bytes)?;
    let content = VolumeBackup {
        backup: to.display().to_string(),
        bytes: bytes.len(),
    };
    output::done(context.json, &shown::BACKUP, &content, || {
        format!(
            "saved {} of header and keyslots in {}; the file and a key together open the volume",
            output::size(bytes.len() as u64),
            to.display()
        )
    });
    Ok(exit::OK)
}

fn restore(context: &Context, device: &Path, args: &RestoreArgs, force: bool) -> Result<u8> {
    let from = args.file.as_path();
    let bytes = stack::state_file::read_up_to(from, HEADER_BYTES_MAX)
        .map_err(|e| Error::io("cannot read the header backup", from, e))?;
    let disk = open_disk(device, Intent::Replace, &context.settings)?;
    let _guard = disk.header_lock(Sharing::Exclusive)?;
    let plan = crypt::plan_restore(disk.device(), &bytes)?;
    if let Some(why) = &plan.objection
        && !force
    {
        return Err(Error::WouldDestroy {
            device: device.display().to_string(),
            found: why.clone(),
            kept: Left::All,
        });
    }
    let store = TrustStore::of(&context.settings);
    let older = store.check_restore(&device.display().to_string(), &plan, args.older)?;
    let older = if older {
        ", which are older than those that this machine remembers: keys removed since then open the volume again"
    } else {
        ""
    };
    let what = format!(
        "This replaces the header and all keyslots of {} by those of {}{older}",
        device.display(),
        from.display()
    );
    confirm(args.yes.yes || force, &what, &device.display().to_string())?;
    // The trust store first: after a crash in between it knows less than it could, and refuses
    // nothing.
    store.before_restore(&disk, &plan)?;
    let undo = save_backup(
        &context.settings,
        device,
        Reason::BeforeRestore,
        &plan.overwritten,
    )?;
    plan.apply()?;
    let content = VolumeRestored {
        restored: device.display().to_string(),
        undo: undo.display().to_string(),
    };
    output::done(context.json, &shown::RESTORED, &content, || {
        format!(
            "restored; the previous header is saved in {}",
            undo.display()
        )
    });
    Ok(exit::OK)
}

fn erase(context: &Context, args: &EraseArgs) -> Result<u8> {
    let device = &args.on.resolved(context)?;
    let mut held = open_locked(device, Intent::Replace, &context.settings)?;
    if !args.force {
        let source = args.change.source(device)?;
        held.unlock(&context.opener(), &source, Action::Erase)?;
    }
    let name = device.display().to_string();
    let what = format!("This destroys all keyslots of {name}, after which no key opens it");
    confirm(args.yes.yes || args.force, &what, &name)?;
    let saved = held.volume.backup()?;
    let undo = save_backup(&context.settings, device, Reason::Erased, &saved)?;
    held.volume.erase()?;
    let content = VolumeErased {
        erased: name,
        undo: undo.display().to_string(),
    };
    output::done(context.json, &shown::ERASED, &content, || {
        format!(
            "erased: no key opens {} any more\nthe header is saved in {}; restoring it undoes the erasure, \
             destroying it (shred -u) makes the erasure final",
            content.erased, content.undo
        )
    });
    Ok(exit::OK)
}

fn volume_text(volume: &crypt::Volume) -> String {
    let mut text = format!(
        "UUID          {}\nlabel         {}\ncipher        aes-xts-plain64, {} bits\nsector size   {} bytes\ndata          {} from byte {}\nheader        LUKS2, {}{}\n",
        volume.uuid(),
        if volume.label().is_empty() {
            "-".into()
        } else {
            volume.label().escape_debug().to_string()
        },
        volume.key_bits(),
        volume.sector_size(),
        if volume.is_cut_short() {
            "incomplete (a header backup or a truncated device),".into()
        } else {
            output::size(volume.data_size())
        },
        volume.segment().offset,
        if volume.is_sealed() {
            "sealed"
        } else {
            "not sealed (created by another program)"
        },
        if volume.needs_repair() {
            ", one copy is damaged: run `evfs volume repair`"
        } else {
            ""
        },
    );
    for key in volume.keys() {
        let _ = writeln!(text, "{}", volume_key::line(&key));
    }
    text
}
