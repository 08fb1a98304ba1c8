//! The public half of a key pair.

use crate::{Error, Result, ssh};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secret::SecretBytes;
use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;

/// Kind of a key pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// An age identity.
    X25519,
    /// An OpenSSH ed25519 key.
    SshEd25519,
}

impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeyKind::X25519 => "x25519",
            KeyKind::SshEd25519 => "ssh-ed25519",
        })
    }
}

/// Computes the fingerprint of a public key from its text, by which users tell apart key pairs with
/// equal names: the first 64 bits of the SHA-256, as four groups of hexadecimal digits.
pub fn fingerprint(public: &str) -> String {
    let digest = Sha256::digest(public.as_bytes());
    let group = |pair: &[u8]| -> String { pair.iter().map(|b| format!("{b:02x}")).collect() };
    let groups: Vec<String> = digest.chunks(2).take(4).map(group).collect();
    groups.join("-")
}

/// Length of the name that is derived from an age key.
const SHORT_NAME_CHARS: usize = 12;

/// The public half of a key pair; displayed as `age1...` or `ssh-ed25519 AAAA...`.
#[derive(Clone)]
pub struct Recipient {
    text: String,
    inner: Inner,
}

#[derive(Clone)]
enum Inner {
    X25519(age::x25519::Recipient),
    Ssh(ssh::Recipient),
}

impl Recipient {
    /// Returns the kind of the key.
    pub fn kind(&self) -> KeyKind {
        match self.inner {
            Inner::X25519(_) => KeyKind::X25519,
            Inner::Ssh(_) => KeyKind::SshEd25519,
        }
    }

    pub(crate) fn ssh(&self) -> Option<&ssh::Recipient> {
        match &self.inner {
            Inner::X25519(_) => None,
            Inner::Ssh(recipient) => Some(recipient),
        }
    }

    /// Derives a name for a key without one: the beginning of its text, or of its fingerprint.
    pub(crate) fn short_name(&self) -> String {
        match self.inner {
            Inner::X25519(_) => self.text.chars().take(SHORT_NAME_CHARS).collect(),
            Inner::Ssh(_) => {
                let print = fingerprint(&self.text);
                let end = print.match_indices('-').nth(1).map_or(print.len(), |m| m.0);
                format!("ssh-{}", &print[..end])
            }
        }
    }

    pub(crate) fn as_age(&self) -> &dyn age::Recipient {
        match &self.inner {
            Inner::X25519(recipient) => recipient,
            Inner::Ssh(recipient) => recipient,
        }
    }

    /// Encrypts a secret so that only the private half decrypts it. The result is an age file
    /// (age-encryption.org/v1), about 200 bytes longer than the secret.
    ///
    /// # Errors
    /// The encryption failed, which does not happen for keys that were parsed.
    pub fn wrap(&self, secret: &SecretBytes) -> Result<Vec<u8>> {
        let envelope = match &self.inner {
            Inner::X25519(recipient) => age::encrypt(recipient, secret),
            Inner::Ssh(recipient) => age::encrypt(recipient, secret),
        };
        secret::burn_stack();
        envelope.map_err(|e| Error::malformed(&self.text, e.to_string()))
    }
}

impl FromStr for Recipient {
    type Err = Error;

    /// Parses one line: `age1...` or `ssh-ed25519 AAAA... [comment]`.
    fn from_str(text: &str) -> Result<Recipient> {
        let text = text.trim();
        // Unreadable text may be a secret pasted in the wrong place: it is never quoted.
        let shown = || "the text given as a public key";
        if let Some(kind) = text
            .split(' ')
            .next()
            .filter(|kind| kind.starts_with("ssh-") || kind.starts_with("ecdsa-"))
        {
            if kind != "ssh-ed25519" {
                // For the same reason, only a known kind is named.
                let known = ["ssh-rsa", "ssh-dss"].into_iter().find(|k| *k == kind);
                return Err(refused(known.unwrap_or("such ssh")));
            }
            let mut words = text.split_whitespace();
            let line = [words.next(), words.next()]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join(" ");
            let blob = line.split_once(' ').map(|(_, text)| STANDARD.decode(text));
            let inner = blob.and_then(|blob| ssh::Recipient::of_blob(&blob.ok()?));
            return match inner {
                Some(inner) => Ok(Recipient {
                    text: line,
                    inner: Inner::Ssh(inner),
                }),
                None => Err(Error::malformed(shown(), "not an ssh-ed25519 public key")),
            };
        }
        match text.parse::<age::x25519::Recipient>() {
            Ok(inner) => Ok(Recipient {
                text: inner.to_string(),
                inner: Inner::X25519(inner),
            }),
            Err(_) => Err(unreadable(text, shown())),
        }
    }
}

/// Creates the error for text that is not a usable public key of age.
fn unreadable(text: &str, shown: &str) -> Error {
    // Keys of plugins are `age1NAME1...`; an age key has no second `1`.
    let plugin = text.strip_prefix("age1").is_some_and(|rest| {
        rest.split_once('1')
            .is_some_and(|(name, _)| !name.is_empty())
    });
    if plugin {
        return Error::Unsupported(
            "keys of age plugins, on tokens for example, are not supported; create a key with \
             `evfs key generate`"
                .into(),
        );
    }
    let why = if text.starts_with("age1") {
        "a character is missing or wrong, or it is a key of another type; copy the whole line \
             again"
    } else {
        "it begins with neither `age1` nor `ssh-ed25519`"
    };
    Error::malformed(shown, why)
}

/// Creates the error for an ssh key that is not ed25519.
pub(crate) fn refused(kind: &str) -> Error {
    Error::Unsupported(format!(
        "{kind} keys are not supported: of ssh keys only ssh-ed25519 is (the available RSA \
         implementation leaks keys through timing, RUSTSEC-2023-0071); create a key with \
         `ssh-keygen -t ed25519` or `evfs key generate`"
    ))
}

impl fmt::Display for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recipient({})", self.text)
    }
}

impl PartialEq for Recipient {
    fn eq(&self, other: &Recipient) -> bool {
        self.text == other.text
    }
}

impl Eq for Recipient {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_the_beginning_of_the_sha_256() {
        // printf %s abc | sha256sum
        assert_eq!(fingerprint("abc"), "ba78-16bf-8f01-cfea");
    }
}
