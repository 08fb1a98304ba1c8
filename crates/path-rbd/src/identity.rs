//! Identity of an image.

use crate::address::RbdAddress;
use crate::errors::Failure;
use crate::handle::Image;
use lunpath::{Access, Identity};

/// Logical block size in bytes: the smallest unit that `librbd` reads and writes.
pub(crate) const BLOCK_BYTES: u32 = 512;

/// Queries the identity of an image. The cluster, the pool and the image are named by IDs, so that
/// an image keeps its identity when it is renamed, and a copy of it has another.
pub(crate) fn query(
    image: &Image,
    address: &RbdAddress,
    read_only: bool,
) -> Result<Identity, Failure> {
    let fsid = image.pool.cluster.fsid()?;
    let (pool, id) = (image.pool.id(), image.id()?);
    let mut wwid = format!("rbd.{fsid}.{pool}.{id}");
    if let Some(snapshot) = &address.snapshot {
        wwid = format!("{wwid}@{}", image.snapshot(snapshot)?);
    }
    let size = image.size()?;
    Ok(Identity {
        wwid: Some(wwid),
        // A gateway to the image would have to report it, too.
        serial: None,
        vendor: "Ceph".into(),
        product: "RBD".into(),
        size: size - size % u64::from(BLOCK_BYTES),
        logical_block_size: BLOCK_BYTES,
        read_only: read_only || address.snapshot.is_some(),
        access: Access::Optimized,
    })
}
