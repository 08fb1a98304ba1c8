//! The failover log of a LUN.

use crate::policy::Nanos;
use crate::sync::lock;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

/// Maximum number of entries in the failover log.
const LOG_ENTRIES: usize = 256;

/// Number of an event in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct EventId(u64);

impl EventId {
    pub(crate) fn get(self) -> u64 {
        self.0
    }
}

/// An event of a path.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Event {
    /// Number in the log, starting at 1.
    pub id: u64,
    /// Time in milliseconds since 1970.
    pub at_ms: u64,
    /// Name of the path.
    pub path: String,
    /// Description of the event.
    pub what: String,
    /// Number of I/Os that were moved to another path.
    pub moved: u64,
    /// Longest time one of them took, from submission to completion, in microseconds.
    pub stall_us: u64,
}

/// The failover log.
#[derive(Debug, Default)]
pub(crate) struct Log(Mutex<(u64, VecDeque<Event>)>);

impl Log {
    pub(crate) fn add(&self, path: &str, what: String, moved: u64) -> EventId {
        let mut log = lock(&self.0);
        log.0 += 1;
        let id = log.0;
        let at_ms = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_millis() as u64);
        log.1.push_back(Event {
            id,
            at_ms,
            path: path.to_owned(),
            what,
            moved,
            stall_us: 0,
        });
        if log.1.len() > LOG_ENTRIES {
            log.1.pop_front();
        }
        EventId(id)
    }

    /// Counts an I/O moved to another path.
    pub(crate) fn moved(&self, id: EventId) {
        let mut log = lock(&self.0);
        if let Some(event) = log.1.iter_mut().find(|e| e.id == id.0) {
            event.moved += 1;
        }
    }

    /// Records the duration of an I/O that event `id` moved.
    pub(crate) fn stalled(&self, id: EventId, took: Nanos) {
        let mut log = lock(&self.0);
        if let Some(event) = log.1.iter_mut().find(|e| e.id == id.0) {
            event.stall_us = event.stall_us.max(took / 1000);
        }
    }

    pub(crate) fn list(&self) -> Vec<Event> {
        lock(&self.0).1.iter().cloned().collect()
    }
}
