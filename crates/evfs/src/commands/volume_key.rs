//! `evfs volume key`: the keys that open a volume.

use super::confirm::{Yes, confirm};
use super::device::VolumeArgs;
use super::names;
use super::unlock::{OwnerChange, UnlockArgs, volume_name};
use clap::Subcommand;
use cli::Context;
use cli::document::Document;
use cli::{output, qr, secrets};
use crypt::recovery::RecoveryKey;
use crypt::{Action, Identified, KeyEntry, NewSecret, Role, Volume};
use schemars::JsonSchema;
use secret::SecretBytes;
use serde::Serialize;
use stack::volume::{Intent, open_locked};
use stack::{Error, KeyFrom, Result, exit};
use std::path::{Path, PathBuf};

/// Value of `--recovery` without a name, which no key pair can have: print a recovery key.
pub const PRINTED: &str = "-";

#[derive(Subcommand)]
pub enum Command {
    /// Add a key that opens the volume; requires the owner's key
    #[command(
        after_help = "Examples:\n  evfs volume key add disk.img --user bob\n  evfs volume key add disk.img --user age1...             a public key that was received as text\n  evfs volume key add disk.img --recovery safe\n  evfs volume key add disk.img --recovery                 print a recovery key\n  evfs volume key add disk.img --recovery --qr            print it also as a QR code\n  evfs volume key add disk.img --new-passphrase --label laptop\n  evfs volume key add disk.img --new-passphrase-fd 3 --key alice 3<passphrase.txt"
    )]
    Add(AddArgs),
    /// Replace a passphrase or key file; requires the old one, or the owner's key
    #[command(after_help = "\
The keyslot keeps its number and its role. The old secret is destroyed after the new one has opened \
what was written for it.

Examples:
  evfs volume key change disk.img                             ask for the old and the new passphrase
  evfs volume key change disk.img --key-slot 2 --key alice    as the owner
  evfs volume key change disk.img --unlock-passphrase-fd 3 --new-passphrase-fd 4 3<old.txt 4<new.txt")]
    Change(ChangeArgs),
    /// Test whether a key opens the volume, and show its keyslot and its role; changes nothing
    #[command(
        after_help = "Examples:\n  evfs volume key test disk.img --passphrase\n  evfs volume key test disk.img --key bob\n  evfs volume key test disk.img --key-slot 2 --passphrase-fd 3 3<passphrase.txt"
    )]
    Test {
        #[command(flatten)]
        on: VolumeArgs,
        #[command(flatten)]
        unlock: UnlockArgs,
    },
    /// Remove a key from the volume; requires the owner's key
    #[command(
        after_help = "Examples:\n  evfs volume key remove disk.img bob\n  evfs volume key remove disk.img --key-slot 2 --yes"
    )]
    Remove(RemoveArgs),
    /// List the keys of a volume
    List {
        #[command(flatten)]
        on: VolumeArgs,
    },
}

#[derive(clap::Args)]
pub struct RemoveArgs {
    #[command(flatten)]
    on: VolumeArgs,
    /// Keyslot number, or the name, public key or label of a key
    #[arg(required_unless_present = "keyslot", add = names::keys())]
    which: Option<String>,
    /// Remove this keyslot, even if a key has the number as its name
    #[arg(long = "key-slot", value_name = "N", conflicts_with = "which")]
    keyslot: Option<u32>,
    #[command(flatten)]
    change: OwnerChange,
    #[command(flatten)]
    yes: Yes,
}

#[derive(clap::Args)]
pub struct AddArgs {
    #[command(flatten)]
    on: VolumeArgs,
    #[command(flatten)]
    new: NewKey,
    /// Label of the passphrase, key file or recovery key, for the list of keys
    #[arg(long, value_name = "TEXT", value_parser = label)]
    label: Option<String>,
    /// Also draw the printed recovery key as a QR code, which is as secret as the key
    #[arg(long, requires = "recovery")]
    qr: bool,
    #[command(flatten)]
    change: OwnerChange,
}

