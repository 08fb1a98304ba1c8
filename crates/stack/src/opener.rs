//! Selection of the key that opens a volume.
//!
//! A passphrase that is typed at the terminal may be mistyped, so it is asked for up to three
//! times. A secret from any other source is tried once: it would be the same the next time.

use crate::Result;
use crate::device::Disk;
use crate::error::exit;
use crate::trust::{TrustFile, TrustStore};
use crypt::{Action, Role, Seal, Unlocked, Volume};
use keyring::{Keyring, Private};
use secret::SecretBytes;

/// Tries of a passphrase that is typed.
const TRIES: u32 = 3;

/// Key that opens a volume.
pub struct KeySource {
    pub from: KeyFrom,
    /// Keyslot of the key; `None` for any.
    pub keyslot: Option<u32>,
}

/// Origin of a key.
pub enum KeyFrom {
    /// Any key of this user: key pairs that the volume knows, then a passphrase.
    Any,
    /// A certain key pair.
    Pair {
        /// Name of the key pair.
        name: String,
        /// Passphrase that protects its file; `None` to ask for it if needed.
        passphrase: Option<SecretBytes>,
    },
    /// A passphrase of the volume, asked for at the terminal.
    Terminal,
    /// A passphrase, or the content of a key file.
    Secret(SecretBytes),
    /// The secret that a predecessor of this process has left.
    Kept(SecretBytes),
}

/// Callback that asks the user for a passphrase with the given prompt.
pub type Prompt = fn(&str) -> Result<SecretBytes>;

/// Callback that shows a message of one line to the user.
pub type Notify = Box<dyn Fn(&str) + Send + Sync>;

/// Opener of volumes by the keys of a user; it checks volumes against the trust store.
pub struct Opener {
    keyring: Keyring,
    prompt: Prompt,
    notify: Notify,
    trust: TrustStore,
    kdf_limits: luks2::KdfLimits,
}

impl Opener {
    /// Creates an opener with a keyring, callbacks to the user, a trust store and cost limits for
    /// keys.
    pub fn new(
        keyring: Keyring,
        prompt: Prompt,
        tell: Notify,
        trust: TrustStore,
        kdf_limits: luks2::KdfLimits,
    ) -> Opener {
        Opener {
            keyring,
            prompt,
            notify: tell,
            trust,
            kdf_limits,
        }
    }

    pub(crate) fn trust(&self) -> &TrustStore {
        &self.trust
    }

    pub(crate) fn kdf_limits(&self) -> luks2::KdfLimits {
        self.kdf_limits
    }

    /// Unlocks the volume, if `source` opens it in a role that allows `what`, and it matches
    /// `known`. A volume opened for the first time is recorded; the notice shown to the user is
    /// returned, too.
    ///
    /// `known` must be read before the header, or under the header lock.
    ///
    /// # Errors
    /// A wrong or missing key, an untrusted volume, or a key whose role does not allow `what`.
    pub(crate) fn unlock(
        &self,
        volume: &Volume,
        disk: &Disk,
        known: &TrustFile,
        source: &KeySource,
        what: Action,
    ) -> Result<(Unlocked, Option<String>)> {
        let unlocked = self.open(volume, source, what)?;
        known.check_volume(volume, &unlocked, disk, what)?;
        unlocked.role.allow(what)?;
        let is_first = unlocked.seal.holds() && self.trust.record(volume, &unlocked, disk)?;
        let notice = is_first.then(|| first_use(volume, &unlocked));
        if let Some(notice) = &notice {
            (self.notify)(notice);
        }
        Ok((unlocked, notice))
    }

    /// Unlocks the volume in any role, if it matches `known`, and records nothing.
    ///
    /// # Errors
    /// A wrong or missing key, or an untrusted volume.
    pub(crate) fn test(
        &self,
        volume: &Volume,
        disk: &Disk,
        known: &TrustFile,
        source: &KeySource,
    ) -> Result<Unlocked> {
        // Recovery keys count as well: they permit this action.
        let unlocked = self.open(volume, source, Action::SetOwner)?;
        known.check_volume(volume, &unlocked, disk, Action::Attach)?;
        Ok(unlocked)
    }

    /// Opens the volume with a key, preferably one that allows `what`.
    fn open(&self, volume: &Volume, source: &KeySource, what: Action) -> Result<Unlocked> {
        volume.refuse_erased()?;
        let keyslot = source.keyslot;
        match &source.from {
            KeyFrom::Kept(kept) => Ok(volume.unlock_kept(kept)?),
            KeyFrom::Secret(secret) => Ok(volume.unlock_secret_in(keyslot, secret)?),
            KeyFrom::Pair { name, passphrase } => {
                self.with_pair(volume, keyslot, name, passphrase.as_ref())
            }
            KeyFrom::Terminal => self.with_typed(volume, keyslot),
            KeyFrom::Any => self.with_any(volume, keyslot, what),
        }
    }

