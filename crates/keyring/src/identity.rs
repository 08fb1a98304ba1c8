//! The private half of a key pair, in memory.

use crate::recipient::Recipient;
use crate::{Error, Result, openssh, ssh};
use age::secrecy::{ExposeSecret, SecretString};
use secret::SecretBytes;
use std::io::Read;

/// Longest accepted envelope, in bytes; those of EVFS have about 230.
const ENVELOPE_BYTES_MAX: usize = 16 * 1024;
/// Longest secret in an envelope, in bytes.
const SECRET_BYTES_MAX: usize = 1024;
/// Largest accepted scrypt work factor of a key file (log2 of N): 1 GiB of memory. `age` writes
/// about 18.
pub(crate) const SCRYPT_LOG_N_MAX: u8 = 20;

/// Most rounds of bcrypt accepted for an OpenSSH key. `ssh-keygen` writes 16 or 24.
const BCRYPT_ROUNDS_MAX: u32 = 1024;

/// The private half of a key pair. Its key is freed, and therefore zeroed, on drop.
pub struct Identity {
    recipient: Recipient,
    inner: Inner,
}

enum Inner {
    X25519(age::x25519::Identity),
    Ssh(ssh::Identity),
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Identity of {}", self.recipient)
    }
}

impl Identity {
    /// Returns the public half.
    pub fn recipient(&self) -> &Recipient {
        &self.recipient
    }

    /// Decrypts an envelope made by [`Recipient::wrap`] or by the program `age`.
    ///
    /// # Errors
    /// [`Error::WrongKey`] if it is damaged or encrypted to another key, [`Error::Malformed`] if it
    /// or its content is too long.
    pub fn unwrap(&self, envelope: &[u8]) -> Result<SecretBytes> {
        if envelope.len() > ENVELOPE_BYTES_MAX {
            return Err(Error::malformed(
                "the envelope of a keyslot",
                "it is too long",
            ));
        }
        let identity = self.as_age();
        let decryptor = age::Decryptor::new(envelope).map_err(|_| Error::WrongKey)?;
        if decryptor.is_scrypt() {
            return Err(Error::WrongKey);
        }
        let opened = decryptor
            .decrypt(std::iter::once(identity))
            .map_err(|_| Error::WrongKey);
        let secret = opened.and_then(|stream| read_secret(stream, SECRET_BYTES_MAX));
        secret::burn_stack();
        secret
    }

    pub(crate) fn as_age(&self) -> &dyn age::Identity {
        match &self.inner {
            Inner::X25519(identity) => identity,
            Inner::Ssh(identity) => identity,
        }
    }

    /// Generates an X25519 pair; returns it with its identity line.
    pub(crate) fn generate() -> Result<(Identity, SecretBytes)> {
        let inner = age::x25519::Identity::generate();
        let line = SecretBytes::from_slice(inner.to_string().expose_secret().as_bytes());
        let recipient = inner.to_public().to_string().parse()?;
        secret::burn_stack();
        Ok((
            Identity {
                recipient,
                inner: Inner::X25519(inner),
            },
            line,
        ))
    }

    /// Parses an age identity file: comments, and one `AGE-SECRET-KEY-1...` line.
    pub(crate) fn from_age_text(text: &[u8], what: &str) -> Result<Identity> {
        let malformed = |why: &str| Error::malformed(what, why);
        let text = std::str::from_utf8(text).map_err(|_| malformed("it is not text"))?;
        let mut lines = text
            .lines()
            .map(str::trim)
            .filter(|l| !l.is_empty() && !l.starts_with('#'));
        let (Some(line), None) = (lines.next(), lines.next()) else {
            return Err(malformed(
                "an identity file must have exactly one AGE-SECRET-KEY-1 line",
            ));
        };
        let inner: age::x25519::Identity = line
            .parse()
            .map_err(|_| malformed("it has no valid AGE-SECRET-KEY-1 line"))?;
        let recipient = inner.to_public().to_string().parse()?;
        secret::burn_stack();
        Ok(Identity {
            recipient,
            inner: Inner::X25519(inner),
        })
    }

    /// Parses an OpenSSH private key file; calls `passphrase` if the key is encrypted.
    pub(crate) fn from_openssh(
        text: &[u8],
        what: &str,
        passphrase: impl FnOnce() -> Result<SecretBytes>,
    ) -> Result<Identity> {
        let malformed = |why: &str| Error::malformed(what, why);
        let clear = std::str::from_utf8(text).ok().and_then(openssh::clear);
        let clear = clear.ok_or_else(|| malformed("not an OpenSSH private key"))?;
        let recipient: Recipient = clear.public.parse()?;
        if clear.rounds > BCRYPT_ROUNDS_MAX {
            return Err(Error::Unsupported(format!(
                "the passphrase of {what} requires {} rounds of bcrypt; the limit is \
                 {BCRYPT_ROUNDS_MAX}",
                clear.rounds
            )));
        }
        let not_one = || malformed("not an OpenSSH ed25519 private key");
        let mut key = ssh_key::PrivateKey::from_openssh(text).map_err(|_| not_one())?;
        if key.is_encrypted() {
            key = key.decrypt(&*passphrase()?).map_err(|e| match e {
                ssh_key::Error::Crypto | ssh_key::Error::Encoding(_) => {
                    Error::WrongPassphrase(what.to_owned())
                }
                _ => Error::Unsupported(format!(
                    "the encryption of {what} is not supported; change it with `ssh-keygen -p`"
                )),
            })?;
        }
        let pair = key.key_data().ed25519().ok_or_else(not_one)?;
        let public = recipient.ssh().ok_or_else(not_one)?.clone();
        let inner = ssh::Identity::of_seed(public, pair.private.as_ref());
        let inner = Inner::Ssh(inner.ok_or_else(not_one)?);
        secret::burn_stack();
        Ok(Identity { recipient, inner })
    }
}

/// Converts a passphrase to text, the form that `age` accepts.
pub(crate) fn secret_string(passphrase: &SecretBytes, what: &str) -> Result<SecretString> {
    let text = std::str::from_utf8(passphrase)
        .map_err(|_| Error::NoPassphrase(format!("the passphrase for {what} is not UTF-8 text")))?;
    Ok(SecretString::from(text.to_owned()))
}

/// Reads a stream of at most `max` bytes to its end.
pub(crate) fn read_secret(mut stream: impl Read, max: usize) -> Result<SecretBytes> {
    let mut held = SecretBytes::zeroed(max + 1);
    let mut len = 0;
    while len < held.len() {
        match stream.read(&mut held[len..]) {
            Ok(0) => return Ok(held.truncated(len)),
            Ok(n) => len += n,
            Err(_) => return Err(Error::WrongKey),
        }
    }
    Err(Error::malformed(
        "an encrypted file",
        "its content is too long",
    ))
}
