//! Memory for key material: locked, excluded from core dumps, zeroed before it is released.
//!
//! **Invariant:** the bytes of a [`SecretBytes`] exist in exactly one place, in pages that are
//! never swapped and never dumped, and are zeroed before those pages can be used for anything else.
//!
//! Deliberately absent: `Clone`, `Debug` with content, growing, and `serde`. A secret is passed to
//! other code as a slice.
//!
//! [`ZeroingAlloc`] zeroes the copies that libraries leave on the heap, and [`burn_stack`] those
//! that a computation leaves on the stack.

mod alloc;
mod arena;
mod bytes;
pub mod handover;

pub use alloc::ZeroingAlloc;
pub use arena::all_locked;
pub use bytes::{EmptySecret, SecretBytes};

/// Number of bytes of stack that [`burn_stack`] overwrites. The deepest users of key material are
/// scrypt and Argon2, whose frames stay under 64 KiB; four times that leaves a margin.
const BURN_BYTES: usize = 256 * 1024;

/// Overwrites 256 KiB of stack below the caller with zeros.
///
/// Call it after a computation with key material has returned: the data it left in its frames (key
/// schedules, spilled registers) lies below the caller's frame and is overwritten.
pub fn burn_stack() {
    zeroize::zeroize_stack::<BURN_BYTES>();
}

/// Makes the process refuse core dumps and debuggers of the same user, where the kernel allows it.
/// Defense in depth: each secret is also excluded from dumps by itself.
pub fn harden_process() {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both calls only read their arguments; failure leaves the process as it was.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &none);
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
    }
}
