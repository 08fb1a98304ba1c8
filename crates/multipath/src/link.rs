//! A queue's connection on one path, with what the queue knows about it.

use crate::policy::Nanos;
use crate::state::{Latencies, SharedPath, quantile};
use block::Queue;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Answers before the latency of a path says anything.
const KNOWN_FROM: u64 = 100;
/// Silence that is no cause for suspicion, in multiples of the latency that 999 of 1000 keep.
const SILENCE_FACTOR: u64 = 8;

/// What the queue thinks of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkState {
    Down,
    Up,
    /// Silent since; no new I/O as long as another path takes it.
    Suspect(Nanos),
}

/// One path, of one queue.
pub(crate) struct Link {
    pub(crate) path: Arc<SharedPath>,
    pub(crate) queue: Option<Box<dyn Queue>>,
    pub(crate) fence_key: Option<u64>,
    pub(crate) state: LinkState,
    /// When it was made, and whether a write has been carried out on it.
    pub(crate) since: Nanos,
    pub(crate) wrote: bool,
    /// Jobs in flight here.
    pub(crate) jobs: Vec<u32>,
    /// When something was last heard, or nothing was awaited.
    pub(crate) heard: Nanos,
    /// Submitted since the queue was last kicked.
    pub(crate) fresh: bool,
    /// It may hold answers that wake nobody.
    pub(crate) holds: bool,
    /// The epoll instance says there is something.
    pub(crate) signalled: bool,
    /// Why it is to be taken down, and the entry of the log that says so.
    pub(crate) broken: Option<(String, u64)>,
    pub(crate) probing: bool,
    /// Its suspicion shows in the state of the path; not while the queue rests, for nobody looks.
    shows: bool,
    /// Since when it answers again while it is suspect still, for the times it went away.
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

    /// Up, and its port carries I/O, as far as anybody heeds that.
    pub(crate) fn serves(&self, heeded: bool) -> bool {
        self.up() && (!heeded || self.path.access.carries())
    }

    /// Looks at the latencies again.
    pub(crate) fn learn(&mut self) {
        let mut counts = Latencies::none();
        self.latencies.sum(&mut counts);
        self.slow = match counts.iter().sum::<u64>() {
            0..KNOWN_FROM => 0,
            _ => quantile(&counts, 0.999),
        };
    }

    /// How long a silence has to be before it means something.
    pub(crate) fn patience(&self, least: Nanos) -> Nanos {
        least.max(self.slow * SILENCE_FACTOR)
    }

    /// Lets a suspicion show, or not.
    pub(crate) fn show_suspicion(&mut self, on: bool) {
        let on = on && matches!(self.state, LinkState::Suspect(_));
        if on != self.shows {
            self.shows = on;
            match on {
                true => self.path.links_suspect.fetch_add(1, Relaxed),
                false => self.path.links_suspect.fetch_sub(1, Relaxed),
            };
        }
    }
}
