//! AES-XTS over sectors (IEEE 1619-2007, NIST SP 800-38E), as LUKS2's `aes-xts-plain64` uses it.
//!
//! One call enciphers any whole number of sectors. That is the point of this crate: libraries
//! take one sector a call, and at 512 bytes the call costs as much as the cipher.
//!
//! **Invariants.** Every kernel gives the same bytes for the same key, unit and data. A kernel is
//! used only after it has reproduced known answers in this process ([`Kernel::best`],
//! [`Xts::with_kernel`]). Round keys live in [`secret::SecretBytes`] and nowhere else once a call
//! has returned: each public call clears the vector registers and the stack it used.
//!
//! **Absent on purpose.** No ciphertext stealing: a sector is a multiple of the 16-byte block. No
//! authentication: XTS has none, and a volume that needs it puts it in a layer of its own. No
//! initial value but plain64: null ciphers, `essiv` and the like are refused by the header code.
//!
//! While a call runs, its thread's registers hold round keys; a core dump of a process that dies
//! in another thread at that moment holds them too. [`secret::harden_process`] is for that.
//!
//! `unsafe` is confined to `kernel/`.

mod cipher;
mod error;
mod kernel;
mod measure;
mod select;
mod self_test;
#[cfg(test)]
mod vectors;

pub use cipher::{SectorSize, Xts};
pub use error::Error;
pub use measure::{Direction, measure, measure_direction};
pub use select::Kernel;
