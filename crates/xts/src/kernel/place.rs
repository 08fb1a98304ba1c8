//! A value stored in secret memory.

use secret::SecretBytes;
use std::marker::PhantomData;
use std::ops::Deref;

/// A `T` in locked pages excluded from core dumps; dropped in place before the pages are zeroed.
pub(crate) struct Placed<T> {
    memory: SecretBytes,
    value: PhantomData<T>,
}

impl<T> Placed<T> {
    /// Creates the value and moves it into secret memory. The caller clears the stack afterwards.
    pub(crate) fn new(make: impl FnOnce() -> T) -> Placed<T> {
        let mut memory = SecretBytes::zeroed(size_of::<T>());
        let at = memory.as_mut_ptr().cast::<T>();
        assert!(at.is_aligned(), "secret memory starts at a page");
        // SAFETY: `memory` is `size_of::<T>()` writable bytes, aligned as just checked.
        unsafe { at.write(make()) };
        Placed {
            memory,
            value: PhantomData,
        }
    }
}

impl<T> Deref for Placed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `new` wrote a `T` here, and nothing else writes to `memory`.
        unsafe { &*self.memory.as_ptr().cast::<T>() }
    }
}

impl<T> Drop for Placed<T> {
    fn drop(&mut self) {
        // SAFETY: the `T` that `new` wrote is dropped once, here; `memory` is released later.
        unsafe { self.memory.as_mut_ptr().cast::<T>().drop_in_place() };
    }
}

// `Send` and `Sync` follow from the fields: `SecretBytes` has both, `PhantomData<T>` those of `T`.
