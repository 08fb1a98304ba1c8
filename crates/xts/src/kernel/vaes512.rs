//! VAES and VPCLMULQDQ on 512-bit registers: four blocks per register, eight registers in flight.
//!
//! ```text
//!   unit numbers, 4 a register -- AES, key 2 --> first tweaks T of four units
//!   T of one unit  --> 8 registers of lanes  T x^0 .. T x^31     (shifts, one reduction each)
//!   512 bytes      --> xor lanes, AES key 1, xor lanes
//!   lanes times x^32 --> the next 512 bytes of a longer unit
//! ```
//!
//! The first tweaks of the next four units are encrypted before the data of the current four, which
//! hides their latency. A sector of 512 bytes is one step of the loop and a sector of 4096 bytes is
//! eight, at nearly the same cost per byte; other libraries lose half of their speed at 512 bytes.
//!
//! Each round reads its key from secret memory by a broadcasting load, once for eight registers.
//! Held in registers, the keys would not fit beside data and tweaks.

use super::Units;
use super::keys::{RoundKeys, opaque};
use crate::Direction;
use std::arch::x86_64::*;

/// Registers in flight. VAES has a latency of at most 4 cycles, and at most two start per cycle.
const WIDTH: usize = 8;

/// Bytes in a step.
const STEP: usize = WIDTH * 64;

/// The low part of the field's polynomial, x^7 + x^2 + x + 1 (IEEE 1619 section 5.2).
const POLY: i64 = 0x87;

/// Checks whether the CPU and the operating system support this kernel.
pub(super) fn supported() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("vaes")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("aes")
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
#[target_feature(enable = "avx512f,avx512bw,vaes,vpclmulqdq,aes")]
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
    let low = |index| units.iv(index) as i64;
    let high = (units.first_iv >> 64) as i64;
    let mut ivs = _mm512_set_epi64(high, low(3), high, low(2), high, low(1), high, low(0));
    let four = units.iv_step.wrapping_mul(4) as i64;
    let advance = _mm512_set_epi64(0, four, 0, four, 0, four, 0, four);
    // SAFETY: the schedule has `ROUNDS + 1` keys, as the caller promises.
    let mut ahead = unsafe { first_tweaks::<ROUNDS>(keys.tweak(), ivs) };
    let mut left = count;
    while left > 0 {
        let starts = ahead;
        if left > 4 {
            ivs = _mm512_add_epi64(ivs, advance);
            // SAFETY: as above.
            ahead = unsafe { first_tweaks::<ROUNDS>(keys.tweak(), ivs) };
        }
        let mut lane = _mm512_set_epi64(1, 0, 1, 0, 1, 0, 1, 0);
        for _ in 0..left.min(4) {
            let start = _mm512_permutexvar_epi64(lane, starts);
            lane = _mm512_add_epi64(lane, _mm512_set1_epi64(2));
            // SAFETY: a whole unit is left at `src` and `dst`; the keys as above.
            unsafe {
                unit::<ROUNDS, INVERSE>(data_keys, start, src, dst, units.bytes);
                src = src.add(units.bytes);
                dst = dst.add(units.bytes);
            }
        }
        left -= left.min(4);
    }
}

/// Processes one data unit, whose first tweak is in all four lanes of `start`.
///
/// # Safety
/// `src` and `dst` must be readable and writable for `bytes`, a multiple of 16, and be the same
/// or disjoint; `keys` must point at `ROUNDS + 1` keys.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,vaes,vpclmulqdq,aes")]
unsafe fn unit<const ROUNDS: usize, const INVERSE: bool>(
    keys: *const __m128i,
    start: __m512i,
    src: *const u8,
    dst: *mut u8,
    bytes: usize,
) {
    let mut tweaks = lanes(start);
    let mut at = 0;
    while bytes - at >= STEP {
        // SAFETY: `STEP` bytes from `at` on are within the unit.
        unsafe { step::<ROUNDS, INVERSE>(keys, &tweaks, src.add(at), dst.add(at)) };
        at += STEP;
        if at < bytes {
            tweaks = tweaks.map(|tweak| times_x8::<4, 12>(tweak));
        }
    }
    if at < bytes {
        // SAFETY: the rest of the unit, less than a step, starts at `at`.
        unsafe { tail::<ROUNDS, INVERSE>(keys, tweaks, src.add(at), dst.add(at), bytes - at) };
    }
}

