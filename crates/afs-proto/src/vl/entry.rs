//! Location of a volume, in three generations of the entry format.
//!
//! On the wire an entry is a set of fixed-length columns: all servers, then all partitions, and so
//! on. Here it is a list of sites, which rules out inconsistent counts.

use crate::xdr::{List, Reader, Xdr};
use crate::{Result, Uuid, WireError};
use std::fmt;
use std::net::Ipv4Addr;

/// Maximum number of servers of an `O` entry (`OMAXNSERVERS`).
pub const SITES_MAX_O: usize = 8;
/// Maximum number of servers of an `N` or `U` entry (`NMAXNSERVERS`).
pub const SITES_MAX: usize = 13;

/// Entry of the first generation: 96 words.
pub type VldbEntry = VolumeEntry<Site, SITES_MAX_O>;
/// Entry of the second generation: 119 words.
pub type NvldbEntry = VolumeEntry<Site, SITES_MAX>;
/// Entry of the third generation: 262 words.
pub type UvldbEntry = VolumeEntry<UvldbSite, SITES_MAX>;

/// Locations of a volume and its replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeEntry<S, const SITES: usize> {
    /// Name of the read-write volume.
    pub name: VolumeName,
    /// Servers that store the volume.
    pub sites: List<S, SITES>,
    /// Numbers of the read-write volume, its replica and its backup; 0 if nonexistent.
    pub volumes: [u32; 3],
    /// Number of a clone in progress.
    pub clone: u32,
    /// Bits of [`volume_flag`].
    pub flags: u32,
}

/// Server of a volume, identified by its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// IPv4 address of the server.
    pub server: Ipv4Addr,
    /// Partition: 0 for `/vicepa`.
    pub partition: u32,
    /// Bits of [`site_flag`].
    pub flags: u32,
}

/// Server of a volume, identified by its UUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UvldbSite {
    /// UUID of the server.
    pub server: Uuid,
    /// Counter that increases when the server's addresses change.
    pub unique: u32,
    /// Partition: 0 for `/vicepa`.
    pub partition: u32,
    /// Bits of [`site_flag`], among them [`site_flag::UUID`].
    pub flags: u32,
}

/// Bits of a site's `flags` (`VLSF_*`).
pub mod site_flag {
    /// The replica is not populated yet.
    pub const NEWREPSITE: u32 = 1;
    /// The site stores the replica.
    pub const ROVOL: u32 = 2;
    /// The site stores the read-write volume.
    pub const RWVOL: u32 = 4;
    /// The site stores the backup.
    pub const BACKVOL: u32 = 8;
    /// The server is identified by its UUID (`VLSERVER_FLAG_UUID`).
    pub const UUID: u32 = 16;
    /// The site must not be used at present.
    pub const DONTUSE: u32 = 32;
}

/// Bits of an entry's `flags` (`VLF_*`).
pub mod volume_flag {
    /// The read-write volume exists.
    pub const RWEXISTS: u32 = 0x1000;
    /// A replica exists.
    pub const ROEXISTS: u32 = 0x2000;
    /// A backup exists.
    pub const BACKEXISTS: u32 = 0x4000;
}

impl<'a> Xdr<'a> for VldbEntry {
    fn read(from: &mut Reader<'a>) -> Result<Self> {
        let name = VolumeName::read(from)?;
        let _spare = u32::read(from)?;
        read_rest(name, from)
    }
    fn write(&self, to: &mut Vec<u8>) {
        self.name.write(to);
        0u32.write(to);
        write_rest(self, to);
    }
}

/// Entries of the second and the third generation.
impl<'a, S: Columns> Xdr<'a> for VolumeEntry<S, SITES_MAX> {
    fn read(from: &mut Reader<'a>) -> Result<Self> {
        let entry = read_rest(VolumeName::read(from)?, from)?;
        let _spare = <[u32; 9]>::read(from)?;
        Ok(entry)
    }
    fn write(&self, to: &mut Vec<u8>) {
        self.name.write(to);
        write_rest(self, to);
        [0u32; 9].write(to);
    }
}

/// Reads the part after the name, common to all three formats: site count, columns, volumes, flags.
fn read_rest<S: Columns, const SITES: usize>(
    name: VolumeName,
    from: &mut Reader<'_>,
) -> Result<VolumeEntry<S, SITES>> {
    let count = from.count("a list of servers", SITES)?;
    let mut sites = S::read_columns::<SITES>(from)?;
    sites.truncate(count);
    Ok(VolumeEntry {
        name,
        sites: List::new(sites)?,
        volumes: Xdr::read(from)?,
        clone: Xdr::read(from)?,
        flags: Xdr::read(from)?,
    })
}

