//! Keyslots whose secret a user holds: passphrases, key files and recovery keys.
//!
//! **Invariant:** a secret is replaced only after the keyslot that holds the new one was read back
//! from the disk and opened with it.

use super::{Identified, KeyEntry, RANDOM_SECRET_KDF, Unlocked, Volume, execute_tested};
use crate::epoch::Epoch;
use crate::recovery::RecoveryKey;
use crate::role::{Action, Role};
use crate::token::{KeyToken, check_label};
use crate::{Error, Result};
use luks2::Kdf;
use secret::SecretBytes;

/// Key to be added to a volume.
#[derive(Clone, Copy)]
pub enum NewKey<'a> {
    /// A key pair, of which the public half is enough.
    Pair(&'a Identified),
    /// A passphrase, key file or recovery key.
    Secret(NewSecret<'a>),
}

/// Passphrase, content of a key file, or recovery key to be added to a volume.
#[derive(Clone, Copy)]
pub struct NewSecret<'a> {
    secret: &'a SecretBytes,
    kdf: Kdf,
    label: Option<&'a str>,
}

impl<'a> NewSecret<'a> {
    /// Creates an entry for a passphrase or the content of a key file, which `kdf` stretches.
    pub fn new(secret: &'a SecretBytes, kdf: Kdf) -> NewSecret<'a> {
        NewSecret {
            secret,
            kdf,
            label: None,
        }
    }

    /// Creates an entry for a recovery key, which needs no stretching.
    pub fn recovery(key: &'a RecoveryKey) -> NewSecret<'a> {
        NewSecret::new(key.secret(), RANDOM_SECRET_KDF)
    }

    /// Sets the label of the keyslot.
    pub fn labeled(self, label: Option<&'a str>) -> NewSecret<'a> {
        NewSecret { label, ..self }
    }

    fn check(&self) -> Result<()> {
        let checked = self.secret.check();
        checked.map_err(|e| Error::Refused(e.to_string()))?;
        self.label
            .map_or(Ok(()), check_label)
            .map_err(Error::Refused)
    }
}

impl Volume {
    /// Adds a keyslot for a secret. Without a `role`, it is that of a user, or of an owner if no
    /// key pair owns the volume.
    ///
    /// # Errors
    /// [`Error::RoleRefuses`], [`Error::NeedsRepair`], [`Error::SealBroken`];
    /// if the secret is empty or the label invalid; if the header is full.
    pub fn add_secret(
        &mut self,
        unlocked: &Unlocked,
        role: Option<Role>,
        new: NewSecret<'_>,
    ) -> Result<u32> {
        self.change(unlocked, Action::ChangeKeys)?;
        let owned = self
            .keys()
            .iter()
            .any(|k| k.recipient.is_some() && k.role == Role::Owner);
        let role = role.unwrap_or(if owned { Role::User } else { Role::Owner });
        let keyslot = self.put_secret(&unlocked.volume_key, role, new)?;
        self.commit(&unlocked.volume_key, Epoch::ZERO)?;
        Ok(keyslot)
    }

    /// Finds the key in `keyslot`, whose secret is to be changed.
    ///
    /// # Errors
    /// [`Error::NoSuchKey`]; [`Error::Refused`] for a key pair and for a recovery key, which are
    /// generated and not chosen.
    pub fn secret_in(&self, keyslot: u32) -> Result<KeyEntry> {
        let key = self.key_in(keyslot)?;
        if key.recipient.is_some() {
            let name = key.name.as_deref().unwrap_or_default().escape_debug();
            return Err(Error::Refused(format!(
                "{}: keyslot {keyslot} belongs to the key pair {name}, which has no passphrase in \
                 the volume; to replace the key pair, add another one and remove this one",
                self.name()
            )));
        }
        if key.is_recovery_key() {
            return Err(Error::Refused(format!(
                "{0}: keyslot {keyslot} holds a recovery key, which cannot be chosen; `evfs volume \
                 key add {0} --recovery` prints a new one, and `evfs volume key remove` removes \
                 the old one",
                self.name()
            )));
        }
        Ok(key)
    }

    /// Replaces the secret of `keyslot`, which keeps its number, its role and, unless there is a
    /// new one, its label. A user may do so with the secret that opened the volume.
    ///
    /// The change is one plan: the new key material is written to an unused area and opened with
    /// the new secret, then the header names it, and then the old one is overwritten. So after a
    /// crash at any point the old or the new secret opens the keyslot.
    ///
    /// # Errors
    /// [`Error::RoleRefuses`], [`Error::NeedsRepair`], [`Error::SealBroken`], those of
    /// [`Volume::secret_in`]; if the secret is empty or the label invalid; if the header is full.
    pub fn change_secret(
        &mut self,
        unlocked: &Unlocked,
        keyslot: u32,
        new: NewSecret<'_>,
    ) -> Result<()> {
        let action = if keyslot == unlocked.keyslot {
            Action::ChangeOwnSecret
        } else {
            Action::ChangeKeys
        };
        self.change(unlocked, action)?;
        let role = self.secret_in(keyslot)?.role;
        new.check()?;
        let replaced =
            self.header
                .replace_keyslot(keyslot, &unlocked.volume_key, new.secret, &new.kdf);
        replaced.map_err(|e| Error::header(self.name(), e))?;
        if let Some(label) = new.label {
            self.relabel(keyslot, role, label)?;
        }
        self.commit_tested(unlocked, keyslot, new.secret)
    }

    /// Commits the header if `secret` opens its new key material in `keyslot`, as read back.
    fn commit_tested(
        &mut self,
        unlocked: &Unlocked,
        keyslot: u32,
        secret: &SecretBytes,
    ) -> Result<()> {
        let plan = self.sealed(&unlocked.volume_key, Epoch::ZERO)?;
        execute_tested(&*self.device, plan, || {
            let opened = self.open_keyslot(keyslot, secret, &self.kdf_limits);
            opened.map(drop).map_err(|e| {
                Error::Refused(format!(
                    "{}: the new secret does not open what was written for it ({e}); the old one \
                     remains valid",
                    self.name()
                ))
            })
        })
    }

    /// Makes a secret the owner and removes the previous owners, in one change: at every moment the
    /// old or the new owner can open the volume.
    ///
    /// # Errors
    /// [`Error::RoleRefuses`], [`Error::NeedsRepair`], [`Error::SealBroken`];
    /// if the secret is empty or the label invalid; if the header is full.
    pub fn set_owner_secret(&mut self, unlocked: &Unlocked, new: NewSecret<'_>) -> Result<u32> {
        self.change(unlocked, Action::SetOwner)?;
        let replaced = self.owners();
        let keyslot = self.put_secret(&unlocked.volume_key, Role::Owner, new)?;
        for key in replaced {
            self.drop_keyslot(key.keyslot)?;
        }
        self.commit_tested(unlocked, keyslot, new.secret)?;
        Ok(keyslot)
    }

    /// Lists the owners, which [`Volume::set_owner_secret`] removes.
    pub fn owners(&self) -> Vec<KeyEntry> {
        let mut keys = self.keys();
        keys.retain(|k| k.role == Role::Owner && k.bound);
        keys
    }

    /// Adds a keyslot for a key, without sealing the header.
    pub(super) fn put_key(
        &mut self,
        volume_key: &SecretBytes,
        role: Role,
        key: NewKey<'_>,
    ) -> Result<u32> {
        match key {
            NewKey::Pair(who) => self.put_pair(volume_key, role, who),
            NewKey::Secret(new) => self.put_secret(volume_key, role, new),
        }
    }

    fn put_secret(
        &mut self,
        volume_key: &SecretBytes,
        role: Role,
        new: NewSecret<'_>,
    ) -> Result<u32> {
        new.check()?;
        let keyslot = self.put_keyslot(volume_key, new.secret, &new.kdf)?;
        let token = KeyToken::secret(keyslot, role);
        let token = match new.label {
            Some(label) => token.labeled(label),
            None => token,
        };
        token
            .to_token()
            .and_then(|token| self.header.add_token(None, &token))
            .map_err(|e| Error::header(self.name(), e))?;
        Ok(keyslot)
    }

    /// Sets the label of a keyslot, whose role is `role` if it has no EVFS token yet.
    fn relabel(&mut self, keyslot: u32, role: Role, label: &str) -> Result<()> {
        let tokens = self.header.metadata().tokens().iter();
        let mut of_keyslot = tokens.filter(|(_, token)| token.keyslots().contains(&keyslot));
        let old = of_keyslot.find_map(|(number, token)| Some((*number, KeyToken::read(token)?)));
        let changed = match old {
            Some((number, token)) => token
                .labeled(label)
                .to_token()
                .and_then(|token| self.header.replace_token(number, &token)),
            None => KeyToken::secret(keyslot, role)
                .labeled(label)
                .to_token()
                .and_then(|token| self.header.add_token(None, &token).map(drop)),
        };
        changed.map_err(|e| Error::header(self.name(), e))
    }
}
