//! Copies between a caller's memory and a page that other threads may change during the copy.
//!
//! A hit copies first and checks afterwards whether the copy is consistent, so the bytes may change
//! during the copy. For the language that is a data race if the compiler can see it, so it is
//! hidden: the C library does the copy, through an address that is opaque to the compiler, with
//! plain loads and stores of the CPU, which yield for each byte one of its values. The library also
//! has the fastest loop for the CPU: a loop of our own with `rep movsb` took 1.4 times as long for
//! a page. With `--cfg evfs_tsan`, and under Miri, the copy uses relaxed atomic bytes instead,
//! which every checker understands.

/// Copies `len` bytes out of a page.
///
/// # Safety
/// `from..from + len` is mapped memory of a page, `to..to + len` is the caller's alone.
#[inline]
pub unsafe fn out_of_page(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as required of the caller.
    unsafe { racy::copy_from(from, to, len) }
}

/// Copies `len` bytes into a page that the caller has latched or is loading.
///
/// # Safety
/// `from..from + len` is readable and does not change, `to..to + len` is mapped memory of a page.
#[inline]
pub unsafe fn into_page(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as required of the caller.
    unsafe { racy::copy_to(from, to, len) }
}

/// Copies `len` bytes of one page into another that the caller is loading. Neither range is
/// exclusive: lock-free readers may still be reading the previous contents of the second, and will
/// detect the change.
///
/// # Safety
/// `from..from + len` and `to..to + len` are mapped memory of two pages.
#[inline]
pub unsafe fn between_pages(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as required of the caller.
    unsafe { racy::copy_between(from, to, len) }
}

/// Zeroes `len` bytes of a page that the caller has latched or is loading.
///
/// # Safety
/// `to..to + len` is mapped memory of a page.
#[inline]
pub unsafe fn zero_page(to: *mut u8, len: usize) {
    // SAFETY: as required of the caller.
    unsafe { racy::zero(to, len) }
}

#[cfg(not(any(evfs_tsan, miri)))]
mod racy {
    use std::hint::black_box;

    type Copy =
        unsafe extern "C" fn(*mut libc::c_void, *const libc::c_void, usize) -> *mut libc::c_void;
    type Set = unsafe extern "C" fn(*mut libc::c_void, i32, usize) -> *mut libc::c_void;

    #[inline]
    pub(super) unsafe fn copy_from(from: *const u8, to: *mut u8, len: usize) {
        let copy = black_box(libc::memcpy as Copy);
        // SAFETY: the caller guarantees that both ranges are mapped, and that one is its own, so
        // they do not overlap.
        unsafe { copy(to.cast(), from.cast(), len) };
    }

    #[inline]
    pub(super) unsafe fn copy_to(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: as above.
        unsafe { copy_from(from, to, len) }
    }

    #[inline]
    pub(super) unsafe fn copy_between(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: as above; two pages do not overlap.
        unsafe { copy_from(from, to, len) }
    }

    #[inline]
    pub(super) unsafe fn zero(to: *mut u8, len: usize) {
        let set = black_box(libc::memset as Set);
        // SAFETY: the caller guarantees that the range is mapped.
        unsafe { set(to.cast(), 0, len) };
    }
}

#[cfg(any(evfs_tsan, miri))]
mod racy {
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

    pub(super) unsafe fn copy_from(from: *const u8, to: *mut u8, len: usize) {
        for i in 0..len {
            // SAFETY: the caller guarantees that both ranges are mapped; an atomic byte has the
            // layout of a byte, and `to` is the caller's alone.
            unsafe { *to.add(i) = (*from.add(i).cast::<AtomicU8>()).load(Relaxed) }
        }
    }

    pub(super) unsafe fn copy_to(from: *const u8, to: *mut u8, len: usize) {
        for i in 0..len {
            // SAFETY: as above, with the page as the destination.
            unsafe { (*to.add(i).cast::<AtomicU8>()).store(*from.add(i), Relaxed) }
        }
    }

    pub(super) unsafe fn copy_between(from: *const u8, to: *mut u8, len: usize) {
        for i in 0..len {
            // SAFETY: as above, with pages on both sides.
            let byte = unsafe { (*from.add(i).cast::<AtomicU8>()).load(Relaxed) };
            // SAFETY: as above.
            unsafe { (*to.add(i).cast::<AtomicU8>()).store(byte, Relaxed) }
        }
    }

    pub(super) unsafe fn zero(to: *mut u8, len: usize) {
        for i in 0..len {
            // SAFETY: as above.
            unsafe { (*to.add(i).cast::<AtomicU8>()).store(0, Relaxed) }
        }
    }
}
