//! The callback service, which a client serves and a file server calls (service 1, at the port that
//! the client calls from; `src/fsint/afscbint.xg`).
//!
//! `TellMeAboutYourself` and `WhoAreYou` are how a server finds out that two addresses are one
//! client. `InitCallBackState3` ends all promises: a server says it to a client that it does not
//! know, since it may have made promises before it was restarted.

use crate::types::{AfsCbFids, AfsCbs};
use crate::xdr::{List, Reader, Xdr};
use crate::{Capabilities, Result, Uuid};
use std::net::Ipv4Addr;

/// Number of the service within Rx.
pub const SERVICE: u16 = 1;
/// UDP port of a cache manager in the kernel. Others have ports of their own, so a server calls back
/// where it was called from.
pub const PORT: u16 = 7001;

procedures! {
    'a;
    /// A call to a client: the opcode and the arguments.
    pub enum Request;
    /// What a client gives back.
    pub enum Reply;

    /// Ends the promises for these files. There are as many callbacks as files, or none.
    204 CallBack { fids: AfsCbFids, callbacks: AfsCbs } => {}
    /// Ends all promises of the calling server, known by its address.
    205 InitCallBackState {} => {}
    /// Asks whether the client is there.
    206 Probe {} => {}
    /// As [`Request::InitCallBackState`], and asks who the client is; older than 213.
    211 InitCallBackState2 {} => { address: InterfaceAddr }
    /// Asks who the client is; older than 65538.
    212 WhoAreYou {} => { address: InterfaceAddr }
    /// Ends all promises of the server of that identity.
    213 InitCallBackState3 { server: Uuid } => {}
    /// Asks whether the client has that identity: 0 if it has, 1 if it has not.
    214 ProbeUuid { client: Uuid } => {}
    /// Asks who the client is, and what it is able to do.
    65538 TellMeAboutYourself {} => { address: InterfaceAddr, capabilities: Capabilities }
}

/// Addresses of a client at most (`AFS_MAX_INTERFACE_ADDR`).
pub const INTERFACES_MAX: usize = 32;

/// An address of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interface {
    /// The address.
    pub address: Ipv4Addr,
    /// The mask of its network.
    pub mask: Ipv4Addr,
    /// Bytes that a packet there may have.
    pub mtu: u32,
}

/// Who a client is (`interfaceAddr`): 108 words: how many addresses, the identity, then 32 places each
/// for addresses, masks and MTUs, of which the first ones count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceAddr {
    /// Its identity, made anew when it starts.
    pub uuid: Uuid,
    /// Its addresses.
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
