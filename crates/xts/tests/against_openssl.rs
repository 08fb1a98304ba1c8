//! Every kernel against the system's OpenSSL: both key lengths, both sector sizes, both
//! directions, in place and not, odd counts of sectors, slices at any alignment, unit numbers up
//! to and past the wrap.

use block_testing::Random;
use openssl::cipher::Cipher;
use openssl::cipher_ctx::CipherCtx;
use std::time::{SystemTime, UNIX_EPOCH};
use xts::{Kernel, SectorSize, Tweak, Xts};

/// Creates a generator seeded from `XTS_SEED` or the clock, and prints the seed so that a failure
/// can be replayed.
fn random() -> Random {
    let clock = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock after 1970");
    let given = std::env::var("XTS_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or(clock.as_nanos() as u64);
    println!("replay with XTS_SEED={seed}");
    Random::new(seed)
}

fn bytes(random: &mut Random, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    random.fill(&mut bytes);
    bytes
}

/// Returns the ciphertext of dm-crypt's `aes-xts-plain64`, with one EVP call per sector.
fn openssl(key: &[u8], sector: SectorSize, first_unit: u64, clear: &[u8]) -> Vec<u8> {
    let cipher = if key.len() == 32 {
        Cipher::aes_128_xts()
    } else {
        Cipher::aes_256_xts()
    };
    let bytes = sector.bytes() as usize;
    let mut ctx = CipherCtx::new().expect("a context");
    ctx.encrypt_init(Some(cipher), Some(key), None)
        .expect("the key");
    let mut out = vec![0; clear.len()];
    for (index, (clear, out)) in clear.chunks(bytes).zip(out.chunks_mut(bytes)).enumerate() {
        let unit = first_unit.wrapping_add(index as u64 * (bytes as u64 / 512));
        ctx.encrypt_init(None, None, Some(&u128::from(unit).to_le_bytes()))
            .expect("the tweak");
        ctx.cipher_update(clear, Some(out)).expect("the data");
    }
    out
}

/// Checks all four operations on a slice that starts `shift` bytes into an allocation.
fn check(xts: &Xts, first_unit: u64, clear: &[u8], cipher: &[u8], shift: usize) {
    let what = format!(
        "{xts:?}, unit {first_unit}, {} bytes, shift {shift}",
        clear.len()
    );
    const GUARD: u8 = 0xA5;
    let first = Tweak::new(first_unit);
    let surrounded = |data: &[u8]| [&vec![GUARD; shift], data, &[GUARD; 64]].concat();
    let range = shift..shift + clear.len();

    let mut place = surrounded(clear);
    xts.encrypt(first, &mut place[range.clone()]);
    assert!(place == surrounded(cipher), "encrypt: {what}");
    xts.decrypt(first, &mut place[range.clone()]);
    assert!(place == surrounded(clear), "decrypt: {what}");

    let (src, mut dst) = (surrounded(clear), surrounded(&vec![0; clear.len()]));
    xts.encrypt_to(first, &src[range.clone()], &mut dst[range.clone()]);
    assert!(dst == surrounded(cipher), "encrypt_to: {what}");
    assert!(
        src == surrounded(clear),
        "encrypt_to leaves its source alone: {what}"
    );
    let mut back = surrounded(&vec![0; clear.len()]);
    xts.decrypt_to(first, &dst[range.clone()], &mut back[range]);
    assert!(back == src, "decrypt_to: {what}");
}

#[test]
fn every_kernel_agrees_with_openssl() {
    let mut random = random();
    let counts = (1..=18).chain([31, 32, 33, 64, 67]);
    for key_bytes in [32, 64] {
        for sector in [SectorSize::B512, SectorSize::B4096] {
            for count in counts.clone() {
                let key = bytes(&mut random, key_bytes);
                let clear = bytes(&mut random, count * sector.bytes() as usize);
                let edge = u64::MAX - random.next_u64() % (8 * count as u64);
                for unit in [
                    0,
                    u32::MAX.into(),
                    1 << 63,
                    random.next_u64(),
                    u64::MAX,
                    edge,
                ] {
                    let cipher = openssl(&key, sector, unit, &clear);
                    let shift = (random.next_u64() % 64) as usize;
                    for kernel in Kernel::available() {
                        let xts = Xts::with_kernel(&key, sector, kernel).expect("a good key");
                        check(&xts, unit, &clear, &cipher, shift);
                    }
                }
            }
        }
    }
}

#[test]
fn any_alignment_of_a_slice_agrees_with_openssl() {
    let mut random = random();
    let key = bytes(&mut random, 64);
    let clear = bytes(&mut random, 5 * 512);
    let cipher = openssl(&key, SectorSize::B512, 77, &clear);
    for kernel in Kernel::available() {
        let xts = Xts::with_kernel(&key, SectorSize::B512, kernel).expect("a good key");
        for shift in 0..=64 {
            check(&xts, 77, &clear, &cipher, shift);
        }
    }
}

/// Uses data and keys that random bytes never hit: all zeros, all ones, or a single bit.
#[test]
fn extreme_keys_and_data_agree_with_openssl() {
    let mut keys = Vec::new();
    for len in [32, 64] {
        for (first, second) in [(0x00, 0xFF), (0xFF, 0x00), (0x80, 0x01), (0x00, 0x01)] {
            keys.push([vec![first; len / 2], vec![second; len / 2]].concat());
        }
    }
    for key in &keys {
        for sector in [SectorSize::B512, SectorSize::B4096] {
            let len = 3 * sector.bytes() as usize;
            let mut one_bit = vec![0; len];
            one_bit[len / 2] = 1;
            for clear in [vec![0; len], vec![0xFF; len], one_bit] {
                let cipher = openssl(key, sector, u64::MAX, &clear);
                for kernel in Kernel::available() {
                    let xts = Xts::with_kernel(key, sector, kernel).expect("a good key");
                    check(&xts, u64::MAX, &clear, &cipher, 0);
                }
            }
        }
    }
}
