//! Proof that a path leads to the LUN, and the properties that its target reports.

use crate::access_query;
use crate::identity::{self, Proof};
use crate::path::SharedPath;
use crate::refusal::Refusal;
use crate::shared::Shared;
use crate::sync::lock;
use block::{DeviceInfo, Result};
use lunpath::Identity;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Records the properties that a path's target reports.
pub(crate) fn learn(shared: &Shared, path: &SharedPath, found: &Identity, info: &DeviceInfo) {
    // A path whose server reports another cache mode than the LUN does not keep the LUN's
    // promise: without FLUSH, nothing on that path makes a write durable.
    let other_cache = info.volatile_write_cache != shared.info.volatile_write_cache;
    let takes_none = found.read_only || other_cache;
    if takes_none && !found.read_only && !path.read_only.load(Relaxed) {
        let what = "accepts no writes: its cache mode (FLUSH) differs from the LUN's";
        shared.log.add(path.path.name(), what.into(), 0);
    }
    path.read_only.store(takes_none, Relaxed);
    access_query::note(shared, path, found.access);
    path.cell.store(info.numa_node.unwrap_or(u32::MAX), Relaxed);
}

/// Checks whether a nonce may be written through a path.
fn writable(shared: &Shared, reference: &SharedPath) -> bool {
    !lock(&shared.identity).read_only && !reference.read_only.load(Relaxed)
}

/// Checks whether a path can be proven by a nonce written through another path.
pub(crate) fn proves_by_nonce(shared: &Shared, reference: &SharedPath) -> bool {
    shared.proof != Proof::Compare && writable(shared, reference)
}

/// Compares two paths over new connections. Returns a refusal if they lead to different LUNs.
pub(crate) fn prove(
    shared: &Shared,
    reference: &SharedPath,
    path: &SharedPath,
) -> Result<Option<Refusal>> {
    let within = shared.connect_within;
    let proof = shared.proof;
    let identity = lock(&shared.identity).clone();
    let writable = writable(shared, reference);
    if identity::is_generic(identity.wwid.as_deref()) && writable && proof == Proof::Compare {
        let wwid = identity.wwid.as_deref().unwrap_or("none");
        return Ok(Some(Refusal::described(format!(
            "world-wide ID {wwid} may not be unique, and nothing on the LUN can prove that it \
             is the same; `evfs path replace-wwid` accepts the path"
        ))));
    }
    let mut ours = reference.path.connect(within)?.open()?;
    let mut theirs = path.path.connect(within)?.open()?;
    let until = Instant::now() + within;
    let proof = if writable { proof } else { Proof::Compare };
    let refuted = identity::prove(&mut *ours, &mut *theirs, proof, until);
    if refuted.is_err() {
        // The drop of a queue waits for requests in flight.
        let _ = ours.withdraw(identity::PROBE);
        let _ = theirs.withdraw(identity::PROBE);
    }
    Ok(refuted?.map(|why| Refusal {
        why,
        other_blocks: true,
    }))
}
