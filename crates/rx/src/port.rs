//! A UDP port: its sockets and their threads.

use crate::client::Connection;
use crate::intake::Intake;
use crate::ledger::Table;
use crate::settings::{Service, Settings};
use crate::shard::Shard;
use crate::socket::{Sharing, Socket};
use crate::worker::Workers;
use rx_proto::{Route, Stats, Timeouts};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use survival::Memory;

/// A UDP port on which calls are served and made. Dropping it closes it: calls being served end
/// with an abort that tells clients to retry, and the drop waits for their handlers.
pub struct Port {
    address: SocketAddr,
    shards: Vec<Arc<Shard>>,
    dropped: Vec<Arc<AtomicU64>>,
    workers: Arc<Workers>,
    next: AtomicUsize,
}

/// Counters of a port's sockets.
#[derive(Debug, Clone, Default)]
pub struct PortStats {
    /// Counters of each socket's endpoint.
    pub sockets: Vec<Stats>,
    /// Datagrams that the kernel dropped because a receive buffer was full.
    pub dropped: u64,
    /// Failed sends: their datagrams are lost.
    pub send_errors: u64,
    /// Current number of connections, in both directions.
    pub connections: usize,
    /// Current number of calls, in both directions.
    pub calls: usize,
    /// Current number of bytes written and not acknowledged.
    pub unacknowledged: u64,
}

impl Port {
    /// Opens a port and serves `services` immediately.
    ///
    /// # Errors
    /// Errors of the system for sockets and threads; [`io::ErrorKind::AddrInUse`] if another
    /// program uses the port.
    pub fn open(settings: &Settings, services: Vec<Service>) -> io::Result<Port> {
        let buffer = settings.socket_buffer_bytes;
        let keep = settings.keep.as_ref();
        let left = keep.map(|(keep, name)| keep.take(name)).unwrap_or_default();
        let is_successor = !left.is_empty();
        let (sockets, tables) = if is_successor {
            adopt(left)?
        } else {
            bind(settings, buffer)?
        };
        let address = sockets.first().ok_or(io::ErrorKind::NotFound)?.address()?;
        if let Some(socket) = sockets.first() {
            let got = socket.receive_buffer()?;
            tracing::debug!(%address, got, "receive buffer");
        }
        if let Some((keep, name)) = keep {
            let held = sockets.iter().map(Socket::fd);
            let held: Vec<_> = held.chain(tables.iter().map(Table::file)).collect();
            keep.keep(name, &held)?;
        }
        let rx = rx_proto::Config {
            keeps_requests: keep.is_some(),
            ..settings.rx.clone()
        };
        let ids: Vec<u16> = services.iter().map(|service| service.id).collect();
        let workers = Workers::new(services, settings.workers, settings.thread_name);
        let mut port = Port {
            address,
            shards: Vec::new(),
            dropped: Vec::new(),
            workers,
            next: AtomicUsize::new(0),
        };
        let mut descriptors = Vec::new();
        let mut tables = tables.into_iter();
        for socket in sockets {
            descriptors.push(socket.fd().try_clone_to_owned()?);
            let workers = Arc::clone(&port.workers);
            let dispatch = move |job| workers.push(job);
            let shard = Shard::new(socket, rx.clone(), ids.iter().copied(), dispatch)?;
            if let Some(table) = tables.next() {
                shard.keep_calls(table, is_successor)?;
            }
            port.shards.push(shard);
            port.dropped.push(Arc::default());
        }
        for (index, socket) in descriptors.into_iter().enumerate() {
            let (own, dropped) = (&port.shards[index], &port.dropped[index]);
            let intake = Intake::new(socket, own, &port.shards, settings.lent_buffers, dropped);
            port.workers.listen(intake)?;
        }
        Ok(port)
    }

    /// Returns the address and port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Creates a connection to a service of `peer`. Nothing is sent before its first call.
    pub fn connect(&self, peer: SocketAddr, service: u16, timeouts: Timeouts) -> Connection {
        self.connect_by(Route { peer, local: None }, service, timeouts)
    }

    /// Creates a connection from a specific local address, which must be covered by the port's own:
    /// a port at 0.0.0.0 can act as many clients, each with an address in 127/8.
    pub fn connect_from(
        &self,
        local: IpAddr,
        peer: SocketAddr,
        service: u16,
        timeouts: Timeouts,
    ) -> Connection {
        let local = Some(local);
        self.connect_by(Route { peer, local }, service, timeouts)
    }

    fn connect_by(&self, route: Route, service: u16, timeouts: Timeouts) -> Connection {
        let index = self.next.fetch_add(1, Ordering::Relaxed) % self.shards.len();
        Connection::new(&self.shards[index], route, service, timeouts)
    }

    /// Returns the counters.
    pub fn stats(&self) -> PortStats {
        let mut stats = PortStats::default();
        for shard in &self.shards {
            shard.run(|state, _| {
                stats.sockets.push(*state.endpoint.stats());
                stats.send_errors += state.socket.errors;
                stats.connections += state.endpoint.connections();
                stats.calls += state.endpoint.calls();
                stats.unacknowledged += state.endpoint.unacknowledged_bytes();
            });
        }
        let dropped = self.dropped.iter().map(|n| n.load(Ordering::Relaxed));
        stats.dropped = dropped.sum();
        stats
    }
}

/// Binds the sockets of a port, and creates a table for each if they are kept.
fn bind(settings: &Settings, buffer: usize) -> io::Result<(Vec<Socket>, Vec<Table>)> {
    // Without sharing first: sockets that share a port would share it with another server of the
    // same user.
    let alone = Socket::bind(settings.listen, Sharing::Exclusive, buffer)?;
    let address = alone.address()?;
    let count = settings.sockets.max(1);
    let sockets = if count == 1 {
        vec![alone]
    } else {
        drop(alone);
        let shared = |_| Socket::bind(address, Sharing::Shared, buffer);
        (0..count).map(shared).collect::<io::Result<_>>()?
    };
    let tables = settings.keep.as_ref().map_or(0, |_| sockets.len());
    let tables = (0..tables)
        .map(|_| Table::create())
        .collect::<io::Result<_>>()?;
    Ok((sockets, tables))
}

/// Takes over the sockets and tables of a predecessor, in this order. The kernel keeps a client's
/// packets on the same socket.
fn adopt(mut left: Vec<OwnedFd>) -> io::Result<(Vec<Socket>, Vec<Table>)> {
    let tables = left.split_off(left.len() / 2);
    let table = |file| Table::adopt(Memory::adopt(file)?);
    let sockets = left
        .into_iter()
        .map(Socket::adopt)
        .collect::<io::Result<_>>()?;
    Ok((
        sockets,
        tables.into_iter().map(table).collect::<io::Result<_>>()?,
    ))
}

impl Drop for Port {
    fn drop(&mut self) {
        for shard in &self.shards {
            shard.stop();
        }
        self.workers.stop();
    }
}
