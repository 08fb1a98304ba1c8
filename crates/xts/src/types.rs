//! The kernels by name, and the directions.

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

/// Direction of the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Plaintext to ciphertext.
    Encrypt,
    /// Ciphertext to plaintext.
    Decrypt,
}
