//! Buffers for device I/O: aligned, owned, and zeroed before they are freed.
//!
//! **Invariant:** while a [`Buf`] exists it is the only access to its bytes, and the memory lives
//! at least as long as the `Buf`. A queue that owns a `Buf` may therefore pass its address to the
//! kernel.

use crate::arena::{Arena, BUF_ALIGN};
use crate::sums::{Sum, Summer};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// A range of bytes with one owner: the caller, or a queue while a request is in flight.
pub struct Buf {
    ptr: NonNull<u8>,
    len: usize,
    capacity: usize,
    home: Home,
}

/// Origin of the memory, which decides how it is released when the buffer is dropped.
enum Home {
    Heap(Layout),
    Pool(Arc<Arena>),
    Pinned { _keep: Arc<dyn Any + Send + Sync> },
}

// SAFETY: a `Buf` owns its bytes exclusively and its memory is not bound to a thread: the heap,
// the arena's mapping and the owner of pinned memory are all `Send + Sync`.
unsafe impl Send for Buf {}
// SAFETY: a shared `Buf` only provides `&[u8]`.
unsafe impl Sync for Buf {}

impl Buf {
    /// Allocates `len` zero bytes on the heap. On the data path use a [`crate::BufPool`] instead.
    pub fn zeroed(len: usize) -> Buf {
        let layout = Layout::from_size_align(len.max(1), BUF_ALIGN).expect("a buffer fits memory");
        // SAFETY: the layout has a size of at least one byte.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(raw) else {
            handle_alloc_error(layout)
        };
        Buf {
            ptr,
            len,
            capacity: len,
            home: Home::Heap(layout),
        }
    }

    /// Copies `bytes` to the heap.
    pub fn copy_of(bytes: &[u8]) -> Buf {
        let mut buf = Buf::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// Wraps memory that another owner keeps in place, for example a page of a cache.
    ///
    /// # Safety
    /// `ptr..ptr + len` must stay mapped until `keep` is dropped, and no other code may read or
    /// write these bytes while the `Buf` exists.
    pub unsafe fn pinned(ptr: NonNull<u8>, len: usize, keep: Arc<dyn Any + Send + Sync>) -> Buf {
        Buf {
            ptr,
            len,
            capacity: len,
            home: Home::Pinned { _keep: keep },
        }
    }

    pub(crate) fn of_arena(
        ptr: NonNull<u8>,
        len: usize,
        capacity: usize,
        arena: Arc<Arena>,
    ) -> Buf {
        Buf {
            ptr,
            len,
            capacity,
            home: Home::Pool(arena),
        }
    }

    /// Returns its number in its [`crate::BufPool`]; `None` if it is of none.
    pub fn number(&self) -> Option<u32> {
        match &self.home {
            Home::Pool(arena) => Some(arena.number(self.ptr)),
            Home::Heap(_) | Home::Pinned { .. } => None,
        }
    }

    /// Returns the number of bytes the buffer can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Sets the visible length to `len`.
    ///
    /// # Panics
    /// When `len` is more than the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(
            len <= self.capacity,
            "{len} bytes do not fit a buffer of {}",
            self.capacity
        );
        self.len = len;
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the type's invariant; all memory of a Buf is initialized when it is created.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the type's invariant, and `&mut self` excludes every other view.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        match &self.home {
            Home::Heap(layout) => {
                // SAFETY: allocated with this layout in `zeroed`; no pointer to it remains.
                // Zeroed first, because it may have held plaintext; the barrier keeps the compiler
                // from dropping the stores.
                unsafe {
                    let all = std::slice::from_raw_parts_mut(self.ptr.as_ptr(), layout.size());
                    all.fill(0);
                    zeroize::optimization_barrier(all);
                    dealloc(self.ptr.as_ptr(), *layout);
                }
            }
            Home::Pool(arena) => arena.take_back(self.ptr),
            Home::Pinned { .. } => {}
        }
    }
}

impl fmt::Debug for Buf {
    /// Prints the length only: the buffer may hold plaintext.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({})", self.len)
    }
}

/// The buffers of one request, in order. A single buffer needs no allocation.
#[derive(Debug)]
pub struct Bufs {
    bufs: Inner,
    sums: Sums,
}

/// See [`Bufs::ask_sums`].
#[derive(Debug, Default)]
enum Sums {
    #[default]
    Unasked,
    Asked(Arc<dyn Summer>),
    Known(Arc<dyn Summer>, Vec<Sum>),
}

#[derive(Debug)]
enum Inner {
    One(Buf),
    Many(Vec<Buf>),
}

impl Bufs {
    /// Views the buffers as a slice.
    pub fn as_slice(&self) -> &[Buf] {
        match &self.bufs {
            Inner::One(buf) => std::slice::from_ref(buf),
            Inner::Many(bufs) => bufs,
        }
    }

    /// Views the buffers as a mutable slice.
    pub fn as_mut_slice(&mut self) -> &mut [Buf] {
        match &mut self.bufs {
            Inner::One(buf) => std::slice::from_mut(buf),
            Inner::Many(bufs) => bufs,
        }
    }

