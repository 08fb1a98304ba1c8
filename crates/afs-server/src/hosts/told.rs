//! Clients that trust the promises of a killed server: they are told that these have ended.

use super::{Host, Hosts, timeouts};
use crate::survival::{Clients, Holder};
use afs_proto::{Reader, Uuid, cb, gather, to_bytes};
use rx::{Call, Connection, Timeouts};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

impl Hosts {
    /// Notes clients in a table for another server. Those that trust promises of a killed one are
    /// `holders`; changes wait until [`Hosts::tell`].
    pub(crate) fn surviving(
        mut self,
        clients: Arc<Clients>,
        holders: Option<Vec<Holder>>,
    ) -> Hosts {
        self.stopping.set_closed(true);
        match holders {
            None => clients.set_strangers(self.machine_time(self.unknown_trust.load(Relaxed))),
            Some(holders) => {
                let strangers = self.own_time(clients.strangers());
                self.unknown_trust.store(strangers, Relaxed);
                self.told.set_closed(true);
                let mut by_address = self.by_address();
                for holder in holders {
                    let host = Host::new(holder.address, self.own_time(holder.until));
                    host.lock().local = holder.local;
                    *host.kept() = Some(holder.kept);
                    by_address.insert(holder.address, Arc::new(host));
                }
            }
        }
        self.clients = Some(clients);
        self
    }

    /// Converts seconds since the server's start to those of the machine's clock.
    pub(super) fn machine_time(&self, seconds: u32) -> u64 {
        self.machine_started + u64::from(seconds)
    }

    fn own_time(&self, machine: u64) -> u32 {
        let since = machine.saturating_sub(self.machine_started);
        u32::try_from(since).unwrap_or(u32::MAX)
    }

    /// Tells the clients that trust promises of a killed server that these have ended, and lets
    /// changes be answered. Tells them once more after `again`: a reply of the killed server with a
    /// promise may have been processed after the first time. `connect` makes a connection from a local
    /// address.
    pub(crate) fn tell(
        &self,
        again: Duration,
        connect: impl Fn(SocketAddr, Option<IpAddr>, Timeouts) -> Connection,
    ) {
        if self.clients.is_none() {
            return;
        }
        let all: Vec<_> = self.by_address().values().cloned().collect();
        let holders = all.into_iter().filter(|host| self.must_reset(host));
        let holders: Vec<_> = holders
            .map(|host| {
                let local = host.lock().local;
                let connection = connect(host.address, local, timeouts(self.answer_time));
                (host, connection)
            })
            .collect();
        let calls: Vec<_> = holders
            .iter()
            .map(|(_, connection)| self.begin_end(connection))
            .collect();
        for ((host, connection), call) in holders.iter().zip(calls) {
            let told = call.and_then(end_of_call);
            if !self.was_reset(host, &told) && self.must_reset(host) {
                self.resets.add(Arc::clone(host), connection.clone());
            }
        }
        self.told.set_closed(false);
        self.stopping.pass_within(again);
        let calls: Vec<_> = holders
            .iter()
            .map(|(_, connection)| self.begin_end(connection))
            .collect();
        for call in calls {
            // Those that did not answer the first time are told until they do.
            let _ = call.and_then(end_of_call);
        }
    }

    /// Waits until the clients that trust promises of a killed server know that these have ended.
    pub(crate) fn pass_told(&self) {
        self.told.pass();
    }

    /// Begins to tell a client that all its promises have ended.
    fn begin_end(&self, connection: &Connection) -> Result<Call, rx::Error> {
        let server = self.identity;
        let mut call = connection.call_within(Duration::ZERO)?;
        call.write(to_bytes(&cb::Request::InitCallBackState3 { server }))?;
        call.finish()?;
        Ok(call)
    }
}

/// Receives the answer of a client to the end of its promises.
fn end_of_call(mut call: Call) -> Result<cb::Reply, rx::Error> {
    let opcode = cb::Request::InitCallBackState3 {
        server: Uuid::default(),
    };
    let bytes = call.read_to_end(gather::REPLY_BYTES_MAX)?;
    cb::read_reply(opcode.opcode(), &mut Reader::new(&bytes)).map_err(|_| rx::Error::Short)
}
