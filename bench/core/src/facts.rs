//! Properties of targets and guests that a reader must know.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Properties of a target that a reader must know; printed and stored with its figures.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Facts {
    /// Whether the page cache is bypassed; `None`: unknown.
    pub direct: Option<bool>,
    /// Cipher, or `none`.
    pub cipher: Option<String>,
    /// Cipher implementation in use on this machine.
    pub cipher_kernel: Option<String>,
    /// Any other difference.
    pub note: Option<String>,
    /// Guest that contains the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<GuestFacts>,
}

/// Properties of a guest that a reader must know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestFacts {
    /// Accelerator in use.
    pub accelerator: Accelerator,
    /// Release of the guest's kernel.
    pub kernel: String,
    /// Number of virtual CPUs.
    pub cpus: u32,
    pub memory_mib: u32,
}

impl fmt::Display for GuestFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, kernel) = (self.accelerator.name(), &self.kernel);
        let (cpus, memory) = (self.cpus, self.memory_mib);
        write!(
            f,
            "QEMU ({name}), Linux {kernel}, {cpus} CPUs, {memory} MiB"
        )
    }
}

/// Executor of the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accelerator {
    /// The host CPU.
    Kvm,
    /// QEMU's software translation.
    Tcg,
}

impl Accelerator {
    /// Returns the name of QEMU for it.
    pub fn name(self) -> &'static str {
        match self {
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg => "tcg",
        }
    }
}

impl FromStr for Accelerator {
    type Err = Error;

    fn from_str(text: &str) -> Result<Accelerator> {
        [Accelerator::Kvm, Accelerator::Tcg]
            .into_iter()
            .find(|accelerator| accelerator.name() == text)
            .ok_or_else(|| Error::Spec(format!("unknown accelerator {text}; expected kvm or tcg")))
    }
}
