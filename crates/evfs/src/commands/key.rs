//! `evfs key`: user key pairs.

use super::confirm::{Answer, Yes, confirm};
use super::names;
use clap::Subcommand;
use cli::Context;
use cli::document::Document;
use cli::table::Column::Left;
use cli::{output, secrets};
use crypt::Role;
use keyring::{KeyInfo, Private, name_to_import};
use schemars::JsonSchema;
use serde::Serialize;
use stack::trust::TrustStore;
use stack::volume::{Intent, open_locked, save_backup, write_new};
use stack::{Error, Result, control, exit};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

#[derive(Subcommand)]
pub enum Command {
    /// Create a key pair, protected by a passphrase unless --no-passphrase is given
    #[command(
        after_help = "Examples:\n  evfs key generate alice\n  evfs key generate backup --no-passphrase\n  evfs key generate alice --passphrase-fd 3 3<passphrase.txt"
    )]
    Generate {
        /// Name of the key pair
        name: String,
        /// Read the passphrase from this file descriptor
        #[arg(long, value_name = "N", conflicts_with = "no_passphrase")]
        passphrase_fd: Option<i32>,
        /// Store the private key unprotected on disk (mode 0600)
        #[arg(long)]
        no_passphrase: bool,
    },
    /// List key pairs
    List,
    /// Show a key pair, including the public half that others need to grant you access
    Show {
        /// Name of the key pair
        #[arg(add = names::keys())]
        name: String,
    },
    /// Import an age identity, an OpenSSH ed25519 key or another user's public key
    #[command(
        after_help = "Examples:\n  evfs key import ~/.ssh/id_ed25519 --name me\n  evfs key import bob.pub --name bob"
    )]
    Import {
        /// File that contains the key
        file: PathBuf,
        /// Name to store the key under
        #[arg(long)]
        name: String,
    },
    /// Remove a key pair from this machine; volumes keep their keyslots
    #[command(after_help = "\
The key files are saved in the backup directory; `evfs key import` restores the key.

Examples:
  evfs key remove bob
  evfs key remove old --yes")]
    Remove {
        /// Name of the key pair
        #[arg(add = names::keys())]
        name: String,
        #[command(flatten)]
        yes: Yes,
    },
}

/// A key pair.
#[derive(Serialize, JsonSchema)]
pub struct ShownKey {
    /// Name of the key pair.
    name: String,
    /// Kind of the key pair, such as `age`.
    kind: String,
    /// Public half.
    public: String,
    /// Fingerprint of the public half.
    fingerprint: String,
    /// Whether the private half is on this machine, and how it is protected: `absent`, `plain` or
    /// `passphrase`.
    private: &'static str,
}

/// The key pairs of this user.
#[derive(Serialize, JsonSchema)]
pub struct Keys {
    /// Usable key pairs.
    keys: Vec<ShownKey>,
    /// Files that are not usable.
    refused: Vec<RefusedKey>,
}

/// A file of a key pair that is not usable.
#[derive(Serialize, JsonSchema)]
struct RefusedKey {
    /// Name of the key pair.
    name: String,
    /// Reason.
    why: String,
}

/// A key pair that was removed.
#[derive(Serialize, JsonSchema)]
pub struct RemovedKey {
    /// Name of the key pair.
    removed: String,
    /// Path of the saved key, which `evfs key import` restores.
    undo: Option<String>,
}

pub const KEY: Document<ShownKey> = Document::new("evfs/key/1");
pub const KEYS: Document<Keys> = Document::new("evfs/keys/1");
pub const REMOVED: Document<RemovedKey> = Document::new("evfs/key-remove/1");

pub fn run(context: &Context, command: Command) -> Result<u8> {
    let keyring = context.keyring();
    match command {
        Command::Generate {
            name,
            passphrase_fd,
            no_passphrase,
        } => {
            let prompt = format!("New passphrase for the key `{name}`");
            let passphrase = match passphrase_fd {
                Some(fd) => Some(secrets::new_from_fd(fd, &prompt)?),
                None if no_passphrase => None,
                None => {
                    let instead = "use --passphrase-fd N or --no-passphrase";
                    Some(secrets::ask_new(&prompt, instead)?)
                }
            };
            let info = keyring.generate(&name, passphrase.as_ref())?;
            output::done(context.json, &KEY, &shown(&info), || line(&info));
            output::say(
                context.json,
                "If this key is lost, volumes that no other key opens are lost: keep a copy of its file elsewhere, or name a second key pair with --recovery when creating a volume.",
            );
        }
        Command::List => {
            let listing = keyring.list()?;
            let refused = |(name, why): &(String, keyring::Error)| RefusedKey {
                name: name.clone(),
                why: why.to_string(),
            };
            let content = Keys {
                keys: listing.keys.iter().map(shown).collect(),
                refused: listing.refused.iter().map(refused).collect(),
            };
            output::show(context.json, &KEYS, &content, || {
                let good = listing.keys.iter().map(cells);
                let bad = listing
                    .refused
                    .iter()
                    .map(|(name, why)| [name.clone(), format!("not usable: {why}")]);
                match good.chain(bad).collect::<Vec<_>>() {
                    none if none.is_empty() => {
                        format!("no keys in {}", context.settings.keys_dir().display())
                    }
                    rows => table(&rows),
                }
            });
        }
        Command::Show { name } => {
            let info = keyring.info(&name)?;
            output::show(context.json, &KEY, &shown(&info), || line(&info));
        }
        Command::Import { file, name } => {
            let info = keyring.import(&name, &file)?;
            output::done(context.json, &KEY, &shown(&info), || line(&info));
        }
        Command::Remove { name, yes } => remove(context, &name, yes)?,
    }
    Ok(exit::OK)
}

