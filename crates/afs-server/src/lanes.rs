//! The ways to the content of files that each thread has: one for each volume that it served lately.

use crate::volume::Volume;
use fs::Lane;
use std::cell::RefCell;
use std::sync::{Arc, Weak};

/// Lanes of a thread at most: each has a queue to the device.
const LANES_MAX: usize = 8;

thread_local! {
    /// The last used one first.
    static LANES: RefCell<Vec<(Weak<Volume>, Lane)>> = const { RefCell::new(Vec::new()) };
}

/// Does something with the calling thread's lane to a volume.
pub(crate) fn with<R>(volume: &Arc<Volume>, act: impl FnOnce(&mut Lane) -> R) -> fs::Result<R> {
    LANES.with_borrow_mut(|lanes| {
        let is_this = |(of, _): &(Weak<Volume>, Lane)| std::ptr::eq(of.as_ptr(), &**volume);
        // Those of volumes that are gone keep nothing longer than to the thread's next call.
        lanes.retain(|(of, _)| of.strong_count() > 0);
        match lanes.iter().position(is_this) {
            Some(at) => lanes[..=at].rotate_right(1),
            None => {
                lanes.truncate(LANES_MAX - 1);
                lanes.insert(0, (Arc::downgrade(volume), volume.files.lane()?));
            }
        }
        Ok(act(&mut lanes[0].1))
    })
}
