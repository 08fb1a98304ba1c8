//! Where a volume is: one question to the volume location service.

use crate::error::{Error, Result};
use afs_proto::vl::{self, Reply, Request};
use afs_proto::{Reader, gather, to_bytes};
use rx::{Port, Settings, Timeouts};
use std::net::{Ipv4Addr, SocketAddr};

/// A volume, as the location service knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The number of the volume that is written.
    pub volume: u32,
    /// The file servers that have it.
    pub servers: Vec<Ipv4Addr>,
}

/// Asks the location service at `server` for a volume by its name, or its number in decimal digits.
///
/// # Errors
/// The server's code, `VL_NOENT` for one that is not there; no port, or no answer.
pub fn locate(server: SocketAddr, volume: &str) -> Result<Found> {
    let settings = Settings {
        listen: (Ipv4Addr::UNSPECIFIED, 0).into(),
        ..Settings::default()
    };
    let port = Port::open(&settings, Vec::new()).map_err(|_| Error::Broken(rx::Error::Stopped))?;
    let connection = port.connect(server, vl::SERVICE, Timeouts::default());
    let request = Request::GetEntryByNameN {
        volume_name: vl::NameWanted::new(volume.as_bytes())?,
    };
    let bytes = connection.ask(to_bytes(&request), gather::REPLY_BYTES_MAX)?;
    match vl::read_reply(request.opcode(), &mut Reader::new(&bytes))? {
        Reply::GetEntryByNameN { entry } => Ok(Found {
            volume: entry.volumes[0],
            servers: entry.sites.iter().map(|site| site.server).collect(),
        }),
        _ => Err(Error::Nonsense("the reply to another question")),
    }
}
