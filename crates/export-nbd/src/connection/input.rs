//! Input of a connection that is not received in its place.

use crate::kept::Place;
use crate::socket::Socket;
use std::io;
use survival::Area;

/// Bytes received at once when a header is expected: several headers, or a header and a small
/// payload. The rest of a large payload is received directly into its buffer.
const HEAD_BYTES: usize = 8 * 1024;
/// Maximum bytes buffered of an unfinished negotiation.
const HANDSHAKE_BYTES_MAX: usize = 128 * 1024;

/// Received bytes that are not payload in its place: requests, the negotiation, and the beginning of
/// a payload.
#[derive(Default)]
pub(super) struct Input {
    store: Store,
    /// Bytes before this offset have been processed.
    used: usize,
    /// Bytes before this offset have been received.
    filled: usize,
    /// Position in the stream behind the last received byte.
    received: u64,
    /// Later bytes went past this buffer, to their place.
    is_bypassed: bool,
    /// The last receive emptied the socket. The epoll is level-triggered: it reports later input.
    is_drained: bool,
}

/// Memory of received bytes.
enum Store {
    /// All of it is initialized, so that receiving does not zero it each time.
    Own(Vec<u8>),
    /// Two areas that a successor finds, of which one is in use.
    Kept([Area; 2], usize),
}

impl Default for Store {
    fn default() -> Store {
        Store::Own(Vec::new())
    }
}

impl Store {
    fn bytes(&self) -> &[u8] {
        match self {
            Store::Own(bytes) => bytes,
            Store::Kept(areas, which) => &areas[*which],
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Store::Own(bytes) => bytes,
            Store::Kept(areas, which) => &mut areas[*which],
        }
    }
}

/// Result of [`Input::fill`].
pub(super) enum Filled {
    Some,
    /// No input is available now.
    NotNow,
    End,
}

impl Input {
    /// Creates it in areas that a successor finds.
    pub(super) fn kept(areas: [Area; 2]) -> Input {
        Input {
            store: Store::Kept(areas, 0),
            ..Input::default()
        }
    }

    /// Continues with the areas of a predecessor: `len` bytes of area `which`, of which those before
    /// `used` were processed. `received` is the position behind the last byte.
    pub(super) fn adopted(
        areas: [Area; 2],
        which: usize,
        (used, len): (usize, usize),
        received: u64,
    ) -> Input {
        Input {
            store: Store::Kept(areas, which),
            used,
            filled: len,
            received,
            ..Input::default()
        }
    }

    /// Gives the areas back.
    pub(super) fn into_areas(self) -> Option<[Area; 2]> {
        match self.store {
            Store::Own(_) => None,
            Store::Kept(areas, _) => Some(areas),
        }
    }

    /// Returns the bytes that have not been processed.
    pub(super) fn rest(&self) -> &[u8] {
        &self.store.bytes()[self.used..self.filled]
    }

    /// Returns the position in the stream of the first byte that has not been processed.
    pub(super) fn at(&self) -> u64 {
        self.received.wrapping_sub((self.filled - self.used) as u64)
    }

    /// Prepares to receive past this buffer, which is empty.
    pub(super) fn bypass(&mut self, place: Option<&Place>) {
        self.is_drained = false;
        if !std::mem::replace(&mut self.is_bypassed, true)
            && let Some(place) = place
        {
            place.parsed(self.received, true);
        }
    }

    /// Reports whether later bytes went past this buffer.
    pub(super) fn is_bypassed(&self) -> bool {
        self.is_bypassed
    }

    /// Counts bytes that were received past this buffer.
    pub(super) fn bypassed(&mut self, bytes: usize) {
        self.received = self.received.wrapping_add(bytes as u64);
    }

    /// Marks bytes as processed.
    pub(super) fn consume(&mut self, len: usize) {
        self.used += len;
    }

    /// Receives more bytes. A negotiation that a successor may repeat stays complete.
    pub(super) fn fill(
        &mut self,
        socket: &mut Socket,
        place: Option<&mut Place>,
        negotiates: bool,
    ) -> io::Result<Filled> {
        if std::mem::take(&mut self.is_drained) {
            return Ok(Filled::NotNow);
        }
        let room = self.make_room(place.as_deref(), negotiates);
        let too_long = || io::Error::new(io::ErrorKind::InvalidData, "the negotiation is too long");
        let end = room.ok_or_else(too_long)?;
        match socket.read(&mut self.store.bytes_mut()[self.filled..end]) {
            Ok(0) => Ok(Filled::End),
            Ok(got) => {
                self.filled += got;
                self.received = self.received.wrapping_add(got as u64);
                if let Some(place) = place {
                    place.received(got, socket.raw())?;
                }
                self.is_drained = got < HEAD_BYTES && !socket.has_tls();
                Ok(Filled::Some)
            }
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                Ok(Filled::NotNow)
            }
            Err(e) => Err(e),
        }
    }

    /// Makes room behind what was received, and returns its end; `None` if there is none.
    fn make_room(&mut self, place: Option<&Place>, negotiates: bool) -> Option<usize> {
        let (areas, which) = match &mut self.store {
            Store::Own(bytes) => {
                bytes.copy_within(self.used..self.filled, 0);
                self.filled -= std::mem::take(&mut self.used);
                let end = self.filled + HEAD_BYTES;
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                return (self.filled < HANDSHAKE_BYTES_MAX).then_some(end);
            }
            Store::Kept(areas, which) => (areas, which),
        };
        let is_full = self.filled + HEAD_BYTES > areas[*which].len();
        if negotiates {
            return (!is_full).then_some(self.filled + HEAD_BYTES);
        }
        let rest = self.used..self.filled;
        if rest.is_empty() || is_full {
            // To the other area, so that a successor finds the rest at every moment.
            if !rest.is_empty() {
                let [one, two] = areas;
                let (from, to) = if *which == 0 { (one, two) } else { (two, one) };
                to.get_mut(..rest.len())?
                    .copy_from_slice(&from[rest.clone()]);
                *which ^= 1;
            }
            (self.used, self.filled) = (0, rest.len());
            let base = self.received.wrapping_sub(rest.len() as u64);
            if let Some(place) = place {
                place.input_at(base, *which);
            }
        }
        if std::mem::take(&mut self.is_bypassed)
            && let Some(place) = place
        {
            place.parsed(self.at(), false);
        }
        (self.filled + HEAD_BYTES <= self.store.bytes().len()).then_some(self.filled + HEAD_BYTES)
    }
}
