//! The known-answer test that a kernel must pass before its first use in a process.
//!
//! Two steps. First, the kernel must reproduce vectors 4 and 10 of IEEE 1619-2007 annex B (a unit
//! of 512 bytes with either key length) in both directions. Second, it must agree with the portable
//! kernel, which the first step has checked, over runs of many sectors of both sizes. That covers
//! the code in which the kernels differ most: tweaks of many units, partial last batches, both
//! directions, in place and from one buffer to another.

use crate::kernel::{self, Engine, Units};
use crate::types::{Direction, Kernel};
use std::sync::OnceLock;

/// Reports whether `kernel` works on this CPU. Tests once per process, in about 50 microseconds.
pub(crate) fn passes(kernel: Kernel) -> bool {
    static RESULTS: [OnceLock<bool>; 3] = [const { OnceLock::new() }; 3];
    if !kernel::supported(kernel) {
        return false;
    }
    *RESULTS[kernel as usize].get_or_init(|| {
        let run = |key: &[u8], way, units, src: Option<&[u8]>, dst: &mut [u8]| {
            Engine::new(kernel, key).run(way, units, src, dst);
        };
        known_answers(run) && (kernel == Kernel::Portable || agrees_with_portable(run))
    })
}

/// The ciphertexts of vectors 4 and 10; the plaintext is 00 01 .. ff, twice.
const IEEE_4: &[u8; 512] = include_bytes!("vectors/ieee1619_vector4.bin");
const IEEE_10: &[u8; 512] = include_bytes!("vectors/ieee1619_vector10.bin");

/// Digits of e and pi, as in the standard: Key1 | Key2 of vectors 4 and 10.
const KEY_4: [u8; 32] = [
    0x27, 0x18, 0x28, 0x18, 0x28, 0x45, 0x90, 0x45, 0x23, 0x53, 0x60, 0x28, 0x74, 0x71, 0x35, 0x26,
    0x31, 0x41, 0x59, 0x26, 0x53, 0x58, 0x97, 0x93, 0x23, 0x84, 0x62, 0x64, 0x33, 0x83, 0x27, 0x95,
];
const KEY_10: [u8; 64] = [
    0x27, 0x18, 0x28, 0x18, 0x28, 0x45, 0x90, 0x45, 0x23, 0x53, 0x60, 0x28, 0x74, 0x71, 0x35, 0x26,
    0x62, 0x49, 0x77, 0x57, 0x24, 0x70, 0x93, 0x69, 0x99, 0x59, 0x57, 0x49, 0x66, 0x96, 0x76, 0x27,
    0x31, 0x41, 0x59, 0x26, 0x53, 0x58, 0x97, 0x93, 0x23, 0x84, 0x62, 0x64, 0x33, 0x83, 0x27, 0x95,
    0x02, 0x88, 0x41, 0x97, 0x16, 0x93, 0x99, 0x37, 0x51, 0x05, 0x82, 0x09, 0x74, 0x94, 0x45, 0x92,
];

fn known_answers<F>(run: F) -> bool
where
    F: Fn(&[u8], Direction, Units, Option<&[u8]>, &mut [u8]),
{
    let clear: Vec<u8> = (0..=255).cycle().take(512).collect();
    let cases: [(&[u8], u128, &[u8; 512]); 2] = [(&KEY_4, 0, IEEE_4), (&KEY_10, 0xFF, IEEE_10)];
    cases.into_iter().all(|(key, first_iv, cipher)| {
        let units = Units {
            first_iv,
            iv_step: 1,
            bytes: 512,
        };
        let mut data = clear.clone();
        run(key, Direction::Encrypt, units, None, &mut data);
        let encrypts = data == cipher;
        run(key, Direction::Decrypt, units, None, &mut data);
        encrypts && data == clear
    })
}

fn agrees_with_portable<F>(run: F) -> bool
where
    F: Fn(&[u8], Direction, Units, Option<&[u8]>, &mut [u8]),
{
    // More units than any kernel processes at once, and not a multiple of that number.
    const SHAPES: [(usize, u64, usize); 2] = [(512, 1, 21), (4096, 8, 3)];
    SHAPES.into_iter().all(|(bytes, iv_step, count)| {
        let units = Units {
            first_iv: u128::from(u64::MAX - 6),
            iv_step,
            bytes,
        };
        let src: Vec<u8> = (0..bytes * count)
            .map(|at| (at * 31 + at / 251) as u8)
            .collect();
        [&KEY_4[..], &KEY_10].into_iter().all(|key| {
            let portable = Engine::new(Kernel::Portable, key);
            [Direction::Encrypt, Direction::Decrypt]
                .into_iter()
                .all(|way| {
                    let (mut right, mut apart, mut place) = (src.clone(), src.clone(), src.clone());
                    portable.run(way, units, None, &mut right);
                    run(key, way, units, Some(&src), &mut apart);
                    run(key, way, units, None, &mut place);
                    apart == right && place == right
                })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_available_kernel_passes() {
        for kernel in Kernel::available() {
            assert!(passes(kernel), "{kernel}");
        }
    }

    /// Checks whether the self-test refuses a correct kernel whose output `spoil` has altered.
    fn is_refused(spoil: impl Fn(Direction, Units, Option<&[u8]>, &mut [u8])) -> bool {
        let run = |key: &[u8], way, units, src: Option<&[u8]>, dst: &mut [u8]| {
            Engine::new(Kernel::Portable, key).run(way, units, src, dst);
            spoil(way, units, src, dst);
        };
        !(known_answers(run) && agrees_with_portable(run))
    }

    #[test]
    fn refuses_a_kernel_that_is_wrong_somewhere() {
        assert!(!is_refused(|_, _, _, _| ()), "the right kernel passes");
        assert!(is_refused(|_, _, _, dst| dst[0] ^= 1), "always wrong");
        assert!(
            is_refused(|way, _, _, dst| dst[0] ^= u8::from(way == Direction::Decrypt)),
            "wrong in one direction"
        );
        assert!(
            is_refused(|_, units, _, dst| dst[0] ^= u8::from(units.bytes == 4096)),
            "wrong for one sector size"
        );
        assert!(
            is_refused(|_, _, src, dst| dst[0] ^= u8::from(src.is_some())),
            "wrong from one buffer to another"
        );
        assert!(
            is_refused(|_, _, _, dst| {
                if let Some(byte) = dst.get_mut(20 * 512) {
                    *byte ^= 0x80;
                }
            }),
            "wrong in a late sector only"
        );
    }
}
