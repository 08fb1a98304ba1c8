//! An outgoing connection, as its handles and its calls share it.

use crate::shard::Shard;
use rx_proto::{ConnectionId, Route};
use std::sync::Arc;

/// An outgoing connection, closed when it is dropped.
pub(crate) struct Link {
    pub(crate) shard: Arc<Shard>,
    pub(crate) id: ConnectionId,
    pub(crate) route: Route,
    pub(crate) service: u16,
}

impl Drop for Link {
    fn drop(&mut self) {
        let id = self.id;
        self.shard.run(|state, now| state.endpoint.close(now, id));
    }
}
