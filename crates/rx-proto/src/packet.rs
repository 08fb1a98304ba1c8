//! The header that every packet begins with, and the small headers inside a jumbogram.
//!
//! All numbers are big endian. The layout is that of `struct rx_header` (OpenAFS, `src/rx/rx.h`) and of
//! `struct rxrpc_wire_header` (Linux, `net/rxrpc/protocol.h`):
//!
//! ```text
//!    0  epoch         4   names the run of the client; the highest bit says that it is random
//!    4  cid           4   connection; the low two bits are the channel
//!    8  callNumber    4   0: the packet is about the connection
//!   12  seq           4   1 is the first packet of a direction of a call; 0 if it is not DATA
//!   16  serial        4   counts the transmissions of a connection
//!   20  type          1
//!   21  flags         1
//!   22  userStatus    1
//!   23  securityIndex 1
//!   24  checksum      2   for the security class ("spare"); the service does NOT come first
//!   26  serviceId     2
//! ```

use crate::number::{CallNumber, Seq, Serial};
use std::ops::Range;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 28;

/// Bytes of the header between the packets of a jumbogram.
pub const JUMBO_HEADER_BYTES: usize = 4;

/// Data of a full packet: what makes 1440 bytes with its header (OpenAFS, `RX_JUMBOBUFFERSIZE`). Each
/// packet of a jumbogram but the last has exactly this.
pub const PACKET_DATA_BYTES: usize = 1412;

/// Channels of a connection, each with one call at a time.
pub const CHANNELS: usize = 4;

/// The part of a cid that names the channel.
pub(crate) const CHANNEL_MASK: u32 = 3;

/// The highest bit of an epoch that was drawn at random; peers then look for a connection by its
/// epoch and cid alone (OpenAFS, `rxi_FindConnection`).
pub(crate) const EPOCH_RANDOM: u32 = 0x8000_0000;

/// The bits of [`Header::flags`].
pub mod flag {
    /// Sent by the side that made the connection.
    pub const CLIENT_INITIATED: u8 = 1;
    /// An acknowledgement of this packet is asked for at once.
    pub const REQUEST_ACK: u8 = 2;
    /// The last packet of this direction of the call.
    pub const LAST_PACKET: u8 = 4;
    /// More packets follow. Informative; never sent by this crate.
    pub const MORE_PACKETS: u8 = 8;
    /// On DATA: another packet follows in this datagram.
    pub const JUMBO_PACKET: u8 = 0x20;
    /// On ACK: the sender may use slow start.
    pub const SLOW_START_OK: u8 = 0x20;
}

/// What a packet is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PacketType {
    /// Bytes of a call.
    Data = 1,
    /// What was received of a call.
    Ack = 2,
    /// A call cannot be taken now; it is tried again.
    Busy = 3,
    /// The end of a call, or of a connection, with a code.
    Abort = 4,
    /// All of a call was received.
    AckAll = 5,
    /// A server wants proof of who the client is.
    Challenge = 6,
    /// That proof.
    Response = 7,
    /// A question of `rxdebug`, or its answer.
    Debug = 8,
    /// Reserved for parameters; ignored.
    Params = 9,
    /// A question for the version, or its answer.
    Version = 13,
}

impl PacketType {
    /// The type with this number; the unknown are ignored by those who receive them.
    pub const fn from_wire(byte: u8) -> Option<PacketType> {
        Some(match byte {
            1 => PacketType::Data,
            2 => PacketType::Ack,
            3 => PacketType::Busy,
            4 => PacketType::Abort,
            5 => PacketType::AckAll,
            6 => PacketType::Challenge,
            7 => PacketType::Response,
            8 => PacketType::Debug,
            9 => PacketType::Params,
            13 => PacketType::Version,
            _ => return None,
        })
    }
}

/// The header of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Names the run of the client that made the connection.
    pub epoch: u32,
    /// Connection and, in the low two bits, channel.
    pub cid: u32,
    /// Call on that channel.
    pub call_number: CallNumber,
    /// Place in the stream, of DATA.
    pub seq: Seq,
    /// Number of the transmission.
    pub serial: Serial,
    /// What it is.
    pub kind: PacketType,
    /// Bits of [`flag`].
    pub flags: u8,
    /// A byte between the applications.
    pub user_status: u8,
    /// Security class of the connection.
    pub security_index: u8,
    /// For the security class.
    pub checksum: u16,
    /// Service that the connection is with.
    pub service: u16,
}

