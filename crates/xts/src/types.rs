//! The kernels by name, the directions, and the tweaks.

use std::fmt;

/// An implementation of AES-XTS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kernel {
    /// The `aes` crate in batches, in safe code: the reference for the other kernels and the
    /// fallback for CPUs that support none of them. Constant-time even without AES instructions;
    /// uses those that the `aes` crate supports.
    Portable,
    /// AES-NI with PCLMULQDQ: one block per register, eight registers in flight.
    AesNi,
    /// VAES and VPCLMULQDQ on 512-bit registers: four blocks per register, eight registers in
    /// flight.
    Vaes512,
}

impl Kernel {
    /// All kernels, slowest first.
    pub(crate) const ALL: [Kernel; 3] = [Kernel::Portable, Kernel::AesNi, Kernel::Vaes512];

    /// Returns the name that `Display` prints and `FromStr` parses.
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Portable => "portable",
            Kernel::AesNi => "aes-ni",
            Kernel::Vaes512 => "vaes-512",
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// plain64 tweak of a sector: the number of its first unit of 512 bytes, counted from the start of
/// the segment (plus the segment's `iv_tweak`). It counts such units for every sector size (LUKS2
/// on-disk format 1.1, section 3.3: `iv_tweak`), and wraps at 2^64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Tweak(u64);

impl Tweak {
    /// Tweak of the first sector.
    pub const ZERO: Tweak = Tweak(0);

    /// Creates the tweak of the sector that begins at this unit of 512 bytes.
    #[inline]
    pub const fn new(unit: u64) -> Tweak {
        Tweak(unit)
    }

    /// Returns the number of the unit.
    #[inline]
    pub const fn unit(self) -> u64 {
        self.0
    }

    /// Computes the tweak of the sector that begins `bytes` after the start of this one. `bytes` is
    /// a multiple of the sector size.
    #[inline]
    #[must_use]
    pub const fn after(self, bytes: u64) -> Tweak {
        Tweak(self.0.wrapping_add(bytes / 512))
    }
}

/// Direction of the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Plaintext to ciphertext.
    Encrypt,
    /// Ciphertext to plaintext.
    Decrypt,
}
