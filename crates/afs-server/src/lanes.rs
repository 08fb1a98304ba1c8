//! Per-thread lanes for file I/O: one for each volume that the thread served recently.

use crate::volume::Volume;
use fs::Lane;
use std::cell::RefCell;
use std::sync::{Arc, Weak};

/// Maximum number of lanes of a thread; each has a device queue.
const LANES_MAX: usize = 8;

thread_local! {
    /// Most recently used first.
    static LANES: RefCell<Vec<(Weak<Volume>, Lane)>> = const { RefCell::new(Vec::new()) };
}

/// Runs `act` with the calling thread's lane for a volume.
pub(crate) fn with<R>(volume: &Arc<Volume>, act: impl FnOnce(&mut Lane) -> R) -> fs::Result<R> {
    LANES.with_borrow_mut(|lanes| {
        let is_this = |(of, _): &(Weak<Volume>, Lane)| std::ptr::eq(of.as_ptr(), &**volume);
        // Lanes of dropped volumes are released by the thread's next call.
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
