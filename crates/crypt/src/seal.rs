//! The seal: message authentication codes of the header, keyed from the volume key, so that a
//! change by somebody who does not have it shows when the volume is opened.
//!
//! The codes are HMAC-SHA-256 (RFC 2104) under a key that is itself HMAC-SHA-256 of the volume key
//! over a label, so that the volume key is used for nothing but XTS and this derivation.

use crate::Result;
use crate::token::{KEY_TYPE, SEAL_TYPE, SealToken};
use hmac::{Hmac, KeyInit, Mac};
use luks2::Header;
use secret::SecretBytes;
use sha2::Sha256;

/// Label of the derivation; a change of what is sealed changes it.
const LABEL: &[u8] = b"evfs header seal 1";

/// What the seal says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seal {
    /// Both codes match.
    Intact,
    /// The volume was never sealed: another program made it.
    Never,
    /// The keys were changed by another program.
    KeysChanged,
    /// There are keys of EVFS, and no seal: somebody took it away.
    Missing,
    /// What decides how data is read was changed.
    CoreChanged,
}

impl Seal {
    /// What the person who opens the volume should be told.
    pub fn warning(self) -> Option<String> {
        match self {
            Seal::Intact | Seal::Never => None,
            Seal::KeysChanged => Some(
                "the keys of this volume were changed by another program since EVFS last sealed its \
                 header; `evfs volume key list` shows them, the owner's next change seals them"
                    .into(),
            ),
            Seal::Missing => Some(
                "the header has lost its seal: another program took it away; check its keys with \
                 `evfs volume key list`, the owner's next change seals it again"
                    .into(),
            ),
            Seal::CoreChanged => Some("the seal of the header is broken".into()),
        }
    }
}

fn mac(key: &[u8], data: &[u8]) -> Hmac<Sha256> {
    let mut mac =
        <Hmac<Sha256> as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(data);
    mac
}

fn seal_key(volume_key: &SecretBytes) -> SecretBytes {
    SecretBytes::from_slice(&mac(volume_key, LABEL).finalize().into_bytes())
}

/// Checks the seal of `header`.
pub(crate) fn check(header: &Header, volume_key: &SecretBytes) -> Result<Seal> {
    let tokens = header.metadata().tokens();
    let Some(token) = tokens.values().find(|t| t.token_type() == SEAL_TYPE) else {
        let ours = tokens.values().any(|t| t.token_type() == KEY_TYPE);
        return Ok(if ours { Seal::Missing } else { Seal::Never });
    };
    let (core, keys) = SealToken::read(token)?;
    let key = seal_key(volume_key);
    // `verify_slice` compares in constant time.
    let core_holds = mac(&key, &header.canonical_core())
        .verify_slice(&core)
        .is_ok();
    let keys_hold = mac(&key, &header.canonical_keys(&[SEAL_TYPE]))
        .verify_slice(&keys)
        .is_ok();
    secret::burn_stack();
    Ok(match (core_holds, keys_hold) {
        (false, _) => Seal::CoreChanged,
        (true, false) => Seal::KeysChanged,
        (true, true) => Seal::Intact,
    })
}

/// Puts a fresh seal into `header`.
pub(crate) fn put(
    header: &mut Header,
    volume_key: &SecretBytes,
) -> std::result::Result<(), luks2::Error> {
    let key = seal_key(volume_key);
    let core = mac(&key, &header.canonical_core()).finalize().into_bytes();
    let keys = mac(&key, &header.canonical_keys(&[SEAL_TYPE]))
        .finalize()
        .into_bytes();
    secret::burn_stack();
    let token = SealToken::new(&core, &keys).to_token()?;
    let old = header
        .metadata()
        .tokens()
        .iter()
        .find(|(_, t)| t.token_type() == SEAL_TYPE);
    match old.map(|(number, _)| *number) {
        Some(number) => header.replace_token(number, &token),
        None => header.add_token(None, &token).map(drop),
    }
}
