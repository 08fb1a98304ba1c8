//! Memory for key material: locked, out of core dumps, zeroed when it is given back.
//!
//! **Invariant:** the bytes of a [`SecretBytes`] live in exactly one place, in pages that are
//! never swapped and never dumped, and are zero before those pages can be used for anything else.
//!
//! Absent on purpose: `Clone`, `Debug` with content, growing, and `serde`. A secret that must be
//! handed to somebody is lent as a slice.
//!
//! What a library we call leaves on the heap is taken care of by [`ZeroingAlloc`], and what a
//! computation leaves on the stack by [`burn_stack`].

mod alloc;
mod arena;
mod bytes;

pub use alloc::ZeroingAlloc;
pub use arena::all_locked;
pub use bytes::SecretBytes;

/// Stack that [`burn_stack`] overwrites, in bytes. The deepest user of key material here is the
/// scrypt and Argon2 code, whose frames stay under 64 KiB; four times that is the margin.
const BURN_BYTES: usize = 256 * 1024;

/// Overwrites 256 KiB of stack below the caller with zeros.
///
/// Call it once a computation with key material has returned: what the computation left in its
/// frames (key schedules, spilled registers) lies below the caller's frame and is gone afterwards.
#[inline(never)]
pub fn burn_stack() {
    let mut frame = [0u8; BURN_BYTES];
    zeroize::Zeroize::zeroize(&mut frame[..]);
    std::hint::black_box(&mut frame);
}

/// Makes the process refuse core dumps and attaching debuggers of the same user, where the
/// kernel allows it. Defence in depth: the secrets themselves are excluded from dumps one by one.
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
