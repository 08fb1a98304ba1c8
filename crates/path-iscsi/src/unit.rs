//! What a logical unit says about itself, asked while a connection is made.

use crate::link::{Data, Failure, Link};
use crate::options::Options;
use block::{Access, DeviceInfo, Error, ErrorKind, Identity, Result};
use iscsi_proto::scsi::{
    Capacity, DeviceId, Fault, Inquiry, Limits, ModeSense, access_of, cdb, device_ids,
    parse_capacity10, parse_capacity16, parse_inquiry, parse_limits, parse_mode_sense, parse_pages,
    parse_port_groups, parse_provisioning, parse_serial, target_port_group, wwid,
};
use std::time::Instant;

/// Bytes for a page of vital product data.
const PAGE_BYTES: u16 = 1024;
/// Most blocks in one WRITE SAME where the target names no limit, as with ten bytes.
const SAME_BLOCKS: u64 = 0xffff;
/// A length at which transfers run well, where the target names none.
const OPTIMAL_BYTES: u32 = 64 * 1024;
/// Bytes for the list of target port groups: 682 of one port each.
const GROUPS_BYTES: u32 = 8192;

/// How requests become commands. Lengths are bytes.
#[derive(Debug, Clone)]
pub(crate) struct Unit {
    pub(crate) block: u32,
    /// Commands of sixteen bytes work.
    pub(crate) wide: bool,
    /// FUA works.
    pub(crate) fua: bool,
    pub(crate) volatile_cache: bool,
    /// WRITE SAME is worth trying.
    pub(crate) write_same: bool,
    /// Most in one WRITE SAME.
    pub(crate) same_max: u64,
    /// WRITE SAME may unmap and then reads as zeros.
    pub(crate) same_unmap_zeros: bool,
    /// How a range is given back.
    pub(crate) discard: Discard,
    /// Most in one UNMAP.
    pub(crate) unmap_max: u64,
}

/// The command that gives a range back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Discard {
    None,
    Unmap,
    WriteSame,
}

/// Everything a connection knows.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) unit: Unit,
    pub(crate) info: DeviceInfo,
    pub(crate) identity: Identity,
    /// The target makes a difference between its ports.
    pub(crate) alua: bool,
}

/// Asks. `fallback_wwid` stands in where the unit names none.
pub(crate) fn ask(
    link: &mut Link,
    options: &Options,
    fallback_wwid: String,
    deadline: Instant,
) -> Result<Found> {
    let inquiry = inquiry(link, deadline)?;
    if !inquiry.is_disk {
        let why = "no disk answers at this LUN; look which LUNs the target has";
        return Err(Error::new(ErrorKind::NotFound, &link.name, why));
    }
    link.command(&cdb::test_unit_ready(), &Data::None, deadline)?;
    let (capacity, wide) = capacity(link, deadline)?;
    let pages = page(link, 0x00, deadline)?.and_then(|p| parse_pages(&p));
    let pages = pages.unwrap_or_default();
    let mut ask_page = |code| {
        if pages.contains(&code) {
            page(link, code, deadline)
        } else {
            Ok(None)
        }
    };
    let serial = ask_page(0x80)?.and_then(|p| parse_serial(&p));
    let ids = ask_page(0x83)?.map(|p| device_ids(&p)).unwrap_or_default();
    let limits = ask_page(0xb0)?.and_then(|p| parse_limits(&p));
    let provisioning = ask_page(0xb2)?.and_then(|p| parse_provisioning(&p));
    let (limits, provisioning) = (limits.unwrap_or_default(), provisioning.unwrap_or_default());
    let mode = mode(link, deadline)?;
    let access = access(link, inquiry.alua, &ids, deadline)?;
    let read_only = mode.write_protected || options.read_only;
    let block = capacity.block_bytes;
    let size = capacity.blocks.checked_mul(u64::from(block));
    let (true, Some(size)) = (
        block.is_power_of_two() && (512..=65536).contains(&block),
        size,
    ) else {
        let why = format!("blocks of {block} bytes are not supported; use 512 to 65536");
        return Err(Error::new(ErrorKind::Unsupported, &link.name, why));
    };
    let discard = match (provisioning.unmap, provisioning.write_same_unmap) {
        _ if read_only => Discard::None,
        (true, _) => Discard::Unmap,
        (false, true) if wide => Discard::WriteSame,
        _ => Discard::None,
    };
    let bytes = |blocks: u64| blocks.saturating_mul(u64::from(block));
    let unit = Unit {
        block,
        wide,
        fua: mode.fua,
        volatile_cache: mode.write_cache.unwrap_or(true),
        write_same: wide,
        same_max: bytes(match limits.write_same_max {
            0 => SAME_BLOCKS,
            max => max.min(u64::from(u32::MAX)),
        }),
        same_unmap_zeros: provisioning.write_same_unmap && provisioning.reads_zeros,
        discard,
        unmap_max: bytes(match limits.unmap_max {
            0 => SAME_BLOCKS,
            max => u64::from(max),
        }),
    };
    let identity = Identity {
        wwid: wwid(&ids),
        serial,
        vendor: inquiry.vendor,
        product: inquiry.product,
        size,
        logical_block_size: block,
        read_only,
        access,
    };
    let info = DeviceInfo {
        name: link.name.clone(),
        wwid: identity.wwid.clone().unwrap_or(fallback_wwid),
        size,
        logical_block_size: block,
        optimal_io_size: optimal(&limits, block),
        max_transfer: max_transfer(&limits, block, wide, options.max_transfer),
        volatile_write_cache: unit.volatile_cache,
        read_only,
        discard: discard != Discard::None,
        numa_node: None,
    };
    Ok(Found {
        unit,
        info,
        identity,
        alua: inquiry.alua,
    })
}

