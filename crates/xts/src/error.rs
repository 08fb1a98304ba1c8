//! Errors for a key, a sector size or a kernel. Data never causes an error.

use crate::types::Kernel;

/// Error from creating a cipher or parsing a kernel name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The key is neither 32 bytes (AES-128-XTS) nor 64 bytes (AES-256-XTS).
    #[error("an XTS key has 32 or 64 bytes, not {0}")]
    KeyLength(usize),
    /// The two halves of the key are equal, which defeats the secrecy of the tweak (Rogaway 2004,
    /// section 6; FIPS 140-3 implementation guidance C.I).
    #[error("the two halves of the XTS key are equal")]
    EqualHalves,
    /// The sector size is neither 512 nor 4096 bytes.
    #[error("sectors have 512 or 4096 bytes, not {0}")]
    SectorSize(u32),
    /// The CPU lacks the instructions that the kernel needs.
    #[error("this processor cannot run the {0} kernel")]
    KernelUnavailable(Kernel),
    /// No kernel has this name.
    #[error("unknown kernel {0:?}; use portable, aes-ni or vaes-512")]
    UnknownKernel(String),
    /// The kernel returned wrong bytes for known input in this process. The CPU or the build is
    /// broken; the kernel must not be used to write data.
    #[error("the {0} kernel failed its known-answer test and must not be used")]
    SelfTest(Kernel),
}