#[derive(clap::Args)]
#[group(required = true, multiple = false, id = "new_key")]
struct NewKey {
    /// Add a key pair that may attach the volume; its public half is enough, also as `age1...`
    #[arg(long, value_name = "NAME", add = names::keys())]
    user: Option<String>,
    /// Add a key pair that may only set a new owner; without NAME, a recovery key that is printed
    #[arg(
        long,
        value_name = "NAME",
        num_args = 0..=1,
        default_missing_value = PRINTED,
        add = names::keys()
    )]
    recovery: Option<String>,
    /// Add a passphrase, asked for twice at the terminal
    #[arg(long)]
    new_passphrase: bool,
    /// Add a passphrase, read from this file descriptor
    #[arg(long, value_name = "N")]
    new_passphrase_fd: Option<i32>,
    /// Add the content of this file as a key
    #[arg(long, value_name = "FILE")]
    new_key_file: Option<PathBuf>,
}

#[derive(clap::Args)]
pub struct ChangeArgs {
    #[command(flatten)]
    on: VolumeArgs,
    /// Change this keyslot [default: the one that opens the volume]
    #[arg(long, value_name = "N")]
    key_slot: Option<u32>,
    /// Read the new passphrase from this file descriptor [default: ask twice at the terminal]
    #[arg(long, value_name = "N", conflicts_with = "new_key_file")]
    new_passphrase_fd: Option<i32>,
    /// Use the content of this file as the new key
    #[arg(long, value_name = "FILE")]
    new_key_file: Option<PathBuf>,
    /// New label [default: the old one]
    #[arg(long, value_name = "TEXT", value_parser = label)]
    label: Option<String>,
    #[command(flatten)]
    change: OwnerChange,
}

/// A key that opens a volume.
#[derive(Serialize, JsonSchema)]
pub struct ShownVolumeKey {
    /// Number of the keyslot.
    keyslot: u32,
    /// `owner`, `user` or `recovery`; `unbound` for a keyslot that does not open the volume.
    role: String,
    /// Name of the key pair.
    name: Option<String>,
    /// Label of a passphrase, a key file or a recovery key.
    label: Option<String>,
    /// Public half of the key pair; null for a passphrase, a key file or a recovery key.
    public: Option<String>,
    /// Fingerprint of the public half.
    fingerprint: Option<String>,
    /// Name of the key derivation function, or why the keyslot is not usable here.
    kdf: String,
}

/// A key that was added.
#[derive(Serialize, JsonSchema)]
pub struct AddedKey {
    #[serde(flatten)]
    key: ShownVolumeKey,
    /// The recovery key, if one was requested. It is secret, and not shown again.
    #[serde(skip_serializing_if = "Option::is_none")]
    recovery_key: Option<String>,
}

/// The keys that open a volume.
#[derive(Serialize, JsonSchema)]
pub struct VolumeKeys {
    /// The keys, by keyslot.
    keys: Vec<ShownVolumeKey>,
}

/// A keyslot that was destroyed.
#[derive(Serialize, JsonSchema)]
pub struct RemovedKeyslot {
    /// Number of the keyslot.
    removed: u32,
}

pub const KEY: Document<ShownVolumeKey> = Document::new("evfs/volume-key/1");
pub const ADDED: Document<AddedKey> = Document::new("evfs/volume-key-add/1");
pub const KEYS: Document<VolumeKeys> = Document::new("evfs/volume-keys/1");
pub const REMOVED: Document<RemovedKeyslot> = Document::new("evfs/volume-key-remove/1");

/// Parses the label of a keyslot.
pub fn label(text: &str) -> std::result::Result<String, String> {
    crypt::check_label(text).map(|()| text.to_owned())
}

