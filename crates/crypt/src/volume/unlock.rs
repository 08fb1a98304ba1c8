//! Unlocking a volume with a secret or a key pair.
//!
//! **Invariant:** one attempt spends at most the limits of key derivation in total, regardless of
//! the number of keyslots that a header claims to have for the key.

use super::{KeyEntry, Unlocked, Volume, read_range};
use crate::recovery::{self, Mistake, Typed};
use crate::role::Role;
use crate::{Error, Result, seal};
use keyring::Identity;
use luks2::KdfLimits;
use secret::SecretBytes;

impl Volume {
    /// Opens the volume with a passphrase, the content of a key file, or a recovery key, which may
    /// be typed in any case and with any separators.
    ///
    /// # Errors
    /// [`Error::WrongKey`] if the secret opens no keyslot.
    pub fn unlock_secret(&self, secret: &SecretBytes) -> Result<Unlocked> {
        self.unlock_secret_in(None, secret)
    }

    /// Same as [`Volume::unlock_secret`], with the key in one keyslot alone, even if that is set to
    /// be ignored; `None` for all keyslots.
    ///
    /// # Errors
    /// [`Error::NoSuchKey`], and those of [`Volume::unlock_secret`].
    pub fn unlock_secret_in(&self, keyslot: Option<u32>, secret: &SecretBytes) -> Result<Unlocked> {
        if let Some(only) = keyslot {
            self.refuse_pair(only)?;
        }
        let typed = recovery::read(secret);
        let (as_read, mistake) = match &typed {
            Typed::Key(key) => (key.secret(), None),
            Typed::Mistyped(mistake) => (secret, Some(mistake)),
            Typed::Other => (secret, None),
        };
        let mut keyslots = match keyslot {
            Some(only) => vec![only],
            None => self.header.keyslots_to_try(),
        };
        if matches!(typed, Typed::Key(_)) {
            // A recovery key is in one of these, and the others would cost seconds.
            let keys = self.keys();
            let is_recovery = |n: &u32| keys.iter().any(|k| k.keyslot == *n && k.is_recovery_key());
            keyslots.sort_by_key(|n| !is_recovery(n));
        }
        let failed = match keyslot {
            Some(only) => format!(
                "{}: the key or passphrase does not open keyslot {only}",
                self.name()
            ),
            None => format!(
                "{}: the key or passphrase opens no keyslot of this volume",
                self.name()
            ),
        };
        match self.try_secret(&keyslots, as_read, failed.clone(), mistake) {
            // A key file may contain a recovery key, and more, such as the end of the line.
            Err(Error::WrongKey(_)) if as_read != secret => {
                self.try_secret(&keyslots, secret, failed, mistake)
            }
            result => result,
        }
    }

    /// Refuses a keyslot that no typed secret opens, before the secret is asked for.
    ///
    /// # Errors
    /// [`Error::NoSuchKey`]; [`Error::WrongKey`] if the keyslot belongs to a key pair.
    pub fn refuse_pair(&self, keyslot: u32) -> Result<()> {
        let key = self.key_in(keyslot)?;
        if key.recipient.is_none() {
            return Ok(());
        }
        let name = key.name.as_deref().unwrap_or_default().escape_debug();
        Err(Error::wrong_key(format!(
            "{}: keyslot {keyslot} belongs to the key pair {name}, which no passphrase of the \
             volume opens; use --key NAME",
            self.name()
        )))
    }

    /// Tries `keyslots` in order; `failed` and `mistake` explain a wrong key.
    fn try_secret(
        &self,
        keyslots: &[u32],
        secret: &SecretBytes,
        failed: String,
        mistake: Option<&Mistake>,
    ) -> Result<Unlocked> {
        let mut first_error = None;
        let mut limits = self.kdf_limits;
        let mut tried = false;
        for &keyslot in keyslots {
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
            let mut hint = failed;
            if let Some(why) = unusable.first() {
                hint = format!("{hint} that was tried; {why}");
            }
            if let Some(mistake) = mistake {
                hint = format!("{hint}; {mistake}");
            }
            Error::wrong_key(hint)
        }))
    }

    /// Opens the volume with a key pair.
    ///
    /// # Errors
    /// [`Error::WrongKey`] if the header has no keyslot for the key pair.
    pub fn unlock_identity(&self, identity: &Identity) -> Result<Unlocked> {
        self.unlock_identity_in(None, identity)
    }

    /// Same as [`Volume::unlock_identity`], with one keyslot alone; `None` for all keyslots.
    ///
    /// # Errors
    /// [`Error::NoSuchKey`], and those of [`Volume::unlock_identity`].
    pub fn unlock_identity_in(
        &self,
        keyslot: Option<u32>,
        identity: &Identity,
    ) -> Result<Unlocked> {
        let own = identity.recipient().to_string();
        let mut keys = match keyslot {
            Some(only) => vec![self.key_in(only)?],
            None => self.keys(),
        };
        keys.retain(|k| k.recipient.as_deref() == Some(&own));
        let mut first_error = None;
        let mut limits = self.kdf_limits;
        for entry in &keys {
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
            let which = match keyslot {
                Some(only) => format!("keyslot {only} does not belong to that key pair"),
                None => "no keyslot of this volume belongs to that key pair".into(),
            };
            Error::wrong_key(format!("{}: {which}", self.name()))
        }))
    }

    /// Finds the key in a keyslot.
    ///
    /// # Errors
    /// [`Error::NoSuchKey`] if the keyslot does not exist.
    pub fn key_in(&self, keyslot: u32) -> Result<KeyEntry> {
        let mut keys = self.keys().into_iter();
        keys.find(|k| k.keyslot == keyslot).ok_or_else(|| {
            Error::NoSuchKey(format!(
                "{}: no keyslot {keyslot}; `evfs volume key list` lists the keyslots",
                self.name()
            ))
        })
    }

    /// Subtracts the work of a keyslot that was tried in vain from what the next ones may cost: a
    /// header has up to 32 of them.
    fn spend(&self, limits: &mut KdfLimits, keyslot: u32, error: &Error) {
        if matches!(error, Error::WrongKey(_)) {
            let work = self.header.work_kib(keyslot);
            limits.work_kib_max = limits.work_kib_max.saturating_sub(work);
        }
    }

    pub(super) fn open_keyslot(
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

    /// Unlocks the volume with what [`Unlocked::to_keep`] returned, in the same role as before.
    ///
    /// # Errors
    /// [`Error::WrongKey`]: it belongs to another volume.
    pub fn unlock_kept(&self, kept: &SecretBytes) -> Result<Unlocked> {
        let wrong = || Error::wrong_key("what the previous server left opens another volume");
        let (keyslot, rest) = kept.split_first_chunk::<4>().ok_or_else(wrong)?;
        let key = rest
            .strip_prefix(self.uuid().as_bytes())
            .ok_or_else(wrong)?;
        if Some(key.len()) != self.header.volume_key_len().map(|len| len as usize) {
            return Err(wrong());
        }
        self.unlocked(SecretBytes::from_slice(key), u32::from_le_bytes(*keyslot))
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
