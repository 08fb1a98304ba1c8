//! Output for the driver: headers made by the core and references to payloads, in order.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

/// Largest payload of a UDP datagram over IPv4, and so of a batch for segmentation offload.
const BATCH_BYTES_MAX: usize = 65_507;

/// Largest number of segments that Linux cuts a batch into (`UDP_MAX_SEGMENTS`; larger since 6.8).
pub const SEGMENTS_MAX: usize = 64;

/// Source and destination of datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Route {
    /// Address and port of the peer.
    pub peer: SocketAddr,
    /// Local address that the peer uses, if the driver knows it (`IP_PKTINFO`): peers accept
    /// answers only from the address that they called.
    pub local: Option<IpAddr>,
}

/// Contiguous part of the bytes of a batch.
#[derive(Debug, Clone, Copy)]
pub enum Part<'a, P> {
    /// Bytes made by the core.
    Header(&'a [u8]),
    /// Bytes owned by the application.
    Payload(&'a P),
}

#[derive(Debug)]
enum Piece<P> {
    Header(Range<usize>),
    Payload(P),
}

/// One or several datagrams to one peer. All have `segment_bytes` bytes except the last, which may
/// have fewer: they can be sent together with `UDP_SEGMENT`, or one at a time. The object is
/// reused, so that sending does not allocate.
#[derive(Debug)]
pub struct Transmit<P> {
    route: Route,
    segments_max: usize,
    segments: usize,
    segment_bytes: usize,
    bytes: usize,
    /// Whether the last segment was shorter: nothing may follow it.
    closed: bool,
    dont_fragment: bool,
    headers: Vec<u8>,
    pieces: Vec<Piece<P>>,
    /// Positions in `headers` of the flags of the last DATA packet and of the one before.
    flags_at: [Option<usize>; 2],
}

impl<P> Transmit<P> {
    /// Creates an empty batch for at most `segments_max` datagrams, 1 to [`SEGMENTS_MAX`].
    pub fn new(segments_max: usize) -> Transmit<P> {
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        Transmit {
            route: Route {
                peer: nowhere,
                local: None,
            },
            segments_max: segments_max.clamp(1, SEGMENTS_MAX),
            segments: 0,
            segment_bytes: 0,
            bytes: 0,
            closed: false,
            dont_fragment: false,
            headers: Vec::new(),
            pieces: Vec::new(),
            flags_at: [None; 2],
        }
    }

    /// Returns the destination and the local address.
    pub const fn route(&self) -> Route {
        self.route
    }

    /// Returns the number of datagrams.
    pub const fn segments(&self) -> usize {
        self.segments
    }

    /// Returns the length in bytes of each datagram except the last.
    pub const fn segment_bytes(&self) -> usize {
        self.segment_bytes
    }

    /// Returns the length in bytes of all datagrams.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reports whether IP must not fragment the datagrams, because they probe the path's size or
    /// rely on a probe. If the network stack refuses them as too long, the driver must call
    /// [`crate::Endpoint::too_long`].
    pub const fn dont_fragment(&self) -> bool {
        self.dont_fragment
    }

    /// Returns the bytes in order; a datagram may begin and end inside a part.
    pub fn parts(&self) -> impl Iterator<Item = Part<'_, P>> {
        self.pieces.iter().map(|piece| match piece {
            Piece::Header(range) => {
                Part::Header(self.headers.get(range.clone()).unwrap_or_default())
            }
            Piece::Payload(payload) => Part::Payload(payload),
        })
    }

    /// Empties the batch and releases its payload references.
    pub fn clear(&mut self) {
        self.segments = 0;
        self.segment_bytes = 0;
        self.bytes = 0;
        self.closed = false;
        self.dont_fragment = false;
        self.headers.clear();
        self.pieces.clear();
        self.flags_at = [None; 2];
    }

    /// Sets the route of the batch.
    pub(crate) const fn begin(&mut self, route: Route) {
        self.route = route;
    }

    /// Prevents IP from fragmenting the datagrams of the batch.
    pub(crate) const fn forbid_fragments(&mut self) {
        self.dont_fragment = true;
    }

    /// Checks whether a datagram of `bytes` bytes can follow.
    pub(crate) const fn fits(&self, bytes: usize) -> bool {
        if self.segments == 0 {
            return true;
        }
        !self.closed
            && bytes <= self.segment_bytes
            && self.segments < self.segments_max
            && self.bytes + bytes <= BATCH_BYTES_MAX
    }

    /// Starts a datagram of `bytes` bytes.
    pub(crate) const fn segment(&mut self, bytes: usize) {
        if self.segments == 0 {
            self.segment_bytes = bytes;
        } else if bytes < self.segment_bytes {
            self.closed = true;
        }
        self.segments += 1;
        self.bytes += bytes;
    }

    pub(crate) fn header(&mut self, bytes: &[u8]) {
        let start = self.headers.len();
        self.headers.extend_from_slice(bytes);
        self.pieces.push(Piece::Header(start..self.headers.len()));
    }

    /// Appends bytes made by `write` and returns their number.
    pub(crate) fn header_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> usize {
        let start = self.headers.len();
        write(&mut self.headers);
        self.pieces.push(Piece::Header(start..self.headers.len()));
        self.headers.len() - start
    }

    /// Appends the header of a DATA packet whose flags are at offset `flags_in`.
    pub(crate) fn data_header(&mut self, bytes: &[u8], flags_in: usize) {
        let at = self.headers.len() + flags_in;
        self.flags_at = [Some(at), self.flags_at[0]];
        self.header(bytes);
    }

    pub(crate) fn payload(&mut self, payload: P) {
        self.pieces.push(Piece::Payload(payload));
    }

    /// Sets flags in the last DATA packet (`skip` 0) or in the one before it (`skip` 1).
    pub(crate) fn flag_last(&mut self, skip: usize, flags: u8) {
        let at = self.flags_at.get(skip).copied().flatten();
        if let Some(place) = at.and_then(|at| self.headers.get_mut(at)) {
            *place |= flags;
        }
    }
}