    fn with_pair(
        &self,
        volume: &Volume,
        keyslot: Option<u32>,
        name: &str,
        passphrase: Option<&SecretBytes>,
    ) -> Result<Unlocked> {
        let identity = match passphrase {
            Some(given) => self
                .keyring
                .identity(name, &mut |_| Ok(SecretBytes::from_slice(given)))?,
            None => until_right(|again| {
                let identity = self.keyring.identity(name, &mut |prompt| {
                    (self.prompt)(&format!("{again}{prompt}"))
                        .map_err(|e| keyring::Error::NoPassphrase(e.to_string()))
                });
                Ok(identity?)
            })?,
        };
        Ok(volume.unlock_identity_in(keyslot, &identity)?)
    }

    /// Unlocks the volume with a passphrase or recovery key that is typed.
    fn with_typed(&self, volume: &Volume, keyslot: Option<u32>) -> Result<Unlocked> {
        keyslot.map_or(Ok(()), |only| volume.refuse_pair(only))?;
        let mut keys = volume.keys().into_iter();
        let what = if keys.any(|k| k.is_recovery_key()) {
            "Passphrase or recovery key"
        } else {
            "Passphrase"
        };
        until_right(|again| {
            let secret = (self.prompt)(&format!("{again}{what} for {}", volume.name()))?;
            Ok(volume.unlock_secret_in(keyslot, &secret)?)
        })
    }

    /// Unlocks the volume with a key pair of this user that it knows, preferring one that allows
    /// `what` and needs no passphrase; without such a pair, with a passphrase of the volume itself.
    fn with_any(&self, volume: &Volume, keyslot: Option<u32>, what: Action) -> Result<Unlocked> {
        let keys = match keyslot {
            Some(only) => vec![volume.key_in(only)?],
            None => volume.keys(),
        };
        let mut own: Vec<_> = self
            .keyring
            .list()?
            .keys
            .into_iter()
            .filter(|info| info.private != Private::Absent)
            .filter_map(|info| {
                let recipient = info.recipient.to_string();
                let known = keys
                    .iter()
                    .find(|k| k.recipient.as_deref() == Some(&recipient))?;
                let allowed = known.role.allow(what).is_ok();
                Some((!allowed, info.private == Private::Passphrase, info.name))
            })
            .collect();
        own.sort();
        if let Some((.., name)) = own.first() {
            return self.with_pair(volume, keyslot, name, None);
        }
        // A recovery key that does not help is not asked for.
        let can_type = |k: &crypt::KeyEntry| {
            k.recipient.is_none() && (!k.is_recovery_key() || k.role.permits(what))
        };
        if !keys.iter().any(can_type) {
            return Err(crypt::Error::wrong_key(
                "none of the key pairs of this user opens the volume; pass one with --key, or ask \
                 the owner to add one",
            )
            .into());
        }
        self.with_typed(volume, keyslot)
    }
}

/// Calls `open` until the key is right, at most [`TRIES`] times. The argument, empty at first, is
/// to be shown before the question: it states why the last answer was wrong.
fn until_right<T>(open: impl Fn(&str) -> Result<T>) -> Result<T> {
    let mut again = String::new();
    for next in 2..=TRIES {
        match open(&again) {
            Err(error) if error.exit_code() == exit::WRONG_KEY => {
                again = format!("{}; try {next} of {TRIES}\n", error.chain());
            }
            done => return done,
        }
    }
    open(&again)
}

/// Words the notice about a volume that this machine opens for the first time.
fn first_use(volume: &Volume, unlocked: &Unlocked) -> String {
    let keys = volume.keys().into_iter();
    let owners = keys.filter(|k| k.role == Role::Owner);
    let names: Vec<String> = owners
        .map(|k| match k.name {
            Some(name) => name.escape_debug().to_string(),
            None => format!("the passphrase of keyslot {}", k.keyslot),
        })
        .collect();
    let sealed = match unlocked.seal {
        Seal::Never => "its header has no seal, so changes to the header are not detected",
        _ => "from now on, an imitation of it is refused",
    };
    format!(
        "{}: this machine opens volume {} (owner {}) for the first time; {sealed}",
        volume.name(),
        volume.uuid(),
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use std::cell::RefCell;

    /// Counts the tries of an `open` that fails with `error`.
    fn tries(error: impl Fn() -> Error) -> Vec<String> {
        let asked = RefCell::new(Vec::new());
        let opened: Result<()> = until_right(|again| {
            asked.borrow_mut().push(again.to_owned());
            Err(error())
        });
        assert!(opened.is_err());
        asked.into_inner()
    }

    #[test]
    fn a_wrong_passphrase_is_asked_for_three_times_and_anything_else_once() {
        let wrong = tries(|| crypt::Error::wrong_key("it opens nothing").into());
        let said = [
            "",
            "it opens nothing; try 2 of 3",
            "it opens nothing; try 3 of 3",
        ];
        assert_eq!(wrong.len(), said.len());
        assert!(
            wrong
                .iter()
                .zip(said)
                .all(|(asked, said)| asked.contains(said))
        );
        let pair = tries(|| keyring::Error::WrongPassphrase("alice".into()).into());
        assert_eq!(pair.len(), 3);
        assert_eq!(tries(|| Error::Usage("no terminal".into())).len(), 1);
        let right = until_right(|again| Ok(again.is_empty()));
        assert!(right.unwrap());
    }
}
