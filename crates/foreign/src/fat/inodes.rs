//! Files that were changed since the mount: their numbers, places, clusters and sizes.
//!
//! The number of any other file is the place of its entry. A changed one keeps its number when its
//! entry moves, and as long as a program has it open after its removal.

use super::space::{Extent, total};
use crate::error::{Error, Kind, Result};
use crate::tree::{Node, ROOT, Time};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// First number of a file that was created since the mount: above all places on a device.
const CREATED: Node = 1 << 48;

/// A changed file.
pub(super) struct Inode {
    /// Place of its entry; `None` if that was removed.
    pub place: Option<u64>,
    /// The last entry of a removed file.
    pub raw: [u8; 32],
    /// Clusters of a regular file, once they are needed.
    pub extents: Option<Vec<Extent>>,
    /// Size in bytes, with the clusters.
    pub size: u64,
    /// End of the content that the cache has written to the device, if behind the size.
    pub stored: AtomicU64,
    /// Size in the entry.
    pub saved: u64,
    /// Number of writes to the cache.
    pub writes: u64,
    /// Number of the writes that are on the device.
    pub saved_writes: u64,
    /// Time of a write that is not in the entry.
    pub modified: Option<Time>,
    /// Whether the chain ends later on the device than in memory.
    pub was_cut: bool,
}

/// All changed files.
#[derive(Default)]
pub(super) struct Inodes {
    all: HashMap<Node, Inode>,
    by_place: HashMap<u64, Node>,
    created: u64,
}

impl Inodes {
    /// Returns the place of a file's entry.
    pub fn place(&self, node: Node) -> Result<u64> {
        match self.all.get(&node) {
            _ if node == ROOT => Ok(ROOT),
            Some(inode) => inode.place.ok_or_else(|| Kind::NotFound.into()),
            None if node >= CREATED => Err(Kind::NotFound.into()),
            None => Ok(node),
        }
    }

    /// Returns the number of the file with an entry at a place.
    pub fn node(&self, place: u64) -> Node {
        self.by_place.get(&place).copied().unwrap_or(place)
    }

    pub fn get(&self, node: Node) -> Option<&Inode> {
        self.all.get(&node)
    }

    /// Returns the state of a file, from now on.
    pub fn touch(&mut self, node: Node) -> Result<&mut Inode> {
        let place = self.place(node);
        if !self.all.contains_key(&node) {
            let place = place?;
            self.by_place.insert(place, node);
            self.all.insert(node, Inode::at(place));
        }
        let missing = || Error::from(Kind::NotFound);
        self.all.get_mut(&node).ok_or_else(missing)
    }

    /// Adds a file with an entry at a place.
    pub fn create(&mut self, place: u64) -> Node {
        let node = CREATED + self.created;
        self.created += 1;
        self.by_place.insert(place, node);
        self.all.insert(node, Inode::at(place));
        node
    }

    /// Notes that the entry of a file is at another place.
    pub fn moved(&mut self, node: Node, to: u64) -> Result<()> {
        if let Some(from) = self.touch(node)?.place.replace(to) {
            self.by_place.remove(&from);
        }
        self.by_place.insert(to, node);
        Ok(())
    }

    /// Notes that a file has no entry any more.
    pub fn removed(&mut self, node: Node, raw: [u8; 32]) -> Result<()> {
        let inode = self.touch(node)?;
        inode.raw = raw;
        if let Some(place) = inode.place.take() {
            self.by_place.remove(&place);
        }
        Ok(())
    }

    /// Drops a removed file, and returns it.
    pub fn take_removed(&mut self, node: Node) -> Option<Inode> {
        self.all.get(&node).filter(|inode| inode.place.is_none())?;
        self.all.remove(&node)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Node, &Inode)> {
        self.all.iter().map(|(node, inode)| (*node, inode))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Inode> {
        self.all.values_mut()
    }
}

impl Inode {
    fn at(place: u64) -> Inode {
        Inode {
            place: Some(place),
            raw: [0; 32],
            extents: None,
            size: 0,
            stored: AtomicU64::new(0),
            saved: 0,
            writes: 0,
            saved_writes: 0,
            modified: None,
            was_cut: false,
        }
    }

    /// Returns the bytes of its clusters.
    pub fn allocated(&self, cluster_bytes: u64) -> u64 {
        self.extents.as_deref().map_or(0, total) * cluster_bytes
    }

    /// Returns the end of the content on the device.
    pub fn stored(&self) -> u64 {
        self.size.max(self.stored.load(Relaxed))
    }

    pub fn is_unsaved(&self) -> bool {
        let is_written = self.size == self.saved && self.writes == self.saved_writes;
        self.place.is_some() && !(is_written && self.modified.is_none())
    }
}
