//! The body of an ACK packet.
//!
//! ```text
//!    0  bufferSpace     2   unused
//!    2  maxSkew         2   unused
//!    4  firstPacket     4   every packet before it was received and will not be needed again
//!    8  previousPacket  4   the packet received before this was sent; some peers put a serial here
//!   12  serial          4   transmission that prompted this acknowledgement, or 0
//!   16  reason          1
//!   17  nAcks           1   number of bytes that follow, at most 255
//!   18  acks        nAcks   bit 0: packet firstPacket + i was received
//!       padding         3
//!       maxMTU          4   largest packet the peer accepts, header included
//!       ifMTU           4   largest packet that fits its interface
//!       rwind           4   packets it accepts beyond firstPacket
//!       maxDgramPackets 4   packets it accepts in a datagram; 0: it asks to be probed
//! ```
//!
//! The words after the padding were added one at a time in the history of AFS, so any number of
//! them may be absent (OpenAFS, `rxi_ReceiveAckPacket`).

use crate::number::{Seq, Serial};

/// Length in bytes of the fields before `acks`.
const FIXED_BYTES: usize = 18;

/// Length in bytes of the padding between `acks` and the trailing words.
const PADDING_BYTES: usize = 3;

/// Length in bytes of an ACK packet's body that describes no packets but has all four words.
pub const ACK_BYTES_MIN: usize = FIXED_BYTES + PADDING_BYTES + 16;

/// Reason for which an acknowledgement was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reason {
    /// The sender requested it.
    Requested = 1,
    /// A packet was received twice.
    Duplicate = 2,
    /// A packet arrived before one that it follows.
    OutOfSequence = 3,
    /// A packet was beyond the window.
    ExceedsWindow = 4,
    /// There was no room for a packet.
    NoSpace = 5,
    /// Liveness probe: the peer answers immediately.
    Ping = 6,
    /// Answer to a ping.
    PingResponse = 7,
    /// The acknowledgement delay expired.
    Delay = 8,
    /// All received data has been read.
    Idle = 9,
}

impl Reason {
    /// Converts a number to its reason; `None` for an unknown one, which does not invalidate
    /// the acknowledgement.
    pub const fn from_wire(byte: u8) -> Option<Reason> {
        Some(match byte {
            1 => Reason::Requested,
            2 => Reason::Duplicate,
            3 => Reason::OutOfSequence,
            4 => Reason::ExceedsWindow,
            5 => Reason::NoSpace,
            6 => Reason::Ping,
            7 => Reason::PingResponse,
            8 => Reason::Delay,
            9 => Reason::Idle,
            _ => return None,
        })
    }
}

/// Limits of the sender, from the words at the end of an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    /// Largest packet that the sender accepts, header included.
    pub max_mtu: u32,
    /// Largest packet that fits its interface, header included.
    pub if_mtu: u32,
    /// Packets that it accepts beyond the first unacknowledged one.
    pub window: Option<u32>,
    /// Packets that it accepts in one datagram; 0 requests a probe of the path.
    pub datagram_packets: Option<u32>,
}

/// A received acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack<'a> {
    /// First packet that is not hard-acknowledged: the peer needs none of those before it again.
    pub first: Seq,
    /// Packet received last; from some peers a serial number.
    pub previous: Seq,
    /// Transmission that prompted the acknowledgement, or 0.
    pub serial: Serial,
    /// Reason for which it was sent, if known.
    pub reason: Option<Reason>,
    /// One byte per packet from `first` on; bit 0 is set if the packet was received.
    pub packets: &'a [u8],
    /// Limits of the peer.
    pub trailer: Option<Trailer>,
}

impl<'a> Ack<'a> {
    /// Parses the acknowledgement in the body of a packet; `None` if the body is truncated.
    pub fn parse(body: &'a [u8]) -> Option<Ack<'a>> {
        let b = body.first_chunk::<FIXED_BYTES>()?;
        let rest = body.get(FIXED_BYTES..)?;
        let packets = rest.get(..usize::from(b[17]))?;
        let words = rest
            .get(packets.len() + PADDING_BYTES..)
            .unwrap_or_default();
        Some(Ack {
            first: Seq(u32::from_be_bytes([b[4], b[5], b[6], b[7]])),
            previous: Seq(u32::from_be_bytes([b[8], b[9], b[10], b[11]])),
            serial: Serial(u32::from_be_bytes([b[12], b[13], b[14], b[15]])),
            reason: Reason::from_wire(b[16]),
            packets,
            trailer: trailer(words),
        })
    }
}

fn trailer(words: &[u8]) -> Option<Trailer> {
    let word = |n: usize| {
        let bytes = words.get(4 * n..)?.first_chunk::<4>()?;
        Some(u32::from_be_bytes(*bytes))
    };
    Some(Trailer {
        max_mtu: word(0)?,
        if_mtu: word(1)?,
        window: word(2),
        datagram_packets: word(3),
    })
}

/// An acknowledgement to be sent.
#[derive(Debug, Clone, Copy)]
pub struct AckOut {
    /// First packet not yet read; every packet before it was received and read.
    pub first: Seq,
    /// Highest packet received.
    pub previous: Seq,
    /// Transmission that prompts the acknowledgement, or 0.
    pub serial: Serial,
    /// Reason for which it is sent.
    pub reason: Reason,
    /// Limits of the local side: `max_mtu`, `if_mtu`, window and packets per datagram.
    pub takes: [u32; 4],
}

impl AckOut {
    /// Appends the body to `out`. `received` describes the packets from `first` on; those past 255
    /// are left out.
    pub fn encode(&self, received: impl Iterator<Item = bool>, out: &mut Vec<u8>) {
        // The first four bytes are unused; OpenAFS sends zeros too.
        out.extend([0; 4]);
        out.extend(self.first.0.to_be_bytes());
        out.extend(self.previous.0.to_be_bytes());
        out.extend(self.serial.0.to_be_bytes());
        out.push(self.reason as u8);
        let count_at = out.len();
        out.push(0);
        out.extend(received.take(255).map(u8::from));
        let count = u8::try_from(out.len() - count_at - 1).unwrap_or(u8::MAX);
        if let Some(place) = out.get_mut(count_at) {
            *place = count;
        }
        out.extend([0; PADDING_BYTES]);
        for word in self.takes {
            out.extend(word.to_be_bytes());
        }
    }
}
