//! The kernels by name, and detection of the ones this CPU supports.

use crate::{Error, self_test};
use std::fmt;
use std::str::FromStr;

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
    const ALL: [Kernel; 3] = [Kernel::Portable, Kernel::AesNi, Kernel::Vaes512];

    /// Returns the kernels that this CPU supports, slowest first. Never empty.
    pub fn available() -> Vec<Kernel> {
        Kernel::ALL
            .into_iter()
            .filter(|kernel| kernel.is_available())
            .collect()
    }

    /// Selects the fastest supported kernel that passes its known-answer test.
    ///
    /// If none passes this is [`Kernel::Portable`], which [`crate::Xts`] then refuses.
    pub fn best() -> Kernel {
        Kernel::available()
            .into_iter()
            .rev()
            .find(|kernel| self_test::passes(*kernel))
            .unwrap_or(Kernel::Portable)
    }

    /// Reports whether the CPU and the operating system support the kernel.
    pub fn is_available(self) -> bool {
        crate::kernel::supported(self)
    }

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

impl FromStr for Kernel {
    type Err = Error;

    fn from_str(name: &str) -> Result<Kernel, Error> {
        Kernel::ALL
            .into_iter()
            .find(|kernel| kernel.name() == name)
            .ok_or_else(|| Error::UnknownKernel(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back_and_others_are_refused() {
        for kernel in Kernel::ALL {
            assert_eq!(kernel.to_string().parse(), Ok(kernel));
        }
        assert_eq!(
            "sse".parse::<Kernel>(),
            Err(Error::UnknownKernel("sse".into()))
        );
    }

    #[test]
    fn portable_is_always_available_and_best_is_available() {
        assert!(Kernel::available().contains(&Kernel::Portable));
        assert!(Kernel::best().is_available());
    }
}
