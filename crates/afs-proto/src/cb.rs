//! The callback service, served by a client and called by a file server (service 1, on the UDP port
//! from which the client calls; `src/fsint/afscbint.xg`).
//!
//! With `TellMeAboutYourself` and `WhoAreYou` a server detects that two addresses belong to one
//! client. `InitCallBackState3` ends all callback promises: a server sends it to an unknown client,
//! since it may have made promises to that client before a restart.

use crate::types::{AfsCbFids, AfsCbs};
use crate::xdr::{List, Reader, Xdr};
use crate::{Capabilities, Result, Uuid};
use std::net::Ipv4Addr;

/// Rx service number.
pub const SERVICE: u16 = 1;
/// UDP port of an in-kernel cache manager. Other cache managers use other ports, so a server calls
/// back to the source port of the client's calls.
pub const PORT: u16 = 7001;

procedures! {
    'a;
    /// Call to a client: opcode and arguments.
    pub enum Request;
    /// Results of a call to a client.
    pub enum Reply;

    /// Ends the promises for these files. There is one callback per file, or none at all.
    204 CallBack { fids: AfsCbFids, callbacks: AfsCbs } => {}
    /// Ends all promises of the calling server, identified by its address.
    205 InitCallBackState {} => {}
    /// Checks that the client responds.
    206 Probe {} => {}
    /// Ends all promises like [`Request::InitCallBackState`] and returns the client's identity;
    /// predecessor of 213.
    211 InitCallBackState2 {} => { address: InterfaceAddr }
    /// Queries the client's identity; predecessor of 65538.
    212 WhoAreYou {} => { address: InterfaceAddr }
    /// Ends all promises of the server with this identity.
    213 InitCallBackState3 { server: Uuid } => {}
    /// Compares the client's identity with `client`: 0 if equal, 1 if not.
    214 ProbeUuid { client: Uuid } => {}
    /// Queries the client's identity and capabilities.
    65538 TellMeAboutYourself {} => { address: InterfaceAddr, capabilities: Capabilities }
}

/// Maximum number of addresses of a client (`AFS_MAX_INTERFACE_ADDR`).
pub const INTERFACES_MAX: usize = 32;

/// Network interface of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interface {
    /// IPv4 address.
    pub address: Ipv4Addr,
    /// Network mask.
    pub mask: Ipv4Addr,
    /// Maximum packet size in bytes.
    pub mtu: u32,
}

/// Identity and addresses of a client (`interfaceAddr`): 108 words: number of addresses, UUID, then
/// 32 slots each for addresses, masks and MTUs, filled from the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceAddr {
    /// UUID, generated when the client starts.
    pub uuid: Uuid,
    /// Network interfaces.
    pub interfaces: List<Interface, INTERFACES_MAX>,
}

impl<'a> Xdr<'a> for InterfaceAddr {
    fn read(from: &mut Reader<'a>) -> Result<Self> {
        let count = from.count("a list of addresses", INTERFACES_MAX)?;
        let uuid = Uuid::read(from)?;
        let [addresses, masks, mtus] = <[[u32; INTERFACES_MAX]; 3]>::read(from)?;
        let columns = addresses.into_iter().zip(masks).zip(mtus);
        let interface = |((address, mask), mtu): ((u32, u32), u32)| Interface {
            address: address.into(),
            mask: mask.into(),
            mtu,
        };
        let interfaces = List::new(columns.take(count).map(interface).collect())?;
        Ok(InterfaceAddr { uuid, interfaces })
    }

    fn write(&self, to: &mut Vec<u8>) {
        let column = |value: fn(&Interface) -> u32| {
            let mut column = [0; INTERFACES_MAX];
            for (place, interface) in column.iter_mut().zip(self.interfaces.iter()) {
                *place = value(interface);
            }
            column
        };
        self.interfaces.write_count(to);
        self.uuid.write(to);
        column(|i| i.address.into()).write(to);
        column(|i| i.mask.into()).write(to);
        column(|i| i.mtu).write(to);
    }
}
