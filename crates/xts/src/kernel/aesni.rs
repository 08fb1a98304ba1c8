//! AES-NI and PCLMULQDQ: one block per register, eight registers in flight.
//!
//! The scheme is that of `vaes512`, with one lane instead of four: the first tweaks of eight units
//! are encrypted together, each unit's first eight tweaks are computed by shifts, and all eight are
//! multiplied by x^8 at once, so that no block depends on the doubling of the previous one.
//!
//! The tweaks of the next step are computed between the rounds of the current one, one per round:
//! the execution units that do not run AES are idle then, and no step begins by waiting for its
//! tweaks. That is worth a sixth of the speed. (In `vaes512`, with four blocks per register, it
//! gained nothing.)
//!
//! With sixteen registers and eight blocks in flight, the compiler keeps tweaks on the stack;
//! [`super::clear`] erases them.

use super::Units;
use super::keys::{RoundKeys, opaque};
use crate::Direction;
use std::arch::x86_64::*;

/// Blocks in flight. AESENC has a latency of at most 4 cycles on CPUs that start two per cycle, and
/// of up to 8 on older ones that start one.
const WIDTH: usize = 8;

/// Bytes in a step.
const STEP: usize = WIDTH * 16;

/// The low part of the field's polynomial, x^7 + x^2 + x + 1 (IEEE 1619 section 5.2).
const POLY: i64 = 0x87;

/// Checks whether the CPU supports the instructions that this kernel uses.
pub(super) fn supported() -> bool {
    is_x86_feature_detected!("aes") && is_x86_feature_detected!("pclmulqdq")
}

/// Runs the kernel; see [`super::Engine::run`], which has checked the lengths.
pub(super) fn run(
    keys: &RoundKeys,
    way: Direction,
    units: Units,
    src: Option<&[u8]>,
    dst: &mut [u8],
) {
    assert!(supported(), "the kernel was checked before");
    let count = dst.len() / units.bytes;
    let to = dst.as_mut_ptr();
    let from = src.map_or(to.cast_const(), <[u8]>::as_ptr);
    // SAFETY: the features were just detected. `from` and `to` are `count` whole units long. They
    // are equal or do not overlap, because a shared and an exclusive slice cannot. The number of
    // rounds is that of the schedules.
    unsafe {
        match (keys.rounds(), way) {
            (10, Direction::Encrypt) => crypt::<10, false>(keys, units, from, to, count),
            (10, Direction::Decrypt) => crypt::<10, true>(keys, units, from, to, count),
            (_, Direction::Encrypt) => crypt::<14, false>(keys, units, from, to, count),
            (_, Direction::Decrypt) => crypt::<14, true>(keys, units, from, to, count),
        }
    }
}

/// Processes `count` units.
///
/// # Safety
/// `src` and `dst` must be readable and writable for `count` units and be the same or disjoint;
/// `keys` must have `ROUNDS` rounds.
#[target_feature(enable = "aes,pclmulqdq")]
unsafe fn crypt<const ROUNDS: usize, const INVERSE: bool>(
    keys: &RoundKeys,
    units: Units,
    mut src: *const u8,
    mut dst: *mut u8,
    count: usize,
) {
    let data_keys = if INVERSE {
        keys.decrypt()
    } else {
        keys.encrypt()
    };
    let mut first = 0;
    while first < count {
        // SAFETY: the schedule has `ROUNDS + 1` keys, as the caller promises.
        let starts = unsafe { first_tweaks::<ROUNDS>(keys.tweak(), units, first) };
        for start in &starts[..(count - first).min(WIDTH)] {
            // SAFETY: a whole unit is left at `src` and `dst`; the keys as above.
            unsafe {
                unit::<ROUNDS, INVERSE>(data_keys, *start, src, dst, units.bytes);
                src = src.add(units.bytes);
                dst = dst.add(units.bytes);
            }
        }
        first += WIDTH;
    }
}

