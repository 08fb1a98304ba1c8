//! AES round keys for the x86 kernels, expanded by AES-NI straight into secret memory.

use secret::SecretBytes;
use std::arch::x86_64::*;

/// Three consecutive schedules, each of `rounds + 1` keys of 16 bytes: the data key's for
/// encryption, the data key's for decryption, the tweak key's for encryption.
pub(crate) struct RoundKeys {
    memory: SecretBytes,
    rounds: usize,
}

impl RoundKeys {
    /// Expands `key`: the data key, then the tweak key (IEEE 1619 section 5.1: Key1 | Key2).
    ///
    /// # Panics
    /// If `key` is not 32 or 64 bytes long or the CPU lacks AES-NI.
    pub(crate) fn new(key: &[u8]) -> RoundKeys {
        assert!(
            is_x86_feature_detected!("aes"),
            "the kernel was checked before"
        );
        let rounds = match key.len() {
            32 => 10,
            64 => 14,
            other => panic!("an XTS key has 32 or 64 bytes, not {other}"),
        };
        let (data, tweak) = key.split_at(key.len() / 2);
        let schedule = (rounds + 1) * 16;
        let mut memory = SecretBytes::zeroed(3 * schedule);
        let (encrypt, rest) = memory.split_at_mut(schedule);
        let (decrypt, tweaks) = rest.split_at_mut(schedule);
        // SAFETY: AES-NI was detected above.
        unsafe {
            expand(data, encrypt);
            invert(encrypt, decrypt);
            expand(tweak, tweaks);
        }
        RoundKeys { memory, rounds }
    }

    /// Reports the number of AES rounds: 10 or 14.
    pub(super) fn rounds(&self) -> usize {
        self.rounds
    }

    /// Points to the `rounds + 1` keys that encrypt data.
    pub(super) fn encrypt(&self) -> *const __m128i {
        self.schedule(0)
    }

    /// Points to the keys that decrypt data by the equivalent inverse cipher.
    pub(super) fn decrypt(&self) -> *const __m128i {
        self.schedule(1)
    }

    /// Points to the keys that encrypt tweaks.
    pub(super) fn tweak(&self) -> *const __m128i {
        self.schedule(2)
    }

    fn schedule(&self, index: usize) -> *const __m128i {
        let bytes = (self.rounds + 1) * 16;
        self.memory[index * bytes..][..bytes].as_ptr().cast()
    }

    /// Exposes all round keys to tests that search for them elsewhere.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory
    }
}

/// Passes `keys` through an empty `asm!` block that hides its value from the compiler.
///
/// Called before each step of a loop, it keeps the compiler from loading all round keys ahead of
/// the loop: they outnumber the registers, and it would spill them to the stack.
#[inline(always)]
#[allow(
    clippy::pointers_in_nomem_asm_block,
    reason = "the pointer passes through unread"
)]
pub(super) fn opaque(mut keys: *const __m128i) -> *const __m128i {
    // SAFETY: the block has no instruction; the pointer is returned unchanged.
    unsafe {
        std::arch::asm!("/* {0} */", inout(reg) keys, options(nomem, nostack, preserves_flags));
    }
    keys
}

/// Expands a key of 16 or 32 bytes (FIPS 197 section 5.2); `to` takes 11 or 15 round keys.
#[target_feature(enable = "aes")]
fn expand(key: &[u8], to: &mut [u8]) {
    store(to, 0, load(key, 0));
    if key.len() == 16 {
        macro_rules! round {
            ($($index:literal $rcon:literal),*) => { $(
                let last = load(to, $index - 1);
                let word = _mm_aeskeygenassist_si128::<$rcon>(last);
                store(to, $index, next(last, _mm_shuffle_epi32::<0xFF>(word)));
            )* };
        }
        round!(1 0x01, 2 0x02, 3 0x04, 4 0x08, 5 0x10, 6 0x20, 7 0x40, 8 0x80, 9 0x1B, 10 0x36);
    } else {
        store(to, 1, load(key, 1));
        macro_rules! even {
            ($($index:literal $rcon:literal),*) => { $(
                let word = _mm_aeskeygenassist_si128::<$rcon>(load(to, $index - 1));
                let key = next(load(to, $index - 2), _mm_shuffle_epi32::<0xFF>(word));
                store(to, $index, key);
                // The next key, for 256-bit keys only: SubWord without RotWord and Rcon.
                if $index < 14 {
                    let word = _mm_aeskeygenassist_si128::<0>(key);
                    let key = next(load(to, $index - 1), _mm_shuffle_epi32::<0xAA>(word));
                    store(to, $index + 1, key);
                }
            )* };
        }
        even!(2 0x01, 4 0x02, 6 0x04, 8 0x08, 10 0x10, 12 0x20, 14 0x40);
    }
}

/// Computes four words of the schedule from the four words one key length earlier and the
/// transformed word.
#[target_feature(enable = "sse2")]
fn next(before: __m128i, word: __m128i) -> __m128i {
    let mut sum = _mm_xor_si128(before, _mm_slli_si128::<4>(before));
    sum = _mm_xor_si128(sum, _mm_slli_si128::<8>(sum));
    _mm_xor_si128(sum, word)
}

/// Reverses the keys and applies InvMixColumns to the inner ones (FIPS 197 section 5.3.5).
#[target_feature(enable = "aes")]
fn invert(encrypt: &[u8], to: &mut [u8]) {
    let rounds = encrypt.len() / 16 - 1;
    store(to, 0, load(encrypt, rounds));
    for index in 1..rounds {
        store(to, index, _mm_aesimc_si128(load(encrypt, rounds - index)));
    }
    store(to, rounds, load(encrypt, 0));
}

#[target_feature(enable = "sse2")]
fn load(from: &[u8], index: usize) -> __m128i {
    let from = &from[index * 16..][..16];
    // SAFETY: `from` is 16 readable bytes; the load needs no alignment.
    unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
}

#[target_feature(enable = "sse2")]
fn store(to: &mut [u8], index: usize, key: __m128i) {
    let to = &mut to[index * 16..][..16];
    // SAFETY: `to` is 16 writable bytes; the store needs no alignment.
    unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), key) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kernel;

    /// Keys of FIPS 197 appendix A.1 and A.3, each with its last round key.
    const EXPANSIONS: [(&str, &str); 2] = [
        (
            "2b7e151628aed2a6abf7158809cf4f3c",
            "d014f9a8c9ee2589e13f0cc8b6630ca6",
        ),
        (
            "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4",
            "fe4890d1e6188d0b046df344706c631e",
        ),
    ];

    #[test]
    fn expansion_ends_as_in_fips_197_appendix_a_for_every_kernel_of_this_cpu() {
        let kernels = Kernel::available();
        let instructions = kernels.iter().filter(|kernel| **kernel != Kernel::Portable);
        for (kernel, (key, last)) in instructions.flat_map(|k| EXPANSIONS.map(|e| (k, e))) {
            let key = crate::vectors::unhex(key);
            let keys = RoundKeys::new(&[&key[..], &key[..]].concat());
            let schedule = keys.bytes().len() / 3;
            let last = crate::vectors::unhex(last);
            assert_eq!(keys.bytes()[schedule - 16..schedule], last, "{kernel}");
            assert_eq!(
                keys.bytes()[schedule..schedule + 16],
                last,
                "{kernel}: decryption starts with it"
            );
            assert_eq!(keys.bytes()[..schedule], keys.bytes()[2 * schedule..]);
        }
    }
}
