//! Options for the key that opens a volume, shared by the commands that need one.

use super::dry_run::DryRun;
use super::names;
use cli::{Context, secrets};
use stack::{KeyFrom, KeySource, Result};
use std::path::{Path, PathBuf};

/// How to open a volume. Without any of these: the systemd credential `evfs.NAME`, then the key
/// pairs of this user that the volume knows, then a passphrase asked for at the terminal.
#[derive(clap::Args, Debug, Default, Clone)]
pub struct UnlockArgs {
    /// Open with this key pair
    #[arg(long, value_name = "NAME", add = names::keys())]
    pub key: Option<String>,
    /// Open with the content of this file as the key (`-` for standard input)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["key", "passphrase_fd"])]
    pub key_file: Option<PathBuf>,
    /// Open with a passphrase of the volume, asked for at the terminal
    #[arg(long, conflicts_with_all = ["key", "key_file", "passphrase_fd"])]
    pub passphrase: bool,
    /// Open with a passphrase read from this file descriptor; with --key, it unlocks that key
    #[arg(long, value_name = "N")]
    pub passphrase_fd: Option<i32>,
    /// Open with the key in this keyslot alone
    #[arg(long, value_name = "N")]
    pub key_slot: Option<u32>,
}

impl UnlockArgs {
    /// Reports whether any of the options is set.
    pub fn is_given(&self) -> bool {
        let pair_or_file = self.key.is_some() || self.key_file.is_some();
        let passphrase = self.passphrase || self.passphrase_fd.is_some();
        pair_or_file || passphrase || self.key_slot.is_some()
    }

    /// Reads the secrets that these options name. `volume` is the name of the credential.
    pub fn source(&self, volume: &str) -> Result<KeySource> {
        let from = key_from(
            self.key.as_deref(),
            self.key_file.as_deref(),
            self.passphrase,
            self.passphrase_fd,
            volume,
        )?;
        Ok(KeySource {
            from,
            keyslot: self.key_slot,
        })
    }
}

/// The same for commands whose own options would collide: there the names begin with `unlock-`.
#[derive(clap::Args, Debug, Default, Clone)]
pub struct OwnerArgs {
    /// Open with this key pair
    #[arg(long, value_name = "NAME", add = names::keys())]
    pub key: Option<String>,
    /// Open with the content of this file as the key (`-` for standard input)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["key", "unlock_passphrase_fd"])]
    pub unlock_key_file: Option<PathBuf>,
    /// Open with a passphrase or recovery key of the volume, asked for at the terminal
    #[arg(long, conflicts_with_all = ["key", "unlock_key_file", "unlock_passphrase_fd"])]
    pub unlock_passphrase: bool,
    /// Open with a passphrase read from this file descriptor; with --key, it unlocks that key
    #[arg(long, value_name = "N")]
    pub unlock_passphrase_fd: Option<i32>,
    /// Open with the key in this keyslot alone
    #[arg(long, value_name = "N")]
    pub unlock_key_slot: Option<u32>,
}

impl OwnerArgs {
    /// Reads the secrets that these options name. `volume` is the name of the credential.
    pub fn source(&self, volume: &str) -> Result<KeySource> {
        let from = key_from(
            self.key.as_deref(),
            self.unlock_key_file.as_deref(),
            self.unlock_passphrase,
            self.unlock_passphrase_fd,
            volume,
        )?;
        Ok(KeySource {
            from,
            keyslot: self.unlock_key_slot,
        })
    }
}

/// Options of a change of a volume that requires the owner's key.
#[derive(clap::Args, Debug, Clone)]
pub struct OwnerChange {
    #[command(flatten)]
    unlock: OwnerArgs,
    #[command(flatten)]
    dry_run: DryRun,
}

impl OwnerChange {
    /// Returns the context of the command, which may be a dry run.
    pub fn context(&self, context: &Context) -> Context {
        self.dry_run.context(context)
    }

    /// Reads the secrets that open the volume on `device`.
    pub fn source(&self, device: &Path) -> Result<KeySource> {
        self.unlock.source(&volume_name(device))
    }
}

/// Derives the default name of an attached volume, which is also the name of its credential.
pub fn volume_name(device: &Path) -> String {
    device
        .file_stem()
        .map(|s| s.to_string_lossy().into_owned())
        .unwrap_or_default()
}

fn key_from(
    key: Option<&str>,
    key_file: Option<&Path>,
    is_typed: bool,
    passphrase_fd: Option<i32>,
    volume: &str,
) -> Result<KeyFrom> {
    Ok(match (key, key_file, passphrase_fd) {
        (Some(name), _, fd) => {
            let passphrase = fd.map(secrets::from_fd).transpose()?;
            KeyFrom::Pair {
                name: name.to_owned(),
                passphrase,
            }
        }
        (_, Some(path), _) => KeyFrom::Secret(secrets::from_key_file(path)?),
        (.., Some(fd)) => KeyFrom::Secret(secrets::from_fd(fd)?),
        _ if is_typed => KeyFrom::Terminal,
        _ => match secrets::from_credential(volume)? {
            Some(secret) => KeyFrom::Secret(secret),
            None => KeyFrom::Any,
        },
    })
}
