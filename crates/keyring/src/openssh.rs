//! The public half of an OpenSSH private key file, which the file stores unencrypted
//! (`PROTOCOL.key` of OpenSSH, section 1).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

const BEGIN: &str = "-----BEGIN OPENSSH PRIVATE KEY-----";
const END: &str = "-----END OPENSSH PRIVATE KEY-----";
const MAGIC: &[u8] = b"openssh-key-v1\0";

/// Reports whether `text` begins like an OpenSSH private key file.
pub(crate) fn is_private_key(text: &str) -> bool {
    text.trim_start().starts_with(BEGIN)
}

/// Unencrypted part of the file.
pub(crate) struct Clear {
    /// `ssh-ed25519 AAAA...`, or another type.
    pub(crate) public: String,
    /// The private half needs a passphrase.
    pub(crate) encrypted: bool,
    /// bcrypt rounds that derive a key from the passphrase; 0 without a passphrase.
    pub(crate) rounds: u32,
}

/// Parses the unencrypted part; returns `None` if the file is malformed.
pub(crate) fn clear(text: &str) -> Option<Clear> {
    let body = text.trim().strip_prefix(BEGIN)?.strip_suffix(END)?;
    let body: String = body.split_whitespace().collect();
    let bytes = STANDARD.decode(body).ok()?;
    let rest = bytes.strip_prefix(MAGIC)?;
    let (cipher, rest) = string(rest)?;
    let (kdf, rest) = string(rest)?;
    let (options, rest) = string(rest)?;
    let (count, rest) = rest.split_first_chunk::<4>()?;
    if u32::from_be_bytes(*count) != 1 {
        return None;
    }
    let (blob, _) = string(rest)?;
    let (kind, _) = string(blob)?;
    let kind = std::str::from_utf8(kind).ok()?;
    let public = format!("{kind} {}", STANDARD.encode(blob));
    // Options of bcrypt: a salt, then the number of rounds.
    let rounds = match kdf {
        b"none" => 0,
        _ => u32::from_be_bytes(*string(options)?.1.first_chunk::<4>()?),
    };
    Some(Clear {
        rounds,
        public,
        encrypted: cipher != b"none",
    })
}

/// Splits off a string of the ssh wire format: a 32-bit length, then that number of bytes.
pub(crate) fn string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_be_bytes(*len) as usize)
}
