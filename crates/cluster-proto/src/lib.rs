//! Who owns a unit of a cluster, without I/O: events in, requests and commands out.
//!
//! A unit is what moves between machines as a whole: a volume with its mount, exports or cell. A
//! store of records, etcd, has one record for each unit ([`Record`]) and one key for each machine
//! that lives, which the lease of the machine keeps there. A [`Machine`] is the part of one machine:
//!
//! ```text
//!           answers, changes in the store                      the storage: fenced, opened, stopped
//!                         |                                                   |
//!                         v                                                   v
//!   clock ──► tick ──► Machine ──────────────────────────► next ──► Action
//!                                                            Ask    to the store
//!                                                            Until  until when this machine may serve
//!                                                            Fence, Bump, Open, Stop, Kill   a unit
//! ```
//!
//! A take-over has these steps, each of which begins after the one before it:
//!
//! 1. **Claim.** One transaction replaces the owner in the record, with the next epoch. It succeeds
//!    only if the record is the one that was read, the old owner's machine has no key, and this
//!    machine still has its own. The old owner becomes a claim that is not fenced.
//! 2. **Fence.** The storage refuses requests of each such claim, on every path.
//! 3. **Bump.** The storage gets the epoch. If it has a newer one, the claim ends.
//! 4. **Open.** The journal is replayed, and the unit is served.
//!
//! **Invariant:** the lease decides only who may try. What makes it safe is that no claim opens a
//! unit before the storage refuses all earlier ones; and an owner stops [`Config::margin`] before
//! its lease can end, by its own clock, counted from the moment at which it sent the renewal.
//!
//! Deliberately absent: the store, the storage, clocks and threads.

#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation
)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::indexing_slicing,
        clippy::cast_possible_truncation
    )
)]

mod events;
mod lease;
mod machine;
mod record;
mod unit;

pub use events::{Action, Answer, Ask, AskId, Config, Current, Done, Notice, Phase};
pub use machine::Machine;
pub use record::{Claim, Error, Holder, Name, RECORD_BYTES_MAX, Record};

/// A point in time of the machine's own clock, which counts while the machine is suspended
/// (`CLOCK_BOOTTIME`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct At(pub std::time::Duration);

impl std::ops::Add<std::time::Duration> for At {
    type Output = At;

    fn add(self, by: std::time::Duration) -> At {
        At(self.0.saturating_add(by))
    }
}
