//! AES-XTS over sectors (IEEE 1619-2007, NIST SP 800-38E), as LUKS2's `aes-xts-plain64` uses it.
//!
//! One call processes any whole number of sectors. That is the purpose of this crate: libraries
//! take one sector per call, and at 512 bytes the call costs as much as the cipher.
//!
//! **Invariants.** All kernels produce the same bytes for the same key, tweak and data. A kernel is
//! used only after it has reproduced known answers in this process ([`Kernel::best`],
//! [`Xts::with_kernel`]). Once a call has returned, round keys exist only in
//! [`secret::SecretBytes`]: each public call clears the vector registers and the stack it used.
//!
//! **Out of scope.** Ciphertext stealing: a sector is a multiple of the 16-byte block.
//! Authentication: XTS has none, and a volume that needs it adds a separate layer. Tweaks other
//! than plain64: the header code rejects null ciphers, `essiv` and the like.
//!
//! During a call the thread's registers hold round keys. If another thread crashes the process at
//! that moment, the core dump contains them; [`secret::harden_process`] disables core dumps.
//!
//! `unsafe` is confined to `kernel/`.

mod cipher;
mod error;
mod kernel;
mod measure;
mod select;
mod self_test;
mod types;
#[cfg(test)]
mod vectors;

pub use cipher::{SectorSize, Xts};
pub use error::Error;
pub use measure::{measure, measure_direction};
pub use types::{Direction, Kernel, Tweak};
