//! State of one open file that its vnode and requests in flight share.

use super::vnode::Vnode;
use crate::errors::ErrorCursor;
use crate::stats::Counters;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// State that requests in flight share with the open file that issued them.
pub(crate) struct OpenState {
    pub(crate) vnode: Arc<Vnode>,
    pub(crate) counters: Counters,
    pub(crate) cursor: ErrorCursor,
    /// Read-ahead requests that have not been started.
    pub(crate) asked: AtomicU32,
}

impl OpenState {
    /// Creates the state of a new open file and registers it with the vnode.
    pub(crate) fn new(vnode: Arc<Vnode>) -> Arc<OpenState> {
        let state = Arc::new(OpenState {
            counters: Counters::default(),
            cursor: vnode.errors.cursor(),
            asked: AtomicU32::new(0),
            vnode,
        });
        state.vnode.add_opener(&state);
        state
    }
}

impl Drop for OpenState {
    fn drop(&mut self) {
        self.vnode.gone.fold(self.counters.get());
    }
}
