//! Encryption of a keyslot area: `aes-xts-plain64` in units of 512 bytes, numbered from 0 at the
//! start of the area, for every sector size of the volume (LUKS2 specification, 3.2.1).
//!
//! A separate small cipher, one block at a time: an area is 256 KiB, and its cost is negligible
//! beside the key derivation. The data path uses the `xts` crate, which is on the same layer.

use crate::error::{Error, Result};
use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Aes256};

/// Unit of keyslot encryption, in bytes.
const UNIT: usize = 512;

/// AES block size, in bytes.
const BLOCK: usize = 16;

/// Encrypts `area` in place with a key of 32 or 64 bytes. `area` must be whole units.
pub(crate) fn encrypt(key: &[u8], area: &mut [u8]) -> Result<()> {
    crypt(key, area, Direction::Encrypt)
}

/// Decrypts `area` in place with a key of 32 or 64 bytes. `area` must be whole units.
pub(crate) fn decrypt(key: &[u8], area: &mut [u8]) -> Result<()> {
    crypt(key, area, Direction::Decrypt)
}

#[derive(Clone, Copy)]
enum Direction {
    Encrypt,
    Decrypt,
}

fn crypt(key: &[u8], area: &mut [u8], direction: Direction) -> Result<()> {
    if !area.len().is_multiple_of(UNIT) {
        return Err(Error::argument(
            "the size of a keyslot area must be a multiple of 512 bytes",
        ));
    }
    match key.len() {
        32 => with::<Aes128>(key, area, direction),
        64 => with::<Aes256>(key, area, direction),
        len => Err(Error::unsupported(format!(
            "AES-XTS takes keys of 32 or 64 bytes, not {len}"
        ))),
    }
}

/// Runs AES-XTS: the first half of the key is for the data, the second for the tweak (IEEE 1619).
fn with<C>(key: &[u8], area: &mut [u8], direction: Direction) -> Result<()>
where
    C: KeyInit + BlockCipherEncrypt + BlockCipherDecrypt,
    C: aes::cipher::BlockSizeUser<BlockSize = aes::cipher::consts::U16>,
{
    let short = |_| Error::argument("key length");
    let (data_key, tweak_key) = key.split_at(key.len() / 2);
    let data = C::new_from_slice(data_key).map_err(short)?;
    let tweaks = C::new_from_slice(tweak_key).map_err(short)?;
    for (unit, number) in area.chunks_exact_mut(UNIT).zip(0u128..) {
        // plain64: the number of the unit, little-endian, in 16 bytes.
        let mut tweak = Array::from(number.to_le_bytes());
        tweaks.encrypt_block(&mut tweak);
        let mut tweak = u128::from_le_bytes(tweak.into());
        for block in unit.as_chunks_mut::<BLOCK>().0 {
            let mut text = Array::from((u128::from_le_bytes(*block) ^ tweak).to_le_bytes());
            match direction {
                Direction::Encrypt => data.encrypt_block(&mut text),
                Direction::Decrypt => data.decrypt_block(&mut text),
            }
            *block = (u128::from_le_bytes(text.into()) ^ tweak).to_le_bytes();
            // Multiply by x in GF(2^128) with the polynomial x^128 + x^7 + x^2 + x + 1.
            tweak = (tweak << 1) ^ ((tweak >> 127) * 0x87);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unhex(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
        digits
            .chunks(2)
            .map(|d| u8::from_str_radix(std::str::from_utf8(d).expect("ascii"), 16).expect("hex"))
            .collect()
    }

    /// IEEE 1619-2007, annex B, vector 4 (AES-128, data unit 0, 512 bytes), first and last blocks.
    #[test]
    fn enciphers_ieee_1619_vector_4() {
        let key = unhex("27182818284590452353602874713526 31415926535897932384626433832795");
        let plain: Vec<u8> = (0..512u32).map(|i| (i % 256) as u8).collect();
        let mut text = plain.clone();
        encrypt(&key, &mut text).expect("key length");
        assert_eq!(text[..16], unhex("27a7479befa1d476489f308cd4cfa6e2"));
        assert_eq!(text[496..], unhex("0a282df920147beabe421ee5319d0568"));
        decrypt(&key, &mut text).expect("key length");
        assert_eq!(text, plain);
    }

    /// IEEE 1619-2007, annex B, vector 10 has data unit 0xff: reached here as the 256th unit.
    #[test]
    fn enciphers_ieee_1619_vector_10() {
        let key = unhex(
            "27182818284590452353602874713526 62497757247093699959574966967627
             31415926535897932384626433832795 02884197169399375105820974944592",
        );
        let unit: Vec<u8> = (0..512u32).map(|i| (i % 256) as u8).collect();
        let mut area = unit.repeat(256);
        encrypt(&key, &mut area).expect("key length");
        assert_eq!(
            area[255 * 512..][..16],
            unhex("1c3b3a102f770386e4836c99e370cf9b")
        );
        decrypt(&key, &mut area).expect("key length");
        assert_eq!(area, unit.repeat(256));
    }

    #[test]
    fn refuses_other_key_lengths_and_part_units() {
        assert!(encrypt(&[0; 48], &mut [0; 512]).is_err());
        assert!(decrypt(&[0; 32], &mut [0; 511]).is_err());
    }
}
