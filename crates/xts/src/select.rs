//! Detection of the kernels that this CPU supports, and selection of one, also by name.

use crate::error::Error;
use crate::types::Kernel;
use crate::{kernel, self_test};
use std::str::FromStr;

impl Kernel {
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
        kernel::supported(self)
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