impl Header {
    /// Reads the header of a datagram; `None` if it is too short or of an unknown type.
    #[inline]
    pub fn parse(datagram: &[u8]) -> Option<Header> {
        let h = datagram.first_chunk::<HEADER_BYTES>()?;
        Some(Header {
            epoch: u32::from_be_bytes([h[0], h[1], h[2], h[3]]),
            cid: u32::from_be_bytes([h[4], h[5], h[6], h[7]]),
            call_number: CallNumber(u32::from_be_bytes([h[8], h[9], h[10], h[11]])),
            seq: Seq(u32::from_be_bytes([h[12], h[13], h[14], h[15]])),
            serial: Serial(u32::from_be_bytes([h[16], h[17], h[18], h[19]])),
            kind: PacketType::from_wire(h[20])?,
            flags: h[21],
            user_status: h[22],
            security_index: h[23],
            checksum: u16::from_be_bytes([h[24], h[25]]),
            service: u16::from_be_bytes([h[26], h[27]]),
        })
    }

    /// The header as it is sent.
    #[inline]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut h = [0; HEADER_BYTES];
        h[0..4].copy_from_slice(&self.epoch.to_be_bytes());
        h[4..8].copy_from_slice(&self.cid.to_be_bytes());
        h[8..12].copy_from_slice(&self.call_number.0.to_be_bytes());
        h[12..16].copy_from_slice(&self.seq.0.to_be_bytes());
        h[16..20].copy_from_slice(&self.serial.0.to_be_bytes());
        h[20] = self.kind as u8;
        h[21] = self.flags;
        h[22] = self.user_status;
        h[23] = self.security_index;
        h[24..26].copy_from_slice(&self.checksum.to_be_bytes());
        h[26..28].copy_from_slice(&self.service.to_be_bytes());
        h
    }

    /// Whether all bits of `flags` are set.
    pub const fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// The channel, 0 to 3.
    pub const fn channel(&self) -> usize {
        (self.cid & CHANNEL_MASK) as usize
    }
}

/// One packet of a DATA datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataPacket {
    /// Its place in the stream.
    pub seq: Seq,
    /// Its number of transmission.
    pub serial: Serial,
    /// Its bits of [`flag`].
    pub flags: u8,
    /// Its checksum, for the security class.
    pub checksum: u16,
    /// Its bytes in the datagram.
    pub range: Range<usize>,
}

/// The packets of a DATA datagram, in order.
#[derive(Debug, Clone)]
pub struct DataPackets<'a> {
    datagram: &'a [u8],
    next: Option<DataPacket>,
}

impl<'a> DataPackets<'a> {
    /// Checks the whole datagram first, so that nothing of a malformed one is taken: in a jumbogram,
    /// each packet but the last is full and is not the last of its call.
    #[inline]
    pub fn parse(header: &Header, datagram: &'a [u8]) -> Option<DataPackets<'a>> {
        let first = DataPacket {
            seq: header.seq,
            serial: header.serial,
            flags: header.flags,
            checksum: header.checksum,
            range: HEADER_BYTES..datagram.len(),
        };
        let packets = DataPackets {
            datagram,
            next: Some(first),
        };
        if header.has(flag::JUMBO_PACKET) {
            let mut flags = header.flags;
            let mut at = HEADER_BYTES;
            while flags & flag::JUMBO_PACKET != 0 {
                at += PACKET_DATA_BYTES;
                let next = datagram.get(at..)?.first_chunk::<JUMBO_HEADER_BYTES>()?;
                if flags & flag::LAST_PACKET != 0 {
                    return None;
                }
                flags = next[0];
                at += JUMBO_HEADER_BYTES;
            }
        }
        (datagram.len() >= HEADER_BYTES).then_some(packets)
    }
}

impl Iterator for DataPackets<'_> {
    type Item = DataPacket;

    fn next(&mut self) -> Option<DataPacket> {
        let mut packet = self.next.take()?;
        if packet.flags & flag::JUMBO_PACKET != 0 {
            let end = packet.range.start + PACKET_DATA_BYTES;
            let inner = self
                .datagram
                .get(end..)?
                .first_chunk::<JUMBO_HEADER_BYTES>()?;
            self.next = Some(DataPacket {
                seq: packet.seq.next(),
                serial: packet.serial.next(),
                flags: inner[0],
                checksum: u16::from_be_bytes([inner[2], inner[3]]),
                range: end + JUMBO_HEADER_BYTES..packet.range.end,
            });
            packet.range.end = end;
        }
        Some(packet)
    }
}

/// The code of an ABORT packet, from what follows its header.
pub(crate) fn abort_code(body: &[u8]) -> Option<i32> {
    body.first_chunk::<4>()
        .map(|code| i32::from_be_bytes(*code))
}
