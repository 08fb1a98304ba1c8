//! Tables of the connections and paths of an endpoint.

use crate::connection::{Connection, ConnectionKey};
use crate::path::Path;
use crate::secret::Keyed;
use crate::slab::{Key, Slab};
use std::collections::HashMap;
use std::net::SocketAddr;

/// Connections by their key in packets.
pub(super) struct ConnectionTable<P, D> {
    slots: Slab<Connection<P, D>>,
    by_key: HashMap<ConnectionKey, Key, Keyed>,
    /// The connection found last: datagrams arrive in runs.
    recent: Option<(ConnectionKey, Key)>,
    incoming: usize,
    /// Position of the next sweep.
    sweep: usize,
}

impl<P, D> ConnectionTable<P, D> {
    pub(super) fn new(secret: Keyed) -> ConnectionTable<P, D> {
        ConnectionTable {
            slots: Slab::new(),
            by_key: HashMap::with_hasher(secret),
            recent: None,
            incoming: 0,
            sweep: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of connections that peers made.
    pub(super) const fn incoming(&self) -> usize {
        self.incoming
    }

    pub(super) fn get(&self, connection: Key) -> Option<&Connection<P, D>> {
        self.slots.get(connection)
    }

    pub(super) fn get_mut(&mut self, connection: Key) -> Option<&mut Connection<P, D>> {
        self.slots.get_mut(connection)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &Connection<P, D>)> {
        self.slots.iter()
    }

    pub(super) fn contains(&self, key: &ConnectionKey) -> bool {
        self.by_key.contains_key(key)
    }

    /// Finds the connection that a packet belongs to.
    pub(super) fn find(&mut self, key: &ConnectionKey) -> Option<Key> {
        match self.recent {
            Some((recent, connection)) if recent == *key => Some(connection),
            _ => {
                let connection = *self.by_key.get(key)?;
                self.recent = Some((*key, connection));
                Some(connection)
            }
        }
    }

    pub(super) fn insert(&mut self, connection: Connection<P, D>) -> Key {
        let key = connection.key;
        self.incoming += usize::from(connection.is_server());
        let connection = self.slots.insert(connection);
        self.by_key.insert(key, connection);
        connection
    }

    pub(super) fn remove(&mut self, connection: Key) -> Option<Connection<P, D>> {
        let removed = self.slots.remove(connection)?;
        self.recent = None;
        self.by_key.remove(&removed.key);
        self.incoming -= usize::from(removed.is_server());
        Some(removed)
    }

    /// Iterates over the connections in the next `count` slots.
    pub(super) fn sweep(&mut self, count: usize) -> impl Iterator<Item = (Key, &Connection<P, D>)> {
        let start = self.sweep;
        self.sweep = start.wrapping_add(count);
        self.slots.some(start, count)
    }
}

/// Paths by the address of the peer.
pub(super) struct PathTable {
    slots: Slab<Path>,
    by_peer: HashMap<SocketAddr, Key, Keyed>,
}

impl PathTable {
    pub(super) fn new(secret: Keyed) -> PathTable {
        PathTable {
            slots: Slab::new(),
            by_peer: HashMap::with_hasher(secret),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn get(&self, path: Key) -> Option<&Path> {
        self.slots.get(path)
    }

    pub(super) fn get_mut(&mut self, path: Key) -> Option<&mut Path> {
        self.slots.get_mut(path)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &Path)> {
        self.slots.iter()
    }

    pub(super) fn to(&self, peer: &SocketAddr) -> Option<Key> {
        self.by_peer.get(peer).copied()
    }

    pub(super) fn insert(&mut self, path: Path) -> Key {
        let peer = path.peer;
        let path = self.slots.insert(path);
        self.by_peer.insert(peer, path);
        path
    }

    pub(super) fn remove(&mut self, path: Key) -> Option<Path> {
        let removed = self.slots.remove(path)?;
        self.by_peer.remove(&removed.peer);
        Some(removed)
    }
}
