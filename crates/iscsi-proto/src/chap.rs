//! CHAP (section 12.1.3, RFC 1994): proves knowledge of a secret without sending it.

use md5::Md5;
use sha2::{Digest, Sha256};

/// Maximum length of a challenge or response in bytes (section 12.1.3).
pub(crate) const BYTES_MAX: usize = 1024;

/// Hash algorithm; the numbers on the wire are those of the PPP registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Md5,
    Sha256,
}

impl Algorithm {
    /// Computes the response to a challenge: the hash over identifier, secret and challenge.
    pub(crate) fn response(self, id: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
        match self {
            Algorithm::Md5 => hash::<Md5>(id, secret, challenge),
            Algorithm::Sha256 => hash::<Sha256>(id, secret, challenge),
        }
    }
}

fn hash<D: Digest>(id: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
    let hash = D::new_with_prefix([id]).chain_update(secret);
    hash.chain_update(challenge).finalize().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::hex;

    #[test]
    fn responses_are_the_hash_over_identifier_secret_and_challenge() {
        // Both computed with `printf '\001secretchallenge' | md5sum` and `sha256sum`.
        let of = |a: Algorithm| hex(&a.response(1, b"secret", b"challenge"));
        assert_eq!(of(Algorithm::Md5), "46e47770030e2b4e26a0db72a7efec00");
        assert_eq!(
            of(Algorithm::Sha256),
            "2dfa0526f4764864b7c3c5bc6596bcead3d8dbd984f4fc1d9f330299f0beced4"
        );
    }
}
