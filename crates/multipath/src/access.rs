//! Access state of a target's port (ALUA, SPC-4, section 5.15.2).

use lunpath::Access;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};

/// Access state of one path's port.
#[derive(Debug)]
pub(crate) struct PortAccess {
    state: AtomicU8,
    /// The target reports different states for its ports.
    pub(crate) varies: AtomicBool,
    /// The state may have changed since the last query.
    pub(crate) doubtful: AtomicBool,
    /// A query is running.
    pub(crate) asking: AtomicBool,
    /// Time of the last query.
    pub(crate) asked: AtomicU64,
}

const ALL: [Access; 5] = [
    Access::Optimized,
    Access::NonOptimized,
    Access::Standby,
    Access::Unavailable,
    Access::Transitioning,
];

impl PortAccess {
    pub(crate) fn new() -> PortAccess {
        PortAccess {
            state: AtomicU8::new(Access::Optimized as u8),
            varies: AtomicBool::new(false),
            doubtful: AtomicBool::new(false),
            asking: AtomicBool::new(false),
            asked: AtomicU64::new(0),
        }
    }

    pub(crate) fn get(&self) -> Access {
        ALL[usize::from(self.state.load(Acquire))]
    }

    /// Records the state; returns whether it has changed.
    pub(crate) fn set(&self, access: Access) -> bool {
        self.state.swap(access as u8, AcqRel) != access as u8
    }

    pub(crate) fn carries(&self) -> bool {
        self.get().carries()
    }

    pub(crate) fn set_varies(&self, varies: bool) {
        self.varies.store(varies, Relaxed);
    }

    pub(crate) fn doubt(&self) {
        self.varies.store(true, Relaxed);
        self.doubtful.store(true, Release);
    }
}
