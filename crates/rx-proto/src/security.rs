//! Security classes: what a packet's bytes go through between application and wire.
//!
//! The only class built in is rxnull (index 0), which does nothing and costs nothing. A class that
//! encrypts implements [`Security`] for the buffers of its driver, and [`Acceptor`] to take part as a
//! server. The shape is that of rxgk: a challenge and its response once per connection, a key number
//! in the checksum field, data sealed packet by packet with the packet's place in the protocol bound
//! to it. Sealed packets are kept until they arrived, so that none is sealed twice.
//!
//! rxkad is not built: its keys have 56 bits.

use crate::number::{CallNumber, Seq};

/// Index of the class that does nothing.
pub const RXNULL: u8 = 0;

/// Where in the protocol a packet is; a class binds data to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketPlace {
    /// Epoch of the connection.
    pub epoch: u32,
    /// Connection and channel.
    pub cid: u32,
    /// Call on the channel.
    pub call_number: CallNumber,
    /// Place in the stream.
    pub seq: Seq,
    /// Whether the client sends it.
    pub from_client: bool,
}

/// A packet's data as it is sent.
#[derive(Debug, Clone)]
pub struct Sealed<P> {
    /// The checksum field of its header.
    pub checksum: u16,
    /// Its bytes.
    pub payload: P,
}

/// Why a class refuses something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecurityError {
    /// The packet is not what its peer sent: as if it never came.
    #[error("the packet is not genuine")]
    Discard,
    /// The connection ends with this code.
    #[error("the security class ends the connection with code {0}")]
    Abort(i32),
}

/// A class at work on one connection. `P` is what is sent, `D` what is received.
pub trait Security<P, D>: Send {
    /// Number of the class in packets.
    fn index(&self) -> u8;

    /// Bytes of the application that fit a packet of `room` bytes.
    fn capacity(&self, room: usize) -> usize;

    /// Seals the data of one packet. At most [`Security::capacity`] bytes are given for a packet; a
    /// full packet must come out with exactly `room` bytes if it is to be part of a jumbogram.
    fn seal(&mut self, place: &PacketPlace, pieces: &[P]) -> Result<Sealed<P>, SecurityError>;

    /// Opens the data of one packet, before it is acknowledged.
    fn open(&mut self, place: &PacketPlace, checksum: u16, data: D) -> Result<D, SecurityError>;

    /// At a server: the challenge to send, or `None` if none is needed (any more).
    fn challenge(&mut self) -> Option<Vec<u8>>;

    /// At a server: takes a response. After `Ok`, [`Security::challenge`] gives `None`.
    fn check_response(&mut self, response: &[u8]) -> Result<(), SecurityError>;

    /// At a client: answers a challenge.
    fn respond(&mut self, challenge: &[u8]) -> Result<Vec<u8>, SecurityError>;

    /// Who the peer is, in the class's own form, if it is known.
    fn identity(&self) -> Option<&[u8]>;
}

/// Makes a class's state for connections that strangers begin.
pub trait Acceptor<P, D>: Send {
    /// Number of the class in packets.
    fn index(&self) -> u8;

    /// A connection begins; `entropy` is fresh and unguessable.
    fn accept(&mut self, epoch: u32, cid: u32, entropy: [u32; 8]) -> Box<dyn Security<P, D>>;
}
