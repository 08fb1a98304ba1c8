//! Sending a snapshot as a stream, and receiving one.
//!
//! ```text
//!   snapshot ── changes ──► Sender ──► segments ──► Receiver ──► apply ──► settle ──► snapshot
//! ```
//!
//! A stream has the changes from one snapshot to the next, or all of a snapshot, as records that set
//! states: content and attributes of inodes first, then the names that were lost, then those that
//! were gained. Inodes have the same numbers on both sides.
//!
//! The receiver applies them to a fileset that is marked as receiving: nothing else uses it, and its
//! record has the position in the stream. **Invariant:** a fileset that is not marked is complete.
//! After the last segment, the changed part of the tree is checked, and one change of the metadata
//! creates the snapshot and removes the mark. Bytes from outside never change anything except the
//! receiving fileset.
//!
//! `send-proto` parses and verifies the stream, and `docs/format/send.md` describes it. Deliberately
//! absent: encryption and authentication, which are those of the whole stream.

mod apply;
mod changes;
pub mod receive;
pub mod send;
mod settle;

use crate::error::{Error, Kind, Result};
use crate::format::key::TreeId;
use crate::format::record::Time;
use crate::fs::Fs;
use send_proto::{Id, Stamp};

impl From<Time> for Stamp {
    fn from(time: Time) -> Stamp {
        Stamp {
            seconds: time.seconds,
            nanos: time.nanos,
        }
    }
}

impl From<Stamp> for Time {
    fn from(stamp: Stamp) -> Time {
        Time {
            seconds: stamp.seconds,
            nanos: stamp.nanos,
        }
    }
}

impl From<send_proto::Error> for Error {
    fn from(error: send_proto::Error) -> Error {
        Error::new(Kind::Invalid, error.to_string())
    }
}

/// Creates the error of records that do not fit the fileset.
fn invalid(text: impl std::fmt::Display) -> Error {
    let step = "`evfs fileset receive --abort` discards it";
    Error::new(Kind::Invalid, format!("invalid stream: {text}; {step}"))
}

impl Fs {
    /// Returns the identity of a fileset or a snapshot. A received snapshot has that of the snapshot
    /// at the sender.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub fn identity(&self, id: TreeId) -> Result<Id> {
        let record = self.inner().read().tree(id)?.record.clone();
        if let Some(received) = record.received {
            return Ok(Id(received));
        }
        let uuid = self.inner().superblock.lock().uuid;
        Ok(Id::of_tree(&uuid, id, record.created.into()))
    }
}
