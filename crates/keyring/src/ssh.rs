//! Both halves of age's recipient type `ssh-ed25519`: a file key wrapped to an OpenSSH ed25519 key
//! (C2SP `age-ssh`). The ed25519 key is converted to the corresponding X25519 key.

use age_core::format::{FILE_KEY_BYTES, FileKey, Stanza};
use age_core::primitives::{aead_decrypt, aead_encrypt, hkdf};
use age_core::secrecy::ExposeSecret;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use curve25519_dalek::edwards::CompressedEdwardsY;
use secret::SecretBytes;
use sha2::{Digest, Sha256, Sha512};
use std::collections::HashSet;
use x25519_dalek::{PublicKey, SharedSecret, StaticSecret};
use zeroize::{Zeroize, Zeroizing};

const KIND: &str = "ssh-ed25519";
const LABEL: &[u8] = b"age-encryption.org/v1/ssh-ed25519";
/// Bytes of a wrapped file key and its AEAD tag.
const BODY_BYTES: usize = FILE_KEY_BYTES + 16;

/// The public half: the key as encoded in `.pub` files, and as a point for X25519.
#[derive(Clone)]
pub(crate) struct Recipient {
    blob: Vec<u8>,
    point: PublicKey,
}

impl Recipient {
    /// Parses the decoded base64 text of a `.pub` file; returns `None` if it is no ed25519 key.
    pub(crate) fn of_blob(blob: &[u8]) -> Option<Recipient> {
        let (kind, rest) = crate::openssh::string(blob)?;
        let (key, rest) = crate::openssh::string(rest)?;
        if kind != KIND.as_bytes() || !rest.is_empty() {
            return None;
        }
        let point = CompressedEdwardsY::from_slice(key).ok()?.decompress()?;
        // A point of small order would make a shared secret that is public knowledge.
        let good = !point.is_small_order();
        good.then(|| Recipient {
            blob: blob.to_vec(),
            point: PublicKey::from(point.to_montgomery().to_bytes()),
        })
    }

    /// Computes the tag that names this key in a stanza: four bytes of its hash, in base64.
    fn tag(&self) -> String {
        STANDARD_NO_PAD.encode(&Sha256::digest(&self.blob)[..4])
    }

    /// Derives the scalar that binds the exchanged secret to the whole ssh key.
    fn tweak(&self) -> StaticSecret {
        StaticSecret::from(hkdf(&self.blob, LABEL, &[]))
    }

    /// Derives the key that wraps the file key from the shared secret. Returns `None` if the peer's
    /// point is of small order, because anyone could compute the secret then.
    fn wrap_key(
        &self,
        ephemeral: &PublicKey,
        shared: &SharedSecret,
    ) -> Option<Zeroizing<[u8; 32]>> {
        if !shared.was_contributory() {
            return None;
        }
        let mut salt = [0; 64];
        salt[..32].copy_from_slice(ephemeral.as_bytes());
        salt[32..].copy_from_slice(self.point.as_bytes());
        let point = Zeroizing::new(PublicKey::from(*shared.as_bytes()));
        let secret = self.tweak().diffie_hellman(&point);
        Some(Zeroizing::new(hkdf(&salt, LABEL, secret.as_bytes())))
    }
}

impl age::Recipient for Recipient {
    fn wrap_file_key(
        &self,
        file_key: &FileKey,
    ) -> Result<(Vec<Stanza>, HashSet<String>), age::EncryptError> {
        let own = scalar(&SecretBytes::random(32));
        let ephemeral = PublicKey::from(&own);
        let shared = own.diffie_hellman(&self.point);
        let key = self
            .wrap_key(&ephemeral, &shared)
            .ok_or_else(|| std::io::Error::other("the public key is a point of small order"))?;
        let body = aead_encrypt(&key, file_key.expose_secret());
        let stanza = Stanza {
            tag: KIND.to_owned(),
            args: vec![self.tag(), STANDARD_NO_PAD.encode(ephemeral.as_bytes())],
            body,
        };
        Ok((vec![stanza], HashSet::new()))
    }
}

/// The private half.
pub(crate) struct Identity {
    recipient: Recipient,
    /// The X25519 key: first half of the SHA-512 of the seed, as ed25519 derives it for signing.
    key: SecretBytes,
}

