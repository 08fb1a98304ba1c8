//! `evfs key`: user key pairs.

use super::confirm::{Yes, confirm};
use super::names;
use clap::Subcommand;
use cli::Context;
use cli::document::Document;
use cli::table::Column::Left;
use cli::{output, secrets};
use crypt::Role;
use keyring::{KeyInfo, KeyKind, Keyring, Private, Prompt, looks_public, name_to_import};
use schemars::JsonSchema;
use secret::SecretBytes;
use serde::Serialize;
use stack::backups::Reason;
use stack::trust::TrustStore;
use stack::volume::{Intent, open_locked, save_backup, write_new};
use stack::{Error, Result, control, exit};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::IsTerminal;
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
    #[command(after_help = "\
Examples:
  evfs key import ~/.ssh/id_ed25519 --name me
  evfs key import bob.pub --name bob
  evfs key import age1... --name bob                 a public key that was received as text
  ssh old evfs key export alice --private | evfs key import - --name alice")]
    Import {
        /// File that contains the key, `-` for standard input, or a public key itself
        file: PathBuf,
        /// Name to store the key under
        #[arg(long)]
        name: String,
        /// Read the passphrase of a protected key from this file descriptor; it is needed only if
        /// the public half is not in a file beside the key
        #[arg(long, value_name = "N")]
        passphrase_fd: Option<i32>,
    },
    /// Export a key pair: the public half for others, or the whole key for another machine
    #[command(after_help = "\
Without FILE, the key is printed. With --private, the exported key is encrypted under the passphrase of \
the key, or under a new one if the key has none.

Examples:
  evfs key export alice                              the public key, to send to others
  evfs key export alice alice.pub
  evfs key export alice alice.key --private          for another machine, or as a backup
  evfs key export backup backup.key --private --passphrase-fd 3 3<passphrase.txt")]
    Export {
        /// Name of the key pair
        #[arg(add = names::keys())]
        name: String,
        /// File to create; must not exist [default: standard output]
        file: Option<PathBuf>,
        /// Export the private half
        #[arg(long)]
        private: bool,
        /// Read the new passphrase of an unprotected key from this file descriptor
        #[arg(
            long,
            value_name = "N",
            requires = "private",
            conflicts_with = "no_passphrase"
        )]
        passphrase_fd: Option<i32>,
        /// Export an unprotected key as it is (into a file of mode 0600)
        #[arg(long, requires_all = ["private", "file"])]
        no_passphrase: bool,
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
    /// File of the public half.
    public_file: String,
    /// Whether the private half is on this machine, and how it is protected: `absent`, `plain` or
    /// `passphrase`.
    private: &'static str,
}

/// A key that was written to a file or printed.
#[derive(Serialize, JsonSchema)]
pub struct ExportedKey {
    #[serde(flatten)]
    key: ShownKey,
    /// The exported half, unless it was written to a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// File to which it was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
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
pub const EXPORTED: Document<ExportedKey> = Document::new("evfs/key-export/1");
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
            output::done(context.json, &KEY, &shown(&info), || described(&info));
            let advice = format!(
                "To be granted access to a volume, send its owner this file, or the line that begins with `age1`.\nIf this key is lost, volumes that no other key opens are lost: keep a copy elsewhere (`evfs key export {} FILE --private`), or name a second key pair with --recovery when creating a volume.",
                info.name
            );
            output::say(context.json, &advice);
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
            output::show(context.json, &KEY, &shown(&info), || described(&info));
        }
        Command::Import {
            file,
            name,
            passphrase_fd,
        } => {
            let info = import(&keyring, &file, &name, passphrase_fd)?;
            output::done(context.json, &KEY, &shown(&info), || line(&info));
        }
        Command::Export {
            name,
            file,
            private: false,
            ..
        } => {
            let info = keyring.info(&name)?;
            let text = format!("{}\n", info.recipient);
            exported(context, &info, file.as_deref(), text.as_bytes())?;
        }
        Command::Export {
            name,
            file,
            passphrase_fd,
            no_passphrase,
            ..
        } => {
            let info = keyring.info(&name)?;
            let passphrase = if no_passphrase {
                None
            } else {
                export_passphrase(&info, passphrase_fd)?
            };
            let text = keyring.export_private(&name, passphrase.as_ref())?;
            exported(context, &info, file.as_deref(), &text)?;
            if let Some(file) = file {
                let advice = format!(
                    "On another machine, `evfs key import {} --name {}` stores the key.",
                    file.display(),
                    name_to_import(&name)
                );
                output::say(context.json, &advice);
            }
        }
        Command::Remove { name, yes } => remove(context, &name, yes)?,
    }
    Ok(exit::OK)
}

