//! A request on its way from a connection to a device and back.

use nbd_proto::RequestHeader;

/// A request that a connection has taken from its input.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    pub(crate) header: RequestHeader,
    /// Its slot, if a successor has to know it.
    pub(crate) slot: Option<u16>,
}
