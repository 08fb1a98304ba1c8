//! `evfs key`: user key pairs.

use super::Context;
use crate::{output, secrets};
use clap::Subcommand;
use keyring::{KeyInfo, Private};
use serde_json::{Value, json};
use stack::{Result, exit};
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum Command {
    /// Make a key pair, protected by a passphrase unless told otherwise
    #[command(
        after_help = "Examples:\n  evfs key generate alice\n  evfs key generate backup --no-passphrase\n  evfs key generate alice --passphrase-fd 3 3<passphrase.txt"
    )]
    Generate {
        /// Name of the key pair
        name: String,
        /// Read the passphrase from this descriptor
        #[arg(long, value_name = "N", conflicts_with = "no_passphrase")]
        passphrase_fd: Option<i32>,
        /// Keep the private key unprotected on disk (mode 0600)
        #[arg(long)]
        no_passphrase: bool,
    },
    /// List key pairs
    List,
    /// Show one key pair; its public half is what others need to enrol you
    Show {
        /// Name of the key pair
        name: String,
    },
    /// Take over an age identity, an OpenSSH ed25519 key, or somebody's public key
    #[command(
        after_help = "Examples:\n  evfs key import ~/.ssh/id_ed25519 --name me\n  evfs key import bob.pub --name bob"
    )]
    Import {
        /// File that holds the key
        file: PathBuf,
        /// Name to keep it under
        #[arg(long)]
        name: String,
    },
    /// Remove a key pair from this machine; volumes keep their keyslots
    Remove {
        /// Name of the key pair
        name: String,
    },
}

pub fn run(context: &Context, command: Command) -> Result<u8> {
    let keyring = context.keyring();
    match command {
        Command::Generate {
            name,
            passphrase_fd,
            no_passphrase,
        } => {
            let passphrase = match passphrase_fd {
                Some(fd) => Some(secrets::from_fd(fd)?),
                None if no_passphrase => None,
                None => Some(secrets::ask_new(&format!(
                    "New passphrase for the key `{name}`"
                ))?),
            };
            show(context, &keyring.generate(&name, passphrase.as_ref())?);
        }
        Command::List => {
            let listing = keyring.list()?;
            let refused = |(name, why): &(String, keyring::Error)| json!({ "name": name, "why": why.to_string() });
            let value = json!({
                "keys": listing.keys.iter().map(value).collect::<Vec<_>>(),
                "refused": listing.refused.iter().map(refused).collect::<Vec<_>>(),
            });
            output::show(context.json, &value, || {
                let good = listing.keys.iter().map(line);
                let bad = listing
                    .refused
                    .iter()
                    .map(|(name, why)| format!("{name:<16} not usable: {why}"));
                match good.chain(bad).collect::<Vec<_>>() {
                    none if none.is_empty() => {
                        format!("no keys in {}", context.settings.keys_dir().display())
                    }
                    lines => lines.join("\n"),
                }
            });
        }
        Command::Show { name } => show(context, &keyring.info(&name)?),
        Command::Import { file, name } => show(context, &keyring.import(&name, &file)?),
        Command::Remove { name } => {
            keyring.remove(&name)?;
            output::show(context.json, &json!({ "removed": name }), || {
                format!("removed {name}")
            });
        }
    }
    Ok(exit::OK)
}

fn show(context: &Context, info: &KeyInfo) {
    output::show(context.json, &value(info), || line(info));
}

fn private(info: &KeyInfo) -> &'static str {
    match info.private {
        Private::Absent => "public key only",
        Private::Plain => "private key, unprotected",
        Private::Passphrase => "private key, under a passphrase",
    }
}

fn line(info: &KeyInfo) -> String {
    format!("{:<16} {}  ({})", info.name, info.recipient, private(info))
}

fn value(info: &KeyInfo) -> Value {
    json!({
        "name": info.name,
        "kind": info.kind.to_string(),
        "public": info.recipient.to_string(),
        "private": match info.private {
            Private::Absent => "absent",
            Private::Plain => "plain",
            Private::Passphrase => "passphrase",
        },
    })
}
