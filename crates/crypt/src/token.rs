//! EVFS data in LUKS2 tokens, which other programs ignore.
//!
//! - `evfs-key` has the fields `version` (1), `role`, `name`, and for a key pair `recipient` and
//!   `envelope` (base64 of an age file that holds the keyslot's secret). A passphrase, key file or
//!   recovery key may have a `label`, which earlier programs ignore.
//! - `evfs-seal` has the fields `version` (2), `epoch`, `core` and `keys` (base64 of HMAC-SHA-256).
//!   Version 1 has no `epoch`.
//!
//! Both also have LUKS2's `type` and `keyslots`.

use crate::epoch::Epoch;
use crate::error::{Error, Result};
use crate::role::Role;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// Type of the token for each keyslot that EVFS created.
pub(crate) const KEY_TYPE: &str = "evfs-key";
/// Type of the token that holds the header's seal.
pub(crate) const SEAL_TYPE: &str = "evfs-seal";
/// Prefix of all EVFS token types.
pub(crate) const TYPE_PREFIX: &str = "evfs-";
/// Version of the keyslot tokens. Tokens of other versions are left unchanged and ignored.
const VERSION: u32 = 1;
/// Longest label of a keyslot, in bytes: 32 of them leave room in the smallest header.
const LABEL_BYTES_MAX: usize = 64;
/// Version of the seal that this program writes.
pub(crate) const SEAL_VERSION: u32 = 2;

/// Token for a keyslot.
#[derive(Serialize, Deserialize)]
pub(crate) struct KeyToken {
    #[serde(rename = "type")]
    kind: String,
    keyslots: Vec<String>,
    version: u32,
    role: String,
    pub(crate) name: Option<String>,
    pub(crate) recipient: Option<String>,
    envelope: Option<String>,
    // Absent rather than null, so that a token without a label is as earlier programs write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<String>,
}

/// Checks a label for a keyslot.
///
/// # Errors
/// The reason, if it is blank, longer than 64 bytes, or contains control characters.
pub fn check_label(label: &str) -> std::result::Result<(), String> {
    if label.trim().is_empty() || label.chars().any(char::is_control) {
        Err("a label has at least one visible character and no control characters".into())
    } else if label.len() > LABEL_BYTES_MAX {
        Err(format!(
            "the label has {} bytes; at most {LABEL_BYTES_MAX} are possible",
            label.len()
        ))
    } else {
        Ok(())
    }
}

impl KeyToken {
    /// Creates the token for a key pair.
    pub(crate) fn pair(
        keyslot: u32,
        role: Role,
        name: &str,
        recipient: &str,
        envelope: &[u8],
    ) -> KeyToken {
        KeyToken {
            name: Some(name.to_owned()),
            recipient: Some(recipient.to_owned()),
            envelope: Some(STANDARD.encode(envelope)),
            ..KeyToken::secret(keyslot, role)
        }
    }

    /// Creates the token for a passphrase or key file.
    pub(crate) fn secret(keyslot: u32, role: Role) -> KeyToken {
        KeyToken {
            kind: KEY_TYPE.into(),
            keyslots: vec![keyslot.to_string()],
            version: VERSION,
            role: role.to_string(),
            name: None,
            recipient: None,
            envelope: None,
            label: None,
        }
    }

    /// Sets the label.
    pub(crate) fn labeled(self, label: &str) -> KeyToken {
        KeyToken {
            label: Some(label.to_owned()),
            ..self
        }
    }

    pub(crate) fn to_token(&self) -> std::result::Result<luks2::Token, luks2::Error> {
        let text = serde_json::to_string(self).expect("text and numbers become JSON");
        luks2::Token::from_json(&text)
    }

    /// Parses a token; `None` if it is not an `evfs-key` token of a known version and role.
    pub(crate) fn read(token: &luks2::Token) -> Option<KeyToken> {
        if token.token_type() != KEY_TYPE {
            return None;
        }
        let read: KeyToken = serde_json::from_str(&token.to_json()).ok()?;
        (read.version == VERSION && Role::from_name(&read.role).is_some()).then_some(read)
    }

    pub(crate) fn role(&self) -> Role {
        // `read` has checked the name; should it still be unknown, assume the weakest role.
        Role::from_name(&self.role).unwrap_or(Role::Recovery)
    }

    /// Decodes the age file that holds the keyslot's secret.
    pub(crate) fn envelope(&self) -> Option<Vec<u8>> {
        STANDARD.decode(self.envelope.as_deref()?).ok()
    }
}

/// Token that holds the seal.
#[derive(Serialize, Deserialize)]
struct SealToken {
    #[serde(rename = "type")]
    kind: String,
    keyslots: Vec<String>,
    version: u32,
    #[serde(default)]
    epoch: Epoch,
    core: String,
    keys: String,
}

/// A seal as stated in a header. Verifying it requires the volume key.
pub(crate) struct Stated {
    pub(crate) version: u32,
    /// Number of the seal: increases with each new seal. Zero in version 1.
    pub(crate) epoch: Epoch,
    pub(crate) core: Vec<u8>,
    pub(crate) keys: Vec<u8>,
}

impl Stated {
    pub(crate) fn to_token(&self) -> std::result::Result<luks2::Token, luks2::Error> {
        let token = SealToken {
            kind: SEAL_TYPE.into(),
            keyslots: Vec::new(),
            version: self.version,
            epoch: self.epoch,
            core: STANDARD.encode(&self.core),
            keys: STANDARD.encode(&self.keys),
        };
        let text = serde_json::to_string(&token).expect("text and numbers become JSON");
        luks2::Token::from_json(&text)
    }

    /// Parses the seal in a token; `None` if it is malformed.
    ///
    /// # Errors
    /// If the seal was made by a later version of the program.
    pub(crate) fn read(token: &luks2::Token) -> Result<Option<Stated>> {
        let Ok(read) = serde_json::from_str::<SealToken>(&token.to_json()) else {
            return Ok(None);
        };
        if read.version > SEAL_VERSION {
            return Err(Error::Refused(format!(
                "the header seal has version {}, but this program supports only up to version \
                 {SEAL_VERSION}; use a newer EVFS",
                read.version
            )));
        }
        let code = |text: &str| STANDARD.decode(text).ok();
        let codes = code(&read.core).zip(code(&read.keys));
        Ok(codes.map(|(core, keys)| Stated {
            version: read.version,
            epoch: read.epoch,
            core,
            keys,
        }))
    }
}
