//! Learning the access states of a target's ports (ALUA), from I/O errors and from queries.
//!
//! ```text
//!   queue ── "port is standby", "access changed" ──► PortAccess ◄── queries ── monitor
//!                                                        │
//!                                 dispatch: which links may carry I/O
//! ```
//!
//! A state learned from I/O takes effect immediately; a later query result replaces it. Each query
//! runs on its own thread, so that an unresponsive port delays nothing.
//!
//! Deliberately absent: activating a port (SET TARGET PORT GROUPS). That would move the LUN for
//! every host that uses it.

use crate::mailbox::QueueMessage;
use crate::path::SharedPath;
use crate::policy::Nanos;
use crate::shared::Shared;
use crate::sync::lock;
use lunpath::{Access, AccessHint};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Query interval of a port while all is well. A change is reported with the next I/O; the query is
/// for a port that carries none, and for a target that does not report changes.
const EVERY: Nanos = 5_000_000_000;
/// Query interval while I/O waits for a port.
const EVERY_URGENT: Nanos = 200_000_000;
/// Minimum time between two queries, for a target whose answers contradict its errors.
const AT_LEAST: Nanos = 100_000_000;

/// Records the access state of a port.
pub(crate) fn note(shared: &Shared, path: &SharedPath, access: Access) {
    if access != Access::Optimized {
        path.access.set_varies(true);
    }
    if path.access.set(access) {
        let what = format!("its port is {}", access.name().replace('_', "-"));
        tracing::info!(path = path.path.name(), "{what}");
        shared.log.add(path.path.name(), what, 0);
    }
}

/// Handles a hint about a port's access from a queue. A change of one port usually affects others,
/// so all ports are queried again.
pub(crate) fn handle_hint(shared: &Shared, path: &SharedPath, sign: AccessHint) {
    if let AccessHint::Is(access) = sign {
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

/// Starts a query of a path's port if one is due. Returns whether its result is awaited.
pub(crate) fn query_if_due(shared: &Arc<Shared>, path: &Arc<SharedPath>) -> bool {
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
            query(&shared, &path);
            path.access.asking.store(false, Release);
        };
        let thread = std::thread::Builder::new().name("lun-access".into());
        if thread.spawn(task).is_err() {
            access.asking.store(false, Release);
        }
    }
    urgent || access.doubtful.load(Relaxed)
}

/// Queries a path's port and notifies the queues.
pub(crate) fn query(shared: &Shared, path: &SharedPath) {
    let access = &path.access;
    // A hint that arrives from here on may be newer than the query result.
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
                queue.post(QueueMessage::Recheck);
            }
        }
        Err(error) => {
            tracing::debug!(
                path = path.path.name(),
                "cannot query its access state: {error}"
            );
            if unlinked {
                path.fails(error.to_string());
            }
        }
    }
    shared.wake_monitor();
}
