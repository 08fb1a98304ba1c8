//! One unit, as far as a machine knows.

use crate::events::{AskId, Phase};
use crate::record::{Claim, Name, Record};
use crate::{At, Config};
use retry::Breaker;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Largest number of candidates that are waited for. Some may have no table for the unit.
const TURNS_MAX: u32 = 10;

/// State of a unit.
#[derive(Debug)]
pub(crate) struct Unit {
    pub record: Record,
    /// Revision of the record in the store.
    pub revision: u64,
    pub phase: Phase,
    /// Epoch of the last claim of this machine.
    pub epoch: u64,
    /// The request about the record that has no answer yet.
    pub ask: Option<AskId>,
    /// Whether the storage refuses all claims before that of this machine.
    pub is_fenced: bool,
    /// Whether the record says that this machine serves the unit.
    pub published: bool,
    /// Contents of the record if the release has to be repeated.
    pub release: Option<Release>,
    /// When the next attempt begins.
    pub next: Option<At>,
    /// Attempts to take the unit over.
    attempts: Breaker,
}

/// How a machine gives up a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Release {
    /// Whether the storage may still get requests of the claim.
    pub must_fence: bool,
    /// A newer epoch that the storage has.
    pub stored: Option<u64>,
}

impl Release {
    /// Returns how to give up a unit. `is_clean`: nothing of the claim can reach the device any more.
    pub fn of(is_clean: bool) -> Release {
        if is_clean {
            Release::CLEAN
        } else {
            Release::UNCLEAN
        }
    }

    pub const CLEAN: Release = Release {
        must_fence: false,
        stored: None,
    };
    pub const UNCLEAN: Release = Release {
        must_fence: true,
        stored: None,
    };

    pub fn apply(self, record: &Record) -> Record {
        if self.must_fence {
            record.abandoned(self.stored)
        } else {
            record.released(self.stored)
        }
    }
}

impl Unit {
    pub fn new(record: Record, revision: u64) -> Unit {
        Unit {
            record,
            revision,
            phase: Phase::Idle,
            epoch: 0,
            ask: None,
            is_fenced: false,
            published: false,
            release: None,
            next: None,
            attempts: Breaker::default(),
        }
    }

    /// Returns the owner's claim.
    pub fn claim(&self) -> Option<&Claim> {
        self.record.holder.as_ref().map(|holder| &holder.claim)
    }

    /// Reports whether the owner is the machine with this lease.
    pub fn is_held_by(&self, machine: &Name, lease: u64) -> bool {
        self.claim()
            .is_some_and(|claim| claim.machine == *machine && claim.lease == lease)
    }

    /// Returns the position of a machine among the candidates that live; none if it is no candidate.
    pub fn rank(&self, unit: &Name, machine: &Name, alive: &BTreeMap<Name, u64>) -> Option<u32> {
        let wish = |name: &Name| self.record.wish.as_ref() == Some(name);
        if !self.record.machines.is_empty() && !self.record.machines.contains(machine) {
            return None;
        }
        if wish(machine) {
            return Some(0);
        }
        let before = if self.record.machines.is_empty() {
            let weight = |name: &Name| (hash(&(unit, name)), Name::clone(name));
            let own = weight(machine);
            let before = |name: &&Name| wish(name) || weight(name) < own;
            alive.keys().filter(before).count()
        } else {
            let listed = self.record.machines.iter();
            let place = listed.clone().position(|name| name == machine)?;
            let before = |&(at, name): &(usize, &Name)| {
                alive.contains_key(name) && (wish(name) || at < place)
            };
            listed.enumerate().filter(before).count()
        };
        Some(u32::try_from(before).unwrap_or(u32::MAX))
    }

    /// Plans an attempt for a candidate of this rank.
    pub fn plan(&mut self, now: At, rank: u32, config: &Config) {
        let at = now + config.stagger.saturating_mul(rank.min(TURNS_MAX));
        self.next = Some(at.max(At(self.attempts.until())));
    }

    /// Plans no attempt for some time, which is longer after each failure.
    pub fn failed(&mut self, now: At, unit: &Name, config: &Config) {
        let seed = hash(&(unit, &config.name));
        self.attempts.failed(now.0, &config.take_overs(), seed);
        self.next = None;
    }

    /// Forgets failed attempts.
    pub fn succeeded(&self) {
        self.attempts.succeeded();
    }
}

/// Times with names, the earliest first.
pub(crate) trait Due {
    fn pop_first_if_due(&mut self, now: At) -> Option<(At, Name)>;
}

impl Due for BTreeSet<(At, Name)> {
    fn pop_first_if_due(&mut self, now: At) -> Option<(At, Name)> {
        let is_due = self.first().is_some_and(|(at, _)| *at <= now);
        if is_due { self.pop_first() } else { None }
    }
}

/// Hashes a value the same way on all machines.
pub(crate) fn hash(value: &impl Hash) -> u64 {
    // The default hasher has fixed keys if it is made this way.
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