    /// Iterates over the buffers in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Buf> {
        self.as_slice().iter()
    }

    /// Iterates over the buffers in order, mutably.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Buf> {
        self.as_mut_slice().iter_mut()
    }

    /// Sums the lengths of all buffers in bytes.
    pub fn total_len(&self) -> usize {
        self.iter().map(|b| b.len()).sum()
    }

    /// Converts into a vector of the buffers.
    pub fn into_vec(self) -> Vec<Buf> {
        match self.bufs {
            Inner::One(buf) => vec![buf],
            Inner::Many(bufs) => bufs,
        }
    }

    /// Returns the first buffer and drops the others; for the common case of one buffer.
    pub fn into_first(self) -> Option<Buf> {
        match self.bufs {
            Inner::One(buf) => Some(buf),
            Inner::Many(bufs) => bufs.into_iter().next(),
        }
    }

    /// Asks the layer that touches all bytes of the request, such as a cipher, to compute the
    /// checksum of each block of [`crate::SUM_BLOCK_BYTES`] while the block is in the CPU's cache. A layer
    /// that does not know how ignores it.
    pub fn ask_sums(&mut self, summer: &Arc<dyn Summer>) {
        self.sums = Sums::Asked(Arc::clone(summer));
    }

    /// Returns the function of the checksums that were asked for.
    pub fn summer(&self) -> Option<&Arc<dyn Summer>> {
        match &self.sums {
            Sums::Unasked => None,
            Sums::Asked(summer) | Sums::Known(summer, _) => Some(summer),
        }
    }

    /// Reports whether the checksums were asked for and no layer has computed them.
    pub fn is_asking(&self) -> bool {
        matches!(self.sums, Sums::Asked(_))
    }

    /// Sets the checksums that were asked for, in the order of the blocks: of what the caller wrote,
    /// or of what it reads. Replaces those of an earlier attempt.
    pub fn set_sums(&mut self, sums: Vec<Sum>) {
        self.sums = match std::mem::take(&mut self.sums) {
            Sums::Unasked => Sums::Unasked,
            Sums::Asked(summer) | Sums::Known(summer, _) => Sums::Known(summer, sums),
        };
    }

    /// Takes the checksums, if a layer computed them.
    pub fn take_sums(&mut self) -> Option<Vec<Sum>> {
        match std::mem::take(&mut self.sums) {
            Sums::Known(_, sums) => Some(sums),
            Sums::Unasked | Sums::Asked(_) => None,
        }
    }
}

impl From<Buf> for Bufs {
    fn from(buf: Buf) -> Bufs {
        Bufs {
            bufs: Inner::One(buf),
            sums: Sums::Unasked,
        }
    }
}

impl From<Vec<Buf>> for Bufs {
    fn from(bufs: Vec<Buf>) -> Bufs {
        Bufs {
            bufs: Inner::Many(bufs),
            sums: Sums::Unasked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heap_buffers_are_aligned_zero_and_of_the_asked_length() {
        for len in [0, 1, 511, 4096, 70_001] {
            let mut buf = Buf::zeroed(len);
            assert_eq!((buf.len(), buf.capacity()), (len, len));
            assert!((buf.as_ptr() as usize).is_multiple_of(BUF_ALIGN));
            assert!(buf.iter().all(|b| *b == 0));
            buf.fill(7);
            assert!(buf.iter().all(|b| *b == 7));
        }
        assert_eq!(&Buf::copy_of(b"abc")[..], b"abc");
    }

    #[test]
    fn the_view_can_be_shortened_and_lengthened_within_the_capacity() {
        let mut buf = Buf::copy_of(b"abcdef");
        buf.set_len(2);
        assert_eq!(&buf[..], b"ab");
        buf.set_len(6);
        assert_eq!(&buf[..], b"abcdef", "what lies beyond the view stays");
    }

    #[test]
    #[should_panic(expected = "7 bytes do not fit a buffer of 6")]
    fn the_view_cannot_outgrow_the_memory() {
        Buf::copy_of(b"abcdef").set_len(7);
    }

    #[test]
    fn a_pinned_buffer_works_in_place_and_keeps_its_owner() {
        let mut owner = Buf::zeroed(4096);
        let at = NonNull::new(owner.as_mut_ptr()).unwrap();
        let keep = Arc::new(std::sync::Mutex::new(owner));
        // SAFETY: `keep` owns the memory and moves into the buffer; the mutex stays unlocked while
        // the buffer exists.
        let mut pinned = unsafe { Buf::pinned(at, 16, keep.clone()) };
        pinned.fill(9);
        assert_eq!(Arc::strong_count(&keep), 2);
        drop(pinned);
        assert_eq!(Arc::strong_count(&keep), 1);
        assert_eq!(
            keep.lock().unwrap()[..17],
            [[9; 16].as_slice(), &[0]].concat()
        );
    }

    #[test]
    fn a_buffer_never_shows_its_content_when_printed() {
        let bufs: Bufs = vec![Buf::copy_of(b"secret"), Buf::zeroed(1)].into();
        assert_eq!(
            format!("{bufs:?}"),
            "Bufs { bufs: Many([Buf(6), Buf(1)]), sums: Unasked }"
        );
    }

    #[test]
    fn one_and_several_buffers_look_alike() {
        let mut one: Bufs = Buf::copy_of(b"ab").into();
        let mut many: Bufs = vec![Buf::copy_of(b"a"), Buf::copy_of(b"b")].into();
        for bufs in [&mut one, &mut many] {
            assert_eq!(bufs.total_len(), 2);
            assert!(bufs.iter().flat_map(|b| b.iter()).eq(b"ab"));
            bufs.iter_mut().for_each(|b| b.fill(b'c'));
            bufs.as_mut_slice()[0][0] = b'd';
            assert_eq!(bufs.as_slice()[0][0], b'd');
        }
        assert_eq!(one.into_vec().len(), 1);
        assert_eq!(many.into_first().map(|b| b.len()), Some(1));
        let none: Bufs = Vec::new().into();
        assert_eq!(none.total_len(), 0);
        assert!(none.into_first().is_none());
    }

    #[test]
    fn buffers_cross_threads() {
        let buf = Buf::copy_of(b"abc");
        let back = std::thread::spawn(move || buf).join().unwrap();
        assert_eq!(&back[..], b"abc");
    }
}
