//! Properties of a logical unit, queried while a connection is set up.

use crate::link::{Data, Failure, Link};
use crate::options::Options;
use block::{DeviceInfo, Error, ErrorKind, Result};
use iscsi_proto::scsi::cdb::BlockRange;
use iscsi_proto::scsi::{
    Capacity, DeviceId, Fault, Inquiry, Limits, ModeSense, access_of, cdb, device_ids,
    parse_capacity10, parse_capacity16, parse_inquiry, parse_limits, parse_mode_sense, parse_pages,
    parse_port_groups, parse_provisioning, parse_serial, target_port_group, wwid,
};
use lunpath::{Access, Identity};
use std::time::Instant;

/// Allocation length for a page of vital product data.
const PAGE_BYTES: u16 = 1024;
/// Maximum blocks in one WRITE SAME or UNMAP if the target names no limit: the 16-bit limit of the
/// ten-byte commands.
const SAME_BLOCKS: u64 = 0xffff;
/// Optimal transfer length in bytes if the target names none.
const OPTIMAL_BYTES: u32 = 64 * 1024;
/// Allocation length for the list of target port groups: 682 groups of one port each.
const GROUPS_BYTES: u32 = 8192;

/// Parameters for translating requests to commands. Lengths are in bytes.
#[derive(Debug, Clone)]
pub(crate) struct Unit {
    pub(crate) block: u32,
    /// 16-byte commands are supported.
    pub(crate) wide: bool,
    /// FUA is supported.
    pub(crate) fua: bool,
    pub(crate) volatile_cache: bool,
    /// WRITE SAME may be supported; cleared when the target rejects it.
    pub(crate) write_same: bool,
    /// Maximum length of one WRITE SAME.
    pub(crate) same_max: u64,
    /// WRITE SAME can unmap, and unmapped blocks read as zeros.
    pub(crate) same_unmap_zeros: bool,
    /// Command for discards.
    pub(crate) discard: Discard,
    /// Maximum length of one UNMAP.
    pub(crate) unmap_max: u64,
}

impl Unit {
    /// Converts a range of bytes, which consists of whole blocks.
    #[inline]
    pub(crate) fn blocks(&self, offset: u64, len: u64) -> BlockRange {
        BlockRange::of_bytes(offset, len, self.block)
    }
}

/// Command that discards a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Discard {
    None,
    Unmap,
    WriteSame,
}

/// Properties of a unit as found by a connection.
#[derive(Debug, Clone)]
pub(crate) struct UnitProperties {
    pub(crate) unit: Unit,
    pub(crate) info: DeviceInfo,
    pub(crate) identity: Identity,
    /// The target reports asymmetric access states (ALUA).
    pub(crate) alua: bool,
}

/// Queries the unit. `fallback_wwid` is used if the unit reports no world-wide ID.
pub(crate) fn query(
    link: &mut Link,
    options: &Options,
    fallback_wwid: String,
    deadline: Instant,
) -> Result<UnitProperties> {
    let inquiry = inquiry(link, deadline)?;
    if !inquiry.is_disk {
        let why = "no disk at this LUN; check which LUNs the target has";
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
    let access = if inquiry.alua {
        access(link, &ids, deadline)?
    } else {
        Access::Optimized
    };
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
    Ok(UnitProperties {
        unit,
        info,
        identity,
        alua: inquiry.alua,
    })
}

/// Queries the access state of this port. A port without access answers this query too (SPC-4,
/// section 5.15.2.4). `None` means that all ports of the target are alike.
pub(crate) fn ask_access(link: &mut Link, deadline: Instant) -> Result<Option<Access>> {
    if !inquiry(link, deadline)?.alua {
        return Ok(None);
    }
    let ids = page(link, 0x83, deadline)?.map(|p| device_ids(&p));
    access(link, &ids.unwrap_or_default(), deadline).map(Some)
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

/// Computes the smallest of the limits of the unit, the command's block count and the options.
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

/// Maps an unsupported command to `None`.
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

/// Reads the caching page, or all pages (0x3f) for the write protection flag alone.
fn mode(link: &mut Link, deadline: Instant) -> Result<ModeSense> {
    for page in [0x08, 0x3f] {
        let cdb = cdb::mode_sense6(page, 255);
        let answer = link.command(&cdb, &Data::In(255), deadline);
        // Under another initiator's reservation, an unregistered initiator is refused.
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

/// Queries the access state of this port, one of the ports that `ids` names.
fn access(link: &mut Link, ids: &[DeviceId], deadline: Instant) -> Result<Access> {
    let cdb = cdb::report_target_port_groups(GROUPS_BYTES);
    let groups = optional(link.command(&cdb, &Data::In(GROUPS_BYTES), deadline))?;
    let groups = parse_port_groups(&groups.unwrap_or_default());
    Ok(match access_of(&groups, target_port_group(ids)) {
        None | Some(0) => Access::Optimized,
        // 4: depends on the logical block.
        Some(1 | 4) => Access::NonOptimized,
        Some(2) => Access::Standby,
        Some(15) => Access::Transitioning,
        Some(_) => Access::Unavailable,
    })
}
