//! Options for the key that opens a volume, shared by the commands that need one.

use super::names;
use cli::secrets;
use stack::{KeySource, Result};
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
    /// Open with a passphrase read from this file descriptor; with --key, it unlocks that key
    #[arg(long, value_name = "N")]
    pub passphrase_fd: Option<i32>,
}

impl UnlockArgs {
    /// Reports whether any of the options is set.
    pub fn is_given(&self) -> bool {
        self.key.is_some() || self.key_file.is_some() || self.passphrase_fd.is_some()
    }

    /// Reads the secrets that these options name. `volume` is the name of the credential.
    pub fn source(&self, volume: &str) -> Result<KeySource> {
        source(
            self.key.as_deref(),
            self.key_file.as_deref(),
            self.passphrase_fd,
            volume,
        )
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
    /// Open with a passphrase read from this file descriptor; with --key, it unlocks that key
    #[arg(long, value_name = "N")]
    pub unlock_passphrase_fd: Option<i32>,
}

impl OwnerArgs {
    /// Reads the secrets that these options name. `volume` is the name of the credential.
    pub fn source(&self, volume: &str) -> Result<KeySource> {
        let file = self.unlock_key_file.as_deref();
        source(self.key.as_deref(), file, self.unlock_passphrase_fd, volume)
    }
}

/// Derives the default name of an attached volume, which is also the name of its credential.
pub fn volume_name(device: &Path) -> String {
    device
        .file_stem()
        .map(|s| s.to_string_lossy().into_owned())
        .unwrap_or_default()
}

fn source(
    key: Option<&str>,
    key_file: Option<&Path>,
    passphrase_fd: Option<i32>,
    volume: &str,
) -> Result<KeySource> {
    Ok(match (key, key_file, passphrase_fd) {
        (Some(name), _, fd) => {
            let passphrase = fd.map(secrets::from_fd).transpose()?;
            KeySource::Pair {
                name: name.to_owned(),
                passphrase,
            }
        }
        (_, Some(path), _) => KeySource::Secret(secrets::from_key_file(path)?),
        (.., Some(fd)) => KeySource::Secret(secrets::from_fd(fd)?),
        _ => match secrets::from_credential(volume)? {
            Some(secret) => KeySource::Secret(secret),
            None => KeySource::Any,
        },
    })
}
