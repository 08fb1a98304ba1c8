//! The volume location service (service 52 at port 7003; `src/vlserver/vldbint.xg`,
//! `vl_opcodes.h`).
//!
//! A volume is requested by name (`root.cell`, `root.cell.readonly`) or by number; clients also
//! send the number in decimal digits as a name. Three generations of entries are in use: `O` of 8
//! servers, `N` of 13, `U` of 13 with UUIDs instead of addresses, which `GetAddrsU` then resolves.

mod entry;

pub use entry::{
    NvldbEntry, SITES_MAX, SITES_MAX_O, Site, UvldbEntry, UvldbSite, VldbEntry, VolumeEntry,
    VolumeName, site_flag, volume_flag,
};

use crate::xdr::{List, Text, Xdr};
use crate::{Capabilities, Uuid};
use std::net::Ipv4Addr;

/// Rx service number.
pub const SERVICE: u16 = 52;
/// UDP port of a volume location server.
pub const PORT: u16 = 7003;

/// Volume name in a request (`VL_MAXNAMELEN`, which includes a zero byte that is not sent).
pub type NameWanted<'a> = Text<'a, 65>;
/// Addresses of one server. The definition sets no limit; OpenAFS stores 15
/// (`VL_MAXIPADDRS_PERMH`), and Linux uses no more than about forty.
pub type BulkAddrs = List<Ipv4Addr, 64>;

/// Any type, in a request by volume number. The other types are 0 for the read-write volume, 1 for
/// a replica, 2 for a backup.
pub const ANY_TYPE: i32 = -1;

procedures! {
    'a;
    /// Call of the volume location service: opcode and arguments.
    pub enum Request<'a>;
    /// Results of a call that did not end with an [`Abort`](crate::Abort).
    pub enum Reply;

    /// Looks up the location of a volume by number.
    503 GetEntryByIDO { volume: u32, kind: i32 } => { entry: VldbEntry }
    /// Looks up the location of a volume by name.
    504 GetEntryByNameO { volume_name: NameWanted<'a> } => { entry: VldbEntry }
    /// Checks that the server responds.
    514 ProbeServer {} => {}
    /// Looks up the location of a volume by number.
    518 GetEntryByIDN { volume: u32, kind: i32 } => { entry: NvldbEntry }
    /// Looks up the location of a volume by name.
    519 GetEntryByNameN { volume_name: NameWanted<'a> } => { entry: NvldbEntry }
    /// Looks up the location of a volume by number. Listed in OpenAFS's opcodes, not in its
    /// interface definition.
    526 GetEntryByIDU { volume: u32, kind: i32 } => { entry: Box<UvldbEntry> }
    /// Looks up the location of a volume by name.
    527 GetEntryByNameU { volume_name: NameWanted<'a> } => { entry: Box<UvldbEntry> }
    /// Looks up the addresses of a server.
    533 GetAddrsU { wanted: ListAddrByAttributes }
        => { uuid: Uuid, uniquifier: u32, count: u32, addresses: BulkAddrs }
    /// Queries the server's capabilities. Called by Linux; OpenAFS has no such procedure.
    65537 GetCapabilities {} => { capabilities: Capabilities }
}

structure! {
    /// Selects a server: 15 words.
    pub struct ListAddrByAttributes {
        /// Valid fields: bits of [`address_by`]. The UUID excludes the others.
        mask: u32,
        /// One of the server's addresses.
        address: Ipv4Addr,
        /// Index in the location server's table, from 1.
        index: u32,
        /// Reserved; 0.
        spare: u32,
        /// UUID of the server.
        uuid: Uuid,
    }
}

/// Bits of [`ListAddrByAttributes::mask`].
pub mod address_by {
    /// `VLADDR_IPADDR`.
    pub const ADDRESS: u32 = 1;
    /// `VLADDR_INDEX`.
    pub const INDEX: u32 = 2;
    /// `VLADDR_UUID`.
    pub const UUID: u32 = 4;
}