/// Processes the end of a unit whose length is not a multiple of [`STEP`]. Occurs in the standards'
/// test vectors, never in LUKS2. A separate function, so that other tweaks stay in registers.
///
/// # Safety
/// As [`unit()`], with `bytes` less than [`STEP`].
#[cold]
#[target_feature(enable = "avx512f,avx512bw,vaes,vpclmulqdq,aes")]
unsafe fn tail<const ROUNDS: usize, const INVERSE: bool>(
    keys: *const __m128i,
    tweaks: [__m512i; WIDTH],
    src: *const u8,
    dst: *mut u8,
    bytes: usize,
) {
    for (at, tweak) in (0..bytes).step_by(64).zip(tweaks) {
        let words = (bytes - at).min(64) / 8;
        let mask = (0xFF >> (8 - words)) as __mmask8;
        // SAFETY: `words` 64-bit words from `at` on are within the unit, and the mask keeps the
        // load and the store to them.
        unsafe {
            let mut data = [_mm512_maskz_loadu_epi64(mask, src.add(at).cast())];
            rounds::<ROUNDS, INVERSE, 1>(keys, &[tweak], &mut data);
            _mm512_mask_storeu_epi64(dst.add(at).cast(), mask, data[0]);
        }
    }
}

/// Processes eight registers of data.
///
/// # Safety
/// `src` and `dst` must be readable and writable for [`STEP`] bytes, and be the same or disjoint;
/// `keys` must point at `ROUNDS + 1` keys.
#[inline]
#[target_feature(enable = "avx512f,vaes")]
unsafe fn step<const ROUNDS: usize, const INVERSE: bool>(
    keys: *const __m128i,
    tweaks: &[__m512i; WIDTH],
    src: *const u8,
    dst: *mut u8,
) {
    let mut data = [_mm512_setzero_si512(); WIDTH];
    // SAFETY: 64 bytes at `index * 64` are within the `STEP` bytes of either side.
    unsafe {
        for (index, data) in data.iter_mut().enumerate() {
            *data = _mm512_loadu_si512(src.add(index * 64).cast());
        }
        rounds::<ROUNDS, INVERSE, WIDTH>(keys, tweaks, &mut data);
        for (index, data) in data.iter().enumerate() {
            _mm512_storeu_si512(dst.add(index * 64).cast(), *data);
        }
    }
}

/// Applies XTS to `N` registers: XOR tweak, AES, XOR tweak (IEEE 1619 section 5.3.1).
///
/// # Safety
/// `keys` must point at `ROUNDS + 1` keys.
#[inline]
#[target_feature(enable = "avx512f,vaes")]
unsafe fn rounds<const ROUNDS: usize, const INVERSE: bool, const N: usize>(
    keys: *const __m128i,
    tweaks: &[__m512i; N],
    data: &mut [__m512i; N],
) {
    let keys = opaque(keys);
    // SAFETY: the indices are at most `ROUNDS`.
    let key = |index| unsafe { round_key(keys, index) };
    let first = key(0);
    for (data, tweak) in data.iter_mut().zip(tweaks) {
        *data = _mm512_ternarylogic_epi64::<0x96>(*data, *tweak, first);
    }
    for index in 1..ROUNDS {
        let key = key(index);
        for data in data.iter_mut() {
            *data = if INVERSE {
                _mm512_aesdec_epi128(*data, key)
            } else {
                _mm512_aesenc_epi128(*data, key)
            };
        }
    }
    let last = key(ROUNDS);
    for (data, tweak) in data.iter_mut().zip(tweaks) {
        // The last round ends by XORing its key; the tweak is combined with it.
        let last = _mm512_xor_si512(last, *tweak);
        *data = if INVERSE {
            _mm512_aesdeclast_epi128(*data, last)
        } else {
            _mm512_aesenclast_epi128(*data, last)
        };
    }
}