fn remove(context: &Context, name: &str, Yes { yes }: Yes) -> Result<()> {
    let keyring = context.keyring();
    let files = keyring.files(name)?;
    if files.private.is_some() {
        let mut what = format!("This removes the private key `{name}` from this machine");
        for volume in only_key_of(context, name) {
            let _ = write!(
                what,
                ". No other key of this user opens {volume}: without `{name}` its data is lost here"
            );
        }
        confirm(yes, &what, Answer::Name(name))?;
    }
    let read =
        |path: &Path| std::fs::read(path).map_err(|e| Error::io("cannot read the key", path, e));
    // The public half is stored next to the private one, where `evfs key import` expects it.
    let kept = match (&files.private, &files.public) {
        (Some(private), public) => {
            let kept = save_backup(&context.settings, private, "removed", &read(private)?)?;
            if let Some(public) = public {
                let beside = PathBuf::from(format!("{}.pub", kept.display()));
                write_new(&beside, &read(public)?)?;
            }
            Some(kept)
        }
        (None, Some(public)) => Some(save_backup(
            &context.settings,
            public,
            "removed",
            &read(public)?,
        )?),
        (None, None) => None,
    };
    keyring.remove(name)?;
    let content = RemovedKey {
        removed: name.to_owned(),
        undo: kept.as_ref().map(|kept| kept.display().to_string()),
    };
    output::done(context.json, &REMOVED, &content, || {
        match (&kept, &files.private) {
            (Some(kept), Some(_)) => format!(
                "removed {name}; its private key is saved in {0}\n`evfs key import {0} --name {1}` restores it; `shred -u {0}` destroys it for good",
                kept.display(),
                name_to_import(name),
            ),
            _ => format!("removed {name}"),
        }
    });
    Ok(())
}

/// Finds the volumes that no other key pair of this user opens, among those served now and those
/// that this machine remembers, as far as their headers can be read.
fn only_key_of(context: &Context, name: &str) -> Vec<String> {
    let run_dir = context.settings.run_dir();
    let own = context.keyring().list().map_or_else(|_| vec![], |l| l.keys);
    let own: Vec<(String, String)> = own
        .into_iter()
        .filter(|info| info.private != Private::Absent)
        .map(|info| (info.name, info.recipient.to_string()))
        .collect();
    let mut seen = BTreeSet::new();
    let mut only = |device: &Path| {
        let held = open_locked(device, Intent::Inspect, &context.settings).ok()?;
        // Each volume once, even if it is found in several places.
        let is_new = seen.insert(held.volume.uuid().to_owned());
        let keys = held.volume.keys();
        let by_secret = keys
            .iter()
            .any(|k| k.bound && k.recipient.is_none() && k.role != Role::Recovery);
        let mut pairs = own.iter().filter(|(_, public)| {
            keys.iter()
                .any(|k| k.recipient.as_deref() == Some(public) && k.role != Role::Recovery)
        });
        let first = pairs.next()?;
        (is_new && !by_secret && first.0 == name && pairs.next().is_none()).then_some(())
    };
    let names = control::names(&run_dir).into_iter();
    let served = names
        .filter_map(|name| {
            control::send_request(&run_dir, &name, &control::ControlRequest::Status).ok()
        })
        .filter_map(|status| Some(status["device"].as_str()?.to_owned()));
    let known = TrustStore::of(&context.settings).load();
    let known = known.map_or_else(|_| vec![], |known| known.devices(&context.settings));
    served
        .chain(known)
        .filter(|device| only(Path::new(device)).is_some())
        .collect()
}

fn private(info: &KeyInfo) -> &'static str {
    match info.private {
        Private::Absent => "public key only",
        Private::Plain => "private key, unprotected",
        Private::Passphrase => "private key, protected by a passphrase",
    }
}

fn cells(info: &KeyInfo) -> [String; 2] {
    let print = keyring::fingerprint(&info.recipient.to_string());
    let what = format!("{}  ({}, {print})", info.recipient, private(info));
    [info.name.clone(), what]
}

fn table(rows: &[[String; 2]]) -> String {
    cli::table::text(&[Left(16), Left(0)], rows)
}

fn line(info: &KeyInfo) -> String {
    table(&[cells(info)])
}

fn shown(info: &KeyInfo) -> ShownKey {
    let public = info.recipient.to_string();
    ShownKey {
        name: info.name.clone(),
        kind: info.kind.to_string(),
        fingerprint: keyring::fingerprint(&public),
        public,
        private: match info.private {
            Private::Absent => "absent",
            Private::Plain => "plain",
            Private::Passphrase => "passphrase",
        },
    }
}
