//! Events that a machine is told, and the actions that it wants.

use crate::At;
use crate::record::{Claim, Name, Record};
use retry::{Backoff, Jitter};
use std::time::Duration;

/// Longest pause after failed take-overs, as a multiple of [`Config::stagger`].
const TAKE_OVER_MAX: u32 = 96;

/// Settings of a machine. All machines of a cluster have the same, but for the name.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of the machine, unique in the cluster.
    pub name: Name,
    /// How long a lease lives without renewal.
    pub ttl: Duration,
    /// How long before the end of its lease a machine stops.
    pub margin: Duration,
    /// Pause between renewals. With the time that the store needs for a new leader it is less than
    /// `ttl` less `margin`; else machines stop whenever the leader dies.
    pub renew: Duration,
    /// How much later the next candidate tries to take a unit over.
    pub stagger: Duration,
    /// How long an answer of the store may take.
    pub patience: Duration,
    /// Most units that are being taken over at once.
    pub at_once: usize,
}

impl Config {
    /// Returns the settings for leases of three seconds.
    pub fn new(name: Name) -> Config {
        Config {
            name,
            ttl: Duration::from_secs(3),
            margin: Duration::from_secs(1),
            renew: Duration::from_millis(200),
            stagger: Duration::from_millis(300),
            patience: Duration::from_millis(800),
            at_once: 16,
        }
    }

    /// Pauses before a request to the store is repeated.
    pub(crate) fn repeats(&self) -> Backoff {
        Backoff::new(self.renew, self.patience, Jitter::Equal)
    }

    /// Pauses before the state of the cluster is read again because changes were missed.
    pub(crate) fn reloads(&self) -> Backoff {
        Backoff::new(self.ttl / 3, self.ttl / 3, Jitter::Full)
    }

    /// Pauses after failed attempts to take a unit over. The first is longer than the time after
    /// which the next candidate tries.
    pub(crate) fn take_overs(&self) -> Backoff {
        let times = |count| self.stagger.saturating_mul(count);
        Backoff::new(times(3), times(TAKE_OVER_MAX), Jitter::Equal)
    }
}

/// Number of a request to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AskId(pub u64);

/// A request to the store. Exactly one answer is passed to [`Machine::answer`](crate::Machine::answer), or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Grant a lease for this time.
    Grant { ttl: Duration },
    /// Store the key of this machine under a lease, unless another host uses the name.
    Announce { lease: u64 },
    /// Renew a lease.
    Renew { lease: u64 },
    /// Read the keys of all machines and the records of all units that this machine may own, and
    /// then pass on all changes.
    Load,
    /// Read one record.
    Read { unit: Name },
    /// Replace a record in one transaction, if it has this revision, this machine's key has this
    /// lease, and the key of the machine `gone` does not have that lease.
    Change {
        unit: Name,
        revision: u64,
        lease: u64,
        gone: Option<(Name, u64)>,
        record: Record,
    },
}

/// A record with its revision; none if there is no such record.
pub type Current = Option<(Record, u64)>;

/// The answer of the store.
#[derive(Debug)]
pub enum Answer {
    /// The lease, and the time that the store gave it.
    Granted { lease: u64, ttl: Duration },
    /// [`Ask::Announce`], [`Ask::Renew`] were done.
    Done,
    /// The lease does not exist, or another host uses the name.
    Denied,
    /// The state of the cluster.
    Loaded(Vec<Notice>),
    /// The record as it is.
    Is(Current),
    /// The record was replaced.
    Changed { revision: u64 },
    /// It was not replaced.
    Refused(Current),
    /// It is unknown whether the request was executed: an error, a time-out.
    Unknown,
}

/// A change in the store.
#[derive(Debug, Clone)]
pub enum Notice {
    /// The key of a machine has this lease.
    Machine { name: Name, lease: u64 },
    /// The key of a machine is gone.
    MachineGone { name: Name },
    /// A record.
    Unit {
        unit: Name,
        record: Record,
        revision: u64,
    },
    /// A record was removed.
    UnitGone { unit: Name },
    /// Changes may have been missed.
    Missed,
}

/// The result of an action at the storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// The storage refuses all requests of these claims, on every path.
    Fenced,
    /// At least one path is not proven to.
    NotFenced,
    /// The storage has the epoch.
    Bumped,
    /// The storage has a newer epoch, this one.
    Newer(u64),
    /// The unit is served.
    Opened,
    /// [`Action::Bump`] or [`Action::Open`] failed. `clean`: nothing is on its way to the storage.
    Failed { clean: bool },
    /// The unit is closed after [`Action::Stop`], or by itself.
    Stopped { clean: bool },
}

/// An action that a machine wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A request to the store.
    Ask(AskId, Ask),
    /// No reply may leave this machine from that time on. Replaces the time said before.
    Until(At),
    /// Let the storage refuse these claims on a unit.
    Fence {
        unit: Name,
        epoch: u64,
        claims: Vec<Claim>,
    },
    /// Store the epoch of a unit.
    Bump { unit: Name, epoch: u64 },
    /// Open a unit and serve it.
    Open { unit: Name, epoch: u64 },
    /// Close a unit: write everything back, and answer no more.
    Stop { unit: Name, epoch: u64 },
    /// End a unit, and whatever is being done for it, at once and without a write.
    Kill { unit: Name, epoch: u64 },
}

/// Activity of a machine for a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Phase {
    /// Nothing.
    #[default]
    Idle,
    Claiming,
    Fencing,
    Bumping,
    Opening,
    Serving,
    Stopping,
    Releasing,
}