pub fn run(context: &Context, command: Command) -> Result<u8> {
    match command {
        Command::Add(args) => add(&args.change.context(context), args),
        Command::Change(args) => change(&args.change.context(context), &args),
        Command::Test { on, unlock } => test(context, &on.resolved(context)?, &unlock),
        Command::Remove(args) => remove(&args.change.context(context), &args),
        Command::List { on } => {
            let device = on.resolved(context)?;
            let keys = open_locked(&device, Intent::Inspect, &context.settings)?
                .volume
                .keys();
            let content = VolumeKeys {
                keys: keys.iter().map(shown).collect(),
            };
            output::show(context.json, &KEYS, &content, || {
                keys.iter().map(line).collect::<Vec<_>>().join("\n")
            });
            Ok(exit::OK)
        }
    }
}

fn remove(context: &Context, args: &RemoveArgs) -> Result<u8> {
    let device = args.on.resolved(context)?;
    let mut held = open_locked(&device, Intent::ChangeHeader, &context.settings)?;
    let keyslot = match (&args.which, args.keyslot) {
        (Some(which), _) => find(context, &held.volume, which)?,
        (None, number) => number.expect("clap requires one of the two"),
    };
    let source = args.change.source(&device)?;
    let key = held.volume.key_in(keyslot)?;
    // A label of another program may have characters that cannot be typed.
    let names = [key.name.as_ref(), key.label.as_ref()];
    let mut names = names.into_iter().flatten();
    let name = names.find(|name| !name.trim().is_empty() && !name.chars().any(char::is_control));
    let name = name.map_or_else(|| keyslot.to_string(), String::clone);
    let what = format!(
        "This destroys {} of {}; its key or passphrase no longer opens the volume",
        short(&key),
        device.display()
    );
    let opener = context.opener();
    held.change(&opener, &source, Action::ChangeKeys, |volume, unlocked| {
        confirm(args.yes.yes, &what, &name)?;
        Ok(volume.remove_key(unlocked, keyslot)?)
    })?;
    let content = RemovedKeyslot { removed: keyslot };
    output::done(context.json, &REMOVED, &content, || {
        format!("removed keyslot {keyslot}")
    });
    Ok(exit::OK)
}

/// Finds the keyslot that an argument names. A number that is also the name of a key pair of this
/// user is refused, unless both are the same key.
fn find(context: &Context, volume: &Volume, which: &str) -> Result<u32> {
    let keyslot = volume.find_key(which)?;
    let is_number = which.parse::<u32>().is_ok();
    let own = is_number.then(|| context.keyring().recipient(which).ok());
    let Some(own) = own.flatten().map(|own| own.to_string()) else {
        return Ok(keyslot);
    };
    let keys = volume.keys();
    let numbered = keys.iter().find(|k| k.keyslot == keyslot);
    let is_own = |key: &&KeyEntry| key.recipient.as_ref() == Some(&own);
    if numbered.is_some_and(|key| is_own(&key)) {
        return Ok(keyslot);
    }
    let pair = match keys.iter().find(is_own) {
        Some(key) => format!("is in {}: use --key-slot {}", short(key), key.keyslot),
        None => "has no keyslot there".into(),
    };
    Err(Error::Usage(format!(
        "{}: `{which}` is ambiguous: --key-slot {keyslot} selects {}; the key pair of this user with that name {pair}",
        volume.name(),
        numbered.map_or_else(|| format!("keyslot {keyslot}"), short),
    )))
}

/// Key to be added.
enum New {
    Pair(Role, Box<Identified>),
    Secret(SecretBytes),
    Recovery(RecoveryKey),
}

impl NewKey {
    fn read(&self, context: &Context) -> Result<New> {
        let keyring = context.keyring();
        let pair = |role, which: &str| {
            let (name, recipient) = keyring.named_or_public(which)?;
            let who = Identified::of(&name, recipient);
            Ok::<_, Error>(New::Pair(role, Box::new(who)))
        };
        let prompt = "New passphrase";
        match (&self.user, &self.recovery, self.new_passphrase_fd) {
            (Some(name), ..) => pair(Role::User, name),
            (_, Some(name), _) if name == PRINTED => Ok(New::Recovery(RecoveryKey::generate())),
            (_, Some(name), _) => pair(Role::Recovery, name),
            (.., Some(fd)) => Ok(New::Secret(secrets::new_from_fd(fd, prompt)?)),
            _ => match &self.new_key_file {
                Some(file) => Ok(New::Secret(secrets::from_key_file(file)?)),
                None => {
                    let instead = "use --new-passphrase-fd N or --new-key-file FILE";
                    Ok(New::Secret(secrets::ask_new(prompt, instead)?))
                }
            },
        }
    }
}

