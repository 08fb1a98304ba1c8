//! `evfs volume key`: the keys that open a volume.

use super::confirm::{Answer, Yes, confirm};
use super::names;
use super::unlock::{OwnerArgs, volume_name};
use clap::Subcommand;
use cli::Context;
use cli::{output, secrets};
use crypt::{Action, Identified, KeyEntry, Role, Volume};
use serde_json::{Value, json};
use stack::volume::{Intent, open_locked};
use stack::{Error, Result, exit};
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum Command {
    /// Add a key that opens the volume; requires the owner's key
    #[command(
        after_help = "Examples:\n  evfs volume key add disk.img --user bob\n  evfs volume key add disk.img --recovery safe\n  evfs volume key add disk.img --passphrase-fd 3 --key alice 3<passphrase.txt"
    )]
    Add(AddArgs),
    /// Remove a key from the volume; requires the owner's key
    #[command(
        after_help = "Examples:\n  evfs volume key remove disk.img bob\n  evfs volume key remove disk.img --keyslot 2 --yes"
    )]
    Remove {
        /// File or disk
        #[arg(add = names::devices())]
        device: PathBuf,
        /// Keyslot number, or the name of a key pair
        #[arg(required_unless_present = "keyslot", add = names::keys())]
        which: Option<String>,
        /// Remove this keyslot, even if a key pair has the number as its name
        #[arg(long, value_name = "N", conflicts_with = "which")]
        keyslot: Option<u32>,
        #[command(flatten)]
        unlock: OwnerArgs,
        #[command(flatten)]
        yes: Yes,
    },
    /// List the keys of a volume
    List {
        /// File or disk
        #[arg(add = names::devices())]
        device: PathBuf,
    },
}

#[derive(clap::Args)]
pub struct AddArgs {
    /// File or disk
    #[arg(add = names::devices())]
    device: PathBuf,
    #[command(flatten)]
    new: NewKey,
    #[command(flatten)]
    unlock: OwnerArgs,
}

#[derive(clap::Args)]
#[group(required = true, multiple = false, id = "new_key")]
struct NewKey {
    /// Add a key pair that may attach the volume; its public half is enough
    #[arg(long, value_name = "NAME", add = names::keys())]
    user: Option<String>,
    /// Add a key pair that may only set a new owner
    #[arg(long, value_name = "NAME", add = names::keys())]
    recovery: Option<String>,
    /// Add a passphrase, read from this file descriptor
    #[arg(long, value_name = "N")]
    passphrase_fd: Option<i32>,
    /// Add the content of this file as a key
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

pub fn run(context: &Context, command: Command) -> Result<u8> {
    match command {
        Command::Add(args) => add(context, args),
        Command::Remove {
            device,
            which,
            keyslot,
            unlock,
            yes,
        } => {
            let mut held = open_locked(&device, Intent::ChangeHeader, &context.settings)?;
            let keyslot = match (which, keyslot) {
                (Some(which), _) => find(context, &held.volume, &which)?,
                (None, number) => number.expect("clap requires one of the two"),
            };
            let source = unlock.source(&volume_name(&device))?;
            let keys = held.volume.keys();
            let Some(key) = keys.iter().find(|k| k.keyslot == keyslot) else {
                return Err(Error::NotFound(format!(
                    "{}: no keyslot {keyslot}; `evfs volume key list` lists the keyslots",
                    device.display()
                )));
            };
            let what = format!(
                "This destroys {} of {}; its key or passphrase no longer opens the volume",
                short(key),
                device.display()
            );
            let opener = context.opener();
            held.change(&opener, &source, Action::ChangeKeys, |volume, unlocked| {
                confirm(yes.yes, &what, Answer::Yes)?;
                Ok(volume.remove_key(unlocked, keyslot)?)
            })?;
            output::done(context.json, &json!({ "removed": keyslot }), || {
                format!("removed keyslot {keyslot}")
            });
            Ok(exit::OK)
        }
        Command::List { device } => {
            let keys = open_locked(&device, Intent::Inspect, &context.settings)?
                .volume
                .keys();
            let value = json!({ "keys": keys.iter().map(value).collect::<Vec<_>>() });
            output::show(context.json, &value, || {
                keys.iter().map(line).collect::<Vec<_>>().join("\n")
            });
            Ok(exit::OK)
        }
    }
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
        Some(key) => format!("is in {}: use --keyslot {}", short(key), key.keyslot),
        None => "has no keyslot there".into(),
    };
    Err(Error::Usage(format!(
        "{}: `{which}` is ambiguous: --keyslot {keyslot} selects {}; the key pair of this user with that name {pair}",
        volume.name(),
        numbered.map_or_else(|| format!("keyslot {keyslot}"), short),
    )))
}

fn add(context: &Context, args: AddArgs) -> Result<u8> {
    // The new key is read first: it may have to be typed, and the header is locked afterwards.
    let keyring = context.keyring();
    let pair = |name: &str| Ok::<_, stack::Error>(Identified::of(name, keyring.recipient(name)?));
    enum New {
        Pair(Role, Box<Identified>),
        Secret(secret::SecretBytes),
    }
    let new = match (
        &args.new.user,
        &args.new.recovery,
        args.new.passphrase_fd,
        &args.new.key_file,
    ) {
        (Some(name), ..) => New::Pair(Role::User, Box::new(pair(name)?)),
        (_, Some(name), ..) => New::Pair(Role::Recovery, Box::new(pair(name)?)),
        (.., Some(fd), _) => New::Secret(secrets::from_fd(fd)?),
        (.., Some(file)) => New::Secret(secrets::from_key_file(file)?),
        _ => unreachable!("clap requires one of the group"),
    };
    let source = args.unlock.source(&volume_name(&args.device))?;
    let mut held = open_locked(&args.device, Intent::ChangeHeader, &context.settings)?;
    let (opener, what) = (context.opener(), Action::ChangeKeys);
    let keyslot = held.change(&opener, &source, what, |volume, unlocked| match new {
        New::Pair(role, who) => Ok(volume.add_pair(unlocked, role, &who)?),
        New::Secret(secret) => {
            output::say(context.json, "measuring the cost of the key derivation");
            let kdf = stack::volume::passphrase_kdf(&context.settings);
            Ok(volume.add_secret(unlocked, &secret, &kdf)?)
        }
    })?;
    let keys = held.volume.keys();
    let key = keys
        .iter()
        .find(|k| k.keyslot == keyslot)
        .expect("the keyslot was just added");
    output::done(context.json, &value(key), || line(key));
    Ok(exit::OK)
}

pub fn value(key: &KeyEntry) -> Value {
    json!({
        "keyslot": key.keyslot,
        "role": role(key),
        "name": key.name,
        "public": key.recipient,
        "kdf": key.kdf,
    })
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
    match (&key.name, &key.recipient) {
        _ if !key.bound => "key that does not open this volume".into(),
        (Some(name), Some(_)) => format!("key pair {name}"),
        _ => "passphrase or key file".into(),
    }
}

/// Formats a key within a sentence.
pub fn short(key: &KeyEntry) -> String {
    format!("keyslot {} ({}, {})", key.keyslot, role(key), what(key))
}

/// Formats a key as a line of its own.
pub fn line(key: &KeyEntry) -> String {
    let (role, what) = (role(key), what(key));
    format!(
        "keyslot {:<3}   {role:<9} {what} ({})",
        key.keyslot, key.kdf
    )
}
