//! A queue's connection on one path, with the queue's knowledge about it.

use crate::latency::{Latencies, quantile};
use crate::log::EventId;
use crate::path::SharedPath;
use crate::policy::Nanos;
use lunpath::PathQueue;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Minimum number of completions before a path's latency is used.
const KNOWN_FROM: u64 = 100;
/// Silence that is still normal, in multiples of the 99.9th percentile of the latency.
const SILENCE_FACTOR: u64 = 8;

/// State of a connection, as seen by its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkState {
    Down,
    Up,
    /// Silent since this time; gets no new I/O as long as another path is up.
    Suspect(Nanos),
}

/// A path, as used by one queue.
pub(crate) struct Link {
    pub(crate) path: Arc<SharedPath>,
    pub(crate) queue: Option<Box<dyn PathQueue>>,
    pub(crate) fence_key: Option<u64>,
    /// The storage keeps other clients out while the connection is up.
    pub(crate) is_exclusive: bool,
    pub(crate) state: LinkState,
    /// When the connection was adopted, and whether a write has completed on it.
    pub(crate) since: Nanos,
    pub(crate) wrote: bool,
    /// Slots of the jobs in flight on this link.
    pub(crate) jobs: Vec<u32>,
    /// Time of the last sign of life, or of the first submission after an idle period.
    pub(crate) heard: Nanos,
    /// Jobs were submitted since the last kick.
    pub(crate) fresh: bool,
    /// It may hold completions that its descriptor does not signal.
    pub(crate) holds: bool,
    /// The epoll instance reported its descriptor as ready.
    pub(crate) signalled: bool,
    /// Reason for taking the link down, and the ID of the log entry about it.
    pub(crate) broken: Option<(String, EventId)>,
    pub(crate) probing: bool,
    /// The suspicion is counted in the state of the path; not while the queue is idle.
    shows: bool,
    /// Time since which it answers again while still suspect, for the flap penalty.
    pub(crate) back: Option<Nanos>,
    pub(crate) latencies: Arc<Latencies>,
    slow: Nanos,
}

impl Link {
    pub(crate) fn new(path: Arc<SharedPath>) -> Link {
        Link {
            latencies: path.new_latencies(),
            path,
            queue: None,
            fence_key: None,
            is_exclusive: false,
            state: LinkState::Down,
            since: 0,
            wrote: false,
            jobs: Vec::new(),
            heard: 0,
            fresh: false,
            holds: false,
            signalled: false,
            broken: None,
            probing: false,
            shows: false,
            back: None,
            slow: 0,
        }
    }

    pub(crate) fn up(&self) -> bool {
        self.state == LinkState::Up
    }

    /// Checks whether the link is up and its port carries I/O (if access states are `heeded`).
    pub(crate) fn serves(&self, heeded: bool) -> bool {
        self.up() && (!heeded || self.path.access.carries())
    }

    /// Updates the latency quantile from the histogram.
    pub(crate) fn learn(&mut self) {
        let mut counts = Latencies::none();
        self.latencies.sum(&mut counts);
        self.slow = match counts.iter().sum::<u64>() {
            0..KNOWN_FROM => 0,
            _ => quantile(&counts, 0.999),
        };
    }

    /// Computes the silence after which the link becomes suspect: at least `least`.
    pub(crate) fn suspect_after(&self, least: Nanos) -> Nanos {
        least.max(self.slow * SILENCE_FACTOR)
    }

    /// Counts a suspicion, if there is one, in the state of the path.
    pub(crate) fn count_suspicion(&mut self) {
        self.set_shows(matches!(self.state, LinkState::Suspect(_)));
    }

    /// Removes a suspicion from the state of the path.
    pub(crate) fn uncount_suspicion(&mut self) {
        self.set_shows(false);
    }

    fn set_shows(&mut self, on: bool) {
        if on != self.shows {
            self.shows = on;
            if on {
                self.path.links_suspect.fetch_add(1, Relaxed)
            } else {
                self.path.links_suspect.fetch_sub(1, Relaxed)
            };
        }
    }
}