fn add(context: &Context, args: AddArgs) -> Result<u8> {
    check_qr(
        context,
        args.qr,
        args.new.recovery.as_deref() == Some(PRINTED),
    )?;
    // The new key is read first: it may have to be typed, and the header is locked afterwards.
    let new = args.new.read(context)?;
    let label = args.label.as_deref();
    if label.is_some() && matches!(new, New::Pair(..)) {
        return Err(Error::Usage(
            "--label is for passphrases, key files and recovery keys; a key pair has its name"
                .into(),
        ));
    }
    let device = args.on.resolved(context)?;
    let source = args.change.source(&device)?;
    let mut held = open_locked(&device, Intent::ChangeHeader, &context.settings)?;
    let (opener, what) = (context.opener(), Action::ChangeKeys);
    let keyslot = held.change(&opener, &source, what, |volume, unlocked| {
        let (role, secret) = match &new {
            New::Pair(role, who) => return Ok(volume.add_pair(unlocked, *role, who)?),
            New::Secret(secret) => (None, stretched(context, secret)),
            New::Recovery(key) => (Some(Role::Recovery), NewSecret::recovery(key)),
        };
        Ok(volume.add_secret(unlocked, role, secret.labeled(label))?)
    })?;
    let key = held.volume.key_in(keyslot)?;
    let mut text = line(&key);
    let printed = match &new {
        // That of a dry run opens nothing.
        New::Recovery(key) if !output::is_dry_run() => Some(key),
        _ => None,
    };
    if let Some(key) = printed {
        show_recovery_key(key, args.qr, &mut text);
    }
    let content = AddedKey {
        key: shown(&key),
        recovery_key: printed.map(|key| key.text().to_owned()),
    };
    output::done(context.json, &ADDED, &content, || text);
    if printed.is_some() {
        say_recovery_key(context, &device);
    }
    Ok(exit::OK)
}

/// Measures the cost of the key derivation for a new passphrase or key file.
pub fn stretched<'a>(context: &Context, secret: &'a SecretBytes) -> NewSecret<'a> {
    output::say(context.json, "measuring the cost of the key derivation");
    NewSecret::new(secret, stack::volume::passphrase_kdf(&context.settings))
}

/// Refuses `--qr` if no recovery key is printed as text.
pub fn check_qr(context: &Context, qr: bool, is_printed: bool) -> Result<()> {
    let why = match (qr, is_printed, context.json) {
        (true, false, _) => {
            "--qr draws a recovery key that is printed: use --recovery without NAME"
        }
        (true, _, true) => {
            "--qr draws a recovery key for people, and --json prints it for programs"
        }
        _ => return Ok(()),
    };
    Err(Error::Usage(why.into()))
}

/// Adds a recovery key to the result of the command that generated it, with `qr` also as a code.
pub fn show_recovery_key(key: &RecoveryKey, qr: bool, text: &mut String) {
    text.truncate(text.trim_end().len());
    text.push_str("\n\n");
    text.push_str(key.text());
    text.push('\n');
    if qr {
        text.push('\n');
        text.push_str(&qr::drawn(key.text()).expect("a recovery key fits into a QR code"));
    }
}

/// Explains a recovery key that was shown.
pub fn say_recovery_key(context: &Context, device: &Path) {
    let words = format!(
        "Print the recovery key or write it down, and keep it away from this machine: it is not shown again. It sets a new owner: `evfs volume owner set {} --new-passphrase --unlock-passphrase`.",
        device.display()
    );
    output::say(context.json, &words);
}