/// Imports a key from a file, from standard input, or from the argument itself if that is a public
/// key.
fn import(
    keyring: &Keyring,
    file: &Path,
    name: &str,
    passphrase_fd: Option<i32>,
) -> Result<KeyInfo> {
    let given = passphrase_fd.map(secrets::from_fd).transpose()?;
    let mut ask = |prompt: &Prompt| match &given {
        Some(given) => Ok(SecretBytes::from_slice(given)),
        None => secrets::ask_or(&prompt.to_string(), "use --passphrase-fd N")
            .map_err(|e| keyring::Error::NoPassphrase(e.to_string())),
    };
    let text = file.to_str().unwrap_or_default();
    if text.starts_with("AGE-SECRET-KEY-") {
        return Err(Error::Usage(
            "a private key in the arguments is visible to other users: consider it disclosed; \
             store a key in a file of mode 0600, or pass it on standard input (`-`)"
                .into(),
        ));
    }
    if text == "-" {
        if std::io::stdin().is_terminal() {
            return Err(Error::Usage(
                "standard input is a terminal, which would show a private key; pipe the key, or \
                 name its file; a public key can be the argument itself: `evfs key import age1... \
                 --name NAME`"
                    .into(),
            ));
        }
        let key = secrets::from_key_file(file)?;
        return Ok(keyring.import_text(name, &key, "standard input", None, &mut ask)?);
    }
    if looks_public(text) && !file.exists() {
        return Ok(keyring.import_text(name, text.as_bytes(), "the argument", None, &mut ask)?);
    }
    Ok(keyring.import(name, file, &mut ask)?)
}

/// Reads the passphrase that an exported private key gets, if it has none of its own.
fn export_passphrase(info: &KeyInfo, fd: Option<i32>) -> Result<Option<SecretBytes>> {
    match (info.private, info.kind) {
        (Private::Passphrase, _) if fd.is_some() => Err(Error::Usage(format!(
            "the key `{}` has a passphrase, which the exported key keeps; omit --passphrase-fd",
            info.name
        ))),
        (Private::Passphrase | Private::Absent, _) => Ok(None),
        (Private::Plain, KeyKind::SshEd25519) => Err(Error::Usage(format!(
            "the OpenSSH key `{}` has no passphrase, and EVFS cannot add one; use --no-passphrase",
            info.name
        ))),
        (Private::Plain, KeyKind::X25519) => {
            let prompt = format!("New passphrase for the exported key `{}`", info.name);
            let instead = "use --passphrase-fd N or --no-passphrase";
            let passphrase = match fd {
                Some(fd) => secrets::new_from_fd(fd, &prompt)?,
                None => secrets::ask_new(&prompt, instead)?,
            };
            Ok(Some(passphrase))
        }
    }
}

/// Writes an exported key to a new file, or prints it.
fn exported(context: &Context, info: &KeyInfo, file: Option<&Path>, key: &[u8]) -> Result<()> {
    let mut content = ExportedKey {
        key: shown(info),
        text: None,
        file: None,
    };
    let Some(file) = file else {
        let text = std::str::from_utf8(key).map_err(|_| {
            Error::Usage(format!(
                "cannot print the key `{}`: it is stored in binary form; name a FILE to export it to",
                info.name
            ))
        })?;
        content.text = Some(text.to_owned());
        output::show(context.json, &EXPORTED, &content, || text.to_owned());
        return Ok(());
    };
    write_new(file, key)?;
    content.file = Some(file.display().to_string());
    output::done(context.json, &EXPORTED, &content, || {
        format!("exported {} to {}", info.name, file.display())
    });
    Ok(())
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
        confirm(yes, &what, name)?;
    }
    let read =
        |path: &Path| std::fs::read(path).map_err(|e| Error::io("cannot read the key", path, e));
    // The public half is stored next to the private one, where `evfs key import` expects it.
    let kept = match (&files.private, &files.public) {
        (Some(private), public) => {
            let kept = save_backup(
                &context.settings,
                private,
                Reason::KeyRemoved,
                &read(private)?,
            )?;
            if let Some(public) = public {
                let beside = PathBuf::from(format!("{}.pub", kept.display()));
                write_new(&beside, &read(public)?)?;
            }
            Some(kept)
        }
        (None, Some(public)) => Some(save_backup(
            &context.settings,
            public,
            Reason::KeyRemoved,
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

/// Formats a key with the file of its public half, for its user.
fn described(info: &KeyInfo) -> String {
    format!(
        "{}\npublic key file: {}",
        line(info).trim_end(),
        info.public_file.display()
    )
}

fn shown(info: &KeyInfo) -> ShownKey {
    let public = info.recipient.to_string();
    ShownKey {
        name: info.name.clone(),
        kind: info.kind.to_string(),
        fingerprint: keyring::fingerprint(&public),
        public,
        public_file: info.public_file.display().to_string(),
        private: match info.private {
            Private::Absent => "absent",
            Private::Plain => "plain",
            Private::Passphrase => "passphrase",
        },
    }
}
