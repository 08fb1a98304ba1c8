//! Memory with another owner, for example of a cache, is read and written in place.

use super::{good, piece, write_of};
use crate::Random;
use block::{BlockDevice, Buf, Op};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

pub(super) fn pinned_buffers(device: &dyn BlockDevice) {
    let len = piece(device);
    let queue = &mut *device.queue().expect("a queue opens");
    let mut random = Random::new(4);
    let mut page = Buf::zeroed(len);
    random.fill(&mut page);
    let data = page.to_vec();
    let at = NonNull::new(page.as_mut_ptr()).expect("a buffer is somewhere");
    let keep = Arc::new(Mutex::new(page));
    // SAFETY: `keep` owns the memory, which does not move with it, and moves into the buffer;
    // the mutex is not locked while the buffer exists.
    let pinned = unsafe { Buf::pinned(at, len, keep.clone()) };
    let Op::Write { bufs, .. } = good(queue, write_of(0, pinned)) else {
        unreachable!("checked by `good`")
    };
    assert_eq!(Arc::strong_count(&keep), 2, "the memory is kept in place");
    drop(bufs);
    assert_eq!(Arc::strong_count(&keep), 1, "the memory is released");
    keep.lock().expect("no panic under this lock").fill(0);
    // SAFETY: as above; the previous buffer is dropped.
    let pinned = unsafe { Buf::pinned(at, len, keep.clone()) };
    let bufs = pinned.into();
    drop(good(queue, Op::Read { offset: 0, bufs }));
    let page = keep.lock().expect("no panic under this lock");
    assert!(page[..] == data, "a read did not reach pinned memory");
}