fn change(context: &Context, args: &ChangeArgs) -> Result<u8> {
    let device = args.on.resolved(context)?;
    let mut source = args.change.source(&device)?;
    if args.key_slot.is_none() && matches!(source.from, KeyFrom::Any) {
        // A key pair of this user might open the volume, but has no secret to change.
        source.from = KeyFrom::Terminal;
    }
    let given = match (args.new_passphrase_fd, &args.new_key_file) {
        (Some(fd), _) => Some(secrets::new_from_fd(fd, "New passphrase")?),
        (None, Some(file)) => Some(secrets::from_key_file(file)?),
        (None, None) => None,
    };
    let mut held = open_locked(&device, Intent::ChangeHeader, &context.settings)?;
    if let Some(keyslot) = args.key_slot {
        held.volume.secret_in(keyslot)?;
    }
    let (opener, what) = (context.opener(), Action::ChangeOwnSecret);
    let keyslot = held.change(&opener, &source, what, |volume, unlocked| {
        let keyslot = args.key_slot.unwrap_or(unlocked.keyslot);
        // Refused before the new secret has to be typed.
        volume.secret_in(keyslot)?;
        if keyslot != unlocked.keyslot {
            unlocked.role.allow(Action::ChangeKeys)?;
        }
        let secret = match given {
            Some(given) => given,
            None => {
                let prompt = format!("New passphrase for keyslot {keyslot}");
                secrets::ask_new(&prompt, "use --new-passphrase-fd N or --new-key-file FILE")?
            }
        };
        let new = stretched(context, &secret).labeled(args.label.as_deref());
        volume.change_secret(unlocked, keyslot, new)?;
        Ok(keyslot)
    })?;
    let key = held.volume.key_in(keyslot)?;
    output::done(context.json, &KEY, &shown(&key), || {
        format!("changed {}", short(&key))
    });
    Ok(exit::OK)
}

fn test(context: &Context, device: &Path, unlock: &UnlockArgs) -> Result<u8> {
    let source = unlock.source(&volume_name(device))?;
    let held = open_locked(device, Intent::Inspect, &context.settings)?;
    let unlocked = held.test(&context.opener(), &source)?;
    let key = held.volume.key_in(unlocked.keyslot)?;
    output::show(context.json, &KEY, &shown(&key), || {
        format!("the key opens {}", short(&key))
    });
    Ok(exit::OK)
}

/// Describes a key for the documents of volumes.
pub fn shown(key: &KeyEntry) -> ShownVolumeKey {
    ShownVolumeKey {
        keyslot: key.keyslot,
        role: role(key),
        name: key.name.clone(),
        label: key.label.clone(),
        public: key.recipient.clone(),
        fingerprint: key.fingerprint(),
        kdf: key.kdf.clone(),
    }
}

/// Formats the role of a key; a keyslot that does not hold the volume key has none.
fn role(key: &KeyEntry) -> String {
    if key.bound {
        key.role.to_string()
    } else {
        "unbound".into()
    }
}

fn what(key: &KeyEntry) -> String {
    let label = key.label.as_deref().map(str::escape_debug);
    let label = label.map_or_else(String::new, |label| format!(" `{label}`"));
    match (&key.name, &key.recipient) {
        _ if !key.bound => "key that does not open this volume".into(),
        (Some(name), Some(_)) => format!("key pair {}", name.escape_debug()),
        _ if key.is_recovery_key() => format!("recovery key{label}"),
        _ => format!("passphrase or key file{label}"),
    }
}

/// Formats a key within a sentence.
pub fn short(key: &KeyEntry) -> String {
    format!("keyslot {} ({}, {})", key.keyslot, role(key), what(key))
}

/// Formats a key as a line of its own, with the fingerprint of a key pair.
pub fn line(key: &KeyEntry) -> String {
    let (role, what) = (role(key), what(key));
    let print = key.fingerprint().filter(|_| key.bound);
    let print = print.map_or_else(String::new, |print| format!(" {print}"));
    format!(
        "keyslot {:<3}   {role:<9} {what}{print} ({})",
        key.keyslot, key.kdf
    )
}
