//! State that a queue shares with the control plane, and the mailbox through which the control
//! plane notifies it.

use crate::path::PATHS_MAX;
use crate::sync::lock;
use crate::trace::Recorder;
use block::Waker;
use lunpath::Connection;
use retry::Breaker;
use schemars::JsonSchema;
use serde::Serialize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU32};

/// Number of I/Os of one queue that are recorded for advice.
const RECORDS: usize = 16_384;

/// A waiting I/O.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct WaitingIo {
    /// Operation: `read`, `write`, ...
    pub op: String,
    /// Offset on the LUN in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Milliseconds since submission.
    pub age_ms: u64,
    /// Reason for the wait.
    pub why: &'static str,
}

pub(crate) enum QueueMessage {
    /// A connection proven to lead to this LUN.
    Connected(usize, Box<dyn Connection>),
    /// The path is disabled, removed or refused: close its connection.
    Drop(usize),
    /// Paths or attributes changed, or a lost write was settled: check again.
    Recheck,
}

/// States of a link, shared between a queue and the monitor.
pub(crate) const LINK_DOWN: u8 = 0;
pub(crate) const LINK_CONNECTING: u8 = 1;
pub(crate) const LINK_UP: u8 = 2;

/// Number of a queue of a LUN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct QueueId(u64);

impl QueueId {
    pub(crate) fn new(number: u64) -> QueueId {
        QueueId(number)
    }
}

/// State shared by a queue and the control plane.
pub(crate) struct QueueShared {
    pub(crate) id: QueueId,
    /// The only path it may use, for a legacy name without multipathing.
    pub(crate) only: Option<usize>,
    /// Whether it heeds the limits on I/Os in flight.
    pub(crate) is_limited: bool,
    pub(crate) links: [AtomicU8; PATHS_MAX],
    pub(crate) attempts: [Breaker; PATHS_MAX],
    pub(crate) waiting: AtomicU32,
    pub(crate) held: AtomicU32,
    /// Waiting I/Os as of the queue's last tick.
    pub(crate) shown: Mutex<Vec<WaitingIo>>,
    pub(crate) recorder: Mutex<Recorder>,
    pub(crate) waker: Waker,
    messages: Mutex<Vec<QueueMessage>>,
}

impl QueueShared {
    pub(crate) fn new(
        id: QueueId,
        only: Option<usize>,
        is_limited: bool,
    ) -> std::io::Result<QueueShared> {
        Ok(QueueShared {
            id,
            only,
            is_limited,
            links: std::array::from_fn(|_| AtomicU8::new(LINK_DOWN)),
            attempts: std::array::from_fn(|_| Breaker::default()),
            waiting: AtomicU32::new(0),
            held: AtomicU32::new(0),
            shown: Mutex::new(Vec::new()),
            recorder: Mutex::new(Recorder::new(RECORDS)),
            waker: Waker::new()?,
            messages: Mutex::new(Vec::new()),
        })
    }

    pub(crate) fn post(&self, mail: QueueMessage) {
        lock(&self.messages).push(mail);
        self.waker.wake();
    }

    pub(crate) fn take_messages(&self) -> Vec<QueueMessage> {
        if !self.waker.take() {
            return Vec::new();
        }
        std::mem::take(&mut *lock(&self.messages))
    }
}
