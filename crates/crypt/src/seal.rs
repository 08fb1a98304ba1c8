//! The seal: message authentication codes of the header, keyed from the volume key. Opening the
//! volume reveals any change made without that key.
//!
//! The codes are HMAC-SHA-256 (RFC 2104) under a key that is itself HMAC-SHA-256 of the volume key
//! over a label, so that the volume key is used only for XTS and for such derivations. Each code
//! covers the epoch of the seal, a number that increases with every seal: an old header put back
//! has a lower epoch than the machine remembers.
//!
//! **Removing a seal does not go unnoticed.** Sealing also recomputes the digest of the volume key,
//! over a salt that marks the header as sealed. A digest over another salt cannot be computed
//! without the volume key, and without a matching digest no key opens the volume. So a header with
//! that salt and no seal has had its seal removed, whatever else it still contains.

use crate::epoch::Epoch;
use crate::error::Result;
use crate::seal_state::Seal;
use crate::token::{SEAL_TYPE, SEAL_VERSION, Stated, TYPE_PREFIX};
use block::DERIVED_KEY_BYTES;
use hmac::{Hmac, KeyInit, Mac};
use luks2::Header;
use secret::SecretBytes;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use zeroize::Zeroize;

/// Labels of the derivations; a change to the derived data requires new labels.
const LABELS: [&[u8]; SEAL_VERSION as usize] = [b"evfs header seal 1", b"evfs header seal 2"];
const KEY_ID_LABEL: &[u8] = b"evfs volume key id 1";
const DERIVATION_LABEL: &[u8] = b"evfs keys for upper layers 1";
const SALT_LABEL: &[u8] = b"evfs sealed header 1";

/// Seal stated in a header, which a machine stores to distinguish an older header from a newer one.
/// Valid only if the seal is [`Seal::Intact`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealVersion {
    /// Number of the seal.
    pub epoch: Epoch,
    /// SHA-256 of its codes, in hexadecimal; equal digests mean equal sealed contents.
    pub digest: String,
}

fn mac(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac =
        <Hmac<Sha256> as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac
}

/// Derives the key for a label.
pub(crate) fn derive(key: &SecretBytes, label: &[u8], derived: &mut [u8; DERIVED_KEY_BYTES]) {
    let mut code = mac(key, &[label]).finalize().into_bytes();
    derived.copy_from_slice(&code);
    code.zeroize();
    secret::burn_stack();
}

