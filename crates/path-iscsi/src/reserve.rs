//! Fencing: each connection registers its own key, and the unit accepts writes only from registered
//! initiators. Preempting a key stops commands that its session has sent and the target has not
//! executed yet (SPC-4, section 5.12.11).
//!
//! On targets that keep a registration after its session, registrations of lost sessions and of
//! dead processes are preempted by the next session that registers, or when the last one closes.

use crate::link::{Data, Link};
use crate::nexus;
use block::{Error, ErrorKind, Result};
use iscsi_proto::scsi::cdb::{
    ReserveIn, ReserveOut, WRITE_EXCLUSIVE_REGISTRANTS_ONLY, persistent_reserve_in,
};
use iscsi_proto::scsi::{Fault, Reservation, parse_keys, parse_reservation};
use std::time::Instant;

/// Allocation length for READ KEYS: 1,023 keys.
const KEYS_BYTES: u16 = 8 + 1023 * 8;

/// Registers a new key, ignoring an existing registration, and ensures that the reservation is
/// held.
pub(crate) fn register(link: &mut Link, initiator: &str, deadline: Instant) -> Result<u64> {
    let before = link.key;
    let key = nexus::new_key(initiator);
    // From here on the key may be registered, even if no response arrives.
    link.key = Some(key);
    link.reserve(ReserveOut::RegisterAndIgnore, 0, key, deadline)?;
    acquire(link, key, deadline)?;
    if let Some(before) = before {
        remove(link, key, before, deadline)?;
        nexus::ended(before);
    }
    Ok(key)
}

/// Removes the registration of `key`, if it exists. `own` is this session's key. A session that
/// replaces another one needs this on targets where the new key does not replace the old (tgt).
fn remove(link: &mut Link, own: u64, key: u64, deadline: Instant) -> Result<()> {
    if !keys(link, deadline)?.contains(&key) {
        return Ok(());
    }
    match link.reserve(ReserveOut::Preempt, own, key, deadline) {
        // Another of our connections removed it first.
        Err(failure) if failure.fault == Some(Fault::ReservationConflict) => Ok(()),
        result => Ok(result.map(drop)?),
    }
}

/// Removes stale registrations. `own` is this session's key.
pub(crate) fn sweep(link: &mut Link, own: u64, initiator: &str, deadline: Instant) -> Result<()> {
    for key in keys(link, deadline)? {
        if key != own && nexus::is_left_over(key, initiator) {
            remove(link, own, key, deadline)?;
            tracing::info!(path = link.name, "removed a stale registration");
        }
    }
    Ok(())
}

/// Removes `lost`, the key of another session, so that none of its pending commands are executed.
/// `own` is this session's key.
pub(crate) fn preempt(link: &mut Link, own: u64, lost: u64, deadline: Instant) -> Result<()> {
    acquire(link, own, deadline)?;
    if keys(link, deadline)?.contains(&lost) {
        link.reserve(ReserveOut::Preempt, own, lost, deadline)?;
    }
    // The reservation may have belonged to the lost session; then it is ours now.
    acquire(link, own, deadline)?;
    if keys(link, deadline)?.contains(&lost) {
        let why = "the target did not remove the lost connection's key";
        return Err(Error::new(ErrorKind::Unsupported, &link.name, why));
    }
    Ok(())
}

/// Removes the keys of all other processes, so that none of their pending commands are executed, and
/// later ones are refused. `own` is the key of `link`.
pub(crate) fn evict(link: &mut Link, own: u64, deadline: Instant) -> Result<()> {
    acquire(link, own, deadline)?;
    let foreign = |key: &u64| *key != own && !nexus::is_of_this_process(*key);
    let mut must_reset = false;
    for key in keys(link, deadline)?.into_iter().filter(foreign) {
        match link.reserve(ReserveOut::PreemptAndAbort, own, key, deadline) {
            Ok(_) => {}
            // The target has no such action. Without it, commands that are being executed go on.
            Err(failure) if failure.fault == Some(Fault::IllegalRequest) => {
                remove(link, own, key, deadline)?;
                must_reset = true;
            }
            // It is gone.
            Err(failure) if failure.fault == Some(Fault::ReservationConflict) => {}
            Err(failure) => return Err(failure.into()),
        }
        tracing::info!(path = link.name, key, "fenced another owner");
    }
    if must_reset {
        link.reset_unit(deadline)?;
    }
    // The reservation may have belonged to one of them.
    acquire(link, own, deadline)?;
    if keys(link, deadline)?.iter().any(foreign) {
        let why = "another machine registers with the target again and again, or the target does \
                   not remove its key";
        return Err(Error::new(ErrorKind::Busy, &link.name, why));
    }
    Ok(())
}

/// Ensures that the unit accepts writes only from registered initiators.
pub(crate) fn acquire(link: &mut Link, key: u64, deadline: Instant) -> Result<()> {
    if reservation(link, deadline)?.is_none() {
        match link.reserve(ReserveOut::Reserve, key, 0, deadline) {
            // Another of our connections reserved first.
            Err(failure) if failure.fault == Some(Fault::ReservationConflict) => {}
            result => drop(result?),
        }
    }
    match reservation(link, deadline)? {
        Some(held) if held.kind == WRITE_EXCLUSIVE_REGISTRANTS_ONLY => Ok(()),
        held => {
            let why = match held {
                Some(held) => format!(
                    "another initiator holds a reservation of type {}",
                    held.kind
                ),
                None => "the target does not keep a reservation".into(),
            };
            Err(Error::new(ErrorKind::Busy, &link.name, why))
        }
    }
}

fn keys(link: &mut Link, deadline: Instant) -> Result<Vec<u64>> {
    let cdb = persistent_reserve_in(ReserveIn::ReadKeys, KEYS_BYTES);
    let data = link.command(&cdb, &Data::In(KEYS_BYTES.into()), deadline)?;
    let keys = parse_keys(&data).ok_or_else(|| link.senseless("PERSISTENT RESERVE IN"))?;
    Ok(keys.keys)
}

fn reservation(link: &mut Link, deadline: Instant) -> Result<Option<Reservation>> {
    let cdb = persistent_reserve_in(ReserveIn::ReadReservation, 24);
    let data = link.command(&cdb, &Data::In(24), deadline)?;
    parse_reservation(&data).ok_or_else(|| link.senseless("PERSISTENT RESERVE IN"))
}
