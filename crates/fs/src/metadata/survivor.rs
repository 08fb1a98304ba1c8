//! What the caller gives for survival of a killed server, and what became of it.

use std::collections::HashSet;
use std::sync::Arc;
use survival::{Log, Requests};

/// Memory that outlives the server.
#[derive(Debug, Clone)]
pub struct Survival {
    /// Changes that the disk does not have yet.
    pub log: Arc<Log>,
    /// Requests that were carried out.
    pub requests: Option<Arc<Requests>>,
    /// Whether both come from a server that was killed, so that the log is to be replayed, and files
    /// without a name may be open; see [`crate::Fs::end_adoption`].
    pub adopt: bool,
}

/// What became of the log of a predecessor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Adoption {
    /// There is none.
    None,
    /// All changes were taken over, and are durable.
    Adopted {
        /// Requests that changes in the log carried out. [`Requests::done`] has others.
        requests: HashSet<u64>,
    },
    /// The log could not be used, for this reason: the file system has what was durable. What other
    /// memory of the predecessor says about requests has no meaning.
    Refused(String),
}
