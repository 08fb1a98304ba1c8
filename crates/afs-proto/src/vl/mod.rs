//! The volume location service (service 52 at port 7003; `src/vlserver/vldbint.xg`,
//! `vl_opcodes.h`).
//!
//! A volume is asked for by name (`root.cell`, `root.cell.readonly`) or by number; clients also send
//! the number in decimal digits as a name. Three generations of entries are in use: `O` of 8 servers,
//! `N` of 13, `U` of 13 with identities instead of addresses, which `GetAddrsU` then resolves.

mod entry;

pub use entry::{
    NvldbEntry, SITES_MAX, SITES_MAX_O, Site, UvldbEntry, UvldbSite, VldbEntry, VolumeEntry,
    VolumeName, site_flag, volume_flag,
};

use crate::xdr::{List, Text, Xdr};
use crate::{Capabilities, Uuid};
use std::net::Ipv4Addr;

/// Number of the service within Rx.
pub const SERVICE: u16 = 52;
/// UDP port of a volume location server.
pub const PORT: u16 = 7003;

/// The name of a volume in a request (`VL_MAXNAMELEN`, which counts a zero byte that is not sent).
pub type NameWanted<'a> = Text<'a, 65>;
/// Addresses of one server. The definition has no limit; OpenAFS keeps 15 (`VL_MAXIPADDRS_PERMH`), and
/// Linux looks at no more than some forty.
pub type BulkAddrs = List<Ipv4Addr, 64>;

/// Any type, where a request asks for a volume by number. Otherwise 0 for the one that is written, 1
/// for a replica, 2 for a backup.
pub const ANY_TYPE: i32 = -1;

procedures! {
    'a;
    /// A call of the volume location service: the opcode and the arguments.
    pub enum Request<'a>;
    /// What a call gives back when it did not end with an [`Abort`](crate::Abort).
    pub enum Reply;

    /// Where a volume of that number is.
    503 GetEntryByIDO { volume: u32, kind: i32 } => { entry: VldbEntry }
    /// Where a volume of that name is.
    504 GetEntryByNameO { volume_name: NameWanted<'a> } => { entry: VldbEntry }
    /// Asks whether the server is there.
    514 ProbeServer {} => {}
    /// Where a volume of that number is.
    518 GetEntryByIDN { volume: u32, kind: i32 } => { entry: NvldbEntry }
    /// Where a volume of that name is.
    519 GetEntryByNameN { volume_name: NameWanted<'a> } => { entry: NvldbEntry }
    /// Where a volume of that number is. In OpenAFS's list of numbers, not in its definition.
    526 GetEntryByIDU { volume: u32, kind: i32 } => { entry: Box<UvldbEntry> }
    /// Where a volume of that name is.
    527 GetEntryByNameU { volume_name: NameWanted<'a> } => { entry: Box<UvldbEntry> }
    /// The addresses of a server.
    533 GetAddrsU { wanted: ListAddrByAttributes }
        => { uuid: Uuid, uniquifier: u32, count: u32, addresses: BulkAddrs }
    /// What the server is able to do. Linux asks; OpenAFS has no such procedure.
    65537 GetCapabilities {} => { capabilities: Capabilities }
}

structure! {
    /// Which server is meant: 15 words.
    pub struct ListAddrByAttributes {
        /// Which of the others count: bits of [`address_by`]. The identity excludes the others.
        mask: u32,
        /// One of its addresses.
        address: Ipv4Addr,
        /// Its place in the server's table, from 1 on.
        index: u32,
        /// 0.
        spare: u32,
        /// Its identity.
        uuid: Uuid,
    }
}

/// The bits of [`ListAddrByAttributes::mask`].
pub mod address_by {
    /// `VLADDR_IPADDR`.
    pub const ADDRESS: u32 = 1;
    /// `VLADDR_INDEX`.
    pub const INDEX: u32 = 2;
    /// `VLADDR_UUID`.
    pub const UUID: u32 = 4;
}
