//! Unlocking a volume with a secret or a key pair.
//!
//! **Invariant:** one attempt spends at most the limits of key derivation in total, regardless of
//! the number of keyslots that a header claims to have for the key.

use super::{Unlocked, Volume, read_range};
use crate::role::Role;
use crate::{Error, Result, seal};
use keyring::Identity;
use luks2::KdfLimits;
use secret::SecretBytes;

impl Volume {
    /// Opens the volume with a passphrase or the content of a key file.
    ///
    /// # Errors
    /// [`Error::WrongKey`] if the secret opens no keyslot.
    pub fn unlock_secret(&self, secret: &SecretBytes) -> Result<Unlocked> {
        let mut first_error = None;
        let mut limits = self.kdf_limits;
        let mut tried = false;
        for keyslot in self.header.keyslots_to_try() {
            // A key pair's keyslot holds a random secret that no user can type.
            if self
                .token_of(keyslot)
                .is_some_and(|t| t.recipient.is_some())
            {
                continue;
            }
            tried = true;
            match self.open_keyslot(keyslot, secret, &limits) {
                Ok(volume_key) => return self.unlocked(volume_key, keyslot),
                Err(e) => {
                    self.spend(&mut limits, keyslot, &e);
                    if !matches!(e, Error::WrongKey(_)) {
                        first_error = first_error.or(Some(e));
                    }
                }
            }
        }
        let mut unusable = self.header.unusable_keyslots();
        if !tried && first_error.is_none() && !unusable.is_empty() {
            first_error = Some(Error::header(self.name(), unusable.swap_remove(0)));
        }
        Err(first_error.unwrap_or_else(|| {
            let mut hint = format!("{}: it opens no keyslot of this volume", self.name());
            if let Some(why) = unusable.first() {
                hint = format!("{hint} that was tried; {why}");
            }
            Error::wrong_key(hint)
        }))
    }

    /// Opens the volume with a key pair.
    ///
    /// # Errors
    /// [`Error::WrongKey`] if the header has no keyslot for the key pair.
    pub fn unlock_identity(&self, identity: &Identity) -> Result<Unlocked> {
        let own = identity.recipient().to_string();
        let mut first_error = None;
        let mut limits = self.kdf_limits;
        for entry in self
            .keys()
            .iter()
            .filter(|k| k.recipient.as_deref() == Some(&own))
        {
            let envelope = self.token_of(entry.keyslot).and_then(|t| t.envelope());
            let opened = match envelope {
                Some(envelope) => identity
                    .unwrap(&envelope)
                    .map_err(Error::from)
                    .and_then(|secret| self.open_keyslot(entry.keyslot, &secret, &limits)),
                None => continue,
            };
            match opened {
                Ok(volume_key) => return self.unlocked(volume_key, entry.keyslot),
                Err(e) => {
                    self.spend(&mut limits, entry.keyslot, &e);
                    // Anything else says more than a wrong key.
                    if matches!(first_error, None | Some(Error::WrongKey(_))) {
                        first_error = Some(e);
                    }
                }
            }
        }
        Err(first_error.unwrap_or_else(|| {
            Error::wrong_key(format!(
                "{}: no keyslot of this volume belongs to that key pair",
                self.name()
            ))
        }))
    }

    /// Subtracts the work of a keyslot that was tried in vain from what the next ones may cost: a
    /// header has up to 32 of them.
    fn spend(&self, limits: &mut KdfLimits, keyslot: u32, error: &Error) {
        if matches!(error, Error::WrongKey(_)) {
            let work = self.header.work_kib(keyslot);
            limits.work_kib_max = limits.work_kib_max.saturating_sub(work);
        }
    }

    fn open_keyslot(
        &self,
        keyslot: u32,
        secret: &SecretBytes,
        limits: &KdfLimits,
    ) -> Result<SecretBytes> {
        let header_error = |e| Error::header(self.name(), e);
        let range = self.header.keyslot_area(keyslot).map_err(header_error)?;
        let area = read_range(&*self.device, range.offset, range.len)?;
        let opened = self.header.open_keyslot(keyslot, secret, &area, limits);
        opened.map_err(header_error)
    }

    pub(super) fn unlocked(&self, volume_key: SecretBytes, keyslot: u32) -> Result<Unlocked> {
        let role = self
            .keys()
            .iter()
            .find(|k| k.keyslot == keyslot)
            .map_or(Role::User, |k| k.role);
        let seal = seal::check(&self.header, &volume_key)?;
        Ok(Unlocked {
            volume_key,
            keyslot,
            role,
            seal,
        })
    }
}