/// Derives the key from which a device derives the keys for upper layers.
pub(crate) fn derivation_key(volume_key: &SecretBytes) -> SecretBytes {
    let mut key = SecretBytes::zeroed(DERIVED_KEY_BYTES);
    let place = key.first_chunk_mut().expect("of this length");
    derive(volume_key, DERIVATION_LABEL, place);
    key
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Computes an identifier of the volume key of volume `uuid` that does not reveal the key.
pub(crate) fn key_id(volume_key: &SecretBytes, uuid: &str) -> String {
    let id = hex(&mac(volume_key, &[KEY_ID_LABEL, uuid.as_bytes()])
        .finalize()
        .into_bytes());
    secret::burn_stack();
    id
}

/// Computes the codes of core and keys as defined by `version`.
fn codes(
    header: &Header,
    volume_key: &SecretBytes,
    version: u32,
    epoch: Epoch,
) -> [Hmac<Sha256>; 2] {
    let label = LABELS[version as usize - 1];
    let key = SecretBytes::from_slice(&mac(volume_key, &[label]).finalize().into_bytes());
    let epoch = epoch.to_be_bytes();
    let epoch: &[u8] = if version == 1 { &[] } else { &epoch };
    [
        mac(&key, &[epoch, &header.canonical_core()]),
        mac(&key, &[epoch, &header.canonical_keys(&[SEAL_TYPE])]),
    ]
}

/// Reads the seal stated in the header; `None` unless there is exactly one and it is well-formed.
fn stated(header: &Header) -> Result<Option<Stated>> {
    let tokens = header.metadata().tokens().values();
    let mut seals = tokens.filter(|t| t.token_type() == SEAL_TYPE);
    match (seals.next(), seals.next()) {
        (Some(one), None) => Ok(Stated::read(one)?
            .filter(|s| (1..=SEAL_VERSION).contains(&s.version) && s.epoch.is_valid())),
        _ => Ok(None),
    }
}

/// Computes epoch and digest of the seal stated in the header.
pub(crate) fn mark(header: &Header) -> Option<SealVersion> {
    let seal = stated(header).ok().flatten()?;
    let digest = Sha256::new()
        .chain_update(&seal.core)
        .chain_update(&seal.keys);
    Some(SealVersion {
        epoch: seal.epoch,
        digest: hex(&digest.finalize()),
    })
}

/// Checks whether the salt of the digest marks the header as sealed.
pub(crate) fn is_marked(header: &Header) -> bool {
    let (_, digest) = header.metadata().volume_digest();
    let salt = digest.and_then(|d| d.salt());
    salt.is_some_and(|salt| salt.len() == 32 && salt[16..] == mark_of(&salt[..16]))
}

fn mark_of(random: &[u8]) -> [u8; 16] {
    let code = mac(SALT_LABEL, &[random]).finalize().into_bytes();
    std::array::from_fn(|i| code[i])
}

/// Checks whether the header was sealed once; if it has no seal, the seal was removed.
pub(crate) fn must_be_sealed(header: &Header) -> bool {
    let tokens = header.metadata().tokens().values();
    let mut types = tokens.map(luks2::Token::token_type);
    types.any(|t| t.starts_with(TYPE_PREFIX)) || is_marked(header)
}

/// Checks the seal of `header`.
pub(crate) fn check(header: &Header, volume_key: &SecretBytes) -> Result<Seal> {
    let tokens = header.metadata().tokens().values();
    let seals = tokens.filter(|t| t.token_type() == SEAL_TYPE).count();
    let seal = match (stated(header)?, seals) {
        (Some(seal), _) => seal,
        (None, 0) if must_be_sealed(header) => return Ok(Seal::Missing),
        (None, 0) => return Ok(Seal::Never),
        (None, _) => return Ok(Seal::CoreChanged),
    };
    let [core, keys] = codes(header, volume_key, seal.version, seal.epoch);
    // `verify_slice` compares in constant time.
    let core_holds = core.verify_slice(&seal.core).is_ok();
    let keys_hold = keys.verify_slice(&seal.keys).is_ok();
    secret::burn_stack();
    Ok(match (core_holds, keys_hold) {
        (false, _) => Seal::CoreChanged,
        (true, false) => Seal::KeysChanged,
        (true, true) => Seal::Intact,
    })
}

/// Adds a new seal to `header`, with an epoch above that of the previous seal and above `known`.
pub(crate) fn put(
    header: &mut Header,
    volume_key: &SecretBytes,
    known: Epoch,
) -> std::result::Result<(), luks2::Error> {
    let before = mark(header).map_or(Epoch::ZERO, |m| m.epoch);
    let epoch = before.max(known).next();
    if !is_marked(header) {
        let random = SecretBytes::random(16);
        let mut salt = [0; 32];
        salt[..16].copy_from_slice(&random);
        salt[16..].copy_from_slice(&mark_of(&random));
        header.set_digest_salt(volume_key, &salt)?;
    }
    let tokens = header.metadata().tokens().iter();
    let old: Vec<u32> = tokens
        .filter(|(_, t)| t.token_type() == SEAL_TYPE)
        .map(|(number, _)| *number)
        .collect();
    for number in old {
        header.remove_token(number)?;
    }
    let [core, keys] = codes(header, volume_key, SEAL_VERSION, epoch);
    let seal = Stated {
        version: SEAL_VERSION,
        epoch,
        core: core.finalize().into_bytes().to_vec(),
        keys: keys.finalize().into_bytes().to_vec(),
    };
    secret::burn_stack();
    header.add_token(None, &seal.to_token()?).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A later version must derive the same keys. Computed by Python's `hmac`.
    #[test]
    fn keys_for_upper_layers_are_those_of_the_format() {
        let volume_key = SecretBytes::from_slice(&[7; 64]);
        let mut key = [0; DERIVED_KEY_BYTES];
        derive(&derivation_key(&volume_key), b"label", &mut key);
        assert_eq!(
            hex(&key),
            "eefdf42b0b5ddb82ad22d691f34f67527f397ee46186bf411da1d8612fe55221"
        );
    }
}
