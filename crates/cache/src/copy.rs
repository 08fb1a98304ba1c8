//! Copies between a caller's memory and a page that somebody else may change meanwhile.
//!
//! A hit copies first and asks afterwards whether what it copied is whole, so the bytes may change
//! under the copy. To the language that is a data race if the compiler can see it, so it does not
//! see it: the copy is done by the C library, through an address that the compiler knows nothing of,
//! with the processor's plain loads and stores, which give each byte some value it had. The library
//! also knows the best loop for the processor: one of our own with `rep movsb` took 1.4 times as long
//! for a page. Built with `--cfg evfs_tsan`, and under Miri, the copy goes byte by byte through
//! relaxed atomics instead, which every checker understands.

/// Copies `len` bytes out of a page.
///
/// # Safety
/// `from..from + len` is mapped memory of a page, `to..to + len` is the caller's alone.
#[inline]
pub unsafe fn out_of_page(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: passed on.
    unsafe { racy::copy_from(from, to, len) }
}

/// Copies `len` bytes into a page that the caller has latched or brings.
///
/// # Safety
/// `from..from + len` is readable and does not change, `to..to + len` is mapped memory of a page.
#[inline]
pub unsafe fn into_page(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: passed on.
    unsafe { racy::copy_to(from, to, len) }
}

/// Copies `len` bytes of one page into another that the caller brings. Neither is the caller's alone: who
/// reads without a lock may still be reading what the second was before, and will find out.
///
/// # Safety
/// `from..from + len` and `to..to + len` are mapped memory of two pages.
#[inline]
pub unsafe fn between_pages(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: passed on.
    unsafe { racy::copy_between(from, to, len) }
}

/// Makes `len` bytes of a page that the caller has latched or brings zero.
///
/// # Safety
/// `to..to + len` is mapped memory of a page.
#[inline]
pub unsafe fn zero_page(to: *mut u8, len: usize) {
    // SAFETY: passed on.
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
        // SAFETY: the caller says that both ranges are mapped, and that one is its own, so they do
        // not overlap.
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
        // SAFETY: the caller says that the range is mapped.
        unsafe { set(to.cast(), 0, len) };
    }
}

#[cfg(any(evfs_tsan, miri))]
mod racy {
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

    pub(super) unsafe fn copy_from(from: *const u8, to: *mut u8, len: usize) {
        for i in 0..len {
            // SAFETY: the caller says that both ranges are mapped; an atomic byte has the layout of
            // a byte, and `to` is the caller's alone.
            unsafe { *to.add(i) = (*from.add(i).cast::<AtomicU8>()).load(Relaxed) }
        }
    }

    pub(super) unsafe fn copy_to(from: *const u8, to: *mut u8, len: usize) {
        for i in 0..len {
            // SAFETY: as above, with the page on the other side.
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
