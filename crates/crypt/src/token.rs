//! What EVFS keeps in LUKS2 tokens, where every other program leaves it alone.
//!
//! | type | fields beside `type` and `keyslots` |
//! |---|---|
//! | `evfs-key` | `version` 1, `role`, `name`, and for a key pair `recipient` and `envelope` (base64 of an age file that holds the keyslot's secret) |
//! | `evfs-seal` | `version` 2, `epoch`, `core` and `keys`: base64 of HMAC-SHA-256; version 1 has no epoch |

use crate::role::Role;
use crate::{Error, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// Type of the token beside each keyslot that EVFS made.
pub(crate) const KEY_TYPE: &str = "evfs-key";
/// Type of the token with the header's seal.
pub(crate) const SEAL_TYPE: &str = "evfs-seal";
/// What the types of all our tokens begin with.
pub(crate) const TYPE_PREFIX: &str = "evfs-";
/// Version of the tokens of keyslots. Those of a later version are left alone and not understood.
const VERSION: u32 = 1;
/// Version of the seal that is written.
pub(crate) const SEAL_VERSION: u32 = 2;

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
struct SealToken {
    #[serde(rename = "type")]
    kind: String,
    keyslots: Vec<String>,
    version: u32,
    #[serde(default)]
    epoch: u64,
    core: String,
    keys: String,
}

/// A seal as a header states it. Only the volume key tells whether it is true.
pub(crate) struct Stated {
    pub(crate) version: u32,
    /// Number of the seal: one higher with each. Zero in version 1.
    pub(crate) epoch: u64,
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

    /// The seal in a token; `None` when it makes no sense.
    ///
    /// # Errors
    /// A later version made it.
    pub(crate) fn read(token: &luks2::Token) -> Result<Option<Stated>> {
        let Ok(read) = serde_json::from_str::<SealToken>(&token.to_json()) else {
            return Ok(None);
        };
        if read.version > SEAL_VERSION {
            return Err(Error::Refused(format!(
                "the seal of the header has version {}, and this program knows up to version {SEAL_VERSION}; use a later one",
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
