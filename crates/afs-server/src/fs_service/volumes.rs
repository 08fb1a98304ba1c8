//! Status of volumes and statistics of the server.

use super::RequestContext;
use crate::error::{CallResult, Fault};
use crate::shared::{ACTIVE_SECONDS, Shared};
use crate::volume::{Kind, Volume, VolumeId};
use afs_proto::fs::{
    AfsFetchVolumeStatus, AfsStoreVolumeStatus, DiskName, Reply, ViceDisk, ViceStatistics,
    ViceVolumeType, stats64,
};
use afs_proto::{Abort, List, Message, Name, Rights, WireError};
use fs::{Quota, ROOT};
use rx::Call;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Unit of quota and usage, in bytes.
const KIB: u64 = 1024;

/// Name of the partition reported to clients.
const PARTITION: &[u8] = b"/vicepa";

impl RequestContext<'_> {
    pub(super) fn volume_status(&self, call: &mut Call, id: VolumeId) -> CallResult<()> {
        let volume = self.volume_with(id, Rights::LOOKUP)?;
        let status = status(self.shared, &volume)?;
        super::write(
            call,
            &Reply::GetVolumeStatus {
                status,
                name: Name::new(volume.name.as_bytes())?,
                offline_message: Message::new(b"")?,
                motd: Message::new(b"")?,
            },
        )
    }

    pub(super) fn set_volume_status(
        &self,
        id: VolumeId,
        wanted: &AfsStoreVolumeStatus,
    ) -> CallResult<Reply<'static>> {
        let volume = self.volume_with(id, Rights::ADMINISTER)?;
        volume.check_writable()?;
        if let Some(quota) = wanted.max_quota.filter(|_| !self.turn.is_done()) {
            let quota = u64::try_from(quota).map_err(|_| Fault::Errno(libc::EINVAL))?;
            let files = volume.files.fileset();
            let quota = Quota {
                blocks: (quota * KIB).div_ceil(fs::BLOCK_BYTES),
                inodes: files.record()?.quota_inodes,
            };
            self.shared.volumes.fs().set_quota(files.id(), quota)?;
        }
        Ok(Reply::SetVolumeStatus {})
    }

    /// Looks up a volume on whose root the caller has the rights `wanted`.
    fn volume_with(&self, id: VolumeId, wanted: Rights) -> CallResult<Arc<Volume>> {
        let volume = self.shared.volumes.get(id).ok_or(Abort::VNOVOL)?;
        self.check(&volume, &volume.files.attr(ROOT)?, wanted)?;
        Ok(volume)
    }
}

fn status(shared: &Shared, volume: &Volume) -> CallResult<AfsFetchVolumeStatus> {
    let record = volume.files.fileset().record()?;
    let (free, all) = partition(shared);
    let used = record.used_blocks * fs::BLOCK_BYTES / KIB;
    Ok(AfsFetchVolumeStatus {
        volume: volume.id,
        parent: volume.parent,
        online: true,
        in_service: true,
        blessed: true,
        needs_salvage: false,
        kind: match volume.kind {
            Kind::ReadWrite => ViceVolumeType::ReadWrite,
            Kind::ReadOnly | Kind::Backup => ViceVolumeType::ReadOnly,
        },
        min_quota: 0,
        max_quota: kib(record.quota_blocks * fs::BLOCK_BYTES / KIB),
        blocks_in_use: kib(used),
        partition_blocks_available: free,
        partition_max_blocks: all,
    })
}

/// Computes free and total space in KiB.
fn partition(shared: &Shared) -> (i32, i32) {
    let usage = shared.volumes.fs().usage();
    let all = shared.volumes.fs().superblock().device_blocks;
    let in_kib = |blocks: u64| kib(blocks * (fs::BLOCK_BYTES / KIB));
    (in_kib(usage.available), in_kib(all))
}

/// Converts a number of KiB; the result saturates at 2 TiB.
fn kib(count: u64) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// Builds the reply with the 32-bit counters, which wrap around.
pub(super) fn statistics(shared: &Shared) -> Reply<'static> {
    let counts = shared.counters.read();
    let low = |count: u64| count as u32;
    let (clients, active) = shared.hosts.count(ACTIVE_SECONDS);
    let (blocks_available, total_blocks) = partition(shared);
    let mut disks = [ViceDisk::default(); 10];
    disks[0] = ViceDisk {
        blocks_available,
        total_blocks,
        name: DiskName::new(PARTITION).unwrap_or_default(),
    };
    let count = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    Reply::GetStatistics {
        statistics: Box::new(ViceStatistics {
            current_time: low(shared.clock().as_secs()),
            start_time: low(since_1970(shared.started)),
            total_calls: low(counts.calls),
            total_fetches: low(counts.fetches),
            fetch_datas: low(counts.fetched_data),
            fetched_bytes: low(counts.fetched_bytes),
            total_stores: low(counts.stores),
            store_datas: low(counts.stored_data),
            stored_bytes: low(counts.stored_bytes),
            workstations: count(clients),
            active_workstations: count(active),
            disks,
            ..ViceStatistics::default()
        }),
    }
}

/// Builds the reply with the 64-bit counters that the client's version knows.
pub(super) fn statistics64(shared: &Shared, version: i32) -> CallResult<Reply<'static>> {
    let known = usize::try_from(version).map_err(|_| WireError::Incomplete)?;
    let counts = shared.counters.read();
    let (clients, active) = shared.hosts.count(ACTIVE_SECONDS);
    let mut all = vec![0; stats64::COUNT];
    for (place, value) in [
        (stats64::CURRENT_TIME, shared.clock().as_secs()),
        (stats64::START_TIME, since_1970(shared.started)),
        (stats64::TOTAL_FETCHES, counts.fetches),
        (stats64::FETCH_DATAS, counts.fetched_data),
        (stats64::FETCHED_BYTES, counts.fetched_bytes),
        (stats64::TOTAL_STORES, counts.stores),
        (stats64::STORE_DATAS, counts.stored_data),
        (stats64::STORED_BYTES, counts.stored_bytes),
        (stats64::TOTAL_VICE_CALLS, counts.calls),
        (stats64::WORKSTATIONS, clients as u64),
        (stats64::ACTIVE_WORKSTATIONS, active as u64),
    ] {
        all[place] = value;
    }
    all.truncate(known);
    Ok(Reply::GetStatistics64 {
        statistics: List::new(all)?,
    })
}

fn since_1970(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.as_ref().map_or(0, Duration::as_secs)
}
