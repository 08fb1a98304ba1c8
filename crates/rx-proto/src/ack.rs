//! The body of an ACK packet.
//!
//! ```text
//!    0  bufferSpace     2   not used
//!    2  maxSkew         2   not used
//!    4  firstPacket     4   everything before it was received for good
//!    8  previousPacket  4   the packet received before this was sent; some peers put a serial here
//!   12  serial          4   transmission that made the peer send this, or 0
//!   16  reason          1
//!   17  nAcks           1   how many of the following, at most 255
//!   18  acks        nAcks   bit 0: packet firstPacket + i was received
//!       padding         3
//!       maxMTU          4   largest packet the peer takes, header included
//!       ifMTU           4   largest packet that fits its interface
//!       rwind           4   packets it takes beyond firstPacket
//!       maxDgramPackets 4   packets it takes in a datagram; 0: it wants to be probed
//! ```
//!
//! The words after the padding came one by one in the history of AFS, so any number of them may be
//! absent (OpenAFS, `rxi_ReceiveAckPacket`).

use crate::number::{Seq, Serial};

/// Bytes before `acks`.
const FIXED_BYTES: usize = 18;

/// Bytes between `acks` and the words after them.
const PADDING_BYTES: usize = 3;

/// Bytes of an ACK packet's body that tells of no packets but has all four words.
pub const ACK_BYTES_MIN: usize = FIXED_BYTES + PADDING_BYTES + 16;

/// Why an acknowledgement was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reason {
    /// It was asked for.
    Requested = 1,
    /// A packet came twice.
    Duplicate = 2,
    /// A packet came before one that it follows.
    OutOfSequence = 3,
    /// A packet came from beyond the window.
    ExceedsWindow = 4,
    /// There was no room for a packet.
    NoSpace = 5,
    /// Is the peer there? It answers at once.
    Ping = 6,
    /// That answer.
    PingResponse = 7,
    /// Nothing else was sent for a while.
    Delay = 8,
    /// All that was received has been read.
    Idle = 9,
}

impl Reason {
    /// The reason with this number; an acknowledgement of an unknown one still counts.
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

/// What the words at the end of an acknowledgement say of its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    /// Largest packet it takes, header included.
    pub max_mtu: u32,
    /// Largest packet that fits its interface, header included.
    pub if_mtu: u32,
    /// Packets it takes beyond the first that is not acknowledged.
    pub window: Option<u32>,
    /// Packets it takes in one datagram; 0 asks for a probe of the path.
    pub datagram_packets: Option<u32>,
}

/// An acknowledgement, as it was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack<'a> {
    /// Everything before this packet was received for good.
    pub first: Seq,
    /// The packet received last; from some peers a serial number.
    pub previous: Seq,
    /// The transmission that made the peer send this, or 0.
    pub serial: Serial,
    /// Why it was sent, if the reason is known.
    pub reason: Option<Reason>,
    /// A byte per packet from `first` on; bit 0 says that it was received.
    pub packets: &'a [u8],
    /// What the peer takes.
    pub trailer: Option<Trailer>,
}

impl<'a> Ack<'a> {
    /// Reads what follows the header; `None` if it is cut short.
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

/// An acknowledgement that is to be sent.
#[derive(Debug, Clone, Copy)]
pub struct AckOut {
    /// Everything before this packet was received and read.
    pub first: Seq,
    /// The highest packet received.
    pub previous: Seq,
    /// The transmission that prompts this, or 0.
    pub serial: Serial,
    /// Why it is sent.
    pub reason: Reason,
    /// What we take: `max_mtu`, `if_mtu`, window and packets in a datagram.
    pub takes: [u32; 4],
}

impl AckOut {
    /// Appends the body to `out`. `received` tells of the packets from `first` on; those past 255 are
    /// left out.
    pub fn encode(&self, received: impl Iterator<Item = bool>, out: &mut Vec<u8>) {
        // The first four bytes are not used by anyone: OpenAFS sends zeros, as we do.
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
