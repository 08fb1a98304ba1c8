//! The kernels by name, and which of them this processor runs.

use crate::{Error, self_test};
use std::fmt;
use std::str::FromStr;

/// An implementation of AES-XTS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kernel {
    /// The `aes` crate in batches, written in safe code: the reference for the others, and what
    /// runs on processors the others do not know. It is constant-time also without AES
    /// instructions, and uses them where the `aes` crate knows them.
    Portable,
    /// AES-NI with PCLMULQDQ: one block a register, eight in flight.
    AesNi,
    /// VAES and VPCLMULQDQ on 512-bit registers: four blocks a register, eight registers in
    /// flight.
    Vaes512,
}

impl Kernel {
    /// All kernels, slowest first.
    const ALL: [Kernel; 3] = [Kernel::Portable, Kernel::AesNi, Kernel::Vaes512];

    /// The kernels this processor can run, slowest first. Never empty.
    pub fn available() -> Vec<Kernel> {
        Kernel::ALL
            .into_iter()
            .filter(|kernel| kernel.is_available())
            .collect()
    }

    /// The fastest kernel of this processor that passes its known-answer test.
    ///
    /// When none passes this is [`Kernel::Portable`], which [`crate::Xts`] then refuses.
    pub fn best() -> Kernel {
        Kernel::available()
            .into_iter()
            .rev()
            .find(|kernel| self_test::passes(*kernel))
            .unwrap_or(Kernel::Portable)
    }

    /// Whether this processor, and its operating system, has what the kernel needs.
    pub fn is_available(self) -> bool {
        crate::kernel::supported(self)
    }

    /// The name as shown and parsed.
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
