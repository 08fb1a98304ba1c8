//! Checks every kernel against published test vectors and, with the feature `openssl`, against
//! OpenSSL for units of any number of blocks.
//!
//! The public interface accepts whole sectors only. These tests call the kernels directly, because
//! the standards' vectors use short data units and 128-bit tweaks.

use crate::kernel::{Engine, Units};
use crate::{Direction, Kernel};

const IEEE_1619: &str = include_str!("vectors/ieee1619.txt");
const NIST_XTSVS: &str = include_str!("vectors/nist_xtsvs.txt");

/// Decodes a hexadecimal string.
pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|pair| {
            let pair = str::from_utf8(pair).expect("ASCII");
            u8::from_str_radix(pair, 16).expect("hexadecimal digits")
        })
        .collect()
}

/// Runs each line of `table` through each kernel in both directions; returns the number of lines.
fn check(table: &str) -> usize {
    let mut lines = 0;
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, number, key, tweak, clear, cipher] = fields[..] else {
            panic!("fields: {line}")
        };
        let [key, tweak, clear, cipher] = [key, tweak, clear, cipher].map(unhex);
        let first_iv = u128::from_le_bytes(tweak.try_into().expect("a tweak of 16 bytes"));
        let units = Units {
            first_iv,
            iv_step: 1,
            bytes: clear.len(),
        };
        for kernel in Kernel::available() {
            let engine = Engine::new(kernel, &key);
            let mut out = vec![0; clear.len()];
            engine.run(Direction::Encrypt, units, Some(&clear), &mut out);
            assert_eq!(out, cipher, "{kernel} encrypts vector {number}");
            engine.run(Direction::Decrypt, units, None, &mut out);
            assert_eq!(out, clear, "{kernel} decrypts vector {number}");
        }
        lines += 1;
    }
    lines
}

#[test]
fn every_kernel_gives_the_vectors_of_ieee_1619() {
    assert_eq!(check(IEEE_1619), 15);
}

#[test]
fn every_kernel_gives_the_vectors_of_nist_xtsvs() {
    assert_eq!(check(NIST_XTSVS), 400);
}

#[cfg(feature = "openssl")]
mod against_openssl {
    use super::*;
    use openssl::cipher::Cipher;
    use openssl::cipher_ctx::CipherCtx;

    #[test]
    fn units_of_any_number_of_blocks_agree_with_openssl() {
        let data: Vec<u8> = (0..3 * 1100 * 16)
            .map(|at: usize| (at * 7 + at / 253) as u8)
            .collect();
        let key: Vec<u8> = (1..=64).collect();
        for key in [&key[..32], &key] {
            let cipher = if key.len() == 32 {
                Cipher::aes_128_xts()
            } else {
                Cipher::aes_256_xts()
            };
            for blocks in (1..=70).chain([127, 128, 129, 255, 257, 1023]) {
                let units = Units {
                    first_iv: u128::MAX - (5 << 70),
                    iv_step: 3,
                    bytes: blocks * 16,
                };
                let clear = &data[..3 * units.bytes];
                let mut right = vec![0; clear.len()];
                let mut ctx = CipherCtx::new().expect("a context");
                for index in 0..3 {
                    let range = index * units.bytes..(index + 1) * units.bytes;
                    // As in plain64: the low half counts and wraps, the high half is constant.
                    let low = (units.first_iv as u64).wrapping_add(3 * index as u64);
                    let iv = ((units.first_iv >> 64 << 64) | u128::from(low)).to_le_bytes();
                    ctx.encrypt_init(Some(cipher), Some(key), Some(&iv))
                        .expect("key and tweak");
                    ctx.cipher_update(&clear[range.clone()], Some(&mut right[range]))
                        .expect("data");
                }
                for kernel in Kernel::available() {
                    let engine = Engine::new(kernel, key);
                    let mut out = clear.to_vec();
                    engine.run(Direction::Encrypt, units, None, &mut out);
                    assert!(out == right, "{kernel}, {blocks} blocks, encryption");
                    engine.run(Direction::Decrypt, units, None, &mut out);
                    assert!(out == clear, "{kernel}, {blocks} blocks, decryption");
                }
            }
        }
    }
}