/// The access that this port gives. A port that gives none answers this all the same (SPC-4, section
/// 5.15.2.4). `None`: the target makes no difference between its ports.
pub(crate) fn ask_access(link: &mut Link, deadline: Instant) -> Result<Option<Access>> {
    if !inquiry(link, deadline)?.alua {
        return Ok(None);
    }
    let ids = page(link, 0x83, deadline)?.map(|p| device_ids(&p));
    access(link, true, &ids.unwrap_or_default(), deadline).map(Some)
}

pub(crate) fn inquiry(link: &mut Link, deadline: Instant) -> Result<Inquiry> {
    let data = link.command(&cdb::inquiry(None, 96), &Data::In(96), deadline)?;
    parse_inquiry(&data).ok_or_else(|| link.senseless("INQUIRY"))
}

fn optimal(limits: &Limits, block: u32) -> u32 {
    match limits.transfer_optimal.checked_mul(block) {
        None | Some(0) => OPTIMAL_BYTES.max(block),
        Some(bytes) => bytes,
    }
}

/// The least of what the unit, the command's count of blocks and the options allow.
fn max_transfer(limits: &Limits, block: u32, wide: bool, wanted: u32) -> u32 {
    let mut blocks = (wanted / block).max(1);
    if limits.transfer_max > 0 {
        blocks = blocks.min(limits.transfer_max);
    }
    if !wide {
        blocks = blocks.min(0xffff);
    }
    blocks * block
}

/// A unit that does not know the command gives `None`.
fn optional(result: std::result::Result<Vec<u8>, Failure>) -> Result<Option<Vec<u8>>> {
    match result {
        Ok(data) => Ok(Some(data)),
        Err(failure) if failure.fault == Some(Fault::IllegalRequest) => Ok(None),
        Err(failure) => Err(failure.error),
    }
}

fn page(link: &mut Link, code: u8, deadline: Instant) -> Result<Option<Vec<u8>>> {
    let cdb = cdb::inquiry(Some(code), PAGE_BYTES);
    optional(link.command(&cdb, &Data::In(PAGE_BYTES.into()), deadline))
}

fn capacity(link: &mut Link, deadline: Instant) -> Result<(Capacity, bool)> {
    let wide = optional(link.command(&cdb::read_capacity16(32), &Data::In(32), deadline))?;
    if let Some(capacity) = wide.and_then(|data| parse_capacity16(&data)) {
        return Ok((capacity, true));
    }
    let narrow = link.command(&cdb::read_capacity10(), &Data::In(8), deadline)?;
    match parse_capacity10(&narrow) {
        Some(capacity) => Ok((capacity, false)),
        None => Err(link.senseless("READ CAPACITY")),
    }
}

/// The caching page, or whatever page there is for the protection alone.
fn mode(link: &mut Link, deadline: Instant) -> Result<ModeSense> {
    for page in [0x08, 0x3f] {
        let cdb = cdb::mode_sense6(page, 255);
        let answer = link.command(&cdb, &Data::In(255), deadline);
        // Where others hold a reservation, a stranger is not told.
        if let Err(failure) = &answer
            && failure.fault == Some(Fault::ReservationConflict)
        {
            break;
        }
        if let Some(data) = optional(answer)? {
            return parse_mode_sense(&data).ok_or_else(|| link.senseless("MODE SENSE"));
        }
    }
    Ok(ModeSense::default())
}

fn access(link: &mut Link, alua: bool, ids: &[DeviceId], deadline: Instant) -> Result<Access> {
    if !alua {
        return Ok(Access::Optimized);
    }
    let cdb = cdb::report_target_port_groups(GROUPS_BYTES);
    let groups = optional(link.command(&cdb, &Data::In(GROUPS_BYTES), deadline))?;
    let groups = parse_port_groups(&groups.unwrap_or_default());
    Ok(match access_of(&groups, target_port_group(ids)) {
        None | Some(0) => Access::Optimized,
        // 4 depends on the block.
        Some(1 | 4) => Access::NonOptimized,
        Some(2) => Access::Standby,
        Some(15) => Access::Transitioning,
        Some(_) => Access::Unavailable,
    })
}