fn write_rest<S: Columns, const SITES: usize>(entry: &VolumeEntry<S, SITES>, to: &mut Vec<u8>) {
    entry.sites.write_count(to);
    S::write_columns::<SITES>(&entry.sites, to);
    entry.volumes.write(to);
    entry.clone.write(to);
    entry.flags.write(to);
}

/// Encoding of sites as columns of `N` elements, the unused ones zero.
trait Columns: Sized {
    fn read_columns<const N: usize>(from: &mut Reader<'_>) -> Result<Vec<Self>>;
    fn write_columns<const N: usize>(sites: &[Self], to: &mut Vec<u8>);
}

impl Columns for Site {
    fn read_columns<const N: usize>(from: &mut Reader<'_>) -> Result<Vec<Self>> {
        let servers = <[u32; N]>::read(from)?;
        let partitions = <[u32; N]>::read(from)?;
        let flags = <[u32; N]>::read(from)?;
        let rows = servers.into_iter().zip(partitions).zip(flags);
        let site = |((server, partition), flags): ((u32, u32), u32)| Site {
            server: server.into(),
            partition,
            flags,
        };
        Ok(rows.map(site).collect())
    }

    fn write_columns<const N: usize>(sites: &[Self], to: &mut Vec<u8>) {
        column::<_, u32, N>(sites, |site| site.server.into()).write(to);
        column::<_, u32, N>(sites, |site| site.partition).write(to);
        column::<_, u32, N>(sites, |site| site.flags).write(to);
    }
}

impl Columns for UvldbSite {
    fn read_columns<const N: usize>(from: &mut Reader<'_>) -> Result<Vec<Self>> {
        let servers = <[Uuid; N]>::read(from)?;
        let uniques = <[u32; N]>::read(from)?;
        let partitions = <[u32; N]>::read(from)?;
        let flags = <[u32; N]>::read(from)?;
        let rows = servers.into_iter().zip(uniques).zip(partitions).zip(flags);
        let site = |(((server, unique), partition), flags)| UvldbSite {
            server,
            unique,
            partition,
            flags,
        };
        Ok(rows.map(site).collect())
    }

    fn write_columns<const N: usize>(sites: &[Self], to: &mut Vec<u8>) {
        column::<_, Uuid, N>(sites, |site| site.server).write(to);
        column::<_, u32, N>(sites, |site| site.unique).write(to);
        column::<_, u32, N>(sites, |site| site.partition).write(to);
        column::<_, u32, N>(sites, |site| site.flags).write(to);
    }
}

fn column<S, T: Default + Copy, const N: usize>(sites: &[S], value: fn(&S) -> T) -> [T; N] {
    let mut column = [T::default(); N];
    for (place, site) in column.iter_mut().zip(sites) {
        *place = value(site);
    }
    column
}

/// Length of a volume's name including its terminating zero byte (`VL_MAXNAMELEN`).
const NAME_PLACES: usize = 65;

/// Name of a volume in an entry. On the wire it takes 65 words, one for each `char`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct VolumeName([u8; NAME_PLACES]);

impl VolumeName {
    /// Creates a name of at most 64 bytes, without a zero byte.
    pub fn new(name: &[u8]) -> Result<VolumeName> {
        let (what, length, max) = ("a volume's name", name.len(), NAME_PLACES - 1);
        if length > max {
            return Err(WireError::TooLong { what, length, max });
        }
        if name.contains(&0) {
            return Err(WireError::ZeroInString);
        }
        let mut places = [0; NAME_PLACES];
        for (place, byte) in places.iter_mut().zip(name) {
            *place = *byte;
        }
        Ok(VolumeName(places))
    }

    /// Returns the name without its padding.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

impl fmt::Debug for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

impl<'a> Xdr<'a> for VolumeName {
    fn read(from: &mut Reader<'a>) -> Result<Self> {
        let words = <[u32; NAME_PLACES]>::read(from)?;
        let low = words.map(|word| {
            let [.., low] = word.to_be_bytes();
            low
        });
        let name = low.split(|byte| *byte == 0).next().unwrap_or_default();
        VolumeName::new(name)
    }

    fn write(&self, to: &mut Vec<u8>) {
        self.0.map(u32::from).write(to);
    }
}