impl Identity {
    /// Derives the key from an ed25519 seed; returns `None` if the public half is not of that seed.
    pub(crate) fn of_seed(recipient: Recipient, seed: &[u8; 32]) -> Option<Identity> {
        let mut hash = Sha512::digest(seed);
        let key = SecretBytes::from_slice(&hash[..32]);
        hash.as_mut_slice().zeroize();
        let belongs = PublicKey::from(&scalar(&key)) == recipient.point;
        belongs.then_some(Identity { recipient, key })
    }

    fn unwrap(&self, stanza: &Stanza) -> Result<FileKey, age::DecryptError> {
        let damaged = || age::DecryptError::InvalidHeader;
        let ephemeral = stanza.args.get(1).ok_or_else(damaged)?;
        let ephemeral = STANDARD_NO_PAD.decode(ephemeral).map_err(|_| damaged())?;
        let ephemeral: [u8; 32] = ephemeral.try_into().map_err(|_| damaged())?;
        if stanza.body.len() != BODY_BYTES {
            return Err(damaged());
        }
        let ephemeral = PublicKey::from(ephemeral);
        let shared = scalar(&self.key).diffie_hellman(&ephemeral);
        let key = self.recipient.wrap_key(&ephemeral, &shared);
        let key = key.ok_or_else(damaged)?;
        let opened = aead_decrypt(&key, FILE_KEY_BYTES, &stanza.body);
        let mut opened = opened.map_err(|_| age::DecryptError::DecryptionFailed)?;
        Ok(FileKey::init_with_mut(|file_key| {
            file_key.copy_from_slice(&opened);
            opened.zeroize();
        }))
    }
}

impl age::Identity for Identity {
    fn unwrap_stanza(&self, stanza: &Stanza) -> Option<Result<FileKey, age::DecryptError>> {
        let ours = stanza.tag == KIND && stanza.args.first() == Some(&self.recipient.tag());
        ours.then(|| self.unwrap(stanza))
    }
}

/// Converts 32 secret bytes to a scalar, which is zeroed on drop.
fn scalar(bytes: &SecretBytes) -> StaticSecret {
    let mut copy = [0; 32];
    copy.copy_from_slice(bytes);
    let scalar = StaticSecret::from(copy);
    copy.zeroize();
    scalar
}

#[cfg(test)]
mod tests {
    use super::*;
    use age::Identity as _;

    fn identity() -> Identity {
        let seed = [7; 32];
        let key = curve25519_dalek::edwards::EdwardsPoint::mul_base_clamped(
            Sha512::digest(seed)[..32].try_into().unwrap(),
        );
        let mut blob = Vec::new();
        for part in [KIND.as_bytes(), key.compress().as_bytes()] {
            blob.extend((part.len() as u32).to_be_bytes());
            blob.extend(part);
        }
        Identity::of_seed(Recipient::of_blob(&blob).unwrap(), &seed).unwrap()
    }

    fn stanza(own: &Identity, ephemeral: &[u8; 32], body: Vec<u8>) -> Stanza {
        Stanza {
            tag: KIND.to_owned(),
            args: vec![own.recipient.tag(), STANDARD_NO_PAD.encode(ephemeral)],
            body,
        }
    }

    /// A file key wrapped with a secret that anyone can compute is not authentic.
    #[test]
    fn a_point_of_small_order_opens_nothing() {
        let own = identity();
        for (low, shared) in [([0; 32], [0; 32]), (one(), [0; 32])] {
            let salt = [&low[..], own.recipient.point.as_bytes()].concat();
            let body = aead_encrypt(&hkdf(&salt, LABEL, &shared), &[9; FILE_KEY_BYTES]);
            let opened = own.unwrap_stanza(&stanza(&own, &low, body)).unwrap();
            assert!(
                matches!(opened, Err(age::DecryptError::InvalidHeader)),
                "{:?}",
                opened.err()
            );
        }
        let mut good = age::Recipient::wrap_file_key(
            &own.recipient,
            &FileKey::init_with_mut(|key| key.fill(5)),
        );
        let stanza = good.as_mut().unwrap().0.remove(0);
        let opened = own.unwrap_stanza(&stanza).unwrap().ok().unwrap();
        assert_eq!(opened.expose_secret(), &[5; FILE_KEY_BYTES]);
    }

    /// The point of small order with u = 1; the other one in the test has u = 0.
    fn one() -> [u8; 32] {
        let mut one = [0; 32];
        one[0] = 1;
        one
    }
}
