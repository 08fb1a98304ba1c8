//! What a target's ports give of the LUN (ALUA, SPC-4, section 5.15.2): heard with I/O, asked for
//! beside it.
//!
//! ```text
//!   queue ── "this port stands by", "something has changed" ──► PortAccess ◄── asked ── monitor
//!                                                                   │
//!                                            dispatch: which links may carry I/O
//! ```
//!
//! What is heard with I/O counts at once; what is asked after it replaces it. Asking has a thread of
//! its own, so that a port that does not answer holds up nothing.
//!
//! Absent on purpose: making a port active (SET TARGET PORT GROUPS). Who does that moves the LUN for
//! every host that uses it.

use crate::lun::Shared;
use crate::policy::Nanos;
use crate::state::{Mail, SharedPath, lock};
use block::{Access, AccessSign};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};

/// How often ports are asked while everything is well. A change is heard with the next I/O; this is
/// for a port that carries none, and for a target that does not tell.
const EVERY: Nanos = 5_000_000_000;
/// How often while I/O waits for a port.
const EVERY_URGENT: Nanos = 200_000_000;
/// Least time between two questions, for a target that says one thing and does another.
const AT_LEAST: Nanos = 100_000_000;

/// What one path's port gives.
#[derive(Debug)]
pub(crate) struct PortAccess {
    state: AtomicU8,
    /// The target makes a difference between its ports.
    varies: AtomicBool,
    /// It may have changed since it was last asked.
    doubtful: AtomicBool,
    asking: AtomicBool,
    /// When it was last asked.
    asked: AtomicU64,
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

    pub(crate) fn carries(&self) -> bool {
        self.get().carries()
    }

    pub(crate) fn set_varies(&self, varies: bool) {
        self.varies.store(varies, Relaxed);
    }

    fn doubt(&self) {
        self.varies.store(true, Relaxed);
        self.doubtful.store(true, Release);
    }
}

/// Notes what a port gives.
pub(crate) fn note(shared: &Shared, path: &SharedPath, access: Access) {
    if access != Access::Optimized {
        path.access.set_varies(true);
    }
    let before = path.access.state.swap(access as u8, AcqRel);
    if before != access as u8 {
        let what = format!("its port is {}", access.name().replace('_', "-"));
        tracing::info!(path = path.path.name(), "{what}");
        shared.log.add(path.path.name(), what, 0);
    }
}

/// A queue has heard something of a port. What changes for one changes for others, so that all are
/// asked.
pub(crate) fn hear(shared: &Shared, path: &SharedPath, sign: AccessSign) {
    if let AccessSign::Is(access) = sign {
        note(shared, path, access);
    }
    path.access.doubt();
    for other in shared.paths() {
        if other.access.varies.load(Relaxed) {
            other.access.doubt();
        }
    }
    shared.wake_monitor();
}

/// Asks a path's port where it is time to; says whether somebody waits for the answer.
pub(crate) fn ask_if_due(shared: &Arc<Shared>, path: &Arc<SharedPath>) -> bool {
    let access = &path.access;
    if !access.varies.load(Relaxed) || !path.eligible() {
        return false;
    }
    let carries = |p: &Arc<SharedPath>| p.access.carries() && p.links_up.load(Relaxed) > 0;
    let urgent = access.get() == Access::Transitioning || !shared.paths().iter().any(carries);
    let since = shared.clock.now() - access.asked.load(Relaxed);
    let due = match (access.doubtful.load(Acquire), urgent) {
        (true, _) => since >= AT_LEAST,
        (false, true) => since >= EVERY_URGENT,
        (false, false) => since >= EVERY,
    };
    if due && !access.asking.swap(true, AcqRel) {
        let (shared, path) = (Arc::clone(shared), Arc::clone(path));
        let task = move || {
            ask(&shared, &path);
            path.access.asking.store(false, Release);
        };
        let thread = std::thread::Builder::new().name("lun-access".into());
        if thread.spawn(task).is_err() {
            access.asking.store(false, Release);
        }
    }
    urgent || access.doubtful.load(Relaxed)
}

/// Asks a path's port, and tells the queues.
pub(crate) fn ask(shared: &Shared, path: &SharedPath) {
    let access = &path.access;
    // What is heard from now on may be newer than the answer.
    access.doubtful.store(false, Release);
    let answer = path.path.access(shared.connect_within);
    access.asked.store(shared.clock.now(), Relaxed);
    let unlinked = path.links_up.load(Relaxed) == 0;
    match answer {
        Ok(now) => {
            access.set_varies(now.is_some());
            if unlinked {
                path.failing.store(false, Relaxed);
            }
            if !access.doubtful.load(Acquire) {
                note(shared, path, now.unwrap_or(Access::Optimized));
            }
            for queue in lock(&shared.queues).iter() {
                queue.post(Mail::Look);
            }
        }
        Err(error) => {
            tracing::debug!(path = path.path.name(), "no word of its access: {error}");
            if unlinked {
                path.fails(error.to_string());
            }
        }
    }
    shared.wake_monitor();
}
