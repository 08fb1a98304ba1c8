//! Location of a volume: one request to the volume location service.

use crate::error::{Error, Result};
use afs_proto::vl::{self, Reply, Request};
use afs_proto::{Reader, gather, to_bytes};
use rx::{Port, Settings, Timeouts};
use std::net::{Ipv4Addr, SocketAddr};

/// A volume, as known to the location service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeLocation {
    /// Id of the read-write volume.
    pub volume: u32,
    /// File servers that hold it.
    pub servers: Vec<Ipv4Addr>,
}

/// Looks up the location of a volume, by its name or its decimal id, at the location service at
/// `server`.
///
/// # Errors
/// The server's code, `VL_NOENT` for an unknown volume; no port, or no answer.
pub fn locate(server: SocketAddr, volume: &str) -> Result<VolumeLocation> {
    let settings = Settings {
        listen: (Ipv4Addr::UNSPECIFIED, 0).into(),
        ..Settings::default()
    };
    let port = Port::open(&settings, Vec::new()).map_err(|_| Error::Broken(rx::Error::Stopped))?;
    let connection = port.connect(server, vl::SERVICE, Timeouts::default());
    let request = Request::GetEntryByNameN {
        volume_name: vl::NameWanted::new(volume.as_bytes())?,
    };
    let bytes = connection.request(to_bytes(&request), gather::REPLY_BYTES_MAX)?;
    match vl::read_reply(request.opcode(), &mut Reader::new(&bytes))? {
        Reply::GetEntryByNameN { entry } => Ok(VolumeLocation {
            volume: entry.volumes[0],
            servers: entry.sites.iter().map(|site| site.server).collect(),
        }),
        _ => Err(Error::Nonsense("a reply of the wrong type")),
    }
}
