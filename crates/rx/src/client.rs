//! Outgoing connections, and calls on them.

use crate::bytes::Bytes;
use crate::call::Call;
use crate::error::Error;
use crate::inbox::OpenCall;
use crate::link::Link;
use crate::shard::Shard;
use rx_proto::{Connect, End, Route, StartError, Timeouts};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A connection to a service of a peer, for four concurrent calls from any threads. Clones share
/// the connection, which is closed when the last clone and the last of its calls are dropped.
#[derive(Clone)]
pub struct Connection {
    link: Arc<Link>,
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
        let id = shard.run(|state, now| state.endpoint.connect(now, connect));
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

    /// Starts a call; blocks while four are running. To avoid a deadlock, a thread that blocks here
    /// must not own a call on another connection that other threads wait for.
    ///
    /// # Errors
    /// [`Error::Stopped`], [`Error::Exhausted`]; [`Error::Ended`] with [`End::Closed`] if the
    /// connection was [closed](Connection::close), also while this blocks.
    pub fn call(&self) -> Result<Call, Error> {
        self.start(None)
    }

    /// Starts a call; while four are running, blocks for at most `time`, and with
    /// [`Duration::ZERO`] not at all.
    ///
    /// # Errors
    /// Those of [`call`](Connection::call); [`Error::Late`] if none of the four ended in time.
    pub fn call_within(&self, time: Duration) -> Result<Call, Error> {
        self.start(Some(Instant::now() + time))
    }

    /// Closes the connection and all clones of it: its calls end, at the peer too, and threads that
    /// wait to start a call return.
    pub fn close(&self) {
        let id = self.link.id;
        self.link
            .shard
            .run(|state, now| state.endpoint.close(now, id));
    }

    fn start(&self, deadline: Option<Instant>) -> Result<Call, Error> {
        let link = &self.link;
        let wake = &link.shard.channels;
        link.shard.until(wake, deadline, |state, now| {
            if state.stopped {
                return Some(Err(Error::Stopped));
            }
            let id = match state.endpoint.start(now, link.id) {
                Ok(id) => id,
                Err(StartError::NoChannel) => return None,
                Err(StartError::Exhausted) => return Some(Err(Error::Exhausted)),
                Err(StartError::Unknown) => return Some(Err(Error::Ended(End::Closed))),
            };
            let open = state.open.entry(id).or_insert_with(OpenCall::new);
            Some(Ok(Call::outgoing(link, id, open)))
        })
    }

    /// Makes a complete call: sends `request` and returns the reply, which has at most `reply_max`
    /// bytes.
    ///
    /// # Errors
    /// Those of [`call`](Connection::call), [`Call::write`] and [`Call::read_to_end`].
    pub fn request(&self, request: impl Into<Bytes>, reply_max: usize) -> Result<Vec<u8>, Error> {
        let mut call = self.call()?;
        call.write(request)?;
        call.finish()?;
        call.read_to_end(reply_max)
    }
}

impl Call {
    /// Creates a connection back to the client, to call a service of it, from the socket, port and
    /// address that the client called: it expects callbacks from there.
    pub fn connect_back(&self, service: u16, timeouts: Timeouts) -> Connection {
        let route = Route {
            peer: self.peer(),
            local: self.local(),
        };
        Connection::new(self.shard(), route, service, timeouts)
    }
}