/// Processes one data unit, given its first tweak.
///
/// # Safety
/// `src` and `dst` must be readable and writable for `bytes`, a multiple of 16, and be the same
/// or disjoint; `keys` must point at `ROUNDS + 1` keys.
#[inline]
#[target_feature(enable = "aes,pclmulqdq")]
unsafe fn unit<const ROUNDS: usize, const INVERSE: bool>(
    keys: *const __m128i,
    start: __m128i,
    src: *const u8,
    dst: *mut u8,
    bytes: usize,
) {
    let mut tweaks = ladder(start);
    let mut at = 0;
    while bytes - at >= STEP {
        let mut next = tweaks;
        let make = |index: usize| next[index] = times_x8(tweaks[index]);
        // SAFETY: `STEP` bytes from `at` on are within the unit.
        unsafe { blocks::<ROUNDS, INVERSE, WIDTH>(keys, &tweaks, make, src.add(at), dst.add(at)) };
        tweaks = next;
        at += STEP;
    }
    if at < bytes {
        // SAFETY: the rest of the unit, less than a step, starts at `at`.
        unsafe { tail::<ROUNDS, INVERSE>(keys, tweaks, src.add(at), dst.add(at), bytes - at) };
    }
}

/// Processes the end of a unit whose length is not a multiple of [`STEP`]. Occurs in the standards'
/// test vectors, never in LUKS2. A separate function, so that other tweaks need not be in memory.
///
/// # Safety
/// As [`unit()`], with `bytes` less than [`STEP`].
#[cold]
#[target_feature(enable = "aes,pclmulqdq")]
unsafe fn tail<const ROUNDS: usize, const INVERSE: bool>(
    keys: *const __m128i,
    tweaks: [__m128i; WIDTH],
    src: *const u8,
    dst: *mut u8,
    bytes: usize,
) {
    for (at, tweak) in (0..bytes).step_by(16).zip(tweaks) {
        // SAFETY: a block from `at` on is within the unit.
        unsafe { blocks::<ROUNDS, INVERSE, 1>(keys, &[tweak], |_| (), src.add(at), dst.add(at)) };
    }
}

/// Applies XTS to `N` blocks: XOR tweak, AES, XOR tweak (IEEE 1619 section 5.3.1). Calls
/// the closure between rounds with each index less than [`WIDTH`].
///
/// # Safety
/// `src` and `dst` must be readable and writable for `N` blocks and be the same or disjoint;
/// `keys` must point at `ROUNDS + 1` keys.
#[inline]
#[target_feature(enable = "aes")]
unsafe fn blocks<const ROUNDS: usize, const INVERSE: bool, const N: usize>(
    keys: *const __m128i,
    tweaks: &[__m128i; N],
    meanwhile: impl FnMut(usize),
    src: *const u8,
    dst: *mut u8,
) {
    let mut data = [_mm_setzero_si128(); N];
    // SAFETY: the 16 bytes at `index * 16` are within the `N` blocks of either side.
    unsafe {
        for (index, data) in data.iter_mut().enumerate() {
            *data = _mm_loadu_si128(src.add(index * 16).cast());
        }
        rounds::<ROUNDS, INVERSE, N>(keys, tweaks, &mut data, meanwhile);
        for (index, data) in data.iter().enumerate() {
            _mm_storeu_si128(dst.add(index * 16).cast(), *data);
        }
    }
}

/// Runs the register-only part of [`blocks`].
///
/// # Safety
/// `keys` must point at `ROUNDS + 1` keys.
#[inline]
#[target_feature(enable = "aes")]
unsafe fn rounds<const ROUNDS: usize, const INVERSE: bool, const N: usize>(
    keys: *const __m128i,
    tweaks: &[__m128i; N],
    data: &mut [__m128i; N],
    mut meanwhile: impl FnMut(usize),
) {
    const { assert!(ROUNDS > WIDTH) };
    let keys = opaque(keys);
    // SAFETY: the indices are at most `ROUNDS`, and the schedule has the alignment of its type.
    let key = |index| unsafe { _mm_load_si128(keys.add(index)) };
    let first = key(0);
    for (data, tweak) in data.iter_mut().zip(tweaks) {
        *data = _mm_xor_si128(_mm_xor_si128(*data, *tweak), first);
    }
    for index in 1..ROUNDS {
        let key = key(index);
        for data in data.iter_mut() {
            *data = if INVERSE {
                _mm_aesdec_si128(*data, key)
            } else {
                _mm_aesenc_si128(*data, key)
            };
        }
        if index <= WIDTH {
            meanwhile(index - 1);
        }
    }
    let last = key(ROUNDS);
    for (data, tweak) in data.iter_mut().zip(tweaks) {
        // The last round ends by XORing its key; the tweak is combined with it.
        let last = _mm_xor_si128(last, *tweak);
        *data = if INVERSE {
            _mm_aesdeclast_si128(*data, last)
        } else {
            _mm_aesenclast_si128(*data, last)
        };
    }
}

