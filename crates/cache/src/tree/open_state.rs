//! State of one open file that its vnode and requests in flight share.

use super::vnode::Vnode;
use crate::errors::ErrorCursor;
use crate::stats::{Counters, Counts};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// State that requests in flight share with the open file that issued them.
pub(crate) struct OpenState {
    pub(crate) vnode: Arc<Vnode>,
    pub(crate) counters: Counters,
    pub(crate) cursor: ErrorCursor,
    /// Read-ahead requests that have not been started.
    pub(crate) asked: AtomicU32,
}

/// The open files of a vnode, and the totals of closed ones.
#[derive(Default)]
pub(crate) struct OpenStates {
    live: Mutex<Vec<Weak<OpenState>>>,
    /// Counters of closed open files, and of events outside any open file.
    pub(crate) closed: Counters,
}

impl OpenState {
    /// Creates the state of a new open file and registers it with the vnode.
    pub(crate) fn new(vnode: Arc<Vnode>) -> Arc<OpenState> {
        let state = Arc::new(OpenState {
            counters: Counters::default(),
            cursor: vnode.write_back.errors.cursor(),
            asked: AtomicU32::new(0),
            vnode,
        });
        state.vnode.opens.live().push(Arc::downgrade(&state));
        state
    }
}

impl Drop for OpenState {
    fn drop(&mut self) {
        self.vnode.opens.closed.fold(self.counters.get());
        // A weak reference would keep the memory of this state for as long as the vnode is cached.
        if let Ok(mut live) = self.vnode.opens.live.lock() {
            live.retain(|open| open.strong_count() > 0);
        }
    }
}

impl OpenStates {
    /// Sums the counters of all open files, live and closed.
    pub(crate) fn counts(&self) -> Counts {
        let live: Vec<_> = self.live().iter().filter_map(Weak::upgrade).collect();
        let mut counts = self.closed.get();
        live.iter().for_each(|open| counts += open.counters.get());
        counts
    }

    /// Locks the list of live open files, without those that were closed.
    fn live(&self) -> MutexGuard<'_, Vec<Weak<OpenState>>> {
        let mut live = self.live.lock().expect("no panic under this lock");
        live.retain(|open| open.strong_count() > 0);
        live
    }
}
