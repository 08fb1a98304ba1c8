//! The ports of all clients of a process, opened as clients need them.

use crate::cache::Cache;
use crate::client::{Client, Options};
use crate::net::{CallbackState, Line};
use afs_proto::Uuid;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

/// Ports of many clients.
#[derive(Default)]
pub struct PortSet {
    lines: Mutex<Vec<Arc<Line>>>,
}

impl PortSet {
    /// Creates a set without ports: they are opened for new clients.
    pub fn new() -> Arc<PortSet> {
        Arc::default()
    }

    /// Creates a client at a local address, for the file server at `server`. At 0.0.0.0 the client
    /// has the port to itself, and uses the local address that routes to the server.
    ///
    /// # Errors
    /// A port could not be opened; no random numbers for a UUID.
    pub fn client(
        &self,
        address: Ipv4Addr,
        server: SocketAddr,
        options: Options,
    ) -> io::Result<Client> {
        let mut uuid = [0; 16];
        getrandom::fill(&mut uuid).map_err(|e| io::Error::other(e.to_string()))?;
        let heard = Arc::new(CallbackState {
            uuid: Uuid(uuid),
            cache: Cache::new(options.cache_bytes_max),
            observer: options.observer,
        });
        let line = self.line(address.into(), &heard)?;
        Ok(Client::new(
            line,
            address,
            server,
            (options.timeouts, options.retry_time),
            heard,
        ))
    }

    /// Finds the first port at which the address is free, or opens a new one.
    fn line(&self, address: IpAddr, heard: &Arc<CallbackState>) -> io::Result<Arc<Line>> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        for line in &*lines {
            if line.take(address, heard) {
                return Ok(Arc::clone(line));
            }
        }
        let line = Arc::new(Line::open()?);
        line.take(address, heard);
        lines.push(Arc::clone(&line));
        Ok(line)
    }
}
