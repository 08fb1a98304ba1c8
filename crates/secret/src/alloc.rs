//! A global allocator that zeroes memory before it is freed.
//!
//! Libraries that derive keys (`age`, `argon2`, `serde_json`) keep copies in ordinary heap buffers.
//! Zeroing in the allocator covers all of them, including unknown ones. It costs the data path
//! nothing: its buffers come from pools and are freed only when a queue is closed.

use std::alloc::{GlobalAlloc, Layout, System};

/// System allocator that zeroes memory on `dealloc` and never grows an allocation in place.
pub struct ZeroingAlloc;

// SAFETY: every call is forwarded to `System` with its own layout; memory is only written between
// `alloc` and `dealloc`, within its layout.
unsafe impl GlobalAlloc for ZeroingAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract is passed on unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract is passed on unchanged.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` is a live allocation of `layout.size()` bytes; the barrier keeps the
        // compiler from dropping the store to memory that is about to be freed.
        unsafe {
            std::ptr::write_bytes(ptr, 0, layout.size());
            std::arch::asm!("/* {0} */", in(reg) ptr, options(nostack, preserves_flags));
            System.dealloc(ptr, layout);
        }
    }

    // `realloc` keeps its default: allocate, copy, `dealloc` (which zeroes the old memory).
}