/// Encrypts the initial values of eight units with the tweak key.
///
/// # Safety
/// `keys` must point at `ROUNDS + 1` keys.
#[inline]
#[target_feature(enable = "aes")]
unsafe fn first_tweaks<const ROUNDS: usize>(
    keys: *const __m128i,
    units: Units,
    first: usize,
) -> [__m128i; WIDTH] {
    let mut data = [_mm_setzero_si128(); WIDTH];
    for (index, data) in data.iter_mut().enumerate() {
        let iv = units.iv(first + index);
        *data = _mm_set_epi64x((iv >> 64) as i64, iv as i64);
    }
    let none = [_mm_setzero_si128(); WIDTH];
    // SAFETY: as the caller promises.
    unsafe { rounds::<ROUNDS, false, WIDTH>(keys, &none, &mut data, |_| ()) };
    data
}

/// Computes `start` times x^0, x^1 and so on to x^7.
#[inline]
#[target_feature(enable = "pclmulqdq")]
fn ladder(start: __m128i) -> [__m128i; WIDTH] {
    [
        start,
        times_x::<1, 63>(start),
        times_x::<2, 62>(start),
        times_x::<3, 61>(start),
        times_x::<4, 60>(start),
        times_x::<5, 59>(start),
        times_x::<6, 58>(start),
        times_x::<7, 57>(start),
    ]
}

/// Multiplies by x^`LEFT`; `RIGHT` is 64 - `LEFT`. Both halves are shifted; bits shifted out of the
/// low half enter the high one, and those out of the high half are multiplied by the polynomial.
#[inline]
#[target_feature(enable = "pclmulqdq")]
fn times_x<const LEFT: i32, const RIGHT: i32>(tweak: __m128i) -> __m128i {
    const { assert!(LEFT + RIGHT == 64) };
    let carried = _mm_srli_epi64::<RIGHT>(tweak);
    let reduced = _mm_clmulepi64_si128::<0x01>(carried, _mm_set1_epi64x(POLY));
    let halves = _mm_xor_si128(_mm_slli_epi64::<LEFT>(tweak), _mm_slli_si128::<8>(carried));
    _mm_xor_si128(halves, reduced)
}

/// Multiplies by x^8.
#[inline]
#[target_feature(enable = "pclmulqdq")]
fn times_x8(tweak: __m128i) -> __m128i {
    let carried = _mm_srli_si128::<15>(tweak);
    let reduced = _mm_clmulepi64_si128::<0x00>(carried, _mm_set1_epi64x(POLY));
    _mm_xor_si128(_mm_slli_si128::<1>(tweak), reduced)
}

/// Returns the powers of the ladder and of the next one, for a comparison with the portable kernel.
#[cfg(test)]
#[target_feature(enable = "pclmulqdq")]
pub(super) fn ladder_and_next(start: u128) -> Vec<u128> {
    let now = ladder(_mm_set_epi64x((start >> 64) as i64, start as i64));
    let next = now.map(|tweak| times_x8(tweak));
    let mut out = Vec::new();
    for register in now.into_iter().chain(next) {
        let mut block = [0u8; 16];
        // SAFETY: the array is 16 bytes long.
        unsafe { _mm_storeu_si128(block.as_mut_ptr().cast(), register) };
        out.push(u128::from_le_bytes(block));
    }
    out
}