impl<P: AsRef<[u8]>> Transmit<P> {
    /// Copies the datagrams, for drivers without scattered sends and for tests.
    pub fn datagrams(&self) -> Vec<Vec<u8>> {
        let mut all = Vec::with_capacity(self.bytes);
        for part in self.parts() {
            match part {
                Part::Header(bytes) => all.extend_from_slice(bytes),
                Part::Payload(payload) => all.extend_from_slice(payload.as_ref()),
            }
        }
        all.chunks(self.segment_bytes.max(1))
            .map(<[u8]>::to_vec)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::Shared;

    #[test]
    fn a_shorter_datagram_is_the_last_and_a_longer_one_does_not_follow() {
        let mut batch: Transmit<Shared> = Transmit::new(10);
        batch.segment(100);
        assert!(batch.fits(100) && batch.fits(99) && !batch.fits(101));
        batch.segment(50);
        assert!(!batch.fits(50));
        batch.clear();
        for _ in 0..10 {
            assert!(batch.fits(70));
            batch.segment(70);
        }
        assert!(!batch.fits(70));
        batch.clear();
        batch.segment(65_000);
        assert!(!batch.fits(508) && batch.fits(507));
    }

    #[test]
    fn parts_come_out_in_order_and_flags_can_be_set_late() {
        let mut batch = Transmit::new(4);
        batch.segment(4);
        batch.data_header(&[1, 0], 1);
        batch.payload(Shared::from(&b"ab"[..]));
        batch.segment(3);
        batch.data_header(&[2, 0], 1);
        batch.payload(Shared::from(&b"c"[..]));
        batch.flag_last(0, 8);
        batch.flag_last(1, 4);
        assert_eq!(
            batch.datagrams(),
            [b"\x01\x04ab".to_vec(), b"\x02\x08c".to_vec()]
        );
    }
}
