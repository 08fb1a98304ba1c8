//! The header of every packet, and the short headers inside a jumbogram.
//!
//! All numbers are big endian. The layout is that of `struct rx_header` (OpenAFS, `src/rx/rx.h`)
//! and of `struct rxrpc_wire_header` (Linux, `net/rxrpc/protocol.h`):
//!
//! ```text
//!    0  epoch         4   identifies a run of the client; the highest bit marks a random value
//!    4  cid           4   connection; the low two bits are the channel
//!    8  callNumber    4   0: the packet concerns the connection
//!   12  seq           4   1 is the first packet of a direction of a call; 0 if it is not DATA
//!   16  serial        4   counts the transmissions of a connection
//!   20  type          1
//!   21  flags         1
//!   22  userStatus    1
//!   23  securityIndex 1
//!   24  checksum      2   for the security class ("spare"); the service id does NOT come first
//!   26  serviceId     2
//! ```

use crate::number::{CallNumber, Cid, Epoch, Seq, Serial};
use std::ops::Range;

/// Length of the header in bytes.
pub const HEADER_BYTES: usize = 28;

/// Length in bytes of the header between two packets of a jumbogram.
pub const JUMBO_HEADER_BYTES: usize = 4;

/// Data bytes of a full packet, which with its header has 1440 bytes (OpenAFS,
/// `RX_JUMBOBUFFERSIZE`). Each packet of a jumbogram except the last has exactly this size.
pub const PACKET_DATA_BYTES: usize = 1412;

/// Channels of a connection. Each carries one call at a time.
pub const CHANNELS: usize = 4;

/// Bits of [`Header::flags`].
pub mod flag {
    /// Sent by the side that made the connection.
    pub const CLIENT_INITIATED: u8 = 1;
    /// The receiver must acknowledge this packet immediately.
    pub const REQUEST_ACK: u8 = 2;
    /// The last packet of this direction of the call.
    pub const LAST_PACKET: u8 = 4;
    /// More packets follow. Informative; this crate never sends it.
    pub const MORE_PACKETS: u8 = 8;
    /// On DATA: another packet follows in this datagram.
    pub const JUMBO_PACKET: u8 = 0x20;
    /// On ACK: the sender may use slow start.
    pub const SLOW_START_OK: u8 = 0x20;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PacketType {
    /// Data of a call.
    Data = 1,
    /// Acknowledgement of received data.
    Ack = 2,
    /// The server cannot accept the call now; the client retries.
    Busy = 3,
    /// End of a call or of a connection, with a code.
    Abort = 4,
    /// All data of a call was received.
    AckAll = 5,
    /// A server's request for the client's credentials.
    Challenge = 6,
    /// Answer to a challenge.
    Response = 7,
    /// An `rxdebug` request, or its answer.
    Debug = 8,
    /// Reserved for parameters; ignored.
    Params = 9,
    /// A version request, or its answer.
    Version = 13,
}

impl PacketType {
    /// Converts a number to its type; `None` for an unknown one, which receivers ignore.
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

/// Header of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Identifier of the run of the client that made the connection.
    pub epoch: Epoch,
    /// Connection and, in the low two bits, channel.
    pub cid: Cid,
    /// Number of the call on that channel.
    pub call_number: CallNumber,
    /// Position in the stream, for DATA.
    pub seq: Seq,
    /// Number of the transmission on the connection.
    pub serial: Serial,
    /// Type of the packet.
    pub kind: PacketType,
    /// Bits of [`flag`].
    pub flags: u8,
    /// Byte passed between the applications.
    pub user_status: u8,
    /// Security class of the connection.
    pub security_index: u8,
    /// Checksum, defined by the security class.
    pub checksum: u16,
    /// Service id of the connection.
    pub service: u16,
}

impl Header {
    /// Parses the header of a datagram; `None` if the datagram is too short or of an unknown
    /// type.
    #[inline]
    pub fn parse(datagram: &[u8]) -> Option<Header> {
        let h = datagram.first_chunk::<HEADER_BYTES>()?;
        Some(Header {
            epoch: Epoch(u32::from_be_bytes([h[0], h[1], h[2], h[3]])),
            cid: Cid(u32::from_be_bytes([h[4], h[5], h[6], h[7]])),
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

    /// Encodes the header.
    #[inline]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut h = [0; HEADER_BYTES];
        h[0..4].copy_from_slice(&self.epoch.0.to_be_bytes());
        h[4..8].copy_from_slice(&self.cid.0.to_be_bytes());
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

    /// Checks whether all bits of `flags` are set.
    pub const fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// Returns the channel, 0 to 3.
    pub const fn channel(&self) -> usize {
        self.cid.channel()
    }
}

/// One packet of a DATA datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataPacket {
    /// Position in the stream.
    pub seq: Seq,
    /// Number of the transmission on the connection.
    pub serial: Serial,
    /// Bits of [`flag`].
    pub flags: u8,
    /// Checksum, defined by the security class.
    pub checksum: u16,
    /// Position of the data in the datagram.
    pub range: Range<usize>,
}

/// Iterator over the packets of a DATA datagram, in order.
#[derive(Debug, Clone)]
pub struct DataPackets<'a> {
    datagram: &'a [u8],
    next: Option<DataPacket>,
}

impl<'a> DataPackets<'a> {
    /// Parses the packets of a datagram. Checks the whole datagram first, so that no packet of a
    /// malformed one is used: in a jumbogram, each packet except the last is full and is not the
    /// last of its call.
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

/// Parses the code of an ABORT packet with this body.
pub(crate) fn abort_code(body: &[u8]) -> Option<i32> {
    body.first_chunk::<4>()
        .map(|code| i32::from_be_bytes(*code))
}
