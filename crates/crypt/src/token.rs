//! What EVFS keeps in LUKS2 tokens, where every other program leaves it alone.
//!
//! | type | fields beside `type` and `keyslots` |
//! |---|---|
//! | `evfs-key` | `version` 1, `role`, `name`, and for a key pair `recipient` and `envelope` (base64 of an age file that holds the keyslot's secret) |
//! | `evfs-seal` | `version` 1, `core` and `keys`: base64 of HMAC-SHA-256 |

use crate::role::Role;
use crate::{Error, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// Type of the token beside each keyslot that EVFS made.
pub(crate) const KEY_TYPE: &str = "evfs-key";
/// Type of the token with the header's seal.
pub(crate) const SEAL_TYPE: &str = "evfs-seal";
/// Version of both formats. Tokens of a later version are left alone and not understood.
const VERSION: u32 = 1;

/// The token beside a keyslot.
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
}

impl KeyToken {
    /// For a key pair.
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

    /// For a passphrase or key file.
    pub(crate) fn secret(keyslot: u32, role: Role) -> KeyToken {
        KeyToken {
            kind: KEY_TYPE.into(),
            keyslots: vec![keyslot.to_string()],
            version: VERSION,
            role: role.to_string(),
            name: None,
            recipient: None,
            envelope: None,
        }
    }

    pub(crate) fn to_token(&self) -> std::result::Result<luks2::Token, luks2::Error> {
        let text = serde_json::to_string(self).expect("text and numbers become JSON");
        luks2::Token::from_json(&text)
    }

    /// The token of a keyslot, if it is one of ours and of a version we know.
    pub(crate) fn read(token: &luks2::Token) -> Option<KeyToken> {
        if token.token_type() != KEY_TYPE {
            return None;
        }
        let read: KeyToken = serde_json::from_str(&token.to_json()).ok()?;
        (read.version == VERSION && Role::from_name(&read.role).is_some()).then_some(read)
    }

    pub(crate) fn role(&self) -> Role {
        // Checked by `read`; what cannot be is given the least.
        Role::from_name(&self.role).unwrap_or(Role::Recovery)
    }

    /// The age file with the keyslot's secret.
    pub(crate) fn envelope(&self) -> Option<Vec<u8>> {
        STANDARD.decode(self.envelope.as_deref()?).ok()
    }
}

/// The token with the seal.
#[derive(Serialize, Deserialize)]
pub(crate) struct SealToken {
    #[serde(rename = "type")]
    kind: String,
    keyslots: Vec<String>,
    version: u32,
    core: String,
    keys: String,
}

impl SealToken {
    pub(crate) fn new(core: &[u8], keys: &[u8]) -> SealToken {
        SealToken {
            kind: SEAL_TYPE.into(),
            keyslots: Vec::new(),
            version: VERSION,
            core: STANDARD.encode(core),
            keys: STANDARD.encode(keys),
        }
    }

    pub(crate) fn to_token(&self) -> std::result::Result<luks2::Token, luks2::Error> {
        let text = serde_json::to_string(self).expect("text and numbers become JSON");
        luks2::Token::from_json(&text)
    }

    /// The two codes of a seal.
    pub(crate) fn read(token: &luks2::Token) -> Result<(Vec<u8>, Vec<u8>)> {
        let unreadable = || {
            Error::Refused(
                "the seal of the header cannot be read; a later version may have made it".into(),
            )
        };
        let read: SealToken = serde_json::from_str(&token.to_json()).map_err(|_| unreadable())?;
        if read.version != VERSION {
            return Err(unreadable());
        }
        let code = |text: &str| STANDARD.decode(text).map_err(|_| unreadable());
        Ok((code(&read.core)?, code(&read.keys)?))
    }
}