/// Encrypts four initial values with the tweak key.
///
/// # Safety
/// `keys` must point at `ROUNDS + 1` keys.
#[inline]
#[target_feature(enable = "avx512f,vaes")]
unsafe fn first_tweaks<const ROUNDS: usize>(keys: *const __m128i, ivs: __m512i) -> __m512i {
    let mut data = [ivs];
    // SAFETY: as the caller promises.
    unsafe { rounds::<ROUNDS, false, 1>(keys, &[_mm512_setzero_si512()], &mut data) };
    data[0]
}

/// Loads the round key into all four lanes.
///
/// # Safety
/// `keys` must point at more than `index` keys.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn round_key(keys: *const __m128i, index: usize) -> __m512i {
    // SAFETY: within the schedule, which starts at a page boundary and so is aligned to 16.
    unsafe { _mm512_broadcast_i32x4(_mm_load_si128(keys.add(index))) }
}

/// Computes `start` times x^0, x^1 and so on to x^31, lane by lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq")]
fn lanes(start: __m512i) -> [__m512i; WIDTH] {
    let even = times_x_by_lane(start);
    let odd = times_x4(even);
    [
        even,
        odd,
        times_x8::<1, 15>(even),
        times_x8::<1, 15>(odd),
        times_x8::<2, 14>(even),
        times_x8::<2, 14>(odd),
        times_x8::<3, 13>(even),
        times_x8::<3, 13>(odd),
    ]
}

/// Multiplies lane n by x^n. Both halves are shifted; bits shifted out of the low half enter the
/// high one, and those shifted out of the high half are multiplied by the polynomial.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq")]
fn times_x_by_lane(tweak: __m512i) -> __m512i {
    let left = _mm512_set_epi64(3, 3, 2, 2, 1, 1, 0, 0);
    let right = _mm512_set_epi64(61, 61, 62, 62, 63, 63, 64, 64);
    join(
        _mm512_sllv_epi64(tweak, left),
        _mm512_srlv_epi64(tweak, right),
    )
}

/// Multiplies each lane by x^4.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq")]
fn times_x4(tweak: __m512i) -> __m512i {
    join(
        _mm512_slli_epi64::<4>(tweak),
        _mm512_srli_epi64::<60>(tweak),
    )
}

/// Combines shifted halves with the bits carried out of them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq")]
fn join(shifted: __m512i, carried: __m512i) -> __m512i {
    let reduced = _mm512_clmulepi64_epi128::<0x01>(carried, _mm512_set1_epi64(POLY));
    let up = _mm512_bslli_epi128::<8>(carried);
    _mm512_ternarylogic_epi64::<0x96>(shifted, up, reduced)
}

/// Multiplies each lane by x^(8 `BYTES`); `REST` is 16 - `BYTES`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq")]
fn times_x8<const BYTES: i32, const REST: i32>(tweak: __m512i) -> __m512i {
    const { assert!(BYTES + REST == 16 && BYTES <= 8) };
    let carried = _mm512_bsrli_epi128::<REST>(tweak);
    let reduced = _mm512_clmulepi64_epi128::<0x00>(carried, _mm512_set1_epi64(POLY));
    _mm512_xor_si512(_mm512_bslli_epi128::<BYTES>(tweak), reduced)
}

/// Returns the powers in the lanes and in the next ones, for a comparison with the portable kernel.
#[cfg(test)]
#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq")]
pub(super) fn lanes_and_next(start: u128) -> Vec<u128> {
    let (low, high) = (start as i64, (start >> 64) as i64);
    let start = _mm512_set_epi64(high, low, high, low, high, low, high, low);
    let now = lanes(start);
    let next = now.map(|tweak| times_x8::<4, 12>(tweak));
    let mut out = Vec::new();
    for register in now.into_iter().chain(next) {
        let mut lanes = [0u128; 4];
        // SAFETY: the array is 64 bytes long.
        unsafe { _mm512_storeu_si512(lanes.as_mut_ptr().cast(), register) };
        out.extend(lanes);
    }
    out
}
