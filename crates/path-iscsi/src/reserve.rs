//! The fence: each connection registers a key of its own, and the unit takes writes only from
//! sessions with a registered key. Preempting a key stops what its session has sent and the target
//! has not carried out (SPC-4, section 5.12.11).
//!
//! On targets that keep a registration beyond its session, what is left of lost sessions and of
//! processes that died is preempted by the next that registers, or by the last that leaves.

use crate::link::{Data, Failure, Link};
use crate::nexus;
use block::{Error, ErrorKind, Result};
use iscsi_proto::scsi::cdb::{
    ReserveIn, ReserveOut, WRITE_EXCLUSIVE_REGISTRANTS_ONLY, persistent_reserve_in,
    persistent_reserve_out,
};
use iscsi_proto::scsi::{Fault, Reservation, parse_keys, parse_reservation, reserve_out};
use std::time::Instant;

/// Bytes for the list of keys: 1,023 of them.
const KEYS_BYTES: u16 = 8 + 1023 * 8;

/// Registers a key of its own, whatever the session before had, and makes sure that the reservation
/// is there.
pub(crate) fn register(link: &mut Link, initiator: &str, deadline: Instant) -> Result<u64> {
    let before = link.key;
    let key = nexus::new_key(initiator);
    // From here on it may be there, whatever is heard.
    link.key = Some(key);
    out(link, ReserveOut::RegisterAndIgnore, 0, key, deadline)?;
    hold(link, key, deadline)?;
    if let Some(before) = before {
        remove(link, key, before, deadline)?;
        nexus::ended(before);
    }
    Ok(key)
}

/// Removes the registration of `key`, if it exists. `own` is this session's key. A session that takes
/// the place of another one needs it on targets where the new key does not replace the old (tgt).
fn remove(link: &mut Link, own: u64, key: u64, deadline: Instant) -> Result<()> {
    if !keys(link, deadline)?.contains(&key) {
        return Ok(());
    }
    match out(link, ReserveOut::Preempt, own, key, deadline) {
        // Another of our connections was faster.
        Err(failure) if failure.fault == Some(Fault::ReservationConflict) => Ok(()),
        result => Ok(result.map(drop)?),
    }
}

/// Removes the registrations that nobody uses any more. `own` is this session's key.
pub(crate) fn sweep(link: &mut Link, own: u64, initiator: &str, deadline: Instant) -> Result<()> {
    for key in keys(link, deadline)? {
        if key != own && nexus::is_left_over(key, initiator) {
            remove(link, own, key, deadline)?;
            tracing::info!(
                path = link.name,
                "a registration that was left behind is removed"
            );
        }
    }
    Ok(())
}

/// Removes the registration of `key`, which is this session's.
pub(crate) fn unregister(link: &mut Link, key: u64, deadline: Instant) -> Result<()> {
    match out(link, ReserveOut::Register, key, 0, deadline) {
        // Preempted by somebody: the registration is gone already.
        Err(failure) if failure.fault == Some(Fault::ReservationConflict) => Ok(()),
        result => Ok(result.map(drop)?),
    }
}

/// Removes `lost`, the key of another session, so that nothing sent under it is carried out any
/// more. `own` is this session's key.
pub(crate) fn preempt(link: &mut Link, own: u64, lost: u64, deadline: Instant) -> Result<()> {
    hold(link, own, deadline)?;
    if keys(link, deadline)?.contains(&lost) {
        out(link, ReserveOut::Preempt, own, lost, deadline)?;
    }
    // The reservation may have been the lost session's; then it is ours now.
    hold(link, own, deadline)?;
    if keys(link, deadline)?.contains(&lost) {
        let why = "the target did not remove the lost connection's key";
        return Err(Error::new(ErrorKind::Unsupported, &link.name, why));
    }
    Ok(())
}

/// Makes sure that the unit takes writes only from who has registered.
pub(crate) fn hold(link: &mut Link, key: u64, deadline: Instant) -> Result<()> {
    if reservation(link, deadline)?.is_none() {
        match out(link, ReserveOut::Reserve, key, 0, deadline) {
            // Another of our connections was faster.
            Err(failure) if failure.fault == Some(Fault::ReservationConflict) => {}
            result => drop(result?),
        }
    }
    match reservation(link, deadline)? {
        Some(held) if held.kind == WRITE_EXCLUSIVE_REGISTRANTS_ONLY => Ok(()),
        held => {
            let why = match held {
                Some(held) => format!("a reservation of type {} is held by another", held.kind),
                None => "the target does not keep a reservation".into(),
            };
            Err(Error::new(ErrorKind::Busy, &link.name, why))
        }
    }
}

fn out(
    link: &mut Link,
    action: ReserveOut,
    key: u64,
    action_key: u64,
    deadline: Instant,
) -> std::result::Result<Vec<u8>, Failure> {
    let data = reserve_out(key, action_key);
    link.command(&persistent_reserve_out(action), &Data::Out(&data), deadline)
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
