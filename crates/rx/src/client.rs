//! Connections that we make, and calls on them.

use crate::bytes::Bytes;
use crate::call::Call;
use crate::error::Error;
use crate::inbox::Open;
use crate::shard::{Shard, State};
use rx_proto::{Connect, ConnectionId, End, Route, StartError, Timeouts, Timestamp};
use std::sync::Arc;

/// A connection to a service of a peer: four calls at a time, of any threads. Copies are the same
/// connection, which is closed when the last of them and of its calls is gone.
#[derive(Clone)]
pub struct Connection {
    link: Arc<Link>,
}

/// The connection itself.
pub(crate) struct Link {
    pub(crate) shard: Arc<Shard>,
    id: ConnectionId,
    pub(crate) route: Route,
    pub(crate) service: u16,
}

impl Connection {
    pub(crate) fn new(
        shard: &Arc<Shard>,
        route: Route,
        service: u16,
        timeouts: Timeouts,
    ) -> Connection {
        let connect = Connect {
            route,
            service,
            timeouts,
            security: None,
        };
        let id = shard.turn(|state, now| state.endpoint.connect(now, connect));
        let shard = Arc::clone(shard);
        Connection {
            link: Arc::new(Link {
                shard,
                id,
                route,
                service,
            }),
        }
    }

    /// Starts a call; waits while four are running. Whoever waits here has no call on another connection
    /// that somebody may wait for, or two of them may wait for each other.
    ///
    /// # Errors
    /// [`Error::Stopped`], [`Error::Exhausted`].
    pub fn call(&self) -> Result<Call, Error> {
        let link = &self.link;
        let shard = &link.shard;
        shard.until(&shard.channels, |state, now| self.start(state, now))
    }

    /// Starts a call, unless four are running.
    ///
    /// # Errors
    /// As [`call`](Connection::call).
    pub fn try_call(&self) -> Result<Option<Call>, Error> {
        let shard = &self.link.shard;
        let started = shard.turn(|state, now| self.start(state, now));
        started.transpose()
    }

    fn start(&self, state: &mut State, now: Timestamp) -> Option<Result<Call, Error>> {
        let link = &self.link;
        if state.stopped {
            return Some(Err(Error::Stopped));
        }
        let id = match state.endpoint.start(now, link.id) {
            Ok(id) => id,
            Err(StartError::NoChannel) => return None,
            Err(StartError::Exhausted) => return Some(Err(Error::Exhausted)),
            Err(StartError::Unknown) => return Some(Err(Error::Ended(End::Closed))),
        };
        let open = state.open.entry(id).or_insert_with(Open::new);
        Some(Ok(Call::outgoing(link, id, open)))
    }

    /// Makes a whole call: sends `request`, gives the reply, which has at most `reply_max` bytes.
    ///
    /// # Errors
    /// Those of [`call`](Connection::call), [`Call::write`] and [`Call::read_to_end`].
    pub fn ask(&self, request: impl Into<Bytes>, reply_max: usize) -> Result<Vec<u8>, Error> {
        let mut call = self.call()?;
        call.write(request)?;
        call.finish()?;
        call.read_to_end(reply_max)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let id = self.id;
        self.shard.turn(|state, now| state.endpoint.close(now, id));
    }
}
