//! Security classes: the transformation of packet data between application and wire.
//!
//! The only built-in class is rxnull (index 0), which does nothing and costs nothing. A class that
//! encrypts implements [`Security`] for the buffers of its driver, and [`Acceptor`] for the server
//! side. The interface follows rxgk: a challenge and its response once per connection, a key number
//! in the checksum field, data sealed packet by packet and bound to the packet's position in the
//! protocol. Sealed packets are kept until they are acknowledged, so that none is sealed twice.
//!
//! rxkad is not implemented: its keys have 56 bits.

use crate::number::{CallNumber, Cid, Epoch, Seq};

/// Index of the class that does nothing.
pub const RXNULL: u8 = 0;

/// Position of a packet in the protocol, to which a class binds its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketPlace {
    /// Epoch of the connection.
    pub epoch: Epoch,
    /// Connection and channel.
    pub cid: Cid,
    /// Number of the call on the channel.
    pub call_number: CallNumber,
    /// Position in the stream.
    pub seq: Seq,
    /// Whether the client is the sender.
    pub from_client: bool,
}

/// Data of a packet in the form in which it is sent.
#[derive(Debug, Clone)]
pub struct Sealed<P> {
    /// Checksum field of the packet's header.
    pub checksum: u16,
    /// Bytes of the packet.
    pub payload: P,
}

/// Reason for which a class rejects a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecurityError {
    /// The packet is not authentic; it is ignored.
    #[error("the packet is not authentic")]
    Discard,
    /// The connection is aborted with this code.
    #[error("the security class aborts the connection with code {0}")]
    Abort(i32),
}

/// State of a class on one connection. `P` is the type of sent data, `D` that of received data.
pub trait Security<P, D>: Send {
    /// Returns the number of the class in packets.
    fn index(&self) -> u8;

    /// Returns how many application bytes fit a packet of `room` bytes.
    fn capacity(&self, room: usize) -> usize;

    /// Seals the data of one packet, at most [`Security::capacity`] bytes. A full packet must come
    /// out with exactly `room` bytes if it is to be part of a jumbogram.
    fn seal(&mut self, place: &PacketPlace, pieces: &[P]) -> Result<Sealed<P>, SecurityError>;

    /// Opens the data of one packet, before it is acknowledged.
    fn open(&mut self, place: &PacketPlace, checksum: u16, data: D) -> Result<D, SecurityError>;

    /// Creates the challenge that a server sends, or `None` if none is needed (any more).
    fn challenge(&mut self) -> Option<Vec<u8>>;

    /// Checks a response at a server. After `Ok`, [`Security::challenge`] returns `None`.
    fn check_response(&mut self, response: &[u8]) -> Result<(), SecurityError>;

    /// Computes a client's response to a challenge.
    fn respond(&mut self, challenge: &[u8]) -> Result<Vec<u8>, SecurityError>;

    /// Returns the identity of the peer in the class's own form, if known.
    fn identity(&self) -> Option<&[u8]>;
}

/// Factory for the server-side state of a class.
pub trait Acceptor<P, D>: Send {
    /// Returns the number of the class in packets.
    fn index(&self) -> u8;

    /// Creates the state for a new connection; `entropy` is fresh and unpredictable.
    fn accept(&mut self, epoch: Epoch, cid: Cid, entropy: [u32; 8]) -> Box<dyn Security<P, D>>;
}
