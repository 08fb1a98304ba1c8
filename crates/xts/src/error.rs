//! What can be wrong with a key, a sector size or a kernel. Data is never a reason to fail.

use crate::Kernel;

/// Why a cipher could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The key is neither 32 bytes (AES-128-XTS) nor 64 bytes (AES-256-XTS).
    #[error("an XTS key has 32 or 64 bytes, not {0}")]
    KeyLength(usize),
    /// The two halves of the key are the same, which undoes the tweak's secrecy (Rogaway 2004,
    /// section 6; FIPS 140-3 implementation guidance C.I).
    #[error("the two halves of the XTS key are equal")]
    EqualHalves,
    /// The sector size is neither 512 nor 4096 bytes.
    #[error("sectors have 512 or 4096 bytes, not {0}")]
    SectorSize(u32),
    /// This processor lacks the instructions of the kernel.
    #[error("this processor cannot run the {0} kernel")]
    KernelUnavailable(Kernel),
    /// No kernel of this name.
    #[error("no kernel is called {0:?}; there are portable, aes-ni and vaes-512")]
    UnknownKernel(String),
    /// The kernel gave wrong bytes for known input in this process. The processor or the build
    /// is broken; nothing may be written with it.
    #[error("the {0} kernel failed its known-answer test and must not be used")]
    SelfTest(Kernel),
}
