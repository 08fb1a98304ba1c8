//! Anti-forensic splitting (LUKS1 specification, 2.4, used unchanged by LUKS2): a key is expanded
//! to 4,000 stripes, all of which are needed to recover it, so that destroying any part of a
//! keyslot area destroys the key.

use crate::error::{Error, ErrorKind, Result};
use crate::hash::Hash;
use secret::SecretBytes;

/// Number of stripes in every keyslot that `cryptsetup` writes; other numbers are refused.
pub(crate) const STRIPES: usize = 4000;

/// Splits `key` into `stripes` stripes, using random bytes.
pub(crate) fn split(key: &[u8], stripes: usize, hash: Hash) -> Result<SecretBytes> {
    let mut material = SecretBytes::zeroed(key.len() * stripes);
    getrandom::fill(&mut material).map_err(|e| {
        Error::new(
            ErrorKind::OutOfMemory,
            format!("cannot get random bytes from the kernel: {e}"),
        )
    })?;
    finish_split(key, stripes, hash, &mut material);
    Ok(material)
}

/// Sets the last stripe so that the stripes merge into `key`.
fn finish_split(key: &[u8], stripes: usize, hash: Hash, material: &mut [u8]) {
    let folded = fold(material, key.len(), stripes, hash);
    let last = material.chunks_exact_mut(key.len().max(1)).nth(stripes - 1);
    for ((to, key), folded) in last.into_iter().flatten().zip(key).zip(folded.iter()) {
        *to = key ^ folded;
    }
}

/// Merges the stripes of `material` back into a key of `key_len` bytes.
pub(crate) fn merge(material: &[u8], key_len: usize, stripes: usize, hash: Hash) -> SecretBytes {
    let mut key = fold(material, key_len, stripes, hash);
    let last = material.chunks_exact(key_len.max(1)).nth(stripes - 1);
    for (key, last) in key.iter_mut().zip(last.into_iter().flatten()) {
        *key ^= last;
    }
    key
}

/// Computes d(k) = H(d(k-1) xor s(k)) over all stripes except the last.
fn fold(material: &[u8], key_len: usize, stripes: usize, hash: Hash) -> SecretBytes {
    let mut state = SecretBytes::zeroed(key_len);
    let mut mixed = SecretBytes::zeroed(key_len);
    for stripe in material.chunks_exact(key_len.max(1)).take(stripes - 1) {
        for (state, stripe) in state.iter_mut().zip(stripe) {
            *state ^= stripe;
        }
        diffuse(&state, &mut mixed, hash);
        std::mem::swap(&mut state, &mut mixed);
    }
    state
}

/// Replaces each hash-sized block by the hash of its number, big-endian, and the block; a short
/// last block is replaced by a prefix of its hash.
fn diffuse(from: &[u8], to: &mut [u8], hash: Hash) {
    for (index, (from, to)) in (0u32..).zip(from.chunks(hash.len()).zip(to.chunks_mut(hash.len())))
    {
        hash.digest_into(&[&index.to_be_bytes(), from], to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_split_merges_back_for_every_hash_and_length() {
        for hash in [Hash::Sha1, Hash::Sha256, Hash::Sha512] {
            for len in [1, 16, 20, 32, 33, 64, 100] {
                let key = SecretBytes::random(len);
                let material = split(&key, 40, hash).expect("random bytes");
                assert_eq!(material.len(), len * 40);
                assert!(merge(&material, len, 40, hash) == key, "{hash} {len}");
            }
        }
    }

    #[test]
    fn one_flipped_bit_in_any_stripe_loses_the_key() {
        let key = SecretBytes::random(32);
        let mut material = split(&key, 10, Hash::Sha256).expect("random bytes");
        for byte in 0..material.len() {
            material[byte] ^= 1;
            assert!(merge(&material, 32, 10, Hash::Sha256) != key, "byte {byte}");
            material[byte] ^= 1;
        }
    }

    /// Vectors computed with Python's hashlib from the definition in the LUKS1 specification:
    /// material byte i = (7 * i + 3) mod 256, 4,000 stripes.
    #[test]
    fn merges_the_known_vectors() {
        for (hash, len, expected) in VECTORS {
            let material: Vec<u8> = (0..len * STRIPES)
                .map(|i| ((7 * i + 3) % 256) as u8)
                .collect();
            let key = merge(&material, *len, STRIPES, *hash);
            let hex: String = key.iter().map(|b| format!("{b:02x}")).collect();
            assert_eq!(&hex, expected, "{hash} {len}");
        }
    }

    const VECTORS: &[(Hash, usize, &str)] = &[
        (
            Hash::Sha1,
            32,
            "dd9c54a87151a1ac09ebfd38ef05460cd8dea92278b9c8d9b385ac7786835937",
        ),
        (
            Hash::Sha1,
            64,
            "2bb39c5b7eb8df3155afbfec3f2c729e20b934638a6f4688ca22cead74bb1db5717c0470ac5f2bec69b49c872e80c8914cba83bd9a606bd58feb30d38a877e68",
        ),
        (
            Hash::Sha256,
            32,
            "ce6768ee2587f811e98989a9aa6cda9aeec8055d1d2827672d5b5a7931aac999",
        ),
        (
            Hash::Sha256,
            64,
            "c5768dea55cc0cada0adaa193329476a886eeebc1911528eae334a6aed3bc8b2a315b8cd6e4c15b5922af4848fd79844ff3f12b44383e2ee377f8779b7c306ca",
        ),
        (
            Hash::Sha512,
            32,
            "734d56a04659942ff9bdd68fefc673a05b8b84961e3dce445a4e5d9ec86ee0d0",
        ),
        (
            Hash::Sha512,
            64,
            "3bd006382df31846b940d9ec4923c02d46965ae3ee0b2fdfb10c3068c9f22f6348797d2bf305db193e499e5d0ad9dcbf95bdc3c7a766fb5d96a2c08df778dd59",
        ),
    ];
}
