//! The kernels and their round keys.
//!
//! A kernel processes whole data units (XTS's term for sectors) from one slice into another or in
//! place. All `unsafe` code of the crate is here: intrinsics behind a CPU check, pointers into the
//! two slices, round keys in secret memory, and the clearing of registers and stack afterwards.

#[cfg(target_arch = "x86_64")]
mod aesni;
mod clear;
#[cfg(target_arch = "x86_64")]
mod keys;
#[cfg(all(test, target_arch = "x86_64"))]
mod leftovers;
mod place;
mod portable;
#[cfg(target_arch = "x86_64")]
mod vaes512;

use crate::types::{Direction, Kernel};
#[cfg(target_arch = "x86_64")]
use keys::RoundKeys;

/// A run of data units of one size with consecutive initial values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Units {
    /// Initial value of the first unit, as the little-endian number of IEEE 1619 section 5.1.
    pub(crate) first_iv: u128,
    /// Added to the low 64 bits from unit to unit, modulo 2^64.
    pub(crate) iv_step: u64,
    /// Bytes in a unit: a positive multiple of 16.
    pub(crate) bytes: usize,
}

impl Units {
    /// Computes the initial value of the unit with this index.
    #[inline]
    fn iv(&self, index: usize) -> u128 {
        let low = (self.first_iv as u64).wrapping_add((index as u64).wrapping_mul(self.iv_step));
        (self.first_iv >> 64 << 64) | u128::from(low)
    }
}

/// Checks whether this machine can run `kernel`.
pub(crate) fn supported(kernel: Kernel) -> bool {
    match kernel {
        Kernel::Portable => true,
        #[cfg(target_arch = "x86_64")]
        Kernel::AesNi => aesni::supported(),
        #[cfg(target_arch = "x86_64")]
        Kernel::Vaes512 => vaes512::supported(),
        #[cfg(not(target_arch = "x86_64"))]
        Kernel::AesNi | Kernel::Vaes512 => false,
    }
}

/// A kernel with its round keys.
pub(crate) enum Engine {
    Portable(portable::Ciphers),
    #[cfg(target_arch = "x86_64")]
    AesNi(RoundKeys),
    #[cfg(target_arch = "x86_64")]
    Vaes512(RoundKeys),
}

impl Engine {
    /// Expands `key` (32 or 64 bytes, data key first) for `kernel`, which must be supported.
    pub(crate) fn new(kernel: Kernel, key: &[u8]) -> Engine {
        assert!(supported(kernel), "the kernel was checked before");
        let engine = Engine::expand(kernel, key);
        clear::after_portable();
        engine
    }

    /// Expands the key in a stack frame of its own, which ends before the clearing begins.
    #[inline(never)]
    fn expand(kernel: Kernel, key: &[u8]) -> Engine {
        match kernel {
            Kernel::Portable => Engine::Portable(portable::Ciphers::new(key)),
            #[cfg(target_arch = "x86_64")]
            Kernel::AesNi => Engine::AesNi(RoundKeys::new(key)),
            #[cfg(target_arch = "x86_64")]
            Kernel::Vaes512 => Engine::Vaes512(RoundKeys::new(key)),
            #[cfg(not(target_arch = "x86_64"))]
            Kernel::AesNi | Kernel::Vaes512 => unreachable!("not supported, as checked before"),
        }
    }

    pub(crate) fn kernel(&self) -> Kernel {
        match self {
            Engine::Portable(_) => Kernel::Portable,
            #[cfg(target_arch = "x86_64")]
            Engine::AesNi(_) => Kernel::AesNi,
            #[cfg(target_arch = "x86_64")]
            Engine::Vaes512(_) => Kernel::Vaes512,
        }
    }

    /// Encrypts or decrypts `src` into `dst`, or `dst` in place if `src` is `None`.
    ///
    /// # Panics
    /// If the lengths differ or are not whole units.
    pub(crate) fn run(&self, way: Direction, units: Units, src: Option<&[u8]>, dst: &mut [u8]) {
        assert!(
            src.is_none_or(|src| src.len() == dst.len()),
            "both sides have the same length"
        );
        assert!(
            dst.len().is_multiple_of(units.bytes),
            "the length is a whole number of sectors"
        );
        self.work(way, units, src, dst);
        match self {
            Engine::Portable(_) => clear::after_portable(),
            #[cfg(target_arch = "x86_64")]
            Engine::AesNi(_) | Engine::Vaes512(_) => clear::after_intrinsics(),
        }
    }

    /// Runs the kernel in a stack frame of its own, which ends before the clearing begins.
    #[inline(never)]
    fn work(&self, way: Direction, units: Units, src: Option<&[u8]>, dst: &mut [u8]) {
        match self {
            Engine::Portable(ciphers) => ciphers.run(way, units, src, dst),
            #[cfg(target_arch = "x86_64")]
            Engine::AesNi(keys) => aesni::run(keys, way, units, src, dst),
            #[cfg(target_arch = "x86_64")]
            Engine::Vaes512(keys) => vaes512::run(keys, way, units, src, dst),
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// Tweaks that carry out of every bit, and between the halves.
    const EXTREME: [u128; 6] = [
        1,
        1 << 63,
        1 << 127,
        u128::MAX,
        u128::MAX << 64,
        0x8000_0000_0000_0001 << 60,
    ];

    #[test]
    fn every_kernel_of_this_cpu_makes_the_powers_that_the_portable_one_makes() {
        for (kernel, start) in Kernel::available()
            .into_iter()
            .flat_map(|kernel| EXTREME.map(|start| (kernel, start)))
        {
            let made = match kernel {
                Kernel::Portable => continue,
                // SAFETY: the CPU has the features of an available kernel.
                Kernel::AesNi => unsafe { aesni::ladder_and_next(start) },
                // SAFETY: as above.
                Kernel::Vaes512 => unsafe { vaes512::lanes_and_next(start) },
            };
            let mut right = vec![0; made.len()];
            portable::powers(start, &mut right);
            assert_eq!(made, right, "{kernel}, {start:032x}");
        }
    }
}
